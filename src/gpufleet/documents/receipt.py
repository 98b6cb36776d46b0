"""The records on a host, under /var/lib/gpufleet: receipts, journal, restart marker.

All are owned by root, of mode 0644, and written by rename. `receipts/KIND-ID.json` records what is
installed, `journal/KIND-ID.json` exists while an installation or removal is under way, and
`reboot-pending.json` while a change of the driver waits for a restart.
"""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from .types import UNCHECKED, Path, Text, Time

JournalState = Literal["installing", "removing"]


class ManifestEntry(TypedDict):
    """A file or link of an installation."""

    path: Annotated[Text, "relative to the receipt's path, with no symbolic link on the way"]
    type: Literal["file", "link"]
    size: NotRequired[Annotated[int, "bytes; of files"]]
    mtime: NotRequired[Annotated[int, "whole seconds since the epoch; of files"]]
    mode: NotRequired[Annotated[Text, "such as 0755; of files"]]
    sha256: NotRequired[
        Annotated[
            Text | None,
            "of shared libraries, packages' records and environment files; null for others",
        ]
    ]
    target: NotRequired[Annotated[Text, "of links"]]


class ReceiptSource(TypedDict, total=False):
    """The source of an installation."""

    file: Annotated[Text, "the artifact's or lock's name, or `plan`"]
    sha256: Text | None
    md5: Text | None
    sha512: Text | None
    adopted: Annotated[bool, "gpufleet did not install it, but adopted it"]


class AppliedPatch(TypedDict):
    """A patch of a toolkit."""

    file: Text
    checksum: Annotated[Text, "ALGORITHM:HEX"]


_TextFor = TypedDict(
    "_TextFor", {"for": Annotated[Text | None, "the toolkit or stack that the file belongs to"]}
)


class RecordedText(_TextFor):
    """An environment file."""

    sha256: Text


class FormerDriver(TypedDict):
    """The driver that was installed before; `provision` can go back to it."""

    version: Text | None
    branch: Text | None
    module: Text | None
    source: Text | None
    packages: dict[str, str] | None
    requested: list[str] | None


class ReceiptFields(TypedDict):
    """The fields that every receipt has, and those that some kinds have."""

    schema: Annotated[int, "1"]
    kind: Annotated[Text, "`toolkit`, `cudnn`, `stack`, `environment`, `driver` or `containers`"]
    id: Annotated[
        Text,
        "toolkit: 11.8; cudnn: 11.8-8; stack: its name; environment: `files`; driver: `driver`;"
        " containers: `engine`",
    ]
    path: Annotated[Path, "where it is installed; `/` for files in several directories"]
    version: Annotated[Text, "of what was adopted: the planned version"]
    installed: Annotated[Time, "when the installation was finished"]
    source: NotRequired[
        Annotated[
            ReceiptSource | str,
            "driver: `distro`, `nvidia_repo` or `runfile`; others: the artifact",
            UNCHECKED,
        ]
    ]
    patches: NotRequired[Annotated[list[AppliedPatch], "toolkit: in the order applied", UNCHECKED]]
    default: NotRequired[
        Annotated[bool, "cudnn: headers and unversioned links belong to it", UNCHECKED]
    ]
    packages: NotRequired[
        Annotated[
            dict[str, str],
            "stack: the packages of the lock, by name; driver: its packages; with versions",
        ]
    ]
    lock_sha256: NotRequired[Annotated[Text | None, "stack: the lock's digest", UNCHECKED]]
    python: NotRequired[Annotated[Text | None, "stack: the interpreter's version", UNCHECKED]]
    binding: NotRequired[
        Annotated[list[Text], "stack: the libraries that it is bound to", UNCHECKED]
    ]
    activation: NotRequired[
        Annotated[
            Text | None, "stack: the file that its `bin/activate` reads if it exists", UNCHECKED
        ]
    ]
    texts: NotRequired[Annotated[dict[str, RecordedText], "environment: the files, by path"]]
    folders: NotRequired[
        Annotated[list[Text], "environment: the directories created for its files", UNCHECKED]
    ]
    engine: NotRequired[Annotated[Text, "containers: docker or podman", UNCHECKED]]
    origin: NotRequired[Annotated[Text | None, "containers: distro or docker_repo", UNCHECKED]]
    engine_packages: NotRequired[
        Annotated[
            list[Text] | None,
            "containers: the engine's packages that gpufleet installed",
            UNCHECKED,
        ]
    ]
    branch: NotRequired[Annotated[Text | None, "driver: such as 535", UNCHECKED]]
    module: NotRequired[Annotated[Text | None, "driver: `open` or `proprietary`", UNCHECKED]]
    requested: NotRequired[
        Annotated[list[Text], "driver: the packages that were requested", UNCHECKED]
    ]
    brought: NotRequired[
        Annotated[list[Text], "driver: other packages installed with it", UNCHECKED]
    ]
    repository: NotRequired[Annotated[Text | None, "driver: the repository's address", UNCHECKED]]
    previous: NotRequired[Annotated[FormerDriver | None, "driver: the one before", UNCHECKED]]
    checksum: NotRequired[Annotated[Text | None, "driver: the runfile's", UNCHECKED]]


class Receipt(ReceiptFields):
    """One installation. It lists the records of a stack's packages, which list the other files."""

    manifest: list[ManifestEntry]


class Filled(TypedDict):
    """The lock whose packages an environment has, since the host was started."""

    lock_sha256: Text
    boot_id: Text


class JournalEntry(TypedDict):
    """An installation or removal under way, from before its first change until after its receipt.

    That of the environment also has `texts` and `folders`, of the files about to be written. That
    of a stack has `filled` while its environment has the packages of a lock and nothing else.
    """

    schema: Annotated[int, "1"]
    kind: Text
    id: Text
    path: Path
    version: NotRequired[str | None]
    state: JournalState
    fresh: Annotated[bool, "nothing existed at the path before"]
    started: Time
    texts: NotRequired[dict[str, RecordedText]]
    folders: NotRequired[list[Text]]
    filled: NotRequired[Filled]


class FailedReload(TypedDict):
    """The last attempt to load the driver's modules."""

    boot_id: Text | None
    said: Annotated[str, "what the kernel or modprobe printed"]


class StartedReload(TypedDict):
    """A reload of the driver's modules that is under way, or that a killed run left unfinished."""

    boot_id: Text | None
    modules: Annotated[list[str], "the loaded modules before it, those that use others first"]
    services: Annotated[list[str], "the units of the driver that ran before it"]


class RestartMarker(TypedDict, total=False):
    """`reboot-pending.json`: what is installed is not what runs.

    It exists from before a change of the driver until what runs is what is installed.
    """

    schema: Annotated[int, "1", UNCHECKED]
    boot_id: Annotated[
        Text | None,
        "the boot in which it became necessary, or in which a reboot was last tried",
        UNCHECKED,
    ]
    because: Annotated[str, "why a restart is needed", UNCHECKED]
    since: Annotated[Time, UNCHECKED]
    tried: Annotated[bool, "a reboot was tried", UNCHECKED]
    failed: Annotated[
        FailedReload | None, "the last time that the modules could not be loaded", UNCHECKED
    ]
    reload: Annotated[StartedReload | None, "a reload that has not ended", UNCHECKED]
