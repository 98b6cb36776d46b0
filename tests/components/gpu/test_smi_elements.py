"""Every element that tells of health, in every state, on every gathered card and driver.

Healthy documents pass; what is broken, an error or absent is a finding that names the card.
"""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from gpufleet.catalog import model_names, smi
from gpufleet.components.checks import CHECKS, Finding, Sections
from gpufleet.documents.validator import mark_damaged
from gpufleet.documents.verdict import Verdict
from gpufleet.on_host.mig import parse_mig
from gpufleet.on_host.smi_document import parse_smi
from gpufleet.on_host.smi_elements import NO_ANSWER
from lab.gpus.smi_text import Texts
from tests.support import healthy_host, smi_corpus
from tests.support.smi_judged import SECOND, host_of_cards, judged, verdict

SAMPLES = list(smi_corpus.samples())
ERRORS = (
    "Unknown Error",
    "[Unknown Error]",
    "ERR!",
    "GPU is lost",
    "GPU requires reset",
    "Timeout",
    "Corrupted infoROM",
    "Function Not Found",
    "Not Found",
    "Insufficient Permissions",
    "GPU access blocked by the operating system",
    "In use by another client",
    "Uninitialized",
    "Interrupt Request Issue",
    "Insufficient External Power",
    "Argument version mismatch",
    "Driver Not Loaded",
    "Driver/library version mismatch",
    "Invalid Argument",
    "No data",
    "Insufficient Memory",
    "Insufficient Size",
    "System is not in ready state",
    "a new word",
    "Resource not in correct state to perform requested operation",
)


@pytest.fixture(scope="module")
def host() -> tuple[dict[str, Any], dict[str, Any]]:
    return host_of_cards()


IDLE: Texts = {}
HISTORY: Texts = {
    "ecc_errors/volatile/sram_correctable": "3",
    "ecc_errors/volatile/dram_correctable": "12",
    "ecc_errors/aggregate/dram_uncorrectable": "1",
    "ecc_errors/aggregate/double_bit/total": "2",
    "remapped_rows/remapped_row_corr": "2",
    "remapped_rows/remapped_row_unc": "1",
    "retired_pages/double_bit_retirement/retired_count": "4",
    "pci/replay_counter": "174",
    "remapped_rows/row_remapper_histogram/row_remapper_histogram_low": "1 bank(s)",
}
LOADED: Texts = {
    "utilization/gpu_util": "100 %",
    "temperature/gpu_temp": "78 C",
    "performance_state": "P0",
    **{
        f"clocks_{word}_reasons/clocks_{word}_reason_{name}": text
        for word in ("event", "throttle")
        for name, text in (("gpu_idle", "Not Active"), ("sw_power_cap", "Active"))
    },
    "clocks_event_reasons_counters/clocks_event_reasons_counters_sw_power_cap": "1234 us",
}
QUIET: Texts = {
    "fb_memory_usage/used": "0 MiB",
    "persistence_mode": "Enabled",
    "pci/tx_util": "0 KB/s",
}


def only(sample: str, changes: Texts) -> Texts:
    """Those changes whose elements the sample's card has a value of."""
    have = smi_corpus.card(sample)
    return {path: text for path, text in changes.items() if path in have and have[path] != "N/A"}


HEALTHY = {
    "idle": [IDLE] * 2,
    "loaded": [LOADED] * 2,
    "history": [HISTORY, IDLE],
    "one": [QUIET],
    "eight": [LOADED, IDLE, HISTORY, QUIET] * 2,
}


@pytest.mark.parametrize("kind", HEALTHY)
def test_healthy_cards_of_every_driver_pass(host: Any, kind: str) -> None:
    found = {}
    for sample in SAMPLES:
        for name, findings in judged(
            host, sample, *(only(sample, texts) for texts in HEALTHY[kind])
        ).items():
            if findings:
                found[f"{sample} {name}"] = [finding.cause for finding in findings]
    assert found == {}
    assert len(SAMPLES) * len(HEALTHY) >= 200
    assert len({row["driver"].partition(".")[0] for row in smi_corpus.samples().values()}) >= 15


def test_the_documents_are_of_the_snapshot_s_type(host: Any) -> None:
    snapshot = copy.deepcopy(host[1])
    for sample in SAMPLES:
        healthy_host.data(snapshot, "smi").update(parse_smi(smi_corpus.document(sample, {}, {})))
        assert mark_damaged(snapshot)["sections"]["smi"]["state"] == "ok", sample


