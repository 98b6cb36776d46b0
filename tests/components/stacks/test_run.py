"""Stacks and GPUs: what proves that a stack computes, and what does not."""

from __future__ import annotations

import pytest

from gpufleet.components.checks import CHECKS
from gpufleet.judge import judge
from gpufleet.on_host.constants import REFUSED, UNJUDGED
from gpufleet.on_host.workload_run import parse_framework_output
from tests.support.healthy_host import OF_OTHERS, OF_SITES, Document, data, other_than, verdicts
from tests.support.host_parts import LIB, framework, receipt, stack, with_gpus


def test_a_host_with_gpus_can_be_healthy(plan: Document, snapshot: Document) -> None:
    with_gpus(plan, snapshot)
    found = verdicts(plan, snapshot)
    assert other_than("PASS", found).keys() == {*OF_OTHERS, *OF_SITES}


def test_an_earlier_receipt_passes_and_claims_nothing_of_package_records(
    plan: Document, snapshot: Document
) -> None:
    def evidence() -> str:
        found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
        assert found["stack.files"]["verdict"] == "PASS"
        return str(found["stack.files"]["evidence"])

    receipt(snapshot, "stack")["recorded"] = True
    assert evidence() == ""
    receipt(snapshot, "stack")["recorded"] = False
    assert "nothing shows that these are unchanged" in evidence()


@pytest.mark.parametrize("link", [None, "/home/alice/one"])
def test_the_remedy_of_another_owner_ends_with_a_comparison_of_contents(
    plan: Document, snapshot: Document, link: str | None
) -> None:
    entry = {"path": "/opt/gpufleet/stacks/one", "what": "belongs to user 1000"}
    receipt(snapshot, "stack")["exposed"] = [{**entry, **({"link": link} if link else {})}]
    stack(snapshot)["start"] = {
        "python": None,
        "prefix": None,
        "strange": [],
        "sets": {},
        "customized": [],
        "error": f"/opt/gpufleet/stacks/one belongs to alice (1000): {REFUSED}",
    }
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    owned = found["install.owned"]
    assert found["stack.python"]["verdict"] == "INCONCLUSIVE"
    for check in (owned, found["stack.python"]):
        assert check["repairs"][-1] == {
            "by": "provision",
            "command": f"./gpufleet provision --limit {plan['host']} --contents",
        }
        assert str(check["repairs"][-1]["command"]) in check["remedy"].rpartition("; then ")[2]
    assert ("chown" in owned["remedy"]) == (link is None)


def test_the_remedy_of_what_could_not_be_judged_changes_no_owner(
    plan: Document, snapshot: Document
) -> None:
    stack(snapshot)["start"] = {
        "python": None,
        "prefix": None,
        "strange": [],
        "sets": {},
        "customized": [],
        "error": f"/opt/gpufleet/stacks/one {UNJUDGED}: Input/output error: {REFUSED}",
    }
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    check = found["stack.python"]
    assert (check["verdict"], "chown" in check["remedy"]) == ("INCONCLUSIVE", False)
    assert "Input/output error" in check["cause"]
    assert "find out why the named file cannot be read" in check["remedy"]


def test_a_gpu_that_fell_off_the_bus(plan: Document, snapshot: Document) -> None:
    with_gpus(plan, snapshot)
    data(snapshot, "gpus")["pci"].pop()
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert "1 of 2 declared GPUs is not on the PCI bus" in found["gpu.count"]["cause"]
    assert "Xid 79" in found["gpu.count"]["remedy"]


def test_a_result_from_the_cpu_is_no_proof_of_a_gpu(plan: Document, snapshot: Document) -> None:
    with_gpus(plan, snapshot)
    entry = stack(snapshot)["framework"]["matmul"][1]
    entry["device"] = "/job:localhost/replica:0/task:0/device:CPU:0"
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert "on /GPU:1 was computed on" in found["stack.matmul"]["cause"]
    assert "no result of GPU 1 of 2" in found["stack.gpu"]["cause"]
    assert {n for n, c in found.items() if c["verdict"] == "FAIL"} == {"stack.matmul", "stack.gpu"}


@pytest.mark.parametrize("device", ["/device:XLA_GPU:0", "/device:GPU:01x", "", None])
def test_a_device_of_another_name_is_no_gpu(
    plan: Document, snapshot: Document, device: str | None
) -> None:
    with_gpus(plan, snapshot, 1)
    stack(snapshot)["framework"]["matmul"][0]["device"] = device
    assert verdicts(plan, snapshot)["stack.gpu"] == "FAIL"


def test_a_snapshot_without_framework_runs_proves_no_stack(
    plan: Document, snapshot: Document
) -> None:
    snapshot["mode"], stack(snapshot)["framework"] = "facts", None
    data(snapshot, "compute")["runs"] = []
    found = verdicts(plan, snapshot)
    unjudged = {name for name, verdict in found.items() if verdict == "INCONCLUSIVE"}
    assert unjudged == {
        "stack.build",
        "stack.libraries",
        "stack.mapped",
        "stack.matmul",
        "stack.hello",
        "stack.local-devices",
        "stack.gpu-device-name",
        "stack.device-placement",
        "toolkit.nvrtc",
    }


