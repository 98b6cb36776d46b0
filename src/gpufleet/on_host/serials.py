"""The machine's identification for its vendor: serials of system, board, memory, drives."""

import os

from .dmi import TABLE, identified_modules
from .pci import link_name, nvme_controllers, word
from .text import read_bytes

DMI = "/sys/class/dmi/id/"
# Texts of boards in place of an unwritten serial number; a series of x or 0 is none either.
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


def known(text):
    """A number or name; None where it is what boards have in place of one."""
    plain = (text or "").lower()
    return None if plain in UNWRITTEN or not plain.strip("x0. -") else text


def modules(host):
    """The memory modules; None where this account may not read the table, or there is none."""
    try:
        found = identified_modules(read_bytes(host.path(TABLE)))
    except OSError:
        return None
    return [dict(row, **{key: known(row[key]) for key in ("part", "serial")}) for row in found]


def hardware_of(host):
    """The system, its board, memory and NVMe drives; what was not written, or read, is None."""

    def written(name):
        return known(word(host, name))

    return {
        "vendor": written(DMI + "sys_vendor"),
        "product": written(DMI + "product_name"),
        "serial": written(DMI + "product_serial"),
        "serial_board": written(DMI + "board_serial"),
        "firmware": written(DMI + "bios_version"),
        "modules": modules(host),
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
