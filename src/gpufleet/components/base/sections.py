"""The sections of a snapshot as a check reads them: those that it declared, each with its type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from gpufleet.documents.snapshot import Section, SectionData, Snapshot


def by_name(snapshot: Snapshot) -> Mapping[str, Section[object]]:
    """The snapshot's sections, to look up one whose name is only known at run time."""
    return cast(Mapping[str, Section[object]], snapshot["sections"])


class _Declared(dict[str, object]):
    def __missing__(self, name: str) -> object:
        raise KeyError(f"the check reads {name} without declaring it")


class Sections:
    """The sections that a check declared to read: `data` has these, and no others."""

    def __init__(self, snapshot: Snapshot, reads: tuple[str, ...]) -> None:
        self.snapshot = snapshot
        self.data = cast(SectionData, _Declared(_data(snapshot, reads)))

    def read_elsewhere(self) -> SectionData:
        """The data of every section that was read, for evidence that a check can do without."""
        every = _data(self.snapshot, by_name(self.snapshot))
        return cast(SectionData, {name: data for name, data in every.items() if data})


def _data(snapshot: Snapshot, names: Iterable[str]) -> dict[str, object]:
    sections = by_name(snapshot)
    return {name: sections[name].get("data") for name in names if name in sections}
