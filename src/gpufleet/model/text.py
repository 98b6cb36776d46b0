"""Text from hosts, made safe to show and to store: printable, cut, and values as short text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Replaces each character that does not print; U+FFFD, which readers know as "not decodable".
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# White space that a text keeps: lines, columns, and the spaces that str.isprintable refuses.
_KEPT = frozenset("\n\t\u00a0\u2002\u2003\u2007\u2009\u202f\u3000")
MOST_SHOWN = 2000


def printable(text: str) -> str:
    """The text without what a terminal, a page or a log would obey instead of showing it.

    Replaced are control characters (not line feeds and tabs), characters that change the direction
    or joining of text, surrogates, private and unassigned ones: all that Unicode does not print.
    """
    if text.isprintable() or text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(character if character.isprintable() or character in _KEPT else REPLACEMENT
                   for character in text)


def one_line(text: str) -> str:
    """A printable text in one line: a value cannot look like a line of ours."""
    return printable(text).replace("\n", " ").replace("\t", " ")


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
