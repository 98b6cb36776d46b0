"""What a finding is about, in a form that two checks share, so that one can explain the other.

A subject is a word, a word with a part, or a path; `@` adds by whom it was observed:

    driver         the driver that runs, its version included
    smi            what nvidia-smi reports of all GPUs
    gpus           no program sees any GPU
    gpus/7         a program sees 7 GPUs (0 to 6) of more: number 7 is not there
    gpus@NAME      the stack NAME uses no GPU; likewise `gpus/7@NAME`
    card/ADDRESS   the card at this PCI address
    run@NAME       the run of a stack or toolkit stopped before its end
    section/NAME   a section of the snapshot that was not read
    PATH           a file or directory is not there; a directory stands for all below it

`gpus` does not cover `gpus/7`: where every GPU is refused, none is missing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

Subjects = tuple[str, ...]

DRIVER, SMI, NODES, GPUS = "driver", "smi", "nodes", "gpus"


def missing_gpus(seen: int, wanted: int | None, by: str = "") -> Subjects:
    """The GPUs that a program does not see; CUDA numbers those that it sees from 0."""
    at = f"@{by}" if by else ""
    if not wanted or seen >= wanted:
        return ()
    return tuple(f"{GPUS}/{number}{at}" for number in range(seen, wanted)) if seen else (
        f"{GPUS}{at}",)


def missing_numbers(missing: Collection[int], wanted: int | None, by: str = "") -> Subjects:
    """The same where each GPU has a result of its own: only its last numbers can be missing."""
    seen = (wanted or 0) - len(missing)
    return missing_gpus(seen, wanted, by) if set(missing) == set(range(seen, wanted or 0)) else ()


def stopped(name: str) -> str:
    """A run that stopped before its end."""
    return f"run@{name}"


def section(name: str) -> str:
    """A section of the snapshot."""
    return f"section/{name}"


def card(address: str | None) -> Subjects:
    """A card, if its address is known."""
    return (f"card/{address}",) if address else ()


def library(tree: str, path: str) -> str:
    """A library of a tree by its name alone: it may be in `lib64` or below `targets`."""
    return f"{tree}/{path.rpartition('/')[2]}"


def covered(about: Iterable[str], by: Iterable[str]) -> bool:
    """Whether the one is about something, and the other about all of it."""
    causes = set(by)
    needed = set(about)
    return bool(needed) and all(_covered(subject, causes) for subject in needed)


def _covered(subject: str, causes: set[str]) -> bool:
    what, _, observer = subject.partition("@")
    # A path may have an @ in it.
    if subject.startswith("/"):
        what, observer = subject, ""
    return subject in causes or (bool(observer) and what in causes) or any(
        cause.startswith("/") and what.startswith(f"{cause.rstrip('/')}/") for cause in causes)
