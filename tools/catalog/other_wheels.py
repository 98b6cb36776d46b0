"""The wheels of a release for other machines than x86_64: what differs there, as a part of its row.

A machine without such a wheel, or with one that has no CUDA, is recorded as such. A wheel that was
built with another CUDA than that for x86_64 needs a person.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpufleet.catalog import device_code, facts, versions
from gpufleet.frameworks import Framework

from . import measurement
from .errors import MeasureError
from .tables import Row


def missing(framework: Framework, row: Row) -> list[str]:
    """The machines of which a row has no part, though this framework may have GPU wheels there."""
    without = {
        rule["arch"] for rule in facts.rules("no_gpu_wheels") if rule["framework"] == framework.id
    }
    return [
        arch
        for arch in facts.machines()
        if arch not in {facts.X86_64, *without} and arch not in row
    ]


def part(
    framework: Framework, row: Row, arch: str, *, known: Sequence[str], address: str, today: str
) -> Row:
    """The row's part for another machine's wheel. Raises MeasureError where none can be written.

    `row`: its row for x86_64, of one plugin where it has several. `known`: the compute capabilities
    that are judged.
    """
    plugin, _, version = row.get("plugin", f"{row['distribution']}=={row['version']}").partition(
        "=="
    )
    published = "plugin_on_pypi" if "plugin" in row else "on_pypi"
    wheels = [
        each for each in measurement.listed(plugin, address, arch) if str(each.version) == version
    ]
    if not wheels:
        return {published: False, "gpu": False, "source": [f"the package index, read on {today}"]}
    chosen = wheels[-1]
    found = measurement.read(framework.id, chosen, wheels, arch=arch)
    source = [f"wheel {chosen.name} on the package index, read on {today}"]
    # A plugin does not say its CUDA, and is for nothing else.
    if not found["cuda"] and "plugin" not in row:
        return {published: True, "gpu": False, "source": source}
    if why := "; ".join(_differences(row, found)):
        raise MeasureError(f"{chosen.name} {why}: write its part of the row by hand")
    code = [device_code.Container((*found["sass"],), (*found["ptx"],), ())]
    if found.get("containers"):
        code = [device_code.read(each) for each in found["containers"]]
    native, compiled = device_code.split(code, known)
    wheel: Row = {"file": chosen.name, "sha256": chosen.sha256}
    return {
        published: True,
        "gpu": True,
        "python": found["python"],
        "wheel_platform_tag": found["platform"],
        "sass_archs": found["sass"],
        "ptx_archs": found["ptx"],
        "min_compute_capability": found["sass"][0],
        "cc_native": native,
        "cc_via_ptx_jit": compiled,
        "ptx_language": device_code.language(code),
        "same_pins_as_x86_64": (found["pins"] or []) == row["cuda_pins"],
        "measured": True,
        "wheel": {"plugin": wheel} if "plugin" in row else wheel,
        "source": source,
    }


def _differences(row: Row, found: Row) -> Iterator[str]:
    """Sentences on differences to the row, whose CUDA and cuDNN a part cannot change."""
    if found["cuda"] and versions.short(found["cuda"]) != versions.short(row["cuda_version"]):
        yield f"was built with CUDA {found['cuda']}, that for x86_64 with {row['cuda_version']}"
    if found["cudnn"] and versions.major(found["cudnn"]) != row["cudnn_major"]:
        yield f"was built with cuDNN {found['cudnn']}, that for x86_64 with {row['cudnn_major']}"
    if None in (found["sass"], found["ptx"]) or not found["sass"]:
        yield "does not say for which GPUs it has code"


def described(added: Row) -> str:
    """A part in a line for the person who adds it."""
    if not (added.get("on_pypi") or added.get("plugin_on_pypi")):
        return "no wheel was published"
    if not added["gpu"]:
        return "its wheel has no CUDA"
    return f"Python {', '.join(added['python'])}; machine code for {', '.join(added['sass_archs'])}"
