"""Cards, the kernel's log and CUDA's start: each check catches what it is for, and nothing healthy.

A row breaks a host with two healthy cards, or changes it into another healthy one, and lists every
check that then is not as before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpufleet.catalog import facts
from gpufleet.checks import judge
from gpufleet.probe.smi_document import parse_smi
from tests.support.healthy_host import Document, data, document, verdicts, with_cards
from tests.support.smi_text import CONSUMER, OLD, smi_text

Break = Callable[[Document, Document], None]
Caught = dict[str, tuple[str, str, str]]
FAULTS: list[tuple[str, Break, Caught]] = []

FIRST = "GPU 0 (0000:00:00.0)"
NEEDS_A_CARD = ("gpu.identity", "gpu.visible", "gpu.memory-errors", "gpu.pcie", "gpu.throttle",
                "gpu.settings")
UNKNOWN = dict.fromkeys(NEEDS_A_CARD, ("INCONCLUSIVE", "nvidia-smi lists no GPU", "gpu.smi"))


def fault(also: Caught | None = None, **caught: tuple[str, str, str]) -> Callable[[Break], Break]:
    """Register a break with the checks that catch it: {check: (verdict, of cause, of remedy)}."""

    def register(function: Break) -> Break:
        named = {name.replace("__", ".").replace("_", "-"): words for name, words in caught.items()}
        FAULTS.append((function.__name__, function, {**named, **(also or {})}))
        return function

    return register


def card(snapshot: Document, at: int = 0) -> Document:
    found: Document = data(snapshot, "smi")["devices"][at]
    return found


def printed(snapshot: Document, *cards: dict[str, str | None]) -> None:
    """Let nvidia-smi have said this of the cards."""
    places = [{"pci/pci_bus_id": f"00000000:0{at}:00.0", **texts} for at, texts in enumerate(cards)]
    data(snapshot, "smi").update(parse_smi(smi_text(places)))


def event(snapshot: Document, kind: str, **fields: Any) -> None:
    data(snapshot, "kernel_log")["events"].append(
        {"kind": kind, "code": None, "address": None, "pid": None, "process": None,
         "uptime_s": 100.5, "count": 1, "text": f"what the kernel said of {kind}", **fields})


def test_a_card_that_was_reset_since_needs_nothing_more(plan: Document, snapshot: Document) -> None:
    with_cards(plan, snapshot)
    event(snapshot, "xid", code=95, address="0000:00:00.0", text="NVRM: Xid: 95, uncontained")
    assert verdicts(plan, snapshot)["kernel.log"] == "FAIL"
    event(snapshot, "xid", code=154, address="0000:00:00.0", uptime_s=900.0,
          text="NVRM: Xid: 154, GPU recovery action changed from 0x1 (GPU Reset) to 0x0 (None)")
    assert verdicts(plan, snapshot)["kernel.log"] == "PASS"
    event(snapshot, "xid", code=79, address="0000:00:00.0", uptime_s=1000.0,
          text="NVRM: Xid: 79, fallen off the bus")
    assert verdicts(plan, snapshot)["kernel.log"] == "FAIL"


@pytest.mark.parametrize(("model", "name", "same"), [
    ("RTX 3080", "NVIDIA GeForce RTX 3080", True), ("H100", "NVIDIA H100 PCIe", True),
    ("RTX 3080", "NVIDIA GeForce RTX 3080 Ti", False),
    ("RTX 3080", "NVIDIA GeForce RTX 3080 Laptop GPU", False)])
def test_another_kind_of_a_model_is_another_model(
    plan: Document, snapshot: Document, model: str, name: str, same: bool
) -> None:
    with_cards(plan, snapshot)
    plan["expect"]["model"] = model
    for at in (0, 1):
        card(snapshot, at)["name"] = name
    assert verdicts(plan, snapshot)["gpu.identity"] == ("PASS" if same else "FAIL")


# -- gpu.smi, gpu.visible, gpu.identity -----------------------------------------------------------


@fault(gpu__smi=("FAIL", "couldn't communicate with the NVIDIA driver", "dkms status"),
       also=UNKNOWN)
def nvidia_smi_finds_no_driver(plan: Document, snapshot: Document) -> None:
    data(snapshot, "smi").update(
        status=9, devices=[], driver_version=None, cuda_version=None, nvml=dict.fromkeys(
            ("status", "version", "count")),
        error="NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")


@fault(gpu__smi=("FAIL", "different versions (status 18)", "driver.loaded"), also=UNKNOWN)
def nvml_of_another_version(plan: Document, snapshot: Document) -> None:
    data(snapshot, "smi").update(
        status=18, devices=[], nvml={"status": 18, "version": None, "count": None},
        error="Failed to initialize NVML: Driver/library version mismatch", driver_version=None)


@fault(gpu__smi=("FAIL", "reports driver 550.1, loaded is 535.261.03", "reboot gpu01"))
def nvidia_smi_of_another_driver(plan: Document, snapshot: Document) -> None:
    data(snapshot, "smi")["driver_version"] = "550.1"


@fault(gpu__smi=("INCONCLUSIVE", "not installed", "apt-get install nvidia-smi"), also=UNKNOWN)
def no_nvidia_smi(plan: Document, snapshot: Document) -> None:
    data(snapshot, "smi").update(program=None, status=None, devices=[], driver_version=None)


@fault(gpu__smi=("INCONCLUSIVE", "NVML could not be queried", "ldconfig"))
def no_nvml(plan: Document, snapshot: Document) -> None:
    data(snapshot, "smi")["nvml"] = {"status": None, "version": None, "count": None}


@fault(gpu__smi=("FAIL", "does not answer: temperature_c: Unknown Error", "replace the GPU"),
       gpu__throttle=("INCONCLUSIVE", "does not report its temperature c (temperature_c: Unknown",
                      "nvidia-smi -q"))
def a_card_that_answers_unknown_error(plan: Document, snapshot: Document) -> None:
    printed(snapshot, {"temperature/gpu_temp": "Unknown Error"}, {})


@fault(gpu__smi=("FAIL", "infoROM is corrupted", "kernel.log"))
def a_damaged_inforom(plan: Document, snapshot: Document) -> None:
    data(snapshot, "smi").update(status=14, error="WARNING: infoROM is corrupted at gpu 0000:01")


@fault(gpu__visible=("FAIL", "The GPU at 0000:01:00.0 is on the PCI bus, but nvidia-smi does not",
                     "Xid 79"))
def one_card_of_two_is_missing(plan: Document, snapshot: Document) -> None:
    data(snapshot, "smi")["devices"].pop()
    data(snapshot, "smi")["nvml"]["count"] = 1


@fault(gpu__visible=("FAIL", "NVML lists 1 GPUs, nvidia-smi lists 2", "kernel.log"))
def nvml_counts_another_number(plan: Document, snapshot: Document) -> None:
    data(snapshot, "smi")["nvml"]["count"] = 1


@fault()
def a_third_card_is_given_to_a_virtual_machine(plan: Document, snapshot: Document) -> None:
    data(snapshot, "gpus")["pci"].append(
        {"address": "0000:09:00.0", "vendor": "0x10de", "device": "0x2330", "class": "0x030200",
         "driver": "vfio-pci"})


@fault()
def a_container_whose_cards_have_the_machine_s_numbers(
    plan: Document, snapshot: Document
) -> None:
    data(snapshot, "gpus")["nodes"] = ["/dev/nvidia3", "/dev/nvidia7", "/dev/nvidiactl",
                                       "/dev/nvidia-uvm"]


@fault(gpu__identity=("FAIL", "GPU 0 (0000:00:00.0) is a NVIDIA H100 80GB HBM3, declared is"
                      " NVIDIA A100-SXM4-40GB", "correct gpu_expect"))
def another_model(plan: Document, snapshot: Document) -> None:
    plan["expect"]["model"] = "NVIDIA A100-SXM4-40GB"


@fault(gpu__identity=("FAIL", f"{FIRST} has 40960 MiB of memory, declared are 81559",
                      "install the declared GPU"))
def half_of_the_memory(plan: Document, snapshot: Document) -> None:
    card(snapshot)["memory_total_mib"] = 40960


@fault(gpu__identity=("FAIL", "Declared GPUs are missing: GPU-ffffffff", "correct gpu_expect"))
def another_card_of_the_model(plan: Document, snapshot: Document) -> None:
    plan["expect"]["uuids"] = [card(snapshot)["uuid"], "GPU-ffffffff-0000-0000-0000-000000000000"]


@fault(gpu__identity=("INCONCLUSIVE", "does not report its memory total mib", "gpu.smi"))
def memory_not_told(plan: Document, snapshot: Document) -> None:
    card(snapshot)["memory_total_mib"] = None


@fault()
def the_declared_cards_in_other_letters(plan: Document, snapshot: Document) -> None:
    plan["expect"].update(
        model="h100 80gb hbm3", memory_mib=81920,
        uuids=[card(snapshot, at)["uuid"].replace("GPU", "gpu").upper() for at in (1, 0)])


# -- gpu.memory-errors ----------------------------------------------------------------------------


@fault(gpu__memory_errors=("FAIL", f"{FIRST} will remap a faulty memory row", "--gpu-reset -i 0"))
def a_row_waits_to_be_replaced(plan: Document, snapshot: Document) -> None:
    printed(snapshot, {"remapped_rows/remapped_row_pending": "Yes"}, {})


@fault(gpu__memory_errors=("FAIL", "could not remap a faulty memory row", "replace the GPU"))
def a_row_could_not_be_replaced(plan: Document, snapshot: Document) -> None:
    printed(snapshot, {"remapped_rows/remapped_row_failure": "Yes"}, {})


@fault(gpu__memory_errors=("FAIL", "will retire a faulty memory page", "--gpu-reset"),
       gpu__identity=("FAIL", "declared is", "correct"))
def a_page_waits_to_be_retired(plan: Document, snapshot: Document) -> None:
    printed(snapshot, {**OLD, "retired_pages/pending_blacklist": "Yes"}, {})


@fault(gpu__memory_errors=("FAIL", "had 10 uncorrected memory errors", "reset"))
def uncorrected_errors(plan: Document, snapshot: Document) -> None:
    printed(snapshot, {"ecc_errors/volatile/dram_uncorrectable": "10"}, {})


@fault(gpu__memory_errors=("INCONCLUSIVE", "ecc uncorrected volatile", "nvidia-smi -q"))
def counters_not_told(plan: Document, snapshot: Document) -> None:
    card(snapshot)["ecc_uncorrected_volatile"] = None


@fault()
def rows_and_pages_that_were_replaced_long_ago(plan: Document, snapshot: Document) -> None:
    printed(snapshot, {"remapped_rows/remapped_row_corr": "3",
                       "remapped_rows/remapped_row_unc": "1",
                       "ecc_errors/aggregate/dram_uncorrectable": "1",
                       "ecc_errors/volatile/dram_correctable": "12",
                       "retired_pages/double_bit_retirement/retired_count": "4"}, {})


# -- gpu.pcie, gpu.throttle -----------------------------------------------------------------------

WORKING: dict[str, str | None] = {
    "clocks_event_reasons/clocks_event_reason_gpu_idle": "Not Active",
    "clocks_event_reasons/clocks_event_reason_sw_power_cap": "Active",
    "utilization/gpu_util": "100 %", "temperature/gpu_temp": "80 C"}
LINK = "pci/pci_gpu_link_info/"


@fault(gpu__pcie=("FAIL", f"{FIRST} uses 8 of 16 PCIe lanes", "reseat the GPU"))
def half_of_the_lanes(plan: Document, snapshot: Document) -> None:
    printed(snapshot, {LINK + "link_widths/current_link_width": "8x"}, {})


@fault(gpu__pcie=("FAIL", "generation 1 under load, it can be 5", "riser"))
def a_slow_link_under_load(plan: Document, snapshot: Document) -> None:
    printed(snapshot, {**WORKING, LINK + "pcie_gen/current_link_gen": "1"}, {})


@fault(gpu__pcie=("FAIL", "generation 4 at most, declared is 5", "correct gpu_expect.pcie"))
def a_slot_slower_than_declared(plan: Document, snapshot: Document) -> None:
    plan["expect"]["pcie"] = {"generation": 5, "width": None}
    printed(snapshot, {LINK + "pcie_gen/max_link_gen": "4"}, {})


@fault(gpu__pcie=("INCONCLUSIVE", "does not report its PCIe width", "virtual GPU"))
def a_virtual_card_with_a_declared_width(plan: Document, snapshot: Document) -> None:
    plan["expect"]["pcie"] = {"generation": None, "width": 16}
    printed(snapshot, {LINK + "link_widths/current_link_width": "N/A"}, {})


@fault()
def a_declared_narrow_slot_and_an_idle_link(plan: Document, snapshot: Document) -> None:
    plan["expect"]["pcie"] = {"generation": 5, "width": 8}
    printed(snapshot, {LINK + "link_widths/current_link_width": "8x",
                       LINK + "pcie_gen/current_link_gen": "1"}, {})


@fault()
def cards_at_work_within_their_power(plan: Document, snapshot: Document) -> None:
    printed(snapshot, WORKING, {**WORKING, "temperature/gpu_temp_slow_threshold": "N/A"})


@pytest.mark.parametrize(("reason", "verdict", "words"), [
    ("hw_thermal_slowdown", "FAIL", "heat at 80"), ("hw_power_brake_slowdown", "FAIL", "brake"),
    # It may also have been a change of clocks.
    ("hw_slowdown", "INCONCLUSIVE", "its hardware")])
def test_hardware_that_slows_a_card_down_is_named(
    plan: Document, snapshot: Document, reason: str, verdict: str, words: str
) -> None:
    with_cards(plan, snapshot)
    name = f"clocks_event_reasons/clocks_event_reason_{reason}"
    printed(snapshot, {**WORKING, name: "Active"}, {})
    found = {each["id"]: each for each in judge.judge(plan, snapshot)["checks"]}
    assert (found["gpu.throttle"]["verdict"], words in found["gpu.throttle"]["cause"]) == (
        verdict, True)
    # A laptop on its battery is slowed down by design.
    plan["expect"]["model"] = "NVIDIA RTX A5000 Laptop GPU"
    for at in (0, 1):
        card(snapshot, at)["name"] = plan["expect"]["model"]
    assert verdicts(plan, snapshot)["gpu.throttle"] == "PASS"


@fault(gpu__throttle=("FAIL", "throttled by heat at 90 °C", "fans"))
def a_card_too_hot(plan: Document, snapshot: Document) -> None:
    card(snapshot)["temperature_c"] = 90


@fault(gpu__throttle=("INCONCLUSIVE", "does not report its throttle", "nvidia-smi -q"))
def reasons_not_told(plan: Document, snapshot: Document) -> None:
    card(snapshot)["throttle"] = None


# -- gpu.settings ---------------------------------------------------------------------------------


@fault(gpu__settings=("FAIL", "power limit of 500 W, declared are 700", "-i 0 -pl 700"))
def a_lowered_power_limit(plan: Document, snapshot: Document) -> None:
    plan["expect"]["power_limit_w"] = 700
    printed(snapshot, {"gpu_power_readings/current_power_limit": "500.00 W"}, {})


@fault(gpu__settings=("FAIL", "ECC off, declared is on", "nvidia-smi -i 0 -e 1"))
def ecc_switched_off(plan: Document, snapshot: Document) -> None:
    plan["expect"]["ecc"] = "on"
    printed(snapshot, {"ecc_mode/current_ecc": "Disabled", "ecc_mode/pending_ecc": "Disabled"}, {})


@fault(gpu__settings=("FAIL", "which needs a reset", "--gpu-reset -i 1"))
def ecc_that_waits_for_a_reset(plan: Document, snapshot: Document) -> None:
    plan["expect"]["ecc"] = "on"
    printed(snapshot, {}, {"ecc_mode/current_ecc": "Disabled"})


@fault(gpu__settings=("FAIL", "compute mode prohibited, normal is default", "-i 0 -c DEFAULT"))
def nobody_may_compute(plan: Document, snapshot: Document) -> None:
    printed(snapshot, {"compute_mode": "Prohibited"}, {})


@fault(gpu__settings=("FAIL", "compute mode default, declared is exclusive_process",
                      "EXCLUSIVE_PROCESS"))
def another_compute_mode(plan: Document, snapshot: Document) -> None:
    plan["expect"]["compute_mode"] = "exclusive_process"


@fault(gpu__settings=("FAIL", "persistence off", "nvidia-smi -i 1 -pm 1"))
def persistence_off(plan: Document, snapshot: Document) -> None:
    printed(snapshot, {}, {"persistence_mode": "Disabled"})


@fault(gpu__settings=("INCONCLUSIVE", "does not report its ECC mode", "gpu.smi"),
       gpu__memory_errors=("INCONCLUSIVE", "does not report its ecc (ecc: [Unknown Error])", "smi"))
def ecc_not_told(plan: Document, snapshot: Document) -> None:
    plan["expect"]["ecc"] = "on"
    printed(snapshot, {"ecc_mode/current_ecc": "[Unknown Error]"}, {})


@fault()
def a_lowered_limit_that_nobody_declared_otherwise(plan: Document, snapshot: Document) -> None:
    printed(snapshot, {"gpu_power_readings/current_power_limit": "450.00 W",
                       "compute_mode": "Exclusive_Process"}, {})


@pytest.mark.parametrize("kind", ["consumer", "old", "virtual", "mig"])
def test_healthy_cards_of_other_kinds_pass(plan: Document, snapshot: Document, kind: str) -> None:
    with_cards(plan, snapshot)
    virtual: dict[str, str | None] = dict.fromkeys((
        LINK + "pcie_gen/max_link_gen", LINK + "pcie_gen/current_link_gen",
        LINK + "link_widths/max_link_width", LINK + "link_widths/current_link_width",
        "temperature/gpu_temp", "gpu_power_readings/current_power_limit",
        "ecc_mode/current_ecc", "ecc_mode/pending_ecc", "utilization/gpu_util"), "N/A")
    mig = {"mig_mode/current_mig": "Enabled", "utilization/gpu_util": "N/A", "mig_devices":
           "<mig_device><index>0</index><gpu_instance_id>1</gpu_instance_id><fb_memory_usage>"
           "<total>40192 MiB</total></fb_memory_usage></mig_device>"}
    texts = {"consumer": CONSUMER, "old": OLD, "virtual": virtual, "mig": mig}[kind]
    plan["expect"].update(model=None, memory_mib=None, ecc="off" if kind == "consumer" else None)
    plan["driver"]["mig"] = None
    printed(snapshot, texts, texts)
    found = judge.judge(plan, snapshot)["checks"]
    assert {each["id"]: each["cause"] for each in found if each["id"].startswith("gpu.")
            and each["verdict"] not in {"PASS", "NOT-DECLARED"}} == {}


def test_a_declaration_that_names_no_card_excuses_identity(
    plan: Document, snapshot: Document
) -> None:
    with_cards(plan, snapshot)
    plan["expect"].update(model=None, memory_mib=None)
    found = {each["id"]: each for each in judge.judge(plan, snapshot)["checks"]}
    assert (found["gpu.identity"]["verdict"], found["gpu.identity"]["cause"]) == (
        "NOT-DECLARED", "gpu_expect: {count: 2} (no model, memory_mib or uuids)")


# -- kernel.log, kernel.application-errors --------------------------------------------------------


@fault(kernel__log=("FAIL", "Xid 79 of 0000:00:00.0: the GPU has fallen off the bus",
                    "power it off and on"))
def fallen_off_the_bus(plan: Document, snapshot: Document) -> None:
    event(snapshot, "xid", code=79, address="0000:00:00.0")


@fault(kernel__log=("FAIL", "Xid 48 of 0000:00:00.0 (2 times)", "-i 0000:00:00.0"))
def double_bit_error(plan: Document, snapshot: Document) -> None:
    event(snapshot, "xid", code=48, address="0000:00:00.0", count=2)


@fault(kernel__log=("FAIL", "Xid 154 of 0000:01:00.0: the driver asks for", "or a reboot"))
def the_driver_asks_for_a_reboot(plan: Document, snapshot: Document) -> None:
    event(snapshot, "xid", code=154, address="0000:01:00.0",
          text="GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")
    event(snapshot, "xid", code=154, address="0000:00:00.0",
          text="GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)")


def test_every_number_in_the_table_has_a_source_and_a_remedy_if_it_needs_one() -> None:
    table = facts.document("xids.yml")
    for code, row in table["xids"].items():
        assert row["source"] in table["sources"], code
        assert row["kind"] in {"hardware", "driver", "record", "application"}, code
        needed = row["kind"] in {"hardware", "driver"}
        assert bool(table["remedies"][row["remedy"]].format(gpu="0000:01:00.0")) is needed, code


@fault()
def a_row_put_on_record_and_mistakes_of_programs(plan: Document, snapshot: Document) -> None:
    for code in (13, 31, 43, 45, 63, 68, 109, 999):
        event(snapshot, "xid", code=code, address="0000:00:00.0", pid=5, process="python")
    for kind in ("hung-task", "out-of-memory", "io-error", "api-mismatch", "key-rejected"):
        event(snapshot, kind)
    event(snapshot, "pcie-error", address="0000:00:1c.0")


@fault(kernel__log=("FAIL", "uncorrectable errors on the PCI bus", "reseat"))
def uncorrected_error_on_the_bus(plan: Document, snapshot: Document) -> None:
    event(snapshot, "pcie-error", address="0000:01:00.0")


@fault(kernel__log=("FAIL", "could not initialise an unnamed card", "reboot"))
def the_driver_could_not_initialise(plan: Document, snapshot: Document) -> None:
    event(snapshot, "init-failed")


@fault(kernel__log=("FAIL", "uncorrectable memory or processor error", "management controller"))
def the_machine_erred(plan: Document, snapshot: Document) -> None:
    event(snapshot, "machine-check")


@fault(kernel__log=("FAIL", "SXid 12028 of the NVSwitch 0000:c1:00.0", "vendor"))
def a_switch_erred(plan: Document, snapshot: Document) -> None:
    event(snapshot, "sxid", code=12028, address="0000:c1:00.0")


@fault(kernel__log=("INCONCLUSIVE", "does not reach back to the boot", "Storage=persistent"))
def the_log_was_overwritten(plan: Document, snapshot: Document) -> None:
    data(snapshot, "kernel_log")["complete"] = False


@fault(kernel__log=("INCONCLUSIVE", "could not be read", "run as root"),
       kernel__application_errors=("INCONCLUSIVE", "could not be read", "kernel.log"))
def no_log(plan: Document, snapshot: Document) -> None:
    data(snapshot, "kernel_log").update(source=None, complete=False, since_boot=False)


def test_a_refused_module_is_told_where_no_driver_runs(plan: Document, snapshot: Document) -> None:
    with_cards(plan, snapshot)
    event(snapshot, "key-rejected")
    for each in data(snapshot, "gpus")["pci"]:
        each["driver"] = None
    found = {each["id"]: each for each in judge.judge(plan, snapshot)["checks"]}["kernel.log"]
    assert (found["verdict"], "mokutil --import" in found["remedy"]) == ("FAIL", True)


def test_what_programs_did_is_told_with_their_names(plan: Document, snapshot: Document) -> None:
    with_cards(plan, snapshot)
    event(snapshot, "xid", code=31, address="0000:00:00.0", pid=4567, process="python", count=3)
    found = {each["id"]: each for each in judge.judge(plan, snapshot)["checks"]}
    told = found["kernel.application-errors"]
    assert (told["verdict"], told["evidence"]) == (
        "PASS", "Xid 31 of 0000:00:00.0, 3 times, last by python 4567: a program touched memory"
                " that is not its own")


# -- driver.cuda, driver.access -------------------------------------------------------------------


@fault(driver__cuda=("FAIL", "libcuda.so.1 supports CUDA 10.2, too old for toolkit 11.8",
                     "newer driver"))
def an_old_libcuda(plan: Document, snapshot: Document) -> None:
    data(snapshot, "driver")["cuda_version"] = "10.2"


@fault()
def minor_versions_go_together(plan: Document, snapshot: Document) -> None:
    data(snapshot, "driver")["cuda_version"] = "11.0"


def closed(snapshot: Document, mode: str, group: int) -> None:
    for row in data(snapshot, "gpus")["node_access"]:
        row.update(mode=mode, gid=group, error="permission denied")


@fault(driver__access=("FAIL", "An ordinary account cannot open /dev/nvidiactl (mode 0600, 0:0)",
                       "NVreg_DeviceFileMode=0666"))
def device_files_of_root_alone(plan: Document, snapshot: Document) -> None:
    closed(snapshot, "0600", 0)


@fault(driver__access=("INCONCLUSIVE", "Only a group may open", "declare gpu_service_user"))
def device_files_of_a_group(plan: Document, snapshot: Document) -> None:
    closed(snapshot, "0660", 44)


@fault(driver__access=("FAIL", "Account slurm cannot open", "to the group"))
def device_files_of_another_group(plan: Document, snapshot: Document) -> None:
    plan["service_user"] = "slurm"
    closed(snapshot, "0660", 44)


@fault(driver__access=("INCONCLUSIVE", "was not tested", "ansible_become"))
def access_not_tried(plan: Document, snapshot: Document) -> None:
    data(snapshot, "gpus")["node_access"][0]["tried"] = False


def test_without_a_card_and_a_word_of_it_nothing_is_asked_of_cuda(
    plan: Document, snapshot: Document
) -> None:
    plan["expect"]["count"] = None
    found = verdicts(plan, snapshot)
    assert (found["driver.cuda"], found["driver.access"]) == ("PASS", "PASS")


# -- the table ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("break_it", "caught"), [row[1:] for row in FAULTS],
                         ids=[row[0] for row in FAULTS])
def test_a_fault_is_caught_by_its_checks_alone(break_it: Break, caught: Caught) -> None:
    plan, snapshot = document("plan.json"), document("snapshot.json")
    with_cards(plan, snapshot)
    before = verdicts(plan, snapshot)
    assert {before[name] for name in before if name.startswith(("gpu.", "kernel.", "driver."))} == {
        "PASS"}
    break_it(plan, snapshot)
    after = {each["id"]: each for each in judge.judge(plan, snapshot)["checks"]}
    assert {name for name in before if after[name]["verdict"] != before[name]} == set(caught)
    for name, (verdict, cause, remedy) in caught.items():
        assert after[name]["verdict"] == verdict
        assert cause in after[name]["cause"]
        assert remedy in after[name]["remedy"]


@pytest.mark.parametrize("section", ["smi", "kernel_log"])
def test_a_section_that_hung_is_said_to_hang(
    plan: Document, snapshot: Document, section: str
) -> None:
    with_cards(plan, snapshot)
    before = verdicts(plan, snapshot)
    snapshot["sections"][section] = {
        "state": "hung", "seconds": 96, "error": "nvidia-smi gave no answer", "data": None}
    found = verdicts(plan, snapshot)
    assert {found[name] for name in found if found[name] != before[name]} == {"HUNG"}
