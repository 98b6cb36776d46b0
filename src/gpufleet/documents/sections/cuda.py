"""Sections of a snapshot about CUDA toolkits, cuDNN, the linker and the receipts."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from gpufleet.documents.receipt import JournalState, ReceiptFields
from gpufleet.documents.types import UNCHECKED, Hung, Path, Text, Time


class ClosedPath(TypedDict):
    """A file or directory that other users cannot read or enter."""

    path: Path
    mode: Annotated[Text, "such as 0750"]


class ExposedFile(TypedDict):
    """A file or directory that an unprivileged account could change."""

    path: Text
    what: Annotated[Text, "not owned by root, writable by others, mounted over, or a link"]
    link: NotRequired[
        Annotated[Text, "the target of a link on the way to what others could change"]
    ]


class Header(TypedDict):
    """A C header and the version that it defines."""

    path: Path
    version: Text | None


class UnfitLibrary(TypedDict):
    """A library that the host cannot load."""

    path: Path
    error: Annotated[Text, "such as: it is for aarch64, this host is x86_64"]


class ToolkitTree(TypedDict):
    """A CUDA toolkit on the host."""

    path: Annotated[Path, "such as /usr/local/cuda-11.8"]
    short: Annotated[Text | None, "the version in the directory's name, such as 11.8"]
    version: Annotated[Text | None, "the version that the tree itself reports"]
    version_source: Annotated[Text | None, "the file that the version comes from"]
    nvcc: Annotated[Text | None, "the version that nvcc prints"]
    nvcc_error: str | None
    nvcc_hung: NotRequired[Annotated[bool, "`nvcc_error` is that no answer came in time"]]
    cudart: Annotated[list[Text], "the versions of libcudart, from the file names"]
    headers: Annotated[list[Header], "`cuda.h` and `cuda_runtime_api.h`"]
    receipt: Annotated[bool, "gpufleet has a receipt for it"]
    realpath: Path
    closed: Annotated[list[ClosedPath], "parts that other users cannot enter or read"]
    exposed: NotRequired[Annotated[list[ExposedFile], "who can change it, where it has no receipt"]]
    unfit: NotRequired[list[UnfitLibrary]]


class DefaultLink(TypedDict):
    """The default toolkit's link."""

    path: Annotated[Path, "such as /usr/local/cuda"]
    state: Literal["link", "missing", "directory", "file"]
    target: Text | None
    realpath: Path | None


class Toolkits(TypedDict):
    """The CUDA toolkits on the host."""

    trees: list[ToolkitTree]
    default: DefaultLink
    occupied: Annotated[list[Path], "everything at a toolkit's path, of whatever kind"]


class CudnnHeader(Header):
    """A cuDNN header."""

    mode: Text


class CudnnLibrary(TypedDict):
    """A cuDNN library file."""

    path: Path
    soname: Text | None
    size_bytes: int
    mode: Text
    error: Annotated[str | None, "why it is no usable library"]


class CudnnLink(TypedDict):
    """A link to a cuDNN library."""

    path: Path
    target: Text
    exists: Annotated[bool, "what it points to exists"]


class LoadedCudnn(TypedDict):
    """A `libcudnn.so.N`, opened in a process of its own and asked `cudnnGetVersion`."""

    soname: Text
    path: Path
    version: Annotated[Text | None, "such as 8.6.0"]
    error: str | None
    hung: NotRequired[Hung]


class CudnnTree(TypedDict):
    """cuDNN in one toolkit."""

    toolkit: Annotated[Path, "the toolkit's path"]
    headers: list[CudnnHeader]
    libraries: list[CudnnLibrary]
    links: list[CudnnLink]
    loaded: list[LoadedCudnn]
    closed: list[ClosedPath]


class Cudnn(TypedDict):
    """cuDNN in each toolkit."""

    trees: list[CudnnTree]


class LinkerFile(TypedDict):
    """A file of the linker's configuration."""

    path: Path
    directories: list[Text]


class Library(TypedDict):
    """A shared library by its soname."""

    soname: Text
    path: Path
    realpath: Path


class CachedLibrary(Library):
    """An entry of the linker cache."""

    exists: bool


