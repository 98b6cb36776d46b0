"""A toolkit by itself: each stage on stand-ins that compute, and each way in which one goes wrong.

What the real NVRTC compiles without a GPU is tried on lab hosts.
"""

from __future__ import annotations

import array
import ast
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpufleet.on_host import payload
from gpufleet.on_host.constants import COMPUTE_MARK
from gpufleet.on_host.holders import OWN_RUN
from gpufleet.on_host.host import Host
from gpufleet.on_host.sections.compute import section_compute
from gpufleet.workload import toolkit_run
from gpufleet.workload.entries import RUNNING
from gpufleet.workload.exactness import ExactProduct
from gpufleet.workload.toolkit_run import through_toolkit
from tests.support import stand_ins
from tests.support.planted_host import interpreter
from tests.support.toolkit_run import SCRIPT, Document, run

pytestmark = pytest.mark.costly

# The stage of the compiler by itself, on two GPUs.
NVRTC = ("--stage", "nvrtc", "--gpus", "2")


def test_it_is_written_for_python_3_6() -> None:
    for text in (SCRIPT, *payload.sources("workload").values()):
        ast.parse(text, feature_version=(3, 6))


@pytest.mark.parametrize("minor", [6, 8, 13])
def test_it_runs_on_old_and_new_pythons(libraries: tuple[Path, Path], minor: int) -> None:
    found = run(libraries, gpus=1, python=interpreter(minor))
    assert found["state"] == "ok"
    assert [found[part][0]["wrong"] for part in ("cublas", "cudnn")] == [0, 0]
    assert found["nvrtc"]["ran"][0]["wrong"] == 0


class TestNumbers:
    """The check without numpy demands the same as the one with it."""

    N = 40

    @pytest.fixture
    def exact(self) -> Any:
        return ExactProduct(self.N)

    def product(self, a: Any, b: Any) -> Any:
        n = range(self.N)
        return array.array(
            "f",
            [float(sum(a[i * self.N + k] * b[k * self.N + j] for k in n)) for i in n for j in n],
        )

    def test_a_right_product_is_accepted(self, exact: Any) -> None:
        assert exact.wrong_rows(self.product(exact.a, exact.b)) == 0

    def test_tf32_and_float32_hold_the_operands_and_products_exactly(self, exact: Any) -> None:
        def rounded(numbers: Any) -> Any:
            """The part of a float32 that TF32 keeps: ten bits behind the first."""
            raw = array.array("I", numbers.tobytes())
            return array.array(
                "f", array.array("I", [(word + 0x1000) & 0xFFFFE000 for word in raw]).tobytes()
            )

        a, b = (rounded(operand) for operand in exact.operands)
        assert [a, b] == exact.operands
        assert exact.wrong_rows(self.product(a, b)) == 0

    @pytest.mark.parametrize(
        "value", [1, -1, 0.5, 1e-30, float("nan"), float("inf"), float("-inf"), 1e38]
    )
    def test_one_wrong_element_is_seen(self, exact: Any, value: float) -> None:
        c = self.product(exact.a, exact.b)
        # What would vanish in a sum stands in its place.
        c[7] = value if c[7] + value == c[7] else c[7] + value
        assert exact.wrong_rows(c) == 1

    def test_zeros_transposed_and_misshapen_products_are_rejected(self, exact: Any) -> None:
        a, b, n = exact.a, exact.b, self.N
        turned = array.array("b", [a[j * n + i] for i in range(n) for j in range(n)])
        assert exact.wrong_rows(array.array("f", [0.0]) * n**2) > n - 4
        assert exact.wrong_rows(self.product(b, a)) > n - 4
        assert exact.wrong_rows(self.product(turned, b)) > n - 4
        assert exact.wrong_rows(self.product(a, b)[:-1]) == n
        assert exact.wrong_rows(array.array("f")) == n

    def test_the_operands_are_small_and_differ(self, exact: Any) -> None:
        assert set(exact.a) <= set(range(-8, 9))
        assert len(set(exact.a)) > 10
        assert exact.a != exact.b


@pytest.fixture(scope="module")
def found(libraries: tuple[Path, Path]) -> Document:
    """A run on two cards on which everything is right."""
    return run(libraries)


