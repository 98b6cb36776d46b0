"""The hosts of an inventory: their variables and how to reach them, as Ansible reads them.

Ansible is imported when an inventory is read: half of a short command's time, which those do
without that have no inventory to read.
"""

from __future__ import annotations

from .hosts import GROUP, Become, Connection, HostSelector, InventoryHost, locks_in

__all__ = [
    "GROUP",
    "Become",
    "Connection",
    "HostSelector",
    "InventoryHost",
    "inventory_hosts",
    "locks_in",
    "start_ansible",
]


def inventory_hosts(selector: HostSelector) -> list[InventoryHost]:
    """Every host that the selector matches. Raises `ConfigurationError` if there is none."""
    from . import reader  # noqa: PLC0415 (see above)

    return reader.read(selector)


def start_ansible() -> None:
    """Load Ansible's plugins, once; afterwards collections are found by their names."""
    from . import reader  # noqa: PLC0415 (see above)

    reader.start_ansible()
