"""Refusals: before anything changes, with code, message, place and remedy."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.components.declare import declaration_of
from gpufleet.components.probe_settings import probe_settings
from gpufleet.components.resolver import Code, release, resolve
from tests.support.host_documents import (
    DEBIAN_12,
    codes,
    declaration,
    refusal,
    snapshot,
    with_pythons,
)


def test_1_4_0_with_cudnn_5_1() -> None:
    (problem,) = release("tensorflow", "1.4.0", cudnn="5.1")["problems"]
    assert problem["code"] == "cudnn-mismatch"
    assert problem["where"] == "--cudnn"
    assert "libcudnn.so.6" in problem["message"]
    assert "remove the pin" in problem["remedy"]
    assert "TensorFlow 1.2.1" in problem["remedy"]


def test_an_unknown_release_lists_the_nearest() -> None:
    problem = refusal(declaration("9.9"))
    assert problem["code"] == "unknown-release"
    assert problem["where"] == "gpu_stacks[0].tensorflow"
    assert "2.21.0" in problem["message"]
    assert refusal(declaration("2.13"))["remedy"] == 'declare one of these, such as "2.13.1"'
    assert "1.4.1" in refusal(declaration("1.4.7"))["message"]


CUDNN_PINS = [
    ("2.13.1", "8.6", None),
    ("2.13.1", "8.6.0.163", None),
    ("2.13.1", "8.9", None),  # newer than built, same major
    ("2.13.1", "8.5", "cudnn-mismatch"),  # older than built
    ("2.13.1", "9.3", "cudnn-mismatch"),  # another soname
    ("2.13.1", "8.11", "cudnn-unknown"),
    ("1.3.0", "6.0", None),
    ("2.18.0", "9.5.1", None),
]


@pytest.mark.parametrize(("version", "cudnn", "code"), CUDNN_PINS)
def test_a_pinned_cudnn_is_checked_not_overridden(
    version: str, cudnn: str, code: str | None
) -> None:
    plan = resolve(declaration({"tensorflow": version, "cudnn": cudnn}))
    assert codes(plan) == ([code] if code else [])
    if code:
        assert plan["problems"][0]["where"] == "gpu_stacks[0].cudnn"
    else:
        assert (plan["cudnn"][0]["version"] + ".").startswith(cudnn + ".")


@pytest.mark.parametrize(
    ("version", "cuda", "fits"),
    [
        ("2.13.1", "11.8", True),
        ("2.13.1", "11.8.0", True),
        ("2.13.1", "12.2", False),
        ("2.11.0", "11.8", False),
        ("2.18.0", "12.5", True),
        ("2.18.0", "12.5.1", True),
        ("2.18.0", "12.5.0", False),  # older than the patch release it was built with
        ("1.4.0", "8.0.61", True),
        ("2.17.1", "12.3.0", True),
    ],
)
def test_a_pinned_cuda_is_checked_not_overridden(version: str, cuda: str, fits: bool) -> None:
    plan = resolve(declaration({"tensorflow": version, "cuda": cuda}))
    if fits:
        assert plan["problems"] == []
        assert (plan["toolkits"][0]["version"] + ".").startswith(cuda + ".")
    else:
        assert codes(plan) == ["cuda-mismatch"]
        assert plan["problems"][0]["where"] == "gpu_stacks[0].cuda"


def test_a_python_without_a_wheel() -> None:
    problem = refusal(declaration({"tensorflow": "2.13.1", "python": "3.12"}))
    assert (problem["code"], problem["where"]) == ("python-unavailable", "gpu_stacks[0].python")
    assert "3.8, 3.9, 3.10, 3.11" in problem["message"]


def test_a_host_without_a_fitting_python() -> None:
    problem = refusal(declaration("1.4.0"), with_pythons("3.11", "3.13"))
    assert problem["code"] == "python-unavailable"
    assert "3.11, 3.13" in problem["message"]
    wanted = refusal(declaration({"tensorflow": "2.13.1", "python": "3.9"}), with_pythons("3.11"))
    assert wanted["message"] == "the host has no Python 3.9; it has 3.11"


def test_the_newest_fitting_python_of_the_host_is_taken() -> None:
    plan = resolve(declaration("2.13.1"), with_pythons("3.9", "3.10", "3.12"))
    stack = plan["stacks"][0]
    assert (stack["python"], stack["interpreter"]) == ("3.10", "/usr/bin/python3.10")


def test_what_uv_brought_for_one_stack_changes_no_other() -> None:
    wanted = declaration(
        "2.18.1", {"tensorflow": "2.17.1", "python": "3.12"}, gpu_python_install=True
    )
    host = with_pythons("3.11")
    before = resolve(wanted, host)["stacks"]
    assert [(row["python"], row["python_source"]) for row in before] == [
        ("3.11", "host"),
        ("3.12", "uv"),
    ]
    path = "/opt/gpufleet/python/cpython-3.12.9-linux-x86_64-gnu/bin/python3.12"
    host["sections"]["os"]["data"]["pythons"].append({"path": path, "version": "3.12.9"})
    after = resolve(wanted, host)["stacks"]
    assert [row["python"] for row in after] == ["3.11", "3.12"]


OWN = "/srv/py/bin/python3.6"


def test_a_stack_takes_the_interpreter_that_is_named() -> None:
    wanted = declaration({"tensorflow": "1.4.0", "python": OWN})
    host = with_pythons("3.6", "3.11")
    host["sections"]["os"]["data"]["pythons"].append({"path": OWN, "version": "3.6.15"})
    stack = resolve(wanted, host)["stacks"][0]
    assert (stack["python"], stack["interpreter"]) == ("3.6", OWN)
    assert stack["lock"] == "tensorflow-1.4.0-py3.6.lock"
    assert probe_settings(declaration_of(wanted).spec)["pythons"] == [OWN]
    unseen = resolve(wanted)["stacks"][0]
    assert (unseen["python"], unseen["interpreter"]) == ("3.6", OWN)


@pytest.mark.parametrize(
    ("python", "found", "reported"),
    [
        (OWN, None, f"the host has no {OWN}"),
        (OWN, "3.7.1", f"{OWN} is Python 3.7"),
        (OWN, "2.7.18", f"{OWN} is Python 2.7"),
        ("/srv/py/bin/python3.11", "3.11.2", "has no wheel for Python 3.11"),
        ("/srv/py/bin/python3.5", "3.5.9", "needs Python 3.6 or newer"),
    ],
)
def test_a_named_interpreter_that_does_not_fit(
    python: str, found: str | None, reported: str
) -> None:
    host = with_pythons("3.6")
    if found:
        host["sections"]["os"]["data"]["pythons"].append({"path": python, "version": found})
    problem = refusal(declaration({"tensorflow": "1.4.0", "python": python}), host)
    assert (problem["code"], problem["where"]) == ("python-unavailable", "gpu_stacks[0].python")
    assert reported in problem["message"]


@pytest.mark.parametrize("prefix", ["/srv/3.6", "/srv/versions/3.6.15", "/srv/cpython-3.6.15"])
def test_a_prefix_stands_for_its_interpreter(prefix: str) -> None:
    stack = resolve(declaration({"tensorflow": "1.4.0", "python": prefix}))["stacks"][0]
    assert (stack["python"], stack["interpreter"]) == ("3.6", f"{prefix}/bin/python3.6")


@pytest.mark.parametrize("python", ["/srv/py", "/srv/py/bin/python", "/srv/py 3/bin/python3.6"])
def test_an_interpreter_whose_name_does_not_tell_its_version(python: str) -> None:
    problem = refusal(declaration({"tensorflow": "1.4.0", "python": python}), with_pythons("3.6"))
    assert (problem["code"], problem["where"]) == ("wrong-type", "gpu_stacks[0].python")


def test_uv_brings_a_python_only_where_it_may_and_can() -> None:
    host = with_pythons("3.11")
    problem = refusal(declaration("2.4.0"), host)
    assert "set gpu_python_install: true" in problem["remedy"]
    stack = resolve(declaration("2.4.0", gpu_python_install=True), host)["stacks"][0]
    assert (stack["python"], stack["interpreter"], stack["python_source"]) == ("3.8", None, "uv")
    own = resolve(declaration("2.13.1", gpu_python_install=True), host)["stacks"][0]
    assert (own["python"], own["python_source"]) == ("3.11", "host")
    older = {"tensorflow": "2.13.1", "python": "3.9"}
    assert (
        resolve(declaration(older, gpu_python_install=True), host)["stacks"][0]["python"] == "3.9"
    )
    legacy = refusal(declaration("1.4.0", gpu_python_install=True), host)
    assert legacy["code"] == "python-unavailable"
    assert "gpu_python_install" not in legacy["remedy"]


def test_a_driver_s_library_is_planned_for_builds_that_are_linked_against_it() -> None:
    wanted = declaration("1.4.0", "2.13.1", gpu_expect={"count": 0})
    plan = resolve(wanted, with_pythons("3.6", "3.11"))
    assert plan["driver_library"] == {"soname": "libcuda.so.1", "because": ["tensorflow-1.4.0"]}
    assert resolve(declaration("1.4.0", gpu_expect={"count": 1}))["driver_library"] is None
    assert resolve(declaration("1.0.0", gpu_expect={"count": 0}))["driver_library"] is None


DRIVERS = [
    ("2.15.0", "470", "driver-too-old"),
    ("2.15.0", "525", None),  # minor-version compatibility: 12.2 came with 535
    ("2.15.0", "525.60.11", "driver-too-old"),
    ("2.15.0", "525.60.13", None),
    ("2.13.1", "450", None),
    ("1.15.0", "396", "driver-too-old"),  # exact before CUDA 11
    ("1.15.0", "410", None),
    ("1.15.0", "580", None),
    ("2.13.1", "533", "driver-unknown"),
]


@pytest.mark.parametrize(("version", "branch", "code"), DRIVERS)
def test_the_declared_driver(version: str, branch: str, code: str | None) -> None:
    plan = resolve(declaration(version, gpu_driver={"branch": branch, "source": "distro"}))
    assert codes(plan) == ([code] if code else [])
    if code:
        assert plan["problems"][0]["where"] == "gpu_driver.branch"
    assert plan["driver"]["branch"] == branch.split(".", maxsplit=1)[0]
    assert plan["driver"]["version"] == (branch if "." in branch else None)


def test_the_loaded_driver_counts_where_ours_is_not_managed() -> None:
    old = snapshot(driver={"loaded": "470.256.02"})
    assert refusal(declaration("2.17.1"), old)["code"] == "driver-too-old"
    assert resolve(declaration("2.13.1"), old)["problems"] == []
    managed = {"branch": "580", "source": "nvidia_repo"}
    assert resolve(declaration("2.17.1", gpu_driver=managed), old)["problems"] == []


def test_a_host_declared_without_a_gpu_needs_no_driver() -> None:
    old = snapshot(driver={"loaded": "390.157"})
    declared = declaration(
        "2.17.1", gpu_expect={"count": 0}, gpu_driver={"branch": "470"}, gpu_gpus=["K80"]
    )
    plan = resolve(declared, old)
    assert plan["problems"] == []
    assert plan["driver"]["minimum"] == "525.60.13"


GPUS: list[tuple[str, dict[str, Any], set[str]]] = [
    ("K80", {"gpu_stacks": [{"tensorflow": "2.17.1"}]}, {"gpu-too-old"}),
    ("V100", {"gpu_stacks": [{"tensorflow": "1.4.0"}]}, {"gpu-too-new"}),
    ("V100", {"gpu_stacks": [{"tensorflow": "1.15.0"}]}, set()),
    ("A100", {"gpu_stacks": [{"tensorflow": "2.3.0"}]}, {"gpu-too-new"}),
    ("RTX 3090", {"gpu_stacks": [{"tensorflow": "2.4.0"}]}, set()),  # 8.0 code runs on 8.6
    ("H100", {"gpu_stacks": [{"tensorflow": "2.17.1"}]}, set()),
    ("B200", {"gpu_stacks": [{"tensorflow": "2.21.0"}]}, {"gpu-too-new"}),
    ("B200", {"gpu_stacks": [{"tensorflow": "2.21.0", "cuda": "pip"}]}, {"gpu-too-new"}),
    ("B200", {"gpu_stacks": [{"tensorflow": "2.18.0", "cuda": "pip"}]}, {"gpu-too-new"}),
    ("V100", {"gpu_toolkits": ["13.0.0"]}, {"gpu-too-old"}),
    ("V100", {"gpu_toolkits": ["12.8.1"]}, set()),
    ("RTX 5090", {"gpu_toolkits": ["12.4"]}, {"gpu-too-new"}),
    ("V100", {"gpu_driver": {"branch": "590"}}, {"gpu-too-old"}),
    ("V100", {"gpu_driver": {"branch": "580"}}, set()),
    ("K80", {"gpu_driver": {"branch": "495"}}, {"gpu-too-old"}),
    ("B200", {"gpu_driver": {"branch": "550"}}, {"gpu-too-new"}),
    ("Rubin", {"gpu_driver": {"branch": "610"}}, {"gpu-too-new"}),
    ("Rubin", {"gpu_toolkits": ["13.2"]}, {"gpu-too-new"}),
    ("Rubin", {"gpu_toolkits": ["12.8"]}, {"gpu-too-new"}),
    ("Rubin", {"gpu_stacks": [{"pytorch": "2.12.0"}]}, {"gpu-too-new"}),
    ("Rubin", {"gpu_stacks": [{"jax": "0.8.0"}]}, {"gpu-too-new"}),
    ("Rubin", {"gpu_stacks": [{"tensorflow": "2.17.1"}]}, {"gpu-too-new"}),
    ("V100", {"gpu_driver": {"branch": "580", "module": "open"}}, {"gpu-too-old"}),
    ("T4", {"gpu_driver": {"branch": "580", "module": "open"}}, set()),
    ("B200", {"gpu_driver": {"branch": "580", "module": "proprietary"}}, {"gpu-too-new"}),
    (
        "H100",
        {"gpu_driver": {"branch": "470", "module": "open"}},
        {"driver-unknown", "gpu-too-new"},
    ),
]


@pytest.mark.parametrize(("card", "declared", "expected"), GPUS)
def test_a_gpu_that_something_does_not_know(
    card: str, declared: dict[str, Any], expected: set[str]
) -> None:
    plan = resolve({**declared, "gpu_gpus": [card], "gpu_accept_nvidia_eula": True})
    assert set(codes(plan)) == expected
    assert all(problem["remedy"] for problem in plan["problems"])


def test_the_expected_model_tells_the_gpu_too() -> None:
    expect = {"count": 8, "model": "NVIDIA B200", "memory_mib": 183_359}
    assert codes(resolve(declaration("2.21.0", gpu_expect=expect))) == ["gpu-too-new"]
    unheard = resolve(declaration("2.21.0", gpu_expect={"count": 1, "model": "NVIDIA Something"}))
    assert unheard["problems"] == []
    assert any("'NVIDIA Something' is not known" in note for note in unheard["notes"])


def test_a_gpu_reached_through_ptx_needs_a_driver_as_new_as_the_toolkit() -> None:
    plain = resolve(declaration("2.15.1", gpu_gpus=["V100"]))
    through_ptx = resolve(declaration("2.15.1", gpu_gpus=["H100"]))
    assert plain["driver"]["minimum"] == "525.60.13"
    assert through_ptx["driver"]["minimum"] == "530.30.02"  # PTX 8.1, CUDA 12.1
    assert any("PTX" in note for note in through_ptx["notes"])


def test_a_gpu_that_nobody_knows() -> None:
    problem = refusal(declaration("2.13.1", gpu_gpus=["Voodoo 2"]))
    assert (problem["code"], problem["where"]) == ("gpu-unknown", "gpu_gpus[0]")


def test_the_licence_is_accepted_by_a_person() -> None:
    problem = refusal({"gpu_stacks": [{"tensorflow": "2.13.1"}]})
    assert problem["code"] == "eula-not-accepted"
    assert "gpu_accept_nvidia_eula: true" in problem["remedy"]
    assert resolve({"gpu_stacks": [{"tensorflow": "2.21.0", "cuda": "pip"}]})["problems"] == []
    assert resolve({})["problems"] == []


def test_a_file_known_by_md5_only() -> None:
    problem = refusal(declaration(gpu_toolkits=["13.2.2"]))
    assert problem["code"] == "artifact-md5-only"
    assert "gpu_allow_md5: true" in problem["remedy"]
    plan = resolve(declaration(gpu_toolkits=["13.2.2"], gpu_allow_md5=True))
    assert plan["problems"] == []
    assert plan["toolkits"][0]["artifact"]["sha256"] is None
    assert plan["toolkits"][0]["artifact"]["checksum"].startswith("md5:")
    # Asked for 13.2 alone, the newest that can be checked properly is taken.
    assert resolve(declaration(gpu_toolkits=["13.2"]))["toolkits"][0]["version"] == "13.2.1"
    newest = resolve(declaration(gpu_toolkits=["13.2"], gpu_allow_md5=True))
    assert newest["toolkits"][0]["version"] == "13.2.2"


def test_a_file_known_by_sha512_is_checked_by_that() -> None:
    plan = resolve(declaration(gpu_toolkits=[{"cuda": "10.0", "cudnn": ["7.4.1.5"]}, "12.9"]))
    assert plan["problems"] == []
    assert plan["toolkits"][1]["version"] == "12.9.2"
    for row in (plan["toolkits"][1], plan["cudnn"][0]):
        algorithm, _, digest = row["artifact"]["checksum"].partition(":")
        assert (algorithm, len(digest), row["artifact"]["sha256"]) == ("sha512", 128, None)


def test_a_file_without_any_checksum() -> None:
    problem = refusal(declaration(gpu_toolkits=["13.4.2"]))
    assert problem["code"] == "artifact-without-checksum"
    own = {"cuda_13.4.2_linux.run": {"sha256": "ab" * 32}}
    assert resolve(declaration(gpu_toolkits=["13.4.2"], gpu_artifacts=own))["problems"] == []
    archive = refusal(declaration(gpu_toolkits=[{"cuda": "12.8", "cudnn": ["9.25.1"]}]))
    assert archive["code"] == "artifact-without-checksum"
    assert archive["where"] == "gpu_toolkits[0].cudnn"


def test_a_toolkit_that_does_not_exist() -> None:
    problem = refusal(declaration(gpu_toolkits=["11.9"], gpu_cuda_default="11.9"))
    assert (problem["code"], problem["where"]) == ("toolkit-unknown", "gpu_toolkits[0]")
    assert "11.8.0" in problem["message"]
    assert refusal(declaration(gpu_toolkits=["13"]))["code"] == "toolkit-unknown"


def test_glibc_too_old_and_too_new() -> None:
    def host(glibc: str) -> dict[str, Any]:
        return snapshot(os={**DEBIAN_12, "glibc": glibc})

    assert refusal(declaration(gpu_toolkits=["12.8.1"]), host("2.17"))["code"] == "glibc"
    wheel = refusal(declaration({"tensorflow": "2.21.0", "cuda": "pip"}), host("2.26"))
    assert wheel["code"] == "glibc"
    stack = resolve(declaration("2.13.1"), host("2.42"))
    assert stack["problems"] == []
    assert any("nvcc of CUDA 11.8.0" in note for note in stack["notes"])


# What the headers of each release declare (toolkits/meta.yml, crt_headers).
@pytest.mark.parametrize(
    ("cuda", "glibc", "first"),
    [
        ("11.8", "2.41", "13.0"),
        ("12.4", "2.41", "13.0"),
        ("12.8.2", "2.41", "13.0"),
        ("12.9.2", "2.41", "13.0"),
        ("12.9", "2.40", None),
        ("13.0", "2.41", None),
        ("13.0.3", "2.42", "13.2"),
        ("13.1.2", "2.43", "13.2"),
        ("13.2", "2.43", None),
    ],
)
def test_toolkits_and_the_newest_glibc_that_their_headers_fit(
    cuda: str, glibc: str, first: str | None
) -> None:
    own = {"cuda_13.1.2_590.48.01_linux.run": {"sha256": "ab" * 32}}
    declared = declaration(gpu_toolkits=[cuda], gpu_artifacts=own)
    found = resolve(declared, snapshot(os={**DEBIAN_12, "glibc": glibc}))["problems"]
    assert [problem["code"] for problem in found] == (["glibc"] if first else [])
    if first:
        assert f"declare CUDA {first} or newer" in found[0]["remedy"]


def test_a_glibc_on_which_no_cuda_compiles_for_the_gpu() -> None:
    host = snapshot(os={**DEBIAN_12, "glibc": "2.41"})
    problem = refusal(declaration(gpu_toolkits=["12.4"], gpu_gpus=["Tesla V100"]), host)
    assert problem["code"] == "glibc"
    assert problem["remedy"].startswith("no known CUDA compiles there for this host's GPUs")


def test_all_that_is_wrong_is_printed_at_once() -> None:
    declared = {
        "gpu_stacks": [
            {"tensorflow": "9.9"},
            {"tensorflow": "1.4.0", "cudnn": "5.1"},
            {"tensorflow": "2.17.1", "cuda": "11.8", "python": "2.7"},
        ],
        "gpu_toolkits": ["11.9"],
        "gpu_cuda_default": "10.2",
        "gpu_driver": {"branch": "390"},
    }
    assert set(codes(resolve(declared))) == {
        "unknown-release",
        "cudnn-mismatch",
        "cuda-mismatch",
        "python-unavailable",
        "toolkit-unknown",
        "default-not-declared",
        "driver-too-old",
        "eula-not-accepted",
    }


def test_every_problem_has_a_documented_code_a_place_and_a_remedy() -> None:
    meanings = {code.value: code.meaning for code in Code}
    assert all(re_sentence(meaning) for meaning in meanings.values())
    plan = resolve({"gpu_stack": [], "gpu_toolkits": [11.8], "gpu_stacks": [{"tensorflow": "9"}]})
    assert len(plan["problems"]) == 3
    for problem in plan["problems"]:
        assert problem["code"] in meanings
        assert problem["where"].startswith("gpu_")
        assert problem["remedy"]


def re_sentence(text: str) -> bool:
    return text[0].isupper() and text.endswith(".")


# (release, the processor's features, what is lacking)
@pytest.mark.parametrize(
    ("stack", "features", "lacking"),
    [
        ({"tensorflow": "2.18.1"}, ["sse4_1"], "AVX"),
        ({"tensorflow": "1.6.0", "python": "3.6"}, [], "AVX"),
        ({"tensorflow": "1.5.0", "python": "3.6"}, [], None),
        ({"tensorflow": "2.4.0", "python": "3.8"}, ["sse4_1", "avx"], "AVX2"),
        ({"tensorflow": "2.4.1", "python": "3.8"}, ["sse4_1", "avx"], None),
        ({"jax": "0.5.3"}, ["sse4_1"], "AVX"),
        ({"pytorch": "2.1.2"}, [], "SSE4.1"),
        ({"pytorch": "2.6.0"}, [], None),
        ({"tensorflow": "2.18.1"}, None, None),
        ({"tensorflow": "2.18.1"}, ["sse4_1", "avx", "avx2"], None),
    ],
)
def test_a_processor_without_what_the_wheel_uses(
    stack: dict[str, Any], features: list[str] | None, lacking: str | None
) -> None:
    host = snapshot(os={**DEBIAN_12, "cpu_features": features})
    found = resolve(declaration(stack), host)["problems"]
    ours = [each for each in found if each["code"] == "cpu-feature"]
    assert len(ours) == (lacking is not None), found
    if lacking:
        assert f"a processor with {lacking}, which" in ours[0]["message"]
        assert "CPU type to host" in ours[0]["remedy"]


@pytest.mark.parametrize(
    ("release", "card", "refused"),
    [
        ("2.20.0", "RTX 5090", True),
        ("2.21.0", "RTX 5080", True),
        ("2.21.0", "B200", True),
        ("2.21.0", "12.1", True),
        ("2.20.0", "H100", False),
        ("2.21.0", "RTX 4090", False),
    ],
)
def test_the_compiler_inside_tensorflow(release: str, card: str, refused: bool) -> None:
    declared = declaration({"tensorflow": release, "cuda": "pip"}, gpu_gpus=[card])
    found = resolve(declared)["problems"]
    assert [each["code"] for each in found] == (["gpu-too-new"] if refused else [])
    for each in found:
        assert "writes PTX up to 8.5 whatever CUDA is beside it" in each["message"]
        assert "cuda: pip" not in each["remedy"]
        assert "PyTorch" in each["remedy"]
