"""PyTorch and JAX on a host without a GPU: what real runs prove there, and what they show."""

from __future__ import annotations

from gpufleet.checks import judge
from tests.support.framework_stacks import run, run_of, with_frameworks
from tests.support.healthy_host import Document, data, verdicts

NO_GPU = {"stack.gpu", "stack.capability"}


def test_all_three_are_healthy_without_a_gpu(plan: Document, snapshot: Document) -> None:
    with_frameworks(plan, snapshot)
    found = {check: verdict for check, verdict in verdicts(plan, snapshot).items()
             if check.startswith("stack.")}
    assert {check for check, verdict in found.items() if verdict != "PASS"} == {
        *NO_GPU, "stack.compile"}
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
    assert "/opt/gpufleet/stacks/jax-0.5.3/lib/python3.11/site-packages/nvidia/cudnn/lib" \
        in judged["stack.mapped"]["cause"]
    assert judged["stack.libraries"]["verdict"] == "FAIL"
    assert "cannot load libcudnn_heuristic.so.9" in judged["stack.libraries"]["cause"]


def test_stacks_without_tensorflow_have_none_of_its_tests(
    plan: Document, snapshot: Document
) -> None:
    with_frameworks(plan, snapshot)
    plan["stacks"] = plan["stacks"][1:]
    there = data(snapshot, "stacks")
    there["stacks"] = there["stacks"][1:]
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    for check in ("stack.hello", "stack.local-devices", "stack.gpu-device-name",
                  "stack.device-placement"):
        assert (found[check]["verdict"], found[check]["cause"]) == (
            "NOT-DECLARED", "gpu_stacks: none is TensorFlow")
    assert found["stack.matmul"]["verdict"] == "PASS"
