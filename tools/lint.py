"""Rules of the checkout that no linter has: `python -m tools.lint`, a part of `./gpufleet lint`.

Reads the checkout and prints each fault with its file; changes nothing.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from docs import screenshots
from docs.generate import pages

ROOT = Path(__file__).resolve().parents[1]
WORDS_OF_A_CELL = 12
PICTURE_BYTES = range(10_000, 300_000)
MOST_LINES = 500
# Docstrings that begin so avoid the noun: the reader has to infer which value they document.
NOUNLESS = re.compile(r"(What|Whether|Who)\b|[({]")
DOCUMENTED = ("src", "plugins", "lab", "tools", "docs", "benchmarks", "tests")
PRODUCT = ("src", "plugins", "roles", "playbooks", "verify", "examples", "tools")
KINDS = {".py", ".yml", ".j2", ".js", ".css", ".html"}
FRAGMENT_TYPES = "|".join(
    tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]["fragment"]
)
FRAGMENT_LENGTH, SECTION_LINES = 300, 60

SOURCES = (ROOT / "src" / "gpufleet", ROOT / "tools" / "catalog")
FRAMEWORK = re.compile("tensorflow|torch|jax", re.IGNORECASE)
# Programs of one framework: they run it or read its wheels, and their names have it.
PROGRAMS = ("catalog/*_wheel.py", "workload/*.py")
# How often the code of any other file may name a framework. Take an entry out when its names have
# moved to `frameworks/`. A new framework adds its wheel to measurement.py, and its programs to
# command.py and distributed.py; nothing else may grow.
NAMED = {
    "src/gpufleet/components/checks.py": 1,
    "src/gpufleet/components/stacks/tensorflow_tests.py": 1,
    "src/gpufleet/report/bundle.py": 2,
    "src/gpufleet/workload/command.py": 11,
    "src/gpufleet/workload/distributed.py": 7,
    "tools/catalog/measurement.py": 9,
}


def long_cells(text: str) -> list[str]:
    """The cells of a page's tables with more than a dozen words."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    cells = [cell.split() for row in rows for cell in re.split(r"(?<!\\)\|", row)]
    return [" ".join(cell) for cell in cells if len(cell) > WORDS_OF_A_CELL]


def cells() -> Iterator[str]:
    """Handwritten pages whose tables have long cells."""
    generated = {path for path, _ in pages()}
    written = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md")))
    for path in written:
        if path not in generated:
            for cell in long_cells(path.read_text(encoding="utf-8")):
                yield f"{path.relative_to(ROOT)}: a cell of more than a dozen words: {cell}"


def pictures() -> Iterator[str]:
    """The report's pictures that are too large, too small or out of date."""
    for name in screenshots.PICTURES:
        size = (screenshots.DIRECTORY / f"{name}.png").stat().st_size
        if size not in PICTURE_BYTES:
            yield f"{name}.png has {size} bytes, not {PICTURE_BYTES.start} to {PICTURE_BYTES.stop}"


def fragment_fault(name: str, text: str) -> str | None:
    """The part of a changelog fragment that is not in its form."""
    if not re.fullmatch(rf"\+[a-z0-9-]+\.({FRAGMENT_TYPES})\.md", name):
        return "its name"
    if not text.endswith((".\n", "`\n")):
        return "its end"
    return "its length" if len(text) > FRAGMENT_LENGTH else None


