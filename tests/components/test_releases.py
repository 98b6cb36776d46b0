"""Every TensorFlow GPU release: it resolves, and the plan is whole."""

from __future__ import annotations

import re

import pytest

from gpufleet.catalog import facts, versions
from gpufleet.components.base import expectation
from gpufleet.components.resolver import release, resolve
from gpufleet.components.stacks.pythons import usable
from gpufleet.frameworks import FRAMEWORKS
from tests.support.host_documents import codes, declaration, with_pythons

RELEASES = facts.build_versions("tensorflow")


def test_they_reach_from_the_first_to_the_newest() -> None:
    assert len(RELEASES) == 101
    assert RELEASES[0] == "1.0.0"
    assert RELEASES[-1] == "2.22.0rc0"


@pytest.mark.parametrize("version", RELEASES)
def test_it_resolves_on_a_host_with_a_fitting_python(version: str) -> None:
    build = facts.build("tensorflow", version)
    assert build is not None
    for python in usable(build):
        plan = resolve(declaration(version), with_pythons(python), "gpu01")
        assert plan["problems"] == []
        (stack,) = plan["stacks"]
        (toolkit,) = plan["toolkits"]
        (cudnn,) = plan["cudnn"]
        assert stack["python"] == python
        assert stack["requirements"][0] == f"{build.distribution}=={version}"
        assert stack["installer"] == ("pip" if python in {"3.6", "3.7"} else "uv")
        assert stack["lock"] == f"tensorflow-{version}-py{python}.lock"
        assert toolkit["short"] == versions.short(build.cuda)
        assert versions.key(toolkit["version"]) >= versions.key(build.cuda)
        assert cudnn["major"] == build.cudnn_major
        assert cudnn["soname"] in stack["sonames"]
        assert versions.has_prefix(cudnn["version"], build.cudnn)
        for row in plan["artifacts"]:
            assert re.fullmatch("[0-9a-f]{64}", row["sha256"]), row
            assert row["url"].startswith("http")
            assert row["url"].endswith(row["file"])


@pytest.mark.parametrize("version", RELEASES)
def test_it_answers_alone(version: str) -> None:
    answer = release("tensorflow", version)
    assert list(answer) == [
        "tensorflow",
        "distribution",
        "python",
        "cuda",
        "cuda_source",
        "cudnn",
        "sonames",
        "driver_min",
        "compute_capability",
        "requirements",
        "notes",
        "sources",
    ]
    assert answer["tensorflow"] == version
    stems = {soname.split(".")[0] for soname in answer["sonames"]}
    assert {"libcudart", "libcublas", "libcudnn"} <= stems
    assert "libcuda" not in stems  # the driver's
    assert answer["compute_capability"]["min"] in {"3.0", "3.5", "3.7", "5.0", "6.0"}
    assert answer["sources"]


@pytest.mark.parametrize("version", RELEASES)
def test_cuda_from_pip_is_for_those_with_the_extra(version: str) -> None:
    plan = resolve(declaration({"tensorflow": version, "cuda": "pip"}))
    if versions.key(version) < versions.key("2.14.0"):
        assert codes(plan) == ["pip-cuda-unavailable"]
        return
    if version == "2.15.0":  # its tensorrt is on no index
        assert codes(plan) == ["lock-unavailable"]
        return
    (stack,) = plan["stacks"]
    assert plan["problems"] == plan["toolkits"] == plan["cudnn"] == plan["artifacts"] == []
    assert plan["default_link"] is None
    assert stack["requirements"][0] == f"tensorflow[and-cuda]=={version}"
    assert (stack["cuda_source"], stack["toolkit_path"]) == ("pip", None)


@pytest.mark.parametrize(
    ("version", "toolkit", "cudnn", "driver"),
    [
        ("1.4.0", "8.0.61", "6.0", "375.26"),
        ("1.12.0", "9.0.176", "7.6.5.32", "384.111"),  # cuDNN 7.6 asks for more than CUDA 9.0
        ("2.0.4", "10.0.130", "7.6.5.32", "410.48"),
        ("2.3.4", "10.1.243", "7.6.5.32", "418.39"),
        ("2.4.4", "11.0.3", "8.0.5.39", "450.80.02"),
        ("2.11.1", "11.2.2", "8.1.1.33", "450.80.02"),
        ("2.13.1", "11.8.0", "8.6.0.163", "450.80.02"),
        ("2.14.1", "11.8.0", "8.7.0.84", "450.80.02"),
        ("2.15.1", "12.2.2", "8.9.7.29", "525.60.13"),
        ("2.17.1", "12.3.2", "8.9.7.29", "525.60.13"),
        ("2.21.0", "12.5.1", "9.3.0.75", "525.60.13"),
    ],
)
def test_what_goes_with_it(version: str, toolkit: str, cudnn: str, driver: str) -> None:
    plan = resolve(declaration(version))
    assert plan["toolkits"][0]["version"] == toolkit
    assert plan["cudnn"][0]["version"] == cudnn
    assert plan["driver"]["minimum"] == plan["stacks"][0]["driver_min"] == driver


