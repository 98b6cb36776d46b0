"""The meaning of an Xid or SXid: every number has an effect, and NVIDIA's action decides it."""

from __future__ import annotations

import pytest

from gpufleet.catalog import facts, smi, xids

CODES = facts.document("xids/codes.yml")["xids"]
SXIDS = facts.document("xids/sxids.yml")["codes"]
JUDGEMENT = facts.document("xids/judgement.yml")
AT = "NVRM: Xid (PCI:0000:41:00): "
NAMED = {
    "program": (11, 13, 31, 39, 43, 45, 68, 82, 108, 137),
    "note": (8, 14, 32, 37, 38, 63, 69, 92, 93, 94, 106, 121, 141, 160),
    "reset": (
        46,
        48,
        61,
        62,
        64,
        95,
        109,
        110,
        119,
        120,
        136,
        140,
        143,
        155,
        156,
        158,
        159,
        169,
        171,
        172,
    ),
    "reboot": (79, 167, 173),
    "power": (54,),
    "versions": (78,),
    "restart_vm": (151,),
    "vendor": (57, 58, 65, 122, 142, 168),
    "link": (74,),
    "asked": (154,),
}


@pytest.mark.parametrize(("expected", "codes"), NAMED.items())
def test_the_action_of_a_number_decides(expected: str, codes: tuple[int, ...]) -> None:
    """Numbers outside a table of 27 were reported as an application's, 109 and 158 too."""
    for code in codes:
        found = xids.meaning(code, f"{AT}{code}, text", 570)
        assert (found.remedy or found.effect) == expected, code
        assert (found.effect == "fail") is bool(found.remedy), code


def test_every_number_has_an_effect_and_a_remedy_if_it_needs_one() -> None:
    for code in CODES:
        found = xids.meaning(code, f"{AT}{code}, text", 570)
        assert found.name
        assert found.effect in {"fail", "inconclusive", "note", "program"}, code
        needed = found.effect in {"fail", "inconclusive"}
        assert bool(found.remedy and xids.remedy(found.remedy, "0000:41:00.0")) is needed, code


@pytest.mark.parametrize("code", [0, 157, 161, 162, 166, 170, 174, 175, 176, 177, 200, 999])
def test_a_number_that_nobody_explains_leaves_the_host_unjudged(code: int) -> None:
    """A number that the table did not know was only noted: the host passed."""
    assert xids.meaning(code, f"{AT}{code}, text", 610).effect == "inconclusive"


def test_numbers_that_are_no_longer_used_count_by_their_old_causes() -> None:
    for code, row in CODES.items():
        if row["unused"] and code != 61:
            hardware = "hardware" in (row["causes_r555"] or [])
            assert xids.meaning(code, "", 535).effect == ("fail" if hardware else "inconclusive")


def test_each_bucket_and_remedy_of_the_judgement_exists_and_is_used() -> None:
    buckets = facts.document("xids/codes.yml")["buckets"]
    assert set(JUDGEMENT["buckets"]) <= set(buckets)
    used = {row["immediate"] for row in CODES.values() if not row["unused"]} - {None}
    rules = {row["immediate"] for row in facts.document("xids/nvlink.yml")["rules"]}
    assert used | rules == set(JUDGEMENT["buckets"])
    parts = (
        JUDGEMENT["buckets"],
        JUDGEMENT["unused"],
        JUDGEMENT["xids"],
        JUDGEMENT["recovery"],
        JUDGEMENT["recovery_words"],
        JUDGEMENT["registers"],
    )
    remedies = {rule["remedy"] for part in parts for rule in part.values() if "remedy" in rule}
    assert remedies | {"record", "repeated", "look_up", "look_up_switch"} == set(
        JUDGEMENT["remedies"]
    )
    assert set(JUDGEMENT["recorded"]) <= remedies


def test_a_row_that_is_pending_anyway_is_no_failure_of_64() -> None:
    """Each text of 64 was a failure, also the one that says that the next reset repairs it."""
    start = f"{AT}64, Row Remapper: (0x00000002eebc4100) - "
    pending = start + "Attempting to remap a row that is already pending remapping. Remapping will"
    assert xids.meaning(64, pending).effect == "note"
    assert xids.meaning(64, start + "All reserved rows for bank are remapped").effect == "fail"


@pytest.mark.parametrize(
    ("code", "branch", "effect"),
    [(144, 550, "fail"), (144, 570, "inconclusive"), (139, 535, "note"), (139, 570, "program")],
)
def test_a_number_that_had_another_meaning_before_a_branch(
    code: int, branch: int, effect: str
) -> None:
    assert xids.meaning(code, f"{AT}{code}, text", branch).effect == effect


