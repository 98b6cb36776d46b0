"""Text from hosts, made safe to show and to store: printable, cut, and values as short text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

# Replaces each character that does not print; U+FFFD, which readers know as "not decodable".
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# White space that a text keeps: lines, columns, and the spaces that str.isprintable refuses.
_KEPT = frozenset("\n\t\u00a0\u2002\u2003\u2007\u2009\u202f\u3000")
MOST_SHOWN = 2000
# Names and paths as software chooses them: one word of a command, no option, nothing to expand.
_PLAIN = re.compile(r"[A-Za-z0-9_/][A-Za-z0-9_./+:@%,=-]*")
# Characters that a shell reads outside of quotes without any effect.
_INERT = re.compile(r"[\w ./+:@%,=-]")


def printable(text: str) -> str:
    """The text without what a terminal, a page or a log would obey instead of showing it.

    Replaced are control characters (not line feeds and tabs), characters that change the direction
    or joining of text, surrogates, private and unassigned ones: all that Unicode does not print.
    A line that ends as on a terminal, with a carriage return, ends with a line feed alone.
    """
    text = text.replace("\r\n", "\n")
    if text.isprintable() or text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(
        character if character.isprintable() or character in _KEPT else REPLACEMENT
        for character in text
    )


def one_line(text: str) -> str:
    """A printable text in one line: a value cannot look like a line of ours."""
    return printable(text).replace("\n", " ").replace("\t", " ")


def plain(text: str) -> bool:
    """Return whether a text from a host is a name or a path that a command may contain."""
    return _PLAIN.fullmatch(text) is not None


def quoted(text: str) -> str:
    """A name from a host, for prose: as it is, or in quotes and with what a shell obeys escaped."""
    if plain(text):
        return text
    return (
        "'"
        + "".join(
            character
            if _INERT.fullmatch(character)
            else character.encode("unicode_escape").decode()
            if not character.isascii()
            else f"\\x{ord(character):02x}"
            for character in text
        )
        + "'"
    )


def shell(command: str, *names: str, instead: str) -> str:
    """A command with names from a host as its last words; `instead` where one is no plain name."""
    return f"{command} {shlex.join(names)}" if all(map(plain, names)) else instead


def gpufleet(*words: str) -> str:
    """A command of gpufleet, to be run on the control machine."""
    return shlex.join(["./gpufleet", *words])


def as_sentence(text: str) -> str:
    """The text with a full stop, unless it ends a sentence already, or is empty."""
    return text if not text or text.endswith((".", "!", "?", ".)", ":")) else f"{text}."


def quantity(number: int | None, what: str) -> str:
    """`1 GPU`, `2 GPUs`."""
    if number is None:
        return f"an unknown number of {what}s"
    return f"{number} {what}{'' if number == 1 else 's'}"


def cut(text: str, most: int) -> str:
    """The text, or its beginning and how much is left out."""
    if len(text) <= most:
        return text
    return f"{text[:most]} ... ({len(text) - most} more characters)"


def brief(value: object, most: int = MOST_SHOWN) -> str:
    """`repr` of a document's value, of which no more is built than is shown."""
    parts: list[str] = []
    _append(value, parts, most + 1)
    return cut_mark("".join(parts), most)


def cut_mark(text: str, most: int) -> str:
    """The text, or its beginning with a mark, where the whole length is not known."""
    return text if len(text) <= most else f"{text[:most]} ..."


def _append(value: Any, parts: list[str], left: int) -> int:
    """Append to `parts` until nothing is left of the budget; what is left then."""
    if isinstance(value, str):
        return _add(repr(value[:left]), parts, left)
    if isinstance(value, Mapping):
        left = _add("{", parts, left)
        for number, (key, item) in enumerate(value.items()):
            if left <= 0:
                return left
            left = _add(f"{', ' if number else ''}{str(key)[:left]!r}: ", parts, left)
            left = _append(item, parts, left)
        return _add("}", parts, left)
    if isinstance(value, list | tuple):
        left = _add("[", parts, left)
        for number, item in enumerate(value):
            if left <= 0:
                return left
            left = _add(", " if number else "", parts, left)
            left = _append(item, parts, left)
        return _add("]", parts, left)
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 4096:
        return _add(f"a number of {value.bit_length()} bits", parts, left)
    return _add(repr(value), parts, left)


def _add(text: str, parts: list[str], left: int) -> int:
    parts.append(text)
    return left - len(text)


def is_number(text: str) -> bool:
    """Return whether `int` reads a text: not ², a digit by `isdigit`, nor thousands of digits."""
    return bool(re.fullmatch("[0-9]{1,18}", text))


def natural(text: str) -> list[tuple[int, str]]:
    """A key to sort by: gpu2 before gpu10."""
    return [
        (int(part), "") if is_number(part) else (-1, part)
        for part in re.split(r"([0-9]{1,18})", text)
    ]
