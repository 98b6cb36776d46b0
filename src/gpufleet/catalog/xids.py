"""The meaning of an Xid or SXid of the kernel log, and its remedy: facts plus judgement.

`data/xids/codes.yml`, `nvlink.yml` and `sxids.yml` hold NVIDIA's actions, `judgement.yml` what
gpufleet makes of them. Pure functions over the text of a message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from gpufleet.documents.types import Row

from . import facts, resets

Effect = Literal["fail", "inconclusive", "note", "program"]
# The Xid by which the driver reports the recovery action that a GPU needs.
RECOVERY = 154
# The Xid of a program that ended or was killed, by its own fault or after another Xid.
PROGRAM_ENDED = 45
# The part of a message that names a process, and says nothing of the error.
PROCESS = re.compile(r"^(?:pid='?[^,]*'?, )?(?:name=[^,]*, )?")
# From this branch on, the driver encodes Xids 144 to 150 in the second way.
SECOND_ENCODING = 575


@dataclass(frozen=True)
class Meaning:
    """The meaning of a message: `remedy` is a name in `judgement.yml`, empty where none is due."""

    name: str
    effect: Effect
    remedy: str = ""
    # NVIDIA's immediate action, if its catalogue has one.
    action: str | None = None
    # The driver reports the action that the card needs also by Xid 154.
    reported_by_154: bool = False


def remedy(name: str, address: str, *, record: bool = False) -> str:
    """The sentence that tells what to do; `record`: the driver does not show that it was done."""
    texts = _judgement()["remedies"]
    added = [texts["record"]] if record and name in _judgement()["recorded"] else []
    return resets.with_steps("; ".join([texts[name], *added])).format(gpu=address)


def meaning(code: int, text: str, branch: int | None = None) -> Meaning:
    """The meaning of an Xid in a line of the kernel log, printed by a driver of this branch."""
    renumbered = _judgement()["renumbered"].get(code)
    if renumbered and branch is not None and branch < renumbered["below"]:
        return meaning(renumbered["as"], text, branch)
    if (before := previous(code, text)) is not None:
        found = meaning(before, text, branch)
        return replace(found, name=f"{found.name} (Xid {before}, which {code} names as its cause)")
    row, own = facts.document("xids/codes.yml")["xids"].get(code), _own(code)
    if row is None:
        return _by("a number that is not in NVIDIA's catalogue", _judgement()["unknown_code"])
    name = own.get("name", row["name"])
    found = _by(name, _rule(row) | own)
    if own.get("unless") and own["unless"] in text:
        found = Meaning(name, "note")
    decoders = {"registers": _registers, "nvlink": _nvlink, "recovery": _recovery}
    bucket = _judgement()["buckets"].get(row["immediate"]) or {}
    if decode := decoders.get(bucket.get("decode", "")):
        found = decode(code, found, message(code, text), branch)
    return replace(found, action=row["immediate"], reported_by_154=_reported(row, branch))


def previous(code: int, text: str) -> int | None:
    """The Xid that ended the program whose end this one reports."""
    found = re.search(r"caused by previous Xid (\d+)\s*$", text) if code == PROGRAM_ENDED else None
    return int(found[1]) if found and int(found[1]) != code else None


def message(code: int, text: str) -> str:
    """The part of a line behind the number, without the process."""
    return PROCESS.sub("", re.split(rf"\): {code}, ", text, maxsplit=1)[-1])


def switch_meaning(code: int, text: str) -> Meaning:
    """The meaning of an SXid, which an NVSwitch of NVLink 2 to 4 logs."""
    rules = _judgement()["sxids"]
    if rules["renumbered"]["words"] in text:
        code = rules["renumbered"]["codes"].get(code, code)
    row = facts.document("xids/sxids.yml")["codes"].get(code)
    guide = (row or {}).get("guide")
    name = row["name"] if row else "a number that is in none of NVIDIA's tables"
    word = re.search(r"\b(Non-fatal|Fatal|Correctable)\b|Severity (\d)", text)
    printed = {"1": "Fatal", "0": "Non-fatal"}.get(word[2], word[1]) if word else None
    if (
        printed == "Fatal"
        or guide == "always_fatal"
        or code in rules["companions"]
        or code in rules["fatal_without_the_word"]
    ):
        return Meaning(name, "fail", "fabric")
    if row is None or guide == "fatal":
        # An error that the driver itself calls non-fatal needs no reset.
        harmless = printed in {"Non-fatal", "Correctable"}
        return Meaning(name, "inconclusive", "look_up_switch" if harmless else "fabric")
    return Meaning(name, "note")


def _judgement() -> Row:
    return facts.document("xids/judgement.yml")


def _own(code: int) -> Row:
    found: Row = _judgement()["xids"].get(code) or {}
    return found


def _by(name: str, rule: Row) -> Meaning:
    needs = rule["effect"] in {"fail", "inconclusive"}
    return Meaning(name, rule["effect"], rule["remedy"] if needs else "")


def _rule(row: Row) -> Row:
    """The rule of the judgement for a row of the catalogue."""
    judgement = _judgement()
    if row["unused"]:
        hardware = "hardware" in (row["causes_r555"] or [])
        found: Row = judgement["unused"]["hardware" if hardware else "other"]
    else:
        found = judgement["buckets"].get(row["immediate"]) or judgement["without_action"]
    return found


def _reported(row: Row, branch: int | None) -> bool:
    """Return whether a driver of this branch prints a 154 as well, by the catalogue."""
    since = re.search(r"R(\d+)", row.get("via_154") or "")
    introduced = bool(row.get("via_154")) and since is None
    return introduced or bool(since and branch is not None and branch >= int(since[1]))


# -- 154: the recovery action ----------------------------------------------------------------------


def recovery_action(text: str) -> tuple[int, str] | None:
    """The number and words of the action that a 154 changed to."""
    # The last one: a program's name, which comes before, may say the same.
    found = re.match(r"(?s).*\bto 0x([0-9a-fA-F]+)(?: \(([^)]*)\))?", text)
    return (int(found[1], 16), found[2] or "") if found else None


def recovery_rule(number: int, words: str) -> tuple[str, Row]:
    """The name and the rule of an action; one of a later driver is judged by its words."""
    known = facts.document("xids/codes.yml")["xid154"]["codes"].get(number)
    if known:
        return known["meaning"], _judgement()["recovery"][number]
    for word, rule in _judgement()["recovery_words"].items():
        if word in words.lower():
            return words, rule
    return (words or f"action 0x{number:x}"), _judgement()["buckets"]["XID_154"]


def _recovery(code: int, found: Meaning, text: str, branch: int | None) -> Meaning:
    action = recovery_action(text)
    if action is None:
        return found
    name, rule = recovery_rule(*action)
    return _by(f"the driver asks for a recovery action: {name}", rule)


# -- 74: the registers of NVLink 3 and 4 -----------------------------------------------------------


def _registers(code: int, found: Meaning, text: str, branch: int | None) -> Meaning:
    printed = re.match(r"(?s).*link (-?\d+)\s*\(([^)]{0,256})\)", text)
    if not printed:
        return found
    values = [int(word, 16) for word in re.findall(r"0x[0-9a-fA-F]+", printed[2])]
    classes = set(_classes(values))
    rules = _judgement()["registers"]
    # A bit that no table names counts as a fault of the link.
    worst = next((name for name in rules if name in classes), None)
    if worst is None or (None in classes and rules[worst]["effect"] != "fail"):
        return replace(found, name=f"{found.name} on link {printed[1]}")
    return _by(f"{found.name} on link {printed[1]} ({worst.replace('_', ' ')})", rules[worst])


def _classes(values: list[int]) -> Iterator[str | None]:
    """The class of each bit that is set; None for a bit of a described register without one."""
    table = facts.document("xids/codes.yml")["xid74_registers"]
    for number, value in enumerate(values, start=1):
        described = table.get(f"reg{number}") or {}
        for bit in (bit for bit in range(value.bit_length()) if value >> bit & 1):
            names = [name for name, bits in described.items() if bit in bits]
            yield names[0] if names else None


# -- 144 to 150: NVLink 5 --------------------------------------------------------------------------


def _nvlink(code: int, found: Meaning, text: str, branch: int | None) -> Meaning:
    fatal = bool(re.search(r"(?<![-\w])Fatal\b", text))
    severity = re.search(r"(?<=\s)(?:Fatal|Non-?fatal)\b", text)
    unit = text[: severity.start()].strip() if severity else ""
    link = re.search(r"\bLink (-?\d+)", text)
    where = f" on link {int(link[1])}" if link and int(link[1]) >= 0 else ""
    values = [int(word, 16) for word in re.findall(r"0x[0-9a-fA-F]{1,8}", text)][:2]
    rules = list(_decoded(code, unit, values, branch)) if values[1:] else []
    if not rules:
        name = f"{found.name}{where}, not decoded"
        return (
            _by(name, _judgement()["buckets"]["RESET_GPU"]) if fatal else replace(found, name=name)
        )
    reason = _reason(rules[0][0], values[0])
    name = f"{found.name}{where}: {rules[0][0]['unit']}{f', {reason}' if reason else ''}"
    # Where the encodings disagree, or an action is ignored though the link is down: the safe side.
    effects = [_by(name, _judgement()["buckets"][action]) for _, action in rules]
    worst = min(
        effects, key=lambda each: ("fail", "inconclusive", "note", "program").index(each.effect)
    )
    if fatal and worst.effect == "note":
        return _by(name, {"effect": "inconclusive", "remedy": "link"})
    return worst


def _decoded(
    code: int, unit: str, values: list[int], branch: int | None
) -> Iterator[tuple[Row, str]]:
    """The matching rules with their actions; of both encodings where the branch is unknown."""
    intrinfo, status = values
    encodings = ["v1", "v2"] if branch is None else ["v2" if branch >= SECOND_ENCODING else "v1"]
    matching = []
    for rule in facts.document("xids/nvlink.yml")["rules"]:
        wanted = rule["status"]
        if rule["xid"] != code or (wanted and status not in [int(each, 16) for each in wanted]):
            continue
        second = rule.get("or") or {}
        if any(_matches(second.get(encoding), intrinfo) for encoding in encodings):
            matching.append((rule, str(second["immediate"])))
        elif any(_matches(rule[encoding], intrinfo) for encoding in encodings):
            matching.append((rule, str(rule["immediate"])))
    same = [each for each in matching if unit in each[0]["unit"].split("/")]
    yield from same or matching


def _matches(pattern: str | None, value: int) -> bool:
    return pattern is not None and all(
        bit in ("-", printed) for bit, printed in zip(pattern, f"{value:032b}", strict=True)
    )


def _reason(rule: Row, intrinfo: int) -> str | None:
    """Why a link went down, which bits 25 to 20 tell."""
    if not rule["unit"].startswith("NETIR_LINK"):
        return None
    words: dict[int, Any] = facts.document("xids/nvlink.yml")["link_down_reasons"]["words"]
    text = words.get(intrinfo >> 20 & 0x3F)
    return str(text) if text else None
