"""Every command that README, the tutorial and the guides print is one that gpufleet accepts.

Nothing runs: the verb exists, its parser accepts the options, ansible-playbook accepts the options
that go on to it, and named files of the repository exist.
"""

from __future__ import annotations

import argparse
import gzip
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import benchmarks.__main__ as benchmarks
import lab.__main__ as lab
from docs import generate
from gpufleet.cli import playbook
from gpufleet.cli.arguments import check_playbook_args
from gpufleet.cli.main import parsers
from gpufleet.cli.parser import Parser
from gpufleet.cli.verbs import VERBS
from gpufleet.components import resolver
from gpufleet.components.base.registry import CHECKS
from gpufleet.documents.spec import KEYS
from gpufleet.errors import ConfigurationError
from gpufleet.fleet.inventory import HostSelector, inventory_hosts

ROOT = Path(__file__).resolve().parents[1]
TUTORIALS = sorted(ROOT.glob("docs/tutorial*.md"))
PAGES = (
    ROOT / "README.md",
    *TUTORIALS,
    *sorted(ROOT.glob("docs/how-to/*.md")),
    ROOT / "docs/reference/commission.md",
    ROOT / "docs/reference/nightly.md",
)
# Names that a reader replaces, and what the tests put there.
PLACEHOLDERS = {
    "INVENTORY": "inventory/example",
    "inventory/yours": "inventory/example",
    "inventory/fleet": "inventory/example",
    "inventory/yours/.": "inventory/example",
    "~/fleet": "inventory/example",
    "site-tests": "examples",
}
# What a command of a guide writes.
WRITTEN = {"contrib/awx/dist"}
PROGRAMS: dict[str, ModuleType] = {"bench": benchmarks, "docs": generate, "lab": lab}
PARSERS = parsers()
STATEMENTS = {check.id: check.statement for check in CHECKS.values()}
COMMAND = re.compile(r"(?:\$ )?(?:sudo (?:-u \w+ -H )?)?(?:\./|/\S+/)?(gpufleet [a-z-]+(?: .*)?|"
                     r"ansible-playbook .*)")  # fmt: skip


def code(text: str) -> Iterator[str]:
    """The lines of a page's fenced and indented code, and code spans that are whole commands.

    A span without an option, such as `./gpufleet resolve`, is the name of a verb.
    """
    fenced = False
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            yield line.strip()
    outside = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    spans = (" ".join(span.split()) for span in re.findall(r"`([^`]+)`", outside))
    yield from (span for span in spans if " -" in span)


def replaced(line: str) -> str:
    """The line with what a reader puts in the place of its placeholders, and its options in [ ]."""
    for name, value in PLACEHOLDERS.items():
        line = re.sub(rf"(?<!\S){re.escape(name)}(?!\S)", value, line)
    return re.sub(r"\[(-[^\]]*)\]", r"\1", line)


def commands() -> list[tuple[str, str]]:
    """Each page's name and one of its commands."""
    return [
        (page.stem, found[1])
        for page in PAGES
        for line in code(page.read_text())
        if (found := COMMAND.fullmatch(replaced(line)))
    ]


def accept(command: str) -> None:
    """Raise `ConfigurationError` or exit where a command line is not accepted."""
    program, *words = shlex.split(command, comments=True)
    if program == "ansible-playbook":
        # A guide names a playbook by the collection, or by its path in the checkout.
        file = re.sub(r"^gpufleet\.gpu\.(\w+)$", r"playbooks/\1.yml", words[0])
        assert (ROOT / file).is_file(), words[0]
        check_playbook_args(playbook.parser(), words[1:])
        return
    verb, *args = words
    assert verb in VERBS, f"there is no verb {verb}"
    if verb in PROGRAMS:
        PROGRAMS[verb].parser().parse_args(args)
        return
    parser: Parser = PARSERS[verb]
    options, rest = parser.parse(args)
    accept_values(parser, options, rest)


def accept_values(parser: Parser, options: argparse.Namespace, rest: list[str]) -> None:
    """Check what the parser leaves open: passed options, a playbook's name, variables."""
    if parser.passes_to == "ansible-playbook":
        check_playbook_args(parser, rest)
    else:
        assert [word for word in rest if not (ROOT / word).exists()] == []
    if parser.prog == "gpufleet playbook":
        assert options.name in playbook.names()
    variables = getattr(options, "extra_vars", [])
    if variables:
        where = HostSelector([str(ROOT / "inventory/example")], None, variables)
        host = inventory_hosts(where)[0]
        problems = resolver.resolve(host.variables, None, host.name)["problems"]
        named = {variable.partition("=")[0] for variable in variables}
        assert not [each for each in problems if each["where"].partition(".")[0] in named]


@pytest.mark.parametrize(("page", "command"), sorted(set(commands())))
def test_a_printed_command_is_accepted(page: str, command: str) -> None:
    accept(command)


def remedies() -> set[str]:
    """The commands in the texts of all golden documents, up to the prose after them."""
    found = set()
    for path in (ROOT / "tests/golden/data").rglob("*.json.gz"):
        text = gzip.decompress(path.read_bytes()).decode()
        found |= set(re.findall(r"\./(gpufleet [^\"\\;,()]*)", text))
    return {_command(line.split()) for line in found}


