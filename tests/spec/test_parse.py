"""Spec: the shape of what a person wrote. Nothing that is written may raise."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from gpufleet.resolver import resolve
from gpufleet.spec.reader import edit_distance
from tests.support.host_documents import codes, refusal, snapshot, wish

FULL = wish(
    {"tensorflow": "2.13.1", "cuda": "11.8", "cudnn": "8.6", "python": "3.11", "name": "vision"},
    {"tensorflow": "2.21.0", "cuda": "pip"},
    gpu_toolkits=["12.4.1", {"cuda": "8.0", "cudnn": ["6.0", "5.1"]}],
    gpu_cuda_default="11.8",
    gpu_driver={"branch": "580", "source": "nvidia_repo"},
    gpu_driver_reboot="never",
    gpu_mig={"0": ["3g.40gb"]},
    gpu_containers={"engine": "podman", "toolkit": "1.17.8", "image": "tensorflow:2.17.1"},
    gpu_expect={"count": 8, "model": "NVIDIA A100-SXM4-80GB", "memory_mib": 81_920},
    gpu_gpus=["A100", "8.0"],
    gpu_prefix="/usr/local",
    gpu_stack_root="/opt/stacks",
    gpu_tmpdir="/var/tmp",
    gpu_artifacts={"x.run": {"sha256": "A" * 64, "size_bytes": 1, "url": "https://x"}},
    gpu_allow_md5=False,
)


def test_everything_that_can_be_said_at_once() -> None:
    # A100 is known to CUDA 11.0 and newer: the toolkit 8.0 is the one thing that does not fit.
    plan = resolve({**FULL, "gpu_toolkits": ["12.4.1"]}, snapshot())
    assert plan["problems"] == []
    assert [row["short"] for row in plan["toolkits"]] == ["11.8", "12.4"]
    assert codes(resolve(FULL, snapshot())) == ["gpu-too-new"]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("gpu_stack", "gpu_stacks"),
        ("gpu_tookits", "gpu_toolkits"),
        ("gpu_cuda_defualt", "gpu_cuda_default"),
        ("gpu_accept_nvidia_eual", "gpu_accept_nvidia_eula"),
        ("gpus_stacks", "gpu_stacks"),
    ],
)
def test_a_key_with_a_slip(written: str, meant: str) -> None:
    problem = refusal({written: None})
    assert (problem["code"], problem["where"]) == ("unknown-key", written)
    assert problem["remedy"].startswith(f"rename {written} to {meant}")


def test_variables_of_other_rooms_are_none_of_ours() -> None:
    others = ("gpu_pip_index_url", "gpu_hosts", "gpu_uv", "gpu_tools",
              "gpu_locks_dir", "ansible_host", "x")
    assert resolve(dict.fromkeys(others, 1))["problems"] == []


@pytest.mark.parametrize(
    "place", ["", "/srv/mirror", "~/mirror", "http://10.0.0.1:8090", "https://m.example.org/wheels/"]
)
def test_places_that_files_come_from(place: str) -> None:
    assert resolve({"gpu_artifacts_source": place, "gpu_wheelhouse": place})["problems"] == []


@pytest.mark.parametrize("address", ["https://me:secret@mirror/x", "http://secret@mirror:80"])
def test_a_login_in_an_address_is_refused_and_told_to_nobody(address: str) -> None:
    plan = resolve({"gpu_wheelhouse": address, "gpu_artifacts": {"x.run": {"url": address}}})
    assert codes(plan) == ["wrong-type"] * 2
    assert "secret" not in str(plan)


def test_a_wrong_key_in_a_stack() -> None:
    problem = refusal(wish({"tensorflow": "2.13.1", "cudn": "8.6"}))
    assert (problem["code"], problem["where"]) == ("unknown-key", "gpu_stacks[0].cudn")
    assert "did you mean cudnn?" in problem["message"]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"gpu_stacks": "2.13.1"}, "gpu_stacks"),
    ({"gpu_stacks": ["2.13.1"]}, "gpu_stacks[0]"),
    ({"gpu_stacks": [{"cuda": "11.8"}]}, "gpu_stacks[0]"),
    ({"gpu_stacks": [{"tensorflow": 2.13}]}, "gpu_stacks[0].tensorflow"),
    ({"gpu_stacks": [{"tensorflow": "2.21.0", "cuda": "pip", "python": 3.10}]},
     "gpu_stacks[0].python"),
    ({"gpu_toolkits": [11.8]}, "gpu_toolkits[0]"),
    ({"gpu_toolkits": [None]}, "gpu_toolkits[0]"),
    ({"gpu_toolkits": ["newest"]}, "gpu_toolkits[0]"),
    ({"gpu_toolkits": [{"cudnn": "8.6"}]}, "gpu_toolkits[0].cuda"),
    ({"gpu_toolkits": "11.8"}, "gpu_toolkits"),
    ({"gpu_cuda_default": 11.8}, "gpu_cuda_default"),
    ({"gpu_driver": "580"}, "gpu_driver"),
    ({"gpu_driver": {"branch": "new"}}, "gpu_driver.branch"),
    ({"gpu_driver": {"source": "apt"}}, "gpu_driver.source"),
    ({"gpu_driver": {"module": "closed"}}, "gpu_driver.module"),
    ({"gpu_driver": {"persistence": "yes"}}, "gpu_driver.persistence"),
    ({"gpu_driver_reboot": True}, "gpu_driver_reboot"),
    ({"gpu_driver_reboot": "sometimes"}, "gpu_driver_reboot"),
    ({"gpu_mig": "3g.40gb"}, "gpu_mig"),
    ({"gpu_mig": {"all": "3g.40gb"}}, "gpu_mig[all]"),
    ({"gpu_mig": {"all": ["3g"]}}, "gpu_mig[all][0]"),
    ({"gpu_mig": {"first": []}}, "gpu_mig[first]"),
    ({"gpu_mig": {"all": [], "0": []}}, "gpu_mig"),
    ({"gpu_containers": "docker"}, "gpu_containers"),
    ({"gpu_containers": {"engine": "lxc"}}, "gpu_containers.engine"),
    ({"gpu_containers": {"source": "nvidia"}}, "gpu_containers.source"),
    ({"gpu_containers": {"engine": "podman", "source": "docker_repo"}}, "gpu_containers.source"),
    ({"gpu_containers": {"toolkit": 1.17}}, "gpu_containers.toolkit"),
    ({"gpu_containers": {"toolkit": "latest"}}, "gpu_containers.toolkit"),
    ({"gpu_containers": {"image": "x; rm"}}, "gpu_containers.image"),
    ({"gpu_containers": {"data_root": "docker"}}, "gpu_containers.data_root"),
    ({"gpu_expect": {"count": "8"}}, "gpu_expect.count"),
    ({"gpu_expect": {"count": -1}}, "gpu_expect.count"),
    ({"gpu_expect": {"count": True}}, "gpu_expect.count"),
    ({"gpu_gpus": [8.9]}, "gpu_gpus[0]"),
    ({"gpu_artifacts_source": 1}, "gpu_artifacts_source"),
    ({"gpu_artifacts_source": "mirror/nvidia"}, "gpu_artifacts_source"),
    ({"gpu_artifacts_source": "ftp://mirror/nvidia"}, "gpu_artifacts_source"),
    ({"gpu_wheelhouse": "https://me:secret@mirror/wheels"}, "gpu_wheelhouse"),
    ({"gpu_wheelhouse": "/srv/my wheels"}, "gpu_wheelhouse"),
    ({"gpu_prefix": "usr/local"}, "gpu_prefix"),
    ({"gpu_prefix": "/"}, "gpu_prefix"),
    ({"gpu_tmpdir": "/tmp; rm -rf x"}, "gpu_tmpdir"),
    ({"gpu_stack_root": "/opt/../etc"}, "gpu_stack_root"),
    ({"gpu_artifacts": []}, "gpu_artifacts"),
    ({"gpu_artifacts": {"x.run": {"sha256": "abc"}}}, "gpu_artifacts[x.run].sha256"),
    ({"gpu_artifacts": {"x.run": {"size_bytes": "1"}}}, "gpu_artifacts[x.run].size_bytes"),
    ({"gpu_artifacts": {"x.run": {"file": "../x.run"}}}, "gpu_artifacts[x.run].file"),
    ({"gpu_artifacts": {"x.run": {"url": "https://me:secret@x/y"}}}, "gpu_artifacts[x.run].url"),
    ({"gpu_allow_md5": "yes"}, "gpu_allow_md5"),
    ({"gpu_accept_nvidia_eula": 1}, "gpu_accept_nvidia_eula"),
]


@pytest.mark.parametrize(("wishes", "where"), WRONG)
def test_a_value_of_another_shape(wishes: dict[str, Any], where: str) -> None:
    problem = refusal(wishes)
    assert (problem["code"], problem["where"]) == ("wrong-type", where)


def test_the_trap_of_unquoted_versions_is_explained() -> None:
    problem = refusal({"gpu_toolkits": [11.10]})
    assert "11.1" in problem["message"]
    assert "quotes" in problem["remedy"]


def test_a_branch_without_quotes_loses_nothing() -> None:
    plan = resolve({"gpu_driver": {"branch": 580, "source": "distro"}})
    assert plan["problems"] == []
    assert plan["driver"]["branch"] == "580"


def test_mig_layouts_as_they_may_be_written() -> None:
    for written, read in [
        ([], {"all": []}),
        (["7g.80gb"], {"all": ["7g.80gb"]}),
        ({"all": ["1g.10gb+me"]}, {"all": ["1g.10gb+me"]}),
        ({0: ["3g.40gb"], "1": []}, {"0": ["3g.40gb"], "1": []}),
    ]:
        plan = resolve({"gpu_mig": written})
        assert (plan["problems"], plan["driver"]["mig"]) == ([], read)


def test_a_wrong_key_in_the_driver() -> None:
    problem = refusal({"gpu_driver": {"brnach": "580"}})
    assert (problem["code"], problem["where"]) == ("unknown-key", "gpu_driver.brnach")


def test_nothing_that_is_written_raises() -> None:
    odd: list[Any] = [None, True, 0, -1, 11.8, "", " ", "x", "..", "١.٢", "99.99.99.99", [], [[]],
                      [None], [{}], {}, {"a": 1}, {"tensorflow": {}}, [{"tensorflow": []}],
                      [{"tensorflow": "2.13.1", "cuda": []}], {"branch": []}, {"x": None}, object]
    dice = random.Random(20_261_120)
    for _ in range(150):
        wishes = {key: dice.choice(odd) for key in dice.sample(sorted(FULL), 4)}
        plan = resolve({**FULL, **wishes}, snapshot())
        json.dumps(plan)
        assert all(set(problem) == {"code", "message", "where", "remedy"}
                   for problem in plan["problems"])
    for whole in (None, [], "x", 3):
        assert codes(resolve(whole)) == ["wrong-type"]  # type: ignore[arg-type]


def test_resolving_changes_nothing_and_gives_the_same_again() -> None:
    wishes, host = json.loads(json.dumps(FULL)), snapshot()
    first = resolve(wishes, host)
    assert wishes == FULL
    assert host == snapshot()
    assert resolve(wishes, host) == first


@pytest.mark.parametrize(
    ("left", "right", "count"),
    [("stack", "stacks", 1), ("default", "defualt", 1), ("abc", "abc", 0), ("", "abc", 3),
     ("tools", "toolkits", 3)],
)
def test_slips(left: str, right: str, count: int) -> None:
    assert edit_distance(left, right) == edit_distance(right, left) == count
