"""Each fault of what is computed, on stand-ins that the real smoke test runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.catalogue import Fault
from tests.faults.tensorflow_gpu import FAULTS
from tests.support import stand_ins
from tests.support.computing_gpu_host import Computing
from tests.support.fault_proof import Checks, Prove

OWN = (
    "stack.hello",
    "stack.local-devices",
    "stack.gpu-device-name",
    "stack.device-placement",
    "stack.capability",
    "stack.matmul",
    "stack.gpu",
    "toolkit.cublas",
    "toolkit.nvrtc",
    "toolkit.device-query",
    "cudnn.convolution",
)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A toolkit and a driver of stand-ins."""
    return stand_ins.build(tmp_path_factory.mktemp("stand-ins"))


@pytest.fixture
def host(tmp_path: Path, libraries: tuple[Path, Path]) -> Computing:
    """A healthy host."""
    return Computing(tmp_path, libraries)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory, libraries: tuple[Path, Path]) -> Checks:
    """The verdicts of a healthy host's checks."""
    found = Computing(tmp_path_factory.mktemp("healthy"), libraries).checks()
    assert {name: found[name]["cause"] for name in OWN if found[name]["verdict"] != "PASS"} == {}
    return found


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_caught_by_its_check(
    host: Computing, healthy: Checks, fault: Fault, prove: Prove
) -> None:
    assert not isinstance(fault.inject, str)
    fault.inject(host)
    assert prove(fault, healthy, host.checks())["silent"] == []