class TestHealthy:
    """Two cards on which everything is right."""

    def test_it_ran_to_its_end(self, found: Document) -> None:
        assert (found["state"], found["error"]) == ("ok", None)

    def test_the_devices_figures(self, found: Document) -> None:
        driver = dict(found["driver"])
        assert 0 <= driver.pop("cuinit_s") < 60
        assert driver == {"cuinit": 0, "version": "12.2", "error": None}
        assert found["devices"][1] == {
            "index": 1,
            "uuid": "GPU-02020202-0202-0202-0202-020202020202",
            "address": "0000:01:00.0",
            "name": "Stand-in GPU",
            "compute_capability": "7.5",
            "memory_mib": 8192,
            "free_mib": 8000,
            "sm_count": 20,
            "clock_mhz": 1500,
            "memory_clock_mhz": 5000,
            "memory_bus_bits": 256,
            "l2_kib": 4096,
            "warp_size": 32,
        }

    def test_cublas_is_exact_and_timed_on_each(self, found: Document) -> None:
        assert [
            (row["gpu"], row["n"], row["wrong"], row["error"], row["busy"])
            for row in found["cublas"]
        ] == [(0, 48, 0, None, None), (1, 48, 0, None, None)]
        assert all(row["tflops"] > 0 and row["first_s"] > 0 for row in found["cublas"])

    def test_nvrtc_compiles_and_its_kernel_runs_on_each(self, found: Document) -> None:
        nvrtc = found["nvrtc"]
        assert (nvrtc["version"], nvrtc["arch"], nvrtc["ptx"], nvrtc["error"]) == (
            "12.2",
            "sm_52",
            True,
            None,
        )
        assert nvrtc["ran"] == [
            {"gpu": gpu, "arch": "sm_75", "wrong": 0, "error": None} for gpu in (0, 1)
        ]

    def test_cudnn_convolves_exactly_on_each(self, found: Document) -> None:
        assert found["cudnn"] == [
            {
                "gpu": gpu,
                "soname": "libcudnn.so.8",
                "version": "8.9.7",
                "wrong": 0,
                "busy": None,
                "error": None,
            }
            for gpu in (0, 1)
        ]

    def test_what_is_mapped_is_the_toolkits(
        self, found: Document, libraries: tuple[Path, Path]
    ) -> None:
        # Compute capability 7.5 has no FP8, for which alone cuBLASLt is opened.
        assert found["mapped"] == sorted(
            str(libraries[0] / "lib64" / name)
            for part, name in stand_ins.TOOLKIT.items()
            if part != "cublasLt"
        )

    def test_what_was_not_asked_is_null(self, found: Document) -> None:
        assert (found["bandwidth"], found["peer"], found["sustained"]) == (None, None, None)


@pytest.mark.parametrize("how", ["wrong", "zeros", "transposed"])
def test_a_wrong_product_is_counted(libraries: tuple[Path, Path], how: str) -> None:
    found = run(libraries, cublas=how)
    assert found["state"] == "ok"
    least = 1 if how == "wrong" else 40
    assert all(row["wrong"] >= least and row["error"] is None for row in found["cublas"])
    assert [row["wrong"] for row in found["cudnn"]] == [0, 0]


@pytest.mark.parametrize(
    ("stage", "key"), [("cublas", "cublas"), ("cudnn", "cudnn"), ("nvrtc", "nvrtc")]
)
def test_a_stage_that_crashes_loses_only_itself(
    libraries: tuple[Path, Path], stage: str, key: str
) -> None:
    found = run(libraries, **{stage: "crash"})
    assert found["state"] == "failed"
    first = found[key] if key == "nvrtc" else found[key][0]
    assert first["error"].startswith("killed by SIGSEGV")
    others = {"cublas", "cudnn"} - {key}
    assert all(row["wrong"] == 0 for other in others for row in found[other])


def test_what_comes_after_a_crash_on_the_first_gpu_says_so(libraries: tuple[Path, Path]) -> None:
    rows = run(libraries, kernel="crash")["nvrtc"]["ran"]
    assert [row["error"] for row in rows] == [
        "killed by SIGSEGV",
        "it was not tried, since before it: killed by SIGSEGV",
    ]


def test_a_stage_that_hangs_is_abandoned(libraries: tuple[Path, Path]) -> None:
    found = run(libraries, "--deadline", "80", cublas="hang", gpus=1)
    assert found["state"] == "hung"
    assert found["cublas"][0]["error"].startswith("no answer within")
    assert found["cublas"][0]["hung"]
    assert found["cudnn"][0]["wrong"] == 0


def test_the_own_error_of_a_stage_that_does_not_end_is_no_missing_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error = "libnvrtc.so.11.2: cannot open shared object file"
    ended = ({"error": error, "mapped": []}, "no answer within 4 s", True)
    monkeypatch.setattr(toolkit_run, "in_process", lambda *_: ended)
    stages = toolkit_run.Run(SimpleNamespace(toolkit="/usr/local/cuda-11.8", deadline=60, budget=1))
    monkeypatch.setattr(stages, "report", lambda **_: None)
    found = stages.stage("nvrtc", {"ran": [], "error": RUNNING})
    assert (found["error"], found["hung"], stages.ended) == (error, False, "hung")


