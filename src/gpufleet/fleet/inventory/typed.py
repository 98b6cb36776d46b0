"""Type the values of an inventory, once, where they are read: names, connections, own variables.

Each function returns the value or raises `ConfigurationError` with its place and a remedy. Pure.
A secret's value is in no message.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean

from gpufleet.errors import ConfigurationError

# As in DNS.
MOST_NAME = 253
# Characters that ssh refuses in an address or a user, because a ProxyCommand's shell sees them.
_SHELL = set("'`\"$\\;&<>|(){}")
_ADDRESS = "an address that ssh accepts: text without blanks and shell characters, no dash first"


def refused(where: str, value: Any, wanted: str) -> ConfigurationError:
    """The mistake at one place of the inventory."""
    shown = repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:80]}..."
    return ConfigurationError(
        f"Expected {wanted}, got {shown}.", where, "Correct it in the inventory."
    )


def host_name(name: str) -> str:
    """A host's name: it becomes a file's name, an argument of programs and a line of reports."""
    if len(name) > MOST_NAME:
        raise refused(
            f"{name[:40]}...",
            f"{len(name)} characters",
            f"a host name of at most {MOST_NAME} characters",
        )
    if not name.strip() or not name.isprintable() or name.startswith("-") or not name.strip("."):
        raise refused(
            "the inventory's hosts",
            name,
            "a host name: text without control characters, no dash first, and more than dots",
        )
    return name


def text(value: Any, where: str) -> str | None:
    """Text of one line, or None."""
    if value is None or (isinstance(value, str) and value.isprintable()):
        return value
    raise refused(where, value, "text of one line, in quotes")


def address(value: Any, where: str) -> str:
    """An address for ssh."""
    if not isinstance(value, str) or not _is_word(value) or len(value) > MOST_NAME:
        raise refused(where, value, _ADDRESS)
    return value


def account(value: Any, where: str) -> str | None:
    """The name of an account, or None."""
    if value is None or (isinstance(value, str) and _is_word(value)):
        return value
    raise refused(where, value, "an account's name: text without blanks, no dash first")


def port(value: Any, where: str) -> int | None:
    """A port, or None."""
    return None if value is None else _number(value, where, "a port from 1 to 65535", 65535)


def seconds(value: Any, where: str) -> int:
    """A time-out."""
    return _number(value, where, "a number of seconds from 1 to 86400", 86400)


def flag(value: Any, where: str) -> bool:
    """Yes or no, in any of Ansible's ways to write it."""
    try:
        return bool(boolean(value))
    except TypeError as error:
        raise refused(where, value, "true or false") from error


def secret(value: Any, where: str) -> str | None:
    """A password of one line, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int) or "\n" in str(value):
        raise ConfigurationError(
            "Expected a password of one line.", where, "Correct it in the inventory or its vault."
        )
    return str(value)


def arguments(value: Any, where: str) -> list[str]:
    """The words of a command line."""
    try:
        return shlex.split(text(value, where) or "")
    except ValueError as error:
        raise refused(where, value, f"a command line ({str(error).lower()})") from error


def directory(value: Any, where: str) -> Path:
    """A directory on this machine."""
    name = text(value, where)
    if not name:
        raise refused(where, value, "the path of a directory on this machine")
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise refused(where, value, "the path of a directory of an account that exists") from error


def _is_word(value: str) -> bool:
    return (
        bool(value)
        and value.isprintable()
        and not _SHELL & set(value)
        and not any(map(str.isspace, value))
        and not value.startswith("-")
    )


def _number(value: Any, where: str, wanted: str, most: int) -> int:
    try:
        number = int(str(value))
    except ValueError as error:
        raise refused(where, value, wanted) from error
    if isinstance(value, bool) or not 1 <= number <= most:
        raise refused(where, value, wanted)
    return number
