"""A healthy GPU host with one thing as a sick machine shows it: never PASS. Made by edits."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from typing import Any

import pytest

from gpufleet.judge import judge
from tests.support.healthy_host import Document, data, document
from tests.support.host_parts import compute_run, framework, with_gpus

Edit = Callable[[Document], Any]


@cache
def _healthy(count: int) -> tuple[Document, Document]:
    plan, snapshot = document("plan.json"), document("snapshot.json")
    with_gpus(plan, snapshot, count)
    return plan, snapshot


def judged(edit: Edit, count: int = 2) -> dict[str, tuple[str, str]]:
    """Verdict and cause of the checks that are neither healthy nor undeclared."""
    plan, snapshot = deepcopy(_healthy(count))
    edit(snapshot)
    return {
        check["id"]: (check["verdict"], check["cause"])
        for check in judge.judge(plan, snapshot)["checks"]
        if check["verdict"] not in {"PASS", "NOT-DECLARED"}
    }


def expect(edit: Edit, check: str, verdict: str, cause: str, count: int = 2) -> None:
    found = judged(edit, count)
    assert check in found, found
    assert found[check][0] == verdict
    assert cause in found[check][1]


@pytest.mark.parametrize("count", [1, 2, 8])
def test_a_host_without_an_edit_is_healthy(count: int) -> None:
    assert judged(lambda snapshot: None, count) == {}


def smi(key: str, value: object) -> Edit:
    """The second card in both readings."""

    def edit(snapshot: Document) -> None:
        for section in ("smi", "smi_after"):
            data(snapshot, section)["devices"][1][key] = value

    return edit


def element(path: str, value: str, usual: str) -> Edit:
    """An element of the second card, where the others have the usual one."""

    def edit(snapshot: Document) -> None:
        for section in ("smi", "smi_after"):
            for at, each in enumerate(data(snapshot, section)["devices"]):
                each["elements"][path] = value if at == 1 else usual

    return edit


def pcie(key: str, value: int) -> Edit:
    def edit(snapshot: Document) -> None:
        for section in ("smi", "smi_after"):
            data(snapshot, section)["devices"][1]["pcie"][key] = value
        link = compute_run(snapshot)["devices"][1]["link"]
        link[key] = value
        now = key.removesuffix("_max")
        link[now] = min(link[now], value)

    return edit


def device(key: str, value: object) -> Edit:
    return lambda snapshot: compute_run(snapshot)["devices"][1].update({key: value})


@pytest.mark.parametrize("count", [2, 8])
@pytest.mark.parametrize(
    ("edit", "check", "verdict", "cause"),
    [
        (smi("clock_sm_max_mhz", 1095), "gpu.settings", "INCONCLUSIVE", "highest SM clock"),
        (smi("power_max_w", 350.0), "gpu.settings", "INCONCLUSIVE", "highest power limit"),
        (
            element("max_clocks/mem_clock", "1593 MHz", "2619 MHz"),
            "gpu.settings",
            "INCONCLUSIVE",
            "highest memory clock",
        ),
        (pcie("generation_max", 3), "gpu.pcie", "INCONCLUSIVE", "fastest PCIe generation"),
        (pcie("width_max", 8), "gpu.pcie", "INCONCLUSIVE", "most PCIe lanes"),
        (device("sm_count", 100), "toolkit.device-query", "FAIL", "multiprocessors"),
        (device("memory_bus_bits", 4096), "toolkit.device-query", "FAIL", "memory bus"),
        (device("l2_kib", 25600), "toolkit.device-query", "FAIL", "L2 cache"),
        (device("memory_mib", 65000), "toolkit.device-query", "FAIL", "memory"),
        (device("warp_size", 16), "toolkit.device-query", "FAIL", "warp size"),
        (device("clock_mhz", 1095), "toolkit.device-query", "INCONCLUSIVE", "highest clock"),
        (device("memory_clock_mhz", 800), "toolkit.device-query", "INCONCLUSIVE", "memory clock"),
    ],
)
def test_a_card_unlike_its_siblings_is_told(
    edit: Edit, check: str, verdict: str, cause: str, count: int
) -> None:
    expect(edit, check, verdict, f"differ in their {cause}: GPU ", count)


def test_another_vbios_is_told_where_most_have_one() -> None:
    edit = element("vbios_version", "96.00.74.00.01", "96.00.89.00.01")
    expect(edit, "gpu.settings", "INCONCLUSIVE", "VBIOS: GPU 1", 8)
    assert judged(edit, 2) == {}


def test_a_slot_excuses_a_link_and_a_maker_excuses_clocks() -> None:
    def in_a_narrow_slot(snapshot: Document) -> None:
        pcie("width_max", 8)(snapshot)
        data(snapshot, "gpus")["pci"][1]["port"]["max_link_width"] = "8"

    def of_another_maker(snapshot: Document) -> None:
        element("pci/pci_sub_system_id", "40901462", "889D1043")(snapshot)
        smi("clock_sm_max_mhz", 1995)(snapshot)
        device("clock_mhz", 1995)(snapshot)

    assert "gpu.pcie" not in judged(in_a_narrow_slot)
    assert judged(of_another_maker) == {}


@pytest.mark.parametrize(
    ("key", "value", "cause"),
    [
        ("memory_mib", 40000, "MiB of memory: 40000 and 81559"),
        ("name", "NVIDIA A100-SXM4-80GB", "model: NVIDIA A100-SXM4-80GB and NVIDIA H100"),
        ("compute_capability", "8.0", "compute capability: 8.0 and 9.0"),
        ("uuid", "GPU-11111111-0000-0000-0000-00000000000", "UUID: gpu-"),
    ],
)
def test_sources_that_contradict_each_other_are_told(key: str, value: object, cause: str) -> None:
    def edit(snapshot: Document) -> None:
        for each in compute_run(snapshot)["devices"]:
            each[key] = f"{value}{each['index']}" if key == "uuid" else value
        for each in data(snapshot, "smi")["devices"]:
            each["compute_capability"] = "9.0"

    expect(
        edit, "toolkit.device-query", "INCONCLUSIVE", "disagree on GPU 0 (0000:00:00.0): " + cause
    )


# -- work that was not done ------------------------------------------------------------------------


def load(**fields: object) -> Edit:
    """The load of the second GPU, by a workload that says what was asked for."""

    def edit(snapshot: Document) -> None:
        for entry in compute_run(snapshot)["sustained"]:
            entry["requested_s"] = 120.0
        compute_run(snapshot)["sustained"][1].update(fields)

    return edit


def samples(*tflops: float, gpus: tuple[int, ...] = (1,)) -> Edit:
    """The rates under load, in turn, without a reason for them."""

    def edit(snapshot: Document) -> None:
        for gpu in gpus:
            entry = compute_run(snapshot)["sustained"][gpu]
            for at, sample in enumerate(entry["samples"]):
                sample.update(tflops=tflops[at % len(tflops)], throttle=[])

    return edit


def fewer(part: str, checked: int) -> Edit:
    def edit(snapshot: Document) -> None:
        for entry in compute_run(snapshot)[part]:
            entry["requested"] = 5
        compute_run(snapshot)[part][1]["checked"] = checked

    return edit


@pytest.mark.parametrize(
    ("edit", "check", "cause"),
    [
        (load(seconds=3.0, checked=800), "gpu.sustained", "for 3.0 s, asked for were 120 s"),
        (load(seconds=100.0), "gpu.sustained", "for 100.0 s, asked for were 120 s"),
        (load(checked=1), "gpu.sustained", "1 products were checked under load"),
        (load(checked=3000), "gpu.sustained", "3000 products were checked under load"),
        (fewer("formats", 1), "gpu.formats", "1 products were checked, asked for were 5"),
        (fewer("cublas", 1), "toolkit.cublas", "1 products were checked, asked for were 5"),
        (samples(38.0, 5.0), "gpu.sustained", "computes unevenly under load: 60 of 120"),
        (samples(38.0, 38.0, 38.0, 9.0), "gpu.sustained", "computes unevenly under load: 30"),
        (samples(19.0, gpus=tuple(range(2))), "gpu.sustained", "reaches 19.0 TFLOP/s under load"),
    ],
)
def test_work_that_was_not_done_is_inconclusive(edit: Edit, check: str, cause: str) -> None:
    expect(edit, check, "INCONCLUSIVE", cause)


def test_a_load_as_asked_for_and_one_at_its_power_limit_pass() -> None:
    def limited(snapshot: Document) -> None:
        for entry in compute_run(snapshot)["sustained"]:
            for sample in entry["samples"]:
                sample.update(tflops=19.0, throttle=["sw-power-cap"])

    assert judged(load()) == {}
    assert judged(limited) == {}


def test_one_sum_is_not_as_many_as_the_workload_computes() -> None:
    def edit(snapshot: Document) -> None:
        for entry in compute_run(snapshot)["consensus"]:
            del entry["sums"][1:]

    expect(edit, "gpu.consensus", "INCONCLUSIVE", "1 sums were computed, asked for are 4")


# -- results that cannot be compared ---------------------------------------------------------------


def not_applicable(part: str, only: str | None = None) -> Edit:
    def edit(snapshot: Document) -> None:
        for entry in compute_run(snapshot)[part]:
            chosen = only in {None, entry["format"]} and entry["format"] not in {"fp32", "fp64"}
            if entry["gpu"] == 1 and chosen:
                entry.update(wrong=None, not_applicable="cuBLAS lacks it")
                entry.update({"sums": []} if "sums" in entry else {"checked": 0})

    return edit


def another_seed(snapshot: Document) -> None:
    for entry in compute_run(snapshot)["consensus"]:
        if entry["gpu"] == 1:
            entry.update(seed=20784, sums=[text[::-1] for text in entry["sums"]])


@pytest.mark.parametrize("count", [2, 8])
@pytest.mark.parametrize(
    ("edit", "check", "cause"),
    [
        (not_applicable("formats"), "gpu.formats", "not applicable, cuBLAS lacks it; but GPU "),
        (not_applicable("formats", "int8"), "gpu.formats", "int8 by cuBLAS of CUDA 11.8 on GPU 1"),
        (not_applicable("formats", "fp8-e5m2"), "gpu.formats", "has it by the same library"),
        (not_applicable("consensus"), "gpu.consensus", "has it by the same library"),
        (not_applicable("consensus", "bf16"), "gpu.consensus", "has it by the same library"),
        (another_seed, "gpu.consensus", "on GPU 1 are compared with nothing"),
    ],
)
def test_results_that_cannot_be_compared_are_inconclusive(
    edit: Edit, check: str, cause: str, count: int
) -> None:
    expect(edit, check, "INCONCLUSIVE", cause, count)


def test_sums_of_another_day_that_other_hosts_have_are_compared() -> None:
    plan, snapshot = deepcopy(_healthy(8))
    another_seed(snapshot)
    plan["sums"] = [
        {
            "format": entry["format"],
            "capability": "9.0",
            "seed": 20784,
            "rounds": 1 << at,
            "sum": text,
            "gpus": 3,
        }
        for entry in compute_run(snapshot)["consensus"]
        if entry["gpu"] == 1
        for at, text in enumerate(entry["sums"])
    ]
    found = {row["id"]: row for row in judge.judge(plan, snapshot)["checks"]}
    assert "compared with nothing" not in found["gpu.consensus"]["cause"]


# -- the card beside the driver --------------------------------------------------------------------


def unowned(**fields: object) -> Edit:
    def edit(snapshot: Document) -> None:
        for section in ("smi", "smi_after"):
            data(snapshot, section)["devices"][1].update(fields)

    return edit


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"memory_used_mib": 70000}, "has 70000 of 81559 MiB used, and no process"),
        ({"memory_used_mib": 9000}, "has 9000 of 81559 MiB used, and no process"),
        ({"utilization_percent": 100}, "is 100 % busy, and no process"),
    ],
)
def test_what_is_used_by_nobody_is_told(fields: Document, cause: str) -> None:
    expect(unowned(**fields), "gpu.settings", "INCONCLUSIVE", cause)


def test_memory_with_a_user_or_used_for_a_moment_is_not_unowned() -> None:
    def held(snapshot: Document) -> None:
        unowned(memory_used_mib=70000)(snapshot)
        row = {"pid": 4711, "user": "ann", "command": "python3", "nodes": ["/dev/nvidia1"]}
        data(snapshot, "driver")["holders"] = [row]

    def at_first(snapshot: Document) -> None:
        data(snapshot, "smi")["devices"][1].update(memory_used_mib=70000, utilization_percent=100)

    def in_instances(snapshot: Document) -> None:
        unowned(memory_used_mib=70000)(snapshot)
        element("mig_mode/current_mig", "Enabled", "Enabled")(snapshot)

    def by_the_host(snapshot: Document) -> None:
        unowned(memory_used_mib=70000)(snapshot)
        data(snapshot, "driver")["coherent_memory"] = {"mode": "numa", "nodes": [2]}

    for edit in (held, at_first, in_instances, by_the_host):
        found = judged(edit).get("gpu.settings", ("", ""))
        assert "no process of the host" not in found[1]


def links(change: Callable[[Document], Any]) -> Edit:
    """The NVLinks of the second card, in both readings."""

    def edit(snapshot: Document) -> None:
        for section in ("smi", "smi_after"):
            change(data(snapshot, section)["nvlink"][1])

    return edit


def one_switch(row: Document) -> None:
    for link in row["links"]:
        link["remote_address"] = "0000:c0:00.0"


def two_switches(row: Document) -> None:
    for link in row["links"]:
        link["remote_address"] = f"0000:c{link['link'] % 2}:00.0"


@pytest.mark.parametrize("count", [2, 8])
@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (one_switch, "differ in their number of NVSwitches: GPU "),
        (two_switches, "differ in their number of NVSwitches: GPU "),
        (lambda row: row["links"][3].update(version=5), "has NVLinks of versions 5 and 6"),
        (lambda row: [link.update(version=5) for link in row["links"]], "versions of NVLinks"),
    ],
)
def test_other_ends_of_nvlinks_are_compared(change: Edit, cause: str, count: int) -> None:
    expect(links(change), "gpu.nvlink", "INCONCLUSIVE", cause, count)


@pytest.mark.parametrize("kind", ["sram", "dram"])
def test_corrected_errors_are_told_and_judged_by_their_growth(kind: str) -> None:
    path = f"ecc_errors/volatile/{kind}_correctable"

    def before(snapshot: Document) -> None:
        for section in ("smi", "smi_after"):
            data(snapshot, section)["devices"][1]["elements"][path] = "90000"

    def growing(snapshot: Document) -> None:
        data(snapshot, "smi_after")["devices"][1]["elements"][path] = "90000"

    plan, snapshot = deepcopy(_healthy(2))
    before(snapshot)
    found = {row["id"]: row for row in judge.judge(plan, snapshot)["checks"]}
    assert found["gpu.memory-errors"]["verdict"] == "PASS"
    assert f"90000 corrected {kind.upper()} errors" in found["gpu.memory-errors"]["evidence"]
    expect(growing, "gpu.after-load", "INCONCLUSIVE", "GPU 1 (0000:01:00.0) corrected 90000 errors")


# -- the machine and its ports ---------------------------------------------------------------------


def port(**fields: object) -> Edit:
    return lambda snapshot: data(snapshot, "network")["devices"][0]["ports"][0].update(fields)


@pytest.mark.parametrize(
    ("fields", "cause"), [({"pkeys": []}, "no partition key"), ({"gids": []}, "no GID")]
)
@pytest.mark.parametrize("count", [1, 2, 8])
def test_an_infiniband_port_that_cannot_talk_fails(
    fields: Document, cause: str, count: int
) -> None:
    expect(port(**fields), "network.ports", "FAIL", f"is active and has {cause}", count)


def machine(**fields: object) -> Edit:
    return lambda snapshot: data(snapshot, "machine")["clock"].update(fields)


def ended(option: str, path: str) -> Edit:
    def edit(snapshot: Document) -> None:
        mount = {"path": path, "type": "ext4", "options": [option, "relatime", "rw"]}
        data(snapshot, "machine")["mounts"].append(mount)

    return edit


@pytest.mark.parametrize(
    ("edit", "check", "cause"),
    [
        (
            machine(unsynchronised=True, services=[], max_error_us=16_000_000),
            "host.probe",
            "not synchronised, and may be off by 16 s",
        ),
        (machine(unsynchronised=True, services=[]), "host.probe", "is not synchronised"),
        (ended("emergency_ro", "/"), "host.disk", "stopped writing to / (emergency_ro)"),
        (ended("emergency_ro", "/data"), "host.disk", "stopped writing to /data (emergency_ro)"),
        (ended("shutdown", "/scratch2"), "host.disk", "stopped writing to /scratch2 (shutdown)"),
    ],
)
def test_what_nobody_would_declare_is_told(edit: Edit, check: str, cause: str) -> None:
    expect(edit, check, "INCONCLUSIVE", cause)


def test_a_clock_that_an_unknown_service_sets_is_right() -> None:
    assert judged(machine(unsynchronised=False, services=[])) == {}
    assert judged(machine(unsynchronised=True, services=["chronyd"])) == {}


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_that_is_not_limited_to_this_boot_counts_as_incomplete(clean: bool) -> None:
    def with_(key: str) -> tuple[str, str]:
        plan, snapshot = deepcopy(_healthy(2))
        data(snapshot, "kernel_log")[key] = False
        if not clean:
            for section in ("smi", "smi_after"):
                data(snapshot, section)["devices"][1]["remap"].update(correctable=None)
                data(snapshot, section)["devices"][1]["ecc_uncorrected_volatile"] = None
        checks = {row["id"]: row for row in judge.judge(plan, snapshot)["checks"]}
        return checks["kernel.log"]["verdict"], checks["kernel.log"]["evidence"]

    assert with_("since_boot") == with_("complete")
    assert "does not reach back to the boot" in with_("since_boot")[1] or not clean


# -- frameworks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("tflops", [0.02, 1.7, 5.0])
@pytest.mark.parametrize("count", [2, 8])
def test_a_framework_that_is_slow_on_one_card_is_told(tflops: float, count: int) -> None:
    def edit(snapshot: Document) -> None:
        framework(snapshot)["matmul"][1]["tflops"] = tflops

    expect(edit, "stack.matmul", "INCONCLUSIVE", f"/GPU:1 multiplies at {tflops} TFLOP/s", count)


@pytest.mark.parametrize("mib", [300, 20000])
def test_a_framework_that_offers_little_of_the_free_memory_is_told(mib: int) -> None:
    def edit(snapshot: Document) -> None:
        framework(snapshot)["small"]["local_devices"][-1]["memory_mib"] = mib

    expect(edit, "stack.local-devices", "INCONCLUSIVE", f"has {mib} MiB to use on")


# -- the other way round ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("threshold", "verdict"), [("96 C", "PASS"), ("N/A", "INCONCLUSIVE"), ("", "INCONCLUSIVE")]
)
def test_a_card_prints_its_limit_in_degrees_or_its_margin(threshold: str, verdict: str) -> None:
    """An RTX 4080 SUPER with driver 595 prints N/A as its T.Limit for ever, and its limits."""

    def edit(snapshot: Document) -> None:
        for section in ("smi", "smi_after"):
            for each in data(snapshot, section)["devices"]:
                each["elements"]["temperature/gpu_temp_tlimit"] = "N/A"
                each["elements"]["temperature/gpu_temp_slow_threshold"] = threshold

    found = judged(edit).get("gpu.throttle", ("PASS", ""))
    assert found[0] == verdict
    assert verdict == "PASS" or "margin to its temperature limit" in found[1]


HOST_SIDE = [
    "pci/pci_gpu_link_info/pcie_gen/max_host_link_gen",
    "platformInfo/chassis_serial_number",
    "platformInfo/slot_number",
    "platformInfo/tray_index",
    "platformInfo/host_id",
]


@pytest.mark.parametrize("path", [*HOST_SIDE, "clocks/video_clock"])
@pytest.mark.parametrize("usual", ["Unknown Error", "4"])
def test_an_error_of_the_hosts_side_on_all_cards_alike_is_none_of_a_card(
    path: str, usual: str
) -> None:
    found = judged(element(path, "Unknown Error", usual)).get("gpu.smi", ("PASS", ""))
    if path in HOST_SIDE and usual == "Unknown Error":
        assert found[0] == "PASS"
    else:
        assert found[0] == "INCONCLUSIVE"
        assert f"does not answer for {path}" in found[1]


def login(memlock: str | None, account: int | None = 1000, *lines: str) -> Edit:
    """The limit of the ssh login that the probe came by, and lines of limits.conf."""

    def edit(snapshot: Document) -> None:
        section = data(snapshot, "machine")
        section["login"] = {"account": account, "memlock": memlock}
        section["limits"]["logins"] = [*lines]

    return edit


@pytest.mark.parametrize(
    ("edit", "kib"),
    [
        (login("65536:65536"), 64),
        (login("65536:unlimited"), 64),
        (login("32768:65536", 501), 32),
        (login("0:0", 65534), 0),
        (login("65536:65536", 1000, "* - memlock unlimited"), 64),
        (login("65536:65536", 1000, "@guests hard memlock 32", "root - memlock unlimited"), 64),
    ],
)
@pytest.mark.parametrize("count", [1, 2, 8])
def test_a_login_that_may_lock_no_memory_is_told_where_ports_do_rdma(
    edit: Edit, kib: int, count: int
) -> None:
    expect(edit, "network.ports", "INCONCLUSIVE", f"may lock {kib} KiB of memory (memlock)", count)


@pytest.mark.parametrize(
    "edit",
    [
        login("8388608:8388608"),
        login("unlimited:unlimited"),
        login("65536:65536", 0),
        login("65536:65536", None),
        login(None),
        login("65536:65536", 1000, "@hpc - memlock unlimited"),
        login("65536:65536", 1000, "@hpc soft memlock 33554432"),
        lambda snapshot: data(snapshot, "machine").update(login=None),
        lambda snapshot: data(snapshot, "machine").pop("login", None),
    ],
)
def test_a_limit_of_root_or_of_nobody_knows_whom_is_not_judged(edit: Edit) -> None:
    assert judged(edit) == {}


def test_a_host_without_rdma_ports_needs_no_locked_memory() -> None:
    def edit(snapshot: Document) -> None:
        login("65536:65536")(snapshot)
        data(snapshot, "network").update(devices=[], adapters=[])

    assert "memlock" not in str(judged(edit))
