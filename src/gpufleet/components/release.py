"""One release of a framework and what it needs, from the catalog alone: no inventory."""

from __future__ import annotations

from collections.abc import Collection

from gpufleet.catalog import facts
from gpufleet.documents.types import Row
from gpufleet.frameworks import FrameworkId

from .plan import resolve

# Notes that every plan without a host has: here there is none to probe.
_OF_A_HOST = (
    "The host was not probed",
    "the host's Pythons are not known",
    "No GPU is declared",
    "Disk space is unchecked",
)

_OPTIONS = {
    "gpu_stacks[0].cuda": "--cuda",
    "gpu_stacks[0].cudnn": "--cudnn",
    "gpu_stacks[0].python": "--python",
    "gpu_stacks[0].index": "--index",
    "gpu_driver.branch": "--driver",
    "gpu_gpus[0]": "--gpu",
    "gpu_arch": "--arch",
}


def release(  # noqa: PLR0917 - the options of the command, in its order
    framework: FrameworkId,
    version: str,
    cuda: str | None = None,
    cudnn: str | None = None,
    driver: str | None = None,
    gpu: str | None = None,
    python: str | None = None,
    index: str | None = None,
    locks: Collection[str] | None = None,
    arch: str | None = None,
) -> Row:
    """The requirements of a release, or `{"problems": [...]}`.

    `cuda` and `cudnn` are checked against the build, `cuda` may be "pip" or "local"; `driver` is a
    branch or a version, `gpu` a compute capability or a name, `index` an address, `arch` a machine
    architecture; `where` of a problem names the option; `locks` are the names of the user's locks.
    """
    stack = {framework: version, "cuda": cuda, "cudnn": cudnn, "python": python, "index": index}
    variables: Row = {"gpu_stacks": [stack], "gpu_accept_nvidia_eula": True}
    if driver is not None:
        variables["gpu_driver"] = {"branch": driver}
    if gpu is not None:
        variables["gpu_gpus"] = [gpu]
    if arch is not None:
        variables["gpu_arch"] = arch
    plan = resolve(variables, locks=locks)
    if plan["problems"]:
        options = {
            **_OPTIONS,
            **dict.fromkeys(("gpu_stacks[0]", f"gpu_stacks[0].{framework}"), f"--{framework}"),
        }
        return {
            "problems": [
                {key: _as_options(str(text), options) for key, text in problem.items()}
                for problem in plan["problems"]
            ]
        }
    row = plan["stacks"][0]
    build = facts.build_for(framework, row["version"], cuda and cuda.strip(), plan["arch"])
    assert build is not None  # there is a stack, so there is a build
    found = [*row["sources"]]
    for part in (*plan["toolkits"], *plan["cudnn"]):
        found += part["sources"]
    return {
        framework: row["version"],
        "distribution": row["distribution"],
        "python": build.pythons,
        "cuda": row["cuda"],
        "cuda_source": row["cuda_source"],
        "cudnn": row["cudnn"],
        "sonames": row["sonames"],
        "driver_min": row["driver_min"],
        "compute_capability": row["compute_capability"],
        "requirements": row["requirements"],
        "notes": [note for note in plan["notes"] if not any(text in note for text in _OF_A_HOST)],
        "sources": list(dict.fromkeys(found)),
        **({"index": index} if index else {}),
    }


def _as_options(text: str, options: dict[str, str]) -> str:
    """A problem's text with the options in the place of the variables that they stand for."""
    for variable in sorted(options, key=len, reverse=True):
        text = text.replace(variable, options[variable])
    return text
