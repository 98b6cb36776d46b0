#!/usr/bin/python
# Apache-2.0, see LICENSE
"""Write exactly the declared text files to a host, and remove earlier ones."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_text_files
short_description: Write exactly the declared text files
description:
  - Writes the given files, and removes those of an earlier run that are no longer declared,
    together with the directories that it created and that are empty then. Writes a receipt.
  - Never overwrites a foreign file, unless its text is the same.
  - The next run finishes an interrupted one.
options:
  files:
    description: All files that the host must have.
    type: list
    elements: dict
    suboptions:
      path:
        description: The file's path.
        type: path
        required: true
      text:
        description: The file's contents.
        type: str
        required: true
      mode:
        description: The file's mode.
        type: str
        default: "0644"
      for:
        description: The component that the file belongs to, such as V(toolkit 11.8); none for
          shared files.
        type: str
  without:
    description: Removed components, such as V(toolkit 11.8), instead of O(files). Removes their
      files, and with the last component the shared files.
    type: list
    elements: str
attributes:
  check_mode: {support: full}
  diff_mode: {support: full}
extends_documentation_fragment:
  - gpufleet.gpu.attributes
  - gpufleet.gpu.repair
  - gpufleet.gpu.state_dir
author: ["The gpufleet developers (!UNKNOWN)"]
"""

EXAMPLES = r"""
- name: Write the files of the plan
  gpufleet.gpu.gpu_text_files:
    files: "{{ gpu_plan.environment }}"

- name: Remove the files of a toolkit
  gpufleet.gpu.gpu_text_files:
    without: [toolkit 11.8]
"""

RETURN = r"""
written:
  description: Files that were written.
  type: list
  elements: str
  returned: always
removed:
  description: Files that were removed.
  type: list
  elements: str
  returned: always
"""