class Linker(TypedDict):
    """The dynamic linker's configuration and cache; CUDA and cuDNN libraries only."""

    files: Annotated[list[LinkerFile], "/etc/ld.so.conf and /etc/ld.so.conf.d"]
    cache: Annotated[list[CachedLibrary], "in the order in which the linker searches"]
    cache_error: str | None
    offered: Annotated[
        list[Library], "what the registered directories provide from the next `ldconfig` on"
    ]
    providers: Annotated[list[Library], "every such file in a directory that the linker searches"]
    unregistered: Annotated[list[Path], "toolkits' library directories that no file names"]
    drivers: NotRequired[
        Annotated[list[Library], "each libcuda.so.1 of the cache and of the registered directories"]
    ]


class ChangedFile(TypedDict):
    """A file that differs from its receipt."""

    path: Text
    what: Annotated[
        Text, "`missing`, `size`, `mtime`, `mode`, `type`, `target`, `sha256` or `unreadable`"
    ]
    link: NotRequired[
        Annotated[bool, "it is a link, missing or with another target; its receipt restores it"]
    ]
    error: NotRequired[Annotated[str, "why it is unreadable"]]
    disk: NotRequired[
        Annotated[str | None, "of an unreadable one: what is mounted where, as `/dev/sda1 at /`"]
    ]


class ReceiptStatus(ReceiptFields):
    """A receipt without its manifest, and how its files are."""

    files: Annotated[int, "how many files the manifest lists"]
    changed: list[ChangedFile]
    libraries: Annotated[list[Text], "real paths of the CUDA and cuDNN files that it lists"]
    unlisted: Annotated[list[Text], "files that it should list, and no receipt does"]
    recorded: NotRequired[
        Annotated[bool, "stack: it lists its packages' records, by which their files are compared"]
    ]
    exposed: list[ExposedFile]


class JournalStatus(TypedDict):
    """A journal entry, as far as the host holds it."""

    kind: Text
    id: Text
    path: Path
    state: JournalState
    schema: NotRequired[Annotated[int, UNCHECKED]]
    version: NotRequired[Annotated[str | None, UNCHECKED]]
    fresh: NotRequired[Annotated[bool, "nothing existed at the path before", UNCHECKED]]
    started: NotRequired[Annotated[Time, UNCHECKED]]


class UnreadableRecord(TypedDict):
    """A receipt or journal entry that cannot be used."""

    path: Path
    error: Text


class ContentsRead(TypedDict):
    """How far the contents of a component were compared with its checksums, a share each night.

    A round reads each file once, in the order of the paths. The next night's probe is given it.
    """

    component: Annotated[Text, "KIND-ID of its receipt"]
    installed: Annotated[Text, "the receipt's; of another installation nothing is known"]
    files: Annotated[int, "how many have a checksum"]
    bytes: Annotated[int, "the size of those"]
    first: Annotated[int, "when it was first read; this and the next in seconds since the epoch"]
    begun: Annotated[int, "since when this round is due"]
    read: Annotated[int | None, "when it was last read whole; null: not yet"]
    cursor: Annotated[str, "the last file that this round has come to"]
    complete: Annotated[bool, "this round has read each file that it came to"]
    slow: Annotated[list[Text], "files that could not be read in the whole of a night's time"]
    bad: Annotated[list[ChangedFile], "what is wrong, and read first in the next night"]


class Scrub(TypedDict):
    """The share of all contents that was read in this night."""

    days: Annotated[float, "within which all is to be read"]
    seconds: Annotated[float, "which a night may take"]
    at: Annotated[int, "when it was read, in seconds since the epoch"]
    error: Annotated[str | None, "why nothing was read"]
    components: list[ContentsRead]


class Obstacle(TypedDict):
    """An obstacle that keeps gpufleet from changing files of its own."""

    path: Path
    what: Annotated[Text, "immutable, append-only, read-only, mounted (over the records)"]
    source: Annotated[Text | None, "of a mount: what is mounted"]


class Receipts(TypedDict):
    """The records of gpufleet on the host, compared with the files there."""

    receipts: list[ReceiptStatus]
    journal: list[JournalStatus]
    unreadable: list[UnreadableRecord]
    texts: Annotated[
        dict[str, str], "by path: the sha256 of whatever is at the path of an environment file"
    ]
    caches: NotRequired[Annotated[list[Text], "what installations left in /var/cache/gpufleet"]]
    scrub: NotRequired[Annotated[Scrub, "of a nightly run"]]
    obstacles: NotRequired[Annotated[list[Obstacle], "what keeps a repair from its files"]]
