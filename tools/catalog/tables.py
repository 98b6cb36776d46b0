"""The catalog's files as tables: read, sort, compare and write `catalog/data/`.

A table is a folder: `meta.yml` with its sources and the versions of each part, and one file for
each part. Files are written in one form, so that a difference shows what changed and nothing else.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from packaging.version import Version

from gpufleet.catalog import facts, versions
from gpufleet.frameworks import FRAMEWORKS

Row = dict[str, Any]
END_OF_HEADER = "---\n"
HEADER = """\
# {title}
# null: no source read gave the figure. `source` keys are explained in {folder}/meta.yml.
---
"""


@dataclass(frozen=True)
class Table:
    """A folder of the data: the key of its rows, and which part a version belongs to."""

    folder: str
    key: str
    part_of: Callable[[str], str]


def _major(version: str) -> str:
    return version.split(".", maxsplit=1)[0]


TABLES = {
    "toolkits": Table("toolkits", "toolkits", _major),
    "cudnn": Table("cudnn", "archives", _major),
    **{name: Table(name, "builds", versions.short) for name in FRAMEWORKS},
}
DRIVERS = "drivers.yml"


class _Dumper(yaml.SafeDumper):
    """Block mappings for rows, one line for lists of scalars and for small leaf mappings."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _is_leaf(parts: Iterable[Any]) -> bool:
    return all(not isinstance(part, dict | list) for part in parts)


def _represent_list(dumper: _Dumper, data: list[Any]) -> yaml.Node:
    flow = _is_leaf(data) and all(len(str(part)) < 60 for part in data)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=flow)


def _represent_dict(dumper: _Dumper, data: Row) -> yaml.Node:
    flow = len(data) <= 4 and _is_leaf(data.values()) and len(str(data)) < 200
    return dumper.represent_mapping("tag:yaml.org,2002:map", data.items(), flow_style=flow)


_Dumper.add_representer(list, _represent_list)
_Dumper.add_representer(dict, _represent_dict)


def sort_key(row: Row) -> tuple[Version, Version, str]:
    """The order of rows: by version, then CUDA, then platform."""
    number = row.get("version") or row["branch"]
    return (Version(number), Version(row.get("cuda") or "0"), str(row.get("platform")))


class Data:
    """The files of a directory, read once, changed in memory and written together."""

    def __init__(self, directory: Path = facts.DATA) -> None:
        self.directory = directory
        self._documents: dict[str, Row] = {}
        self._rows: dict[str, list[Row]] = {}

    def document(self, name: str) -> Row:
        """One file; a change of it is written by `write`."""
        if name not in self._documents:
            text = (self.directory / name).read_text(encoding="utf-8")
            self._documents[name] = yaml.load(text, Loader=facts.LOADER)
        return self._documents[name]

    def meta(self, folder: str) -> Row:
        """The sources and notes of a table."""
        found: Row = self.document(f"{folder}/meta.yml")["meta"]
        return found

    def rows(self, folder: str) -> list[Row]:
        """Every row of a table; `texts` sorts them."""
        table = TABLES[folder]
        if folder not in self._rows:
            self.document(f"{folder}/meta.yml")
            self._rows[folder] = [
                row
                for path in sorted((self.directory / folder).glob("*.yml"))
                if path.name != "meta.yml"
                for row in self.document(f"{folder}/{path.name}")[table.key]
            ]
        return self._rows[folder]

    def texts(self) -> dict[str, str]:
        """The content of every file that was read, sorted and in the one form."""
        self._collect()
        return {name: self._text(name) for name in self._documents}

    def difference(self) -> str:
        """The changes by writing, as a unified diff."""
        lines: list[str] = []
        for name, text in self.texts().items():
            path = self.directory / name
            before = path.read_text(encoding="utf-8") if path.exists() else ""
            lines += difflib.unified_diff(
                before.splitlines(keepends=True),
                text.splitlines(keepends=True),
                f"catalog/{name}",
                f"catalog/{name}",
            )
        return "".join(lines)

    def write(self) -> None:
        """Write every file that differs, each by a rename."""
        for name, text in self.texts().items():
            path = self.directory / name
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                partial = path.with_name(f".{path.name}.partial")
                partial.write_text(text, encoding="utf-8")
                partial.replace(path)

    def _collect(self) -> None:
        """Put the rows of each table into its parts."""
        for folder, rows in self._rows.items():
            table = TABLES[folder]
            rows.sort(key=sort_key)
            parts: dict[str, list[Row]] = {
                name.split("/")[1].removesuffix(".yml"): []
                for name in self._documents
                if name.startswith(f"{folder}/") and not name.endswith("/meta.yml")
            }
            for row in rows:
                parts.setdefault(table.part_of(row["version"]), []).append(row)
            for part, members in parts.items():
                self._documents[f"{folder}/{part}.yml"] = {table.key: members}
            self._documents[f"{folder}/meta.yml"]["parts"] = {
                part: list(dict.fromkeys(row["version"] for row in members))
                for part, members in sorted(parts.items(), key=lambda part: Version(part[0]))
            }
        if DRIVERS in self._documents:
            self._documents[DRIVERS]["branches"].sort(key=sort_key)

    def _text(self, name: str) -> str:
        body = yaml.dump(
            self._documents[name], Dumper=_Dumper, sort_keys=False, width=98, allow_unicode=True
        )
        return self._header(name) + body

    def _header(self, name: str) -> str:
        path = self.directory / name
        if path.exists():
            return path.read_text(encoding="utf-8").partition(END_OF_HEADER)[0] + END_OF_HEADER
        folder, _, part = name.removesuffix(".yml").partition("/")
        first = (self.directory / folder / "meta.yml").read_text(encoding="utf-8").splitlines()[0]
        title = first.removeprefix("# ").partition(":")[0]
        return HEADER.format(title=f"{title} {part}", folder=folder)