def cases() -> Iterator[tuple[str, smi.Rule, str]]:
    """Sample, rule and path of each element that is judged and has a value there."""
    for sample in SAMPLES:
        have = smi_corpus.card(sample)
        for rule in smi.all_rules():
            if rule.row.get("only") == "superchip" and not sample.startswith("gb"):
                continue
            for path in dict.fromkeys(path for shape in rule.shapes for path in shape):
                if have.get(path) not in {None, "N/A", smi_corpus.STATES["deprecated"]}:
                    yield sample, rule, path


CASES = [case for case in cases() if case[1].row.get("each") is None]


def test_an_error_in_the_place_of_a_value_is_a_finding_of_its_card(host: Any) -> None:
    texts = itertools.cycle(ERRORS)
    for sample, rule, path in CASES:
        text = next(texts)
        if rule.read == "text" and text == "a new word":
            continue
        findings = judged(host, sample, {}, {path: text}, checks=tuple({rule.check, "gpu.smi"}))
        causes = [finding for finding in findings[rule.check] if finding.cause.startswith(SECOND)]
        assert causes, (sample, path, text)
        assert verdict(findings[rule.check]) in {Verdict.FAIL, Verdict.INCONCLUSIVE}
        assert all(text in finding.cause for finding in causes), (sample, path, text)
        if smi.fault(text):
            assert verdict(findings["gpu.smi"]) == Verdict.FAIL
        assert not [each for group in findings.values() for each in group if "GPU 0" in each.cause]


def test_what_the_driver_prints_of_such_cards_and_is_absent_was_not_read(host: Any) -> None:
    """An absent element counted like N/A: with a block renamed every check passed."""
    counted: Counter[bool] = Counter()
    for sample, rule, path in CASES:
        if "note" in rule.row or rule.row.get("once"):
            continue
        others = [each for shape in rule.shapes if path not in shape for each in shape]
        findings = judged(
            host, sample, {}, {path: None, **dict.fromkeys(others)}, checks=(rule.check,)
        )[rule.check]
        named = [
            each
            for each in findings
            if SECOND in each.cause and each.verdict == Verdict.INCONCLUSIVE
        ]
        wanted = smi.demanded(
            rule, smi_corpus.samples()[sample]["generation"], smi_corpus.samples()[sample]["driver"]
        )
        assert bool(named) or not wanted, (sample, path)
        counted[wanted] += 1
    # What is printed and not demanded: too few documents show it.
    assert counted[True] > 800, counted
    assert counted[False] < 0.05 * counted[True], counted


def test_a_whole_block_that_is_absent_or_an_error_was_not_read(host: Any) -> None:
    for sample, text in itertools.product(SAMPLES, (None, "Unknown Error", "GPU is lost")):
        have = smi_corpus.card(sample)
        blocks: dict[str, set[str]] = {}
        for case in CASES:
            if (
                case[0] == sample
                and "/" in case[2]
                and "note" not in case[1].row
                and smi.demanded(
                    case[1],
                    smi_corpus.samples()[sample]["generation"],
                    smi_corpus.samples()[sample]["driver"],
                )
            ):
                blocks.setdefault(case[2].partition("/")[0], set()).add(case[1].check)
        for block, checks in blocks.items():
            changes: Texts = {path: None for path in have if path.startswith(f"{block}/")}
            if text is not None:
                changes = {**changes, block: text, "pci/pci_bus_id": None}
            found = judged(host, sample, {}, changes, checks=(*checks,))
            for check in checks:
                assert any(SECOND in each.cause for each in found[check]), (sample, block, check)


def bad(rule: smi.Rule) -> Iterator[tuple[str, str, Verdict]]:
    """Text, words of the finding and verdict of values that say that the card is broken."""
    row = rule.row
    for word, found in row.get("bad", {}).items():
        yield word, found["says"], Verdict(found.get("verdict", "FAIL"))
    if other := row.get("other"):
        yield "some reason", other["says"].format(value="some reason"), Verdict.FAIL
    if most := row.get("at_least"):
        for more in (0, 7):
            number = most["limit"] + more
            yield (
                str(number),
                most["says"].format(value=number),
                Verdict(most.get("verdict", "FAIL")),
            )
    if nought := row.get("at_most"):
        yield "0", nought["says"].format(value=0), Verdict(nought.get("verdict", "FAIL"))
    if least := row.get("falls_to"):
        yield "-9 C", least["says"].partition("{value}")[0], Verdict.FAIL
    if "rises_to" in row:
        # Where a limit is printed at all, the corpus has 95 C.
        yield "95 C", "has memory at 95 °C, and its limit is 95 °C", Verdict.FAIL
    if rule.key == "ecc_uncorrected_volatile":
        yield "7", "had 7 uncorrected memory errors", Verdict.FAIL
    if rule.key == "remap.pending":
        yield "Yes", "will remap a faulty memory row", Verdict.FAIL
    if rule.key == "remap.failure":
        yield "Yes", "could not remap", Verdict.FAIL
    if rule.name.startswith("throttle by") and "hardware" not in rule.name.split():
        yield "Active", "is throttled by", Verdict.FAIL


