"""A failure that explains others hides no second fault, of another card or of another kind."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.components.base import subjects
from gpufleet.components.base.registry import Finding
from gpufleet.components.gpu.lost import named_in
from gpufleet.documents.verdict import Verdict
from gpufleet.judge import judge
from gpufleet.judge.causes import Judged, explained
from tests.support.healthy_host import Document, data
from tests.support.host_parts import event, with_gpus
from tests.support.real_gpus import documents

SECOND = "0000:01:00.0"
ERROR = "cudaMemcpy returned 999 cudaErrorUnknown"


def roots(plan: Document, snapshot: Document) -> set[str]:
    return {
        check["id"]
        for check in judge.judge(plan, snapshot)["checks"]
        if check["verdict"] not in {"PASS", "NOT-DECLARED"} and "explained_by" not in check
    }


def hung(snapshot: Document, section: str) -> None:
    snapshot["sections"][section] = {
        "state": "hung",
        "seconds": 60,
        "error": "no answer within 60 s",
        "data": None,
    }


def test_a_copy_between_two_other_cards_is_no_consequence_of_a_copy_to_the_faulty_one() -> None:
    cards = [subjects.computing(f"0000:0{at}:00.0", ERROR) for at in range(3)]

    def failed(*about: str) -> Finding:
        return Finding("failed", "", about=about)

    def judged(*findings: Finding) -> Judged:
        return Judged(Verdict.FAIL, findings, findings)

    cause = judged(failed(*cards[0]))
    to_it = failed(*subjects.either(*cards[1], *cards[0]))
    beside_it = failed(*subjects.either(*cards[2], *cards[1]))
    assert explained({"toolkit.cublas": cause, "gpu.peer": judged(to_it)}) == {
        "gpu.peer": "toolkit.cublas"
    }
    assert not explained({"toolkit.cublas": cause, "gpu.peer": judged(to_it, beside_it)})


@pytest.mark.parametrize("code", [79, 119])
def test_an_xid_that_was_cleared_does_not_explain_that_nvidia_smi_hangs_later(code: int) -> None:
    found = documents("h100-deep")
    plan, snapshot = found["plan"], found["snapshot"]
    event(snapshot, "xid", code=code, address="0000:00:06.0", text=f"NVRM: Xid: {code}")
    hung(snapshot, "smi_after")
    assert "host.probe" in roots(plan, snapshot)


def test_a_section_hangs_by_itself_where_the_driver_answered_for_all_cards_afterwards(
    plan: Document, snapshot: Document
) -> None:
    with_gpus(plan, snapshot)
    event(snapshot, "pcie-error", address=SECOND, text="AER: Uncorrectable error")
    assert roots(plan, snapshot) == {"kernel.log"}
    hung(snapshot, "stacks")
    assert roots(plan, snapshot) == {"host.probe", "kernel.log"}


def test_of_cards_with_the_same_bus_in_other_domains_the_named_one_is_lost() -> None:
    class Observed:
        def read_elsewhere(self) -> Any:
            return {"gpus": {"pci": [{"address": f"000{at}:01:00.0"} for at in (8, 9)]}}

    observed: Any = Observed()
    text = "Unable to determine the device handle for GPU1: 00000009:01:00.0: GPU is lost"
    assert named_in(text, observed, lost=True) == subjects.card("0009:01:00.0")


@pytest.mark.parametrize(
    "error",
    [
        "killed by SIGSEGV",
        "libcudnn.so.8: cannot open shared object file: No such file or directory",
        "cudaErrorNoKernelImageForDevice",
        "no kernel image is available for execution on the device",
    ],
)
def test_an_error_of_a_program_is_not_about_the_card(error: str) -> None:
    assert subjects.computing(SECOND, error) == ()


def test_a_fabric_manager_that_runs_leaves_no_card_unregistered(
    plan: Document, snapshot: Document
) -> None:
    with_gpus(plan, snapshot)
    data(snapshot, "gpus")["nvswitches"] = ["0000:05:00.0"]
    data(snapshot, "driver")["fabric"] = {
        "unit": "nvidia-fabricmanager.service",
        "enabled": False,
        "active": True,
        "version": data(snapshot, "driver")["loaded"],
    }
    for card in data(snapshot, "smi")["devices"]:
        card["elements"]["fabric/state"] = "Not Started"
    assert {"driver.fabric", "gpu.fabric"} <= roots(plan, snapshot)
