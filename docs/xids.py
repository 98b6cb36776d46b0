"""The page of the Xids: every number, NVIDIA's action, and what gpufleet makes of it."""

from __future__ import annotations

from collections.abc import Callable

from gpufleet.catalog import facts, xids
from gpufleet.documents.types import Row

Table = Callable[[list[str], list[list[str]]], str]
EFFECTS = {
    "fail": "fails",
    "inconclusive": "INCONCLUSIVE",
    "note": "note of the card",
    "program": "note of a program",
}
HEAD = """\
`kernel.log` and `kernel.application-errors` judge each Xid of a GPU and each SXid of an NVSwitch
in the kernel log. NVIDIA's immediate action decides: what asks for a reset, a reboot, a look at
the machine or the vendor **fails**, and nightly runs drain a host that fails
([nightly](../how-to/nightly.md)). What asks to restart the program or for nothing is a **note**:
shown, no failure, no drain. What nobody explains is **INCONCLUSIVE**: not healthy, and not
drained.

Branch numbers in the columns are driver branches. `src/gpufleet/catalog/data/xids` names the
source of each figure; an empty action means that the catalogue has none. The remedies are listed
at the end.

"""
CLEARED = """\

## When a message is cleared

A message counts until the boot, and no longer than

- the driver was loaded again (`Nvlink Core is being initialized` in the log);
- the kernel found the card again, a virtual machine's driver reset it, or somebody recorded the
  reset (`echo 'gpufleet: GPU ADDRESS was reset' > /dev/kmsg`, which only root can write):
  NVIDIA's driver logs no reset, and a 154 "to 0x0" never follows one;
- the driver asks for no recovery action any more (`gpu_recovery_action` of nvidia-smi is `None`),
  this probe computed on the card without an error, and the driver is of a branch that would print
  a 154 beside this Xid.

Where the driver asks for nothing but would not always tell, or prints no recovery action and the
card computes right with clean counters, the host is INCONCLUSIVE with the same remedy. What was
logged while the probe ran is never cleared, nor is anything on a card that computes wrong, whose
counters of memory errors are not clean, or whose driver asks for an action.

What was cleared is INCONCLUSIVE all the same where it came back on one card in one boot: from the
second time on that the driver asked for a reboot (a 154 "from 0x0"), or with more fatal messages of
74 than a GPU has links.

A log that does not reach back to the boot is a note where of every card the driver's counters are
clean, or the driver asks for nothing; else it is INCONCLUSIVE.
"""
REGISTERS = """\

## 74: registers of NVLink 3 and 4

The worst bit that is set in the message's seven registers decides; a bit that no table names
counts as a fault of the link.

"""
NVLINK5 = """\

## 144 to 150: NVLink 5

Decoded by NVIDIA's rules, in the first encoding below branch 575 and the second from there on;
where the branch is unknown, by both, and the safe side counts. A line that no rule explains fails
if it says Fatal. A rule whose action is IGNORE for a link that is down (line Fatal) is
INCONCLUSIVE.
"""
RECOVERY = """\

## 154: the recovery action

The number after "to" decides. R615 adds two actions whose numbers are in no source: of a number
that is not listed the words decide, and any other action fails with the advice to read it with
nvidia-smi. While a card has such an action pending, its other Xids have the same remedy.

"""


def page(table: Table, source: str) -> str:
    """Every Xid, the decisions, and the SXids that need a word of their own."""
    codes = facts.document("xids/codes.yml")
    judgement = facts.document("xids/judgement.yml")
    rows = []
    for code, row in codes["xids"].items():
        found = xids.meaning(code, "", xids.SECOND_ENCODING)
        rows.append(
            [
                str(code),
                found.name,
                "unused" if row["unused"] else row["immediate"] or "",
                row["investigate"] or "",
                row.get("via_154") or "",
                _effect(found),
            ]
        )
    parts = [
        f"# The Xids\n{source}\n",
        HEAD,
        table(["Xid", "Meaning", "Action", "Investigate", "154 from", "Here"], rows),
        CLEARED,
        "\n## Where the catalogue needs a decision\n\n",
        table(["Xid or action", "Decision", "Sources that disagree"], list(_decisions())),
    ]
    parts += [
        REGISTERS,
        _rules(table, judgement["registers"], "Bits"),
        NVLINK5,
        RECOVERY,
        _rules(table, judgement["recovery"] | judgement["recovery_words"], "Action"),
    ]
    rules = judgement["sxids"]
    fatal = ", ".join(map(str, rules["fatal_without_the_word"]))
    parts += [
        "\n## SXids\n\n",
        *(
            f"- {text}\n"
            for text in (
                *rules["decisions"],
                f"Fatal although no word is printed: {fatal}.",
                "19084 comes beside a fatal one, and fails as that.",
                "A number that no table of NVIDIA names is INCONCLUSIVE, with the word Fatal it"
                " fails.",
            )
        ),
    ]
    parts += [
        "\n## Remedies\n\n",
        table(
            ["Name", "Remedy"],
            [
                [name.replace("_", " "), xids.remedy(name, "ADDRESS")]
                for name in judgement["remedies"]
            ],
        ),
    ]
    return "".join(parts)


def _effect(found: xids.Meaning) -> str:
    return EFFECTS[found.effect] + (f": {found.remedy.replace('_', ' ')}" if found.remedy else "")


def _decisions() -> list[list[str]]:
    codes = facts.document("xids/codes.yml")
    judgement = facts.document("xids/judgement.yml")
    disagree = {row["xid"]: row["text"] for row in codes["disagreements"]}
    own = {
        str(key): rule for key, rule in (*judgement["xids"].items(), *judgement["buckets"].items())
    }
    for number, rule in judgement["renumbered"].items():
        own[str(number)] = {"decision": f"below branch {rule['below']} as {rule['as']}"}
    names = [name for name, rule in own.items() if "decision" in rule or name in disagree]
    names += [name for name in disagree if name not in names]
    return [
        [
            name,
            own.get(name, {}).get("decision") or "NVIDIA's action counts",
            disagree.get(name, ""),
        ]
        for name in names
    ]


def _rules(table: Table, rules: dict[object, Row], heading: str) -> str:
    return table(
        [heading, "Here"],
        [
            [
                hex(name) if isinstance(name, int) else str(name).replace("_", " "),
                EFFECTS[rule["effect"]]
                + (f": {rule['remedy'].replace('_', ' ')}" if "remedy" in rule else ""),
            ]
            for name, rule in rules.items()
        ],
    )
