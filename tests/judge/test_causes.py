"""One cause, once: which findings explain which, and what stays a finding of its own."""

from __future__ import annotations

import copy
import re
from collections import defaultdict

import pytest

from gpufleet.components.base import subjects
from gpufleet.components.checks import CHECKS, PAIR_CHECKS
from gpufleet.documents.verdict import Verdict
from gpufleet.judge import causes, judge
from tests.support.healthy_host import Break, Document, data
from tests.support.host_parts import (
    compute_run,
    framework,
    kernel,
    no_gpu_for_programs,
    receipt,
    stack,
    tensorflow_sees,
    with_gpus,
)


@pytest.fixture
def host(plan: Document, snapshot: Document) -> tuple[Document, Document]:
    """A host with two GPUs."""
    with_gpus(plan, snapshot)
    return plan, snapshot


def judged(plan: Document, snapshot: Document) -> tuple[list[str], dict[str, str]]:
    """The checks that a person must read, and {consequence: its cause}."""
    checks = [
        check
        for check in judge.judge(plan, snapshot)["checks"]
        if check["verdict"] not in {"PASS", "NOT-DECLARED"}
    ]
    return (
        [check["id"] for check in checks if "explained_by" not in check],
        {check["id"]: check["explained_by"] for check in checks if "explained_by" in check},
    )


def test_the_relation_names_known_checks() -> None:
    known = {*CHECKS, *PAIR_CHECKS}
    words = set(re.findall(r"^    (/|[a-z-]+)", subjects.__doc__ or "", re.MULTILINE))
    for relation in causes.RELATIONS:
        assert relation.cause in known
        assert set(relation.consequences) <= known - {relation.cause}, relation
        assert len(relation.consequences) == len(set(relation.consequences)), relation
        assert set(relation.words) <= words, relation


@pytest.mark.parametrize(
    "word", ["", *sorted({word for relation in causes.RELATIONS for word in relation.words})]
)
def test_the_relation_has_no_circle(word: str) -> None:
    """Between findings about the same: of each word, with the relations of any."""
    explains: dict[str, list[str]] = defaultdict(list)
    for relation in causes.RELATIONS:
        if not relation.words or word in relation.words:
            explains[relation.cause] += relation.consequences
    done: set[str] = set()

    def walk(check: str, way: tuple[str, ...]) -> None:
        assert check not in way, (*way, check)
        if check not in done:
            for consequence in explains.get(check, ()):
                walk(consequence, (*way, check))
            done.add(check)

    for check in list(explains):
        walk(check, ())


@pytest.mark.parametrize(("state", "verdict"), [("hung", "HUNG"), ("denied", "INCONCLUSIVE")])
@pytest.mark.parametrize("section", ["smi", "compute", "stacks", "receipts", "driver"])
def test_a_section_that_was_not_read_is_one_cause(
    host: tuple[Document, Document], section: str, state: str, verdict: str
) -> None:
    plan, snapshot = host
    snapshot["sections"][section] = {"state": state, "seconds": 2, "error": "why", "data": None}
    top, folded = judged(plan, snapshot)
    assert top == ["host.probe"]
    assert set(folded.values()) == {"host.probe"}
    assert set(folded) >= {check.id for check in CHECKS.values() if section in check.reads} - {
        check["id"]
        for check in judge.judge(plan, snapshot)["checks"]
        if check["verdict"] == "NOT-DECLARED"
    }


def test_a_hung_section_does_not_hide_one_that_is_denied(host: tuple[Document, Document]) -> None:
    plan, snapshot = host
    for section, state in (("smi", "hung"), ("disks", "denied")):
        snapshot["sections"][section] = {"state": state, "seconds": 2, "error": "x", "data": None}
    top, folded = judged(plan, snapshot)
    # The line of host.probe states what hung alone.
    assert {"host.probe", "host.disk"} <= set(top)
    assert folded["gpu.throttle"] == "host.probe"


def test_verdicts_and_exit_status_count_consequences(host: tuple[Document, Document]) -> None:
    plan, snapshot = host
    snapshot["sections"]["smi"] = {"state": "hung", "seconds": 2, "error": "x", "data": None}
    result = judge.judge(plan, snapshot)
    found = judge.document({"gpu01": result}, "", "")
    assert result["verdict"] == "HUNG"
    assert found["summary"]["HUNG"] > 5
    assert judge.exit_status(found) == 1


