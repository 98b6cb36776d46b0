"""The offline mirror's documents: the result of `artifacts fetch` and `verify`, its contents.

And how artifacts reach the hosts, as `plan` shows it.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from .plan import ProblemEntry
from .types import Text

_For = TypedDict("_For", {"for": Annotated[list[Text], "what needs the file"]})


class MirrorFile(_For):
    """A file that the inventory's hosts need."""

    path: Annotated[Text, "relative to the mirror's directory"]
    kind: Literal["artifact", "package"]
    checksum: Annotated[Text | None, "ALGORITHM:HEX"]
    size_bytes: Annotated[int | None, "null: the file is missing, and its size is not known"]
    url: Text | None
    login_required: bool
    state: Annotated[
        Literal["there", "fetched", "missing", "wrong"],
        "`there`: it was there, with the right checksum; `fetched`: now",
    ]
    because: str | None
    remedy: str | None


class Mirror(TypedDict):
    """The document that `artifacts fetch --json` and `artifacts verify --json` print."""

    schema: Annotated[int, "1"]
    directory: Text
    complete: bool
    files: list[MirrorFile]
    extra: Annotated[list[Text], "files that nothing needs (`verify` only)"]
    problems: Annotated[list[ProblemEntry], "why it is not known which files are needed"]


class LockedFile(TypedDict):
    """A package that a lock means."""

    path: Text
    checksum: Text
    url: Text | None
    size_bytes: int | None
    reasons: list[Text]


class LockContents(TypedDict):
    """The packages of one lock."""

    lock: Text
    python: Text
    files: list[LockedFile]


class MirrorContents(TypedDict):
    """`contents.json` in a mirror: the packages of each lock, by the lock's sha256."""

    schema: Annotated[int, "1"]
    locks: dict[str, LockContents]


class DeliveryGroup(TypedDict):
    """Hosts that lack files of the same size, and get them in the same way."""

    way: Annotated[
        Literal["copy", "mirror"],
        "`copy`: the control machine copies over ssh; `mirror`: each host fetches over HTTP(S)",
    ]
    source: Annotated[Text | None, "`gpu_artifacts_source`; null: NVIDIA's site"]
    hosts: list[Text]
    probed: Annotated[bool, "false: what is installed already is not subtracted"]
    known_bytes: Annotated[int, "to each host, without the files of unknown size"]
    unknown: Annotated[list[Text], "files whose size the catalog does not have"]


class Delivery(TypedDict):
    """How CUDA runfiles, patches and cuDNN archives reach the hosts: `artifacts` of `plan --json`.

    The driver's runfile, `uv` and packages are not counted.
    """

    groups: Annotated[list[DeliveryGroup], "empty: no host lacks a file"]
    control_bytes: Annotated[
        int | None,
        "bytes of artifacts that leave the control machine, unless it is itself the"
        " mirror; null: a size is not known",
    ]
    advice: Annotated[Text | None, "what is better with that many hosts"]
