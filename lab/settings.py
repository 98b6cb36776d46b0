"""The selected lab and the paths of its files. Reads and writes nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.errors import LabError

USER = "deploy"
LABEL = "gpufleet.lab"
HOST_LABEL = "gpufleet.host"
SUITE_LABEL = "gpufleet.suite"
RECIPE_LABEL = "gpufleet.recipe"
# Where the lab's files are, and the test run that it belongs to: see runs.py.
CACHE_LABEL = "gpufleet.cache"
RUN_LABEL = "gpufleet.run"
RUN = "GPUFLEET_LAB_RUN"

# Names become container, network and host names, so both are held to what a host name may be.
# The lengths leave room in a socket's path, which the kernel limits to 107 bytes.
_INSTANCE = re.compile(r"[a-z][a-z0-9-]{0,19}")
_HOST = re.compile(r"lab([1-9][0-9]?)")
# The directories of artifacts, beside the instances' own, by what their libraries are: without the
# code for GPUs, or whole, and as slow to install as NVIDIA's.
ARTIFACTS = {"slim": "artifacts", "whole": "artifacts-whole"}


def cache_root(environment: Mapping[str, str]) -> Path:
    """The directory of everything that can be fetched or made again."""
    if chosen := environment.get("GPUFLEET_CACHE"):
        return Path(chosen).absolute()
    base = environment.get("XDG_CACHE_HOME") or str(Path(environment.get("HOME", "~")) / ".cache")
    return Path(base).expanduser() / "gpufleet"


def host_number(name: str) -> int:
    """The N of labN; it decides the host's address."""
    match = _HOST.fullmatch(name)
    if not match:
        raise LabError(
            f"{name!r} is not a name for a lab host",
            "Lab hosts are called lab1, lab2, ... lab99.",
        )
    return int(match[1])


@dataclass(frozen=True)
class Lab:
    """One lab among several on this machine: its hosts, network, key and state are its own."""

    instance: str
    cache: Path
    libraries: str = "slim"
    # The test run that what is made now belongs to; empty: it is a person's.
    run: str = ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Lab:
        instance = environment.get("GPUFLEET_LAB") or "lab"
        if not _INSTANCE.fullmatch(instance) or instance in ARTIFACTS.values():
            raise LabError(
                f"GPUFLEET_LAB={instance!r} cannot name a lab",
                "Use up to 20 lower-case letters, digits and dashes, a letter first"
                f" (not {', '.join(sorted(ARTIFACTS.values()))}).",
            )
        libraries = environment.get("GPUFLEET_LAB_LIBRARIES") or "slim"
        if libraries not in ARTIFACTS:
            raise LabError(
                f"GPUFLEET_LAB_LIBRARIES={libraries!r} is unknown", "Set it to slim or whole."
            )
        return cls(instance, cache_root(environment), libraries, environment.get(RUN, ""))

    @property
    def directory(self) -> Path:
        return self.cache / "lab" / self.instance

    @property
    def state(self) -> Path:
        return self.directory / "state.json"

    @property
    def key(self) -> Path:
        return self.directory / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        return self.directory / "known_hosts"

    @property
    def sockets(self) -> Path:
        """Where ssh's shared connections live. Short, root's own, and gone after a restart."""
        return Path("/run/gpufleet") / self.instance

    @property
    def images(self) -> Path:
        return self.cache / "images"

    @property
    def wheels(self) -> Path:
        return self.cache / "wheels"

    @property
    def artifacts(self) -> Path:
        return self.cache / "lab" / ARTIFACTS[self.libraries]

    @property
    def locks(self) -> Path:
        return self.cache / "locks"

    @property
    def label(self) -> str:
        """The label that finds everything of this lab."""
        return f"{LABEL}={self.instance}"

    @property
    def labels(self) -> list[str]:
        """The options of podman that label what it makes."""
        found = [self.label, f"{CACHE_LABEL}={self.cache}"]
        found += [f"{RUN_LABEL}={self.run}"] if self.run else []
        return [f"--label={label}" for label in found]

    @property
    def network(self) -> str:
        return f"gpufleet-{self.instance}"

    def container(self, host: str) -> str:
        return f"gpufleet-{self.instance}-{host}"

    def image(self, suite: str) -> str:
        """Each lab has images of its own (their layers are shared), so that each can be removed."""
        return f"localhost/gpufleet-{self.instance}:{suite}"

    def ssh_options(self) -> list[str]:
        """How every ssh to a lab host is made, whoever makes it. Host keys are always checked."""
        return [
            "-o", "StrictHostKeyChecking=yes",
            "-o", f"UserKnownHostsFile={self.known_hosts}",
            "-o", "GlobalKnownHostsFile=/dev/null",
            "-o", "IdentitiesOnly=yes",
            "-o", f"ControlPath={self.sockets}/%C",
        ]  # fmt: skip
