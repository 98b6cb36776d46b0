"""The documents of a commissioning: the record of a host, its certificate, its state.

A record is what resumes an interrupted commissioning: one file for each host, on the control
machine. The certificate, or the refusal with the parts to send back, is what is kept and sent.
"""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from .types import Text, Time


class EvidenceFile(TypedDict):
    """A file that shows what a stage found."""

    file: Annotated[Text, "its path below the directory of the commissionings"]
    sha256: Text


class Reason(TypedDict):
    """Why a stage did not pass."""

    check: Annotated[Text, "the check, or the stage itself"]
    verdict: Annotated[Text, "that of the check"]
    cause: str
    remedy: str
    evidence: str


class Figure(TypedDict):
    """A measured value with its bound."""

    part: Annotated[Text, "such as GPU 0"]
    what: Annotated[Text, "what was measured"]
    value: float
    unit: str
    bound: Annotated[float | None, "null: none is declared or known"]
    side: Annotated[
        Literal["at least", "at most"], "on which side of the bound the value has to be"
    ]
    because: Annotated[str, "where the bound comes from"]


class StageRecord(TypedDict):
    """How a stage of a commissioning ended on a host."""

    outcome: Annotated[
        Literal["running", "passed", "failed", "not-judged"],
        "`running`: it was interrupted, if its command has ended",
    ]
    inputs: Annotated[dict[str, str], "what it depends on, as a digest of each"]
    started: Time
    finished: Annotated[Time | None, "null while it runs"]
    by: Annotated[Text, "who ran it"]
    program: NotRequired[Annotated[Text, "the release of gpufleet that judged it"]]
    reasons: list[Reason]
    notes: Annotated[list[str], "what a reader has to know of it"]
    figures: list[Figure]
    evidence: list[EvidenceFile]


class Part(TypedDict):
    """A part of a host, as a vendor identifies it."""

    kind: Annotated[
        Literal["host", "gpu", "adapter", "drive", "module"],
        "`host`: as a whole; `module`: of memory",
    ]
    name: Annotated[Text, "such as GPU 3 or mlx5_0"]
    model: Text | None
    serial: Annotated[Text | None, "null: it reports none"]
    id: Annotated[Text | None, "its UUID or GUID"]
    slot: Annotated[Text | None, "its PCI address and the port above it; a module's slot"]
    firmware: Text | None


class CertifiedStage(TypedDict):
    """A stage in a certificate or refusal."""

    name: Text
    outcome: Text
    started: Time
    finished: Time | None
    by: Text
    program: NotRequired[Annotated[Text, "the release of gpufleet that judged it"]]
    notes: list[str]
    evidence: list[EvidenceFile]


class FaultyPart(TypedDict):
    """A part to send back, with what was found of it."""

    part: Part
    reasons: list[Reason]


class Certificate(TypedDict):
    """A host's certificate, or its refusal with the parts to send back."""

    schema: Annotated[int, "1"]
    outcome: Literal["certified", "refused"]
    host: Text
    issued: Annotated[Time, "when; a certificate that is signed again keeps its date"]
    by: Text
    program: Annotated[Text, "the release of gpufleet that issued it"]
    plan_sha256: Annotated[
        Text, "of the host's plan, as JSON with sorted keys, without the digests of locks"
    ]
    driver: Text | None
    parts: Annotated[list[Part], "all that were identified; the host is the first one"]
    stages: list[CertifiedStage]
    figures: Annotated[list[Figure], "of the last stages that measured them"]
    checks: Annotated[
        list[Reason], "what holds, and what shows it, by the last verification of all checks"
    ]
    faulty: Annotated[list[FaultyPart], "of a refusal; empty where no single part is at fault"]
    reasons: Annotated[list[Reason], "of a refusal: all of them"]


class IssuedCertificate(TypedDict):
    """The certificate of a record."""

    file: Annotated[Text, "its path below the directory of the commissionings"]
    sha256: Text
    issued: Time
    key: Annotated[str, "the file of the key that signed it; empty: it is not signed"]
    files: NotRequired[
        Annotated[list[EvidenceFile], "what was issued: certificate, page, their signatures"]
    ]


class CommissionRecord(TypedDict):
    """The stages that a host has passed: `HOST.json` among the commissionings."""

    schema: Annotated[int, "1"]
    host: Text
    stages: Annotated[dict[str, StageRecord], "by the stage's name"]
    certificate: NotRequired[IssuedCertificate]


HostStateName = Literal["new", "commissioning", "production", "quarantined", "returned"]


class HostState(TypedDict):
    """The state of a host in its site's life, and who set it."""

    state: HostStateName
    since: Time
    by: Text
    why: str
    command: NotRequired[
        Annotated[Literal["commission"], "that set it by what it found; absent: a person set it"]
    ]


class FleetHost(HostState):
    """A row of `gpufleet fleet`."""

    host: Text
    former: NotRequired[
        Annotated[list[HostState], "with `--past`: the states before, oldest first"]
    ]


class Fleet(TypedDict):
    """The document that `fleet --json` prints."""

    schema: Annotated[int, "1"]
    hosts: list[FleetHost]


class CommissionedHost(TypedDict):
    """A row of what `commission --json` prints."""

    outcome: Literal["certified", "refused", "not-judged"]
    stage: Annotated[str, "the stage that did not pass; empty where all did"]
    reasons: list[Reason]
    faulty: list[FaultyPart]
    document: Annotated[Text | None, "the file of its certificate or refusal"]


class Commissioned(TypedDict):
    """The document that `commission --json` prints."""

    schema: Annotated[int, "1"]
    hosts: dict[str, CommissionedHost]
