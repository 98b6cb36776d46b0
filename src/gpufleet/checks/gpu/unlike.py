"""Settings in which a GPU differs from the others of its model in this host.

Nothing says which of two values is meant, so a difference leaves the host unjudged until it is
declared or set right. What is declared is compared with the declaration instead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gpufleet.checks.base.registry import Finding, shortened
from gpufleet.model.plan import Plan
from gpufleet.model.sections.gpu import SmiDevice
from gpufleet.model.verdict import Verdict

from .smi_elements import label, virtual


@dataclass(frozen=True)
class _Setting:
    """A setting that can be declared; `shown` and `command` take its value."""

    key: str
    what: str
    value: Callable[[SmiDevice], int | None]
    shown: Callable[[int], str]
    command: Callable[[int], str]


def _watts(card: SmiDevice) -> int | None:
    limit = card["power_limit_w"]
    return None if limit is None else round(limit)


def _ecc(card: SmiDevice) -> int | None:
    return None if card["ecc"] is None else int(card["ecc"])


_SETTINGS = (
    _Setting(
        "power_limit_w", "power limit", _watts, "{} W".format, "-pl {}, and again at boot".format
    ),
    _Setting(
        "ecc", "ECC mode", _ecc, lambda on: ("off", "on")[on], "-e {}, then reboot the host".format
    ),
)


def unlike(plan: Plan, listed: Sequence[SmiDevice]) -> Iterator[Finding]:
    """Undeclared settings in which GPUs of one model and default power limit differ."""
    models: dict[tuple[str, float | None], list[SmiDevice]] = defaultdict(list)
    for card in listed:
        # A guest's share has the settings of the GPU below it, which the guest cannot change.
        if card["name"] and not virtual(card) and not card.get("broken"):
            models[card["name"], card["power_default_w"]].append(card)
    for setting in _SETTINGS:
        if plan["expect"].get(setting.key) is None:
            for own in models.values():
                yield from _differing(setting, own)


def _differing(setting: _Setting, own: Sequence[SmiDevice]) -> Iterator[Finding]:
    values: dict[int, list[SmiDevice]] = defaultdict(list)
    for card in own:
        if (value := setting.value(card)) is not None:
            values[value].append(card)
    if len(values) < 2:
        return
    usual = max(values, key=lambda value: len(values[value]))
    most = 2 * len(values[usual]) > sum(map(len, values.values()))
    others = {value: cards for value, cards in values.items() if not most or value != usual}
    shown = "; ".join(
        f"{shortened([*map(label, cards)], 8)}: {setting.shown(value)}"
        for value, cards in others.items()
    )
    siblings = f"; most others of the model: {setting.shown(usual)}" if most else ""
    if most:
        index, wanted = next(iter(others.values()))[0]["index"], setting.shown(usual)
        remedy = f"on the host: nvidia-smi -i {index} {setting.command(usual)}; or declare"
    else:
        wanted, remedy = "...", "set it alike on all of them (on the host: nvidia-smi), and declare"
    yield Finding(
        f"GPUs of one model differ in their {setting.what}: {shown}{siblings};"
        f" gpu_expect.{setting.key}: not set",
        f"{remedy} gpu_expect: {{{setting.key}: {wanted.removesuffix(' W')}}}",
        verdict=Verdict.INCONCLUSIVE,
    )
