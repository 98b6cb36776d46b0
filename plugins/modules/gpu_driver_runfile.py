#!/usr/bin/python
# Apache-2.0, see LICENSE
"""Install a driver from NVIDIA's runfile, and remove it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_driver_runfile
short_description: Install a driver from NVIDIA's runfile
description:
  - Runs NVIDIA's installer silently, with DKMS and without desktop components. The runfile must be
    on the host and have the declared checksum.
  - Refuses where packages of a driver are installed, since each would overwrite the other's files.
  - The next run finishes an interrupted one. The installer itself removes the driver of another
    runfile.
options:
  state:
    description: V(absent) runs the driver's uninstaller.
    type: str
    choices: [present, absent]
    default: present
  version:
    description: The driver's exact version.
    type: str
  flavour:
    description: The kind of kernel modules to build.
    type: str
    choices: [open, proprietary]
  runfile:
    description: The runfile on the host.
    type: path
  checksum:
    description: The runfile's checksum, as C(sha256:...).
    type: str
  tmpdir:
    description: Where the runfile is unpacked; must not be mounted noexec.
    type: path
    default: /tmp
attributes:
  check_mode: {support: full}
  diff_mode: {support: full}
extends_documentation_fragment:
  - gpufleet.gpu.attributes
  - gpufleet.gpu.state_dir
author: ["The gpufleet developers (!UNKNOWN)"]
"""

EXAMPLES = r"""
- name: Install 580.65.06
  gpufleet.gpu.gpu_driver_runfile:
    version: 580.65.06
    flavour: open
    runfile: /var/cache/gpufleet/artifacts/NVIDIA-Linux-x86_64-580.65.06.run
    checksum: sha256:0123...
"""

RETURN = r"""
version:
  description: The version after the run; null where none is installed.
  type: str
  returned: success
flavour:
  description: The kind of its kernel modules.
  type: str
  returned: success
"""

import glob

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.gpu.plugins.module_utils import pending
from ansible_collections.gpufleet.gpu.plugins.module_utils.dkms import remove_half_added
from ansible_collections.gpufleet.gpu.plugins.module_utils.file_errors import fail
from ansible_collections.gpufleet.gpu.plugins.module_utils.module import check_artifact
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.host import Host
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.processes import NoAnswerError
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.sections.packages import (
    DRIVER_PACKAGE,
    installed_packages,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.owned import refuse_foreign
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    Installation,
    StateError,
    host_lock,
)

LOG = "/var/log/gpufleet-nvidia-installer.log"
LIBRARIES = ("/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/lib")


def options(flavour, version):
    """The installer's option for the kind of kernel modules, which changed with branch 560."""
    if int(version.partition(".")[0]) >= 560:
        return ["--kernel-module-type=" + flavour]
    return ["-m=kernel-open"] if flavour == "open" else []


def stands(version):
    """Return whether the driver's library of a version is there."""
    return any(glob.glob("{}/libcuda.so.{}".format(folder, version)) for folder in LIBRARIES)


