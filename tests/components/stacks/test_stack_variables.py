"""The environment variables of stacks: which framework gets which, and what is refused."""

from __future__ import annotations

import re

import pytest

from gpufleet.catalog import facts
from gpufleet.components.resolver import resolve
from tests.support.host_documents import declaration, refusal


def test_variables_go_to_the_frameworks_that_read_them() -> None:
    everywhere = {
        "CUDA_VISIBLE_DEVICES": "0",
        "TF_CPP_MIN_LOG_LEVEL": "1",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:128",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": ".75",
    }
    plan = resolve(
        declaration(
            "2.18.1", {"pytorch": "2.6.0"}, {"jax": "0.5.3"}, gpu_stack_environment=everywhere
        )
    )
    assert plan["problems"] == []
    assert [sorted(each["environment"]) for each in plan["stacks"]] == [
        ["CUDA_VISIBLE_DEVICES", "TF_CPP_MIN_LOG_LEVEL"],
        ["CUDA_VISIBLE_DEVICES", "PYTORCH_CUDA_ALLOC_CONF"],
        ["CUDA_VISIBLE_DEVICES", "XLA_PYTHON_CLIENT_MEM_FRACTION"],
    ]
    assert (
        "jax-0.5.3 does not get TF_CPP_MIN_LOG_LEVEL: JAX does not read TF_CPP_MIN_LOG_LEVEL"
        in plan["notes"]
    )


def test_a_wrong_variable_of_all_stacks_is_one_problem() -> None:
    stacks = [{"tensorflow": "2.18.1"}, {"pytorch": "2.6.0"}, {"jax": "0.5.3"}]
    for name, reported in (
        ("TF_CPP_MIN_LOG_LEVL", ["did you mean TF_CPP_MIN_LOG_LEVEL?"]),
        ("GPU_MEMORY_FRACTION", ["TF_PER_DEVICE", "torch.cuda", "JAX reads"]),
    ):
        problem = refusal(declaration(*stacks, gpu_stack_environment={name: "1"}))
        assert problem["where"] == f"gpu_stack_environment.{name}"
        assert all(text in problem["message"] for text in reported)
        for known in facts.rules("stack_variables"):
            assert known in problem["remedy"]


def test_a_variable_of_another_framework_is_refused_in_a_stack_of_its_own() -> None:
    entry = {"jax": "0.5.3", "environment": {"TF_CPP_MIN_LOG_LEVEL": "1"}}
    problem = refusal(declaration(entry))
    assert (problem["code"], problem["remedy"]) == ("variable-unknown", "remove it")
    older = {"pytorch": "1.9.1", "environment": {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:1"}}
    assert "declare PyTorch 1.10.0 or newer" in refusal(declaration(older))["remedy"]


@pytest.mark.parametrize(
    ("framework", "release", "reported"),
    [
        ("tensorflow", "2.18.1", "TF_PER_DEVICE_MEMORY_LIMIT_MB limits it in MiB"),
        ("pytorch", "2.6.0", "torch.cuda.set_per_process_memory_fraction() in a program limits it"),
        ("jax", "0.5.3", "JAX reads the fraction of XLA_PYTHON_CLIENT_MEM_FRACTION"),
    ],
)
def test_a_fraction_of_the_memory_is_answered_in_the_framework_s_own_terms(
    framework: str, release: str, reported: str
) -> None:
    problem = refusal(
        declaration({framework: release, "environment": {"GPU_MEMORY_FRACTION": "0.5"}})
    )
    assert reported in problem["message"]
    names = re.findall(r"[A-Z_]{9,}", problem["remedy"])
    assert "CUDA_VISIBLE_DEVICES" in names
    assert {name.partition("_")[0] for name in names} == {
        "CUDA",
        {"tensorflow": "TF", "pytorch": "PYTORCH", "jax": "XLA"}[framework],
    }
    if framework != "jax":
        of_jax = {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".5"}
        problem = refusal(declaration({framework: release, "environment": of_jax}))
        assert "does not read XLA_PYTHON_CLIENT_MEM_FRACTION" in problem["message"]
        assert reported in problem["remedy"]
