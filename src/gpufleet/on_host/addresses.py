"""The addresses of repositories and files, which may contain a login or a signature."""

import re

HIDDEN = "***"
# The secrets of an address: its login, and its query, which may be a signature.
LOGIN = re.compile(r"//[^/\s]*@")
ADDRESS = re.compile(r"(?<=\w)://[^\s\"']*")


def public_addresses(text: str) -> str:
    """The text with `***` in place of the logins and queries of its addresses."""
    return ADDRESS.sub(_public, LOGIN.sub("//" + HIDDEN + "@", text))


def _public(address: "re.Match[str]") -> str:
    place, mark, _ = address.group().partition("?")
    return place + mark + HIDDEN if mark else place
