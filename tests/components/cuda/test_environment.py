"""The environment of a login: what disturbs a stack, and what does not."""

from __future__ import annotations

import pytest

from gpufleet.judge import judge
from gpufleet.on_host.constants import MOST_VALUE
from tests.support.healthy_host import Document, data, verdicts
from tests.support.host_parts import with_gpus


@pytest.mark.parametrize(
    ("where", "variables", "offers"),
    [
        ("A login of deploy", {"LD_LIBRARY_PATH": "/opt/bbb"}, {"/opt/bbb": ["libcudnn.so.8"]}),
        ("systemd, for its services,", {"LD_LIBRARY_PATH": "/opt/cuda-9.0/lib64"}, {}),
        ("/etc/ld.so.preload", {"LD_PRELOAD": "/opt/x.so"}, {"/opt/x.so": ["libcudart.so.11.0"]}),
    ],
)
def test_other_ways_to_disturb(
    plan: Document, snapshot: Document, where: str, variables: Document, offers: Document
) -> None:
    data(snapshot, "environment").update(
        others=[{"where": where, "variables": variables}], offers=offers
    )
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert found["environment.login"]["verdict"] == "FAIL"
    assert found["environment.login"]["cause"].startswith(f"{where} sets LD_")


def test_a_preloaded_library_of_others_is_no_fault(plan: Document, snapshot: Document) -> None:
    data(snapshot, "environment")["login"]["LD_PRELOAD"] = "/usr/lib/libcurl.so.4"
    assert verdicts(plan, snapshot)["environment.login"] == "PASS"


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("LD_LIBRARY_PATH", "/opt/cuda-12.4/lib64:/opt/x", "/opt/cuda-12.4/lib64"),
        ("LD_LIBRARY_PATH", "/usr/local/cuda-11.8/lib64/stubs", "stub"),
        ("LD_PRELOAD", "/opt/libcublas.so.11", "before those of every stack"),
        ("PYTHONPATH", "/opt/site", "modules"),
        ("PYTHONHOME", "/opt/python", "modules"),
    ],
)
def test_a_login_that_disturbs(
    plan: Document, snapshot: Document, name: str, value: str, word: str
) -> None:
    data(snapshot, "environment")["login"][name] = value
    data(snapshot, "environment")["offers"] = {"/opt/libcublas.so.11": ["libcublas.so.11"]}
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert found["environment.login"]["verdict"] == "FAIL"
    assert f"{name}={value}" in found["environment.login"]["cause"]
    assert word in found["environment.login"]["cause"]
    assert "/etc/profile.d" in found["environment.login"]["remedy"]


def test_a_login_may_name_the_only_toolkit_and_other_libraries(
    plan: Document, snapshot: Document
) -> None:
    login = data(snapshot, "environment")["login"]
    login["LD_LIBRARY_PATH"] = "/usr/local/cuda/lib64:/opt/mpi/lib"
    login["CUDA_HOME"] = "/usr/local/cuda"
    assert verdicts(plan, snapshot)["environment.login"] == "PASS"


def test_cuda_visible_devices_counts_only_where_gpus_are_declared(
    plan: Document, snapshot: Document
) -> None:
    data(snapshot, "environment")["login"]["CUDA_VISIBLE_DEVICES"] = "0"
    assert verdicts(plan, snapshot)["environment.login"] == "PASS"
    with_gpus(plan, snapshot)
    assert verdicts(plan, snapshot)["environment.login"] == "FAIL"
    data(snapshot, "environment")["login"]["CUDA_VISIBLE_DEVICES"] = "0,1"
    assert verdicts(plan, snapshot)["environment.login"] == "PASS"


@pytest.mark.parametrize(
    ("visible", "shown"),
    [
        ("", 0),
        ("-1", 0),
        ("NoDevFiles", 0),
        ("1", 1),
        ("0,0", 1),
        ("0,2,1", 1),
        ("7", 0),
        ("x", 0),
        ("²", 0),
        ("0,٣", 1),
        ("9" * 5000, 0),
    ],
)
def test_cuda_reads_up_to_the_first_that_is_no_gpu(
    plan: Document, snapshot: Document, visible: str, shown: int
) -> None:
    with_gpus(plan, snapshot)
    data(snapshot, "environment")["login"]["CUDA_VISIBLE_DEVICES"] = visible
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert f"it shows {shown} of 2 declared GPUs" in found["environment.login"]["cause"]


@pytest.mark.parametrize(
    ("variables", "job", "verdict"),
    [({"CUDA_VISIBLE_DEVICES": "1"}, True, "PASS"),
     ({"CUDA_VISIBLE_DEVICES": ""}, True, "PASS"),
     ({"CUDA_VISIBLE_DEVICES": "GPU-1f"}, True, "PASS"),
     ({"LD_LIBRARY_PATH": "/opt/cuda/lib64"}, True, "PASS"),
     ({"CUDA_VISIBLE_DEVICES": "2"}, True, "FAIL"),
     ({"CUDA_VISIBLE_DEVICES": "²"}, True, "PASS"),
     ({"CUDA_VISIBLE_DEVICES": "9" * 5000}, True, "FAIL"),
     ({"LD_LIBRARY_PATH": "/opt/cuda/lib64/stubs"}, True, "FAIL"),
     ({"LD_LIBRARY_PATH": "/a" * MOST_VALUE}, True, "INCONCLUSIVE"),
     ({"LD_LIBRARY_PATH": "/stubs" * MOST_VALUE}, True, "FAIL"),
     ({"PYTHONPATH": "a" * MOST_VALUE}, True, "PASS"),
     ({"CUDA_VISIBLE_DEVICES": "1"}, False, "FAIL")],
)  # fmt: skip
def test_what_one_job_chooses_is_its_own_affair(
    plan: Document, snapshot: Document, variables: dict[str, str], job: bool, verdict: str
) -> None:
    with_gpus(plan, snapshot)
    data(snapshot, "environment")["others"].append(
        {"where": "/etc/cron.d/train", "variables": variables, "job": job}
    )
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert found["environment.login"]["verdict"] == verdict
    assert "/etc/cron.d/train sets " in found["environment.login"]["evidence"]
    assert verdict == "PASS" or "from /etc/cron.d/train" in found["environment.login"]["remedy"]


def test_the_file_that_sets_it_is_named(plan: Document, snapshot: Document) -> None:
    environment = data(snapshot, "environment")
    environment["login"]["PYTHONPATH"] = "/opt/site"
    environment["mentions"] = {"PYTHONPATH": ["/etc/profile.d/site.sh"]}
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert found["environment.login"]["remedy"].endswith("from /etc/profile.d/site.sh")
