"""Convert collected fact files to `catalog/data/`: a developer's tool, run by hand.

    python src/gpufleet/catalog/import_facts.py FACTS_DIR [DATA_DIR]

FACTS_DIR has `cuda_toolkits.yml`, `cudnn_archives.yml`, `tensorflow_builds.yml`,
`pytorch_builds.yml`, `jax_builds.yml`, `driver_branches.yml`, `smi_fields.yml`, `floors.yml` and
`xids.yml`. The output is deterministic. The conversion:

- `unknown` becomes null; the explanation in its brackets moves to `<key>_note`;
- `>=450.80.02` becomes `450.80.02` in fields that are minimums;
- `not applicable` (minor-version compatibility before CUDA 11) becomes null;
- rows are sorted by version, then CUDA, then platform, and split by major version (toolkits,
  cuDNN) or series (frameworks), so that a reader loads only the files it needs;
- the frameworks' releases get one shape (see import_frameworks);
- elements of `nvidia-smi -q -x` get the drivers that print them, by generation (see import_smi);
- Xids keep their numbers as keys; what other operators do with them, and lines of logs, stay out.

Writes below DATA_DIR only; `rules.yml`, `smi_rules.yml`, `gpus.yml` and `xids/judgement.yml` there
are written by hand and stay.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml
from packaging.version import Version

from gpufleet.catalog import import_frameworks, import_smi
from gpufleet.catalog.import_values import clean, floor

Row = dict[str, Any]

INDEX_FILES_NOTE = (
    "'index file N' in a source: a public file read through a code search index, "
    "by its number there"
)
HEADER = """\
# {title}
# Written by gpufleet/catalog/import_facts.py from the gathered facts: do not edit by hand.
# null: no source read gave the figure. `source` keys are explained in {meta}.
---
"""


class _Dumper(yaml.SafeDumper):
    """Block mappings for rows, one line for lists of scalars and for small leaf mappings."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _is_leaf(value: Any) -> bool:
    if isinstance(value, dict):
        parts: Iterable[Any] = value.values()
    elif isinstance(value, list):
        parts = value
    else:
        return True
    return all(not isinstance(part, dict | list) for part in parts)


def _fits_a_line(value: Any) -> bool:
    return _is_leaf(value) and len(str(value)) < 400


def _represent_list(dumper: _Dumper, data: list[Any]) -> yaml.Node:
    flow = all(not isinstance(part, dict | list) and len(str(part)) < 60 for part in data)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=flow)


def _represent_dict(dumper: _Dumper, data: Row) -> yaml.Node:
    flow = len(data) <= 4 and _fits_a_line(data) and len(str(data)) < 200
    return dumper.represent_mapping("tag:yaml.org,2002:map", data.items(), flow_style=flow)


_Dumper.add_representer(list, _represent_list)
_Dumper.add_representer(dict, _represent_dict)


def toolkits(facts: Row) -> list[Row]:
    return [toolkit(row) for row in facts["toolkits"]]


def archives(facts: Row) -> list[Row]:
    return [archive(row) for row in facts["archives"]]


def toolkit(row: Row) -> Row:
    """One toolkit: installers by platform, the driver's minimums as plain versions."""
    row = clean(row)
    driver = row["driver"]
    row["driver"] = {
        "bundled": driver.pop("bundled_in_runfile"),
        "minimum": floor(driver.pop("corresponding_min_linux")),
        "minimum_minor_compat": floor(driver.pop("minor_version_compat_min_linux")),
        **driver,
    }
    platforms = [key for key in row if key.startswith("linux_")]
    row["installers"] = {key: row.pop(key) for key in platforms}
    return row


def archive(row: Row) -> Row:
    """One cuDNN archive, with its name under `file`, as in the other documents."""
    row = clean(row)
    return {"version": row.pop("version"), "file": row.pop("archive"), **row}


def branch(row: Row) -> Row:
    """One driver branch, with only its number as the name."""
    row = clean(row)
    row["branch"] = row["branch"].removeprefix("R")
    return row


