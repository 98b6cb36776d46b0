#!/usr/bin/python
# Apache-2.0, see LICENSE
"""Remove an installation: exactly what its receipt lists."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_removal
short_description: Remove an installation by its receipt
description:
  - Removes the files and links of a receipt, and the directories that are empty then. Keeps and
    reports foreign files in the tree. Removes a toolkit together with its cuDNN.
  - Refuses while a stack on the host is bound to the installation, also a foreign one.
  - Removes the code that the driver compiled for a stack when it was verified.
  - The next run finishes an interrupted removal.
options:
  kind:
    description: The kind of the installation.
    type: str
    choices: [toolkit, cudnn, stack]
    required: true
  id:
    description: The receipt's id, such as V(11.8) or V(tensorflow-2.13.1).
    type: str
    required: true
  without:
    description: Names of stacks that are removed in the same run.
    type: list
    elements: str
    default: []
  stack_root:
    description: The directory of stacks, searched for foreign environments bound to the
      installation.
    type: path
    default: /opt/gpufleet/stacks
attributes:
  check_mode: {support: full}
  diff_mode: {support: full}
extends_documentation_fragment:
  - gpufleet.gpu.attributes
  - gpufleet.gpu.state_dir
author: ["The gpufleet developers (!UNKNOWN)"]
"""

EXAMPLES = r"""
- name: Remove CUDA 11.8
  gpufleet.gpu.gpu_removal:
    kind: toolkit
    id: "11.8"
"""

RETURN = r"""
path:
  description: The path of the installation; empty where there is no receipt.
  type: str
  returned: always
left:
  description: Foreign files that remain, or would in check mode.
  type: list
  elements: str
  returned: always
"""

import glob
import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.gpu.plugins.module_utils.file_errors import fail
from ansible_collections.gpufleet.gpu.plugins.module_utils.module import of_cudnn
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.host import Host
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.jit_cache import remove_cache
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.manifest import recorded_files
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.session import end_with_session
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.venvs import bound_to
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    Installation,
    StateError,
    host_lock,
    remove_tree,
    wait_for_downloads,
    walk,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.recreation import Recreation
from ansible_collections.gpufleet.gpu.plugins.module_utils.stack_contents import written_by_uv


def open_installation(params, kind, ident):
    """The installation that a receipt or a journal entry describes.

    Raises ``StateError`` where the record is there and does not say what belongs to it.
    """
    installation = Installation(kind, ident, "", "", params["state_dir"])
    known = installation.receipt or installation.journal or {"path": "", "version": ""}
    if installation.damaged or not {"path", "version"} <= set(known):
        file = installation.receipt_file if installation.damaged else installation.journal_file
        raise StateError(
            "{0} {1} cannot be removed: its record {2} cannot be used ({3}). Declare it, run "
            "./gpufleet provision, which writes the record again, and remove it then.".format(
                kind, ident, file, installation.damaged or "it lacks the path"
            )
        )
    installation.path, installation.version = known["path"], known["version"]
    return installation


def needed_by(installation, without, stack_root):
    """Stacks on this host that are bound to the installation: ours by name, others by path."""
    if installation.kind == "stack" or not installation.receipt:
        return []
    stacks = [other for other in installation.other_receipts() if other["kind"] == "stack"]
    places = [os.path.dirname(name) for name in glob.glob(os.path.join(stack_root, "*/pyvenv.cfg"))]
    others = [
        venv
        for venv in sorted(set(places) - {stack["path"] for stack in stacks})
        if (bound_to(Host({}), venv) or "").startswith(installation.path + os.sep)
    ]
    root = os.path.realpath(installation.path)
    ours = {os.path.join(root, entry["path"]) for entry in installation.receipt["manifest"]}
    return [
        other["id"]
        for other in stacks
        if other["id"] not in without
        and any(os.path.realpath(path) in ours for path in other["binding"])
    ] + others


def parts(params):
    """The installations to remove: cuDNN before the toolkit in whose tree it stands."""
    main = open_installation(params, params["kind"], params["id"])
    inside = {
        other["id"]
        for other in main.other_receipts() + main.other_journals()
        if main.kind == "toolkit" and other["kind"] == "cudnn" and other["path"] == main.path
    }
    return [*(open_installation(params, "cudnn", ident) for ident in sorted(inside)), main]


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
        names += written_by_uv(installation.path)
    return names


