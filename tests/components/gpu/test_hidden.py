"""GPUs and values that the driver hides from an account: nothing is lost, and none is replaced."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any

import pytest

from gpufleet.judge import judge
from tests.support.harmful_remedies import harmful
from tests.support.healthy_host import data
from tests.support.planted_gpu_host import CARDS, GpuHost

Document = dict[str, Any]
DENIED = "Insufficient Permissions"
HARMS = ("reseat", "replace", "power it off", "power the host off", "reboot", "Xid 79")
ACCOUNT = 1000


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Document, Document]:
    if os.geteuid() != 0:
        pytest.skip("the probe as root tries what other accounts may")
    directory = tmp_path_factory.mktemp("hidden")
    directory.chmod(0o755)
    host = GpuHost(directory / "host")
    return host.plan, host.snapshot()


Judged = Callable[[Callable[[Document], None], int], dict[str, Document]]


@pytest.fixture
def judged(healthy: tuple[Document, Document]) -> Judged:
    def judged(change: Callable[[Document], None], euid: int) -> dict[str, Document]:
        plan, snapshot = copy.deepcopy(healthy)
        snapshot["euid"] = euid
        for section in ("smi_after", "kernel_log_after"):
            snapshot["sections"].pop(section, None)
        change(snapshot)
        checks: Any = judge.judge(plan, snapshot)["checks"]
        return {row["id"]: row for row in checks}

    return judged


def unlisted(snapshot: Document, *gone: int) -> None:
    """nvidia-smi lists fewer GPUs than NVML counts."""
    smi = data(snapshot, "smi")
    smi["devices"] = [card for at, card in enumerate(smi["devices"]) if at not in gone]


def closed(mode: str, *, tried: bool = True, denied: bool = True, gid: int = 0) -> Document:
    error = "permission denied" if tried and denied else None
    kind = "permission" if error else None
    return {"mode": mode, "gid": gid, "tried": tried, "error": error, "kind": kind}


@pytest.mark.parametrize(
    ("node", "euid", "who"),
    [
        (closed("0600"), ACCOUNT, "this account may not open /dev/nvidia1"),
        (closed("0660", gid=44), ACCOUNT, "this account may not open /dev/nvidia1"),
        (closed("0640", gid=44), ACCOUNT, "this account may not open /dev/nvidia1"),
        (closed("0660", tried=False), ACCOUNT, "this account may not open /dev/nvidia1"),
        # The control group of a job denies what the mode allows.
        (closed("0666"), ACCOUNT, "this account may not open /dev/nvidia1"),
        (closed("0666"), 0, "the container or job of the probe may not open /dev/nvidia1"),
    ],
)
def test_a_gpu_behind_a_closed_device_file_is_not_called_lost(
    judged: Judged, node: Document, euid: int, who: str
) -> None:
    def change(snapshot: Document) -> None:
        unlisted(snapshot, 1)
        for row in data(snapshot, "gpus")["node_access"]:
            if row["path"] == "/dev/nvidia1":
                row.update(node)

    checks = judged(change, euid)
    row = checks["gpu.visible"]
    assert row["verdict"] == "INCONCLUSIVE"
    assert row["cause"] == (
        f"The GPU at {CARDS[1]} is on the PCI bus, and nvidia-smi does not list it: {who}"
    )
    assert checks["gpu.identity"]["verdict"] == "INCONCLUSIVE"
    assert checks["gpu.identity"]["explained_by"] == "gpu.visible"
    assert checks["gpu.smi"]["verdict"] == "PASS"
    harms = [text for text in harmful(checks, HARMS) if not text.startswith("driver.access")]
    assert harms == []


@pytest.mark.parametrize(
    ("node", "euid", "gone"),
    [
        (closed("0666", denied=False), ACCOUNT, [1]),
        (closed("0666", tried=False), ACCOUNT, [1]),
        (closed("0666", denied=False), 0, [1]),
        # An ordinary account is denied, and root is not.
        (closed("0660", gid=44), 0, [1]),
        (closed("0600"), 0, [1]),
        (closed("0600"), ACCOUNT, []),
    ],
)
def test_an_open_device_file_explains_nothing(
    judged: Judged, node: Document, euid: int, gone: list[int]
) -> None:
    def change(snapshot: Document) -> None:
        unlisted(snapshot, *gone)
        for row in data(snapshot, "gpus")["node_access"]:
            if row["path"] == "/dev/nvidia1":
                row.update(node)

    row = judged(change, euid)["gpu.visible"]
    assert row["verdict"] == ("FAIL" if gone else "PASS")
    assert ("does not list it (bound to nvidia)" in (row["cause"] or "")) is bool(gone)


@pytest.mark.parametrize(
    "fields",
    [
        ["memory_total_mib"],
        ["memory_used_mib"],
        ["memory_total_mib", "memory_used_mib"],
        ["temperature_c"],
        ["uuid"],
        ["name", "uuid"],
    ],
)
@pytest.mark.parametrize("text", [DENIED, "[Insufficient Permissions]", "No Permission"])
def test_values_of_a_split_gpu_that_are_for_root_are_no_failure_of_the_gpu(
    judged: Judged, fields: list[str], text: str
) -> None:
    def change(snapshot: Document) -> None:
        card = data(snapshot, "smi")["devices"][0]
        card["elements"]["mig_mode/current_mig"] = "Enabled"
        card["elements"]["mig_devices/mig_device/index"] = "0"
        card.update(dict.fromkeys(fields))
        card["raw_unknown"] = [*card["raw_unknown"], *fields]
        card["unanswered"] = [f"{field}: {text}" for field in fields]

    checks = judged(change, ACCOUNT)
    assert checks["gpu.smi"]["verdict"] == "INCONCLUSIVE"
    assert f"shows this account no {fields[0]}: {text}" in checks["gpu.smi"]["cause"]
    assert checks["gpu.smi"]["remedy"].startswith("let the probe run as root")
    assert harmful(checks, HARMS) == []


@pytest.mark.parametrize(
    "error",
    [
        "Failed to initialize NVML: Insufficient Permissions",
        "Unable to determine the device handle for GPU 0000:07:00.0: Insufficient Permissions",
        "Failed to display compute instances: Insufficient Permissions",
        "Insufficient Permissions",
        "nvml: Insufficient Permissions",
    ],
)
def test_a_driver_that_answers_root_alone_is_not_restarted(judged: Judged, error: str) -> None:
    def change(snapshot: Document) -> None:
        smi = data(snapshot, "smi")
        smi.update(devices=[], error=error, status=4, driver_version=None)
        smi["nvml"].update(status=4, count=None)

    checks = judged(change, ACCOUNT)
    assert checks["gpu.smi"]["verdict"] == "INCONCLUSIVE"
    assert checks["gpu.smi"]["remedy"].startswith("let the probe run as root")
    assert checks["gpu.visible"]["explained_by"] == "gpu.smi"
    assert harmful(checks, HARMS) == []


@pytest.mark.parametrize(
    ("modes", "status", "split"),
    [
        (["Enabled", "Enabled"], 100, True),
        (["Enabled", "Disabled"], 100, False),
        (["Disabled", "Disabled"], 100, False),
        (["Enabled", "N/A"], 100, False),
        (["Enabled", "Enabled"], 999, False),
    ],
)
def test_cuda_without_a_card_is_explained_by_mig_on_each_gpu(
    judged: Judged, modes: list[str], status: int, split: bool
) -> None:
    def change(snapshot: Document) -> None:
        data(snapshot, "driver")["cuinit"] = status
        for card, mode in zip(data(snapshot, "smi")["devices"], modes, strict=True):
            card["elements"]["mig_mode/current_mig"] = mode
            card["elements"]["mig_devices/mig_device/index"] = "0"

    row = judged(change, ACCOUNT)["driver.cuda"]
    assert row["verdict"] == "FAIL"
    assert ("each GPU has MIG enabled" in row["cause"]) is split
    assert ("/dev/nvidia-caps" in row["remedy"]) is split


@pytest.mark.parametrize("split", [[0], [1], [0, 1], []])
def test_fewer_cuda_devices_name_the_gpus_with_mig(judged: Judged, split: list[int]) -> None:
    def change(snapshot: Document) -> None:
        for run in data(snapshot, "compute")["runs"]:
            run["devices"] = run["devices"][:1]
        for at in split:
            card = data(snapshot, "smi")["devices"][at]
            card["elements"]["mig_mode/current_mig"] = "Enabled"
            card["elements"]["mig_devices/mig_device/index"] = "0"

    row = judged(change, 0)["toolkit.device-query"]
    assert row["verdict"] == "FAIL"
    for at, address in enumerate(CARDS):
        assert (f"{address}" in row["cause"].partition("{count: 2}")[2]) is (at in split)
    assert ("gpu_mig" in row["remedy"]) is bool(split)
