#!/usr/bin/python
# Apache-2.0, see LICENSE
"""Take away what gpufleet installed: exactly what its receipt lists."""

from __future__ import annotations

DOCUMENTATION = r"""
module: removal
short_description: Remove an installation, by its receipt
description:
  - Removes the files and links that a receipt lists, and the directories that are empty then. What
    people added to the tree is left and named. A toolkit takes its cuDNN with it.
  - Refuses while a stack on the host is bound to what would be removed.
  - A removal that was killed is finished by the next run.
options:
  kind:
    description: What is to be removed.
    type: str
    choices: [toolkit, cudnn, stack]
    required: true
  id:
    description: The receipt's id, such as V(11.8) or V(tensorflow-2.13.1).
    type: str
    required: true
  without:
    description: Names of stacks that are removed in the same run and need nothing any more.
    type: list
    elements: str
    default: []
  state_dir:
    description: Where receipts and journal are kept.
    type: path
    default: /var/lib/gpufleet
attributes:
  check_mode: {support: full}
  diff_mode: {support: full}
author: [The gpufleet developers]
"""

EXAMPLES = r"""
- name: Remove CUDA 11.8
  removal:
    kind: toolkit
    id: "11.8"
"""

RETURN = r"""
path:
  description: Where it stood; empty where there is no receipt.
  type: str
  returned: always
left:
  description: What stands there still, because somebody else put it there.
  type: list
  elements: str
  returned: always
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpufleet_probe import recorded_files
from ansible.module_utils.gpufleet_receipts import (
    Installation,
    StateError,
    host_lock,
    remove_tree,
    walk,
)


def open_installation(params, kind, ident):
    """The installation that a receipt or a journal entry describes."""
    installation = Installation(kind, ident, "", "", params["state_dir"])
    known = installation.receipt or installation.journal or {"path": "", "version": ""}
    installation.path, installation.version = known["path"], known["version"]
    return installation


def needed_by(installation, without):
    """Names of the stacks on this host that are bound to the installation's files."""
    if installation.kind == "stack" or not installation.receipt:
        return []
    root = os.path.realpath(installation.path)
    ours = {os.path.join(root, entry["path"]) for entry in installation.receipt["manifest"]}
    return [
        other["id"]
        for other in installation.other_receipts()
        if other["kind"] == "stack"
        and other["id"] not in without
        and any(os.path.realpath(path) in ours for path in other["binding"])
    ]


def parts(params):
    """What goes: cuDNN before the toolkit in whose tree it stands."""
    main = open_installation(params, params["kind"], params["id"])
    inside = [
        open_installation(params, other["kind"], other["id"])
        for other in main.other_receipts()
        if main.kind == "toolkit" and other["kind"] == "cudnn" and other["path"] == main.path
    ]
    return [*inside, main]


def listed(installation):
    """Relative paths of all that the receipt stands for, a stack's packages included."""
    receipt = installation.receipt
    if not receipt:
        return []
    names = [entry["path"] for entry in receipt["manifest"]]
    if installation.kind == "stack":
        recorded = [path for path, _, _ in recorded_files(installation.path, receipt["packages"])]
        # A package's record does not list itself.
        infos = {os.path.dirname(path) for path in recorded if ".dist-info" in path}
        names += recorded + [os.path.join(info, "RECORD") for info in infos]
    return names


def is_cache(folder):
    """Whether a directory holds compiled Python only, which no receipt lists."""
    return os.path.basename(folder) == "__pycache__" and all(
        name.endswith(".pyc") for name in os.listdir(folder)
    )


def remove(installation):
    """Remove what the receipt lists, then the directories that are empty."""
    begun_fresh = installation.half_done and installation.journal["fresh"]
    installation.begin_removal()
    root = installation.path
    if begun_fresh and not installation.receipt:
        # A first installation that was killed: everything there is its own.
        remove_tree(root)
    ours = set()
    for name in listed(installation):
        path = os.path.join(root, name)
        remove_tree(path)
        ours.add(os.path.dirname(path))
    for folder, _, _ in os.walk(root, topdown=False):
        cache = os.path.join(folder, "__pycache__")
        if folder in ours and os.path.isdir(cache) and is_cache(cache):
            remove_tree(cache)
        if not os.listdir(folder):
            os.rmdir(folder)
    installation.finish_removal()


def main():
    module = AnsibleModule(
        argument_spec={
            "kind": {"type": "str", "choices": ["toolkit", "cudnn", "stack"], "required": True},
            "id": {"type": "str", "required": True},
            "without": {"type": "list", "elements": "str", "default": []},
            "state_dir": {"type": "path", "default": "/var/lib/gpufleet"},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        going = parts(params)
        path = going[-1].path
        there = [part for part in going if part.receipt or part.journal]
        answer = {"changed": bool(there), "path": path, "left": []}
        for part in there:
            users = needed_by(part, params["without"])
            if users:
                raise StateError(
                    "{} {} is needed by {}. Remove that first, or in the same run "
                    "(--stack {}).".format(part.kind, part.ident, ", ".join(users), users[0])
                )
        answer["diff"] = {
            "before": "".join("{0.kind} {0.ident} in {0.path}\n".format(p) for p in there),
            "after": "",
        }
        if not there or module.check_mode:
            module.exit_json(**answer)
        with host_lock(params["state_dir"]):
            for part in there:
                remove(part)
        answer["left"] = [os.path.join(path, name) for name in walk(path)] if path else []
        module.exit_json(**answer)
    except (StateError, OSError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