def architecture(row: Row) -> list[Row]:
    """One row of the architectures' support as one row for each compute capability.

    `8.0/8.6` with first CUDA `11.0/11.1` gives two rows; `5.x` stays, for all of 5.
    """
    row = clean(row)
    capabilities = row["cc"].split("/")
    first = row.get("first_cuda")
    noted = re.fullmatch(r"([\d.]+) (.*)", first or "")
    firsts = [noted.group(1)] if noted else first.split("/") if first else [None]
    return [
        {
            "name": row["arch"],
            "compute_capability": capability,
            "first_cuda": firsts[min(position, len(firsts) - 1)],
            "last_cuda": row.get("last_cuda"),
            "first_branch": (row.get("first_branch") or "").removeprefix("R") or None,
            "last_branch": re.sub(r"^R|^ongoing$", "", row.get("last_branch", "")) or None,
            **({"note": f"first CUDA: {first}"} if noted else {}),
        }
        for position, capability in enumerate(capabilities)
    ]


def speeds(facts: Row) -> Row:
    """What GPUs reached in public reports, and the limits of NVIDIA's diagnostics.

    A memory limit that the facts call visibly wrong is null.
    """
    achieved = [clean({key: row[key] for key in ("gpu", "what", "value", "unit", "source")})
                for row in facts["achieved"] if row["value"] != "unknown"]
    limits = []
    for row in facts["dcgm_limits"]["rows"]:
        wrong = "visibly wrong" in row.get("note", "")
        least = None if wrong or row["min_mb_s"] == "unknown" else row["min_mb_s"] / 1000
        limits.append({
            "gpu": row["gpu"], "id": row["id"], "double": row.get("double", False),
            "tflops": row["target_gflops"] / 1000, "gb_s": least, "source": row["source"]})
    used = {row["source"] for row in (*achieved, *limits)}
    sources = {key: text for key, text in facts["meta"]["sources"].items() if key in used}
    return {"sources": clean(sources), "dcgm": limits, "achieved": achieved}


def numbered(rows: Row) -> Row:
    """Rows by number; `clean` alone would turn the numbers into texts."""
    return {number: clean(row) for number, row in rows.items()}


def xids(facts: Row) -> Row:
    """NVIDIA's Xids with their actions, and what decodes 74 and 154."""
    action = facts["xid154"]
    return {
        "meta": {**clean(facts["meta"]), "index_files": INDEX_FILES_NOTE},
        "buckets": clean(facts["buckets"]),
        "xids": numbered(facts["xids"]),
        "xid154": {**clean(action), "codes": numbered(action["codes"])},
        "xid74_registers": clean(facts["xid74_registers"]),
        "disagreements": [{"xid": str(row["xid"]), "text": row["text"]}
                          for row in facts["disagreements"]],
    }


def nvlink(facts: Row) -> Row:
    """The rules that decode 144 to 150; every status as a list, null where any one matches."""
    decode = facts["nvlink5_decode"]
    rules = []
    for row in decode["rules"]:
        status = row["status"]
        listed = status if isinstance(status, list) else [status]
        rules.append({**clean(row), "status": None if status == "any" else listed})
    words = decode["link_down_reasons"]
    checked = [{**clean(row), "line": row["line"]} for row in decode["checked"]]
    return {**clean(decode), "checked": checked,
            "link_down_reasons": {**clean(words), "words": dict(words["words"])
                                  | {number: None for number, text in words["words"].items()
                                     if text == "unknown"}},
            "rules": rules}


def sxids(facts: Row) -> Row:
    """SXids by number: `printed` is {} where no driver prints one, `guide` null where unlisted."""
    codes = {}
    for number, row in facts["sxids"]["codes"].items():
        printed, guide = row["printed"], row["guide"]
        codes[number] = clean({
            **row, "printed": printed if isinstance(printed, dict) else {},
            "guide": None if guide == "not listed" else guide})
    return {"notes": clean(facts["sxids"]["notes"]), "codes": codes}


def _version_key(row: Row) -> tuple[Version, Version, str]:
    return (
        Version(row.get("version") or row["branch"]),
        Version(row.get("cuda") or "0"),
        str(row.get("platform")),
    )


def _major(row: Row) -> str:
    return str(row["version"].split(".")[0])


