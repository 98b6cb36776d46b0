#!/usr/bin/python
# Apache-2.0, see LICENSE
"""Build the driver's kernel modules for every kernel that this host can boot."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_driver_modules
short_description: Build the driver's kernel modules for every installed kernel
description:
  - Checks that every kernel with an image, and the running one, has the modules of the declared
    version and kind, and builds missing or wrong ones with DKMS. Where a module is damaged, it is
    built from its source, and not installed from what DKMS keeps of an earlier build.
  - Rebuilds an initramfs that would load nouveau or another version of the driver, and checks its
    contents afterwards.
  - In a container the running kernel belongs to the machine and is ignored.
options:
  version:
    description: The driver's exact version.
    type: str
    required: true
  flavour:
    description: The kind of kernel modules, recognised by their licence.
    type: str
    choices: [open, proprietary]
    required: true
  initramfs:
    description: The command that rebuilds the initramfs of C({kernel}).
    type: list
    elements: str
    default: [update-initramfs, -u, -k, "{kernel}"]
attributes:
  check_mode: {support: full}
  diff_mode: {support: full}
extends_documentation_fragment:
  - gpufleet.gpu.attributes
author: ["The gpufleet developers (!UNKNOWN)"]
"""

EXAMPLES = r"""
- name: Build missing modules
  gpufleet.gpu.gpu_driver_modules:
    version: 535.261.03
    flavour: proprietary
"""

RETURN = r"""
kernels:
  description: Versions of the checked kernels.
  type: list
  elements: str
  returned: always
built:
  description: Kernels whose modules were built, or would be in check mode.
  type: list
  elements: str
  returned: always
initramfs:
  description: Kernels whose initramfs was rebuilt, or would be in check mode.
  type: list
  elements: str
  returned: always
cards:
  description: The number of NVIDIA GPUs on the PCI bus, without those given to virtual machines.
  type: int
  returned: always
"""

