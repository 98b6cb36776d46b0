"""The versions of each component of a host, read from its snapshot, for the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpufleet.frameworks import DEFAULT, FRAMEWORKS

NONE = "none"


@dataclass(frozen=True)
class HostVersions:
    """The versions of a host's components, and the numbers of its GPUs by UUID."""

    versions: Mapping[str, str]
    numbers: Mapping[str, int]


def versions_of(snapshot: Mapping[str, Any] | None, plan: Mapping[str, Any]) -> HostVersions:
    """The versions of a host; none without a snapshot."""
    known = snapshot or {}
    return HostVersions(dict(_of(known, plan)), _gpu_numbers(known))


def _gpu_numbers(snapshot: Mapping[str, Any]) -> dict[str, int]:
    """The numbers of the GPUs by UUID, from the compute runs and nvidia-smi."""
    runs = _rows(_section(snapshot, "compute"), "runs")
    cards = [device for run in runs for device in _rows(run, "devices")]
    cards += _rows(_section(snapshot, "smi"), "devices")
    return {card["uuid"]: card["index"] for card in cards if card.get("uuid") and "index" in card}


def _of(snapshot: Mapping[str, Any], plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Pairs of a component and its version on a probed host; `none` for planned and absent ones."""
    if not snapshot:
        return
    system, kernel = _section(snapshot, "os"), _section(snapshot, "kernel")
    if system.get("id"):
        yield "Operating system", f"{system['id']} {system.get('version_id') or ''}".strip()
    if kernel.get("running"):
        yield "Kernel", str(kernel["running"])
    driver = _section(snapshot, "driver")
    if driver:
        yield "Driver", str(driver.get("loaded") or NONE)
    cards = Counter(str(card.get("name")) for card in _rows(_section(snapshot, "smi"), "devices"))
    if _section(snapshot, "smi").get("asked"):
        yield "GPUs", ", ".join(f"{count} × {name}" for name, count in cards.items()) or NONE
    yield from _planned(
        plan,
        "toolkits",
        "short",
        "CUDA {}",
        {
            # Packages leave out version.json: nvcc then has a version of its own, as 13.0.88.
            tree.get("short"): tree.get("version") or tree.get("nvcc")
            for tree in _rows(_section(snapshot, "toolkits"), "trees")
        },
    )
    for tree in _rows(_section(snapshot, "cudnn"), "trees"):
        found = sorted(
            {str(library["version"]) for library in _rows(tree, "loaded") if library.get("version")}
        )
        if found:
            yield f"cuDNN in {tree.get('toolkit')}", ", ".join(found)
    yield from _planned(
        plan,
        "stacks",
        "name",
        "{}",
        {
            stack.get("name"): _stack(stack)
            for stack in _rows(_section(snapshot, "stacks"), "stacks")
        },
    )
    containers = _section(snapshot, "containers")
    for component, key in (("Container engine", "engine"), ("NVIDIA container toolkit", "toolkit")):
        about = containers.get(key)
        if isinstance(about, Mapping) and about.get("version"):
            yield component, f"{about.get('name') or ''} {about['version']}".strip()


def _stack(stack: Mapping[str, Any]) -> str:
    packages = stack.get("packages")
    carriers = FRAMEWORKS.get(str(stack.get("runs")), DEFAULT).distributions
    release = (
        next(filter(None, map(packages.get, carriers)), None)
        if isinstance(packages, Mapping)
        else None
    )
    return f"{release or NONE}, Python {stack.get('python')}"


def _planned(
    plan: Mapping[str, Any], section: str, key: str, title: str, installed: dict[Any, Any]
) -> Iterator[tuple[str, str]]:
    names = [row.get(key) for row in _rows(plan, section)]
    for name in dict.fromkeys([*names, *installed]):
        yield title.format(name), str(installed.get(name) or NONE)


def _section(snapshot: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A section's data; nothing where it could not be read or is damaged."""
    sections = snapshot.get("sections")
    section = sections.get(name) if isinstance(sections, Mapping) else None
    found = section.get("data") if isinstance(section, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _rows(within: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    rows = within.get(name)
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
