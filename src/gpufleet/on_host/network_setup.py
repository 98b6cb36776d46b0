"""The setup of a host by the role network, and the drivers that its kernel would load."""

import os
import re

from .kernel_modules import module_information
from .pci import word

UNIT = "gpufleet-network.service"
UNIT_FILE = "/etc/systemd/system/" + UNIT
BOOT_MODULES = "/etc/modules-load.d/gpufleet-network.conf"
# Every file that the role writes.
FILES = (
    UNIT_FILE,
    "/etc/systemd/system/multi-user.target.wants/" + UNIT,
    "/opt/gpufleet/network/pci_settings.py",
    BOOT_MODULES,
    "/etc/apt/sources.list.d/gpufleet-doca.sources",
    "/etc/apt/keyrings/gpufleet-doca.asc",
    "/etc/yum.repos.d/gpufleet-doca.repo",
    "/etc/pki/rpm-gpg/RPM-GPG-KEY-gpufleet-doca.asc",
)
DRIVER = "mlx5_core"
MODULE_FILE = re.compile(
    r"^(\S*/(mlx5_core|mlx5_ib|efa|ib_uverbs|ib_umad|rdma_ucm)\.ko[.\w]*)(?::|$)", re.MULTILINE
)


def network_setup(host, kernel):
    """The network setup; `on_disk` is None where the kernel's module list cannot be read."""
    listed = host.text_or_none("/lib/modules/%s/modules.dep" % kernel)
    built_in = host.text_or_none("/lib/modules/%s/modules.builtin" % kernel) or ""
    text = listed and listed + "\n" + built_in
    on_disk = {name: path for path, name in MODULE_FILE.findall(text)} if text else None
    boot = host.text_or_none(BOOT_MODULES)
    return {
        "files": [name for name in FILES if os.path.lexists(host.path(name))],
        "modules": (
            None if boot is None else [x for x in boot.splitlines() if x and not x.startswith("#")]
        ),
        "settings": settings_of(host.text_or_none(UNIT_FILE)),
        "on_disk": on_disk,
        "loaded_driver": word(host, "/sys/module/%s/srcversion" % DRIVER),
        "installed_driver": installed_driver(host, kernel, (on_disk or {}).get(DRIVER)),
    }


def installed_driver(host, kernel, path):
    """The source version of a driver beside the kernel's own; None where it is the kernel's own."""
    if not path or path.startswith("kernel/"):
        return None
    return module_information(host, "/lib/modules/%s/%s" % (kernel, path), DRIVER).get("srcversion")


def settings_of(unit):
    """The settings that the unit applies at boot; None without the unit."""
    if unit is None:
        return None
    line = "".join(re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)) + " "
    size = re.search(r" --max-read-request (\d{1,6}) ", line)
    return {
        "max_read_request": int(size.group(1)) if size else None,
        "acs_off": " --acs-off " in line,
        "adapters": re.findall(r" --adapter (\S+)(?= )", line),
    }
