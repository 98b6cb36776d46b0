"""What the command lines of `verify` and `fleet` share: mistakes, and which hosts are meant."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from gpufleet.errors import ConfigurationError
from gpufleet.inventory import HostSelector


class Parser(argparse.ArgumentParser):
    """A parser by which a mistake in the call is one like any other: exit status 4."""

    def __init__(self, *, remedy: str, **more: Any) -> None:
        super().__init__(allow_abbrev=False, **more)
        self.remedy = remedy

    def error(self, message: str) -> NoReturn:
        """argparse's hook."""
        raise ConfigurationError(f"{message}.", remedy=self.remedy)

    def ask_for_hosts(self) -> None:
        """The options that `question` reads, named as Ansible's."""
        self.add_argument("-i", "--inventory", action="append", default=[], metavar="INV")
        self.add_argument("-l", "--limit", metavar="HOSTS")
        self.add_argument("-e", "--extra-vars", action="append", default=[], metavar="VARS")
        self.add_argument("--vault-password-file", action="append", default=[], metavar="FILE")


def question(options: argparse.Namespace) -> HostSelector:
    """Which hosts were asked for."""
    return HostSelector(options.inventory, options.limit, options.extra_vars,
                    options.vault_password_file)