def test_libraries_that_a_build_links_are_proven_by_being_mapped(
    plan: Document, snapshot: Document
) -> None:
    """Up to 1.13 TensorFlow has no loader to ask; its import maps them all."""
    stack(snapshot)["framework"]["loader"] = {"ran": False, "opened": [], "failed": []}
    for name in ("libcublas.so.11", "libcusparse.so.11"):
        assert any(f"{name}." in path for path in stack(snapshot)["framework"]["mapped"])
    # Real file names carry the soname, but for libcudart.so.11.0 (libcudart.so.11.8.89).
    stack(snapshot)["framework"]["mapped"].append(f"{LIB}/libcudart.so.11.0.1")
    assert verdicts(plan, snapshot)["stack.libraries"] == "PASS"


def test_the_drivers_libraries_matter_only_where_gpus_are_declared(
    plan: Document, snapshot: Document
) -> None:
    stack(snapshot)["framework"]["loader"]["failed"] = [
        {"library": "libcuda.so.1", "error": "No such file"},
        {"library": "libnvinfer.so.8", "error": "No such file"},
    ]
    assert verdicts(plan, snapshot)["stack.libraries"] == "PASS"
    with_gpus(plan, snapshot)
    assert verdicts(plan, snapshot)["stack.libraries"] == "FAIL"


@pytest.mark.parametrize(
    ("version", "source", "verdict"),
    [
        ("11.8.20220929", "version.json", "PASS"),
        ("11.8.0", "version.json", "PASS"),
        ("11.8.1", "version.json", "FAIL"),
        ("11.8.89", "version.txt", "PASS"),
        (None, "version.json", "FAIL"),
        (None, None, "PASS"),
    ],
)
def test_what_tells_a_toolkits_release(
    plan: Document, snapshot: Document, version: str, source: str, verdict: str
) -> None:
    """version.json may carry a date; between 11.0 and 11.4 there is no such file at all."""
    data(snapshot, "toolkits")["trees"][0].update(version=version, version_source=source)
    assert verdicts(plan, snapshot)["toolkit.present"] == verdict


def test_an_error_without_text_is_no_result(plan: Document, snapshot: Document) -> None:
    framework(snapshot)["small"]["errors"]["hello"] = ""
    assert verdicts(plan, snapshot)["stack.hello"] == "FAIL"


def test_the_record_of_a_package_of_another_version_is_a_consequence(
    plan: Document, snapshot: Document
) -> None:
    installed = receipt(snapshot, "stack")
    name, version = next(iter(sorted(installed["packages"].items())))
    stack(snapshot)["packages"][name] = "0.0.1"
    folder = f"lib/python3.11/site-packages/{name.replace('-', '_')}-{version}.dist-info"
    installed["changed"] = [{"path": f"{folder}/RECORD", "what": "missing"}]
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert found["stack.release"]["verdict"] == found["stack.files"]["verdict"] == "FAIL"
    assert found["stack.files"]["explained_by"] == "stack.release"
    installed["changed"].append({"path": f"{folder}/METADATA", "what": "missing"})
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert "explained_by" not in found["stack.files"]


def test_nothing_of_a_stack_that_is_not_installed_passes(
    plan: Document, snapshot: Document
) -> None:
    data(snapshot, "stacks")["stacks"] = []
    of_stacks = [
        check
        for check in judge.judge(plan, snapshot)["checks"]
        if "stacks" in CHECKS[check["id"]].reads and check["id"].startswith("stack.")
    ]
    assert {check["verdict"] for check in of_stacks} == {"FAIL", "INCONCLUSIVE", "NOT-DECLARED"}
    assert [check["id"] for check in of_stacks if check["verdict"] == "FAIL"] == ["stack.release"]
    for check in of_stacks:
        if check["verdict"] == "INCONCLUSIVE":
            assert check["explained_by"] == "stack.release"


@pytest.mark.parametrize(
    ("status", "error", "features", "told"),
    [
        (-4, "", ["sse4_1"], "the processor lacks AVX, which the wheel was built for"),
        (-4, "", None, "this wheel needs AVX: see the flags in /proc/cpuinfo"),
        (-4, "", ["sse4_1", "avx", "avx2"], "an instruction of a package"),
        (
            -6,
            "The TensorFlow library was compiled to use AVX instructions, but these aren't available"
            " on your machine.",
            None,
            "the processor lacks AVX,",
        ),
        (
            1,
            "RuntimeError: This version of jaxlib was built using AVX instructions, which your CPU"
            " and/or operating system do not support.",
            None,
            "the processor lacks AVX,",
        ),
        (
            1,
            "RuntimeError: NumPy was built with baseline optimizations: (X86_V2) but your machine"
            " doesn't support: (X86_V2).",
            ["sse4_1"],
            "the processor lacks",
        ),
    ],
)
def test_a_processor_without_an_instruction(  # noqa: PLR0917 - the cases and the host
    plan: Document,
    snapshot: Document,
    status: int,
    error: str,
    features: list[str] | None,
    told: str,
) -> None:
    """SIGILL was repaired by provisioning, and looked for in mounts and limits."""
    data(snapshot, "os")["cpu_features"] = features
    run = parse_framework_output(status, "", error, "tensorflow")
    data(snapshot, "stacks")["stacks"][0]["framework"] = run
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert told in found["stack.matmul"]["cause"]
    assert "CPU type to host" in found["stack.matmul"]["remedy"]
    assert "provision" not in found["stack.matmul"]["remedy"]
