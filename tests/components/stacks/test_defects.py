"""Defects of CUDA's parts, on the GPUs that they concern: refused, noted, or not there."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.catalog import facts, versions
from gpufleet.components.resolver import resolve
from tests.support.host_documents import codes, declaration, refusal

PTXAS = "can compile programs of XLA to code with wrong results"
CUBLAS = "can give wrong results while another stream computes on the GPU"
INDEX = "https://download.pytorch.org/whl"


def noted(entry: dict[str, Any], text: str, **others: Any) -> bool:
    """Return whether the accepted plan of one stack has a note with a text."""
    plan = resolve(declaration(entry, **others))
    assert codes(plan) == []
    return any(text in note for note in plan["notes"])


@pytest.mark.parametrize(
    ("cuda", "gpu", "refused"),
    [
        ("local", "H100", True),
        ("12.5", "H200", True),
        ("12.6.2", "H100", True),
        ("12.6.3", "H100", False),
        ("12.6", "H100", False),
        ("12.9", "H100", False),
        ("12.5", "A100", False),
        ("local", "L40S", False),
    ],
)
def test_jax_compiles_for_hopper_with_a_ptxas_that_is_right(
    cuda: str, gpu: str, refused: bool
) -> None:
    entry = {"jax": "0.5.3", "cuda": cuda}
    assert codes(resolve(declaration(entry, gpu_gpus=[gpu]))) == (
        ["cuda-mismatch"] if refused else []
    )
    if refused:
        problem = refusal(declaration(entry, gpu_gpus=[gpu]))
        assert problem["where"] == "gpu_stacks[0].cuda"
        assert PTXAS in problem["message"]
        assert problem["remedy"].startswith(
            'declare cuda: "12.6.3" or newer in gpu_stacks[0].cuda, or remove cuda'
        )


def test_the_remedy_for_hopper_is_accepted() -> None:
    for cuda in ("12.6.3", "12.6", None):
        assert codes(resolve(declaration({"jax": "0.5.3", "cuda": cuda}, gpu_gpus=["H100"]))) == []


def test_it_is_printed_where_the_gpu_is_not_known_and_not_where_there_is_none() -> None:
    entry = {"jax": "0.5.3", "cuda": "12.5"}
    assert noted(entry, "on GPUs of compute capability 9.0 and newer, ptxas of CUDA 12.5.1")
    assert not noted(entry, "ptxas", gpu_expect={"count": 0})
    assert not noted(entry, "ptxas", gpu_gpus=["A100"])
    assert not noted({"jax": "0.5.3", "cuda": "12.6"}, "ptxas")
    assert not noted({"jax": "0.5.3"}, "ptxas", gpu_gpus=["H100"])


@pytest.mark.parametrize(
    ("entry", "there"),
    [
        ({"tensorflow": "2.18.1"}, True),  # its toolkit is 12.5, whatever is declared
        ({"tensorflow": "2.18.1", "cuda": "pip"}, True),  # nvidia-cuda-nvcc-cu12==12.5.82
        ({"tensorflow": "2.21.0", "cuda": "pip"}, False),  # a range: the lock has a newer one
        ({"tensorflow": "2.14.0"}, False),
    ],
)
def test_tensorflow_is_reported_of_it(entry: dict[str, str], there: bool) -> None:
    assert noted(entry, PTXAS, gpu_gpus=["H100"]) is there
    assert not noted(entry, PTXAS, gpu_gpus=["A100"])


def test_xla_does_not_compile_with_the_ptxas_of_12_3_1() -> None:
    problem = refusal(declaration({"jax": "0.5.3", "cuda": "12.3.1"}, gpu_gpus=["A100"]))
    assert "ptxas of CUDA 12.3.1 is one that XLA does not compile with" in problem["message"]
    assert 'cuda: "12.3.2" or newer in gpu_stacks[0].cuda' in problem["remedy"]
    assert codes(resolve(declaration({"jax": "0.5.3", "cuda": "12.3.2"}, gpu_gpus=["A100"]))) == []


def test_the_remedy_names_what_keeps_the_toolkit_to_its_release() -> None:
    entry = {"jax": "0.5.3", "cuda": "12.6"}
    problem = refusal(declaration(entry, gpu_toolkits=[{"cuda": "12.6.2"}], gpu_gpus=["H100"]))
    assert problem["remedy"].startswith('declare cuda: "12.6.3" or newer in gpu_toolkits[0], or')
    for toolkit, problems in (("12.6.2", ["cuda-mismatch"]), ("12.6.3", [])):
        plan = resolve(declaration(entry, gpu_toolkits=[{"cuda": toolkit}], gpu_gpus=["H100"]))
        assert codes(plan) == problems


def test_the_remedy_for_two_stacks_of_one_toolkit_is_one() -> None:
    def both(pin: str) -> Any:
        return resolve(
            declaration(
                {"jax": "0.5.3", "cuda": pin}, {"jax": "0.5.2", "cuda": "12.3"}, gpu_gpus=["V100"]
            )
        )

    remedies = {problem["remedy"].partition(", or")[0] for problem in both("12.3.1")["problems"]}
    assert remedies == {'declare cuda: "12.3.2" or newer in gpu_stacks[0].cuda'}
    assert codes(both("12.3.2")) == []


def test_the_remedy_is_for_all_gpus_of_the_host() -> None:
    for gpus, release in ((["V100"], "12.3.2"), (["V100", "H100"], "12.6.3")):
        problem = refusal(declaration({"jax": "0.5.3", "cuda": "12.3.1"}, gpu_gpus=gpus))
        assert f'declare cuda: "{release}"' in problem["remedy"]
        fixed = declaration({"jax": "0.5.3", "cuda": release}, gpu_gpus=gpus)
        assert codes(resolve(fixed)) == []


@pytest.mark.parametrize(
    ("entry", "there"),
    [
        ({"pytorch": "2.8.0"}, True),  # nvidia-cublas-cu12==12.8.4.1
        ({"pytorch": "2.11.0"}, True),  # cuda-toolkit[cublas]==13.0.2
        ({"pytorch": "2.12.0"}, False),  # nvidia-cublas<=13.1.1.3
        ({"pytorch": "2.13.0"}, False),  # cuda-toolkit[cublas]==13.0.3
        ({"pytorch": "2.7.0", "cuda": "12.8", "index": f"{INDEX}/cu128"}, True),
        ({"jax": "0.8.0"}, False),  # a range
        ({"jax": "0.6.2", "cuda": "12.8.1"}, True),
        ({"jax": "0.6.2", "cuda": "12.8"}, False),  # 12.8.2
        ({"jax": "0.8.0", "cuda": "13.1.1"}, True),
        ({"jax": "0.8.0", "cuda": "13.2"}, False),
    ],
)
def test_cublas_on_blackwell(entry: dict[str, str], there: bool) -> None:
    assert noted(entry, CUBLAS, gpu_gpus=["B200"]) is there
    assert not noted(entry, CUBLAS, gpu_gpus=["H100"])
    assert not noted(entry, CUBLAS)


def test_a_toolkit_for_peoples_programs_has_it_too() -> None:
    for cuda, there in (("12.8.1", True), ("12.8", False), ("13.1.0", True)):
        plan = resolve(declaration(gpu_toolkits=[cuda], gpu_gpus=["B200"]))
        assert plan["problems"] == []
        assert any("its cuBLAS" in note for note in plan["notes"]) is there


def test_what_is_named_as_corrected_is_not_affected() -> None:
    for rule in facts.rules("cuda_defects"):
        for each in rule["toolkits"]:
            last = versions.short(each["to"]), int(each["to"].split(".")[2])
            assert facts.toolkit(f"{last[0]}.{last[1] + 1}"), each


def test_the_cudnn_that_jax_refuses_exactly() -> None:
    entry = {"jax": "0.6.2", "cuda": "12.8", "cudnn": "9.10.0"}
    problem = refusal(declaration(entry))
    assert (problem["code"], problem["where"]) == ("cudnn-mismatch", "gpu_stacks[0]")
    assert "JAX 0.6.2 refuses cuDNN 9.10.0.56" in problem["message"]
    assert problem["remedy"] == "declare cuDNN 9.10.1 or newer in gpu_stacks[0].cudnn"
    for accepted in ("9.10", "9.10.1", "9.8"):
        assert codes(resolve(declaration({**entry, "cudnn": accepted}))) == []
    assert codes(resolve(declaration({**entry, "jax": "0.6.0"}))) == []  # before JAX had that check


def test_another_pin_of_the_toolkit_to_that_cudnn() -> None:
    toolkits = [{"cuda": "12.8", "cudnn": "9.10.0"}]
    problem = refusal(declaration({"jax": "0.7.0", "cuda": "12.8"}, gpu_toolkits=toolkits))
    assert problem["remedy"] == "declare cuDNN 9.10.1 or newer in gpu_toolkits[0].cudnn"
