"""How GPUs are split into MIG instances."""

import re

from .driver_files import ask_nvidia_smi, nvidia_smi
from .text import first_match, is_number

# The unit that creates the declared instances at boot, written by the role nvidia_driver.
BOOT_UNIT = "gpufleet-mig.service"
BOOT_DIRECTORY = "/etc/systemd/system/"
QUERY = "--query-gpu=index,mig.mode.current,mig.mode.pending"
# Each file has the number N of the node /dev/nvidia-caps/nvidia-capN that gives a capability.
CAPABILITIES = "/proc/driver/nvidia/capabilities/"
CAPABILITY_FILES = ("mig/*", "gpu*/mig/gi*/access", "gpu*/mig/gi*/ci*/access")
MODES = {"Enabled": "on", "Disabled": "off"}
KNOWN_MODE = re.compile(r"^\[?(enabled|disabled|n/a|not supported)\]?$", re.IGNORECASE)


def mig_of(host):
    """The MIG state (gpu, mode, pending, instances); None where no loaded driver could be asked.

    Read only on request: without the persistence daemon it takes seconds.
    """
    if not host["mig"] or not host.exists("/proc/driver/nvidia/version"):
        return None
    if not nvidia_smi(host):
        return None
    status, modes, _ = ask_nvidia_smi(host, [QUERY, "--format=csv,noheader"], host.inner_s / 2)
    if status != 0:
        return None
    listing = ""
    if "Enabled" in modes:
        status, listing, _ = ask_nvidia_smi(host, ["-L"], host.inner_s / 3)
        if status != 0:
            return None
    return parse_mig(modes, listing)


def boot_layout(host):
    """The profiles that the boot unit creates, by GPU; None without the unit."""
    text = host.text_or_none(BOOT_DIRECTORY + BOOT_UNIT)
    if text is None:
        return None
    rows = re.findall(r"^ExecStart=\S+ mig -i (\d+) -cgi (\S+) -C$", text, re.MULTILINE)
    return {gpu: profiles.split(",") for gpu, profiles in rows}


def parse_mig(modes, listing):
    """From `0, Disabled, Enabled` and the lines `MIG 3g.40gb Device 0:` under each `GPU 0:`."""
    cards = {}
    for line in modes.splitlines():
        index, mode, pending = [part.strip() for part in (line + ",,").split(",")][:3]
        # An error's text in the place of the mode tells nothing.
        if not is_number(index) or not KNOWN_MODE.match(mode):
            continue
        cards[index] = {
            "gpu": int(index),
            "mode": MODES.get(mode),
            "pending": MODES.get(pending),
            "instances": [],
        }
    index = None
    for line in listing.splitlines():
        index = first_match(r"^GPU (\d+):", line) or index
        name = first_match(r"^\s+MIG (\S+)\s+Device", line)
        if name and index in cards:
            cards[index]["instances"].append(name)
    return list(cards.values())


def capabilities_of(host):
    """The numbers of MIG capabilities, such as {"gpu0/mig/gi1/access": 12}; None: not known."""
    if not host.exists(CAPABILITIES):
        return None
    found = {}
    for pattern in CAPABILITY_FILES:
        for name in host.glob(CAPABILITIES + pattern):
            try:
                number = first_match(r"DeviceFileMinor: *(\d+)", host.text_or_none(name))
            except OSError:
                return None
            if number:
                found[name[len(CAPABILITIES) :]] = int(number)
    return found
