"""Parse the variables of driver, MIG and containers, as `parse` does for the others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpufleet.catalog import container_toolkit, versions
from gpufleet.components.base.reader import Reader
from gpufleet.documents.spec import ALL_GPUS, MODULES, ContainersSpec, DriverSpec, Spec
from gpufleet.frameworks import DEFAULT

SOURCES = ("distro", "nvidia_repo", "runfile", "preinstalled")
CONTAINER_SOURCES = ("distro", "docker_repo")
_PROFILE = re.compile(r"[1-9][0-9]*g\.[0-9]+gb([+-](me|gfx|me\.all))?")


def driver(reader: Reader, value: Any) -> DriverSpec | None:
    """The driver; a branch may be an exact version, and 580 needs no quotes."""
    if value is None:
        return None
    keys = ("branch", "source", "module", "persistence")
    entry = reader.mapping(value, "gpu_driver", keys)
    branch = entry.get("branch")
    if isinstance(branch, int) and not isinstance(branch, bool):
        branch = str(branch)
    text = reader.text(branch, "gpu_driver.branch", 'such as "580"')
    text = text.removeprefix("R") if text else None
    if text and not versions.is_dotted(text):
        reader.wrong(branch, "gpu_driver.branch", 'a branch such as "580"')
        text = None
    default = DriverSpec()
    return DriverSpec(
        branch=text.split(".")[0] if text else None,
        version=text if text and "." in text else None,
        source=reader.choice(entry.get("source"), "gpu_driver.source", SOURCES) or default.source,
        module=reader.choice(entry.get("module"), "gpu_driver.module", MODULES),
        persistence=entry.get("persistence") is None
        or reader.flag(entry["persistence"], "gpu_driver.persistence"),
    )


def reboot(reader: Reader, value: Any) -> str:
    """When the host may be restarted for its driver."""
    choices = ("auto", "never", "always")
    return reader.choice(value, "gpu_driver_reboot", choices) or Spec.driver_reboot


def mig(reader: Reader, value: Any, count: int | None) -> dict[str, list[str]] | None:
    """MIG layouts by GPU, `all` for every one; an empty list switches MIG off.

    `count`: how many GPUs are declared.
    """
    if value is None:
        return None
    if isinstance(value, list | tuple):
        value = {ALL_GPUS: list(value)}
    wanted = 'a mapping such as {all: ["3g.40gb", "3g.40gb"]}, or [] to switch MIG off'
    if not isinstance(value, Mapping):
        reader.wrong(value, "gpu_mig", wanted)
        return None
    layout: dict[str, list[str]] = {}
    for key, part in value.items():
        gpu, where = str(key), f"gpu_mig[{key}]"
        if gpu != ALL_GPUS and not re.fullmatch(r"0|[1-9][0-9]{0,2}", gpu):
            reader.wrong(key, where, f"{ALL_GPUS}, or a GPU's number as nvidia-smi -L shows it")
            continue
        if gpu != ALL_GPUS and count is not None and int(gpu) >= count:
            reader.wrong(key, where, f"one of the {count} GPUs of gpu_expect, counted from 0")
            continue
        listed = enumerate(reader.sequence(part, where))
        layout[gpu] = [
            profile for at, each in listed if (profile := _profile(reader, each, f"{where}[{at}]"))
        ]
    if ALL_GPUS in layout and len(layout) > 1:
        reader.wrong(value, "gpu_mig", f"{ALL_GPUS} alone, or GPUs by their numbers alone")
        return None
    return layout


def _profile(reader: Reader, value: Any, where: str) -> str | None:
    """The name of a MIG profile: compute slices and memory."""
    wanted = 'a profile such as "3g.40gb" (nvidia-smi mig -lgip lists them)'
    text = reader.text(value, where, wanted)
    if text and not _PROFILE.fullmatch(text):
        reader.wrong(text, where, wanted)
        return None
    return text


def containers(reader: Reader, value: Any) -> ContainersSpec | None:
    if value is None:
        return None
    keys = ("engine", "source", "toolkit", "image", "data_root", "accept_cves")
    entry = reader.mapping(value, "gpu_containers", keys)
    default = ContainersSpec()
    image = reader.text(entry.get("image"), "gpu_containers.image", "an image's name")
    if image and not re.fullmatch(r"[A-Za-z0-9][\w.:/@-]*", image):
        reader.wrong(image, "gpu_containers.image", f"an image such as {DEFAULT.image}")
        image = None
    spec = ContainersSpec(
        engine=reader.choice(entry.get("engine"), "gpu_containers.engine", ("docker", "podman"))
        or default.engine,
        source=reader.choice(entry.get("source"), "gpu_containers.source", CONTAINER_SOURCES)
        or default.source,
        toolkit=reader.version(entry.get("toolkit"), "gpu_containers.toolkit"),
        image=image,
        data_root=reader.path(entry.get("data_root"), "gpu_containers.data_root"),
        accept_cves=_accepted(reader, entry.get("accept_cves"), "gpu_containers.accept_cves"),
    )
    if spec.engine == "podman" and spec.source == "docker_repo":
        reader.wrong("docker_repo", "gpu_containers.source", "distro, which has Podman")
    if spec.engine == "podman" and spec.data_root:
        reader.wrong(spec.data_root, "gpu_containers.data_root", "nothing: only Docker has it")
    return spec


def _accepted(reader: Reader, value: Any, where: str) -> tuple[str, ...]:
    """Known vulnerabilities of the container toolkit that a person accepts, by their names."""
    names = tuple(each.cve for each in container_toolkit.known())
    listed = enumerate(reader.sequence(value, where))
    found = [reader.choice(each, f"{where}[{at}]", names) for at, each in listed]
    return tuple(each for each in found if each)
