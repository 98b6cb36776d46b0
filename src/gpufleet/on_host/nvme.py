"""NVMe drives on the PCI bus, and the health log that each keeps (NVM Express, log page 02h)."""

import ctypes
import errno
import fcntl
import json
import os
import struct

from .pci import link_name, number, nvme_controllers, word
from .processes import Child, await_all, run_command
from .programs import find_program

# linux/nvme_ioctl.h: the request, and struct nvme_admin_cmd.
ADMIN_COMMAND, COMMAND = 0xC0484E41, struct.Struct("=BBHIIIQQIIIIIIIIII")
GET_LOG_PAGE, EVERY_NAMESPACE, HEALTH_LOG, LOG_BYTES = 0x02, 0xFFFFFFFF, 0x02, 512
# {value: (smartctl's name, its place in the log, its bytes)}. A unit of data is 1000 blocks.
VALUES = {
    "critical_warning": ("critical_warning", 0, 1),
    "spare_percent": ("available_spare", 3, 1),
    "spare_threshold_percent": ("available_spare_threshold", 4, 1),
    "used_percent": ("percentage_used", 5, 1),
    "units_read": ("data_units_read", 32, 16),
    "units_written": ("data_units_written", 48, 16),
    "reads": ("host_reads", 64, 16),
    "writes": ("host_writes", 80, 16),
    "power_cycles": ("power_cycles", 112, 16),
    "power_on_hours": ("power_on_hours", 128, 16),
    "media_errors": ("media_errors", 160, 16),
}
MOST_COUNT = (1 << 63) - 1


def nvme_drives(host):
    """Every drive of this machine, with the health log that it keeps."""
    found = []
    for name in nvme_controllers(host):
        blocks = [number(host, each) for each in host.glob(name + "/nvme*n*/size")]
        found.append(
            {
                "name": os.path.basename(name),
                "address": link_name(host, name + "/device"),
                "model": word(host, name + "/model"),
                "firmware": word(host, name + "/firmware_rev"),
                "state": word(host, name + "/state"),
                "gb": round(sum(filter(None, blocks)) * 512 / 1e9),
                "health": None,
                "error": None,
                "refused": None,
            }
        )
    logs = [Child(health, (host, row["name"]), host.inner_s / 2) for row in found]
    for row, (state, answer, error, _) in zip(found, await_all(logs)):  # noqa: B905 (Python 3.10)
        row["health"], row["error"], row["refused"] = (
            answer if state == "ok" else (None, error, None)
        )
    return found


def health(host, name):
    """The values of a drive's health log, why there are none, and the status of its refusal."""
    if not host.real:
        return None, "it is not this machine's drive", None
    node = "/dev/" + name
    try:
        status, log = read_log(node)
        if status:
            return None, "it refuses its health log (status 0x%x)" % status, status
        return log_values(log), None, None
    except PermissionError:
        return None, "this account cannot ask it", None
    except OSError as error:
        # No such device file (in a container), or a driver without this request.
        program = find_program(host, "smartctl") if error.errno != errno.ENOENT else None
        if program is None:
            return None, error.strerror, None
    _, out, _ = run_command([program, "--json", "--all", node], host.inner_s / 3)
    values = smartctl_values(out)
    return values, None if values else "smartctl has no health log of it", None


def read_log(node):
    """The status of a drive's answer (0: success), and its health log. Raises `OSError`."""
    data = ctypes.create_string_buffer(LOG_BYTES)
    kind = HEALTH_LOG | (LOG_BYTES // 4 - 1) << 16
    place = ctypes.addressof(data)
    fields = (GET_LOG_PAGE, 0, 0, EVERY_NAMESPACE, 0, 0, 0, place, 0, LOG_BYTES, kind)
    opened = os.open(node, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = fcntl.ioctl(opened, ADMIN_COMMAND, bytearray(COMMAND.pack(*fields, *[0] * 7)))
    finally:
        os.close(opened)
    return status, data.raw


def log_values(log):
    """The values of a health log."""
    return {
        key: min(int.from_bytes(log[at : at + size], "little"), MOST_COUNT)
        for key, (_, at, size) in VALUES.items()
    }


def smartctl_values(text):
    """The same values in the output of `smartctl --json --all`; None where it lacks the log."""
    try:
        log = json.loads(text)["nvme_smart_health_information_log"]
        return {key: min(int(log[name]), MOST_COUNT) for key, (name, _, _) in VALUES.items()}
    except (ValueError, LookupError, TypeError):
        return None
