"""A host as its snapshot describes it, read safely.

Sections that are missing, hung or denied give None, which means "not known", never "absent".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any, cast

from gpufleet.catalog import versions
from gpufleet.documents.sections.cuda import Cudnn, CudnnTree, DefaultLink, ToolkitTree
from gpufleet.documents.types import Row
from gpufleet.documents.validator import typed_section

# The probe's name for a system that has not booted (`gpufleet.on_host.constants`).
IMAGE = "image"
# The sections that the judge of a component reads by their type. One that is not of its type counts
# as not read, whoever took the snapshot.
JUDGED = ("cudnn", "toolkits")


def mapping(value: Any) -> Row:
    """A mapping as it is, anything else as an empty one."""
    return value if isinstance(value, dict) else {}


def mappings(value: Any) -> list[Row]:
    """The mappings in a list, nothing for anything else."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


@dataclass(frozen=True)
class Room:
    """Free space: the directory that was probed, its file system, and MiB."""

    directory: str
    filesystem: str
    free_mib: int


@dataclass(frozen=True)
class Host:
    """A snapshot document, or None for a host that was not reached."""

    snapshot: Mapping[str, Any] | None

    @property
    def reached(self) -> bool:
        return isinstance(self.snapshot, Mapping)

    @property
    def name(self) -> str:
        return str((self.snapshot or {}).get("host") or "")

    def section(self, name: str) -> Row | None:
        """A section's data, None unless it is `ok`."""
        return self._data(name)

    def evidence(self, name: str) -> Row:
        """A section's data that only explains a fault, so that a check can do without it."""
        return self._data(name) or {}

    def _data(self, name: str) -> Row | None:
        found = self._section(name)
        data = found.get("data") if found.get("state") == "ok" else None
        return data if isinstance(data, dict) else None

    def _section(self, name: str) -> Row:
        if name not in self._sections:
            found = mapping(mapping((self.snapshot or {}).get("sections")).get(name))
            judged = name in JUDGED and found.get("state") == "ok"
            self._sections[name] = typed_section(name, found) if judged else found
        return self._sections[name]

    @cached_property
    def _sections(self) -> dict[str, Row]:
        return {}

    def unobserved(self, names: tuple[str, ...]) -> list[str]:
        """Return the named sections that could not be probed."""
        return [name for name in names if self.section(name) is None]

    def unread(self, names: Sequence[str]) -> str:
        """Why these sections are not known, as a clause."""
        found = self._section(names[0])
        error = str(found.get("error") or found.get("state") or "the probe has no such part")
        more = "; --deadline S waits longer" if found.get("state") == "hung" else ""
        return f"the host's {' and '.join(names)} could not be read ({error}{more})"

    def _value(self, section: str, key: str) -> Any:
        return (self.section(section) or {}).get(key)

    def _rows(self, section: str, key: str) -> list[Row]:
        return mappings(self._value(section, key))

    @cached_property
    def _indexes(self) -> dict[tuple[str, ...], dict[tuple[Any, ...], Row]]:
        return {}

    def _row(self, section: str, key: str, **wanted: str) -> Row | None:
        """The first row with these values. The rows are read once, and not for each such question.

        A host's lists may be long, and are asked for each of their own rows.
        """
        name = (section, key, *wanted)
        if name not in self._indexes:
            index: dict[tuple[Any, ...], Row] = {}
            for row in self._rows(section, key):
                values = tuple(row.get(each) for each in wanted)
                if all(isinstance(value, str) for value in values):
                    index.setdefault(values, row)
            self._indexes[name] = index
        return self._indexes[name].get(tuple(wanted.values()))

    @property
    def arch(self) -> str | None:
        value = self._value("os", "arch")
        return str(value) if value else None

    @property
    def glibc(self) -> str | None:
        value = str(self._value("os", "glibc") or "")
        return value if versions.is_dotted(value) else None

    @property
    def cpu_features(self) -> list[str] | None:
        """The features that wheels need and that the processor has; None where they are unknown."""
        found = self._value("os", "cpu_features")
        return [str(each) for each in found] if isinstance(found, list) else None

    @property
    def pythons(self) -> dict[str, str] | None:
        """The versions (X.Y) of the interpreters, by path; None when they were not probed.

        In the order of the snapshot: the system's own before those of other prefixes.
        """
        if self.section("os") is None or self._value("os", "pythons") is None:
            return None
        rows = self._rows("os", "pythons")
        found = {str(row.get("path")): str(row.get("version")) for row in rows}
        return {path: versions.short(own) for path, own in found.items() if versions.is_dotted(own)}

    @property
    def os(self) -> Row | None:
        """Id, version and codename of the distribution; None when they are not known."""
        known = {key: self._value("os", key) for key in ("id", "version_id", "codename")}
        texts = {key: None if value is None else str(value) for key, value in known.items()}
        return texts if texts["id"] and versions.is_dotted(str(texts["version_id"])) else None

    @property
    def gpus(self) -> list[Row]:
        """The GPUs on the PCI bus; empty where it could not be probed."""
        return self._rows("gpus", "pci")

    @property
    def nvswitches(self) -> list[str]:
        """The PCI addresses of NVSwitches."""
        found = self._value("gpus", "nvswitches")
        return [str(each) for each in found] if isinstance(found, list) else []

    @property
    def secure_boot(self) -> Row:
        """Secure Boot, and what the kernel refuses; empty where it is not known."""
        return mapping(self._value("kernel", "secure_boot"))

    @property
    def is_image(self) -> bool:
        """True if this is a system that is being built: no kernel runs in it, and no service."""
        return bool(self._value("kernel", "container") == IMAGE)

    @property
    def driver(self) -> str | None:
        """The version of the loaded driver."""
        value = str(self._value("driver", "loaded") or "")
        return value if versions.is_dotted(value) else None

    @property
    def driver_library(self) -> str | None:
        """The version of the driver's libcuda, None where there is none."""
        value = self._value("driver", "library")
        return str(value) if value else None

    @property
    def reboot_pending(self) -> Row:
        """The marker of a pending restart; empty without one."""
        return mapping(self._value("driver", "reboot_pending"))

    @property
    def containers(self) -> Row:
        """The probed state of the container engine; empty where it was not probed."""
        return self.section("containers") or {}

    def receipt(self, kind: str, identity: str) -> Row | None:
        return self._entry("receipts", kind, identity)

    def journal(self, kind: str, identity: str) -> Row | None:
        return self._entry("journal", kind, identity)

    def entries(self, key: str) -> list[Row]:
        """Every entry of `receipts` or of the `journal`."""
        return self._rows("receipts", key)

    def damaged(self, records: str, kind: str, identity: str) -> str | None:
        """Why a receipt or journal entry that exists cannot be used; `records` names which."""
        end = f"/{records}/{kind}-{identity}.json"
        found = [
            row
            for row in self._rows("receipts", "unreadable")
            if str(row.get("path")).endswith(end)
        ]
        return str(found[0].get("error")) if found else None

    @property
    def caches(self) -> list[str]:
        """Caches of installations that still exist."""
        found = self._value("receipts", "caches")
        return [str(each) for each in found] if isinstance(found, list) else []

    def _entry(self, key: str, kind: str, identity: str) -> Row | None:
        return self._row("receipts", key, kind=kind, id=identity)

    def foreign_text(self, path: str, sha256: str) -> bool:
        """Return whether a foreign file with another content is at an environment file's path."""
        known = [*self.entries("receipts"), *self.entries("journal")]
        ours = any(path in mapping(row.get("texts")) for row in known)
        return not ours and mapping(self._value("receipts", "texts")).get(path, sha256) != sha256

    def occupied(self, path: str) -> bool:
        """Return whether anything exists at the path of a toolkit or a stack."""
        return any(path in (self._value(each, "occupied") or []) for each in ("toolkits", "stacks"))

    def tree(self, path: str) -> ToolkitTree | None:
        """The toolkit at a path."""
        return cast(ToolkitTree | None, self._row("toolkits", "trees", path=path))

    @property
    def cudnn_trees(self) -> list[CudnnTree]:
        """The cuDNN in each toolkit's tree; empty where it could not be probed."""
        return cast(Cudnn, self.section("cudnn") or {"trees": []})["trees"]

    def stack(self, name: str) -> Row | None:
        return self._row("stacks", "stacks", name=name)

    @cached_property
    def foreign_stacks(self) -> list[Row]:
        """The environments that gpufleet did not install."""
        ours = {
            str(row.get("id"))
            for row in [*self.entries("receipts"), *self.entries("journal")]
            if row.get("kind") == "stack"
        }
        return [row for row in self._rows("stacks", "stacks") if str(row.get("name")) not in ours]

    @property
    def default_link(self) -> DefaultLink | None:
        return cast(DefaultLink | None, self._value("toolkits", "default"))

    @property
    def linker_files(self) -> list[Row]:
        return self._rows("linker", "files")

    @property
    def linker_cache(self) -> list[Row]:
        return self._rows("linker", "cache")

    @property
    def hidden_records(self) -> Row | None:
        """The mount that covers the records of what gpufleet installed on this host."""
        return next(
            (row for row in self._rows("receipts", "obstacles") if row.get("what") == "mounted"),
            None,
        )

    @property
    def rooms(self) -> list[str]:
        """The directories of which the free space was read."""
        free = self._value("disks", "free_mib")
        return [str(each) for each in free] if isinstance(free, Mapping) else []

    def room(self, directory: str) -> Room | None:
        """Free space at a directory, or at the nearest parent that was probed.

        None when nothing but `/` is known for it, though it may well be a file system of its own.
        """
        free = self._value("disks", "free_mib")
        if not isinstance(free, Mapping):
            return None
        path = self._nearest(directory, [str(each) for each in free])
        if path is None or not isinstance(free[path], int | float):
            return None
        systems = self._value("disks", "filesystem")
        system = systems.get(path) if isinstance(systems, Mapping) else None
        return Room(path, str(system if system is not None else path), int(free[path]))

    def noexec(self, directory: str) -> bool:
        """Return whether a directory is known to be on a noexec file system."""
        forbidden = self._value("disks", "noexec")
        if not isinstance(forbidden, list):
            return False
        probed = self._value("disks", "free_mib")
        known = [*forbidden, *(probed if isinstance(probed, Mapping) else ())]
        return self._nearest(directory, [str(each) for each in known]) in forbidden

    @staticmethod
    def _nearest(directory: str, known: list[str]) -> str | None:
        path = PurePosixPath(directory)
        for candidate in (path, *path.parents):
            if str(candidate) in known:
                return str(candidate)
        return None