def is_cache(folder):
    """Return whether a directory holds compiled Python only, which no receipt lists."""
    return os.path.basename(folder) == "__pycache__" and all(
        name.endswith(".pyc") for name in os.listdir(folder)
    )


def added(installation, gone):
    """The files that people added to a tree: none of `gone`, and no Python compiled beside it."""
    if not installation.receipt and (installation.journal or {}).get("fresh"):
        # A first installation that was killed: everything there is its own.
        return []
    root, folders = installation.path, {os.path.dirname(name) for name in gone}

    def compiled(name):
        cache = os.path.dirname(name)
        return os.path.dirname(cache) in folders and is_cache(os.path.join(root, cache))

    names = [name for name in walk(root) if name not in gone and not compiled(name)]
    return [os.path.join(root, name) for name in names]


def remove_unlisted(installation):
    """Remove what a first installation left that was killed before it had a receipt."""
    root = installation.path
    if installation.kind != "cudnn":
        remove_tree(root)
        return
    remove_tree(os.path.join(root, ".gpufleet-cudnn-" + installation.ident))
    major = int(installation.ident.rpartition("-")[2])
    others = installation.others_manifest()
    for path in [os.path.join(root, name) for name in walk(root) if of_cudnn(name, major)]:
        if path not in others:
            remove_tree(path)


def remove(installation):
    """Remove what the receipt lists, then the directories that are empty."""
    installation.begin_removal()
    root = installation.path
    if installation.kind != "cudnn":
        # A repair that was stopped: what it moved aside is what the receipt lists.
        Recreation(root).undo()
    if installation.journal["fresh"]:
        # A first installation that was killed: everything there is its own.
        remove_unlisted(installation)
    ours = set()
    for name in listed(installation):
        path = os.path.join(root, name)
        remove_tree(path)
        ours.add(os.path.dirname(path))
    for folder, _, _ in os.walk(root, topdown=False):
        cache = os.path.join(folder, "__pycache__")
        if folder in ours and os.path.isdir(cache) and is_cache(cache):
            remove_tree(cache)
        # In a toolkit that stays, what is empty may be the toolkit's.
        if not os.listdir(folder) and (installation.kind != "cudnn" or folder in ours):
            # Somebody may have moved the tree, and put a link in its place.
            (os.unlink if os.path.islink(folder) else os.rmdir)(folder)
    installation.finish_removal()


def what_goes(params):
    """The parts that are there; raises `StateError` while something needs one of them."""
    there = [part for part in parts(params) if part.receipt or part.journal]
    for part in there:
        users = needed_by(part, params["without"], params["stack_root"])
        if users:
            same_run = ", or in the same run (--stack {})".format(users[0])
            raise StateError(
                "{} {} is needed by {}. Remove that first{}.".format(
                    part.kind,
                    part.ident,
                    ", ".join(users),
                    "" if os.path.isabs(users[0]) else same_run,
                )
            )
    return there


def main():
    module = AnsibleModule(
        argument_spec={
            "kind": {"type": "str", "choices": ["toolkit", "cudnn", "stack"], "required": True},
            "id": {"type": "str", "required": True},
            "without": {"type": "list", "elements": "str", "default": []},
            "stack_root": {"type": "path", "default": "/opt/gpufleet/stacks"},
            "state_dir": {"type": "path", "default": "/var/lib/gpufleet"},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        there = what_goes(params)
        path = there[-1].path if there else ""
        answer = {"changed": bool(there), "path": path, "left": []}
        answer["diff"] = {
            "before": "".join("{0.kind} {0.ident} in {0.path}\n".format(p) for p in there),
            "after": "",
        }
        if there and params["kind"] != "cudnn":  # which is in a tree with other components' files
            gone = {name for part in there for name in listed(part)}
            answer["left"] = added(there[-1], gone)
        if there and not module.check_mode:
            wait_for_downloads(params["state_dir"])
            end_with_session()
            with host_lock(params["state_dir"]):
                # Once more: another run may have been here while this one waited for the lock.
                for part in what_goes(params):
                    remove(part)
                    if part.kind == "stack":
                        remove_cache(part.ident)
        module.exit_json(**answer)
    except (StateError, OSError) as error:
        fail(module, error)


if __name__ == "__main__":
    main()
