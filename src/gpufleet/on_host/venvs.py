"""The virtual environments of stacks: their packages, binding and start hooks. Nothing is run."""

import glob
import json
import os
import re

from .frameworks import FRAMEWORKS
from .manifest import normal_name, read_record
from .text import natural


def start_hooks(host, venv):
    """Files that change every start of an interpreter, and that no package contains."""
    found = []
    for site in host.glob(glob.escape(venv) + "/lib/python3*/site-packages"):
        names = [
            name
            for pattern in ("*.pth", "sitecustomize.py", "usercustomize.py")
            for name in host.glob(glob.escape(site) + "/" + pattern)
        ]
        # Lines that are not code only append to the module search path.
        names = [
            name
            for name in names
            if not name.endswith(".pth")
            or re.search(r"^import\s", host.text_or_none(name) or "", re.MULTILINE)
        ]
        # uv's own and ours have no record; ours are in the receipt.
        names = [
            name
            for name in names
            if not re.match(r"(_virtualenv|_gpufleet_binding)\.pth$", os.path.basename(name))
        ]
        records = names and host.glob(glob.escape(site) + "/*.dist-info/RECORD")
        known = {path for record in records for path, _, _ in read_record(host.path(record), False)}
        found += [name for name in names if os.path.basename(name) not in known]
    return found


def venvs(host, received):
    """The existing environments that receipts name, and those in the same directories."""
    locations = [path for path in received if os.path.isdir(host.path(path))]
    locations += [
        os.path.dirname(name)
        for name in host.glob(host["stack_root"] + "/*/pyvenv.cfg")
        if os.path.dirname(name) not in received
    ]
    return sorted(locations, key=natural)


def packages_of(host, venv):
    """The version of each package by name, from the installed metadata; nothing is imported."""
    packages = {}
    for pattern in ("*.dist-info/METADATA", "*.egg-info/PKG-INFO"):
        for name in host.glob(venv + "/lib/python3*/site-packages/" + pattern):
            found = {}
            for line in metadata(host, name).splitlines():
                key, mark, value = line.partition(":")
                if not mark or len(found) == 2:
                    break
                if key in ("Name", "Version"):
                    found[key] = value.strip()
            if len(found) == 2:
                packages[normal_name(found["Name"])] = found["Version"]
    return packages


def framework_of(host, venv, packages):
    """Which framework an environment is for: as declared, else by its packages."""
    installed = (
        name
        for name, framework in FRAMEWORKS.items()
        if any(carrier in packages for carrier in framework.distributions)
    )
    return host["frameworks"].get(venv) or next(installed, next(iter(FRAMEWORKS)))


def metadata(host, name):
    """The text of a package's metadata; none of what is no file, so that its package is missed."""
    try:
        return host.text(name)
    except PermissionError:
        if os.geteuid():
            raise
    except OSError:
        pass
    return ""


def bound_to(host, venv):
    """The directory of the libraries that an environment is bound to; None where it is to none."""
    for name in host.glob(venv + "/lib/python3*/site-packages/_gpufleet_binding.json"):
        try:
            return os.path.dirname(json.loads(host.text(name))["libraries"][0])
        except (OSError, ValueError, LookupError, TypeError):
            continue
    return None