@pytest.mark.parametrize(
    ("about", "cause", "expected"),
    [
        (("gpu/7",), ("gpu/7",), True),
        (("gpu/6", "gpu/7"), ("gpu/7",), False),
        (("gpu/7",), ("gpus",), False),
        (("gpus@a",), ("gpus",), True),
        (("gpus@a",), ("gpus@b",), False),
        (("gpus",), ("gpus@a",), False),
        (("/usr/local/cuda-11.8/libcudnn.so.8",), ("/usr/local/cuda-11.8",), True),
        (("/usr/local/cuda-11.8",), ("/usr/local/cuda-11",), False),
        (("/srv/a@b/x",), ("/srv/a",), False),
        ((), ("gpus",), False),
        (("card/0000:01:00.0",), ("card/0000:02:00.0",), False),
    ],
)
def test_a_cause_covers_what_it_is_about_and_no_more(
    about: tuple[str, ...], cause: tuple[str, ...], expected: bool
) -> None:
    assert subjects.covered(about, cause) is expected


def test_a_cause_is_at_least_as_bad_as_what_it_explains() -> None:
    def one(verdict: Verdict) -> causes.Judged:
        finding = causes.Finding("x", "y", verdict=verdict, about=("section/smi",))
        return causes.Judged(verdict, [finding], [finding])

    for cause, effect, expected in (
        (Verdict.FAIL, Verdict.HUNG, True),
        (Verdict.HUNG, Verdict.INCONCLUSIVE, True),
        (Verdict.INCONCLUSIVE, Verdict.FAIL, False),
        (Verdict.PASS, Verdict.FAIL, False),
    ):
        found = causes.explained({"host.probe": one(cause), "gpu.smi": one(effect)})
        assert bool(found) is expected, (cause, effect)


# -- one cause on a whole host, with all that it entails -------------------------------------------


def no_driver_answers(snapshot: Document, status: int, error: str, cuinit: int) -> None:
    data(snapshot, "smi").update(
        devices=[],
        attached=None,
        status=status,
        error=error,
        driver_version=None,
        nvml={"status": status, "version": None, "count": None},
    )
    data(snapshot, "driver").update(cuinit=cuinit, cuda_version=None)
    no_gpu_for_programs(snapshot)
    message = f"cuInit returned {cuinit}"
    compute_run(snapshot)["driver"] = {"cuinit": cuinit, "version": None, "error": message}


def card_missing(plan: Document, snapshot: Document) -> None:
    data(snapshot, "gpus")["pci"].pop()
    data(snapshot, "gpus")["nodes"].remove("/dev/nvidia1")
    data(snapshot, "gpus")["mig"].pop()
    data(snapshot, "smi")["devices"].pop()
    data(snapshot, "smi").update(attached=1)
    data(snapshot, "smi")["nvml"]["count"] = 1
    no_gpu_for_programs(snapshot, 1)
    read_the_same_again(snapshot)


def read_the_same_again(snapshot: Document) -> None:
    """After all work nvidia-smi says what it said before."""
    snapshot["sections"]["smi_after"] = copy.deepcopy(snapshot["sections"]["smi"])


def no_card_at_all(plan: Document, snapshot: Document) -> None:
    card_missing(plan, snapshot)
    data(snapshot, "gpus").update(pci=[], mig=[])
    no_driver_answers(snapshot, 0, "", 100)
    data(snapshot, "smi").update(
        status=0,
        error=None,
        driver_version="535.261.03",
        nvml={"status": 0, "version": "535.261.03", "count": 0},
    )
    read_the_same_again(snapshot)


def card_that_the_driver_does_not_list(plan: Document, snapshot: Document) -> None:
    data(snapshot, "smi")["devices"].pop()
    data(snapshot, "smi").update(attached=1)
    data(snapshot, "smi")["nvml"]["count"] = 1
    no_gpu_for_programs(snapshot, 1)


def upgraded_and_not_rebooted(plan: Document, snapshot: Document) -> None:
    data(snapshot, "driver").update(on_disk="535.274.02", library="535.274.02")
    kernel(snapshot)["modules"][0]["version"] = "535.274.02"
    for row in data(snapshot, "packages")["driver"]:
        row["version"] = "535.274.02-1"
    data(snapshot, "receipts")["receipts"][-1].update(version="535.274.02", packages={})
    data(snapshot, "packages")["pins"][0]["pin"] = "version 535.274.02-1"
    no_driver_answers(snapshot, 18, "Driver/library version mismatch", 803)
    data(snapshot, "containers")["run"].update(
        state="failed",
        gpus=[],
        reload=None,
        framework=None,
        error="nvidia-container-cli: initialization error: nvml error: driver/library version"
        " mismatch",
    )


