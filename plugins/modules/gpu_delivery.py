#!/usr/bin/python
# Apache-2.0, see LICENSE
"""Copy files of the control machine to a host, all in one go: the host's part.

Compares the files, and moves those that the action plugin has brought to their places.
"""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_delivery
short_description: Copy files to a host in one go
description:
  - Copies what the host lacks or has with other contents, whatever their number with two executions
    on the host (M(ansible.builtin.copy) needs three for each file). The files are root's. Each is
    compared with its checksum on the host before it gets its name, unless what uses it does that.
options:
  files:
    description:
      - The files, each the path of a file on the control machine, or C({src, checksum, dest, mode,
        compare}) of which all but C(src) can be left out. C(checksum) is V(ALGORITHM:HEX); where it
        is given, the file is not read to compute it. With C(compare) V(false), of a file that is
        copied only the size is compared on the host.
    type: list
    elements: raw
    required: true
  dest:
    description: The directory on the host where the files belong.
    type: path
    required: true
  mode:
    description: The files' mode.
    type: str
    default: "0644"
attributes:
  check_mode: {support: full}
  diff_mode: {support: full}
  action:
    description: Runs on the control machine, and there reads the files.
    support: full
extends_documentation_fragment:
  - gpufleet.gpu.attributes
author: ["The gpufleet developers (!UNKNOWN)"]
"""

EXAMPLES = r"""
- name: Copy uv and a lock
  gpufleet.gpu.gpu_delivery:
    dest: /opt/gpufleet/locks
    files:
      - "{{ inventory_dir }}/stacks/tensorflow-2.13.1-py3.11.lock"
      - {src: /usr/local/bin/uv, dest: /opt/gpufleet/bin, mode: "0755"}
"""

RETURN = r"""
wanted:
  description: The paths on the host that lacked their contents.
  type: list
  elements: str
  returned: always
"""

import os
import stat

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.gpu.plugins.module_utils.file_errors import fail
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    StateError,
    digest_of,
    make_folder,
    remove_tree,
)


def has_contents(path, wanted, compare=True):
    """Return whether a file has the wanted size and checksum; never reads through a link.

    Without ``compare``, the size is enough.
    """
    try:
        status = os.lstat(path)
    except OSError:
        return False
    if not stat.S_ISREG(status.st_mode) or status.st_size != wanted["size"]:
        return False
    if not compare:
        return True
    algorithm, _, digest = wanted["checksum"].partition(":")
    return digest_of(path, algorithm) == digest


def own(path, mode):
    """Make a path root's, with a mode; returns whether that changed anything."""
    status = os.stat(path)
    changed = False
    if (status.st_uid, status.st_gid) != (0, 0):
        os.chown(path, 0, 0)
        changed = True
    if stat.S_IMODE(status.st_mode) != mode:
        os.chmod(path, mode)
        changed = True
    return changed


def refuse_shared(folder):
    """Raise ``StateError`` where an existing directory can be written by others than root.

    Whoever can may replace what root executes from it. A directory that others use is left as it
    is: its owner and mode are theirs to choose.
    """
    if os.path.isdir(folder):
        status = os.stat(folder)
        if status.st_uid or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise StateError(
                "{0} can be written by others than root (owner {1}, mode {2:04o}), and gpufleet's "
                "files do not belong there. Nothing was changed in it. Declare a directory of its "
                "own, such as {0}/gpufleet; or, if it is gpufleet's alone, on the host: chown "
                "root:root {0}; chmod 755 {0}".format(
                    folder, status.st_uid, stat.S_IMODE(status.st_mode)
                )
            )


def place(module, wanted):
    """Move a file that was brought to its place, once its contents are proven."""
    path, staged = wanted["path"], wanted["staged"]
    # Root's alone first: nobody changes it between the comparison and the move.
    os.chown(staged, 0, 0)
    os.chmod(staged, 0o600)
    if not has_contents(staged, wanted, wanted["compare"]):
        raise StateError(
            "{} did not arrive as it is on the control machine. Run again.".format(path)
        )
    make_folder(os.path.dirname(path))
    if os.path.isdir(path) and not os.path.islink(path):
        raise StateError(
            "{0} is a directory; a file of gpufleet's belongs there. Move it away: mv {0} "
            "{0}.old".format(path)
        )
    if os.path.islink(path):
        remove_tree(path)
    module.atomic_move(staged, path)
    own(path, int(wanted["mode"], 8))


def difference(wanted):
    """The change of a file, as Ansible shows it."""
    there = os.path.lexists(wanted["path"])
    return {
        "before_header": wanted["path"],
        "after_header": wanted["path"],
        "before": "another file\n" if there else "",
        "after": "{size} bytes, {checksum}\n".format(**wanted),
    }


def main():
    module = AnsibleModule(
        argument_spec={
            # From the action plugin: {path, mode, size, checksum, compare}, and `staged` once it is
            # here.
            "files": {"type": "list", "elements": "raw", "required": True},
            "dest": {"type": "path", "required": True},
            "mode": {"type": "str", "default": "0644"},
        },
        supports_check_mode=True,
    )
    changed, wanted, diff = False, [], []
    try:
        for folder in sorted({os.path.dirname(file["path"]) for file in module.params["files"]}):
            refuse_shared(folder)
        for file in module.params["files"]:
            path = file["path"]
            if not has_contents(path, file):
                diff.append(difference(file))
                wanted.append(path)
                if "staged" in file:
                    place(module, file)
            elif module.check_mode:
                found = os.stat(path)
                other = stat.S_IMODE(found.st_mode) != int(file["mode"], 8)
                changed = changed or other or (found.st_uid, found.st_gid) != (0, 0)
            else:
                changed = own(path, int(file["mode"], 8)) or changed
        module.exit_json(changed=changed or bool(wanted), wanted=wanted, diff=diff)
    except (StateError, OSError) as error:
        fail(module, error)


if __name__ == "__main__":
    main()