class Runfile:
    """The driver of a runfile."""

    def __init__(self, module):
        self.module, self.params = module, module.params
        self.installation = Installation(
            "driver", "driver", "/", self.params["version"], self.params["state_dir"]
        )

    def lacking(self):
        """The first difference from the declaration, as text; None if there is none."""
        receipt = self.installation.receipt
        if self.installation.half_done:
            return "an earlier run was stopped half-way"
        if receipt is None:
            return "no driver was installed by gpufleet"
        found = (receipt["source"], receipt["version"], receipt["module"])
        wanted = ("runfile", self.params["version"], self.params["flavour"])
        if found != wanted:
            return "{} {} {} is installed".format(*found)
        return None if stands(self.params["version"]) else "libcuda.so is gone"

    def run(self, lock, *words):
        """Run the installer or the uninstaller; raises with the end of its log.

        It holds the host's lock as well: it goes on where this module is killed.
        """
        refuse_foreign([word for word in words if "log-file" not in word])
        status, out, err = self.module.run_command([*words, "--silent"], pass_fds=[lock])
        if status:
            raise StateError(
                "{} ended with status {}: {}. {} has the rest.".format(
                    words[0], status, error_lines(out + err), LOG
                )
            )

    def present(self, lock):
        """Install."""
        packages = [name for name in installed_names() if DRIVER_PACKAGE.match(name)]
        if packages:
            raise StateError(
                "Packages of a driver are installed ({}), and a runfile would overwrite their "
                "files. Remove them first: ./gpufleet remove --driver.".format(packages[0])
            )
        version, path = self.params["version"], self.params["runfile"]
        check_artifact(path, self.params["checksum"])
        self.installation.begin(fresh=not stands(version), source="runfile")
        pending.require("driver {} is being installed".format(version), self.installation.state_dir)
        remove_half_added()
        self.run(
            lock,
            "sh",
            path,
            "--dkms",
            "--no-questions",
            "--ui=none",
            "--no-opengl-files",
            "--no-rebuild-initramfs",
            "--log-file-name=" + LOG,
            "--tmpdir=" + self.params["tmpdir"],
            *options(self.params["flavour"], version),
        )
        if not stands(version):
            raise StateError(
                "the installer said nothing, and left no libcuda.so.{}.".format(version)
            )
        self.installation.finish(
            "runfile",
            [],
            branch=version.partition(".")[0],
            module=self.params["flavour"],
            packages={},
            requested=[],
            repository=None,
            previous=None,
            checksum=self.params["checksum"],
        )

    def absent(self, lock):
        """Remove, with the uninstaller that stands beside it."""
        self.installation.begin_removal()
        self.run(lock, self.module.get_bin_path("nvidia-uninstall", True))
        self.installation.finish_removal()


def installed_names():
    """The names of the installed packages. Raises StateError where they cannot be listed."""
    try:
        return [row["name"] for row in installed_packages(Host({}))[0]]
    except (OSError, RuntimeError, NoAnswerError) as error:
        raise StateError("The installed packages cannot be listed: {}".format(error)) from None


def error_lines(text):
    """The installer's own errors: those in its log, or its last output."""
    try:
        with open(LOG, errors="replace") as stream:
            errors = [line.strip() for line in stream if line.startswith("ERROR:")]
    except OSError:
        errors = []
    return " ".join(errors[:3] or text.strip().splitlines()[-3:]).rstrip(".")


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "version": {"type": "str"},
            "flavour": {"type": "str", "choices": ["open", "proprietary"]},
            "runfile": {"type": "path"},
            "checksum": {"type": "str"},
            "tmpdir": {"type": "path", "default": "/tmp"},
            "state_dir": {"type": "path", "default": "/var/lib/gpufleet"},
        },
        required_if=[("state", "present", ["version", "flavour", "runfile", "checksum"])],
        supports_check_mode=True,
    )
    present = module.params["state"] == "present"
    try:
        driver = Runfile(module)
        receipt = driver.installation.receipt
        if present:
            because = driver.lacking()
        else:
            known = receipt or driver.installation.journal or {}
            because = "it is installed" if known.get("source") == "runfile" else None
        before = "driver {version} from {source}\n".format(**receipt) if receipt else ""
        after = "driver {} from runfile\n".format(module.params["version"]) if present else ""
        answer = {
            "changed": bool(because),
            "version": module.params["version"],
            "flavour": module.params["flavour"],
            "diff": {"before": before, "after": after if because else before},
        }
        if because and not module.check_mode:
            with host_lock(module.params["state_dir"]) as lock:
                getattr(Runfile(module), module.params["state"])(lock)
        module.exit_json(**answer)
    except (StateError, OSError) as error:
        fail(module, error)


if __name__ == "__main__":
    main()