import hashlib
import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.gpu.plugins.module_utils.file_errors import fail
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.manifest import (
    compare_manifest,
    manifest_of,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    Installation,
    StateError,
    host_lock,
    make_folder,
    write_atomically,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.recreation import (
    OPTION,
    RECREATE,
    REINSTALL,
    set_aside,
)


class Work:
    """The existing files, those to write, and those to remove."""

    def __init__(self, params):
        self.installation = Installation("environment", "files", "/", "1", params["state_dir"])
        receipt, journal = self.installation.receipt, self.installation.journal
        # A damaged record has no texts: what it knew is known no more.
        known = [document for document in (receipt, journal) if document]
        # {path: {"sha256", "for"}} of what an earlier run wrote, or was about to.
        self.ours = {path: row for document in known for path, row in texts_of(document).items()}
        # Directories that gpufleet created. Those that existed before are never removed.
        self.folders = {folder for document in known for folder in document.get("folders") or []}
        if params["files"] is None:
            self.planned = {}
            self.texts = remaining(texts_of(receipt), params["without"])
        else:
            self.planned = {row["path"]: row for row in params["files"]}
            self.texts = {path: entry(row) for path, row in self.planned.items()}
        self.changed = {
            os.path.join("/", row["path"])
            for row in compare_manifest("/", receipt["manifest"] if receipt else [])
        }
        self.again = params["repair"] in (REINSTALL, RECREATE)
        self.write = [path for path in sorted(self.planned) if self.differs(path)]
        self.remove = sorted(path for path in set(self.ours) - set(self.texts))

    @property
    def needed(self):
        """True if anything must change, even if only the receipt."""
        receipt = self.installation.receipt
        recorded = texts_of(receipt)
        return bool(self.write) or self.installation.half_done or recorded != self.texts

    def differs(self, path):
        """Return whether a file must be written; raises if a foreign file is at its path."""
        row = self.planned[path]
        there = read(path)
        if path not in self.ours and os.path.lexists(path) and there != row["text"]:
            raise StateError(
                "{0} already exists and was not written by gpufleet, so it is not changed. "
                "Move it away (mv {0} {0}.old) and run again.".format(path)
            )
        if self.again or there != row["text"]:
            return True
        return resolved(path) in self.changed or not has_mode(path, row)

    def diff(self):
        """Each file that changes, before and after."""
        after = {path: self.planned[path]["text"] for path in self.write}
        after.update(dict.fromkeys(self.remove, ""))
        return [
            {
                "before": read(path) or "",
                "after": after[path],
                "before_header": path,
                "after_header": path,
            }
            for path in sorted(after)
        ]

    def do(self):
        """Write and remove files, and record that; without files no receipt remains."""
        for path in self.write:
            self.folders |= missing_folders(path)
        entered = {"texts": dict(self.ours, **self.texts), "folders": sorted(self.folders)}
        if self.installation.half_done:
            # The files that a killed run was about to write are still ours, and so are these.
            self.installation.journal.update(entered)
        self.installation.begin(fresh=False, **entered)
        for path in self.write:
            if os.path.isdir(path) and not os.path.islink(path):
                set_aside(self.installation, "/", [os.path.relpath(path, "/")])
            make_folder(os.path.dirname(path))
            write_atomically(path, self.planned[path]["text"], int(self.planned[path]["mode"], 8))
        for path in self.remove:
            if os.path.lexists(path):
                os.unlink(path)
        left = []
        # The deepest first.
        for folder in sorted(self.folders, reverse=True):
            if os.path.isdir(folder) and not os.listdir(folder):
                os.rmdir(folder)
            elif os.path.isdir(folder):
                left.append(folder)
        if not self.texts:
            self.installation.finish_removal()
            return
        self.installation.finish(
            {"file": "plan"}, self.manifest(), texts=self.texts, folders=sorted(left)
        )

    def manifest(self):
        """The present files; those that were not read are copied from the receipt."""
        if self.planned:
            paths = [os.path.relpath(path, "/") for path in self.texts]
            entries = manifest_of("/", paths)
            digests = {resolved(path): row["sha256"] for path, row in self.texts.items()}
            return [dict(row, sha256=digests[os.path.join("/", row["path"])]) for row in entries]
        kept = {resolved(path) for path in self.texts}
        rows = self.installation.receipt["manifest"]
        return [row for row in rows if os.path.join("/", row["path"]) in kept]


def entry(row):
    """The data in the receipt on a file beyond its manifest."""
    return {"sha256": hashlib.sha256(row["text"].encode()).hexdigest(), "for": row["for"]}


def texts_of(document):
    """The rows of a record by path; a damaged one has none."""
    return (document or {}).get("texts") or {}


def remaining(texts, without):
    """The rows that remain without some users: none, if only rows without a user would remain."""
    kept = {path: row for path, row in texts.items() if row["for"] not in without}
    return kept if any(row["for"] for row in kept.values()) else {}


def read(path):
    """A plain file's text; None where there is none."""
    if os.path.islink(path) or not os.path.isfile(path):
        return None
    with open(path, errors="replace") as stream:
        return stream.read()


def has_mode(path, row):
    """Return whether a file has the declared mode."""
    return os.stat(path).st_mode & 0o7777 == int(row["mode"], 8)


def resolved(path):
    """The path of a file with its directory's links resolved, as in the manifest."""
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def missing_folders(path):
    """The directories that have to be made for a file."""
    folder, found = os.path.dirname(path), set()
    while not os.path.isdir(folder):
        found.add(folder)
        folder = os.path.dirname(folder)
    return found


def main():
    file = {
        "path": {"type": "path", "required": True},
        "text": {"type": "str", "required": True},
        "mode": {"type": "str", "default": "0644"},
        "for": {"type": "str"},
    }
    module = AnsibleModule(
        argument_spec={
            "files": {"type": "list", "elements": "dict", "options": file},
            "without": {"type": "list", "elements": "str"},
            "repair": OPTION,
            "state_dir": {"type": "path", "default": "/var/lib/gpufleet"},
        },
        mutually_exclusive=[("files", "without")],
        required_one_of=[("files", "without")],
        supports_check_mode=True,
    )
    try:
        work = Work(module.params)
        answer = {
            "changed": work.needed,
            "written": work.write,
            "removed": work.remove,
            "diff": work.diff(),
        }
        if work.needed and not module.check_mode:
            with host_lock(module.params["state_dir"]):
                # Another run may have been at it while this one waited for the lock.
                Work(module.params).do()
        module.exit_json(**answer)
    except (StateError, OSError) as error:
        fail(module, error)


if __name__ == "__main__":
    main()
