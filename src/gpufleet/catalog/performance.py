"""Performance floors: the lowest rates of a healthy GPU (catalog/data/performance.yml)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from gpufleet.documents.types import Row

from . import facts, model_names

_GB_PER_GIB = 1e9 / 2**30


@dataclass(frozen=True)
class Floors:
    """The lowest rates of a healthy GPU, and the published figures they are derived from."""

    tflops: float
    gib_s: float
    tflops_because: str
    gib_s_because: str

    def at_power(self, limit_w: float | None, default_w: float | None) -> Floors:
        """The floors of a GPU whose power limit is below its default, in proportion."""
        if not limit_w or not default_w or limit_w >= default_w:
            return self
        part = limit_w / default_w
        reason = f"at a power limit of {limit_w:g} of {default_w:g} W, "
        return Floors(
            round(self.tflops * part, 2),
            round(self.gib_s * part),
            reason + self.tflops_because,
            reason + self.gib_s_because,
        )


@lru_cache(maxsize=1024)
def floors(name: str) -> Floors | None:
    """The floors of a GPU by its name in nvidia-smi; None if the model is not known.

    A part of a GPU (MIG, virtual GPU) and a portable one have none: theirs depend on the rest.
    """
    table = facts.document("performance.yml")
    if (
        model_names.is_share(name)
        or model_names.is_portable(name)
        or any(model_names.contains(name, other) for other in table["not"])
    ):
        return None
    row = model_names.row_of(table["models"], name)
    if row is None:
        return None
    tflops, tflops_because = _tflops(row, table["share"])
    gb_s, gib_s_because = _gb_s(row, table["share"])
    return Floors(round(tflops, 2), round(gb_s * _GB_PER_GIB), tflops_because, gib_s_because)


def _tflops(row: Row, share: Row) -> tuple[float, str]:
    """Float32 without tensor cores."""
    sheet = f"of {row['tflops']} TFLOP/s, data sheet: {row['sheet']}"
    targets = [limit["tflops"] for limit in _limits(row) if not limit["double"]]
    if not targets:
        return row["tflops"] * share["tflops"], f"{share['tflops']:.0%} {sheet}"
    asked, most = min(targets) * share["dcgm_tflops"], row["tflops"] * share["most_tflops"]
    if most < asked:
        return most, f"{share['most_tflops']:.0%} {sheet}"
    return asked, f"{share['dcgm_tflops']:.0%} of {min(targets)} TFLOP/s, DCGM's target"


def _gb_s(row: Row, share: Row) -> tuple[float, str]:
    """A copy on the GPU, bytes read and written."""
    found = [
        (
            limit["gb_s"] * share["dcgm_gib_s"],
            f"{share['dcgm_gib_s']:.0%} of {limit['gb_s']:g} GB/s, DCGM's limit",
        )
        for limit in _limits(row)
        if limit["gb_s"]
    ]
    found += [
        (
            rate["value"] * share["achieved"],
            f"{share['achieved']:.0%} of {rate['value']:g} GB/s, which a {rate['gpu']} reached",
        )
        for rate in facts.document("speeds.yml")["achieved"]
        if rate["what"].startswith("HBM") and rate["gpu"] in row.get("achieved", ())
    ]
    sheet = (
        row["gb_s"] * share["gib_s"],
        f"{share['gib_s']:.0%} of {row['gb_s']} GB/s, data sheet: {row['sheet']}",
    )
    return min(found or [sheet])


def _limits(row: Row) -> list[Row]:
    wanted = row.get("dcgm", ())
    return [limit for limit in facts.document("speeds.yml")["dcgm"] if limit["id"] in wanted]
