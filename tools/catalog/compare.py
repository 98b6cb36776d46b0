"""Compare a measurement with the plan and describe each difference. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from gpufleet.catalog import facts, versions
from gpufleet.components import resolver
from gpufleet.frameworks import FrameworkId

Row = dict[str, Any]


def expected(framework: FrameworkId, version: str) -> Row:
    """Return the values of the plan and its facts for a release, as a measurement."""
    answer, build = resolver.release(framework, version), facts.build(framework, version)
    assert build is not None, version
    wheel = next(iter(build.wheels), None)
    return {
        "distribution": answer["distribution"],
        "cuda": answer["cuda"],
        "cudnn": answer["cudnn"],
        # No name of a library is in a plugin: it builds them.
        "sonames": [] if build.about.cuda_plugin else answer["sonames"],
        "optional": build.sonames_optional,
        "python": answer["python"],
        "platform": build.row["wheel_platform_tag"],
        "sass": build.row["sass_archs"],
        "ptx": build.row["ptx_archs"],
        "pins": build.cuda_pins,
        "sha256": {wheel["file"]: wheel["sha256"]} if wheel else {},
    }


def differences(plan: Row, found: Row) -> list[str]:
    """Return each difference between the plan and the wheel."""
    return [*_versions(plan, found), *_sonames(plan, found), *_lists(plan, found)]


def not_measured(found: Row) -> list[str]:
    """Return what the wheel does not contain or was not read for: the plan is unchecked there."""
    bare = [name for name in found["opened"] if name.endswith(".so")]
    return [
        *(what for key, what in (("cuda", "CUDA"), ("cudnn", "cuDNN")) if found[key] is None),
        *(["GPU architectures"] if found["sass"] is None else []),
        *(["the CUDA packages that it asks for"] if found["pins"] is None else []),
        *([f"the versions of {', '.join(bare)}"] if bare else []),
        *(f"what {name} is linked to (not read)" for name in found["unread"]),
    ]


def _versions(plan: Row, found: Row) -> Iterator[str]:
    cuda, cudnn = found["cuda"], found["cudnn"]
    if cuda and versions.short(cuda) != versions.short(plan["cuda"]):
        yield f"CUDA: the plan says {plan['cuda']}, the wheel was built with {cuda}"
    if cudnn and versions.major(cudnn) != versions.major(plan["cudnn"]):
        yield f"cuDNN: the plan says {plan['cudnn']}, the wheel was built with {cudnn}"
    known = plan["sha256"].get(found["wheel"])
    if known and found["sha256"] and known != found["sha256"]:
        yield f"{found['wheel']}: the facts know sha256 {known}, the index says {found['sha256']}"


# A library that others need, and the stem of those: no wheel names it by itself.
_INDIRECT = {"libnvJitLink.so": ("libcusparse.so", "libcusolver.so")}


def _sonames(plan: Row, found: Row) -> Iterator[str]:
    named = {*found["linked"], *found["opened"]}
    needed = {name for name, by in _INDIRECT.items() if not {*map(_stem, named)}.isdisjoint(by)}
    # A name without a version matches any version in the plan.
    bare = {name for name in named if name.endswith(".so")}
    for name in plan["sonames"]:
        # A library that was not read may be linked to it.
        if name not in named and _stem(name) not in bare | needed and not found["unread"]:
            yield f"sonames: the plan has {name}, the wheel does not"
    for name in sorted(named - {*plan["sonames"], *plan["optional"]}):
        if name not in map(_stem, plan["sonames"]):
            yield f"sonames: the wheel has {name}, the plan does not"


def _lists(plan: Row, found: Row) -> Iterator[str]:
    for key, what in (
        ("python", "Python"),
        ("platform", "platform tags"),
        ("sass", "GPU architectures with machine code"),
        ("ptx", "GPU architectures with PTX"),
        ("pins", "the CUDA packages that it asks for"),
    ):
        if found[key] is None:
            continue
        ours, theirs = ({_plain(each) for each in side[key]} for side in (plan, found))
        if ours - theirs:
            yield f"{what}: the plan says {', '.join(sorted(ours - theirs))}, the wheel does not"
        if theirs - ours:
            yield f"{what}: the wheel says {', '.join(sorted(theirs - ours))}, the plan does not"


def _stem(name: str) -> str:
    """`libcublas.so` of `libcublas.so.11`."""
    return re.sub(r"\.so\..*", ".so", name)


def _plain(text: str) -> str:
    """A requirement in one form: without marker, brackets and blanks, its bounds in one order."""
    match = re.match(r"([\w.,\[\]-]+?)\s*\(?([<>=!~][^; )]*)", text)
    return match[1] + ",".join(sorted(match[2].split(","))) if match else text
