# Apache-2.0, see LICENSE
"""A lock's packages compared with a virtual environment's installed ones. Reads only."""

from __future__ import annotations

import re

from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.host import Host
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.manifest import (
    compare_records,
    recorded_files,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.venvs import packages_of

# Packages that do not start beside a newer one, and do not say so: (package, its last such version,
# the other package, its first version that is too new).
# tensorboard 2.20 and older import pkg_resources, which setuptools has no longer from 82 on:
# https://github.com/tensorflow/tensorboard/issues/7064, .../7107, .../7096.
UNDECLARED_BOUNDS = (("tensorboard", (2, 20), "setuptools", (82,)),)
# The version of a package that nothing pins: above each bound.
ANY = "99999"
# Packages that need such a package in their own version.
BROUGHT_BY = {"tensorboard": ("tensorflow", "tensorflow-cpu", "tensorflow-gpu")}


def locked_packages(lock):
    """The versions of a lock's packages by name, names as Python packages are compared."""
    with open(lock) as stream:
        return pinned_packages(stream.read())


def expected_bounds(requirements):
    """The undeclared requirements of what these requirements pin, or bring in the same version."""
    pinned = pinned_packages("\n".join(requirements))
    for name, bringing in BROUGHT_BY.items():
        versions = [pinned[other] for other in bringing if other in pinned]
        if versions:
            pinned.setdefault(name, versions[0])
    return _bounds(pinned, ANY)


def undeclared_bounds(text):
    """The requirements that a lock's packages need and do not declare, where it breaks them."""
    return _bounds(pinned_packages(text), "0")


def _bounds(found, unpinned):
    """The requirements that packages need and do not declare; `unpinned`: the version of others."""
    return [
        "{}<{}".format(other, ".".join(map(str, first)))
        for name, last, other, first in UNDECLARED_BOUNDS
        if name in found
        and _numbers(found[name])[: len(last)] <= last
        and _numbers(found.get(other, unpinned)) >= first
    ]


def _numbers(version):
    """The numbers of a version, such as 2, 20 and 0 of 2.20.0rc1."""
    return tuple(int(part) for part in re.match(r"[\d.]*", version).group().split(".") if part)


def pinned_packages(text):
    """The versions in a lock's text by name, names as Python packages are compared."""
    pairs = re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^\]\n]*\])?==([^\s;\\]+)", text, re.M)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pairs}


def pins_of(package, lock):
    """The lines of a lock that pin one package: its version and hashes."""
    with open(lock) as stream:
        text = stream.read()
    return "".join(re.findall(r"^%s==.*(?:\n[ \t].*)*\n?" % re.escape(package), text, re.M))


def differences(venv, declared):
    """How the installed packages differ from the declared ones, in words.

    What people installed beside them is theirs, and no difference.
    """
    packages = packages_of(Host({"root": "/"}), venv)
    return ", ".join(
        "{} {} (lock: {})".format(name, packages.get(name, "missing"), version)
        for name, version in sorted(declared.items())
        if packages.get(name) != version
    )


def altered_packages(venv, receipt, deep=False):
    """The files that differ from the packages' own records: [{"path", "what"}].

    `deep`: by content, not by size alone.
    """
    return compare_records(venv, recorded_files(venv, receipt["packages"]), deep)


def same_python(installed, declared):
    """Return whether a Python is the declared one, such as 3.11.2 is 3.11."""
    return (installed + ".").startswith(declared + ".")