def _series(row: Row) -> str:
    return ".".join(row["version"].split(".")[:2])


def _write(path: Path, title: str, meta: str, document: Any) -> None:
    text = yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=98, allow_unicode=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(HEADER.format(title=title, meta=meta) + text, encoding="utf-8")


def _split(
    folder: Path, title: str, key: str, rows: list[Row], part_of: Callable[[Row], str]
) -> dict[str, list[str]]:
    """Write one file for each part of the rows; return the versions of each part, in order."""
    parts: dict[str, list[Row]] = {}
    for row in rows:
        parts.setdefault(part_of(row), []).append(row)
    for part, members in parts.items():
        _write(folder / f"{part}.yml", f"{title} {part}", f"{folder.name}/meta.yml", {key: members})
    return {
        part: list(dict.fromkeys(row["version"] for row in members))
        for part, members in parts.items()
    }


def main(arguments: list[str]) -> int:
    """Convert all fact files; returns the exit status, 2 on wrong usage."""
    if len(arguments) not in {1, 2}:
        print(__doc__, file=sys.stderr)
        return 2
    source = Path(arguments[0])
    target = Path(arguments[1]) if len(arguments) == 2 else Path(__file__).parent / "data"

    def read(name: str) -> Row:
        text = (source / name).read_text(encoding="utf-8")
        document: Row = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        return document

    families: list[tuple[str, str, str, str, Callable[[Row], list[Row]], Callable[[Row], str]]] = [
        ("toolkits", "cuda_toolkits.yml", "toolkits", "CUDA toolkits", toolkits, _major),
        ("cudnn", "cudnn_archives.yml", "archives", "cuDNN archives", archives, _major),
        ("tensorflow", "tensorflow_builds.yml", "builds", "TensorFlow builds",
         import_frameworks.tensorflow, _series),
        ("pytorch", "pytorch_builds.yml", "builds", "PyTorch builds",
         import_frameworks.pytorch, _series),
        ("jax", "jax_builds.yml", "builds", "JAX builds", import_frameworks.jax, _series),
    ]
    for folder, name, key, title, reshape, part_of in families:
        facts = read(name)
        parts = _split(target / folder, title, key, sorted(reshape(facts), key=_version_key),
                       part_of)
        rows_of = {key, *import_frameworks.JAX_TABLES}
        rest = {name: part for name, part in facts.items() if name not in {*rows_of, "meta"}}
        meta = {**facts["meta"], **rest, "index_files": INDEX_FILES_NOTE}
        document = {"parts": parts, "meta": clean(meta)}
        _write(target / folder / "meta.yml", f"{title}: contents, sources", "meta", document)
    facts = read("driver_branches.yml")
    rows = sorted((branch(row) for row in facts["branches"]), key=_version_key)
    lives = facts["meta"].pop("arch_end_of_support")
    meta = clean({**facts["meta"], "index_files": INDEX_FILES_NOTE})
    document = {
        "meta": meta,
        "architectures": [row for life in lives for row in architecture(life)],
        "branches": rows,
    }
    _write(target / "drivers.yml", "Driver branches and GPU architectures", "meta", document)
    facts = read("smi_fields.yml")
    elements, seen = import_smi.table(facts)
    document = {"meta": clean({**facts["meta"], "texts": facts["texts"]}),
                "elements": [clean(row) for row in elements]}
    _write(target / "smi_fields.yml", "Elements of nvidia-smi -q -x", "meta", document)
    _write(target / "smi_samples.yml", "Real documents of nvidia-smi -q -x, and what each element"
           " was in them (absent, where it is not named)", "smi_fields.yml", clean(seen))
    _write(target / "speeds.yml", "What GPUs reached, and NVIDIA's limits", "sources",
           speeds(read("floors.yml")))
    facts = read("xids.yml")
    for name, title, reshape_codes in (
        ("codes", "Xids, their actions, and how 74 and 154 are decoded", xids),
        ("nvlink", "How Xids 144 to 150 are decoded", nvlink),
        ("sxids", "SXids of NVSwitches", sxids),
    ):
        _write(target / "xids" / f"{name}.yml", title, "xids/codes.yml", reshape_codes(facts))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
