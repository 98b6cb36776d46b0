"""The sections of a snapshot as a check reads them: those that it declared, each with its type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, cast, overload

from gpufleet.model.sections.compute import Compute
from gpufleet.model.sections.cuda import Cudnn, Linker, Receipts, Toolkits
from gpufleet.model.sections.gpu import Driver, Gpus, Smi
from gpufleet.model.sections.host import Disks, Environment, Kernel, KernelLog, Os, Packages
from gpufleet.model.sections.stacks import Containers, Stacks
from gpufleet.model.snapshot import Section, SectionData, Snapshot


def by_name(snapshot: Snapshot) -> Mapping[str, Section[object]]:
    """The snapshot's sections, to look up one whose name is only known at run time."""
    return cast(Mapping[str, Section[object]], snapshot["sections"])


class Sections:
    """The data of those sections that a check declared to read, and of no others."""

    def __init__(self, snapshot: Snapshot, reads: tuple[str, ...]) -> None:
        self.snapshot = snapshot
        self._reads = reads
        self._sections = by_name(snapshot)

    @overload
    def __getitem__(self, name: Literal["os"]) -> Os: ...
    @overload
    def __getitem__(self, name: Literal["kernel"]) -> Kernel: ...
    @overload
    def __getitem__(self, name: Literal["disks"]) -> Disks: ...
    @overload
    def __getitem__(self, name: Literal["gpus"]) -> Gpus: ...
    @overload
    def __getitem__(self, name: Literal["driver"]) -> Driver: ...
    @overload
    def __getitem__(self, name: Literal["packages"]) -> Packages: ...
    @overload
    def __getitem__(self, name: Literal["receipts"]) -> Receipts: ...
    @overload
    def __getitem__(self, name: Literal["toolkits"]) -> Toolkits: ...
    @overload
    def __getitem__(self, name: Literal["cudnn"]) -> Cudnn: ...
    @overload
    def __getitem__(self, name: Literal["linker"]) -> Linker: ...
    @overload
    def __getitem__(self, name: Literal["environment"]) -> Environment: ...
    @overload
    def __getitem__(self, name: Literal["stacks"]) -> Stacks: ...
    @overload
    def __getitem__(self, name: Literal["containers"]) -> Containers: ...
    @overload
    def __getitem__(self, name: Literal["smi"]) -> Smi: ...
    @overload
    def __getitem__(self, name: Literal["kernel_log"]) -> KernelLog: ...
    @overload
    def __getitem__(self, name: Literal["compute"]) -> Compute: ...
    @overload
    def __getitem__(self, name: Literal["smi_after"]) -> Smi: ...
    @overload
    def __getitem__(self, name: Literal["kernel_log_after"]) -> KernelLog: ...

    def __getitem__(self, name: str) -> object:
        if name not in self._reads:
            raise KeyError(f"the check reads {name} without declaring it")
        return self._sections[name]["data"]

    def read_elsewhere(self) -> SectionData:
        """The data of every section that was read, for evidence that a check can do without."""
        return cast(SectionData, {
            name: section["data"] for name, section in by_name(self.snapshot).items()
            if section.get("data")})
