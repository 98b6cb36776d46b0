# Apache-2.0, see LICENSE
"""Rules for an installation of a driver: forbidden changes, and the packages of a branch.

Pure functions over package names and versions: nothing here reads or changes a host.
"""

from __future__ import annotations

import re

from ansible_collections.gpufleet.gpu.plugins.module_utils.apt import upstream
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.sections.packages import (
    DRIVER_PACKAGE,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import StateError

# Packages that no installation of a driver may touch, and those that only exist for one.
# Ubuntu's builds of the driver's modules are linux-modules-nvidia-*, its kernels for Grace
# linux-image-nvidia-64k.
KERNEL = re.compile(r"linux-(image|modules-(?!nvidia))")
KERNEL_META = re.compile(r"linux-image-(?!.*(?:unsigned|dbg))(\D\S*)$")
# Debian's choice between several drivers, which depends on parts of this one.
CHOICE = re.compile(r"glx-(alternative|diversions)|update-glx$")
# The driver's tools with versions of their own, or with the version of a firmware in the name.
OWN_VERSION = re.compile(r"nvidia-(modprobe|persistenced|settings|xconfig|firmware-.*)")

# Ubuntu's own builds of the modules have a kernel's version, and the branch in the name.
PREBUILT = re.compile(r"linux-(?:modules|objects|signatures)-nvidia-(\d{3})\b")
# Ubuntu's firmware has the driver's version in the name, so an upgrade leaves the old one.
FIRMWARE = re.compile(r"nvidia-firmware-.+-(\d{3}(?:\.\d+)+)$")

# The package with a kernel's headers, and what removes its image.
DEBIAN_HEADERS = ("linux-headers-{}", "apt-get remove linux-image-{}")
REDHAT_HEADERS = ("kernel-devel-{}", "dnf remove kernel-core-{}")


class OtherBranchError(StateError):
    """The repository's default version is of another branch than the declared one."""


def branch_of(version):
    """Return a package version's branch: 535 of 535.261.03-1."""
    return upstream(version).partition(".")[0]


def other_branch(packages, branch):
    """Return the names among {name: version} that belong to another branch of the driver."""
    number = re.compile(r"(?!{}\.)\d{{3}}\.".format(branch))
    prebuilt = {name for name in packages if PREBUILT.match(name)}
    return [
        name
        for name, version in sorted(packages.items())
        if (name in prebuilt and PREBUILT.match(name).group(1) != branch)
        or (number.match(upstream(version)) and not OWN_VERSION.match(name))
    ]


def other_firmware(packages, version):
    """Return the names among packages of firmware of another version than the driver's."""
    found = [(name, FIRMWARE.match(name)) for name in sorted(packages)]
    return [name for name, match in found if match and match.group(1) != version]


def refuse_harm(installs, removes, removable=()):
    """Raise where a simulation changes a kernel, or removes a package that is not the driver's.

    ``removable``: packages that may go although they are not the driver's.
    """
    kernels = sorted(name for name in [*installs, *removes] if KERNEL.match(name))
    if kernels:
        raise StateError(
            "This would install, change or remove a kernel ({}), and a driver installation must "
            "not do that. Nothing was changed: update the kernel first, and run again.".format(
                ", ".join(kernels)
            )
        )
    ours = [n for n in removes if DRIVER_PACKAGE.match(n) or CHOICE.match(n) or n in removable]
    foreign = sorted(set(removes) - set(ours))
    if foreign:
        raise StateError(
            "This would remove packages that are not the driver's: {}. Nothing was changed: remove "
            "them yourself if nobody needs them, or keep the driver that they depend on.".format(
                ", ".join(foreign)
            )
        )


def package_of(kernel, name):
    """Return the name of a kernel's package, as ``name`` has it with {} for the version.

    Red Hat's kernels name their variant, such as 64k pages, behind a plus sign, and their packages
    before the part: kernel-64k-devel-5.14.0-503.el9.aarch64 is of 5.14.0-503.el9.aarch64+64k.
    """
    version, plus, variant = kernel.partition("+")
    if plus and "kernel-" in name:
        return name.replace("kernel-", "kernel-{}-".format(variant)).format(version)
    return name.format(kernel)


def refuse_without_headers(kernels, obtainable, version, names):
    """Raise where a kernel has no module of a version, and nobody has the headers to build one.

    ``kernels``: as the probe describes them; ``obtainable``: the packages that a repository has;
    ``names``: as in `without_headers`.
    """
    for row in kernels:
        built = [each for each in row["modules"] if each["version"] == version]
        missing = row["image"] and "rescue" not in row["version"] and not row["headers"]
        if missing and not built and package_of(row["version"], names[0]) not in obtainable:
            raise StateError(without_headers(row["version"], names) + " Nothing was changed.")


def without_headers(kernel, names):
    """Return what to do about a kernel without headers.

    ``names``: of the package with its headers, and the command that removes its image, each with
    {} for its version.
    """
    return (
        "kernel {}: its headers are not installed, so no module can be built, and it would boot "
        "without a driver. Install {}; where no repository has it any more, update the kernel, or "
        "remove it ({}).".format(kernel, *(package_of(kernel, name) for name in names))
    )
