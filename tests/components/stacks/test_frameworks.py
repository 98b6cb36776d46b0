"""PyTorch and JAX on a host without a GPU: what real runs prove there, and what they show."""

from __future__ import annotations

import pytest

from gpufleet.judge import judge
from tests.support.framework_stacks import (
    planned,
    receipt_of,
    run,
    run_of,
    with_frameworks,
    with_frameworks_on_gpus,
)
from tests.support.healthy_host import Document, data, verdicts
from tests.support.host_parts import held_by_ann

NO_GPU = {"stack.gpu", "stack.capability"}


def test_all_three_are_healthy_without_a_gpu(plan: Document, snapshot: Document) -> None:
    with_frameworks(plan, snapshot)
    found = {
        check: verdict
        for check, verdict in verdicts(plan, snapshot).items()
        if check.startswith("stack.")
    }
    assert {check for check, verdict in found.items() if verdict != "PASS"} == {
        *NO_GPU,
        "stack.compile",
    }
    assert set(found.values()) == {"PASS", "NOT-DECLARED"}


def test_another_stack_s_cudnn_by_ld_library_path_is_proven_without_a_gpu(
    plan: Document, snapshot: Document
) -> None:
    """A real run of an environment without a binding: cuDNN 9.1 looks for its parts by DT_RUNPATH,
    and LD_LIBRARY_PATH had those of JAX's cuDNN 9.28."""
    with_frameworks(plan, snapshot)
    run(snapshot, "pytorch").update(run_of("pytorch-2.6.0-hostile"))
    judged = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert judged["stack.mapped"]["verdict"] == "FAIL"
    assert (
        "/opt/gpufleet/stacks/jax-0.5.3/lib/python3.11/site-packages/nvidia/cudnn/lib"
        in judged["stack.mapped"]["cause"]
    )
    assert judged["stack.libraries"]["verdict"] == "FAIL"
    assert "cannot load libcudnn_heuristic.so.9" in judged["stack.libraries"]["cause"]


def test_a_library_of_the_environment_that_fails_is_reported_also_where_it_was_optional(
    plan: Document, snapshot: Document
) -> None:
    """A variant of PyTorch: its libraries are optional; those that are there must work."""
    with_frameworks(plan, snapshot)
    stack = planned(plan, "pytorch")
    stack.update(sonames=[], sonames_optional=stack["sonames"])
    assert verdicts(plan, snapshot)["stack.libraries"] == "PASS"
    loader = run(snapshot, "pytorch")["loader"]
    loader["opened"].remove("libcudnn.so.9")
    loader["failed"].append({"library": "libcudnn.so.9", "error": "file too short"})
    judged = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert judged["stack.libraries"]["verdict"] == "FAIL"
    assert "cannot load libcudnn.so.9" in judged["stack.libraries"]["cause"]


def test_stacks_without_tensorflow_have_none_of_its_tests(
    plan: Document, snapshot: Document
) -> None:
    with_frameworks(plan, snapshot)
    plan["stacks"] = plan["stacks"][1:]
    there = data(snapshot, "stacks")
    there["stacks"] = there["stacks"][1:]
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    for check in (
        "stack.hello",
        "stack.local-devices",
        "stack.gpu-device-name",
        "stack.device-placement",
    ):
        assert (found[check]["verdict"], found[check]["cause"]) == (
            "NOT-DECLARED",
            "gpu_stacks: none is TensorFlow",
        )
    assert found["stack.matmul"]["verdict"] == "PASS"


def judged_on_two_gpus(
    plan: Document, snapshot: Document, framework: str, name: str
) -> dict[str, Document]:
    """The checks of a host with two GPUs, on which a framework ran as it did here."""
    ran = run(snapshot, framework)
    ran.clear()
    ran.update(run_of(name))
    # The receipt names the libraries of a lock that was made on another day.
    receipt_of(snapshot, framework)["libraries"] = list(ran["mapped"])
    return {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}


