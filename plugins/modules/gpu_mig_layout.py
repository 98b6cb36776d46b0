#!/usr/bin/python
# Apache-2.0, see LICENSE
"""Configure the declared MIG instances with nvidia-smi."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_mig_layout
short_description: Configure MIG instances
description:
  - Enables or disables MIG, and creates exactly the declared instances, each with one compute
    instance. Does not change a GPU that has them, or that the layout does not name.
  - Instances in use cannot be removed. No process is killed; the error names the GPU, and the next
    run continues. A failure is reported as C(changed) where other GPUs were changed before.
  - Before it changes a GPU, it waits until the units that write the specification of the GPUs for
    container engines have ended, since they hold the GPUs.
  - Where a GPU is in use, or belongs to a virtual machine, nvidia-smi leaves the mode pending until
    the next reset of the GPU. The module then warns and returns RV(pending); the host has to
    be rebooted, or the programs ended, before the next run.
options:
  layout:
    description: Profiles such as V(3g.40gb) by GPU index, or for C(all); an empty list disables
      MIG.
    type: dict
    required: true
attributes:
  check_mode: {support: full}
  diff_mode: {support: full}
extends_documentation_fragment:
  - gpufleet.gpu.attributes
author: ["The gpufleet developers (!UNKNOWN)"]
"""

EXAMPLES = r"""
- name: Create two instances on each GPU
  gpufleet.gpu.gpu_mig_layout:
    layout: {all: [3g.40gb, 3g.40gb]}
"""

RETURN = r"""
because:
  description: Why MIG modes are pending, and what to do; empty where none is.
  type: str
  returned: always
gpus:
  description: Indexes of the GPUs that were changed, or would be in check mode.
  type: list
  elements: int
  returned: always
instances:
  description: The declared profiles of each GPU that has any, by index.
  type: dict
  returned: always
pending:
  description: Indexes of the GPUs whose declared MIG mode waits for the next reset of the GPU.
  type: list
  elements: int
  returned: always
"""

import re
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.gpu.plugins.module_utils.file_errors import fail
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.holders import holders_of
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.host import Host
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.mig import QUERY, parse_mig
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import StateError

HOST = Host({})
# The units that run nvidia-ctk, which holds the GPUs open. A rule of udev starts the first one when
# the driver is loaded, and does not wait for it.
DESCRIBERS = ("gpufleet-containers.service", "nvidia-cdi-refresh.service")
AT_WORK = re.compile(r"^(?:ActiveState=activating|Job=[1-9])", re.MULTILINE)
PATIENCE_S = 60


class Gpus:
    """The GPUs, as nvidia-smi reports and partitions them."""

    def __init__(self, module):
        self.module = module
        self.program = module.get_bin_path("nvidia-smi", True)

    def smi(self, *words):
        """Run nvidia-smi; returns its output. Raises StateError where it fails."""
        status, out, err = self.module.run_command([self.program, *words])
        if status:
            said = (out + err).strip().splitlines() or ["nothing"]
            raise StateError(
                "nvidia-smi {} failed: {}. If the GPU is in use, see by what with nvidia-smi, stop "
                "that, and run again.".format(" ".join(words), said[-1])
            )
        return out

    def probe(self):
        """The MIG state (gpu, mode, pending, instances) of each GPU."""
        return parse_mig(self.modes(), self.smi("-L"))

    def modes(self):
        """Return the current and the pending MIG mode of each GPU, as nvidia-smi prints them."""
        return self.smi(QUERY, "--format=csv,noheader")

    def split(self, row, wanted):
        """Create the wanted instances of one GPU, after removing all that it has."""
        gpu = str(row["gpu"])
        if row["instances"] or (row["mode"] == "on" and wanted):
            # A run that was stopped may have left instances without a device.
            for kind, present in (("-dci", "-lci"), ("-dgi", "-lgi")):
                if "No " not in self.listed(gpu, present):
                    self.smi("mig", "-i", gpu, kind)
        if (row["mode"] == "on") != bool(wanted):
            self.smi("-i", gpu, "-mig", "1" if wanted else "0")
            # nvidia-smi warns and ends without an error where it cannot reset the GPU.
            if any(
                waits(each) and each["gpu"] == row["gpu"] for each in parse_mig(self.modes(), "")
            ):
                return
        if wanted:
            self.smi("mig", "-i", gpu, "-cgi", ",".join(wanted), "-C")

    def changed_since(self, rows):
        """Return whether a GPU is no longer as it was; also where nvidia-smi does not answer."""
        try:
            return self.probe() != rows
        except StateError:
            return True

    def listed(self, gpu, what):
        """Return nvidia-smi's list of instances; it ends with an error where there are none."""
        _, out, _ = self.module.run_command([self.program, "mig", "-i", gpu, what])
        return out


