"""Random products on which GPUs agree: the kernel's formats, and runs on stand-ins that compute."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from gpufleet.workload import consensus
from gpufleet.workload.consensus import FORMATS, LEAST_SUMS, NAMES, chosen, source
from tests.support.toolkit_run import Document, run

HOPPER = {"capability": 90, "nvrtc_version": 1209}


def rows(libraries: tuple[Path, Path], gpu: int, **reported: str | int) -> dict[str, Document]:
    """The result of each format on one GPU."""
    found = run(
        libraries, "--stage", "consensus", "--gpu", str(gpu), "--seconds", "0.02", **reported
    )
    return {row["format"]: row for row in found["consensus"]}


def test_gpus_agree_in_each_format_in_a_whole_run(libraries: tuple[Path, Path]) -> None:
    found = run(libraries, "--once", **HOPPER)
    assert found["state"] == "ok"
    assert [(row["gpu"], row["format"]) for row in found["consensus"]] == [
        (gpu, name) for gpu in (0, 1) for name in NAMES
    ]
    for row in found["consensus"]:
        assert (row["wrong"], row["error"], row["not_applicable"], row["busy"]) == (
            0,
            None,
            None,
            None,
        )
        assert all(len(each) == 16 for each in row["sums"])
    of = {(row["gpu"], row["format"]): row["sums"] for row in found["consensus"]}
    for name in NAMES:
        common = min(len(of[0, name]), len(of[1, name]))
        assert common >= LEAST_SUMS
        assert of[0, name][:common] == of[1, name][:common]
    # Each format has products of its own.
    assert len({of[0, name][0] for name in NAMES}) == len(NAMES)


def test_they_are_left_out_where_another_toolkit_computes_them(
    libraries: tuple[Path, Path],
) -> None:
    assert run(libraries, **HOPPER)["consensus"] is None


@pytest.fixture(scope="module")
def right(libraries: tuple[Path, Path]) -> dict[str, Document]:
    return rows(libraries, 0, **HOPPER)


@pytest.mark.parametrize("name", ["fp32", "int8", "fp8-e5m2"])
def test_a_flipped_bit_of_one_gpu_is_in_its_sums_of_that_format(
    libraries: tuple[Path, Path], right: dict[str, Document], name: str
) -> None:
    wrong = rows(libraries, 1, flip=f"1:{name}", **HOPPER)
    for each in NAMES:
        common = min(len(right[each]["sums"]), len(wrong[each]["sums"]))
        assert common >= LEAST_SUMS
        # Round 2 is the third: the sums after 1 and 2 rounds do not have it.
        assert right[each]["sums"][:2] == wrong[each]["sums"][:2]
        assert (right[each]["sums"][2:common] == wrong[each]["sums"][2:common]) == (each != name)
        # It is wrong each time, so it agrees with itself.
        assert wrong[each]["wrong"] == 0


def test_a_gpu_that_is_wrong_once_contradicts_itself(libraries: tuple[Path, Path]) -> None:
    found = rows(libraries, 1, flaky="1:bf16", **HOPPER)
    assert {name: row["wrong"] for name, row in found.items()} == {
        **dict.fromkeys(NAMES, 0),
        "bf16": 1,
    }


def test_what_the_gpu_or_nvrtc_lacks_is_not_applicable(libraries: tuple[Path, Path]) -> None:
    found = rows(libraries, 0, capability=75, nvrtc_version=1001)
    assert {name: row["not_applicable"] for name, row in found.items()} == {
        "fp32": None,
        "fp64": None,
        "fp16": "it needs NVRTC 10.2, this is 10.1",
        "int8": None,
        "tf32": "it needs compute capability 8.0, the GPU has 7.5",
        "bf16": "it needs compute capability 8.0, the GPU has 7.5",
        "fp8-e4m3": "it needs compute capability 8.9, the GPU has 7.5",
        "fp8-e5m2": "it needs compute capability 8.9, the GPU has 7.5",
    }
    assert found["tf32"]["sums"] == []


def test_an_error_of_the_launch_is_reported(libraries: tuple[Path, Path]) -> None:
    found = rows(libraries, 0, agree=719, **HOPPER)
    assert found["fp32"]["error"] == "cuLaunchKernel returned 719 CUDA_ERROR_OF_STAND_IN"
    assert found["fp32"]["sums"] == []


@pytest.mark.parametrize(
    ("name", "capability", "nvrtc", "least"),
    [
        ("fp64", (7, 5), (12, 9), (0, 0)),
        ("fp64", (8, 6), (12, 9), (8, 0)),
        ("fp16", (7, 0), (10, 1), (7, 0)),
        ("fp16", (7, 2), (12, 9), (7, 0)),
        ("fp16", (7, 5), (10, 2), (7, 5)),
        ("fp16", (12, 1), (13, 0), (8, 0)),
        ("int8", (6, 1), (8, 0), (6, 1)),
        ("int8", (9, 0), (11, 8), (8, 0)),
        ("int8", (6, 2), (12, 9), None),
        ("int8", (5, 2), (12, 9), None),
        ("bf16", (7, 5), (12, 9), None),
        ("fp8-e4m3", (9, 0), (12, 3), None),
        ("fp8-e4m3", (8, 9), (12, 4), (8, 9)),
    ],
)
def test_the_newest_instruction_that_both_have_is_chosen(
    name: str, capability: tuple[int, int], nvrtc: tuple[int, int], least: tuple[int, int] | None
) -> None:
    row, reason = chosen(name, capability, nvrtc)
    assert (row and row.least) == least
    assert (reason is None) == (least is not None)


def test_each_kernel_says_its_format_and_its_operands_are_those_of_its_instruction() -> None:
    for row in FORMATS:
        text = source(row)
        assert text.startswith(f"// {row.name}\n")
        numbers = row.numbers
        if "mma." in row.multiply:
            assert row.multiply.count("(d[") == numbers.d
            assert row.multiply.count("a[") == numbers.a
            assert row.multiply.count("b[") == numbers.b


# What the kernel needs of CUDA, for a C compiler. A thread of the GPU is one call here.
C_SHIM = """
#include <string.h>
#define __device__ static
#define __global__
typedef struct { unsigned x; } place;
static place blockIdx, blockDim, threadIdx;
static void atomicAdd(unsigned long long *sum, unsigned long long value) { *sum += value; }
static float __int_as_float(int bits) { float to; return memcpy(&to, &bits, 4), to; }
static unsigned __float_as_uint(float from) { unsigned to; return memcpy(&to, &from, 4), to; }
static double __longlong_as_double(long long bits) { double to; return memcpy(&to, &bits, 8), to; }
static long long __double_as_longlong(double from) { long long to; return memcpy(&to, &from, 8), to; }
#define __fmaf_rn __builtin_fmaf
#define __fma_rn __builtin_fma
"""
C_LAUNCH = """
unsigned long long launch(unsigned seed, unsigned first, unsigned rounds)
{
    unsigned long long sum = 0;
    blockDim.x = 128;
    for (blockIdx.x = 0; blockIdx.x < 2; blockIdx.x++)
        for (threadIdx.x = 0; threadIdx.x < 3; threadIdx.x++)
            gpufleet_agree(seed, first, rounds, &sum);
    return sum;
}
"""


@pytest.mark.parametrize("name", ["fp32", "fp64"])
def test_a_sum_is_the_same_however_many_rounds_a_launch_has(tmp_path: Path, name: str) -> None:
    """The kernel's own text, compiled for this processor."""
    row = next(each for each in FORMATS if each.name == name)
    text, program = tmp_path / "agree.c", tmp_path / "agree.so"
    text.write_text(C_SHIM + source(row).replace('extern "C" ', "") + C_LAUNCH)
    subprocess.run(
        ["cc", "-O1", "-shared", "-fPIC", "-o", str(program), str(text), "-lm"], check=True
    )
    launch = ctypes.CDLL(str(program)).launch
    launch.restype = ctypes.c_uint64
    rounds = [launch(7, number, 1) for number in range(5)]
    assert len(set(rounds)) == 5
    for first in range(5):
        for count in range(1, 6 - first):
            assert launch(7, first, count) == sum(rounds[first : first + count]) % 2**64
    assert launch(8, 0, 1) != rounds[0]


class Kernel:
    """A kernel whose rounds take a second each, or nothing; of the sums it keeps who was asked."""

    def __init__(self, clock: list[float], round_s: float) -> None:
        self.clock, self.round_s, self.sum = clock, round_s, 0

    def clear(self) -> None:
        self.sum = 0

    def add(self, first: int, rounds: int) -> str:
        self.clock[0] += rounds * self.round_s
        self.sum += sum(range(first, first + rounds))
        return f"{self.sum:016x}"


@pytest.mark.parametrize(
    ("round_s", "seconds", "sums"), [(1.0, 0.2, 4), (0.01, 0.4, 5), (0.001, 4, 11)]
)
def test_the_sums_and_their_repetition_take_about_the_time_that_they_may(
    monkeypatch: pytest.MonkeyPatch, round_s: float, seconds: float, sums: int
) -> None:
    clock = [100.0]
    monkeypatch.setattr(consensus, "now", lambda: clock[0])
    found, again = consensus.sums_of(Kernel(clock, round_s), seconds)
    assert again
    assert len(found) == sums
    assert clock[0] - 100 <= max(seconds, 2 * 2 ** (LEAST_SUMS - 1) * round_s) + 1e-6
