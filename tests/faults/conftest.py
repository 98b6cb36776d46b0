"""A healthy lab host to be broken, and the count of what was caught."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from lab import driver_repository
from lab.stubs import library
from tests.faults.catalogue import Fault, found
from tests.faults.libraries import STAND_INS
from tests.support.fault_proof import Checks, Healthy, Prove, copy_to_host
from tests.support.gpu_containers import CARDS, LEGACY
from tests.support.lab_fleet import Fleet, lab


@pytest.fixture(scope="module")
def one_stack(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Healthy:
    """TensorFlow 2.13.1, CUDA 11.8 and cuDNN 8.6, as the lab declares; stand-ins lie ready."""
    folder = tmp_path_factory.mktemp("stand-ins")
    library.write(folder / "libcublasLt.so.11", "libcublasLt.so.11",
                  {"cublasLtCreate": library.Function()})  # fmt: skip
    library.write(folder / "libcufft.so.10", "libcufft.so.10", {"cufftCreate": library.Function()})
    library.write(folder / "libcudnn.so.8.5.0", "libcudnn.so.8",
                  {"cudnnGetVersion": library.Function(8500)})  # fmt: skip
    copy_to_host(fleet, folder, STAND_INS)
    host = Healthy(fleet)
    host.provision()
    return host.healthy()


@pytest.fixture(scope="module")
def two_toolkits(one_stack: Healthy) -> Healthy:
    """TensorFlow 2.18.1 on CUDA 12.5, the default; and 12.3, whose libraries bear its names."""
    host = Healthy(one_stack.fleet, "inventory/side-by-side", {
        "gpu_stacks": [{"tensorflow": "2.18.1"}], "gpu_cuda_default": "12.5"})  # fmt: skip
    host.provision()
    return host.healthy()


@pytest.fixture(scope="module")
def with_driver(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Healthy:
    """A driver's packages, as stand-ins, and upgrades that happen at night."""
    folder, place = tmp_path_factory.mktemp("driver"), "/srv/driver-packages"
    fingerprint = driver_repository.build(folder)
    copy_to_host(fleet, folder, place)
    version = next(iter(driver_repository.VERSIONS))
    label = driver_repository.LABEL
    host = Healthy(fleet, variables={
        "gpu_stacks": [],
        "gpu_driver": {"branch": version.partition(".")[0], "source": "nvidia_repo"},
        "nvidia_driver_repository": {
            "uri": f"copy:{place}", "suite": "./", "label": label, "pin": f"release o={label}",
            "key": f"file://{place}/{driver_repository.KEY_FILE}", "fingerprints": [fingerprint]},
        "nvidia_driver_space": {"/usr": 50},
    })  # fmt: skip
    host.on("apt-get update -qq; apt-get install -qq --no-install-recommends unattended-upgrades")
    host.provision()
    return host.healthy()


@pytest.fixture(scope="module")
def with_cards(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Healthy:
    """Docker with NVIDIA's toolkit, and two cards, the last two as stand-ins."""
    folder, place = tmp_path_factory.mktemp("toolkit"), "/srv/toolkit"
    lab(fleet, "toolkit-repository", str(folder))
    copy_to_host(fleet, folder, place)
    host = Healthy(fleet, variables={
        "gpu_stacks": [], "gpu_expect": {"count": 2}, "gpu_containers": LEGACY,
        "nvidia_docker_repo_url": f"file://{place}",
        "nvidia_docker_repo_key": f"file://{place}/key.asc",
        "nvidia_docker_repo_key_fingerprint": (folder / "fingerprint").read_text().strip(),
    })  # fmt: skip
    host.on("apt-get update -qq; apt-get install -qq --no-install-recommends docker.io")
    host.on(CARDS)
    # What has no stand-in, such as the cards on the PCI bus, is wrong before and after.
    host.provision(status=None)
    host.before = host.verify()
    return host


@pytest.fixture
def prove(record_property: Callable[[str, object], None]) -> Prove:
    """Judge what the checks said before and after a fault was injected, and count it."""

    def proven(fault: Fault, before: Checks, after: Checks) -> dict[str, Any]:
        proof = found(fault, before, after)
        record_property("fault", {"number": fault.number, **proof})
        output = {name: (check["verdict"], check["cause"], check["remedy"], check["evidence"])
                for name, check in after.items()
                if check["verdict"] != before[name]["verdict"] or name == fault.check}  # fmt: skip
        reported = json.dumps(output, indent=1)
        assert proof["caught"], reported
        assert proof["right"], f"cause {fault.cause!r}, remedy {fault.remedy!r} not in:\n{reported}"
        assert not proof["collateral"], f"{proof['collateral']} beside:\n{reported}"
        return proof

    return proven
