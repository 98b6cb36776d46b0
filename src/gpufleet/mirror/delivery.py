# Apache-2.0, see LICENSE
"""How the artifacts that hosts lack reach them, and how many bytes leave the control machine.

Pure: from plans, pending changes and `gpu_artifacts_source`; the role `artifacts` does the same.
Toolkits, their patches and cuDNN count; the driver's runfile, `uv` and packages do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.filesize import decimal

from gpufleet.documents.mirror import Delivery, DeliveryGroup
from gpufleet.on_host.addresses import public_addresses

# From so many hosts on another way is worth its preparation.
MOST_COPIED = 10
ADVICE = (
    f"With more than {MOST_COPIED} hosts, a mirror on another machine takes this load:"
    " docs/how-to/many-hosts.md"
)
_NOT_INSTALLED = {"adopt", "remove", "refuse", "unread"}


def lacking(plan: Mapping[str, Any]) -> dict[str, int | None]:
    """The size of each file to install on a host, by name; of all files if it was not probed."""
    pending = plan["changes"]
    if plan["problems"]:
        return {}
    wanted = (
        None
        if pending is None
        else {
            (row["what"], row["id"])
            for row in pending
            # Links are restored from the receipt.
            if row["action"] not in _NOT_INSTALLED and row.get("step") != "links"
        }
    )
    rows: list[Mapping[str, Any]] = []
    for toolkit in plan["toolkits"]:
        if wanted is None or ("toolkit", toolkit["short"]) in wanted:
            rows += [toolkit["artifact"], *toolkit["patches"]]
    rows += [
        cudnn["artifact"]
        for cudnn in plan["cudnn"]
        if wanted is None or ("cudnn", cudnn.get("id")) in wanted
    ]
    return {row["file"]: row["size_bytes"] for row in rows if row and row["file"]}


def delivery(plans: Mapping[str, Mapping[str, Any]], sources: Mapping[str, str]) -> Delivery:
    """How each host's files reach it. `sources`: gpu_artifacts_source of each host, or ''."""
    groups: dict[tuple[str, tuple[str, ...], int, bool], DeliveryGroup] = {}
    for name, plan in plans.items():
        files = lacking(plan)
        if not files:
            continue
        source = public_addresses(sources.get(name, ""))
        unknown = tuple(sorted(file for file, size in files.items() if size is None))
        known = sum(size or 0 for size in files.values())
        probed = plan["changes"] is not None
        group = groups.setdefault(
            (source, unknown, known, probed),
            {
                "way": "mirror" if source.startswith(("http://", "https://")) else "copy",
                "source": source or None,
                "hosts": [],
                "probed": probed,
                "known_bytes": known,
                "unknown": list(unknown),
            },
        )
        group["hosts"].append(name)
    rows = list(groups.values())
    copied = [row for row in rows if row["way"] == "copy"]
    unknown_size = any(row["unknown"] for row in copied)
    return {
        "groups": rows,
        "control_bytes": None if unknown_size else _leaving(copied),
        "advice": ADVICE if sum(len(row["hosts"]) for row in copied) > MOST_COPIED else None,
    }


def sentences(found: Delivery) -> list[str]:
    """Return the delivery as sentences for a person; none if no host lacks a file."""
    lines = [_sentence(group) for group in found["groups"]]
    copied = [group for group in found["groups"] if group["way"] == "copy"]
    if len(copied) > 1:
        least = "at least " if found["control_bytes"] is None else ""
        total = decimal(_leaving(copied))
        lines.append(f"Artifacts, all hosts: {least}{total} leave this machine.")
    return [*lines, *([found["advice"]] if found["advice"] else [])]


def _leaving(groups: Iterable[DeliveryGroup]) -> int:
    return sum(group["known_bytes"] * len(group["hosts"]) for group in groups)


def _sentence(group: DeliveryGroup) -> str:
    count, unknown = len(group["hosts"]), group["unknown"]
    least = "at least " if unknown and group["known_bytes"] else ""
    size = decimal(group["known_bytes"]) if group["known_bytes"] else "an unknown size"
    to = "1 host" if count == 1 else f"each of {count} hosts"
    if group["way"] == "mirror":
        how = (
            f"fetched from {group['source']}: none leaves this machine, unless it serves that"
            " address"
        )
    else:
        total = decimal(_leaving([group])) if group["known_bytes"] else "an unknown number of bytes"
        how = f"copied from this machine: {least}{total} leave it"
    text = f"Artifacts: {least}{size} to {to}, {how}."
    if unknown:
        text += f" The catalog has no size of {', '.join(unknown)}."
    if not group["probed"]:
        text += " Not probed: what is installed already is not subtracted."
    return text
