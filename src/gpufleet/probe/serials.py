"""What identifies this machine to its vendor: the serial numbers of system, board and drives."""

import os

from .pci import link_name, nvme_controllers, word

DMI = "/sys/class/dmi/id/"
# What boards have in place of a serial number that nobody has written; a series of x or 0 is none.
UNWRITTEN = (
    "",
    "0123456789",
    "123456789",
    "1234567890",
    "default string",
    "empty",
    "n/a",
    "na",
    "none",
    "not applicable",
    "not available",
    "not specified",
    "system serial number",
    "to be filled by o.e.m.",
    "unknown",
)


def hardware_of(host):
    """The system, its board and its NVMe drives; what was not written, or not read, is None."""

    def written(name):
        found = word(host, name)
        text = (found or "").lower()
        return None if text in UNWRITTEN or not text.strip("x0. -") else found

    return {
        "vendor": written(DMI + "sys_vendor"),
        "product": written(DMI + "product_name"),
        "serial": written(DMI + "product_serial"),
        "serial_board": written(DMI + "board_serial"),
        "firmware": written(DMI + "bios_version"),
        "drives": [
            {
                "name": os.path.basename(name),
                "address": link_name(host, name + "/device"),
                "model": written(name + "/model"),
                "serial": written(name + "/serial"),
                "firmware": written(name + "/firmware_rev"),
            }
            for name in nvme_controllers(host)
        ],
    }
