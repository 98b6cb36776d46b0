# Apache-2.0, see LICENSE
"""The marker of a pending restart: what is installed is not what runs, and since when.

It is written before the change that makes a restart necessary, and goes when what runs is right
again (compat/restart.py decides); so a killed run leaves at most a marker too many, which the next
run takes away. Of what was tried it keeps just enough to never try a reboot twice.
"""

from __future__ import annotations

import json
import os

from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    SCHEMA,
    STATE_DIR,
    StateError,
    remove_tree,
    utc_now,
    write_atomically,
)

BOOT_ID = "/proc/sys/kernel/random/boot_id"


def boot_id():
    """Which boot of the host this is."""
    with open(BOOT_ID) as stream:
        return stream.read().strip()


def place(state_dir=STATE_DIR):
    """The marker's file."""
    return os.path.join(state_dir, "reboot-pending.json")


def read(state_dir=STATE_DIR):
    """The marker; None where none stands. Raises ``StateError`` where it cannot be read."""
    try:
        with open(place(state_dir)) as stream:
            return json.load(stream)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise StateError(
            "{} cannot be read ({}). Remove it; the next run looks whether a restart is "
            "needed.".format(place(state_dir), error)
        ) from error


def required(because):
    """A new marker, as of now: the driver is about to be changed, nothing was tried yet."""
    return {
        "schema": SCHEMA,
        "boot_id": boot_id(),
        "because": because,
        "since": utc_now(),
        "tried": False,
        "failed": None,
    }


def tried(marker, because):
    """The marker as it stands while the host is being rebooted."""
    return dict(marker or required(because), boot_id=boot_id(), tried=True)


def failed(marker, because, said):
    """The marker after the modules could not be reloaded in this boot."""
    return dict(marker or required(because), failed={"boot_id": boot_id(), "said": said})


def write(marker, state_dir=STATE_DIR):
    """Write the marker, or take it away where it is None."""
    if marker is None:
        remove_tree(place(state_dir))
    else:
        write_atomically(place(state_dir), text(marker))


def text(marker):
    """The marker as its file has it; nothing for None."""
    return json.dumps(marker, indent=1, sort_keys=True) + "\n" if marker else ""


def require(because, state_dir=STATE_DIR):
    """Note that a restart will be needed. To be called before what makes it so takes effect."""
    write(required(because), state_dir)
