"""Side by side: toolkits, several cuDNN in one, the default, the linker cache, artifacts."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.catalog import facts
from gpufleet.components.resolver import resolve
from tests.support.host_documents import codes, declaration, default_link, refusal, snapshot


def cudnn_of(plan: dict[str, Any]) -> dict[str, bool]:
    return {row["version"]: row["default"] for row in plan["cudnn"]}


def test_two_cudnn_majors_share_toolkit_8_0() -> None:
    plan = resolve(declaration("1.2.1", "1.4.0"))
    assert plan["problems"] == []
    assert [row["version"] for row in plan["toolkits"]] == ["8.0.61"]
    assert plan["toolkits"][0]["because"] == ["tensorflow-1.2.1", "tensorflow-1.4.0"]
    assert cudnn_of(plan) == {"5.1": False, "6.0": True}  # header and link are the newest's
    assert [row["cudnn"] for row in plan["stacks"]] == ["5.1", "6.0"]


def test_a_declared_cudnn_is_the_default_of_its_toolkit() -> None:
    plan = resolve(declaration("1.4.0", gpu_toolkits=[{"cuda": "8.0", "cudnn": ["5.1", "6.0"]}]))
    assert plan["problems"] == []
    assert cudnn_of(plan) == {"5.1": True, "6.0": False}
    assert plan["toolkits"][0]["because"] == ["tensorflow-1.4.0", "gpu_toolkits[0]"]


def test_two_cudnn_of_one_major_cannot_share_a_toolkit() -> None:
    problem = refusal(declaration(gpu_toolkits=[{"cuda": "11.8", "cudnn": ["8.6", "8.9"]}]))
    assert problem["code"] == "cudnn-clash"
    assert "8.6 and 8.9" in problem["message"]
    pair = declaration(
        {"tensorflow": "2.12.1", "cudnn": "8.6"}, {"tensorflow": "2.13.1", "cudnn": "8.7"}
    )
    assert codes(resolve(pair)) == ["cudnn-clash"]


def test_stacks_of_one_major_share_the_newer_cudnn() -> None:
    plan = resolve(declaration("2.13.1", "2.14.1"))
    assert plan["problems"] == []
    assert cudnn_of(plan) == {"8.7.0.84": True}
    assert {row["cudnn"] for row in plan["stacks"]} == {"8.7.0.84"}


def test_a_pin_that_is_too_old_for_another_stack_is_refused_there() -> None:
    problem = refusal(declaration({"tensorflow": "2.13.1", "cudnn": "8.6"}, "2.14.1"))
    assert (problem["code"], problem["where"]) == ("cudnn-mismatch", "gpu_stacks[1]")
    assert "gpu_stacks[0].cudnn" in problem["remedy"]
    problem = refusal(declaration("2.18.0", gpu_toolkits=["12.5.0"]))
    assert (problem["code"], problem["where"]) == ("cuda-mismatch", "gpu_stacks[0]")


def test_two_patch_releases_want_one_directory() -> None:
    problem = refusal(declaration(gpu_toolkits=["12.4.0", "12.4.1"]))
    assert (problem["code"], problem["where"]) == ("toolkit-clash", "gpu_toolkits[1]")


def test_an_exact_release_serves_who_asks_for_less() -> None:
    plan = resolve(declaration("2.17.1", gpu_toolkits=["12.3.0", "12.3"]))
    assert [row["version"] for row in plan["toolkits"]] == ["12.3.0"]


def test_the_default_is_the_newest_or_the_declared() -> None:
    declared_variables = declaration("1.4.0", "2.13.1", gpu_toolkits=["12.4.1"])
    assert resolve(declared_variables)["default_link"]["target"] == "cuda-12.4"
    declared = resolve({**declared_variables, "gpu_cuda_default": "11.8"})
    assert declared["default_link"]["target"] == "cuda-11.8"
    assert [row["default"] for row in declared["toolkits"]] == [False, True, False]
    problem = refusal({**declared_variables, "gpu_cuda_default": "10.2"})
    assert (problem["code"], problem["where"]) == ("default-not-declared", "gpu_cuda_default")


def registered(plan: dict[str, Any]) -> list[str]:
    return [row["short"] for row in plan["toolkits"] if row["registered"]]


def test_toolkits_with_sonames_of_their_own_are_all_registered() -> None:
    plan = resolve(declaration(gpu_toolkits=["8.0", "9.0", "10.0", "11.8"]))
    assert registered(plan) == ["8.0", "9.0", "10.0", "11.8"]
    assert plan["linker"]["clashes"] == []
    assert plan["linker"]["directories"][0] == "/usr/local/cuda-11.8/lib64"


def test_two_12_toolkits_clash_and_the_newest_wins() -> None:
    plan = resolve(declaration("2.15.1", "2.18.0"))
    assert registered(plan) == ["12.5"]
    (clash,) = plan["linker"]["clashes"]
    assert (clash["winner"], clash["loser"]) == ("12.5", "12.2")
    assert "libcudart.so.12" in clash["sonames"]
    assert "libcudnn.so.9" not in clash["sonames"]


def test_on_a_clash_the_default_wins() -> None:
    plan = resolve(declaration("2.15.1", "2.18.0", gpu_cuda_default="12.2"))
    assert registered(plan) == ["12.2"]
    assert plan["linker"]["clashes"][0]["loser"] == "12.5"


def test_a_shared_cudnn_soname_is_a_clash_too() -> None:
    plan = resolve(declaration("1.12.0", "1.15.0"))
    assert registered(plan) == ["10.0"]
    assert plan["linker"]["clashes"] == [
        {"winner": "10.0", "loser": "9.0", "sonames": ["libcudnn.so.7"]}
    ]


TOOLKITS = [
    "8.0",
    "9.0",
    "9.2",
    "10.0",
    "10.1",
    "10.2",
    "11.0",
    "11.2",
    "11.8",
    "12.2",
    "12.5",
    "12.8",
    "13.0",
]


@pytest.mark.parametrize("default", TOOLKITS)
def test_whatever_the_default_no_soname_is_registered_twice(default: str) -> None:
    plan = resolve(declaration(gpu_toolkits=TOOLKITS, gpu_cuda_default=default))
    names = [name for short in registered(plan) for name in facts.toolkit_sonames(short)]
    assert len(names) == len(set(names))
    assert default in registered(plan)
    losers = {clash["loser"] for clash in plan["linker"]["clashes"]}
    assert losers == set(TOOLKITS) - set(registered(plan))


def test_a_stack_name_is_unique_and_plain() -> None:
    problem = refusal(declaration("2.13.1", "2.13.1"))
    assert (problem["code"], problem["where"]) == ("stack-name-clash", "gpu_stacks[1].name")
    named = resolve(declaration("2.13.1", {"tensorflow": "2.13.1", "name": "vision"}))
    assert [row["name"] for row in named["stacks"]] == ["tensorflow-2.13.1", "vision"]
    assert named["stacks"][1]["lock"] == "vision-py3.11.lock"
    for bad in ("../x", "A", "a b", "-x", "x;y"):
        assert refusal(declaration({"tensorflow": "2.13.1", "name": bad}))["code"] == "bad-name"


def test_places_follow_the_declaration() -> None:
    plan = resolve(declaration("2.13.1", gpu_prefix="/apps/nvidia/", gpu_stack_root="/apps/tf"))
    assert plan["toolkits"][0]["path"] == "/apps/nvidia/cuda-11.8"
    assert plan["cudnn"][0]["toolkit_path"] == "/apps/nvidia/cuda-11.8"
    assert plan["stacks"][0]["venv"] == "/apps/tf/tensorflow-2.13.1"
    assert plan["default_link"]["path"] == "/apps/nvidia/cuda"
    assert plan["linker"]["directories"] == ["/apps/nvidia/cuda-11.8/lib64"]


RUNFILE = "cuda_11.8.0_520.61.05_linux.run"


def test_a_sites_word_on_artifacts_goes_over_the_catalogues() -> None:
    own = {"sha256": "0" * 64, "size_bytes": 50 * 2**20, "url": "file:///srv/cuda.run"}
    plan = resolve(declaration("2.13.1", gpu_artifacts={RUNFILE: own}))
    artifact = plan["toolkits"][0]["artifact"]
    assert {key: artifact[key] for key in own} == own
    assert artifact["md5"] is None  # the catalogue's md5 is of another file
    assert plan["toolkits"][0]["installed_mib"] == 88  # 50 MiB by the rule's factor 1.75
    assert artifact["checksum"] == "sha256:" + "0" * 64
    assert plan["artifacts"][0]["sha256"] == "0" * 64


def test_another_checksum_without_a_size_leaves_the_size_unknown() -> None:
    plan = resolve(declaration("2.13.1", gpu_artifacts={RUNFILE: {"sha256": "0" * 64}}))
    assert plan["toolkits"][0]["artifact"]["size_bytes"] is None
    assert plan["toolkits"][0]["installed_mib"] is None
    renamed = resolve(declaration("2.13.1", gpu_artifacts={RUNFILE: {"file": "slim.run"}}))
    assert renamed["artifacts"][0]["file"] == "slim.run"
    assert renamed["artifacts"][0]["size_bytes"] == 4336730777


def host_with_default(**link: str) -> dict[str, Any]:
    """A host whose `/usr/local/cuda` is this."""
    return snapshot(toolkits={"default": default_link(**{"state": "link", **link})})


@pytest.mark.parametrize(
    ("link", "short"),
    [
        ({"target": "cuda-11.8"}, "11.8"),
        ({"target": "/usr/local/cuda-11.8"}, "11.8"),
        ({"target": "cuda-12.5"}, "12.5"),
        # What is not declared, or goes another way, is no default that anybody chose.
        ({"target": "cuda-10.2"}, "12.5"),
        ({"target": "/etc/alternatives/cuda"}, "12.5"),
        ({"target": "cuda-11.8", "path": "/opt/cuda"}, "12.5"),
        ({"target": "", "state": "absent"}, "12.5"),
    ],
)
def test_a_stack_that_is_added_moves_nobodys_default(link: dict[str, str], short: str) -> None:
    plan = resolve(declaration("2.13.1", "2.18.1"), host_with_default(**link))
    assert plan["problems"] == []
    assert plan["default_link"]["target"] == f"cuda-{short}"
    assert [row["short"] for row in plan["toolkits"] if row["default"]] == [short]
    assert any("stays at CUDA 11.8" in note for note in plan["notes"]) == (short == "11.8")


def test_a_declared_default_is_the_one_whatever_stands_there() -> None:
    declared = declaration("2.13.1", "2.18.1", gpu_cuda_default="12.5")
    plan = resolve(declared, host_with_default(target="cuda-11.8"))
    assert plan["default_link"]["target"] == "cuda-12.5"
    fresh = resolve(declaration("2.13.1", "2.18.1"), snapshot())
    assert fresh["default_link"]["target"] == "cuda-12.5"