def test_a_count_below_zero_was_not_read(host: Any) -> None:
    for sample, rule, path in CASES:
        if rule.check != "gpu.memory-errors" or rule.read != "number":
            continue
        findings = judged(host, sample, {}, {path: "-1"}, checks=(rule.check,))[rule.check]
        assert Verdict.INCONCLUSIVE in {each.verdict for each in findings}, (sample, path)
        assert all(each.cause.startswith(SECOND) for each in findings)


def is_desktop(sample: str) -> bool:
    """Return whether a sample is of a GeForce or TITAN."""
    return model_names.is_desktop(smi_corpus.card(sample)["product_name"])


def test_a_bad_value_is_a_finding_of_its_card_with_a_remedy(host: Any) -> None:
    seen = set()
    for sample, rule, path in CASES:
        for text, words, wanted in bad(rule):
            # Laptops are throttled by design, cards for desktops hold their temperature with it;
            # GB200 and GB300 work before the racks' switches do.
            if (
                ("laptop" in sample and rule.check == "gpu.throttle")
                or (path.endswith("sw_thermal_slowdown") and is_desktop(sample))
                or (sample.startswith("gb") and text == "Not Started")
                or (
                    "rises_to" in rule.row
                    and smi_corpus.card(sample).get(rule.row["rises_to"]["against"]) != "95 C"
                )
            ):
                continue
            findings = judged(host, sample, {}, {path: text}, checks=(rule.check,))[rule.check]
            assert {
                each.cause.startswith(SECOND) and words in each.cause and bool(each.remedy)
                for each in findings
                if each.verdict == wanted
            } == {True}, (sample, path, text, findings)
            seen.add((rule.name, text))
    # Every rule with a bad value was tried on some card.
    assert {name for name, _ in seen} >= {
        rule.name
        for rule in smi.all_rules()
        if [*bad(rule)] and not rule.row.get("each") and rule.row.get("only") != "virtual"
    }


def test_no_answer_where_such_a_card_has_one_is_no_value(host: Any) -> None:
    for sample, rule, path in CASES:
        findings = judged(host, sample, {}, {path: "N/A"}, checks=(rule.check,))[rule.check]
        have, generation = smi_corpus.card(sample), smi_corpus.samples()[sample]["generation"]
        needs, name = rule.row.get("needs"), smi_corpus.samples()[sample]["gpu"]
        needed = (
            bool(needs)
            and "+mig" not in sample
            and (generation in needs.get("generations", [generation]))
            and (
                "models" not in needs
                or smi.is_model(name, smi_corpus.device(sample), generation, needs["models"])
            )
            and (have.get("ecc_mode/current_ecc") == "Enabled" or not needs.get("ecc"))
        )
        if needed or not findings:
            assert bool(findings) == needed, (sample, path)


MIG = [sample for sample in SAMPLES if "+mig" in sample]


@pytest.mark.parametrize("errors", ["7", "Unknown Error", "GPU is lost", None])
def test_errors_of_mig_instances_are_read(host: Any, errors: str | None) -> None:
    for sample in MIG:
        instances = smi_corpus.instance(0) + smi_corpus.instance(1, errors)
        findings = judged(host, sample, {}, {"mig_devices": instances})["gpu.memory-errors"]
        assert verdict(findings) == (Verdict.FAIL if errors == "7" else Verdict.INCONCLUSIVE)
        assert all(SECOND in each.cause for each in findings)
        assert errors is None or "MIG instance 2/0" in findings[0].cause


@pytest.mark.parametrize("text", ["Unknown Error", "GPU is lost"])
def test_a_list_of_mig_instances_that_is_an_error_was_not_read(host: Any, text: str) -> None:
    for sample in MIG:
        findings = judged(host, sample, {}, {"mig_devices": text})["gpu.memory-errors"]
        assert verdict(findings) == Verdict.INCONCLUSIVE