# -- 154 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "remedy"),
    [
        ("0x0 (None)", ""),
        ("0x1 (GPU Reset Required)", "reset"),
        ("0x1 (PF FLR)", "reset"),
        ("0x2 (Node Reboot Required)", "reboot"),
        ("0x2 (OS Reboot)", "reboot"),
        ("0x3 (Drain P2P)", "peer"),
        ("0x4 (Drain and Reset)", "drain_reset"),
        ("0x5 (Recover IMEX Domain)", "imex"),
        ("0x6 (Bus Reset)", "reset"),
        ("0x7 (System Reboot)", "reboot"),
        ("0x9 (Something)", "asked"),
        ("0x9", "asked"),
    ],
)
def test_the_number_of_the_recovery_action_decides(action: str, remedy: str) -> None:
    """0x3 and 0x5 got the remedy of a reset; branch 610 changed the words, 615 adds actions."""
    text = f"{AT}154, GPU recovery action changed from 0x1 (GPU Reset Required) to {action}"
    found = xids.meaning(154, text, 610)
    assert (found.remedy, found.effect) == (remedy, "fail" if remedy else "note")


def test_a_drain_of_peer_traffic_asks_for_no_reset() -> None:
    assert "needs no reset" in xids.remedy("peer", "0000:41:00.0")
    assert "nvidia-imex" in xids.remedy("imex", "0000:41:00.0")


# -- 74 --------------------------------------------------------------------------------------------


def registers(*values: int) -> str:
    listed = ", ".join(f"{value:#x}" for value in [*values, *[0] * (7 - len(values))])
    return (
        f"{AT}74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 14"
        f"({listed})"
    )


@pytest.mark.parametrize(
    ("values", "effect", "remedy"),
    [
        ((0, 0, 1 << 16), "fail", "link"),
        ((1 << 4,), "fail", "reset"),
        ((1 << 21,), "fail", "link"),
        ((1 << 27,), "fail", "reset"),
        ((0, 0, 0, 1 << 18), "fail", "fabric"),
        ((1 << 20,), "inconclusive", "link"),
        ((0, 0, 0, 1 << 16), "inconclusive", "link"),
        ((0, 0, 0, 0, 1 << 20), "note", ""),
        ((1,), "note", ""),
        ((1 | 1 << 8,), "fail", "link"),
        # Bits that no table names, and none at all.
        ((1 << 31,), "fail", "link"),
        ((1 | 1 << 31,), "fail", "link"),
        ((0,), "fail", "link"),
    ],
)
def test_the_registers_of_74_are_decoded(values: tuple[int, ...], effect: str, remedy: str) -> None:
    """74 was one failure, whatever its seven registers said."""
    found = xids.meaning(74, registers(*values), 550)
    assert (found.effect, found.remedy, "link 14" in found.name) == (effect, remedy, True)
    assert xids.meaning(74, f"{AT}74, NVLink: another form", 550).remedy == "link"


# -- 144 to 150 ------------------------------------------------------------------------------------


def nvlink5(code: int, unit: str, severity: str, intrinfo: int, status: int) -> str:
    return (
        f"{AT}{code}, pid=7, name=a, {unit} {severity} XC0 i0 Link 03 (0x{intrinfo:08x}"
        f" 0x{status:08x} 0x00000000 0x00000000 0x00000000 0x00000000)"
    )


RULES = facts.document("xids/nvlink.yml")["rules"]
EFFECTS = {"IGNORE": "note", "RESET_GPU": "fail", "XID_154_EVAL": "note"}


def test_every_rule_of_nvlink_5_is_decoded_in_both_encodings() -> None:
    """149, a link that went down, was reported as an application's."""
    assert len(RULES) == 95
    for rule in RULES:
        unit = rule["unit"].split("/")[0]
        status = int((rule["status"] or ["0x0"])[0], 16)
        for branch, encoding in ((570, "v1"), (580, "v2")):
            for part in (rule, rule.get("or")):
                if part:
                    intrinfo = int(part[encoding].replace("-", "0"), 2)
                    line = nvlink5(rule["xid"], unit, "Nonfatal", intrinfo, status)
                    found = xids.meaning(rule["xid"], line, branch)
                    assert found.effect == EFFECTS[part["immediate"]], (rule, encoding)
                    assert "not decoded" not in found.name
                    assert "link 3" in found.name


def test_a_line_of_nvlink_5_that_no_rule_explains_is_no_healthy_one() -> None:
    fatal = nvlink5(149, "NETIR_NEW", "Fatal  ", 0x3F, 0)
    assert xids.meaning(149, fatal, 580).effect == "fail"
    assert xids.meaning(149, fatal.replace("Fatal  ", "Nonfatal"), 580).effect == "inconclusive"
    older = f"{AT}149, NETIR_LINK_EVT Fatal XC 1 i 2 Link 01 [0x0000000a]"
    assert xids.meaning(149, older, 565).effect == "fail"


