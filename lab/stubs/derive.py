"""`python -m lab.stubs.derive WHEEL ... > lab/stubs/names.yml`: which of CUDA's and cuDNN's
functions a TensorFlow release uses.

Read once from the wheels; the names are facts and are kept. Both what the dynamic linker binds
and what is looked up while running stands in these files as a text between two zero bytes.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path
from zipfile import ZipFile

from lab import files

# The objects that hold TensorFlow's own runtime, in all releases.
CORE = re.compile(r".*/tensorflow/(libtensorflow_framework|python/_pywrap_tensorflow\w*)\.so")
NAME = re.compile(rb"(?<=\0)(?:__cuda|cu[a-z]*)[A-Z]\w*[a-z0-9]\w*(?=\0)")

HEAD = """\
# CUDA's and cuDNN's functions that TensorFlow releases use, by the wheel they were read from.
# Written by `python -m lab.stubs.derive WHEEL ...`; the order is the alphabet's.
---
"""


def names(wheel: Path) -> list[str]:
    with ZipFile(wheel) as archive:
        cores = [member for member in archive.namelist() if CORE.fullmatch(member)]
        found = {name for core in cores for name in NAME.findall(archive.read(core))}
    return sorted(name.decode() for name in found)


def document(wheels: list[Path]) -> str:
    text = HEAD
    for wheel in wheels:
        release = "-".join(wheel.name.split("-")[:2])
        text += f"{release}:\n  wheel: {wheel.name}\n  sha256: {files.sha256(wheel)}\n  names: >-\n"
        words = textwrap.fill(" ".join(names(wheel)), 96, break_on_hyphens=False)
        text += textwrap.indent(words, "    ") + "\n"
    return text


if __name__ == "__main__":
    sys.stdout.write(document([Path(word) for word in sys.argv[1:]]))
