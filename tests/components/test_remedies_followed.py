"""Every remedy of every refusal is accepted: none leads to another refusal."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest

from gpufleet.catalog import facts
from gpufleet.components.resolver import resolve
from gpufleet.frameworks import FRAMEWORKS, FrameworkId
from tests.support.host_documents import declaration
from tests.support.remedies import CUDA, CUDNN, GPUS, PYTHONS, UNKNOWN, follow

Row = dict[str, Any]

# Cases of each framework, of about 200 thousand: of a try, and of CI.
SAMPLES = [40, pytest.param(250, marks=pytest.mark.exhaustive)]


def cases(framework: FrameworkId) -> Iterator[tuple[Row, str | None]]:
    """Every release with every Python, CUDA, cuDNN and generation of GPUs."""
    releases = [*facts.build_versions(framework), *UNKNOWN[framework]]
    for release, python, cuda, cudnn, gpu in itertools.product(
        releases, PYTHONS, CUDA, CUDNN, GPUS
    ):
        if cudnn and python and gpu:  # of these four at most three at a time
            continue
        entry = {framework: release, "python": python, "cuda": cuda, "cudnn": cudnn}
        yield {key: each for key, each in entry.items() if each is not None}, gpu


def check(entry: Row, gpu: str | None) -> int:
    others = {"gpu_gpus": [gpu]} if gpu else {}
    return follow(lambda each: resolve(declaration(each, **others), locks=())["problems"], entry)


@pytest.mark.parametrize("count", SAMPLES)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_remedy_leads_to_no_other_refusal(framework: FrameworkId, count: int) -> None:
    chosen = random.Random(7).sample(list(cases(framework)), count)
    assert sum(check(*case) for case in chosen) > count


@pytest.mark.slow
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_no_remedy_of_the_whole_matrix_leads_to_another_refusal(
    framework: FrameworkId, python: str | None
) -> None:
    followed = [check(*case) for case in cases(framework) if case[0].get("python") == python]
    assert sum(followed) > len(followed)


@pytest.mark.parametrize(
    ("entry", "gpu"),
    [
        ({"jax": "0.1.77"}, None),
        ({"jax": "0.2.11"}, "3.5"),
        ({"jax": "0.4.20", "python": "3.8"}, None),
        ({"tensorflow": "2.15.0", "cuda": "pip"}, None),
        ({"tensorflow": "2.14.1", "cuda": "pip", "python": "3.11"}, "9.0"),
        ({"tensorflow": "2.99", "python": "3.7"}, "7.0"),
        ({"pytorch": "2.12.0", "python": "3.9"}, "10.7"),
    ],
)
def test_a_remedy_takes_all_that_is_declared_into_account(entry: Row, gpu: str | None) -> None:
    check(entry, gpu)
