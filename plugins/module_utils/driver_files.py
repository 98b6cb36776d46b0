# Apache-2.0, see LICENSE
"""The small files of ours that keep apt from exchanging a driver.

Texts only, except that `differs` reads a file. Their texts are installed on hosts: they stay as
they are, byte for byte.
"""

from __future__ import annotations

import os
import re

PINS = "/etc/apt/preferences.d/gpufleet-driver"
UNATTENDED = "/etc/apt/apt.conf.d/52gpufleet-driver"


def pins(packages):
    """Return apt preferences that keep packages, {name: version}, at their versions."""
    text = "# Written by gpufleet: the driver's packages stay at what was proven together.\n"
    for version in sorted(set(packages.values())):
        names = " ".join(sorted(name for name in packages if packages[name] == version))
        text += "\nPackage: {}\nPin: version {}\nPin-Priority: 1001\n".format(names, version)
    return text


def exclusions(packages):
    """Return the setting that excludes packages from unattended upgrades."""
    names = [re.sub(r"([.+])", r"\\\1", name) for name in sorted(packages)]
    lines = "".join('    "^{}$";\n'.format(name) for name in names)
    return (
        "// Written by gpufleet: a driver that changes at night fails in the morning.\n"
        "Unattended-Upgrade::Package-Blacklist {\n" + lines + "};\n"
    )


def transaction_pins(pin, version):
    """Return apt preferences of one transaction: the declared version, then the repository."""
    ours = "Package: *nvidia* libcuda* libnv* cuda-drivers* cuda-compat*\n"
    texts = ["{}Pin: {}\nPin-Priority: 1001\n".format(ours, pin)] if pin else []
    if version:
        texts.insert(0, "{}Pin: version {}*\nPin-Priority: 1002\n".format(ours, version))
    return "\n".join(texts)


def host_files(packages):
    """Return {path: text} of the files for held packages; empty texts where there are none."""
    texts = {PINS: pins(packages), UNATTENDED: exclusions(packages)}
    return {path: text if packages else "" for path, text in texts.items()}


def read(path):
    """Return a file's text; an empty one where the file does not exist."""
    if not os.path.isfile(path):
        return ""
    with open(path) as stream:
        return stream.read()


def differs(path, text):
    """Return whether a file's text or mode is not as we write it; empty text means no file."""
    return read(path) != text or (bool(text) and os.stat(path).st_mode & 0o777 != 0o644)
