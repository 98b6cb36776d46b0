"""The rooms of the checks: how much they import from each other, and that no check is left out."""

from __future__ import annotations

import ast
from pathlib import Path

import grimp

import gpufleet.components.checks
from gpufleet.components.checks import CHECKS, PAIR_CHECKS

CHECKED = "gpufleet.components.checks"
MOST_ARROWS = 25


def test_few_arrows_connect_the_rooms() -> None:
    """An arrow is one room that imports another one, by however many imports."""
    graph = grimp.build_graph("gpufleet", cache_dir=None)
    rooms = [*sorted(graph.find_children(CHECKED)), "gpufleet.judge"]
    arrows = {
        (importer, imported)
        for importer in rooms
        for imported in rooms
        if importer != imported
        and graph.direct_import_exists(importer=importer, imported=imported, as_packages=True)
    }
    assert ("gpufleet.components.compute", "gpufleet.components.checks.base") in arrows
    assert len(arrows) <= MOST_ARROWS, sorted(arrows)


def test_each_check_in_a_file_is_registered() -> None:
    folder = Path(gpufleet.components.checks.__file__).parent
    written = {
        f"{CHECKED}.{'.'.join(path.relative_to(folder).with_suffix('').parts)}.{node.name}"
        for path in folder.rglob("*.py")
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