@pytest.mark.parametrize(
    ("framework", "name", "reason"),
    [
        (
            "pytorch",
            "pytorch-2.6.0",
            "PyTorch reports 0 GPUs: RuntimeError: Unexpected error from cudaGetDeviceCount()",
        ),
        (
            "jax",
            "jax-0.5.3",
            "JAX reports 0 GPUs: RuntimeError: Unable to initialize backend 'cuda'",
        ),
    ],
)
def test_real_runs_on_gpus_that_they_cannot_use_are_on_the_cpu_and_reported_so(
    plan: Document, snapshot: Document, framework: str, name: str, reason: str
) -> None:
    """PyTorch and JAX themselves, with a stand-in for the driver's library that counts two GPUs
    and does not serve CUDA's runtime."""
    with_frameworks_on_gpus(plan, snapshot)
    found = judged_on_two_gpus(plan, snapshot, framework, f"{name}-unused")
    assert {found[check]["verdict"] for check in ("stack.gpu", "stack.matmul")} == {"FAIL"}
    assert (
        f"{name}: no result of GPU 0, 1 of 2 declared; its programs compute on the CPU, or"
        f" fail: {reason}" in found["stack.gpu"]["cause"]
    )
    assert f"{name} on /GPU:1 could not multiply: {reason}" in found["stack.matmul"]["cause"]
    assert f"{name} on " not in found["stack.matmul"]["evidence"]
    assert "driver.cuda" in found["stack.matmul"]["remedy"]
    assert found["stack.gpu"]["explained_by"] == "stack.matmul"
    assert found["stack.build"]["verdict"] == "PASS"


def test_a_real_run_of_jax_beside_a_job_that_has_the_gpus_is_inconclusive(
    plan: Document, snapshot: Document
) -> None:
    """JAX itself; the stand-in for the driver's library answers as where a process has a GPU."""
    with_frameworks_on_gpus(plan, snapshot)
    plan["expect"]["compute_mode"] = "exclusive_process"
    for device in data(snapshot, "smi")["devices"]:
        device["compute_mode"] = "exclusive_process"
    held_by_ann(snapshot)
    found = judged_on_two_gpus(plan, snapshot, "jax", "jax-0.5.3-exclusive")
    assert {check: row["cause"] for check, row in found.items() if row["verdict"] == "FAIL"} == {}
    for check in ("stack.matmul", "stack.gpu", "stack.convolution"):
        assert found[check]["verdict"] == "INCONCLUSIVE"
        assert "CUDA_ERROR_DEVICE_UNAVAILABLE" in found[check]["cause"]
        assert "held by pid 4711 (ann, python3)" in found[check]["cause"]


def test_a_gpu_that_hangs_is_reported_also_where_a_library_of_the_stack_changed(
    plan: Document, snapshot: Document
) -> None:
    """A changed library ends a program: whoever reinstalls the stack still has that GPU."""
    with_frameworks_on_gpus(plan, snapshot)
    receipt_of(snapshot, "pytorch").update(
        files=2, changed=[{"path": "lib/python3.11/site-packages/torch/lib/libshm.so",
                           "what": "size"}])  # fmt: skip
    ran = run(snapshot, "pytorch")
    ran.update(state="hung", error="no answer within 96 s", loader=None, matmul=[], tower_sum=None)
    for part in ("numpy", "convolution", "routines", "workers", "compile"):
        del ran[part]
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert found["stack.files"]["verdict"] == "FAIL"
    assert found["stack.matmul"]["verdict"] == "HUNG"
    assert "explained_by" not in found["stack.matmul"]
    assert found["stack.gpu"]["explained_by"] == "stack.matmul"


def test_a_broken_convolution_is_reported_also_where_a_lower_precision_fails(
    plan: Document, snapshot: Document
) -> None:
    with_frameworks_on_gpus(plan, snapshot)
    ran = run(snapshot, "pytorch")
    for entry in ran["matmul"]:
        if entry.get("precision") == "bfloat16" and entry["requested"] == "/GPU:0":
            entry.update(
                device=None,
                wrong=None,
                tflops=None,
                error="RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED",
            )
    error = "RuntimeError: Unable to load any of {libcudnn_engines_precompiled.so.9.1.0}"
    ran["convolution"][0].update(device=None, wrong=None, error=error)
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    for check in ("stack.matmul", "stack.convolution"):
        assert found[check]["verdict"] == "FAIL"
        assert "explained_by" not in found[check]
    assert error in found["stack.convolution"]["cause"]


def test_a_driver_that_does_not_start_is_no_full_memory(plan: Document, snapshot: Document) -> None:
    """cuInit takes no memory of a GPU; cuBLAS says NOT_INITIALIZED where none is left."""
    with_frameworks_on_gpus(plan, snapshot)
    held_by_ann(snapshot)
    for device in data(snapshot, "smi")["devices"]:
        device["memory_free_mib"] = 100
    for entry in run(snapshot, "jax")["matmul"]:
        entry.update(
            device=None,
            wrong=None,
            tflops=None,
            error="JAX reports 0 GPUs: failed call"
            " to cuInit: CUDA_ERROR_NOT_INITIALIZED: initialization error",
        )
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert found["stack.matmul"]["verdict"] == "FAIL"
    assert "CUDA_ERROR_NOT_INITIALIZED" in found["stack.matmul"]["cause"]
