"""Provisioning needs root: where the probe did not become root, Ansible is not even started."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.campaign.provision.privilege import cannot_become_root
from gpufleet.fleet.inventory import Become, Connection, InventoryHost


def answer(
    euid: int | None, args: tuple[str, ...] = (), user: str | None = "deploy", **become: Any
) -> str | None:
    host = InventoryHost("a", {}, Connection("a", user=user, become=Become(**become)))
    snapshot: Any = None if euid is None else {"euid": euid}
    return cannot_become_root(host, snapshot, args)


def test_an_account_without_the_right_is_named_with_what_to_do() -> None:
    text = answer(1000)
    assert text is not None
    assert "deploy cannot become root by sudo without a password" in text
    assert "ansible_become_password in the inventory" in text
    assert "--ask-become-pass" in text
    assert "the account that logs in cannot become root" in str(answer(1000, user=None))


def test_a_declaration_that_forbids_root_is_the_cause() -> None:
    assert "ansible_become is false in the inventory" in str(answer(1000, enabled=False))


@pytest.mark.parametrize(
    "args",
    [
        ("-K",),
        ("--ask-become-pass",),
        ("--become-password-file=pw",),
        ("-e", "ansible_become_password=x"),
    ],
)
def test_a_password_from_elsewhere_is_left_to_ansible(args: tuple[str, ...]) -> None:
    assert answer(1000, args) is None


def test_root_a_password_and_an_unread_host_are_no_reason() -> None:
    assert answer(0) is None
    assert answer(1000, password="x") is None
    assert answer(None) is None