@pytest.mark.parametrize(
    ("reported", "error"),
    [
        ({"cublas": 1}, "cublasCreate_v2 returned 1 CUBLAS_STATUS_NOT_INITIALIZED"),
        ({"cublas": 3}, "cublasCreate_v2 returned 3 CUBLAS_STATUS_ALLOC_FAILED"),
        ({"cuda": 2}, "cudaSetDevice returned 2 cudaErrorMemoryAllocation"),
        ({"cuda": 35}, "cudaSetDevice returned 35 cudaErrorInsufficientDriver"),
    ],
)
def test_what_cublas_and_the_runtime_refuse_is_named_by_name(
    libraries: tuple[Path, Path], reported: dict[str, int], error: str
) -> None:
    found = run(libraries, gpus=1, **reported)
    assert (found["cublas"][0]["wrong"], found["cublas"][0]["error"]) == (None, error)
    assert found["state"] == "ok"


def test_a_gpu_whose_memory_is_held_is_busy_and_not_computed_on(
    libraries: tuple[Path, Path],
) -> None:
    found = run(libraries, free_mib=300)
    assert [(row["busy"], row["wrong"], row["error"]) for row in found["cublas"]] == [
        ({"free_mib": 300, "wanted_mib": 1024}, None, None),
        (None, 0, None),
    ]
    assert found["cudnn"][0]["busy"] == {"free_mib": 300, "wanted_mib": 1024}
    found = run(libraries, "--budget", "200", free_mib=300, gpus=1)
    assert found["cublas"][0]["wrong"] == 0


def test_a_driver_that_refuses_leaves_the_compiler(libraries: tuple[Path, Path]) -> None:
    found = run(libraries, "--expect-gpus", "1", cuinit=803)
    assert found["driver"] == {
        "cuinit": 803,
        "cuinit_s": found["driver"]["cuinit_s"],
        "version": "12.2",
        "error": "cuInit returned 803 CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
    }
    assert found["devices"] == []
    assert found["cublas"] == []
    assert found["nvrtc"]["ptx"]


def test_a_declared_gpu_that_is_not_there_has_no_entry(libraries: tuple[Path, Path]) -> None:
    found = run(libraries, "--expect-gpus", "2", gpus=1)
    for part in ("cublas", "cudnn"):
        assert [(row["gpu"], row["error"]) for row in found[part]] == [(0, None)]


def test_where_no_gpu_is_declared_none_is_touched(libraries: tuple[Path, Path]) -> None:
    found = run(libraries, "--expect-gpus", "0")
    assert (found["driver"]["cuinit"], found["devices"], found["cublas"], found["cudnn"]) == (
        None,
        [],
        [],
        [],
    )
    assert (found["state"], found["nvrtc"]["ptx"], found["nvrtc"]["ran"]) == ("ok", True, [])


def test_a_kernel_that_computes_wrong_is_counted(libraries: tuple[Path, Path]) -> None:
    found = run(libraries, *NVRTC, kernel="wrong")
    assert [row["wrong"] for row in found["nvrtc"]["ran"]] == [1, 1]


def test_ptx_does_where_the_compiler_does_not_know_the_gpu(libraries: tuple[Path, Path]) -> None:
    found = run(libraries, *NVRTC, ptx="1")
    assert found["nvrtc"]["ran"][0] == {"gpu": 0, "arch": "compute_75", "wrong": 0, "error": None}


def test_a_compiler_that_fails_is_reported(libraries: tuple[Path, Path]) -> None:
    found = run(libraries, "--expect-gpus", "0", nvrtc="compilation")
    assert found["nvrtc"]["error"] == "nvrtcCompileProgram returned 6 NVRTC_ERROR_COMPILATION"
    assert not found["nvrtc"]["ptx"]


def test_cudnn_that_refuses_or_errs_is_reported(libraries: tuple[Path, Path]) -> None:
    refused = run(libraries, cudnn=1, gpus=1)["cudnn"][0]
    assert refused["error"] == "cudnnCreate returned 1 CUDNN_STATUS_NOT_INITIALIZED"
    assert refused["version"] == "8.9.7"
    library = str(libraries[0] / "lib64" / stand_ins.TOOLKIT["cudnn"])
    words = ("--stage", "cudnn", "--gpu", "0", "--cudnn", library)
    assert run(libraries, *words, cudnn="wrong")["cudnn"][0]["wrong"] == 1


