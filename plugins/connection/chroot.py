# Apache-2.0, see LICENSE
"""Run Ansible's modules in the directory of an image that is being built."""

from __future__ import annotations

DOCUMENTATION = r"""
name: chroot
short_description: Run tasks in the directory of an image
description:
  - Runs every command with the image's directory as its root, without a kernel, a service manager
    or a GPU. Each command has mounts of its own, which the kernel removes with it.
  - C(gpufleet provision --chroot) uses it. Needs root on the control machine, and Python in the
    image.
author: ["The gpufleet developers (!UNKNOWN)"]
extends_documentation_fragment:
  - connection_pipelining
options:
  directory:
    description: The image's directory on the control machine.
    type: path
    required: true
    vars:
      - name: ansible_host
  become_success_timeout:
    description: As of the connection P(ansible.builtin.local#connection).
    type: int
    default: 10
  become_strip_preamble:
    description: As of the connection P(ansible.builtin.local#connection).
    type: bool
    default: true
"""

import shlex
import subprocess
from pathlib import Path

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection.local import Connection as Local
from ansible_collections.gpufleet.gpu.plugins.plugin_utils.control import require_package

try:
    from gpufleet.fleet.inventory.image import launcher
except ImportError as error:
    IMPORT_ERROR = error
else:
    IMPORT_ERROR = None


class Connection(Local):
    """The local connection, each command of which runs in the image."""

    transport = "gpufleet.gpu.chroot"

    def words(self, command):
        """The words of a shell's command in the image."""
        require_package(IMPORT_ERROR)
        return [*launcher(Path(self.get_option("directory"))), "/bin/sh", "-c", command]

    def exec_command(self, cmd, in_data=None, sudoable=True):
        """Run a command in the image; returns its exit status, output and standard error."""
        return super().exec_command(shlex.join(self.words(cmd)), in_data, sudoable)

    def put_file(self, in_path, out_path):
        """Copy a file into the image, by a program of the image: its links lead within it."""
        with open(in_path, "rb") as stream:
            self.transfer(f"cat >{shlex.quote(out_path)}", out_path, stdin=stream)

    def fetch_file(self, in_path, out_path):
        """Copy a file of the image to the control machine."""
        with open(out_path, "wb") as stream:
            self.transfer(f"cat {shlex.quote(in_path)}", in_path, stdout=stream)

    def transfer(self, command, path, **streams):
        """Run a command that copies a file; raises where it fails."""
        done = subprocess.run(
            self.words(command), stderr=subprocess.PIPE, text=True, check=False, **streams
        )
        if done.returncode:
            raise AnsibleConnectionFailure(f"{path} in the image: {done.stderr.strip()}")
