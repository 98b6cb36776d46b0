"""The subject of a finding, in a form that two checks share, so that one can explain the other.

A subject is a word, a word with parts, or a path. It covers everything below it, `@` adds by whom
it was observed:

    driver          the driver that runs, its version included
    smi             what nvidia-smi reports of all GPUs; `smi/rest`: of those after an error
    nodes           the device files
    gpus            a program sees no GPU at all
    gpu/7           a program sees 7 GPUs (0 to 6) of more: number 7 is not there
    gpus@NAME       the stack NAME uses no GPU; likewise `gpu/7@NAME`
    card/ADDRESS    the card at this PCI address does not answer; `card/ADDRESS/ecc`: one value
    card/ADDRESS/compute  programs end on it with an error; below it the error, as CUDA names it
    card/ADDRESS/recovery  its driver asks for a recovery action
    reported/ADDRESS/NAME  what nvidia-smi reports of it is a fault
    memory/ADDRESS  its memory has errors that were not corrected
    nvlinks/ADDRESS  its NVLinks were not read
    slow/ADDRESS    it computes too slowly
    sustained/ADDRESS  it does not keep its speed under load
    throttled/ADDRESS  under load its hardware or its driver slows it down
    busy/0          other processes hold GPU 0
    tflops/0        the throughput of GPU 0 was not measured
    unchecked/0     not every product of GPU 0 was checked
    result/0@NAME   the stack has no right result of GPU 0
    nothing/0@NAME  the stack cannot multiply on GPU 0, not even in float32
    build@NAME      the stack's framework is another build than planned
    numpy@NAME      numpy and the stack's framework exchange no arrays
    run@NAME        the run of a stack or toolkit stopped before its end
    section/NAME    a section of the snapshot was not read
    silent/NAME     one that asks the driver was not read, since something hung
    libcuda         the driver's library for programs; `fabric`, `nouveau`: the others that
                    keep it from working
    key             the key of the modules' signature
    branch          the driver's branch ended for the host's GPUs
    pending         a restart for the driver
    domains         the GPUs are in different NVLink domains or cliques
    boot            the first boot of an image, which alone can prove it
    modules         which kernel modules are loaded was not read
    rdma/mlx5_0     an RDMA device of which nothing was read
    module/ib_umad  a kernel module of RDMA that is not loaded
    pci/acs         access control of PCI ports; `pci/read-request`: MaxReadReq of adapters
    kernel-log      the kernel log as a whole
    clock           the clock of the host
    container       no container was started
    container-toolkit  another container toolkit than planned, or none
    /PATH           this file or directory is not there
    noexec/PATH     nothing below this path can be executed

`gpus` does not cover `gpu/7`: where every GPU is refused, none is missing.

`ONE|OTHER` is ONE, which what covers OTHER explains as well: an error of a copy between two cards
is explained by a fault of either.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

Subjects = tuple[str, ...]

DRIVER, SMI, NODES, GPUS, BUSY, TFLOPS = "driver", "smi", "nodes", "gpus", "busy", "tflops"
REPOSITORIES = "repositories"
CONTAINER, DOMAINS, MODULES = "container", "domains", "modules"
BRANCH, CLOCK = "branch", "clock"
MODULE, PCI = "module", "pci"
ACCESS_CONTROL, READ_REQUEST = f"{PCI}/acs", f"{PCI}/read-request"
CONTAINER_TOOLKIT = "container-toolkit"
# Errors of libraries where another process uses a GPU exclusively, or none may use it.
TAKEN = re.compile(
    r"cudaErrorDevicesUnavailable|CUDA_ERROR_DEVICE_UNAVAILABLE|\breturned 46\b"
    r"|CUDA-capable device\S* (?:is/)?are busy",
    re.IGNORECASE,
)
# Errors of a program or its library that does not fit or broke: faults of its installation.
OF_A_PROGRAM = re.compile(
    r"cannot open shared object|undefined symbol|killed by SIG|no ?kernel ?image"
    r"|NO_BINARY_FOR_GPU|ARCH_MISMATCH|InsufficientDriver",
    re.IGNORECASE,
)
REFUSED = "refused"
# And where a card's memory had an error that was not corrected.
MEMORY_ERROR = re.compile(r"\bECC\b|ECC_?Uncorrectable|(?:Error|ERROR_)Contained", re.IGNORECASE)
ERROR_NAME = re.compile(r"\bcudaError\w+|\b[A-Z]+(?:_[A-Z]+)+\b")
# Errors that a library does not name are compared by so many characters of their text.
MOST_OF_ERROR = 80


def missing_gpus(seen: int, wanted: int | None, by: str = "") -> Subjects:
    """The GPUs that a program does not see; CUDA numbers those that it sees from 0."""
    at = f"@{by}" if by else ""
    if not wanted or seen >= wanted:
        return ()
    return tuple(f"gpu/{number}{at}" for number in range(seen, wanted)) if seen else (f"gpus{at}",)


def missing_numbers(missing: Collection[int], wanted: int | None, by: str = "") -> Subjects:
    """The same where each GPU has a result of its own: only the last ones can be missing."""
    seen = max(0, (wanted or 0) - len(missing))
    return missing_gpus(seen, wanted, by) if set(missing) == set(range(seen, wanted or 0)) else ()


def gone_since(extra: int, present: int, wanted: int | None) -> Subjects:
    """GPUs that a program saw and that the PCI bus no longer has, if just these are missing."""
    return missing_gpus(present, wanted) if extra == (wanted or 0) - present else ()


def card(address: str | None, value: str = "") -> Subjects:
    """A card, or one value of it, if its address is known."""
    return (f"card/{address}{'/' if value else ''}{value}",) if address else ()


def nvlinks(address: str | None) -> Subjects:
    """The subject of a card's NVLinks that were not read, if its address is known."""
    return (f"nvlinks/{address}",) if address else ()


