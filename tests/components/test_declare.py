"""Spec: the shape of what a person wrote. Nothing that is written may raise."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from gpufleet.components.declare import declaration_of
from gpufleet.components.resolver import resolve
from gpufleet.documents.spec import KEYS
from tests.support.host_documents import codes, declaration, refusal, snapshot
from tests.support.wrong_variables import WRONG

FULL = declaration(
    {"tensorflow": "2.13.1", "cuda": "11.8", "cudnn": "8.6", "python": "3.11", "name": "vision"},
    {"tensorflow": "2.21.0", "cuda": "pip"},
    gpu_toolkits=["12.4.1", {"cuda": "8.0", "cudnn": ["6.0", "5.1"]}],
    gpu_cuda_default="11.8",
    gpu_driver={"branch": "580", "source": "nvidia_repo"},
    gpu_driver_reboot="never",
    gpu_mig={"0": ["3g.40gb"]},
    gpu_containers={"engine": "podman", "toolkit": "1.20.0", "image": "tensorflow:2.17.1"},
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
        ("gpu_mgi", "gpu_mig"),
        ("gpu_tookit", "gpu_toolkits"),
        ("gpu_drvier_rebot", "gpu_driver_reboot"),
    ],
)
def test_a_key_with_a_slip(written: str, meant: str) -> None:
    problem = refusal({written: None})
    assert (problem["code"], problem["where"]) == ("unknown-key", written)
    assert problem["remedy"].startswith(f"rename {written} to {meant}")


def test_variables_of_other_rooms_are_none_of_ours() -> None:
    others = (
        "gpu_pip_index_url",
        "gpu_hosts",
        "gpu_uv",
        "gpu_tools",
        "gpu_rack",
        "gpu_artifacts_cache",
        "gpu_driver_reload",
        "gpu_stack_root_dir",
        "gpu_user",
        "gpu_locks_dir",
        "ansible_host",
        "x",
    )
    assert resolve(dict.fromkeys(others, 1))["problems"] == []


@pytest.mark.parametrize(
    "place",
    ["", "/srv/mirror", "~/mirror", "http://10.0.0.1:8090", "https://m.example.org/wheels/"],
)
def test_places_that_files_come_from(place: str) -> None:
    assert resolve({"gpu_artifacts_source": place, "gpu_wheelhouse": place})["problems"] == []


@pytest.mark.parametrize("address", ["https://me:secret@mirror/x", "http://secret@mirror:80"])
def test_a_login_in_an_address_is_refused_and_told_to_nobody(address: str) -> None:
    plan = resolve({"gpu_wheelhouse": address, "gpu_artifacts": {"x.run": {"url": address}}})
    assert codes(plan) == ["wrong-type"] * 2
    assert "secret" not in str(plan)


SIGNED = "https://store.example.org/x.run?X-Amz-Signature=secret&X-Amz-Expires=600"


def test_the_query_of_an_artifacts_address_is_in_no_plan() -> None:
    file = "cuda_11.8.0_520.61.05_linux.run"
    own = {"sha256": "0" * 64, "url": SIGNED}
    plan = resolve({"gpu_toolkits": ["11.8"], "gpu_artifacts": {file: own}})
    assert [row["url"] for row in plan["artifacts"]] == ["https://store.example.org/x.run?***"]
    assert "secret" not in str(plan)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("shape", [SIGNED, [SIGNED], {"x": SIGNED}, {"x": {"url": [SIGNED]}}])
def test_the_query_of_an_address_is_in_no_problem(key: str, shape: Any) -> None:
    plan = resolve({key: shape})
    assert "secret" not in str(plan["problems"])


@pytest.mark.parametrize("key", ["gpu_artifacts_source", "gpu_wheelhouse"])
def test_a_base_address_with_a_query_is_refused(key: str) -> None:
    assert codes(resolve({key: SIGNED})) == ["wrong-type"]


def test_a_wrong_key_in_a_stack() -> None:
    problem = refusal(declaration({"tensorflow": "2.13.1", "cudn": "8.6"}))
    assert (problem["code"], problem["where"]) == ("unknown-key", "gpu_stacks[0].cudn")
    assert "did you mean cudnn?" in problem["message"]


@pytest.mark.parametrize(("declared", "where"), WRONG)
def test_a_value_of_another_shape(declared: dict[str, Any], where: str) -> None:
    problem = refusal(declared)
    assert (problem["code"], problem["where"]) == ("wrong-type", where)


# No plan depends on these, and the commands that need them read them themselves (those of Slurm,
# pairs and collectives).
READ_BY_COMMANDS = {
    "gpu_nccl_dir",
    "gpu_node_name",
    "gpu_pair_address",
    "gpu_scheduler_host",
    "gpu_srun_options",
}


def test_each_variable_is_read() -> None:
    """One that nobody reads would be accepted, and dropped: here each has a value of another
    shape, which the parser refuses."""
    assert set(KEYS) - {re.split(r"\W", where)[0] for _, where in WRONG} == READ_BY_COMMANDS


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
    odd: list[Any] = [
        None,
        True,
        0,
        -1,
        11.8,
        "",
        " ",
        "x",
        "..",
        "١.٢",
        "99.99.99.99",
        [],
        [[]],
        [None],
        [{}],
        {},
        {"a": 1},
        {"tensorflow": {}},
        [{"tensorflow": []}],
        [{"tensorflow": "2.13.1", "cuda": []}],
        {"branch": []},
        {"x": None},
        object,
    ]
    dice = random.Random(20_261_120)
    for _ in range(150):
        declared = {key: dice.choice(odd) for key in dice.sample(sorted(FULL), 4)}
        plan = resolve({**FULL, **declared}, snapshot())
        json.dumps(plan)
        assert all(
            set(problem) == {"code", "message", "where", "remedy"} for problem in plan["problems"]
        )
    for whole in (None, [], "x", 3):
        assert codes(resolve(whole)) == ["wrong-type"]  # type: ignore[arg-type]


def test_resolving_changes_nothing_and_gives_the_same_again() -> None:
    declared, host = json.loads(json.dumps(FULL)), snapshot()
    first = resolve(declared, host)
    assert declared == FULL
    assert host == snapshot()
    assert resolve(declared, host) == first


@pytest.mark.parametrize(("word", "value"), [("true", True), ("No", False), ("on", True)])
def test_flags_accept_the_words_of_extra_variables(word: str, value: bool) -> None:
    declared = {**FULL, "gpu_toolkits": ["12.4.1"], "gpu_python_install": word}
    spec = declaration_of(declared).spec
    assert spec.python_install is value


@pytest.mark.parametrize("name", ["gpu_accept_nvidia_eula", "gpu_prune", "gpu_cuda_adopt"])
@pytest.mark.parametrize("word", ["true", "yes", "True", "on", "1", "", "no"])
def test_a_licence_a_removal_and_an_adoption_take_no_word_for_true(name: str, word: str) -> None:
    (problem,) = resolve({**FULL, "gpu_toolkits": ["12.4.1"], name: word})["problems"][:1]
    assert (problem["code"], problem["where"]) == ("wrong-type", name)
    assert f"write {name}: true without quotes" in problem["remedy"]


def test_a_release_of_the_same_number_of_another_framework_is_another_stack() -> None:
    plan = resolve({"gpu_stacks": [{"pytorch": "2.6.0"}], "tensorflow_gpu_version": "2.6.0"})
    assert sorted(stack["framework"] for stack in plan["stacks"]) == ["pytorch", "tensorflow"]
    same = resolve({"gpu_stacks": [{"tensorflow": "2.6.0"}], "tensorflow_gpu_version": "2.6.0"})
    assert [stack["framework"] for stack in same["stacks"]] == ["tensorflow"]


@pytest.mark.parametrize(
    "declared",
    [
        {"gpu_toolkits": ["11.08"]},
        {"gpu_toolkits": ["011.8"]},
        {"gpu_toolkits": [{"cuda": "11.8", "cudnn": "8.06"}]},
        {"gpu_mig": {"01": ["3g.40gb"]}},
    ],
)
def test_a_number_that_begins_with_a_zero_is_refused(declared: Any) -> None:
    assert "0" in str(refusal({**declared, "gpu_accept_nvidia_eula": True})["message"])


def test_a_mig_layout_of_a_gpu_that_is_not_declared_is_refused() -> None:
    declared = {"gpu_mig": {"0": ["3g.40gb"], "4": ["3g.40gb"]}, "gpu_expect": {"count": 4}}
    assert "one of the 4 GPUs of gpu_expect" in refusal(declared)["message"]
