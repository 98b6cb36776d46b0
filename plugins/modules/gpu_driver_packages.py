#!/usr/bin/python
# Apache-2.0, see LICENSE
"""Install, hold, roll back or remove the packages of a driver, in one transaction."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_driver_packages
short_description: Install and hold the packages of a driver
description:
  - Installs the packages and the headers of every installed kernel. On Debian and its family, holds
    and pins exactly the installed versions, and excludes them from unattended upgrades; on Red
    Hat's family, locks their versions (versionlock).
  - The transaction is simulated first, and refused if it would install, change or remove a kernel,
    remove other packages, install another branch, or mix two repositories.
  - When the installation fails, the former packages are restored. The next run finishes an
    interrupted one.
  - The packages of the installed and of the previous version are kept under
    C(/var/lib/gpufleet/driver), so that a rollback needs no repository.
options:
  state:
    description: V(previous) rolls back to the previous driver, V(absent) removes the driver.
    type: str
    choices: [present, previous, absent]
    default: present
  packages:
    description: Packages with the driver's version. The first one contains the kernel modules.
    type: list
    elements: str
    default: []
  helpers:
    description: Further packages with other versions.
    type: list
    elements: str
    default: []
  branch:
    description: The branch that the packages must have, such as V(535).
    type: str
  version:
    description: The exact version that the packages must have; the repository's by default.
    type: str
  flavour:
    description: The kind of kernel modules.
    type: str
    choices: [open, proprietary]
  source:
    description: The source of the packages, recorded in the receipt.
    type: str
  repository:
    description: The repository, recorded in the receipt.
    type: dict
  pin:
    description: The preferred repository, as in apt's preferences.
    type: str
  label:
    description: The prefix of that repository's labels. A package of the driver from another
      repository is refused. Empty accepts any.
    type: str
    default: ""
  space_mib:
    description: Free space required before the installation, in MiB by directory.
    type: dict
    default: {}
  patience_s:
    description: How long to wait for another package manager, in seconds.
    type: int
    default: 300
attributes:
  check_mode: {support: full}
  diff_mode: {support: full}
extends_documentation_fragment:
  - gpufleet.gpu.attributes
  - gpufleet.gpu.state_dir
author: ["The gpufleet developers (!UNKNOWN)"]
"""

EXAMPLES = r"""
- name: Install branch 535
  gpufleet.gpu.gpu_driver_packages:
    packages: [nvidia-kernel-dkms, libcuda1, nvidia-smi]
    helpers: [nvidia-persistenced]
    branch: "535"
    flavour: proprietary
    source: distro
    pin: release o=Debian
    label: Debian

- name: Roll back to the previous version
  gpufleet.gpu.gpu_driver_packages:
    state: previous
"""

RETURN = r"""
version:
  description: The version after the run; null where none is installed, or check mode cannot know
    it.
  type: str
  returned: success
flavour:
  description: The kind of its kernel modules; null where no driver is installed.
  type: str
  returned: success
because:
  description: The differences that were found.
  type: list
  elements: str
  returned: success
"""

import contextlib
import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.gpu.plugins.module_utils.driver_apt import (
    AptDriver,
    final_flavour,
    reasons,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.driver_dnf import DnfDriver
from ansible_collections.gpufleet.gpu.plugins.module_utils.file_errors import fail
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import StateError, host_lock


def lines(packages, because):
    """Return one side of the module's diff: the packages with versions, then the differences."""
    listed = ["{} {}".format(name, packages[name]) for name in sorted(packages)]
    return "".join(line + "\n" for line in [*listed, *because])


def main():
    texts = ("branch", "version", "source", "pin")
    module = AnsibleModule(
        argument_spec={
            "state": {
                "type": "str",
                "choices": ["present", "previous", "absent"],
                "default": "present",
            },
            "packages": {"type": "list", "elements": "str", "default": []},
            "helpers": {"type": "list", "elements": "str", "default": []},
            **{name: {"type": "str"} for name in texts},
            "flavour": {"type": "str", "choices": ["open", "proprietary"]},
            "label": {"type": "str", "default": ""},
            "repository": {"type": "dict"},
            "space_mib": {"type": "dict", "default": {}},
            "patience_s": {"type": "int", "default": 300},
            "state_dir": {"type": "path", "default": "/var/lib/gpufleet"},
        },
        required_if=[("state", "present", ["packages", "branch", "flavour", "source"])],
        supports_check_mode=True,
    )
    state = module.params["state"]
    kind = AptDriver if os.path.exists("/var/lib/dpkg/status") else DnfDriver
    if kind is DnfDriver and not module.get_bin_path("dnf"):
        module.fail_json(
            msg="This host has neither dpkg nor dnf: gpufleet installs drivers with these. Declare "
            "gpu_driver: {source: runfile}, or {source: preinstalled}."
        )
    try:
        driver = kind(module)
        before = driver.installed()
        because = reasons(driver, state)
        answer = {"changed": bool(because), "because": because}
        answer["version"] = (driver.receipt or {}).get("version")
        if because:
            lock = contextlib.nullcontext() if module.check_mode else host_lock(driver.state_dir)
            with lock:
                # Another run may have changed the driver while this one waited for the lock.
                driver = kind(module)
                answer["version"] = getattr(driver, state)(module.check_mode)
        answer["flavour"] = final_flavour(driver, state)
        after = driver.after if module.check_mode else driver.installed()
        answer["diff"] = {"before": lines(before, because), "after": lines(after, [])}
        module.exit_json(**answer)
    except (StateError, OSError) as error:
        fail(module, error)


if __name__ == "__main__":
    main()
