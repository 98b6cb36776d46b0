"""Empty shells of CUDA's and cuDNN's libraries, for releases that no package index carries.

They have the file names, SONAMEs and functions that TensorFlow asks for, and answer like a
machine without a GPU. `functions.yml` says what is answered, `names.yml` what is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from lab import libraries
from lab.stubs import library
from lab.stubs.library import Function

HERE = Path(__file__).parent

README = """\
This is a stand-in for {what}, made by gpufleet's lab on this site's own machine.
Nothing in it is NVIDIA's: its libraries are empty shells with the names and functions of NVIDIA's,
and answer that there is no GPU. It is for tests on machines that have none. Do not install it on
a machine with a GPU.
"""


@cache
def _read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((HERE / name).read_text(encoding="utf-8"))
    return content


def functions(stem: str, releases: list[str], numbers: Mapping[str, int]) -> dict[str, Function]:
    """The functions of libcublas, say, as these TensorFlow releases know them."""
    known = _read("functions.yml")[stem]
    asked = {name for release in releases for name in _read("names.yml")[release]["names"].split()}
    found = {
        name: Function(status=known["status"])
        for name in asked
        if re.fullmatch(known["names"], name)
    }
    for name, output in known["functions"].items():
        values = {key: numbers.get(value, value) for key, value in output.items()}
        found[name] = Function(**values)
    return found


def place(
    directory: Path, soname: str, version: str, releases: list[str], numbers: Mapping[str, int]
) -> None:
    """Put one library into `directory` under its full name and with its links."""
    real, links = libraries.names(soname, version)
    content = functions(libraries.stem(soname), releases, numbers)
    library.write(directory / real, soname, content)
    for link, target in links:
        (directory / link).symlink_to(target)


def number(version: str, *factors: int) -> int:
    """8000 for 8.0 (with 1000, 10), 6021 for 6.0.21 (with 1000, 100, 1)."""
    parts = [int(part) for part in version.split(".")]
    return sum(part * factor for part, factor in zip(parts, factors, strict=True))
