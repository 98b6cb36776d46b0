"""The components: how much they import from each other, and that no check is left out."""

from __future__ import annotations

import ast
from pathlib import Path

import grimp

from gpufleet import components
from gpufleet.components.checks import CHECKS, PAIR_CHECKS

ROOM = components.__name__
FOLDER = Path(components.__file__).parent
MOST_ARROWS = 20


def test_few_arrows_connect_the_components() -> None:
    """An arrow is one component that imports another one, by however many imports."""
    graph = grimp.build_graph("gpufleet", cache_dir=None)
    folders = [path.parent.name for path in sorted(FOLDER.glob("*/__init__.py"))]
    rooms = [*(f"{ROOM}.{name}" for name in folders), "gpufleet.judge"]
    arrows = {
        (importer, imported)
        for importer in rooms
        for imported in rooms
        if importer != imported
        and graph.direct_import_exists(importer=importer, imported=imported, as_packages=True)
    }
    assert (f"{ROOM}.compute", f"{ROOM}.base") in arrows
    assert len(arrows) <= MOST_ARROWS, sorted(arrows)


def test_each_check_in_a_file_is_registered() -> None:
    written = {
        f"{ROOM}.{'.'.join(path.relative_to(FOLDER).with_suffix('').parts)}.{node.name}"
        for path in FOLDER.rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
        and any(
            isinstance(decorator, ast.Call)
            and isinstance(decorator.func, ast.Name)
            and decorator.func.id == "check"
            for decorator in node.decorator_list
        )
    }
    registered = {
        f"{check.function.__module__}.{check.function.__qualname__}"
        for check in (*CHECKS.values(), *PAIR_CHECKS.values())
    }
    assert written == registered