def test_every_error_text_is_known_as_an_error() -> None:
    assert [text for text in ERRORS if text != "a new word" and not NO_ANSWER.search(text)] == []


def test_every_rule_names_elements_sources_and_remedies_that_are_there() -> None:
    known = {row["path"]: row for row in smi.facts.document("smi_fields.yml")["elements"]}
    sources = smi.facts.document("smi_fields.yml")["meta"]["sources"]
    for rule in smi.all_rules():
        paths = [path for shape in rule.shapes for path in shape]
        each = rule.row.get("each")
        assert rule.row.get("from") or any(
            (f"{each}/{path}" if each else path) in known for path in paths
        ), rule.name
        assert set(rule.row["source"]) <= set(sources), rule.name
        assert rule.check in CHECKS
        for found in [
            *rule.row.get("bad", {}).values(),
            *(
                rule.row[key]
                for key in ("other", "at_least", "falls_to", "rises_to")
                if key in rule.row
            ),
        ]:
            assert smi.remedy(found["remedy"])


GUEST: Texts = {
    "product_name": "NVIDIA L40S-2Q",
    "gpu_virtualization_mode/virtualization_mode": "VGPU",
}


def test_a_virtual_machine_s_share_of_a_gpu_has_less_to_report(host: Any) -> None:
    for sample in SAMPLES:
        lacks = dict.fromkeys(
            path
            for path in smi_corpus.card(sample)
            if path.startswith(
                ("ecc_errors/", "retired_pages/", "remapped_rows", "fabric/", "clocks_", "power_")
            )
        )
        found = judged(host, sample, {**lacks, **GUEST, "ecc_mode/current_ecc": "N/A"}, GUEST)
        for name in ("gpu.smi", "gpu.recovery", "gpu.memory-errors", "gpu.fabric"):
            assert found[name] == [], (sample, name)


def test_a_driver_newer_than_this_release_is_judged_like_the_newest_that_is_known(
    host: Any,
) -> None:
    """Branch 610 prints the power limits elsewhere; what else it drops is named."""
    flat = "gpu_power_readings/"
    moved: Texts = {f"{flat}current_power_limit": None, f"{flat}default_power_limit": None}
    limits: Texts = {
        f"{flat}gpu_ceiling_power_limit/{name}_power_limit": "300.00 W"
        for name in ("current", "default")
    }
    for sample in ("l40s@595.91", "t4@595.91", "rtx3080@595.58"):
        text = smi_corpus.document(sample, {**moved, **limits}, {**moved, **limits}).replace(
            smi_corpus.samples()[sample]["driver"], "610.43.02"
        )
        assert not any(judged(host, sample, {}, {}, text=text).values())
        text = smi_corpus.document(sample, moved, {**moved, **limits}).replace(
            smi_corpus.samples()[sample]["driver"], "610.43.02"
        )
        findings = judged(host, sample, {}, {}, text=text)["gpu.settings"]
        assert [
            (each.verdict, "GPU 0" in each.cause, "GPU 1" in each.cause) for each in findings
        ] == [(Verdict.INCONCLUSIVE, True, False)]


def test_a_tool_older_than_its_driver_is_named_and_a_newer_one_lacks_nothing(host: Any) -> None:
    """Real nvidia-smi 550 in front of another driver's library prints its own elements."""
    h100, a100 = "h100@580.105", "a100-40@570.148"
    old: Texts = {"gpu_recovery_action": None}
    text = smi_corpus.document(h100, old, old).replace("_v13.dtd", "_v12.dtd")
    findings = judged(host, h100, {}, {}, text=text)["gpu.recovery"]
    assert "install the nvidia-smi of driver 580.105.08" in findings[0].remedy
    text = smi_corpus.document(
        a100,
        *[{path: None for path in smi_corpus.card(a100) if path.startswith("gpu_reset_status")}]
        * 2,
    )
    assert judged(host, a100, {}, {}, text=text)["gpu.recovery"]
    assert not judged(host, a100, {}, {}, text=text.replace("_v12.dtd", "_v13.dtd"))["gpu.recovery"]


