"""A GPU for displays needs no adapter beside it."""

from __future__ import annotations

import pytest

from gpufleet.judge import judge
from tests.support.healthy_host import data, document, with_cards
from tests.support.rdma_host import device, network


@pytest.mark.parametrize(("model", "verdict"), [("0x2330", "INCONCLUSIVE"), ("0x1fb9", "PASS")])
def test_a_gpu_of_another_model_needs_no_adapter(model: str, verdict: str) -> None:
    plan, snapshot = document("plan.json"), document("snapshot.json")
    with_cards(plan, snapshot, 4)
    del plan["expect"]["network"]
    data(snapshot, "network").update(network([device(number) for number in range(3)], 4))
    for number, row in enumerate(data(snapshot, "gpus")["pci"]):
        row["device"] = "0x2330" if number < 3 else model
    [found] = [row for row in judge.judge(plan, snapshot)["checks"] if row["id"] == "network.ports"]
    assert found["verdict"] == verdict, found["cause"]