def driver_not_loaded(plan: Document, snapshot: Document) -> None:
    data(snapshot, "driver").update(loaded=None, modules=[])
    data(snapshot, "gpus").update(mig=None, nodes=[], node_access=[])
    for row in data(snapshot, "gpus")["pci"]:
        row["driver"] = None
    no_driver_answers(snapshot, 9, "NVIDIA-SMI has failed because it couldn't communicate", 100)


def fabric_manager_down(plan: Document, snapshot: Document) -> None:
    plan["driver"]["fabric_manager"] = True
    data(snapshot, "gpus")["nvswitches"] = ["0000:86:00.0"]
    data(snapshot, "driver")["fabric"] = {
        "unit": "nvidia-fabricmanager.service",
        "enabled": True,
        "active": False,
        "version": None,
    }
    smi = copy.deepcopy(data(snapshot, "smi"))
    no_driver_answers(snapshot, 0, "", 802)
    snapshot["sections"]["smi"]["data"] = smi


def toolkit_not_mounted(plan: Document, snapshot: Document) -> None:
    path = plan["toolkits"][0]["path"]
    data(snapshot, "toolkits")["trees"] = []
    data(snapshot, "toolkits")["default"].update(realpath=None)
    data(snapshot, "cudnn")["trees"][0].update(headers=[], libraries=[], links=[], loaded=[])
    for entry in data(snapshot, "linker")["cache"]:
        entry["exists"] = False
    data(snapshot, "compute")["runs"] = []
    for row in data(snapshot, "receipts")["receipts"]:
        if row["path"] == path:
            row["changed"] = [
                {"path": "targets/x86_64-linux/lib/libcudnn.so.8", "what": "missing"},
                {"path": "bin/nvcc", "what": "missing"},
            ]
    loader = framework(snapshot)["loader"]
    loader["failed"] = [
        {"library": name, "error": f"{name}: cannot open shared object file"}
        for name in plan["stacks"][0]["sonames"]
    ]
    loader["opened"] = []
    framework(snapshot)["mapped"] = []
    tensorflow_sees(framework(snapshot), 0)


def stack_not_mounted(plan: Document, snapshot: Document) -> None:
    row = receipt(snapshot, "stack")
    row["changed"] = [
        {"path": "bin/python", "what": "missing"},
        {"path": "lib/python3.11/site-packages/x.so", "what": "missing"},
    ]
    data(snapshot, "stacks")["stacks"] = []
    data(snapshot, "containers")["run"]["framework"] = None


def stack_that_is_mounted_noexec(plan: Document, snapshot: Document) -> None:
    data(snapshot, "disks")["noexec"] = ["/opt"]
    stack(snapshot)["start"].update(error="Permission denied", python=None)
    framework(snapshot).update(
        state="failed",
        error="Permission denied",
        build=None,
        loader=None,
        small=None,
        matmul=[],
        tower_sum=None,
        mapped=[],
        version=None,
    )


def a_driver_that_hangs(plan: Document, snapshot: Document) -> None:
    for section in ("smi", "compute", "stacks", "containers"):
        snapshot["sections"][section] = {
            "state": "hung",
            "seconds": 60,
            "error": "no answer",
            "data": None,
        }


