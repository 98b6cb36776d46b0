"""PyTorch and JAX: every release resolves, or is refused with a reason and a remedy."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gpufleet.catalog import facts
from gpufleet.components.resolver import release, resolve
from gpufleet.documents.problems import Code
from tests.support.host_documents import codes, declaration, refusal, with_pythons

RELEASES = [
    (framework, version)
    for framework in ("pytorch", "jax")
    for version in facts.build_versions(framework)
]  # type: ignore[arg-type]
PYTORCH_INDEX = "https://download.pytorch.org/whl"
CODES = {each.value for each in Code}


def stack(*entries: dict[str, Any], **others: Any) -> Any:
    """The one stack of a plan without problems."""
    plan = resolve(declaration(*entries, **others))
    assert plan["problems"] == []
    (found,) = plan["stacks"]
    return found


@pytest.mark.parametrize(("framework", "version"), RELEASES)
@pytest.mark.parametrize("cuda", [None, "pip", "local", "11.8", "12.6", "13.0", "13", "9"])
def test_every_release_has_a_plan_or_a_reason_and_a_remedy(
    framework: str, version: str, cuda: str | None
) -> None:
    plan = resolve(declaration({framework: version, "cuda": cuda}, gpu_gpus=["T4"]))
    assert plan["problems"] or len(plan["stacks"]) == 1
    for problem in plan["problems"]:
        assert problem["code"] in CODES
        assert problem["where"].startswith("gpu_stacks[0]")
        assert problem["message"]
        assert problem["remedy"]


@pytest.mark.parametrize(("framework", "version"), RELEASES)
def test_every_release_resolves_for_each_of_its_pythons(framework: Any, version: str) -> None:
    build = facts.build(framework, version)
    assert build is not None
    if build.unavailable:
        assert refusal(declaration({framework: version}))["code"] == "wheel-unavailable"
        return
    for python in build.pythons:
        if python in {"2.7", "3.5"}:
            continue
        plan = resolve(declaration({framework: version}), with_pythons(python))
        assert plan["problems"] == []
        (found,) = plan["stacks"]
        assert (found["framework"], found["version"]) == (framework, version)
        assert found["name"] == f"{framework}-{version}"
        assert found["lock"] == f"{framework}-{version}-py{python}.lock"
        assert found["cuda_source"] == build.cuda_sources[0]
        assert (found["toolkit_path"], plan["toolkits"], plan["cudnn"]) == (None, [], [])
        assert found["sonames"] or found["cuda_source"] == "bundled"


@pytest.mark.parametrize(("framework", "version"), RELEASES)
def test_it_answers_alone(framework: Any, version: str) -> None:
    answer = release(framework, version)
    if "problems" in answer:
        (problem,) = answer["problems"]
        assert problem["where"] == f"--{framework}"
        assert "cannot be installed with CUDA: its jaxlib" in problem["message"]
        assert re.match(r"declare JAX 0\.4\.(23|33), whose CUDA is on PyPI", problem["remedy"])
        return
    assert list(answer) == [
        framework,
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
    assert answer[framework] == version
    assert answer["compute_capability"]["native"]
    assert answer["sources"]


def test_which_releases_of_jax_have_no_cuda_on_the_index() -> None:
    refused = {
        version: release("jax", version)["problems"][0]["message"]
        for framework, version in RELEASES
        if framework == "jax" and "problems" in release("jax", version)
    }
    stored = [version for version, message in refused.items() if "Google's storage" in message]
    assert (stored[0], stored[-1], len(stored)) == ("0.2.11", "0.4.22", 67)
    assert [version for version, message in refused.items() if "yanked" in message] == ["0.4.32"]


@pytest.mark.parametrize(
    ("version", "cuda", "source", "cudnn", "driver"),
    [
        # PyTorch's release compatibility matrix, and what NVIDIA asks for that CUDA.
        ("1.0.0", "9.0", "bundled", "7.4.1", "384.81"),
        ("1.7.1", "10.2", "bundled", "7.6.5", "440.33"),
        ("1.13.1", "11.7", "pip", "8.5.0.96", "450.80.02"),
        ("2.1.2", "12.1", "pip", "8.9.2.26", "525.60.13"),
        ("2.6.0", "12.4", "pip", "9.1.0.70", "525.60.13"),
        ("2.8.0", "12.8", "pip", "9.10.2.21", "525.60.13"),
        ("2.15.0", "13.2", "pip", "9.26.0.51", "580"),
    ],
)
def test_what_goes_with_pytorch(
    version: str, cuda: str, source: str, cudnn: str, driver: str
) -> None:
    found = stack({"pytorch": version})
    assert (found["cuda"], found["cuda_source"], found["cudnn"]) == (cuda, source, cudnn)
    assert (found["driver_min"], found["requirements"][0]) == (driver, f"torch=={version}")


@pytest.mark.parametrize(
    ("version", "ceiling"),
    [("1.13.1", "numpy<2"), ("2.2.2", "numpy<2"), ("2.3.0", "numpy"), ("2.6.0", "numpy")],
)
def test_numpy_2_is_kept_from_a_torch_that_was_built_with_numpy_1(
    version: str, ceiling: str
) -> None:
    requirements = stack({"pytorch": version})["requirements"]
    assert [each for each in requirements if each.startswith("numpy")] == [ceiling]


@pytest.mark.parametrize(
    ("release", "needed"), [("1.13.1", False), ("2.0.0", True), ("2.6.0", True), ("2.7.0", False)]
)
def test_triton_gets_the_setuptools_that_it_imports_and_does_not_declare(
    release: str, needed: bool
) -> None:
    assert ("setuptools" in stack({"pytorch": release})["requirements"]) is needed


def test_numpy_2_is_kept_from_an_old_jax() -> None:
    assert "numpy<2" in stack({"jax": "0.4.25"})["requirements"]
    assert "numpy<2" not in stack({"jax": "0.4.26"})["requirements"]


def test_a_variant_that_is_not_on_pypi_names_the_index_that_has_it() -> None:
    problem = refusal(declaration({"pytorch": "1.7.1", "cuda": "11.0"}))
    assert (problem["code"], problem["where"]) == ("wheel-unavailable", "gpu_stacks[0].cuda")
    assert f"only on {PYTORCH_INDEX}/cu110" in problem["message"]
    assert problem["remedy"] == (
        f"add index: {PYTORCH_INDEX}/cu110 to this stack, or remove the pin: the wheel on PyPI has"
        " CUDA 10.2"
    )


def test_a_variant_is_planned_from_its_index() -> None:
    index = f"{PYTORCH_INDEX}/cu110"
    found = stack({"pytorch": "1.7.1", "cuda": "11.0", "index": index})
    assert found["requirements"][0] == "torch==1.7.1+cu110"
    assert (found["index"], found["cuda"], found["version"]) == (index, "11.0", "1.7.1")
    assert found["lock"] == "pytorch-1.7.1-cu110-py3.9.lock"
    assert "8.6" in found["compute_capability"]["native"]
    answer = release("pytorch", "1.7.1", cuda="11.0", index=index)
    assert (answer["index"], answer["cudnn"]) == (index, None)


@pytest.mark.parametrize(
    ("version", "cuda", "source", "some"),
    [
        (
            "2.6.0",
            "11.8",
            "pip",
            {
                "libcudart.so.11.0",
                "libcublas.so.11",
                "libcudnn.so.9",
                "libcupti.so.11.8",
                "libnvrtc-builtins.so.11.8",
            },
        ),
        ("2.6.0", "12.6", "pip", {"libcudart.so.12", "libnvJitLink.so.12", "libcudnn.so.9"}),
        ("2.9.0", "13.0", "pip", {"libcudart.so.13", "libcublasLt.so.13", "libcufft.so.12"}),
        ("2.1.2", "11.8", "bundled", {"libcublas.so.11", "libcudnn.so.8"}),
        ("1.5.1", "10.1", "bundled", set()),
    ],
)
def test_a_variant_is_bound_to_what_comes_with_it(
    version: str, cuda: str, source: str, some: set[str]
) -> None:
    index = f"{PYTORCH_INDEX}/cu{cuda.replace('.', '')}"
    plan = resolve(declaration({"pytorch": version, "cuda": cuda, "index": index}))
    assert plan["problems"] == []
    (found,) = plan["stacks"]
    assert (found["cuda_source"], found["sonames"]) == (source, [])
    assert some <= {*found["sonames_optional"]}
    assert bool(some) == bool(found["sonames_optional"])
    output = any("the wheel of this variant was not read" in note for note in plan["notes"])
    assert output is (version != "1.5.1")
    if version == "2.6.0":
        assert found["driver_min"] == {"11.8": "450.80.02", "12.6": "525.60.13"}[cuda]


def test_an_index_of_ones_own_needs_no_pin() -> None:
    found = stack({"pytorch": "2.6.0", "index": "https://mirror.example.org/simple"})
    assert found["requirements"][0] == "torch==2.6.0"
    assert found["index"] == "https://mirror.example.org/simple"
    assert stack({"pytorch": "2.6.0"})["index"] is None


def test_a_cuda_that_no_wheel_of_the_release_has() -> None:
    problem = refusal(declaration({"pytorch": "2.6.0", "cuda": "12.1"}))
    assert problem["code"] == "cuda-mismatch"
    assert (
        problem["message"] == "PyTorch 2.6.0 was published for CUDA 12.4, 11.8, 12.6, not for 12.1"
    )
    assert "declare PyTorch 2.4.1, which is for CUDA 12.1" in problem["remedy"]
    assert resolve(declaration({"pytorch": "2.6.0", "cuda": "12.4"}))["problems"] == []


@pytest.mark.parametrize(
    ("entry", "code", "remedy"),
    [
        ({"pytorch": "1.12.1", "cuda": "pip"}, "pip-cuda-unavailable", "1.13.0"),
        ({"pytorch": "2.6.0", "cuda": "local"}, "local-cuda-unavailable", "remove cuda: local"),
        ({"tensorflow": "2.18.1", "cuda": "local"}, "local-cuda-unavailable", "remove cuda: local"),
        ({"jax": "0.4.29", "cuda": "local"}, "local-cuda-unavailable", "JAX 0.4.30"),
        ({"jax": "0.4.29", "cuda": "12.3"}, "local-cuda-unavailable", "JAX 0.4.30"),
        ({"jax": "0.5.3", "cuda": "11.8"}, "cuda-mismatch", "remove the pin"),
        ({"jax": "0.5.3", "cuda": "12.2"}, "cuda-mismatch", "remove the pin"),
        ({"jax": "0.5.3", "cuda": "13"}, "cuda-mismatch", "which is for CUDA 13"),
        ({"jax": "0.5.3", "cudnn": "9.8"}, "cudnn-mismatch", "remove cudnn"),
        (
            {"jax": "0.5.3", "cuda": "local", "cudnn": "8.9"},
            "cudnn-mismatch",
            "set it to cuDNN 9.1",
        ),
        ({"pytorch": "2.6.0", "cudnn": "9.2"}, "cudnn-mismatch", "remove cudnn"),
        ({"pytorch": "2.6.0", "python": "3.8"}, "python-unavailable", "declare PyTorch 2.4.1"),
        ({"jax": "0.12.0", "python": "3.11"}, "python-unavailable", "declare JAX 0.10.2"),
        ({"pytorch": "9.9"}, "unknown-release", 'such as "2.15.0"'),
    ],
)
def test_what_cannot_be(entry: dict[str, str], code: str, remedy: str) -> None:
    problem = refusal(declaration(entry))
    assert problem["code"] == code
    assert remedy in problem["remedy"]


def test_a_pinned_cudnn_that_the_wheels_have_fits() -> None:
    assert stack({"pytorch": "2.6.0", "cudnn": "9.1"})["cudnn"] == "9.1.0.70"


def test_jax_from_pip_keeps_to_the_cudnn_of_its_build() -> None:
    found = stack({"jax": "0.4.25"})
    assert found["requirements"][:2] == ["jax[cuda12]==0.4.25", "nvidia-cudnn-cu12>=8.9,<9"]
    # A newer cuDNN has no code for the older GPUs that the plugin has code for.
    assert "nvidia-cudnn-cu12>=9.8,<9.11" in stack({"jax": "0.8.0"})["requirements"]
    newer = stack({"jax": "0.8.0", "cuda": "13"})
    assert newer["requirements"] == [
        "jax[cuda13]==0.8.0",
        "nvidia-cudnn-cu13>=9.12,<10",
        "nvidia-cuda-cupti<13.2",
    ]
    assert (newer["cuda_source"], newer["driver_min"]) == ("pip", "580")
    assert newer["lock"].startswith("jax-0.8.0-cuda13-py")


@pytest.mark.parametrize(
    ("cuda", "toolkit", "cudnn"),
    [
        ("local", "12.3.2", "9.1.1.17"),
        ("12.8", "12.8.2", "9.1.1.17"),
        ("12.5.1", "12.5.1", "9.1.1"),
    ],
)
def test_jax_on_a_toolkit(cuda: str, toolkit: str, cudnn: str) -> None:
    plan = resolve(declaration({"jax": "0.5.3", "cuda": cuda}))
    assert plan["problems"] == []
    (found,), (tree,), (library,) = plan["stacks"], plan["toolkits"], plan["cudnn"]
    assert (tree["version"], found["toolkit_path"]) == (toolkit, tree["path"])
    assert library["version"].startswith(cudnn)
    assert (found["cuda_source"], found["cuda"]) == ("toolkit", tree["short"])
    assert found["requirements"] == ["jax[cuda12-local]==0.5.3", "nvidia-nccl-cu12>=2.18.1"]
    assert {*found["sonames"]} == {*tree["sonames"], "libcudnn.so.9", "libnccl.so.2"} - {
        "libcurand.so.10"
    }
    assert "libcupti.so.12" in found["sonames_optional"]
    assert found["lock"].startswith("jax-0.5.3-cuda-local-py")


def test_one_toolkit_serves_tensorflow_and_jax() -> None:
    plan = resolve(declaration("2.18.1", {"jax": "0.5.3", "cuda": "12.5"}, {"pytorch": "2.6.0"}))
    assert plan["problems"] == []
    (tree,) = plan["toolkits"]
    assert tree["because"] == ["tensorflow-2.18.1", "jax-0.5.3"]
    assert [each["toolkit_path"] for each in plan["stacks"]] == [tree["path"], tree["path"], None]


@pytest.mark.parametrize(
    ("entry", "gpu", "code"),
    [
        ({"pytorch": "2.6.0"}, "K80", "gpu-too-old"),
        ({"pytorch": "2.0.1"}, "K80", None),
        ({"pytorch": "2.15.0"}, "V100", "gpu-too-old"),
        ({"pytorch": "2.6.0"}, "B200", "gpu-too-new"),  # no PTX in the wheel
        ({"pytorch": "2.8.0"}, "B200", None),
        ({"pytorch": "1.0.0"}, "A100", "gpu-too-new"),  # the cuBLAS inside is older than the GPU
        ({"jax": "0.5.3"}, "K80", "gpu-too-old"),
        ({"jax": "0.5.3"}, "B200", None),  # by PTX
        ({"jax": "0.5.3", "cuda": "local"}, "B200", "gpu-too-new"),  # not with CUDA 12.3
        ({"jax": "0.8.0", "cuda": "13"}, "V100", "gpu-too-old"),
        ({"jax": "0.4.28"}, "B200", "gpu-too-new"),  # cuDNN 8
        ({"jax": "0.4.28"}, "H100", None),
        ({"jax": "0.4.29"}, "B200", None),  # cuDNN 9
        (
            {"pytorch": "2.6.0", "cuda": "11.8", "index": f"{PYTORCH_INDEX}/cu118"},
            "K80",
            "gpu-too-old",
        ),  # the build has code for it, its cuDNN 9.1 has not
        ({"pytorch": "2.3.1", "cuda": "11.8", "index": f"{PYTORCH_INDEX}/cu118"}, "K80", None),
    ],
)
def test_gpus(entry: dict[str, str], gpu: str, code: str | None) -> None:
    found = codes(resolve(declaration(entry, gpu_gpus=[gpu])))
    assert found == ([code] if code else [])


@pytest.mark.parametrize(
    ("entry", "glibc", "need"),
    [
        ({"pytorch": "2.7.0"}, "2.27", "2.28"),
        ({"pytorch": "1.13.1"}, "2.16", "2.17"),  # its tag promises 2.5
        ({"jax": "0.12.0.1"}, "2.26", "2.27"),
    ],
)
def test_glibc(entry: dict[str, str], glibc: str, need: str) -> None:
    host = with_pythons("3.11", "3.12")
    host["sections"]["os"]["data"]["glibc"] = glibc
    problem = refusal(declaration(entry), host)
    assert problem["code"] == "glibc"
    assert f"needs glibc {need}" in problem["message"]
    host["sections"]["os"]["data"]["glibc"] = need
    assert resolve(declaration(entry), host)["problems"] == []


def test_a_driver_that_is_too_old_for_the_wheels() -> None:
    problem = refusal(declaration({"pytorch": "2.6.0"}, gpu_driver={"branch": "470"}))
    assert (problem["code"], problem["where"]) == ("driver-too-old", "gpu_driver.branch")
    assert (
        resolve(declaration({"pytorch": "2.6.0"}, gpu_driver={"branch": "535"}))["problems"] == []
    )
    assert codes(resolve(declaration({"pytorch": "2.15.0"}, gpu_driver={"branch": "535"}))) == [
        "driver-too-old"
    ]


def test_wheels_need_no_licence_and_a_toolkit_does() -> None:
    assert resolve({"gpu_stacks": [{"pytorch": "2.6.0"}, {"jax": "0.5.3"}]})["problems"] == []
    problem = refusal({"gpu_stacks": [{"jax": "0.5.3", "cuda": "local"}]})
    assert problem["code"] == "eula-not-accepted"


@pytest.mark.parametrize(("cudnn", "refused"), [("9.19", []), ("9.24", ["cudnn-clash"])])
def test_a_newer_cudnn_in_the_linker_cache_would_be_mixed_into_a_torch_that_lacks_a_library(
    cudnn: str, refused: list[str]
) -> None:
    toolkits = [{"cuda": "13.0", "cudnn": cudnn}]
    plan = resolve(declaration({"pytorch": "2.13.0"}, gpu_toolkits=toolkits))
    assert codes(plan) == refused
    assert any("libcudnn_engines_tensor_ir.so.9" in note for note in plan["notes"])
    assert codes(resolve(declaration({"pytorch": "2.14.1"}, gpu_toolkits=toolkits))) == []
    variant = {"pytorch": "2.12.0", "cuda": "13.2", "index": f"{PYTORCH_INDEX}/cu132"}
    assert codes(resolve(declaration(variant, gpu_toolkits=toolkits))) == refused


def test_two_stacks_of_one_name_are_refused_across_frameworks() -> None:
    both = declaration({"pytorch": "2.6.0", "name": "vision"}, {"jax": "0.5.3", "name": "vision"})
    assert codes(resolve(both)) == ["stack-name-clash"]


def test_modules_of_different_frameworks_do_not_clash() -> None:
    plan = resolve(
        declaration(
            "2.18.1",
            {"pytorch": "2.6.0"},
            {"jax": "0.5.3", "name": "vision"},
            {"pytorch": "2.6.0", "name": "pytorch-vision"},
            gpu_jupyter_kernels=True,
        )
    )
    assert plan["problems"] == []
    texts = {row["path"]: row["text"] for row in plan["environment"]}
    folder = "/opt/gpufleet/modulefiles"
    assert "PyTorch 2.6.0, CUDA 12.4 in" in texts[f"{folder}/pytorch/2.6.0"]
    assert "conflict jax pytorch tensorflow\n" in texts[f"{folder}/jax/vision"]
    assert "conflict tensorflow\n" in texts[f"{folder}/tensorflow/2.18.1"]
    assert f"{folder}/pytorch/vision" in texts
    kernel = texts["/usr/local/share/jupyter/kernels/pytorch-2.6.0/kernel.json"]
    assert re.search(r'"display_name": "PyTorch 2.6.0, CUDA 12.4"', kernel)


def test_plain_names_inside_of_a_wheel_are_loaded_first() -> None:
    assert stack({"pytorch": "1.12.1"})["sonames"] == ["libcublasLt.so.10", "libcublas.so.10"]
    assert stack({"pytorch": "1.11.0"})["sonames"] == []


def test_a_cudnn_without_code_for_the_gpu_is_refused_in_a_toolkit() -> None:
    entry = {"jax": "0.8.0", "cuda": "12.9", "cudnn": "9.12"}
    assert codes(resolve(declaration(entry, gpu_gpus=["V100"]))) == ["gpu-too-old"]
    assert codes(resolve(declaration(entry, gpu_gpus=["T4"]))) == []


@pytest.mark.parametrize(
    ("version", "gpus", "bound"),
    [
        ("2.21.0", ["V100"], True),
        ("2.21.0", ["T4", "P100"], True),
        ("2.21.0", ["T4"], False),
        ("2.21.0", [], False),
        ("2.19.0", ["V100"], False),  # an exact cuDNN 9.3
    ],
)
def test_the_wheels_of_tensorflow_keep_a_cudnn_for_an_older_gpu(
    version: str, gpus: list[str], bound: bool
) -> None:
    """Hosts with newer GPUs keep the lock that they have, by its name and what it is for."""
    found = stack({"tensorflow": version, "cuda": "pip"}, gpu_gpus=gpus)
    assert ("nvidia-cudnn-cu12<9.11" in found["requirements"]) is bound
    own = "cuda-pip-older-gpu" if bound else "cuda-pip"
    assert found["lock"] == f"tensorflow-{version}-{own}-py{found['python']}.lock"


@pytest.mark.parametrize(
    ("entry", "gpu", "remedy"),
    [
        (
            {"pytorch": "2.7.0"},
            "B200",
            f'add cuda: "12.8" and index: {PYTORCH_INDEX}/cu128, for the same release; or declare another'
            " release: the first PyTorch built for it is 2.8.0",
        ),
        (
            {"pytorch": "2.8.0"},
            "P100",
            f'add cuda: "12.6" and index: {PYTORCH_INDEX}/cu126, for the same release; or declare another'
            " release: the newest PyTorch built for it is 2.7.1",
        ),
        (
            {"pytorch": "2.8.0", "cuda": "12.6", "index": f"{PYTORCH_INDEX}/cu126"},
            "B200",
            "remove cuda and index: the wheel on PyPI has CUDA 12.8; or declare",
        ),
        (
            {"jax": "0.8.0", "cuda": "13"},
            "V100",
            "remove cuda: the wheel on PyPI has CUDA 12.9; or",
        ),
        ({"pytorch": "2.6.0"}, "K80", "the newest PyTorch built for it is 2.0.1"),
    ],
)
def test_the_same_release_for_another_cuda_serves_a_gpu(
    entry: dict[str, str], gpu: str, remedy: str
) -> None:
    assert refusal(declaration(entry, gpu_gpus=[gpu]))["remedy"].startswith(remedy)


def test_that_remedy_is_accepted() -> None:
    for version, cuda, gpu in (("2.7.0", "12.8", "B200"), ("2.8.0", "12.6", "P100")):
        index = f"{PYTORCH_INDEX}/cu{cuda.replace('.', '')}"
        entry = {"pytorch": version, "cuda": cuda, "index": index}
        assert codes(resolve(declaration(entry, gpu_gpus=[gpu]))) == []


def test_nvrtc_inside_of_an_old_wheel_can_be_given_other_builtins() -> None:
    for entry, there in (
        ({"pytorch": "1.11.0"}, True),
        ({"pytorch": "1.12.1"}, True),
        ({"pytorch": "1.13.1"}, False),
        ({"jax": "0.5.3"}, False),
    ):
        notes = resolve(declaration(entry))["notes"]
        assert any("libnvrtc-builtins.so by that name" in note for note in notes) is there


def test_what_a_release_needs_less_of_today_is_required() -> None:
    assert "scipy<1.13" in stack({"jax": "0.4.23"})["requirements"]
    assert "scipy<1.13" not in stack({"jax": "0.4.24"})["requirements"]


@pytest.mark.parametrize(
    ("version", "cuda", "chosen"),
    [
        ("0.6.1", "12.9", "9.8.0"),
        ("0.6.2", "12.8", "9.8.0"),
        ("0.6.2", "12.9", "9.10.2"),
        ("0.11.1", "12.9", "9.10.2"),
        ("0.11.2", "12.9", "9.10.2"),
        ("0.11.1", "13.0", "9.12.0"),
    ],
)
def test_jax_on_cuda_12_9_gets_a_cudnn_that_it_accepts_with_several_gpus(
    version: str, cuda: str, chosen: str
) -> None:
    (library,) = resolve(declaration({"jax": version, "cuda": cuda}))["cudnn"]
    assert library["short"] == chosen


@pytest.mark.parametrize(
    ("pin", "fits"),
    [
        ("9.8", False),
        ("9.10.0", False),
        ("9.10.1", False),
        ("9.10.2", True),
        ("9.10", True),
        ("9.12", True),
    ],
)
def test_a_pinned_cudnn_that_jax_refuses_on_cuda_12_9(pin: str, fits: bool) -> None:
    plan = resolve(declaration({"jax": "0.8.0", "cuda": "12.9", "cudnn": pin}))
    assert codes(plan) == ([] if fits else ["cudnn-mismatch"])
    if not fits:
        assert "older than 9.10.2 with CUDA 12.9" in plan["problems"][0]["message"]
        assert "9.10.2" in plan["problems"][0]["remedy"]


@pytest.mark.parametrize(
    ("entry", "pin", "other"),
    [
        ({"jax": "0.7.0", "cuda": "12.9"}, "9.10.0", "0.6.1"),  # 0.6.2 to 0.11.1 refuse it
        ({"jax": "0.8.0", "cuda": "12.9"}, "9.8", "0.6.1"),
    ],
)
def test_the_release_for_a_pinned_cudnn_takes_it(
    entry: dict[str, str], pin: str, other: str
) -> None:
    problem = refusal(declaration({**entry, "cudnn": pin}))
    assert problem["remedy"].endswith(f"; with cuDNN {pin}, use JAX {other}")
    assert codes(resolve(declaration({**entry, "jax": other, "cudnn": pin}))) == []


def test_another_pin_of_the_toolkit_must_suit_jax_too() -> None:
    toolkits = [{"cuda": "12.9", "cudnn": "9.8"}]
    assert "cudnn-mismatch" in codes(
        resolve(declaration({"jax": "0.8.0", "cuda": "12.9"}, gpu_toolkits=toolkits))
    )


@pytest.mark.parametrize(
    ("cuda", "index", "remedy"),
    [
        (None, "cu118", 'add cuda: "11.8", or remove index: the wheel on PyPI has CUDA 12.4'),
        (None, "cu124/", "remove index: the wheel on PyPI has CUDA 12.4"),
        ("12.4", "cu126", 'set cuda: "12.6", or remove index'),
        ("11.8", "cu126", f'set cuda: "12.6", or set index: {PYTORCH_INDEX}/cu118'),
        ("11.8", "nightly/cu126", f'set cuda: "12.6", or set index: {PYTORCH_INDEX}/cu118'),
        ("11.8", "cu118/", None),
        ("11.8", "", None),
    ],
)
def test_an_index_of_pytorch_for_one_cuda_is_that_of_the_stack(
    cuda: str | None, index: str, remedy: str | None
) -> None:
    entry = {"pytorch": "2.6.0", "cuda": cuda, "index": f"{PYTORCH_INDEX}/{index}"}
    plan = resolve(declaration(entry))
    if remedy is None:
        assert plan["problems"] == []
        return
    (problem,) = plan["problems"]
    assert (problem["code"], problem["where"]) == ("cuda-mismatch", "gpu_stacks[0].index")
    assert problem["remedy"].startswith(remedy)


def test_a_mirror_under_another_address_may_have_any_name() -> None:
    entry = {"pytorch": "2.6.0", "cuda": "11.8", "index": "https://mirror.example.org/whl/cu126"}
    assert resolve(declaration(entry))["problems"] == []


def test_a_variant_takes_as_much_space_as_the_wheels_of_its_release() -> None:
    for version, cuda in (("1.13.1", "11.6"), ("2.6.0", "11.8")):
        index = f"{PYTORCH_INDEX}/cu{cuda.replace('.', '')}"
        variant = stack({"pytorch": version, "cuda": cuda, "index": index})
        assert variant["installed_mib"] == stack({"pytorch": version})["installed_mib"]
    plain, plugin = {"jax": "0.8.0", "cuda": "local"}, {"jax": "0.8.0"}
    assert stack(plain)["installed_mib"] < stack(plugin)["installed_mib"]


def test_the_reason_is_the_cudnn_of_a_build() -> None:
    entry = {"pytorch": "2.6.0", "cuda": "11.8", "index": f"{PYTORCH_INDEX}/cu118"}
    problem = refusal(declaration(entry, gpu_gpus=["K80"]))
    assert "cuDNN 9.1.0.70 of PyTorch 2.6.0, which supports 5.0 and newer" in problem["message"]
    assert "PyTorch built for it is 2.0.1" in problem["remedy"]
    problem = refusal(declaration({"jax": "0.4.28"}, gpu_gpus=["B200"]))
    assert "cuDNN 8 of JAX 0.4.28, whose support ends at 9.0" in problem["message"]


@pytest.mark.parametrize("version", ["1.0.0", "1.0.1", "1.1.0"])
def test_a_variant_whose_wheel_cannot_be_distinguished_from_that_of_pypi(version: str) -> None:
    entry = {"pytorch": version, "cuda": "10.0", "index": f"{PYTORCH_INDEX}/cu100"}
    problem = refusal(declaration(entry))
    assert problem["code"] == "wheel-unavailable"
    assert "cannot tell it from PyPI's" in problem["message"]
    assert "declare PyTorch" in problem["remedy"]
