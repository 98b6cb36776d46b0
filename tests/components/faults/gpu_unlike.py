"""Four GPUs, of which one has other settings than its siblings."""

from __future__ import annotations

from tests.support.check_faults import faults_on
from tests.support.healthy_host import Document, data, with_cards
from tests.support.host_parts import card, compute_run, printed

POWER, ECC = "gpu_power_readings/current_power_limit", "ecc_mode/current_ecc"
SECOND = "GPU 1 (0000:01:00.0)"


def with_four_cards(plan: Document, snapshot: Document) -> None:
    """A host with four GPUs of one model."""
    with_cards(plan, snapshot, 4)


fault, harmless = faults_on(with_four_cards)
pair_fault, _ = faults_on(with_cards)


@fault(
    "gpu.settings",
    verdict="INCONCLUSIVE",
    cause=f"differ in their power limit: {SECOND}: 200 W; most others of the model: 700 W",
    remedy="nvidia-smi -i 1 -pl 700, and again at boot; or declare gpu_expect: {power_limit_w: 700",
)
def one_of_four_with_less_power(plan: Document, snapshot: Document) -> None:
    printed(snapshot, {}, {POWER: "200.00 W"}, {}, {})
    compute_run(snapshot)["cublas"][1]["tflops"] = 10.3


@fault(
    "gpu.settings",
    verdict="INCONCLUSIVE",
    cause=f"differ in their ECC mode: {SECOND}: off; most others of the model: on",
    remedy="nvidia-smi -i 1 -e 1, then reboot the host; or declare gpu_expect: {ecc: on}",
)
def one_of_four_without_ecc(plan: Document, snapshot: Document) -> None:
    printed(snapshot, {}, {ECC: "Disabled", "ecc_mode/pending_ecc": "Disabled"}, {}, {})


@pair_fault(
    "gpu.settings",
    verdict="INCONCLUSIVE",
    cause=f"GPU 0 (0000:00:00.0): 700 W; {SECOND}: 200 W; gpu_expect.power_limit_w: not set",
    remedy="set it alike on all of them",
)
def one_of_two_with_less_power(plan: Document, snapshot: Document) -> None:
    printed(snapshot, {}, {POWER: "200.00 W"})


@fault(
    "gpu.throughput",
    verdict="INCONCLUSIVE",
    cause="GPU 1 multiplies float32 at 17.0 TFLOP/s, since its clocks are limited",
    remedy="nvidia-smi -i 1 -rac, and nvidia-smi -i 1 -rgc",
)
def one_of_four_with_limited_clocks(plan: Document, snapshot: Document) -> None:
    card(snapshot, 1)["throttle"] = ["application-clocks"]
    compute_run(snapshot)["cublas"][1]["tflops"] = 17.0


@harmless
def limited_clocks_on_all(plan: Document, snapshot: Document) -> None:
    for each, row in zip(
        data(snapshot, "smi")["devices"], compute_run(snapshot)["cublas"], strict=True
    ):
        each["throttle"], row["tflops"] = ["application-clocks"], 17.0


@harmless
def limited_clocks_that_do_not_hold_back(plan: Document, snapshot: Document) -> None:
    """Where others are idle, the reason says no more than that one is not."""
    card(snapshot, 1)["throttle"] = ["application-clocks"]


@harmless
def cards_of_one_name_with_other_defaults(plan: Document, snapshot: Document) -> None:
    """Boards of one model may be made for less power."""
    printed(
        snapshot,
        {},
        {POWER: "350.00 W", "gpu_power_readings/default_power_limit": "350.00 W"},
        {},
        {},
    )


@harmless
def shares_of_gpus_with_other_limits(plan: Document, snapshot: Document) -> None:
    """A guest cannot set what the machine below has set."""
    for number, each in enumerate(data(snapshot, "smi")["devices"]):
        each["elements"]["gpu_virtualization_mode/virtualization_mode"] = "VGPU"
        each["power_limit_w"] = 300.0 + 50 * number
