# Apache-2.0, see LICENSE
"""Copy files of the control machine to a host, all in one go: the control machine's part.

Reads the files; the module of the same name compares and places them on the host.
"""

from __future__ import annotations

import hashlib
import os

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

BLOCK = 1 << 20


def sha256(path):
    """A file's checksum, as ``sha256:HEX``."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(BLOCK):
            digest.update(block)
    return "sha256:" + digest.hexdigest()


def described(file, arguments):
    """A file as the module takes it, and ``src``; raises where it cannot be read."""
    file = {"src": file} if isinstance(file, str) else dict(file)
    source = os.path.expanduser(file["src"])
    try:
        return {
            "src": source,
            "path": os.path.join(file.get("dest", arguments["dest"]), os.path.basename(source)),
            "mode": file.get("mode", arguments.get("mode", "0644")),
            "size": os.stat(source).st_size,
            "checksum": file.get("checksum") or sha256(source),
            "compare": file.get("compare", True),
        }
    except OSError as error:
        raise AnsibleActionFail(
            f"{source} on the control machine cannot be read: {error.strerror}"
        ) from error


class ActionModule(ActionBase):
    """Ask the host which files it lacks, stage them in a temporary directory, and place them."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset(["files", "dest", "mode"])

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        self.task_vars = task_vars
        files = [described(file, self._task.args) for file in self._task.args["files"]]
        answer = self.ask(files)
        if not self._task.check_mode and answer.get("wanted"):
            wanted = [file for file in files if file["path"] in answer["wanted"]]
            try:
                answer = self.ask([self.stage(*each) for each in enumerate(wanted)])
            finally:
                self._remove_tmp_path(self._connection._shell.tmpdir)
        return dict(result, **answer)

    def ask(self, files):
        """Run the module; returns its result."""
        known = [{key: file[key] for key in file if key != "src"} for file in files]
        return self._execute_module(
            "gpufleet.gpu.gpu_delivery",
            module_args=dict(self._task.args, files=known),
            task_vars=self.task_vars,
        )

    def stage(self, number, file):
        """Copy a file to the connection's temporary directory; returns it with that path."""
        shell = self._connection._shell
        if shell.tmpdir is None:
            self._make_tmp_path()
        staged = shell.join_path(shell.tmpdir, str(number))
        self._transfer_file(file["src"], staged)
        return dict(file, staged=staged)