def changelog() -> Iterator[str]:
    """Fragments that are in no form or not in the draft, and sections of more than a page."""
    fragments = [
        path
        for path in sorted((ROOT / "changelogs").iterdir())
        if path.name not in {"README.md", "template.md.j2"}
    ]
    draft = subprocess.run(
        [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "next"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    if not draft.startswith("## next ("):
        yield "changelogs: the draft of the next release does not begin with its heading"
    joined = " ".join(draft.split())
    for path in fragments:
        text = path.read_text(encoding="utf-8")
        if fault := fragment_fault(path.name, text):
            yield f"changelogs/{path.name}: {fault} is wrong, see changelogs/README.md"
        if f"- {' '.join(text.split())}" not in joined:
            yield f"changelogs/{path.name} is not in the draft of the next release"
    whole = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    first, *sections = re.split(r"^## ", whole, flags=re.MULTILINE)
    if "<!-- towncrier release notes start -->" not in first:
        yield "CHANGELOG.md: the mark of towncrier is missing"
    for section in sections:
        if len(section.splitlines()) > SECTION_LINES:
            yield f"CHANGELOG.md: {section.split()[0]} has more than {SECTION_LINES} lines"


def imported(text: str) -> Iterator[str]:
    """The dotted names that a module imports, relative ones with their dots."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (
                f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names
            )


def is_of_a_test_module(name: str) -> bool:
    """Return if a dotted name names a test module or a conftest of the tests."""
    first, *parts = name.split(".")
    return first in {"", "tests"} and any(
        part == "conftest" or part.startswith("test_") for part in parts
    )


def test_modules() -> Iterator[str]:
    """Modules that import from a test module or a conftest: tests share by tests/support."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for name in imported(path.read_text(encoding="utf-8")):
            if is_of_a_test_module(name):
                yield f"{path.relative_to(ROOT)} imports {name}: move it to tests/support"


def lengths() -> Iterator[str]:
    """Product files of more than 500 lines. The catalog is data."""
    for root in PRODUCT:
        for path in sorted((ROOT / root).rglob("*")):
            data = "/catalog/data/" in path.as_posix()
            if path.suffix in KINDS and path.is_file() and not data:
                lines = len(path.read_text(encoding="utf-8").splitlines())
                if lines > MOST_LINES:
                    yield f"{path.relative_to(ROOT)} has {lines} lines, more than {MOST_LINES}"


def docstrings(tree: ast.Module) -> Iterator[tuple[ast.AST, ast.Constant]]:
    """Pairs of a module, class or function and its docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            match node.body:
                case [ast.Expr(value=ast.Constant(value=str()) as text), *_]:
                    yield node, text


def is_check(node: ast.AST) -> bool:
    """Return whether a function is a check: its docstring is the statement that reports show."""
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else ()
    return any(ast.unparse(each).startswith("check(") for each in decorators)


def nounless(text: str) -> Iterator[ast.Constant]:
    """The docstrings of a module's text that begin with a question word or a bracket."""
    for node, docstring in docstrings(ast.parse(text)):
        if NOUNLESS.match(str(docstring.value).lstrip()) and not is_check(node):
            yield docstring


def nouns() -> Iterator[str]:
    """Docstrings that do not name the value that they document."""
    for path in sorted(path for root in DOCUMENTED for path in (ROOT / root).rglob("*.py")):
        for each in nounless(path.read_text(encoding="utf-8")):
            begin = str(each.value).split(maxsplit=1)[0]
            yield (
                f"{path.relative_to(ROOT)}:{each.lineno}: a docstring begins with {begin!r}: name"
                " the value, such as 'The ...', 'True if ...' or 'Return whether ...'"
            )


def named_frameworks(text: str) -> list[str]:
    """The names and texts of a module's code that name a framework; no comment, no docstring."""
    tree = ast.parse(text)
    passed_over = {id(docstring) for _, docstring in docstrings(tree)}
    found = []
    for node in ast.walk(tree):
        if id(node) in passed_over:
            continue
        values = [value for _, value in ast.iter_fields(node)]
        found += [each for each in values if isinstance(each, str) and FRAMEWORK.search(each)]
    return found


def is_program(path: Path) -> bool:
    """Return if a module is the program of one framework: in a place for them, named for it."""
    return any(path.match(pattern) for pattern in PROGRAMS) and bool(FRAMEWORK.search(path.stem))


def budgets() -> Iterator[str]:
    """Rooms of src/gpufleet with more lines than pyproject.toml allows them, or without a limit."""
    limits = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["gpufleet"]["lines"]
    source = ROOT / "src" / "gpufleet"
    found: Counter[str] = Counter()
    for path in source.rglob("*.py"):
        if path.is_symlink():
            continue
        folder = path.parent.relative_to(source)
        # A component is a room of its own.
        room = "/".join(folder.parts[: 2 if folder.parts[:1] == ("components",) else 1]) or "."
        found.update(dict.fromkeys((room, "all"), len(path.read_text("utf-8").splitlines())))
    for room, lines in sorted(found.items()):
        if lines > limits.get(room, 0):
            yield (
                f"src/gpufleet/{room} has {lines} lines, and may have {limits.get(room, 0)}: see"
                " [tool.gpufleet.lines] in pyproject.toml"
            )


def frameworks() -> Iterator[str]:
    """Files that name a framework more or less often than they may."""
    counts = {}
    for path in (path for source in SOURCES for path in source.rglob("*.py")):
        if path.resolve().is_relative_to(SOURCES[0] / "frameworks") or is_program(path):
            continue
        if found := named_frameworks(path.read_text(encoding="utf-8")):
            counts[path.relative_to(ROOT).as_posix()] = len(found)
    for name in sorted({*counts, *NAMED}):
        if counts.get(name, 0) != NAMED.get(name, 0):
            yield (
                f"{name} names frameworks {counts.get(name, 0)} times, and may"
                f" {NAMED.get(name, 0)} times: see NAMED in tools/lint.py"
            )


RULES: tuple[Callable[[], Iterator[str]], ...] = (
    cells,
    pictures,
    changelog,
    test_modules,
    lengths,
    budgets,
    nouns,
    frameworks,
)


def main() -> int:
    """Print every fault; the exit status."""
    faults = [fault for rule in RULES for fault in rule()]
    print("\n".join(faults), end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
