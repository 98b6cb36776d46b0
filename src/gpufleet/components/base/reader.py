"""Read one declared value after another; a value of a wrong type becomes a problem.

Each method returns the value, or None (or an empty one) after it added a problem.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from gpufleet.catalog import versions
from gpufleet.documents.problems import Code, Problems
from gpufleet.documents.text import cut, one_line
from gpufleet.on_host.addresses import LOGIN

# A part of a version that begins with a zero: no release of CUDA or cuDNN has one.
ZERO_FIRST = re.compile(r"(^|\.)0[0-9]")
MOST_SHOWN = 60  # characters of a wrong value


def meant(word: str, known: Iterable[str], alike: float = 0.7, letters: int = 1) -> str:
    """The known word that became this one by a slip; empty where it is another word.

    They have the same length but for `letters`, and the part `alike` of both is the same.
    """
    near = [each for each in known if abs(len(each) - len(word)) <= letters]
    return next(iter(difflib.get_close_matches(word, near, 1, alike)), "")


def kind(value: Any) -> str:
    """The type of a value, for messages."""
    if isinstance(value, bool):
        return "a yes/no value"
    names = {int: "a number", float: "a number", str: "text", list: "a list", Mapping: "a mapping"}
    found = (name for cls, name in names.items() if isinstance(value, cls))
    return "empty" if value is None else next(found, f"a {type(value).__name__}")


# The words that YAML and Ansible read as true and false.
WORDS = {
    "true": True,
    "yes": True,
    "on": True,
    "false": False,
    "no": False,
    "off": False,
}
# More than any size in bytes, and what JSON's readers agree on.
MOST_COUNT = (1 << 53) - 1


@dataclass
class Reader:
    """Reads one value after another, and adds a problem for each of a wrong type."""

    problems: Problems

    def wrong(self, value: Any, where: str, wanted: str) -> None:
        """Add a problem: a value of a wrong type, with a hint on unquoted versions."""
        remedy = f"write {where} as {wanted}"
        if isinstance(value, int | float) and not isinstance(value, bool) and '"' in wanted:
            remedy += "; quote versions, because YAML reads 11.10 as the number 11.1"
        # As a person writes it in the inventory.
        shown = (
            repr(value)
            if isinstance(value, str)
            else json.dumps(value, default=str, skipkeys=True, ensure_ascii=False)
        )
        empty = value is None or (isinstance(value, str) and not value.strip())
        what = "empty" if empty else f"{kind(value)} ({cut(shown, MOST_SHOWN)})"
        message = f"{where} is {what}, not {wanted}"
        self.problems.add(Code.WRONG_TYPE, message, where, remedy)

    def unknown_key(self, key: str, where: str, known: tuple[str, ...], near: str = "") -> None:
        """Add a problem: a key that nothing reads, with the one that was meant, or all of them."""
        text = f"the key {one_line(cut(key, MOST_SHOWN))} is not known"
        if near := near or meant(key, known):
            text, remedy = f"{text}; did you mean {near}?", f"rename {key} to {near}, or remove it"
        else:
            remedy = f"remove it; the keys are {', '.join(known)}"
        self.problems.add(Code.UNKNOWN_KEY, text, where, remedy)

    def mapping(self, value: Any, where: str, known: tuple[str, ...]) -> dict[str, Any]:
        """A mapping with these keys only; keys without a value are left out."""
        if not isinstance(value, Mapping):
            self.wrong(value, where, "a mapping with " + ", ".join(known))
            return {}
        for key in value:
            if key not in known:
                self.unknown_key(str(key), f"{where}.{key}", known)
        return {str(key): part for key, part in value.items() if part is not None}

    def sequence(self, value: Any, where: str) -> list[Any]:
        """A list; null is an empty one."""
        if isinstance(value, list | tuple):
            return list(value)
        if value is not None:
            self.wrong(value, where, "a list")
        return []

    def text(self, value: Any, where: str, wanted: str) -> str | None:
        """Text that is not empty."""
        if isinstance(value, str) and value.strip():
            return str(value.strip())
        if value is not None:
            self.wrong(value, where, f"text in quotes, {wanted}")
        return None

    def release(self, value: Any, where: str, example: str) -> str | None:
        """A release of a framework: printable characters in one line."""
        text = self.text(value, where, f'such as "{example}"')
        if text and (len(text) > MOST_SHOWN or not re.fullmatch(r"[ -~]+", text)):
            self.wrong(text, where, f'a release such as "{example}"')
            return None
        return text

    def version(self, value: Any, where: str, example: str = "11.8") -> str | None:
        """Dotted numbers as text."""
        text = self.text(value, where, f'such as "{example}"')
        if text and not (versions.is_dotted(text) and not ZERO_FIRST.search(text)):
            self.wrong(text, where, f'a version such as "{example}"')
            return None
        return text

    def flag(self, value: Any, where: str) -> bool:
        """True or false; null is false. A word is text in Ansible's `-e KEY=VALUE`."""
        if isinstance(value, str):
            value = WORDS.get(value.lower(), value)
        if value is not None and not isinstance(value, bool):
            self.wrong(value, where, "true or false")
        return value is True

    def consent(self, value: Any, where: str) -> bool:
        """True or false, and no word for them: a person means it. Null is false."""
        if isinstance(value, str):
            self.problems.add(
                Code.WRONG_TYPE,
                f"{where} is the text {cut(value, MOST_SHOWN)!r}, not true or false",
                where,
                f"write {where}: true without quotes; on the command line:"
                f" -e '{{\"{where}\": true}}'",
            )
            return False
        return self.flag(value, where)

    def count(self, value: Any, where: str, wanted: str, most: int = MOST_COUNT) -> int | None:
        """A whole number from 0 to `most`."""
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most:
            return value
        if value is not None:
            self.wrong(value, where, wanted)
        return None

    def amount(self, value: Any, where: str, wanted: str) -> float | None:
        """A number above 0; `wanted` is an example of it."""
        if value is None:
            return None
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf:
            return float(value)
        self.wrong(value, where, f"a number above 0, {wanted}")
        return None

    def choice(self, value: Any, where: str, allowed: tuple[str, ...]) -> str | None:
        """One of the allowed words."""
        if isinstance(value, str) and value in allowed:
            return value
        if value is not None:
            self.wrong(value, where, "one of " + ", ".join(allowed))
        return None

    def digest(self, value: Any, where: str, length: int) -> str | None:
        """A checksum of `length` hexadecimal digits, in lower case."""
        if isinstance(value, str) and re.fullmatch(rf"[0-9a-fA-F]{{{length}}}", value):
            return value.lower()
        if value is not None:
            self.wrong(value, where, f"{length} hexadecimal digits")
        return None

    def path(self, value: Any, where: str) -> str | None:
        """An absolute path without characters that a unit file or a command would interpret."""
        wanted = "an absolute path of letters, digits and . _ + - /"
        text = self.text(value, where, wanted)
        if text is None:
            return None
        plain = re.fullmatch(r"/[A-Za-z0-9._+-][A-Za-z0-9._+/-]*", text)
        if not plain or ".." in PurePosixPath(text).parts:
            self.wrong(text, where, wanted)
            return None
        return str(PurePosixPath(text))

    def location(self, value: Any, where: str) -> None:
        """Check where files come from: a directory or a web address; null is valid."""
        wanted = "an absolute path, or http(s)://HOST/... without a login and a query"
        if value in (None, ""):
            return
        text = self.text(value, where, wanted)
        if text and not re.fullmatch(r"~?/[^\s@]*|https?://[^\s/@?]+(/[^\s@?]*)?", text):
            self.wrong(text, where, wanted)

    def index(self, value: Any, where: str) -> str | None:
        """The address of a package index: https, without a login and a query."""
        wanted = "https://HOST/... without a login and a query"
        text = self.text(value, where, wanted)
        if text and not re.fullmatch(r"https://[^\s/@?]+(/[^\s@?]*)?", text):
            self.wrong(text, where, wanted)
            return None
        return text

    def url(self, value: Any, where: str) -> str | None:
        """An address without a login. Its query, which may be a signature, stays here: plans,
        reports and messages have its `public_addresses`."""
        text = self.text(value, where, "an address")
        if text and LOGIN.search(text.partition("?")[0]):
            self.wrong(text, where, "an address without a login")
            return None
        return text