def await_describers(module, pause_s=1):
    """Wait until no unit describes the GPUs: a mode that is set meanwhile would become pending.

    They take up to 7 s, and longer where the driver hangs. Then the mode is set all the same.
    """
    systemctl = module.get_bin_path("systemctl")
    if not systemctl:
        return
    question = [systemctl, "show", "--property=ActiveState", "--property=Job"]
    deadline = time.monotonic() + PATIENCE_S
    while AT_WORK.search(module.run_command(question + list(DESCRIBERS))[1]):
        if time.monotonic() > deadline:
            module.warn(
                "{} have not ended after {} s, so the MIG mode may become pending.".format(
                    " and ".join(DESCRIBERS), PATIENCE_S
                )
            )
            return
        time.sleep(pause_s)


def waits(row):
    """Return whether the MIG mode of a GPU changes at the next reset of the GPU."""
    return row["pending"] not in (None, row["mode"])


def why(rows):
    """Say that MIG modes are pending, who holds the GPUs, and what to do; empty without rows."""
    if not rows:
        return ""
    holders = ["{command} (pid {pid} of {user})".format(**row) for row in holders_of(HOST) or []]
    return (
        "The MIG mode of {} is pending: only a reset of the GPU applies it. End the programs that "
        "hold the GPU ({}), or reboot the host, and run again.".format(
            ", ".join("GPU {} ({})".format(row["gpu"], row["pending"]) for row in rows),
            ", ".join(holders)
            or "none has its device files open; others are a container, a virtual machine or the "
            "module nvidia_drm",
        )
    )


def declared(rows, layout):
    """The profiles in the layout for each GPU, by index; None for one that it does not name."""
    return {row["gpu"]: layout.get(str(row["gpu"]), layout.get("all")) for row in rows}


def differing(rows, layout):
    """Pairs of a row and its wanted profiles, for the GPUs that differ from the layout."""
    found, profiles = [], declared(rows, layout)
    for row in rows:
        wanted = profiles[row["gpu"]]
        if wanted is None:
            continue
        if wanted and row["mode"] is None:
            raise StateError(
                "GPU {} does not know MIG, declared for it is {}. Take it out of gpu_mig.".format(
                    row["gpu"], ", ".join(wanted)
                )
            )
        same = sorted(row["instances"]) == sorted(wanted) and (row["mode"] == "on") == bool(wanted)
        if not same:
            found.append((row, wanted))
    return found


def as_text(rows):
    """The instances, for the module's difference."""
    return "".join(
        "GPU {}: {}\n".format(row["gpu"], ", ".join(instances) or "no MIG")
        for row, instances in rows
    )


def main():
    module = AnsibleModule(
        argument_spec={"layout": {"type": "dict", "required": True}}, supports_check_mode=True
    )
    layout, gpus, rows = module.params["layout"], Gpus(module), None
    try:
        rows = gpus.probe()
        todo, pending = differing(rows, layout), []
        if todo and not module.check_mode:
            await_describers(module)
            for row, wanted in todo:
                gpus.split(row, wanted)
            now = gpus.probe()
            left = [row for row, _ in differing(now, layout)]
            pending = [row for row in left if waits(row)]
            if len(left) > len(pending):
                raise StateError(
                    "GPU {} does not have the declared instances, though nvidia-smi reported no "
                    "error. Reboot the host, and run again.".format(
                        next(row["gpu"] for row in left if not waits(row))
                    )
                )
            # A mode that was pending before and still is was not changed by this run.
            todo = [(row, wanted) for row, wanted in todo if row not in now]
        if pending:
            module.warn(why(pending))
        module.exit_json(
            changed=bool(todo),
            because=why(pending),
            gpus=[row["gpu"] for row, _ in todo],
            pending=[row["gpu"] for row in pending],
            instances={str(gpu): names for gpu, names in declared(rows, layout).items() if names},
            diff={
                "before": as_text([(row, row["instances"]) for row, _ in todo]),
                "after": as_text(todo),
            },
        )
    except StateError as error:
        # Container engines need a description of the changes before the failure too.
        tried = rows is not None and not module.check_mode
        fail(module, error, changed=tried and gpus.changed_since(rows))


if __name__ == "__main__":
    main()
