"""PTX needs the driver of its own CUDA: minor-version compatibility does not cover it."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.catalog import facts, versions
from gpufleet.components.resolver import release, resolve
from tests.support.host_documents import codes, declaration, refusal, snapshot


@pytest.mark.parametrize(
    ("version", "gpu", "native"),
    [
        ("2.13.1", "V100", True),
        ("2.13.1", "A100", False),
        ("2.15.1", "RTX 4090", False),
        ("2.17.1", "A100", True),
        ("2.17.1", "H100", False),
        ("2.18.1", "H100", False),
        ("2.21.0", "H100", False),
        ("2.21.0", "RTX 4090", True),
    ],
)
def test_a_gpu_without_machine_code_for_each_kernel_is_reached_through_ptx(
    version: str, gpu: str, native: bool
) -> None:
    answer = release("tensorflow", version, gpu=gpu)
    noted = any("compiled at first use" in note for note in answer["notes"])
    assert noted is not native
    build = facts.build("tensorflow", version)
    assert build is not None
    least = answer["driver_min"] if native else build.driver_minor
    assert (answer["driver_min"] == build.driver_minor) is native, least


DRIVERS = [
    # (release, driver of PTX's CUDA, the newest of the branch before)
    ("2.17.1", "545.23.06", "535.309.01"),
    ("2.20.0", "555.42.02", "550.163.01"),
    ("2.21.0", "555.42.02", "550.163.01"),
]


@pytest.mark.parametrize(("version", "least", "older"), DRIVERS)
def test_a_driver_older_than_the_ptx_is_refused_on_such_a_gpu(
    version: str, least: str, older: str
) -> None:
    def with_driver(driver: str, gpu: str) -> dict[str, Any]:
        return release("tensorflow", version, driver=driver, gpu=gpu)

    (problem,) = with_driver(older, "H100")["problems"]
    assert problem["code"] == "driver-too-old"
    assert f"PTX {facts.build('tensorflow', version).ptx_language} of" in problem["message"]  # type: ignore[union-attr]
    assert f"needs {least} or newer" in problem["message"]
    assert with_driver(least, "H100")["driver_min"] == least
    assert "problems" not in with_driver(older, "A100")
    host = snapshot(driver={"loaded": older})
    assert codes(resolve(declaration(version, gpu_gpus=["H100"]), host)) == ["driver-too-old"]
    assert refusal(declaration(version, gpu_gpus=["H100"]), host)["where"] == "gpu_driver"


@pytest.mark.parametrize(("version", "least", "older"), DRIVERS)
def test_where_no_gpu_is_declared_it_is_a_note(version: str, least: str, older: str) -> None:
    def noted(driver: str) -> bool:
        notes = release("tensorflow", version, driver=driver)["notes"]
        return any("compute capability 9.0" in note and least in note for note in notes)

    assert noted(older)
    assert noted(older.partition(".")[0])
    assert not noted(least)
    assert not noted("580")


def test_every_build_with_ptx_has_the_driver_for_it() -> None:
    for framework in ("tensorflow", "jax"):
        for build in facts.builds(framework):  # type: ignore[arg-type]
            if build.ptx_language:
                cuda = facts.cuda_of_ptx(build.ptx_language)
                assert cuda
                assert versions.key(cuda) <= versions.key(build.cuda) or build.about.cuda_plugin
