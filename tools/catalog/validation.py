"""Hold the catalog's tables against the types of their rows. Reads files, writes nothing.

Each fault is a sentence that begins with file, row and key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gpufleet.catalog import rows, versions
from gpufleet.documents import validator
from gpufleet.documents.shape import AnyOf, ListOf, MappingOf, Object, Shape, shape_of
from gpufleet.frameworks import FRAMEWORKS

from .tables import DRIVERS, TABLES, Data, Row

CHECKSUMS = {"sha256": 64, "md5": 32, "sha512": 128}
# Their sources are keys of meta.yml; those of the frameworks explain themselves.
EXPLAINED = ("toolkits", "cudnn")


def faults(data: Data) -> list[str]:
    """Every fault of the tables and of the form of their files."""
    return row_faults(data) or _form_faults(data)


def read_all(data: Data) -> None:
    """Read every table."""
    for folder in TABLES:
        data.rows(folder)
    data.document(DRIVERS)


def row_faults(data: Data) -> list[str]:
    """Every fault of the rows."""
    read_all(data)
    found = [fault for folder in TABLES for fault in _table_faults(data, folder)]
    drivers = data.document(DRIVERS)
    for row in drivers["branches"]:
        found += _row_faults(rows.BranchRow, row, f"{DRIVERS}: {row.get('branch')}")
    for row in drivers["architectures"]:
        found += _row_faults(rows.ArchitectureRow, row, f"{DRIVERS}: {row.get('name')}")
    return found


def _table_faults(data: Data, folder: str) -> Iterator[str]:
    table, seen = TABLES[folder], set()
    explained = data.meta(folder).get("sources", {})
    for row in data.rows(folder):
        version = str(row.get("version"))
        where = f"{folder}/{table.part_of(version)}.yml: {version}"
        found = _row_faults(_type_of(folder, row), row, where)
        yield from found
        if found:
            continue
        if not versions.is_version(version):
            yield f"{where}.version is no version number"
        name = (version, row.get("file"))
        if name in seen:
            yield f"{where} is there twice"
        seen.add(name)
        if folder in EXPLAINED:
            for key in sorted(set(_sources(row)) - set(explained)):
                if " " not in key:
                    yield f"{where}.source: {key} is not explained in {folder}/meta.yml"
        for python in row.get("ceilings_needed_today", {}).get("by_python", {}):
            if python not in row["python"]:
                yield f"{where}.ceilings_needed_today: there is no wheel for Python {python}"


def _type_of(folder: str, row: Row) -> object:
    if folder in FRAMEWORKS:
        return rows.ReleaseRow if row.get("unavailable") else rows.BuildRow
    return rows.ToolkitRow if folder == "toolkits" else rows.ArchiveRow


def _row_faults(kind: object, row: Row, where: str) -> list[str]:
    found = validator.faults(kind, row, where)
    if kind not in (rows.ReleaseRow, rows.BuildRow):
        found += _unknown_keys(shape_of(kind), row, where)
    return found + list(_value_faults(row, where))


def _unknown_keys(shape: Shape, value: Any, where: str) -> list[str]:
    """The keys that a type does not have, at any depth."""
    if isinstance(shape, AnyOf):
        return _unknown_keys(shape.options[0], value, where) if value is not None else []
    if isinstance(shape, ListOf) and isinstance(value, list):
        return [f for item in value for f in _unknown_keys(shape.item, item, where)]
    if not isinstance(value, Mapping):
        return []
    if isinstance(shape, MappingOf):
        return [
            f for key, v in value.items() for f in _unknown_keys(shape.value, v, f"{where}.{key}")
        ]
    if not isinstance(shape, Object):
        return []
    known = {key.name: key.shape for key in shape.keys}
    found = [f"{where}.{key} is no key of a {shape.name}" for key in value if key not in known]
    for key, part in value.items():
        if key in known:
            found += _unknown_keys(known[key], part, f"{where}.{key}")
    return found


def _value_faults(value: Any, where: str) -> Iterator[str]:
    """Checksums that are none, and words in the place of a missing figure."""
    if isinstance(value, dict):
        for key, part in value.items():
            place = f"{where}.{key}"
            if key == "source":
                continue
            if key in CHECKSUMS and isinstance(part, str):
                if not re.fullmatch(f"[0-9a-f]{{{CHECKSUMS[key]}}}", part):
                    yield f"{place} is {part}, and should be {CHECKSUMS[key]} hexadecimal digits"
            else:
                yield from _value_faults(part, place)
    elif isinstance(value, list):
        for part in value:
            yield from _value_faults(part, where)
    elif value == "unknown" or str(value).startswith("unknown ("):
        yield f"{where} is '{value}', and should be null"


def _sources(value: Any, inside: bool = False) -> Iterator[str]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _sources(part, inside or key == "source")
    elif isinstance(value, list):
        for part in value:
            yield from _sources(part, inside)
    elif inside:
        yield str(value)


def _form_faults(data: Data) -> list[str]:
    return [
        f"{name} is not in the catalog's form: 'gpufleet catalog check --sort' writes it"
        for name, text in data.texts().items()
        if (data.directory / name).read_text(encoding="utf-8") != text
    ]