@pytest.mark.parametrize(
    ("cause", "breaks"),
    [
        ("gpu.count", card_missing),
        ("gpu.count", no_card_at_all),
        ("gpu.visible", card_that_the_driver_does_not_list),
        ("driver.loaded", upgraded_and_not_rebooted),
        ("driver.loaded", driver_not_loaded),
        ("driver.fabric", fabric_manager_down),
        ("toolkit.present", toolkit_not_mounted),
        ("stack.release", stack_not_mounted),
        ("stack.readable", stack_that_is_mounted_noexec),
        ("host.probe", a_driver_that_hangs),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_one_cause_on_a_host_is_shown_once(
    host: tuple[Document, Document], cause: str, breaks: Break
) -> None:
    plan, snapshot = host
    breaks(plan, snapshot)
    top, folded = judged(plan, snapshot)
    assert top == [cause]
    assert len(folded) > 1
    assert set(folded.values()) == {cause}


@pytest.mark.parametrize(
    "breaks",
    [card_missing, no_card_at_all, upgraded_and_not_rebooted, driver_not_loaded],
    ids=lambda value: value.__name__,
)
def test_a_wrong_product_is_explained_by_nothing(
    host: tuple[Document, Document], breaks: Break
) -> None:
    plan, snapshot = host
    breaks(plan, snapshot)
    framework(snapshot)["matmul"][0].update(wrong=3, error=None, device="/device:GPU:0")
    assert "stack.matmul" in judged(plan, snapshot)[0]


def test_a_module_that_waits_on_disk_does_not_explain_a_program_without_gpus(
    host: tuple[Document, Document],
) -> None:
    """CUDA starts with the loaded driver: that programs find no GPU has another cause."""
    plan, snapshot = host
    data(snapshot, "driver").update(on_disk="999.99")
    no_gpu_for_programs(snapshot, 0)
    top, _ = judged(plan, snapshot)
    assert {"driver.loaded", "toolkit.device-query"} <= set(top)


def test_one_missing_device_file_does_not_explain_that_programs_see_no_gpu_at_all(
    host: tuple[Document, Document],
) -> None:
    """CUDA, which started, has created /dev/nvidia-uvm since: its absence explains nothing."""
    plan, snapshot = host
    for name in ("/dev/nvidia1", "/dev/nvidia-uvm"):
        data(snapshot, "gpus")["nodes"].remove(name)
    no_gpu_for_programs(snapshot, 0)
    top, _ = judged(plan, snapshot)
    assert {"driver.nodes", "toolkit.device-query"} <= set(top)


def test_another_card_that_is_missing_for_cuda_is_a_finding_of_its_own(
    host: tuple[Document, Document],
) -> None:
    plan, snapshot = host
    card_missing(plan, snapshot)
    no_gpu_for_programs(snapshot, 0)
    top, _ = judged(plan, snapshot)
    assert {"gpu.count", "toolkit.device-query", "stack.matmul"} <= set(top)


def lose_cudnn(snapshot: Document, error: str) -> None:
    """Break the link of cuDNN's SONAME, as the receipt, the binding and the loader report it."""
    reason = "cannot open shared object file: No such file or directory"
    receipt(snapshot, "cudnn")["changed"] = [
        {"path": "targets/x86_64-linux/lib/libcudnn.so.8", "what": "missing", "link": True}
    ]
    stack(snapshot)["binding"]["error"] = error
    loader = framework(snapshot)["loader"]
    loader["opened"] = [name for name in loader["opened"] if name != "libcudnn.so.8"]
    loader["failed"] = [{"library": "libcudnn.so.8", "error": reason}]


def test_a_missing_link_explains_that_the_stack_cannot_be_bound(
    plan: Document, snapshot: Document
) -> None:
    path = "/usr/local/cuda-11.8/lib64/libcudnn.so.8"
    lose_cudnn(snapshot, f"{path}: {path}: cannot open shared object file")
    shown, explained = judged(plan, snapshot)
    assert shown == ["cudnn.files"]
    assert explained["stack.libraries"] == "cudnn.files"


@pytest.mark.parametrize(
    "error",
    [
        "libx.so: undefined symbol: cublasCreate_v2",
        "/usr/local/cuda-11.8/lib64/libcublas.so.11: undefined symbol: cublasCreate_v2",
    ],
)
def test_another_library_that_cannot_be_bound_is_a_cause_of_its_own(
    error: str, plan: Document, snapshot: Document
) -> None:
    lose_cudnn(snapshot, error)
    shown, explained = judged(plan, snapshot)
    assert {"cudnn.files", "stack.libraries"} <= set(shown)
    assert "stack.libraries" not in explained


def test_a_missing_link_of_a_part_of_cudnn_explains_it_too(
    plan: Document, snapshot: Document
) -> None:
    """The framework's loader does not open the parts of cuDNN; the binding does."""
    receipt(snapshot, "cudnn")["changed"] = [
        {"path": "targets/x86_64-linux/lib/libcudnn_ops_infer.so.8", "what": "missing"}
    ]
    path = "/usr/local/cuda-11.8/lib64/libcudnn_ops_infer.so.8"
    stack(snapshot)["binding"]["error"] = f"{path}: {path}: cannot open shared object file"
    assert judged(plan, snapshot) == (["cudnn.files"], {"stack.libraries": "cudnn.files"})
