"""Hosts of other architectures: what is planned for aarch64, and what is judged on any."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.catalog import facts
from gpufleet.components.release import release
from gpufleet.components.resolver import resolve
from gpufleet.frameworks import FRAMEWORKS
from tests.support.host_documents import (
    declaration,
    gpu_host,
    refusal,
    snapshot,
)

GH200, GB200, A100 = "2342", "2941", "20b0"


def host(system: str = "ubuntu-24.04", *devices: str, arch: str = "aarch64") -> dict[str, Any]:
    """A host of an architecture, with a current Python."""
    found: dict[str, Any] = gpu_host(system, *devices)
    pythons = [{"path": "/usr/bin/python3.12", "version": "3.12.3"}]
    found["sections"]["os"]["data"] |= {"arch": arch, "pythons": pythons}
    return found


def plan(declared: dict[str, Any], found: dict[str, Any] | None = None) -> dict[str, Any]:
    """A plan without problems."""
    result: dict[str, Any] = resolve({"gpu_accept_nvidia_eula": True, **declared}, found)
    assert result["problems"] == []
    return result


def test_toolkits_and_cudnn_are_those_of_the_hosts_architecture() -> None:
    wanted = {"gpu_toolkits": [{"cuda": "12.8", "cudnn": "9.8"}]}
    arm, x86 = plan(wanted, host("ubuntu-24.04", GB200)), plan(wanted)
    assert (arm["arch"], x86["arch"]) == ("aarch64", "x86_64")
    files = [row["file"] for row in arm["artifacts"]]
    assert files[0].endswith("_linux_sbsa.run")
    assert files[1] == "cudnn-linux-sbsa-9.8.0.87_cuda12-archive.tar.xz"
    assert all(row["checksum"] for row in arm["artifacts"])
    others = {row["checksum"] for row in x86["artifacts"]}
    assert others.isdisjoint(row["checksum"] for row in arm["artifacts"])
    assert plan({**wanted, "gpu_arch": "aarch64"})["artifacts"] == arm["artifacts"]


def test_a_runfile_without_a_checksum_needs_a_declared_one() -> None:
    declared = declaration(gpu_toolkits=["13.5.0"], gpu_arch="aarch64")
    problem = refusal(declared)
    assert problem["code"] == "artifact-without-checksum"
    file = "cuda_13.5.0_linux_sbsa.run"
    assert file in problem["remedy"]
    declared["gpu_artifacts"] = {file: {"sha256": "0" * 64}}
    assert plan(declared)["artifacts"][0]["checksum"] == "sha256:" + "0" * 64


def test_a_toolkit_that_was_not_published_for_the_architecture() -> None:
    problem = refusal(declaration(gpu_toolkits=["10.2"], gpu_arch="aarch64"))
    assert problem["code"] == "toolkit-unknown"
    assert "Linux aarch64 runfile" in problem["message"]
    assert "11.0.2" in problem["remedy"]


@pytest.mark.parametrize(
    ("stack", "lock"),
    [
        ({"pytorch": "2.11.0"}, "pytorch-2.11.0-aarch64-py3.12.lock"),
        ({"jax": "0.5.3"}, "jax-0.5.3-aarch64-py3.12.lock"),
        ({"jax": "0.12.0", "cuda": "13"}, "jax-0.12.0-cuda13-aarch64-py3.12.lock"),
    ],
)
def test_a_stack_with_wheels_for_aarch64_has_a_lock_of_its_own(
    stack: dict[str, str], lock: str
) -> None:
    (row,) = plan({"gpu_stacks": [stack]}, host("ubuntu-24.04", GH200))["stacks"]
    assert row["lock"] == lock
    (other,) = plan({"gpu_stacks": [stack]}, host("ubuntu-24.04", arch="x86_64"))["stacks"]
    assert other["lock"] == lock.replace("-aarch64", "")
    assert other["requirements"] == row["requirements"]


def test_the_gpu_code_is_that_of_the_aarch64_wheel() -> None:
    (row,) = plan({"gpu_stacks": [{"pytorch": "2.11.0"}], "gpu_arch": "aarch64"})["stacks"]
    assert row["compute_capability"]["min"] == "8.0"
    assert "11.0" in row["compute_capability"]["native"]
    declared = declaration({"pytorch": "2.11.0"}, gpu_gpus=["7.5"], gpu_arch="aarch64")
    assert refusal(declared)["code"] == "gpu-too-old"
    assert resolve(declaration({"pytorch": "2.11.0"}, gpu_gpus=["7.5"]))["problems"] == []


def test_a_release_whose_aarch64_wheel_has_no_cuda() -> None:
    problem = refusal(declaration({"pytorch": "2.10.0"}, gpu_arch="aarch64"))
    assert problem["code"] == "wheel-unavailable"
    assert "its wheel for aarch64 has no CUDA" in problem["message"]
    index = "https://download.pytorch.org/whl/cu130"
    assert 'add cuda: "12.6" and index: ' in problem["remedy"]
    assert "declare PyTorch 2.11.0" in problem["remedy"]
    stack = {"pytorch": "2.10.0", "cuda": "13.0", "index": index}
    (row,) = plan({"gpu_stacks": [stack], "gpu_arch": "aarch64"})["stacks"]
    assert (row["cuda"], row["index"]) == ("13.0", index)


def test_a_release_that_was_not_published_for_aarch64() -> None:
    problem = refusal(declaration({"jax": "0.4.38"}, gpu_arch="aarch64"))
    assert "its wheel for aarch64 was not published" in problem["message"]


def test_a_wheel_that_no_source_describes() -> None:
    index = "https://download.pytorch.org/whl/cu128"
    stack = {"pytorch": "2.7.0", "cuda": "12.8", "index": index}
    problem = refusal(declaration(stack, gpu_arch="aarch64"))
    assert problem["code"] == "wheel-unavailable"
    assert "no source tells what its wheel for aarch64 has" in problem["message"]


def test_tensorflow_has_no_gpu_build_for_aarch64() -> None:
    declared = {"gpu_stacks": [{"tensorflow": "2.17.1"}], "gpu_accept_nvidia_eula": True}
    problem = refusal(declared, host("ubuntu-24.04", GH200))
    assert (problem["code"], problem["where"]) == ("wheel-unavailable", "gpu_stacks[0].tensorflow")
    assert "its wheels for aarch64 have no CUDA" in problem["message"]
    assert "x86_64" in problem["remedy"]
    assert facts.releases("tensorflow", "aarch64") == ()
    (rule,) = facts.rules("no_gpu_wheels")
    assert rule["source"] == ["tf_aarch64"]


def test_every_build_for_aarch64_has_a_wheel_that_its_own_facts_describe() -> None:
    for framework in FRAMEWORKS:
        for version in facts.build_versions(framework):
            for build in facts.variants(framework, version, "aarch64"):
                if build.unavailable:
                    continue
                assert all("aarch64" in tag for tag in build.platform_tags), build.name
                assert build.row["sass_archs"][0] == build.capability_min
                assert build.pythons
                assert build.arch == "aarch64"


def test_a_mixed_fleet_resolves() -> None:
    declared = {"gpu_stacks": [{"pytorch": "2.14.1"}], "gpu_toolkits": ["13.0"]}
    plans = [plan(declared, host("ubuntu-24.04", card, arch=arch)) for card, arch in FLEET]
    assert [each["arch"] for each in plans] == [arch for _, arch in FLEET]
    assert len({each["stacks"][0]["lock"] for each in plans}) == 2
    assert len({each["toolkits"][0]["artifact"]["file"] for each in plans}) == 2


FLEET = [(A100, "x86_64"), (GH200, "aarch64"), (GB200, "aarch64")]


def test_another_architecture_is_declared_than_the_host_has() -> None:
    found = host("ubuntu-24.04", A100, arch="x86_64")
    problem = refusal({"gpu_arch": "aarch64"}, found)
    assert (problem["code"], problem["where"]) == ("arch-mismatch", "gpu_arch")
    assert "the host is x86_64" in problem["message"]
    assert resolve({"gpu_arch": "aarch64"}, found)["arch"] == "x86_64"


def test_resolve_takes_an_architecture() -> None:
    found = release("pytorch", "2.11.0", arch="aarch64")
    assert found["compute_capability"]["min"] == "8.0"
    assert "aarch64" in found["sources"][0]
    assert "aarch64" not in release("pytorch", "2.11.0")["sources"][0]
    (problem,) = release("tensorflow", "2.17.1", arch="aarch64")["problems"]
    assert problem["where"] == "--tensorflow"
    (problem,) = release("pytorch", "2.11.0", arch="arm64")["problems"]
    assert problem["where"] == "--arch"


def driver(system: str, source: str, **declared: Any) -> dict[str, Any]:
    """The plan of a tray that wants a driver."""
    return resolve({"gpu_driver": {"source": source, **declared}}, host(system, GB200))


@pytest.mark.parametrize("system", ["ubuntu-22.04", "ubuntu-24.04", "rhel-9", "rhel-10"])
def test_a_tray_gets_the_open_modules_and_no_fabric_manager(system: str) -> None:
    found = driver(system, "nvidia_repo")
    assert found["problems"] == []
    assert found["driver"]["module"] == "open"
    assert found["driver"]["fabric_manager"] is False
    assert found["driver"]["subnet_manager"] is None


def test_what_a_distribution_has_for_aarch64_may_not_be_known() -> None:
    (problem,) = driver("ubuntu-20.04", "distro")["problems"]
    assert problem["code"] == "driver-not-offered"
    assert "has for aarch64 is not known" in problem["message"]
    (problem,) = driver("ubuntu-20.04", "distro", branch="570")["problems"]
    assert "has for aarch64 is not known" in problem["message"]
    (problem,) = driver("debian-12", "nvidia_repo")["problems"]
    assert "has for aarch64 is not known" in problem["message"]


@pytest.mark.parametrize("system", ["ubuntu-22.04", "ubuntu-24.04"])
def test_branches_that_ubuntu_has_for_aarch64(system: str) -> None:
    found = driver(system, "distro", branch="580")
    assert found["problems"] == []
    assert found["driver"]["module"] == "open"
    (problem,) = driver(system, "distro", branch="470")["problems"]
    assert "it has 580, 595" in problem["message"]


def test_branches_that_debian_has_for_aarch64() -> None:
    def offered(arch: str) -> str:
        found = host("debian-11", A100, arch=arch)
        wanted = {"gpu_driver": {"source": "distro", "branch": "580"}}
        return str(refusal(wanted, found)["message"])

    assert "it has 418, 470" in offered("x86_64")
    assert "it has 470" in offered("aarch64")


ELSEWHERE = {
    "gpu_stacks": [{"pytorch": "2.11.0"}],
    "gpu_toolkits": ["12.8"],
    "gpu_driver": {"branch": "580"},
    "gpu_containers": {"engine": "docker"},
    "gpu_accept_nvidia_eula": True,
}


@pytest.mark.parametrize("arch", ["ppc64le", "riscv64"])
def test_nothing_is_installed_on_an_unknown_architecture(arch: str) -> None:
    found = resolve(ELSEWHERE, host("debian-12", A100, arch=arch))
    problems = {row["where"]: row for row in found["problems"]}
    assert set(problems) == {"gpu_stacks", "gpu_toolkits", "gpu_driver", "gpu_containers"}
    assert {row["code"] for row in problems.values()} == {"host-unsupported"}
    assert "x86_64 and aarch64 only" in problems["gpu_driver"]["message"]
    assert found["arch"] == arch
    # The driver's branch is judged all the same.
    assert found["driver"]["branch"] == "580"
    assert found["driver"]["managed"] is False
    assert found["toolkits"] == found["stacks"] == []


@pytest.mark.parametrize("arch", ["aarch64", "ppc64le", "riscv64", "x86_64"])
def test_a_host_that_declares_nothing_is_no_problem_on_any_architecture(arch: str) -> None:
    assert plan({}, host("debian-12", A100, arch=arch))["arch"] == arch
    odd = snapshot(os={"id": "gentoo", "version_id": None, "arch": arch})
    assert plan({"gpu_expect": {"count": 1}}, odd)["os"] is None


def test_a_driver_on_an_unknown_distribution_is_judged_and_not_installed() -> None:
    found = host("debian-12", A100)
    found["sections"]["os"]["data"] |= {"id": "sles", "version_id": "15.6"}
    declared = {"gpu_driver": {"branch": "580", "source": "nvidia_repo"}}
    assert refusal(declared, found)["code"] == "os-unsupported"
    row = resolve(declared, found)["driver"]
    assert (row["branch"], row["source"], row["managed"]) == ("580", "preinstalled", False)


def test_each_system_tells_what_it_has_for_aarch64() -> None:
    for row in facts.document("driver_offers.yml")["systems"]:
        there = row["aarch64"]
        known = [each["branch"] for each in row["distro"]]
        assert set(there["distro"] or ()) <= set(known)
        assert set(there["source"]) <= set(facts.document("driver_offers.yml")["sources"])
    assert facts.machines() == ("x86_64", "aarch64")