def test_a_snapshot_of_an_earlier_probe_is_not_healthy_by_default(host: Any) -> None:
    plan, snapshot = copy.deepcopy(host)
    for card in healthy_host.data(snapshot, "smi")["devices"]:
        del card["elements"], card["broken"]
    for name in ("gpu.recovery", "gpu.fabric", "gpu.memory-errors", "gpu.throttle"):
        findings = [
            item
            for item in CHECKS[name].function(plan, Sections(snapshot, CHECKS[name].reads))
            if isinstance(item, Finding)
        ]
        assert {each.verdict for each in findings} == {Verdict.INCONCLUSIVE}


def test_an_error_in_the_place_of_the_mig_mode_is_no_gpu_without_mig() -> None:
    assert parse_mig("0, Unknown Error\n1, [N/A]\n2, Disabled\n3, GPU is lost\n", "") == [
        {"gpu": 1, "mode": None, "pending": None, "instances": []},
        {"gpu": 2, "mode": "off", "pending": None, "instances": []},
    ]


H100, A100 = "h100@580.105", "a100-40@570.148"
# What nothing read, or read and judged by nothing: (changes of a card, check, verdict, words).
UNSEEN: list[tuple[Texts, str, Verdict, str]] = [
    (
        {"mig_mode/pending_mig": "Enabled"},
        "gpu.settings",
        Verdict.INCONCLUSIVE,
        "has MIG Disabled, and Enabled from the next reset on",
    ),
    (
        {"mig_mode/current_mig": "Enabled", "mig_mode/pending_mig": "Enabled"},
        "gpu.settings",
        Verdict.FAIL,
        "has MIG enabled and no instances",
    ),
    (
        {"ecc_mode/pending_ecc": "Disabled"},
        "gpu.settings",
        Verdict.INCONCLUSIVE,
        "has ECC Enabled, and Disabled from the next reset on",
    ),
    (
        {"gpu_power_readings/current_power_limit": "N/A"},
        "gpu.settings",
        Verdict.INCONCLUSIVE,
        "does not report its power limit",
    ),
    (
        {"inforom_version/img_version": "Corrupted infoROM"},
        "gpu.smi",
        Verdict.FAIL,
        "has a damaged InfoROM",
    ),
    ({"clocks/sm_clock": "GPU is lost"}, "gpu.smi", Verdict.FAIL, "fell off the bus"),
    ({"processes": "GPU is lost"}, "gpu.smi", Verdict.FAIL, "fell off the bus"),
    (
        {"fan_speed": "Unknown Error", "gpu_power_readings/instant_power_draw": "ERR!"},
        "gpu.smi",
        Verdict.INCONCLUSIVE,
        "does not answer for fan_speed, gpu_power_readings/instant_power_draw",
    ),
    ({"fb_memory_usage/total": "0 MiB"}, "gpu.smi", Verdict.FAIL, "reports a memory of 0 MiB"),
    ({"fb_memory_usage/total": "N/A"}, "gpu.smi", Verdict.INCONCLUSIVE, "does not report its mem"),
    ({"uuid": "N/A"}, "gpu.smi", Verdict.INCONCLUSIVE, "does not report its uuid"),
    ({"temperature/gpu_temp": "N/A"}, "gpu.throttle", Verdict.INCONCLUSIVE, "does not report its"),
    ({"temperature/gpu_temp": "511 C"}, "gpu.throttle", Verdict.INCONCLUSIVE, "of 511 °C"),
    (
        {"ecc_mode/current_ecc": "N/A"},
        "gpu.memory-errors",
        Verdict.INCONCLUSIVE,
        "does not report its ecc",
    ),
    (
        {"ecc_errors/volatile/dram_uncorrectable": "18446744073709551615"},
        "gpu.memory-errors",
        Verdict.INCONCLUSIVE,
        "does not report its ecc uncorrected volatile",
    ),
    (
        {"pci/pci_gpu_link_info/link_widths/current_link_width": "N/A"},
        "gpu.pcie",
        Verdict.INCONCLUSIVE,
        "does not report its pcie.width",
    ),
]


@pytest.mark.parametrize(("changes", "check", "wanted", "words"), UNSEEN)
def test_a_data_centre_card_that_is_broken_or_set_so_is_seen(
    host: Any, changes: Texts, check: str, wanted: Verdict, words: str
) -> None:
    for sample in (H100, A100):
        findings = judged(host, sample, {}, changes)[check]
        assert [
            each.verdict
            for each in findings
            if each.cause.startswith(SECOND) and words in each.cause
        ] == [wanted], sample


