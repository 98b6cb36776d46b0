#!/usr/bin/python
# Apache-2.0, see LICENSE
"""Register library directories with the dynamic linker, and keep its cache current."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_linker_cache
short_description: Register directories with the dynamic linker
description:
  - Writes exactly the given directories to a file in C(/etc/ld.so.conf.d), and runs C(ldconfig)
    where the linker's cache lacks a library of these directories, or has one that no longer
    exists.
options:
  file:
    description: The file to write.
    type: path
    required: true
  directories:
    description: Directories in the order of preference; an empty list removes the file.
    type: list
    elements: path
  without:
    description: Directories to remove from the file, instead of O(directories).
    type: list
    elements: path
attributes:
  check_mode: {support: full}
  diff_mode: {support: full}
extends_documentation_fragment:
  - gpufleet.gpu.attributes
  - gpufleet.gpu.repair
author: ["The gpufleet developers (!UNKNOWN)"]
"""

EXAMPLES = r"""
- name: Register CUDA 11.8
  gpufleet.gpu.gpu_linker_cache:
    file: /etc/ld.so.conf.d/gpufleet-cuda.conf
    directories: [/usr/local/cuda-11.8/lib64]
"""

RETURN = r"""
because:
  description: The differences that were found.
  type: list
  elements: str
  returned: always
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.gpu.plugins.module_utils.file_errors import fail
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.elf import elf_dynamic
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.linker_cache import (
    parse_linker_cache,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    StateError,
    write_atomically,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.recreation import (
    OPTION,
    RECREATE,
    REINSTALL,
)

CACHE = "/etc/ld.so.cache"
HEADING = "# Written by gpufleet; one directory a line, the preferred first.\n"


def sonames(folder):
    """The SONAMEs of the libraries that stand in a directory."""
    names = set()
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        path = os.path.join(folder, name)
        # ldconfig takes no other names.
        if not name.startswith(("lib", "ld-")) or ".so" not in name or os.path.islink(path):
            continue
        try:
            names.add(elf_dynamic(path)["soname"])
        except ValueError:
            continue  # a linker script, or a damaged library: the receipt's manifest tells
    return names - {None}


def out_of_date(directories):
    """The entries of the directories that the cache lacks or has wrong, in words."""
    ours = {os.path.realpath(folder): folder for folder in directories}
    try:
        entries = cache_entries()
    except ValueError as error:
        return [str(error)]
    known = {folder: set() for folder in ours}
    stale = []
    for soname, path in entries:
        folder = os.path.realpath(os.path.dirname(path))
        if folder not in ours:
            continue
        known[folder].add(soname)
        if not os.path.exists(path):
            stale.append("{} is in the cache but no longer there".format(path))
    unknown = [
        "{}/{} is not in the cache".format(ours[folder], soname)
        for folder in sorted(ours)
        for soname in sorted(sonames(folder) - known[folder])
    ]
    return stale + unknown


def cache_entries():
    """SONAME and path of everything in the linker's cache; nothing where there is none."""
    if not os.path.exists(CACHE):
        return []
    with open(CACHE, "rb") as stream:
        return parse_linker_cache(stream.read())


def main():
    module = AnsibleModule(
        argument_spec={
            "file": {"type": "path", "required": True},
            "directories": {"type": "list", "elements": "path"},
            "without": {"type": "list", "elements": "path"},
            "repair": OPTION,
        },
        mutually_exclusive=[("directories", "without")],
        required_one_of=[("directories", "without")],
        supports_check_mode=True,
    )
    path, directories = module.params["file"], module.params["directories"]
    before = ""
    if os.path.isfile(path):
        # A file that somebody wrote there need not be text: it is replaced.
        with open(path, encoding="utf-8", errors="backslashreplace") as stream:
            before = stream.read()
    if directories is None:
        listed = [line for line in before.splitlines() if line and not line.startswith("#")]
        directories = [folder for folder in listed if folder not in module.params["without"]]
    after = HEADING + "".join(folder + "\n" for folder in directories) if directories else ""
    try:
        because = ["{} differs".format(path)] if before != after else []
        because += out_of_date(directories)
        if module.params["repair"] in (REINSTALL, RECREATE) and not because:
            because = ["a check that depends on it fails"]
        answer = {
            "changed": bool(because),
            "because": because,
            "diff": {"before": before, "after": after, "before_header": path, "after_header": path},
        }
        if not because or module.check_mode:
            module.exit_json(**answer)
        if before != after:
            if after:
                write_atomically(path, after)
            else:
                os.unlink(path)
        status, out, err = module.run_command([module.get_bin_path("ldconfig", True, ["/sbin"])])
        left = out_of_date(directories)
        if status or left:
            raise StateError(
                "ldconfig ended with status {} and left: {} {}".format(
                    status, "; ".join(left) or "nothing", (out + err).strip()
                )
            )
        module.exit_json(**answer)
    except (StateError, OSError) as error:
        fail(module, error, CACHE)


if __name__ == "__main__":
    main()
