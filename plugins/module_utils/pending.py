# Apache-2.0, see LICENSE
"""The marker of a pending restart: the installed driver is not the loaded one, and since when.

It is written before the change that makes a restart necessary, and removed when the loaded driver
is correct again (gpufleet.components.driver.restart_change decides). So a killed run leaves at most
an unneeded marker, which the next run removes. It records what was tried, so that a reboot is never
repeated.
"""

from __future__ import annotations

import json
import os

from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    SCHEMA,
    STATE_DIR,
    StateError,
    boot_id,
    remove_tree,
    utc_now,
    write_atomically,
)


def marker_path(state_dir=STATE_DIR):
    """Return the path of the marker's file."""
    return os.path.join(state_dir, "reboot-pending.json")


def read(state_dir=STATE_DIR):
    """Return the marker, or None where none exists; raises ``StateError`` where it is damaged."""
    try:
        with open(marker_path(state_dir)) as stream:
            return json.load(stream)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise StateError(
            "{} cannot be read ({}). Remove it; the next run determines whether a restart is "
            "needed.".format(marker_path(state_dir), error)
        ) from error


def required(because, marker=None):
    """Return a new marker: the driver is about to change, and nothing was tried yet.

    It keeps what a killed reload left, which no reboot has restored.
    """
    reload = interrupted(marker)
    return {
        "schema": SCHEMA,
        "boot_id": boot_id(),
        "because": because,
        "since": utc_now(),
        "tried": False,
        "failed": None,
        **({"reload": reload} if reload else {}),
    }


def tried(marker, because):
    """Return the marker for the time of a reboot."""
    return dict(marker or required(because), boot_id=boot_id(), tried=True)


def failed(marker, because, said):
    """Return the marker after reloading the modules failed in this boot."""
    return dict(marker or required(because), failed={"boot_id": boot_id(), "said": said})


def reloading(marker, because, modules, services):
    """Return the marker for the time of a reload, with what it unloads and stops."""
    reload = {"boot_id": boot_id(), "modules": modules, "services": services}
    return dict(marker or required(because), reload=reload)


def reloaded(marker):
    """Return the marker after a reload has ended."""
    return marker and {name: value for name, value in marker.items() if name != "reload"}


def interrupted(marker):
    """Return what a reload that was killed in this boot had unloaded and stopped; else None."""
    reload = (marker or {}).get("reload")
    return reload if reload and reload["boot_id"] == boot_id() else None


def write(marker, state_dir=STATE_DIR):
    """Write the marker, or remove it where it is None."""
    if marker is None:
        remove_tree(marker_path(state_dir))
    else:
        write_atomically(marker_path(state_dir), text(marker))


def text(marker):
    """Return the marker's file as text; an empty one for None."""
    return json.dumps(marker, indent=1, sort_keys=True) + "\n" if marker else ""


def require(because, state_dir=STATE_DIR):
    """Mark a restart as pending. Call it before the change that makes the restart necessary."""
    write(required(because, read(state_dir)), state_dir)
