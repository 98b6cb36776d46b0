"""Parse `gpu_manifest`: what the hosts of a group have in common, by the names of a manifest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpufleet.components.base.reader import Reader
from gpufleet.documents.manifest import MOST_NAMES, MOST_TEXT, MOUNT, NAMES, known

_WHERE = "gpu_manifest"
_WANTED = "as ./gpufleet manifest propose writes it"


def manifest(reader: Reader, value: Any) -> dict[str, list[str]]:
    """The permitted values, by name; a wrong entry becomes a problem and is left out."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        reader.wrong(value, _WHERE, f"a mapping, {_WANTED}")
        return {}
    if len(value) > MOST_NAMES:
        reader.wrong(len(value), _WHERE, f"a mapping of at most {MOST_NAMES} names")
        return {}
    found = {}
    for name, permitted in value.items():
        where = f"{_WHERE}.{name}"
        if not known(str(name)):
            reader.unknown_key(str(name), where, (*NAMES, f"{MOUNT}/PATH"))
        elif values := _values(reader, permitted, where):
            found[str(name)] = values
    return found


def _values(reader: Reader, value: Any, where: str) -> list[str]:
    """One value, or a list of permitted ones; without any the name is not judged."""
    if not isinstance(value, list | tuple):
        text = _text(reader, value, where)
        return [text] if text else []
    texts = [_text(reader, each, f"{where}[{at}]") for at, each in enumerate(value)]
    return list(dict.fromkeys(filter(None, texts)))


def _text(reader: Reader, value: Any, where: str) -> str | None:
    text = reader.text(value, where, _WANTED)
    if text and len(text) > MOST_TEXT:
        reader.wrong(text, where, f"text of at most {MOST_TEXT} characters")
        return None
    return text