def test_a_link_that_is_down_is_not_ignored() -> None:
    """Two reasons of a lost link have IGNORE as their action: the link is down all the same."""
    line = nvlink5(149, "NETIR_LINK_EVT", "Fatal", 0b100110 << 20 | 0b0111000110, 0)
    found = xids.meaning(149, line, 570)
    assert (found.effect, found.remedy) == ("inconclusive", "link")
    assert "reset without power cycle" in found.name


def test_the_lines_that_were_decoded_by_hand_agree() -> None:
    for row in facts.document("xids/nvlink.yml")["checked"]:
        words, code = row["line"].split(" of ")
        registers = [int(word, 16) for word in words.split()] + [0]
        unit = row["unit"].split(" (")[0]
        branch = 570 if "v1" in row["unit"] else 580
        line = nvlink5(int(code), unit, "Fatal", *registers[:2])
        found = xids.meaning(int(code), line, branch)
        assert unit in found.name
        if row["immediate"] == "RESET_GPU":
            assert (found.effect, found.remedy) == ("fail", "reset")


# -- SXids -----------------------------------------------------------------------------------------

ALWAYS = (10006, 10007, 12020, 19084, 22003, 23001, 26003, 26006, 28003, 28005)


def sxid(code: int, word: str = "") -> str:
    return f"nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): {code:05d}, {word}Link 62 what happened"


def test_the_word_in_the_line_decides_of_an_sxid() -> None:
    for code in SXIDS:
        assert xids.switch_meaning(code, sxid(code, "Fatal, ")).effect == "fail", code


@pytest.mark.parametrize("code", ALWAYS)
def test_sxids_that_are_fatal_without_the_word(code: int) -> None:
    """Only lines with the word Fatal were seen."""
    for word in ("", "Non-fatal, "):
        found = xids.switch_meaning(code, sxid(code, word))
        assert (found.effect, found.remedy) == ("fail", "fabric")


def test_what_guide_and_line_call_otherwise_and_unknown_ones_are_unjudged() -> None:
    for code in (19061, 19064, 19067, 28006, 29999):
        found = xids.switch_meaning(code, sxid(code, "Non-fatal, "))
        assert (found.effect, found.remedy) == ("inconclusive", "look_up_switch"), code
        assert "reset all" not in xids.remedy(found.remedy, "0000:c1:00.0", record=True)
    for code in (28003, 28006):
        line = f"nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): {code}, {{}}Link 46 MC TS crumbstore"
        assert xids.switch_meaning(code, line.format("Non-fatal, ")).effect == "note", code
        assert xids.switch_meaning(code, line.format("Fatal, ")).effect == "fail", code
    for code in (12028, 19055, 20001, 22013, 10004, 25010):
        assert xids.switch_meaning(code, sxid(code, "Non-fatal, ")).effect == "note", code


# -- 45: the end of a program that another Xid caused ----------------------------------------------


@pytest.mark.parametrize("code", [13, 31, 48, 79, 94, 119, 145, 149])
def test_the_xid_that_ended_a_program_counts(code: int) -> None:
    line = "NVRM: Xid (PCI:0000:dc:00): 45, pid=1, name=python3, Ch 00000001"
    found = xids.meaning(45, f"{line} caused by previous Xid {code}", 590)
    alone = xids.meaning(code, "", 590)
    assert (found.effect, found.remedy) == (alone.effect, alone.remedy)
    assert xids.meaning(45, line, 590).effect == "program"
    assert xids.meaning(45, f"{line} caused by previous Xid 45", 590).effect == "program"


@pytest.mark.parametrize(
    "text",
    [
        xids.remedy("reset", "0"),
        xids.remedy("drain_reset", "0"),
        smi.remedy("reset").format(gpu=0),
        smi.remedy("reset-replace").format(gpu=0),
        smi.remedy("drain-reset").format(gpu=0),
    ],
)
def test_each_remedy_with_a_reset_of_a_gpu_has_the_same_steps(text: str) -> None:
    """Some omitted what holds a GPU, and nvidia-smi then refuses to reset it."""
    steps = (
        "end its programs and any display, systemctl stop nvidia-persistenced nvidia-dcgm, rmmod"
        " nvidia_drm where it is loaded, nvidia-smi --gpu-reset -i 0 "
    )
    assert steps in text
    assert "or reboot" in text


@pytest.mark.parametrize("name", ["link", "fabric"])
def test_each_reset_of_all_gpus_ends_what_holds_them(name: str) -> None:
    text = xids.remedy(name, "0")
    assert "systemctl stop nvidia-persistenced nvidia-dcgm, rmmod nvidia_drm" in text
    assert "nvidia-smi --gpu-reset," in text