def reported(address: str | None, name: str) -> Subjects:
    """A value that a card reports, by the name of its rule."""
    return (f"reported/{address}/{name}",) if address else ()


def memory(address: str | None) -> Subjects:
    """A card whose memory has errors."""
    return (f"memory/{address}",) if address else ()


def computing(address: str | None, error: str) -> Subjects:
    """Programs end with this error on a card; errors of its memory explain those that name it."""
    if not address or OF_A_PROGRAM.search(error):
        return ()
    kind = REFUSED if TAKEN.search(error) else _named_error(error)
    own = card(address.lower(), f"compute/{kind}")
    return either(*own, *memory(address.lower())) if MEMORY_ERROR.search(error) else own


def either(*alternatives: str) -> Subjects:
    """The first of these, which what covers any other explains as well."""
    return ("|".join(dict.fromkeys(alternatives)),) if alternatives else ()


def itself(subject: str) -> str:
    """The first of a subject's alternatives: what else explains it is none of what it explains."""
    return subject if subject.startswith("/") else subject.partition("|")[0]


def _named_error(error: str) -> str:
    """CUDA's or a library's name for an error, else its text, as a part of a subject."""
    found = ERROR_NAME.search(error)
    return found[0] if found else re.sub(r"[/@|]", " ", error)[:MOST_OF_ERROR]


def slow(address: str | None) -> Subjects:
    """A card that computes too slowly."""
    return (f"slow/{address}",) if address else ()


def sustained(address: str | None) -> Subjects:
    """A card that is slow under load, as one that is slow from the start is."""
    return either(f"sustained/{address}", *slow(address)) if address else ()


def throttled(address: str | None) -> Subjects:
    """A card that is slowed down under load, which what slows it from the start explains."""
    return either(f"throttled/{address}", *slow(address)) if address else ()


def rdma(device: str) -> str:
    """An RDMA device, or all of them."""
    return f"rdma/{device}".rstrip("/")


def noexec(path: str) -> str:
    """A mount point from which nothing can be executed, or what is below it."""
    return f"noexec{path.rstrip('/')}"


def stopped(name: str) -> str:
    """A run that stopped before its end."""
    return f"run@{name}"


def section(name: str) -> str:
    """A section of the snapshot."""
    return f"section/{name}"


def library(tree: str, path: str) -> str:
    """A library of a tree by its name alone: it may be in `lib64` or below `targets`."""
    return f"{tree}/{path.rpartition('/')[2]}"


def covered(about: Collection[str], by: Iterable[str]) -> bool:
    """Return whether a finding has subjects, and another finding's subjects cover all of them."""
    # A set is not copied: a check may have a thousand findings.
    causes = by if isinstance(by, set) else set(by)
    return bool(about) and all(not causes.isdisjoint(_coverers(subject)) for subject in about)


def _coverers(subject: str) -> Iterator[str]:
    """The subjects that cover this one: itself, those above it, and those of any observer."""
    # A path may contain these characters.
    for each in [subject] if subject.startswith("/") else subject.split("|"):
        what, at, observer = (each, "", "") if each.startswith("/") else each.partition("@")
        while what:
            yield what
            yield f"{what}{at}{observer}"
            what = what.rpartition("/")[0]
