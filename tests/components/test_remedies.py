"""Remedies on hosts with several kinds of GPU, and for what else is declared: they are accepted."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.components.resolver import resolve
from tests.support.host_documents import codes, declaration, refusal

PYTORCH_INDEX = "https://download.pytorch.org/whl"
ON_126 = {"pytorch": "2.6.0", "cuda": "12.6", "index": f"{PYTORCH_INDEX}/cu126"}


@pytest.mark.parametrize(
    ("entry", "gpus", "remedy", "accepted"),
    [
        (
            {"pytorch": "2.12.0"},
            ["V100", "B200"],
            "the newest PyTorch built for them all is 2.10.0",
            {"pytorch": "2.10.0"},
        ),
        (
            ON_126,
            ["B200"],
            "the first PyTorch built for it is 2.8.0, without cuda and index",
            {"pytorch": "2.8.0"},
        ),
        (
            ON_126,
            ["V100", "B200"],
            "the first PyTorch built for them all is 2.8.0, without cuda and index",
            {"pytorch": "2.8.0"},
        ),
        (
            {"jax": "0.8.0", "cuda": "13"},
            ["V100", "B200"],
            "remove cuda: the wheel on PyPI has CUDA 12.9; or declare another release: "
            "the newest JAX built for them all is 0.12.0.1, without cuda",
            {"jax": "0.8.0"},
        ),
    ],
)
def test_a_remedy_is_for_all_gpus_and_says_what_to_leave_out(
    entry: dict[str, Any], gpus: list[str], remedy: str, accepted: dict[str, Any]
) -> None:
    assert refusal(declaration(entry, gpu_gpus=gpus))["remedy"] == remedy
    assert codes(resolve(declaration(accepted, gpu_gpus=gpus))) == []


def test_where_no_release_is_for_all_gpus_that_is_printed() -> None:
    problems = resolve(declaration({"pytorch": "2.6.0"}, gpu_gpus=["K80", "B200"]))["problems"]
    assert [each["code"] for each in problems] == ["gpu-too-old", "gpu-too-new"]
    for each in problems:
        assert each["remedy"].startswith("no known PyTorch was built for all of K80")


@pytest.mark.parametrize(
    ("entry", "code", "remedy"),
    [
        (
            {"pytorch": "2.6.0+cu118"},
            "unknown-release",
            f'declare pytorch: "2.6.0", cuda: "11.8", index: {PYTORCH_INDEX}/cu118',
        ),
        (
            {"pytorch": "2.6.0+cu124"},
            "unknown-release",
            'declare pytorch: "2.6.0": the wheel on PyPI has CUDA 12.4',
        ),
        ({"pytorch": "2.6.0+cu121"}, "unknown-release", "published for CUDA 12.4, 11.8, 12.6"),
        ({"pytorch": "2.6.0+cpu"}, "unknown-release", "published for CUDA 12.4, 11.8, 12.6"),
        ({"pytorch": "9.9.0+cu118"}, "unknown-release", "declare one of these"),
        ({"jax": "0.5.3+cuda12"}, "unknown-release", 'declare jax: "0.5.3"'),
        ({"jax": "0.4.20+cuda12.cudnn89"}, "wheel-unavailable", "declare JAX 0.4.23, whose CUDA"),
        ({"pytorch": "torch==2.6.0"}, "unknown-release", 'such as "2.6.0"'),
        ({"pytorch": "v2.6"}, "unknown-release", 'such as "2.6.0"'),
        ({"pytorch": "2.16.0"}, "unknown-release", 'such as "2.15.0"'),
        ({"pytorch": "1.8.2"}, "unknown-release", 'such as "1.8.1"'),
        ({"tensorflow": "1.15.1"}, "unknown-release", 'such as "1.15.5"'),
        ({"tensorflow": "2.16.0"}, "unknown-release", 'such as "2.16.2"'),
        ({"jax": "jax[cuda12]==0.5.3"}, "unknown-release", 'such as "0.5.3"'),
        ({"pytorch": "2.6.0", "cuda": "cu118"}, "wrong-type", 'as a version: "11.8"'),
        ({"pytorch": "1.5.1", "cuda": "cu92"}, "wrong-type", 'as a version: "9.2"'),
        ({"pytorch": "1.5.1", "cuda": "cu100"}, "wrong-type", 'as a version: "10.0"'),
        ({"pytorch": "2.6.0", "cuda": "cu12.4"}, "wrong-type", 'as a version: "12.4"'),
        ({"jax": "0.5.3", "cuda": "cu12"}, "wrong-type", 'as a version: "12"'),
        ({"jax": "0.8.0", "cuda": "cuda13"}, "wrong-type", 'as a version: "13"'),
    ],
)
def test_what_people_type(entry: dict[str, str], code: str, remedy: str) -> None:
    problem = refusal(declaration(entry))
    assert problem["code"] == code
    assert remedy in problem["remedy"]
