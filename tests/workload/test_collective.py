"""One host's part in collectives: the exact operands, and the comparison of what came back."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpufleet.workload import collective
from gpufleet.workload.library import Refused
from gpufleet.workload.nccl import Communicators, Nccl, UniqueId
from lab import collectives


class Memory:
    """A GPU's memory that is this process's."""

    TO_DEVICE = 1

    def __init__(self, length: int) -> None:
        self.kept = (ctypes.c_char * length)()
        self.pointer = ctypes.c_void_p(ctypes.addressof(self.kept))

    def copy(self, target: Any, source: Any, length: int, direction: int) -> None:
        assert direction == self.TO_DEVICE
        ctypes.memmove(target, source, length)

    def read(self, pointer: Any, length: int) -> bytes:
        return ctypes.string_at(pointer, length)


def numbers(block: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{collective.PERIOD}f", block)


@pytest.mark.parametrize("ranks", [1, 2, 8, 61, 62, 200])
def test_a_sum_is_that_of_all_ranks_and_exact_in_float32(ranks: int) -> None:
    total = numbers(collective.block(range(ranks)))
    for at in (0, 1, 60, 61, collective.PERIOD - 1):
        assert total[at] == sum(collective.value(at, rank) for rank in range(ranks))
    assert max(total) < 1 << 24


def test_operands_of_two_ranks_differ_and_a_shifted_one_is_another() -> None:
    blocks = {collective.block([rank]) for rank in range(collective.VALUES)}
    assert len(blocks) == collective.VALUES
    own = numbers(collective.block([3])) * 2
    assert all(own[:64] != own[shift : shift + 64] for shift in range(1, collective.VALUES))


@pytest.mark.parametrize("length", [4, 4096, 16372, 16372 * 256 + 8, 5 << 20])
def test_each_wrong_number_is_counted_wherever_it_is(length: int) -> None:
    memory, block = Memory(length), collective.block([5])
    collective.fill(memory, memory.pointer, length, block)
    assert collective.differing(memory, memory.pointer, 0, length, block) == 0
    for at in {0, length // 8 * 4, length - 4}:
        ctypes.memmove(memory.pointer.value + at, b"\xff\xff\xff\xff", 4)  # type: ignore[operator]
    wrong = len({0, length // 8 * 4, length - 4})
    assert collective.differing(memory, memory.pointer, 0, length, block) == wrong


def test_the_parts_of_a_gather_are_compared_each_with_its_rank() -> None:
    ranks = SimpleNamespace(ranks=3, all_gather=None, all_reduce=None, shift=None)
    count, _, expected = collective.plan(ranks, "all_gather", 300)
    assert (count, list(expected(0))) == (25, [collective.block([rank]) for rank in range(3)])
    count, _, expected = collective.plan(ranks, "sendrecv", 300)
    assert (count, expected(0), expected(2)) == (
        75,
        [collective.block([2])],
        [collective.block([1])],
    )


def test_an_id_survives_the_way_to_the_other_hosts() -> None:
    one = UniqueId.from_buffer_copy(bytes(range(128)))
    assert bytes(UniqueId.of(one.text())) == bytes(range(128))
    for wrong in ("", "00" * 127, "zz" * 128):
        with pytest.raises(ValueError, match=r"."):
            UniqueId.of(wrong)


@pytest.mark.parametrize(
    ("number", "release"), [(2708, "2.7.8"), (20905, "2.9.5"), (22105, "2.21.5")]
)
def test_both_ways_of_counting_releases_are_read(number: int, release: str, tmp_path: Path) -> None:
    nccl = Nccl(str(collectives.build(tmp_path)))

    def version(value: Any) -> int:
        value._obj.value = number
        return 0

    nccl.library = SimpleNamespace(ncclGetVersion=version)  # type: ignore[assignment]
    assert nccl.version() == release


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"there is no libnccl\.so"):
        Nccl(str(tmp_path))


class Streams:
    """A CUDA runtime whose default streams are empty after so many questions, or never."""

    def __init__(self, *questions: int | None, status: int = 600) -> None:
        self.questions, self.status, self.gpu = list(questions), status, 0
        self.library, self.cleared = self, 0

    def __call__(self, function: str, gpu: int) -> None:
        assert function == "cudaSetDevice"
        self.gpu = gpu

    def cudaStreamQuery(self, stream: None) -> int:
        left = self.questions[self.gpu]
        self.questions[self.gpu] = None if left is None else max(0, left - 1)
        return 0 if left == 0 else self.status

    def cudaGetLastError(self) -> int:
        self.cleared += 1
        return 0

    def describe(self, status: int) -> str:
        return {700: "cudaErrorIllegalAddress"}[status]


class Noticing:
    """An NCCL that notices a failure of this communicator after so many questions."""

    def __init__(self, comm: int | None = None, questions: int = 3) -> None:
        self.comm, self.left = comm, questions

    def __call__(self, function: str, comm: int, noticed: Any) -> None:
        assert function == "ncclCommGetAsyncError"
        self.left -= comm == self.comm
        noticed._obj.value = 6 if comm == self.comm and self.left < 0 else 0

    def describe(self, _status: int) -> str:
        return "remote process exited or there was a network error; last words"


def communicators(nccl: Noticing, runtime: Streams) -> Communicators:
    found = Communicators.__new__(Communicators)
    found.nccl, found.runtime = nccl, runtime  # type: ignore[assignment]
    found.gpus, found.all = [0, 1], [10, 11]  # type: ignore[list-item]
    return found


@pytest.mark.parametrize("status", [600, 34])
def test_gpus_are_waited_for_until_each_is_done(status: int) -> None:
    runtime = Streams(5, 2, status=status)
    communicators(Noticing(), runtime).wait()
    assert (runtime.questions, runtime.cleared) == ([0, 0], 7)


@pytest.mark.parametrize("comm", [10, 11])
def test_a_failure_that_nccl_notices_ends_the_wait_for_a_kernel_that_does_not_end(
    comm: int,
) -> None:
    """CUDA was waited for without end, and the failure was never read."""
    with pytest.raises(Refused, match=r"^NCCL noticed 6 remote .*; last words$"):
        communicators(Noticing(comm), Streams(None, None)).wait()


def test_a_failed_kernel_is_named() -> None:
    with pytest.raises(Refused, match=r"cudaStreamQuery returned 700 cudaErrorIllegalAddress"):
        communicators(Noticing(), Streams(None, 0, status=700)).wait()