def _command(words: list[str]) -> str:
    """The words of a command before the prose: a verb, and options with their values."""
    taken, rest = words[:2], words[2:]
    options = PARSERS[words[1]]._option_string_actions
    while rest and rest[0].startswith("-"):
        action = options.get(rest[0])
        count = 2 if action and action.nargs != 0 else 1
        taken, rest = [*taken, *rest[:count]], rest[count:]
    # A verb of its own kinds: `manifest propose`.
    return " ".join(taken if words[1] != "manifest" else [*taken, *rest[:1]])


def test_each_command_of_a_remedy_is_accepted() -> None:
    found = remedies()
    assert len(found) > 10
    for command in sorted(found):
        accept(command.replace("COMPUTE_CAPABILITY", "9.0").replace("VERSION", "2.13.1"))


@pytest.mark.parametrize(
    "command",
    [
        "gpufleet verfy",
        "gpufleet verify --depp",
        "gpufleet provision --limitt gpu07",
        "gpufleet playbook rolback",
        "gpufleet lab up --hostz lab1",
        "gpufleet provision -e gpu_prune=maybe",
        "ansible-playbook playbooks/no.yml",
    ],
)
def test_a_command_with_a_mistake_is_not_accepted(command: str) -> None:
    with pytest.raises((ConfigurationError, AssertionError, SystemExit)):
        accept(command)


PRINTED = re.compile(r"^ +(?:FAIL|HUNG|INCONCLUSIVE) +([a-z.-]+): (.+)$", re.MULTILINE)


def test_printed_findings_state_what_their_checks_state() -> None:
    shown = [
        found.groups()
        for page in sorted(ROOT.glob("docs/**/*.md"))
        for found in PRINTED.finditer(page.read_text())
    ]
    assert len(shown) > 2
    assert shown == [(check, STATEMENTS[check]) for check, _ in shown]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_files_of_the_repository_that_a_page_names_exist(page: Path) -> None:
    lines = map(replaced, code(page.read_text()))
    named = {
        path
        for line in lines
        for path in re.findall(r"(?<![\w/.~-])(?:inventory|playbooks|contrib)/[\w./-]+", line)
        if path not in WRITTEN
    }
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


@pytest.mark.parametrize("name", ["add-a-check", "extend"])
def test_paths_that_a_guide_for_contributors_names_exist(name: str) -> None:
    text = (ROOT / f"docs/how-to/{name}.md").read_text()
    rooms = r"(?:src|roles|plugins|lab|tests|docs|changelogs)"
    named = set(re.findall(rf"(?<![\w/.-]){rooms}/[\w./-]*\w", text))
    assert len(named) > 8
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


def test_every_page_with_commands_is_read() -> None:
    assert len(commands()) > 100
    assert len({page for page, _ in commands()}) > 20


# Groups of an inventory, facts and extra variables of a run, and fixtures of a site's tests.
OTHER_NAMES = {
    "gpu_hosts",
    "gpu_control",
    "gpu_changes",
    "gpu_repair",
    "gpu_environment_configure",  # a tag
    "gpu_snapshot",
    "gpu_verdicts",
}
VARIABLE = re.compile(r"(?<![\w./-])gpu_[a-z0-9_]+\b")


def test_each_variable_that_a_page_names_is_one() -> None:
    """A variable that is renamed is renamed in the pages, too."""
    specs = {path: path.read_text() for path in ROOT.glob("roles/*/meta/argument_specs.yml")}
    known = {*KEYS, *OTHER_NAMES}
    known |= {path.stem for path in ROOT.glob("plugins/modules/*.py")}
    known |= {path.name for path in ROOT.glob("roles/*")}
    for text in specs.values():
        for entry in yaml.safe_load(text)["argument_specs"].values():
            known |= entry.get("options", {}).keys()
    pages = {path: path.read_text() for path in (*PAGES, *ROOT.glob("docs/explanation/*.md"))}
    unknown = {
        (path.name, name)
        for path, text in (specs | pages).items()
        for name in VARIABLE.findall(text)
        if name not in known
    }
    assert unknown == set()


def test_each_variable_of_uv_that_a_page_names_is_one() -> None:
    """uv ignores a variable that it does not have."""
    uv = Path(sys.executable).with_name("uv")
    done = subprocess.run(
        [uv, "help", "--no-pager", "pip", "sync"], capture_output=True, text=True, check=True
    )
    known = set(re.findall(r"env: (UV_\w+)", done.stdout))
    named = {
        (path.name, name) for path in PAGES for name in re.findall(r"UV_\w+", path.read_text())
    }
    assert named
    assert {(page, name) for page, name in named if name not in known} == set()


def test_the_verdicts_of_the_tutorials_are_those_of_all_checks() -> None:
    pages = "".join(page.read_text() for page in TUTORIALS)
    counts = re.findall(r"lab\d  \w+  (.*NOT-DECLARED)$", pages, flags=re.MULTILINE)
    assert len(counts) >= 5
    for line in counts:
        assert sum(map(int, re.findall(r"\d+", line))) == len(CHECKS), line
