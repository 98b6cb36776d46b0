"""The faults that keep Ansible from root on a host, known from the probe before a run."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gpufleet.documents.snapshot import Snapshot
from gpufleet.fleet.inventory import InventoryHost

# Options of ansible-playbook by which sudo's password comes from somewhere else.
ASKED = ("-K", "--ask-become-pass", "--become-password-file", "--become-pass-file")
VARIABLES = ("ansible_become_password", "ansible_become_pass", "ansible_sudo_pass")


def cannot_become_root(
    host: InventoryHost, snapshot: Snapshot | None, args: Sequence[str] = ()
) -> str | None:
    """Why Ansible could not become root there, with what to do; None where nothing says so.

    The probe uses sudo as Ansible does, so that a probe that did not run as root is the proof.
    `args` are those of ansible-playbook, which may provide the password.
    """
    become = host.connection.become
    if snapshot is None or snapshot["euid"] == 0 or become.password or _has_password(args):
        return None
    account = host.connection.user or "the account that logs in"
    cause = (
        "ansible_become is false in the inventory"
        if become.enabled is False
        else f"{account} cannot become {become.user} by sudo without a password"
    )
    return (
        f"provisioning needs root, and {cause}: set ansible_become: true and"
        " ansible_become_password in the inventory (from a vault), add --ask-become-pass, or allow"
        " the account sudo without a password"
    )


def _has_password(args: Collection[str]) -> bool:
    return any(
        arg.partition("=")[0] in ASKED or any(name in arg for name in VARIABLES) for arg in args
    )
