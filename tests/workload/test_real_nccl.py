"""NVIDIA's own libnccl, from its wheel: the code that drives the stand-in loads and calls it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import collectives
from tests.support.collective_hosts import CollectiveHosts

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        Path("/dev/nvidia0").exists(), reason="what NCCL says without a GPU is tested"
    ),
]
# The oldest and a newer release that PyTorch pins, and how big each is: 188 and 308 MB.
RELEASES = ("2.18.1", "2.27.3")


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A release and a directory with it, and with the stand-in of the CUDA runtime."""
    version: str = request.param
    wheels = tmp_path / "wheels"
    subprocess.run(
        [
            *(Path(sys.executable).with_name("uv"), "pip", "install", "--quiet", "--no-deps"),
            *("--target", wheels, f"nvidia-nccl-cu12=={version}"),
        ],
        check=True,
    )
    place = collectives.build(tmp_path / "nccl")
    shutil.move(wheels / "nvidia/nccl/lib/libnccl.so.2", place / "lib64/libnccl.so.2")
    yield version, place
    shutil.rmtree(tmp_path)


def test_its_version_is_read_and_its_error_without_a_gpu_is_named(
    release: tuple[str, Path], tmp_path: Path
) -> None:
    version, place = release
    hosts = CollectiveHosts(tmp_path / "hosts", place, ["gpu01", "gpu02"])
    found = hosts.run()
    assert found["nccl"] == {"gpu01": version, "gpu02": version}
    assert {each["host"] for each in found["excluded"]} == {"gpu01", "gpu02"}
    for each in found["excluded"]:
        assert each["cause"].startswith("ncclCommInitRank returned 1 unhandled cuda error")
        assert "Cuda failure" in each["cause"] or version == RELEASES[0]