def test_a_clock_block_that_is_no_answer_was_not_read_of_a_data_centre_card(host: Any) -> None:
    changes: Texts = {
        path: None for path in smi_corpus.card(H100) if path.startswith("clocks_event_reasons/")
    }
    changes = {**changes, "clocks_event_reasons": "N/A"}
    assert verdict(judged(host, H100, {}, changes)["gpu.throttle"]) == Verdict.INCONCLUSIVE


def test_gpus_with_the_same_uuid_are_reported(host: Any) -> None:
    uuid: Texts = {"uuid": "GPU-00000000-1111-2222-3333-444444444400"}
    findings = judged(host, H100, uuid, uuid)["gpu.smi"]
    assert verdict(findings) == Verdict.FAIL and "have the same UUID" in findings[0].cause


def test_what_an_integrated_gpu_cannot_say_is_no_finding(host: Any) -> None:
    """A GB10 has the memory of the CPU, and no PCIe link or limit of its own."""
    lacks: Texts = {
        **{
            path: "N/A"
            for path in smi_corpus.card("pro6000-maxq@590.44")
            if path.startswith(("fb_memory_usage", "gpu_power_readings", "pci/pci_gpu"))
        },
        "product_name": "NVIDIA GB10",
        "ecc_mode/current_ecc": "N/A",
        "ecc_mode/pending_ecc": "N/A",
    }
    found = judged(host, "pro6000-maxq@590.44", lacks)
    assert {name: each for name, each in found.items() if each} == {}


@pytest.mark.parametrize(
    ("status", "wanted"),
    [
        ("Licensed (Expiry: 2027-3-4 10:20:33 GMT)", Verdict.PASS),
        ("N/A", Verdict.PASS),
        ("Unlicensed (Unrestricted)", Verdict.INCONCLUSIVE),
        ("Unlicensed (Restricted)", Verdict.FAIL),
        ("Unlicensed", Verdict.FAIL),
        ("Unknown Error", Verdict.INCONCLUSIVE),
    ],
)
def test_a_guest_s_gpu_without_license_is_reported_and_a_whole_one_needs_none(
    host: Any, status: str, wanted: Verdict
) -> None:
    license_status: Texts = {"vgpu_software_licensed_product/license_status": status}
    found = judged(host, "l40s@595.91", {**GUEST, **license_status})["gpu.settings"]
    assert verdict(found) == wanted
    if status != "Unknown Error":
        assert judged(host, "l40s@595.91", license_status)["gpu.settings"] == []


def test_a_warning_beside_the_document_is_a_finding(host: Any) -> None:
    """nvidia-smi names a corrupted InfoROM after the document, whatever its status."""
    plan, snapshot = copy.deepcopy(host)
    for text, wanted in (
        ("WARNING: infoROM is corrupted at gpu 0000:3B:00.0", Verdict.FAIL),
        ("WARNING: something new", Verdict.INCONCLUSIVE),
        (None, Verdict.PASS),
    ):
        healthy_host.data(snapshot, "smi")["remarks"] = text
        found = [
            item
            for item in CHECKS["gpu.smi"].function(
                plan, Sections(snapshot, CHECKS["gpu.smi"].reads)
            )
            if isinstance(item, Finding)
        ]
        assert verdict(found) == wanted


@pytest.mark.parametrize("at", ["</gpu>", "<fan_speed>", "</ecc_errors>", "</nvidia_smi_log>"])
def test_a_complaint_in_the_middle_of_the_document_is_a_finding(host: Any, at: str) -> None:
    text = smi_corpus.document(H100, {}, {})
    for output, wanted in (
        ("Unable to determine the device handle: Unknown Error", Verdict.INCONCLUSIVE),
        ("GPU is lost", Verdict.FAIL),
    ):
        after = at if at.startswith("</") and "gpu" in at else ""
        found = judged(
            host,
            H100,
            {},
            {},
            text=text.replace(at, f"{after}\n{output}\n{'' if after else at}", 1),
        )
        assert verdict(found["gpu.smi"]) == wanted, output


def test_branch_610_s_word_on_its_version_is_no_missing_version() -> None:
    for head in (
        "<driver_version>610.57.04 [Deprecated; Use KMD Version instead]</driver_version>",
        "<kmd_version>610.57.04</kmd_version>",
    ):
        found = parse_smi(f"<nvidia_smi_log>{head}<cuda_version>13.3 [Deprecated]</cuda_version>")
        assert (found["driver_version"], found["cuda_version"]) == ("610.57.04", "13.3")
