"""The small files: what modulefiles, profile, activation and kernels say, and which variables."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpufleet.components.changes import changes
from gpufleet.components.resolver import resolve
from gpufleet.components.stacks import environment_plan as environment
from tests.support.host_documents import (
    codes,
    converged,
    declaration,
    receipt,
    refusal,
    section,
    snapshot,
)

Row = dict[str, Any]

MODULES = "/opt/gpufleet/modulefiles"
HOOK = "/etc/profile.d/zz-gpufleet-modules.sh"
PROFILE = "/etc/profile.d/gpufleet-cuda.sh"
KERNEL = "/usr/local/share/jupyter/kernels/tensorflow-2.13.1/kernel.json"


def texts(*stacks: Any, **others: Any) -> dict[str, str]:
    """The texts of the files that the declaration results in, by path."""
    plan = resolve(declaration(*stacks, **others))
    assert plan["problems"] == []
    return {row["path"]: row["text"] for row in plan["environment"]}


def test_modules_are_always_there_and_nothing_else_unless_asked() -> None:
    assert set(texts("2.13.1")) == {
        f"{MODULES}/cuda/11.8",
        f"{MODULES}/cuda/.version",
        f"{MODULES}/tensorflow/2.13.1",
        HOOK,
    }
    assert texts() == {}


def test_a_toolkit_s_module() -> None:
    found = texts("2.13.1", gpu_toolkits=["12.4.1"], gpu_cuda_default="11.8")
    lines = found[f"{MODULES}/cuda/11.8"].splitlines()
    assert lines[0] == "#%Module1.0"
    assert "conflict cuda" in lines
    assert "$put CUDA_HOME {/usr/local/cuda-11.8}" in lines
    assert "prepend-path PATH /usr/local/cuda-11.8/bin" in lines
    assert "LD_LIBRARY_PATH" not in found[f"{MODULES}/cuda/11.8"]
    assert 'set ModulesVersion "11.8"' in found[f"{MODULES}/cuda/.version"]


def test_only_a_toolkit_that_the_linker_does_not_know_names_its_libraries() -> None:
    found = texts("2.13.1", gpu_toolkits=["11.2"])
    assert "LD_LIBRARY_PATH /usr/local/cuda-11.2/lib64" in found[f"{MODULES}/cuda/11.2"]
    assert "LD_LIBRARY_PATH" not in found[f"{MODULES}/cuda/11.8"]


def test_a_value_with_a_colon_is_not_kept_in_a_list_of_colons() -> None:
    """environment-modules left `max_split_size_mb` in the session of whoever unloaded the stack."""
    variables = {
        "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512",
        "CUDA_VISIBLE_DEVICES": "0",
    }
    found = texts({"pytorch": "2.6.0", "environment": variables})
    lines = found[f"{MODULES}/pytorch/2.6.0"].splitlines()
    assert "setenv PYTORCH_CUDA_ALLOC_CONF {max_split_size_mb:512}" in lines
    assert "$put CUDA_VISIBLE_DEVICES {0}" in lines


def test_a_stack_s_module_is_called_by_its_release_or_its_name() -> None:
    found = texts("2.13.1", {"tensorflow": "2.13.1", "name": "vision"})
    assert f"{MODULES}/tensorflow/2.13.1" in found
    lines = found[f"{MODULES}/tensorflow/vision"].splitlines()
    assert "conflict tensorflow" in lines
    assert "prepend-path PATH /opt/gpufleet/stacks/vision/bin" in lines
    both = declaration("2.13.1", {"tensorflow": "2.14.1", "name": "2.13.1"})
    problem = refusal(both)
    assert (problem["code"], problem["where"]) == ("stack-name-clash", "gpu_stacks[1].name")
    assert "module name, tensorflow/2.13.1" in problem["message"]


@pytest.mark.parametrize("name", ["tensorflow-", "tensorflow-..", "tensorflow-.version"])
def test_a_name_that_would_be_no_module_s_is_refused(name: str) -> None:
    problem = refusal(declaration({"tensorflow": "2.13.1", "name": name}))
    assert (problem["code"], problem["where"]) == ("bad-name", "gpu_stacks[0].name")


def test_the_profile_follows_the_link_and_never_sets_the_library_path() -> None:
    text = texts("2.13.1", gpu_profile=True)[PROFILE]
    assert "CUDA_HOME=/usr/local/cuda;" in text
    assert "LD_LIBRARY_PATH" not in text
    other = texts("2.13.1", gpu_toolkits=["12.4.1"], gpu_cuda_default="12.4", gpu_profile=True)
    assert other[PROFILE] == text


def test_a_kernel_starts_the_stack_s_python_with_its_variables() -> None:
    plan = resolve(
        declaration(
            {"tensorflow": "2.13.1", "environment": {"TF_CPP_MIN_LOG_LEVEL": "2"}},
            gpu_jupyter_kernels=True,
        )
    )
    kernel = json.loads(next(r["text"] for r in plan["environment"] if r["path"] == KERNEL))
    python = "/opt/gpufleet/stacks/tensorflow-2.13.1/bin/python"
    assert kernel["argv"] == [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    assert kernel["env"] == {"TF_CPP_MIN_LOG_LEVEL": "2"}
    assert kernel["display_name"] == "TensorFlow 2.13.1, CUDA 11.8"
    assert "ipykernel" in plan["stacks"][0]["requirements"]
    assert plan["stacks"][0]["lock"] == "tensorflow-2.13.1-jupyter-py3.11.lock"


def test_a_name_that_jupyter_would_not_know_is_refused() -> None:
    named = {"tensorflow": "2.13.1", "name": "c++"}
    assert resolve(declaration(named))["problems"] == []
    assert refusal(declaration(named, gpu_jupyter_kernels=True))["code"] == "bad-name"


def test_variables_stand_in_module_and_activation_alike() -> None:
    stack = {"tensorflow": "2.13.1", "environment": {"CUDA_VISIBLE_DEVICES": "0,1"}}
    shared = {"TF_FORCE_GPU_ALLOW_GROWTH": True, "CUDA_VISIBLE_DEVICES": -1}
    found = texts(stack, gpu_stack_environment=shared)
    module = found[f"{MODULES}/tensorflow/2.13.1"]
    assert "$put CUDA_VISIBLE_DEVICES {0,1}" in module
    assert "$put TF_FORCE_GPU_ALLOW_GROWTH {true}" in module
    sourced = found["/opt/gpufleet/environment/tensorflow-2.13.1.sh"]
    assert "CUDA_VISIBLE_DEVICES='0,1'; export CUDA_VISIBLE_DEVICES" in sourced


@pytest.mark.parametrize(
    ("name", "value", "code", "reported"),
    [
        ("LD_LIBRARY_PATH", "/x", "variable-forbidden", "libraries"),
        ("PYTHONPATH", "/x", "variable-forbidden", "modules"),
        ("CUDA_HOME", "/x", "variable-forbidden", "than its own"),
        ("TF_CPP_MIN_LOG_LEVL", "1", "variable-unknown", "TF_CPP_MIN_LOG_LEVEL"),
        ("XLA_CLIENT_MEM_FRACTION", "0.5", "variable-unknown", "TF_PER_DEVICE_MEMORY_LIMIT_MB"),
        ("TF_CPP_MIN_LOG_LEVEL", "7", "wrong-type", "from 0"),
        ("TF_FORCE_GPU_ALLOW_GROWTH", "yes", "wrong-type", "true or false"),
        ("CUDA_VISIBLE_DEVICES", "0;reboot", "wrong-type", "UUIDs"),
        ("TF_CPP_MIN_LOG_LEVEL", ["1"], "wrong-type", "a list"),
    ],
)
@pytest.mark.parametrize("shared", [False, True])
def test_variables_that_are_refused(
    name: str, value: Any, code: str, reported: str, shared: bool
) -> None:
    given = {name: value}
    if shared:
        problem = refusal(declaration("2.13.1", gpu_stack_environment=given))
        where = f"gpu_stack_environment.{name}"
    else:
        problem = refusal(declaration({"tensorflow": "2.13.1", "environment": given}))
        where = f"gpu_stacks[0].environment.{name}"
    assert (problem["code"], problem["where"]) == (code, where)
    assert reported in problem["message"]
    assert problem["remedy"]


def test_a_variable_that_the_release_does_not_read_is_refused_with_the_first_that_does() -> None:
    given = {"TF_FORCE_GPU_ALLOW_GROWTH": True}
    problem = refusal(declaration({"tensorflow": "1.11.0", "environment": given}))
    assert problem["code"] == "variable-unknown"
    reported = "does not read TF_FORCE_GPU_ALLOW_GROWTH; the first that does is 1.12.0"
    assert f"TensorFlow 1.11.0 {reported}" in problem["message"]
    assert resolve(declaration({"tensorflow": "1.12.0", "environment": given}))["problems"] == []


def test_one_for_all_is_left_out_where_the_release_does_not_read_it_and_the_plan_says_so() -> None:
    plan = resolve(
        declaration("1.4.0", "2.13.1", gpu_stack_environment={"TF_FORCE_GPU_ALLOW_GROWTH": 1})
    )
    assert codes(plan) == ["wrong-type"]
    plan = resolve(
        declaration("1.4.0", "2.13.1", gpu_stack_environment={"TF_FORCE_GPU_ALLOW_GROWTH": True})
    )
    assert plan["problems"] == []
    given = {row["name"]: row["environment"] for row in plan["stacks"]}
    assert given == {
        "tensorflow-1.4.0": {},
        "tensorflow-2.13.1": {"TF_FORCE_GPU_ALLOW_GROWTH": "true"},
    }
    assert any(
        "tensorflow-1.4.0 does not get TF_FORCE_GPU_ALLOW_GROWTH" in note for note in plan["notes"]
    )


# -- what a host lacks ----------------------------------------------------------------------------


def because(declared: Row, host: Row) -> str:
    """Why the files are to be written."""
    rows = changes(resolve(declared), host)
    assert {row["what"] for row in rows} <= {"environment", "linker"}, rows
    return next(str(row["because"]) for row in rows if row["what"] == "environment")


def test_another_declaration_is_a_change_of_the_files_alone() -> None:
    host = converged(resolve(declaration("2.13.1")))
    assert because(declaration("2.13.1", gpu_profile=True), host) == f"{PROFILE} is missing"
    given = declaration("2.13.1", gpu_stack_environment={"TF_CPP_MIN_LOG_LEVEL": 1})
    assert "tensorflow-2.13.1.sh is missing and 1 more" in because(given, host)
    assert f"{PROFILE} is no longer declared (gpu_profile, gpu_cuda_default)" in because(
        declaration("2.13.1"), converged(resolve(declaration("2.13.1", gpu_profile=True)))
    )


def test_a_changed_file_is_a_repair() -> None:
    host = converged(resolve(declaration("2.13.1")))
    receipt(host, "environment", "files")["changed"] = [{"path": "etc/x", "what": "missing"}]
    assert "etc/x (missing)" in because(declaration("2.13.1"), host)


def test_the_files_go_with_the_last_declaration() -> None:
    host = converged(resolve(declaration("2.13.1")))
    assert "no longer declared" in because({}, host)


def test_a_file_of_somebody_else_is_refused_before_anything_changes() -> None:
    host = snapshot()
    section(host, "receipts")["texts"] = {KERNEL: "ab"}
    problem = refusal(declaration("2.13.1", gpu_jupyter_kernels=True), host)
    assert (problem["code"], problem["where"]) == ("foreign-tree", KERNEL)
    assert resolve(declaration("2.13.1"), host)["problems"] == []
    plan = resolve(declaration("2.13.1", gpu_jupyter_kernels=True))
    section(host, "receipts")["texts"] = environment.digests(plan["environment"])
    assert resolve(declaration("2.13.1", gpu_jupyter_kernels=True), host)["problems"] == []