import os
import re

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.gpu.plugins.module_utils.dkms import (
    TREE,
    end_of_log,
    forget_build,
    free_mib,
    has_whole_build,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.driver_rules import (
    DEBIAN_HEADERS,
    REDHAT_HEADERS,
    without_headers,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.file_errors import fail
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.host import Host
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.pci_drivers import given_away
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.sections.driver import dkms_of
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.sections.gpus import section_gpus
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.sections.kernel import (
    container_of,
    installed_kernels,
    running_kernel,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import StateError, host_lock

# The licence that modinfo tells: the proprietary modules have NVIDIA's own.
PROPRIETARY = "NVIDIA"
# A build that ends with less than this had no room.
FULL_MIB = 16


class Modules:
    """The modules of each kernel, and those of the declared driver that it lacks."""

    def __init__(self, module):
        self.module, self.params = module, module.params
        self.dnf = not os.path.exists("/var/lib/dpkg/status")
        # In mode full the probe reads each initramfs.
        self.host = Host({"mode": "full"})
        self.probe()

    def probe(self):
        """Read the present state of the kernels."""
        running = None if container_of(self.host) else running_kernel(self.host)
        self.kernels = {
            row["version"]: row for row in installed_kernels(self.host) if is_judged(row, running)
        }

    def named_by(self, judge):
        """Pairs of a kernel and the fault that a judge finds in it, where it finds one."""
        return [(kernel, why) for kernel, row in self.kernels.items() if (why := judge(row))]

    def wrong(self, row):
        """The fault of a kernel's modules, in words; None where there is none."""
        main = next((each for each in row["modules"] if each["name"] == "nvidia"), None)
        if main is None:
            return "has no module of the driver"
        if broken := damaged(row):
            return "cannot load {} ({})".format(broken["path"], broken["error"])
        if main["version"] != self.params["version"]:
            return "has the module of {}".format(main["version"])
        found = "proprietary" if main["license"] == PROPRIETARY else "open"
        if main["license"] and found != self.params["flavour"]:
            return "has the {} module".format(found)
        return None

    def stale(self, row):
        """Why a kernel's initramfs has to be rebuilt, in words; None where it has not."""
        if row["initramfs_nouveau"]:
            return "would load nouveau"
        if not row["initramfs"] or not row["modules"]:
            return None
        whole = [each["path"] for each in row["modules"] if not each.get("error")]
        newest = max([os.stat(path).st_mtime for path in whole], default=0)
        if os.stat(row["initramfs"]).st_mtime >= newest:
            return None
        return "has the driver of before" if self.has_driver(row["initramfs"]) else None

    def has_driver(self, initramfs):
        """Return whether an initramfs carries modules of the driver at all."""
        lister = self.module.get_bin_path("lsinitramfs") or self.module.get_bin_path(
            "lsinitrd", True
        )
        _, listing, _ = self.module.run_command([lister, initramfs])
        return bool(re.search(r"/nvidia[^/]*\.ko", listing))

    def build(self, kernel, lock):
        """Have DKMS build and install the modules for a kernel; raises when it cannot."""
        row, version = self.kernels[kernel], self.params["version"]
        if not row["headers"]:
            names = REDHAT_HEADERS if self.dnf else DEBIAN_HEADERS
            raise StateError(without_headers(kernel, names))
        known = [row for row in dkms_of(self.host) if row["version"] == version]
        trees = sorted({entry["module"] for entry in known})
        if not trees:
            raise StateError(
                "kernel {}: DKMS does not know the driver {}, so its package with the modules is "
                "damaged. Reinstall that ({}), and run again.".format(
                    kernel,
                    version,
                    "dnf reinstall 'kmod-nvidia*'" if self.dnf else "apt-get install --reinstall",
                )
            )
        dkms = self.module.get_bin_path("dkms", True)
        installed = {
            entry["module"]
            for entry in known
            if entry["kernel"] == kernel and entry["state"] == "installed"
        }
        for tree in trees:
            named = "{}/{}".format(tree, version)
            # DKMS does not install what it takes for installed: before 3.0.7 not with --force.
            if tree in installed:
                self.module.run_command([dkms, "uninstall", named, "-k", kernel], pass_fds=[lock])
            place = (tree, version, kernel, self.host.path(TREE))
            # A build that DKMS keeps may be as damaged as the installed files.
            if damaged(row) or not has_whole_build(*place):
                forget_build(*place)
            words = [dkms, "install", "--force", named, "-k", kernel]
            status, out, err = self.module.run_command(words, pass_fds=[lock])
            if status:
                raise StateError(self.build_error(kernel, tree, out + err))

    def build_error(self, kernel, tree, output):
        """Why a build failed, in one message."""
        free = free_mib("/var/lib/dkms")
        if free < FULL_MIB or "No space left" in output:
            cause = "the disk of /var/lib/dkms is full ({} MiB free)".format(free)
            remedy = "make room there"
        else:
            cause = end_of_log(output) or output.strip().splitlines()[-1]
            remedy = "see in the log why, or declare a branch that knows that kernel"
        return "kernel {}: DKMS could not build {}: {}. Remedy: {}, and run again.".format(
            kernel, tree, cause, remedy
        )

    def rebuild(self, kernel, lock):
        """Rebuild a kernel's initramfs."""
        words = [word.format(kernel=kernel) for word in self.params["initramfs"]]
        status, out, err = self.module.run_command(words, pass_fds=[lock])
        if status:
            raise StateError(
                "kernel {}: {} failed: {}".format(
                    kernel, " ".join(words), (out + err).strip().splitlines()[-1]
                )
            )


def damaged(row):
    """The first of a kernel's modules by a name, of those that CUDA needs, that is not loadable."""
    for name in ("nvidia", "nvidia-uvm"):
        first = next((each for each in row["modules"] if each["name"] == name), {})
        if first.get("error"):
            return first
    return None


def is_judged(row, running):
    """Return whether a kernel can start this host; RHEL's rescue image has no modules."""
    return (row["image"] and "rescue" not in row["version"]) or row["version"] == running


def own_cards(host):
    """How many GPUs the driver can have: not those that are passed to virtual machines."""
    return sum(not given_away(card["driver"]) for card in section_gpus(host)["pci"])


def carry_out(modules, kernels, act):
    """Do something for several kernels, each of them; raises with all that went wrong.

    The programs that do it hold the host's lock as well: they go on where this one is killed.
    """
    wrong = []
    with host_lock() as lock:
        for kernel, _ in kernels:
            try:
                act(kernel, lock)
            except StateError as error:
                wrong.append(str(error))
    modules.probe()
    if wrong:
        raise StateError("\n".join(wrong))


def main():
    module = AnsibleModule(
        argument_spec={
            "version": {"type": "str", "required": True},
            "flavour": {"type": "str", "choices": ["open", "proprietary"], "required": True},
            "initramfs": {
                "type": "list",
                "elements": "str",
                "default": ["update-initramfs", "-u", "-k", "{kernel}"],
            },
        },
        supports_check_mode=True,
    )
    try:
        modules = Modules(module)
        lacking = modules.named_by(modules.wrong)
        if lacking and not module.check_mode:
            carry_out(modules, lacking, modules.build)
        still = modules.named_by(modules.wrong)
        if still and not module.check_mode:
            raise StateError(
                "\n".join(
                    "kernel {} {} still, though DKMS says that it installed {}. See what stands in "
                    "/lib/modules/{} beside updates/dkms or extra, and take it away.".format(
                        kernel, why, module.params["version"], kernel
                    )
                    for kernel, why in still
                )
            )
        outdated = modules.named_by(modules.stale)
        if outdated and not module.check_mode:
            carry_out(modules, outdated, modules.rebuild)
            left = modules.named_by(modules.stale)
            if left:
                raise StateError(
                    "\n".join(
                        "initramfs of kernel {} {} still, though it was rebuilt. See which file in "
                        "/etc/initramfs-tools or /etc/dracut.conf.d brings it in.".format(*each)
                        for each in left
                    )
                )
        changes = ["kernel {} {}".format(*each) for each in lacking]
        changes += ["the initramfs of {} {}".format(*each) for each in outdated]
        module.exit_json(
            changed=bool(changes),
            kernels=list(modules.kernels),
            built=[kernel for kernel, _ in lacking],
            initramfs=[kernel for kernel, _ in outdated],
            cards=own_cards(modules.host),
            diff={"before": "".join(each + "\n" for each in changes), "after": ""},
        )
    except (StateError, OSError) as error:
        fail(module, error)


if __name__ == "__main__":
    main()