def test_a_missing_library_is_named_by_name(tmp_path: Path, libraries: tuple[Path, Path]) -> None:
    (tmp_path / "lib64").mkdir()
    found = run((tmp_path, libraries[1]), gpus=1)
    assert found["cublas"][0]["error"] == f"there is no libcudart.so.* in {tmp_path}"
    assert found["nvrtc"]["error"] == f"there is no libnvrtc.so.* in {tmp_path}"


def test_gpus_are_held_ready_from_the_driver_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia0").touch()
    (tmp_path / "nvidia1").mkdir()  # one that cannot be opened
    device = {"address": "0000:00:00.0"}
    held: dict[str, list[str]] = {}
    deadlines = {}

    def stage(options: Any, name: str, deadline_s: float, more: Any) -> Any:
        links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        held[name] = [link.readlink().name for link in links if link.readlink().parent == tmp_path]
        deadlines[name] = deadline_s
        silent = {"cuinit": 0, "version": "12.2", "error": None}
        return ({"driver": silent, "devices": [device]} if name == "driver" else {}), None, False

    monkeypatch.setattr(toolkit_run, "NODES", str(tmp_path / "nvidia[0-9]*"))
    monkeypatch.setattr(toolkit_run, "in_process", stage)
    options = SimpleNamespace(
        toolkit=str(tmp_path),
        expect_gpus="any",
        size=None,
        deep=False,
        once=False,
        sustained=120,
        deadline=100,
    )
    through_toolkit(options)
    assert held == {
        "driver": [],
        "nvrtc": ["nvidia0"],
        "cublas": ["nvidia0"],
        "formats": ["nvidia0"],
    }
    # The first stage alone may have to wait for each GPU to be initialised.
    assert deadlines["driver"] == pytest.approx(80, abs=2)


class TestSection:
    """The probe's section of it."""

    def section(self, home: Path, script: str, seconds: float = 10, **config: Any) -> Document:
        settings = {
            "mode": "full",
            "matmul": script,
            "prefix": str(home),
            "expect_gpus": 0,
            "state_dir": "/nonexistent",
            "tmpdir": str(home),
            **config,
        }
        found: Document = section_compute(Host(settings, seconds))
        return found

    def test_each_toolkit_is_tried(self, libraries: tuple[Path, Path]) -> None:
        toolkit = libraries[0]
        found = self.section(toolkit.parent, SCRIPT)
        (run,) = found["runs"]
        assert found["deep"] is False
        assert (run["toolkit"], run["state"], run["nvrtc"]["ptx"]) == (str(toolkit), "ok", True)
        assert run["mapped"] == [str(toolkit / "lib64/libnvrtc.so.12")]
        assert (run["cublas"], run["sustained"]) == ([], None)
        assert not list(toolkit.parent.glob("gpufleet-*"))

    def test_without_a_driver_no_gpu_has_an_entry(self, libraries: tuple[Path, Path]) -> None:
        (run,) = self.section(libraries[0].parent, SCRIPT, expect_gpus=2)["runs"]
        assert "libcuda.so.1" in run["driver"]["error"]
        assert run["cublas"] == []

    def test_in_mode_facts_nothing_is_tried(self, libraries: tuple[Path, Path]) -> None:
        found = self.section(libraries[0].parent, SCRIPT, mode="facts")
        assert found == {"deep": False, "runs": []}

    def test_a_run_that_hangs_or_crashes_is_its_own_finding(
        self, libraries: tuple[Path, Path]
    ) -> None:
        home = libraries[0].parent
        reported = COMPUTE_MARK + json.dumps({"state": "failed", "error": "stopped"})
        output = f"print({reported!r}, flush=True)"
        (hung,) = self.section(home, f"{output}\nimport time\ntime.sleep(60)", 3)["runs"]
        assert (hung["state"], hung["nvrtc"]) == ("hung", None)
        assert hung["error"].startswith("stopped, no answer within")
        (died,) = self.section(home, f"{output}\nimport os\nos.abort()")["runs"]
        assert (died["state"], died["error"]) == ("failed", "stopped, killed by SIGABRT")

    def test_what_the_probe_runs_itself_holds_no_gpu(self) -> None:
        assert OWN_RUN.search("python3\0-I\0/tmp/gpufleet-a1b2/matmul.py\0--toolkit\0")
        assert OWN_RUN.search("python3\0/gpufleet/matmul.py\0--expect-gpus\0")
        assert not OWN_RUN.search("python3\0/home/ann/matmul.py\0")