def test_the_documented_example() -> None:
    plan = resolve(declaration("2.13.1", gpu_expect={"count": 0}), with_pythons("3.11"), "lab1")
    assert (plan["schema"], plan["host"], plan["arch"]) == (1, "lab1", "x86_64")
    assert plan["expect"] == {**dict.fromkeys(expectation.KEYS), "count": 0, "tflops_because": None}
    assert plan["service_user"] is None
    assert plan["driver"] == {
        "minimum": "450.80.02",
        "because": "CUDA 11.8 (minor-version compatibility)",
        "branch": None,
        "version": None,
        "source": None,
        "managed": False,
        "module": None,
        "module_because": None,
        "persistence": False,
        "fabric_manager": False,
        "subnet_manager": None,
        "mig": None,
        "reboot": "auto",
    }
    (toolkit,) = plan["toolkits"]
    assert toolkit["path"] == "/usr/local/cuda-11.8"
    assert (toolkit["default"], toolkit["registered"], toolkit["gcc_max"]) == (True, True, 11)
    assert toolkit["because"] == ["tensorflow-2.13.1"]
    (cudnn,) = plan["cudnn"]
    assert (cudnn["short"], cudnn["toolkit"], cudnn["default"]) == ("8.6.0", "11.8", True)
    assert cudnn["artifact"]["lib_dir"].endswith("_cuda11-archive/lib")
    assert plan["linker"]["directories"] == ["/usr/local/cuda-11.8/lib64"]
    assert plan["default_link"] == {"path": "/usr/local/cuda", "target": "cuda-11.8"}
    assert plan["stacks"][0]["venv"] == "/opt/gpufleet/stacks/tensorflow-2.13.1"
    assert [row["for"] for row in plan["artifacts"]] == [
        "toolkit 11.8",
        "cudnn 8.6.0.163 in toolkit 11.8",
    ]


def test_ceilings_follow_the_python() -> None:
    legacy = resolve(declaration("1.15.5"), with_pythons("3.7"))["stacks"][0]
    assert legacy["requirements"] == [
        "tensorflow-gpu==1.15.5",
        "protobuf<3.21",
        "h5py<3",
        "numpy<1.20",
    ]
    older = resolve(declaration("1.15.5"), with_pythons("3.6"))["stacks"][0]
    assert older["requirements"] == ["tensorflow-gpu==1.15.5", "h5py<3"]


def test_the_patch_of_8_0_comes_along_and_one_without_checksum_does_not() -> None:
    assert [p["version"] for p in resolve(declaration("1.4.0"))["toolkits"][0]["patches"]] == [
        "8.0.61.2"
    ]
    plan = resolve(declaration("2.0.4"))
    assert plan["toolkits"][0]["patches"] == []
    assert any("10.0.130.1 is left out" in note for note in plan["notes"])
    assert plan["problems"] == []


@pytest.mark.parametrize(
    ("version", "cudnn"), [("1.14.0", "7.4"), ("1.15.0", "7.6"), ("2.0.4", "7.6")]
)
def test_a_build_gets_at_least_the_cudnn_that_it_was_compiled_with(
    version: str, cudnn: str
) -> None:
    assert release("tensorflow", version)["cudnn"].startswith(f"{cudnn}.")


@pytest.mark.parametrize("version", ["1.12.2", "1.12.3"])
def test_a_build_that_was_made_for_one_architecture_says_so(version: str) -> None:
    answer = release("tensorflow", version)
    assert (answer["compute_capability"]["min"], answer["compute_capability"]["native"]) == (
        "3.7",
        ["3.7"],
    )
    assert "7.0" in answer["compute_capability"]["ptx"]
    assert any("compute capability 3.7 alone" in source for source in answer["sources"])
    (problem,) = release("tensorflow", version, gpu="3.5")["problems"]
    assert problem["code"] == "gpu-too-old"


@pytest.mark.parametrize("version", ["1.13.1", "1.13.2"])
def test_what_a_build_opens_while_it_runs_is_planned_for(version: str) -> None:
    assert {"libcufft.so.10.0", "libcurand.so.10.0"} <= {*release("tensorflow", version)["sonames"]}


def test_a_cudnn_older_than_the_build_was_compiled_with_is_refused() -> None:
    problems = release("tensorflow", "1.15.0", cudnn="7.4")["problems"]
    assert [problem["code"] for problem in problems] == ["cudnn-mismatch"]


@pytest.mark.parametrize("cudnn", ["9.3.0", "9.8", "9.10.1"])
def test_the_pin_of_a_release_is_the_oldest_cudnn_that_it_accepts(cudnn: str) -> None:
    (problem,) = release("tensorflow", "2.22.0rc0", cudnn=cudnn)["problems"]
    assert problem["code"] == "cudnn-mismatch"
    assert "asks for cuDNN 9.10.2.21 or newer" in problem["message"]


def test_the_cudnn_of_a_plan_is_not_older_than_the_pin() -> None:
    for framework in FRAMEWORKS:
        for build in facts.releases(framework):
            if build.cudnn_floor and "toolkit" in build.cuda_sources:
                cuda = "local" if build.about.can_be_local else None
                found = release(framework, build.version, cuda=cuda)["cudnn"]
                assert versions.key(found) >= versions.key(build.cudnn_floor), build.name
