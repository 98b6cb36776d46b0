"""Fill the free memory of a GPU with patterns, and compare them on the GPU itself.

Each bit is once 0 and once 1: the second pattern is the complement of the first. Both are numbers
that cuBLAS computes with, from 1 to 2 and from -4 to -2. Each block begins elsewhere in the
pattern, so that one which stands in the place of another is seen.
"""

import ctypes
import os

from .library import Refused
from .programs import on_gpu
from .runtime import MIB, address_of

# ruff: noqa: B905 (zip has no `strict` before Python 3.10)

BLOCK, SHIFT = 64 * MIB, 256
FLOAT = 4
# Memory that stays free for programs that start meanwhile; and beside a desktop, whose windows and
# browsers need more from one moment to the next.
LEFT_MIB, LEFT_BESIDE_DISPLAY_MIB = 1024, 2304
# Programs that draw and have more than this are no mere desktop: they may need all the rest.
DRAWN_MIB = 2048
# This process's memory on a GPU where NVML does not report it: 527 MiB on an H100, less on others.
OWN_MIB = 640
# The memory of drivers beside that, without and with displays. A program that has more needs the
# rest at any moment.
BESIDE_MIB, BESIDE_DISPLAY_MIB = 256, 512


def fill(runtime, blas, found, most_mib, made):
    """Record in a GPU's entry how much was filled, or why nothing was; how many blocks changed.

    `made`: the patterns, which all GPUs share.
    """
    free, total = runtime.memory_mib()
    if runtime.integrated(found["gpu"]):
        found["unfilled"] = "integrated"
        return 0
    use = on_gpu(runtime.pci_address(found["gpu"]))
    found["unfilled"] = reason_not_to(use, free, total - free)
    if found["unfilled"]:
        return 0
    wanted = max(0, min(free - left_mib(use), most_mib)) * MIB // BLOCK
    length = BLOCK + SHIFT * wanted
    pattern, blocks = runtime.allocate(length), allocated(runtime, wanted)
    sums, handle, wrong = runtime.allocate(FLOAT * (len(blocks) + 1)), blas.handle(), 0
    blas("cublasSetPointerMode_v2", handle, 1)
    minus = runtime.allocate(FLOAT)
    runtime.copy(minus, ctypes.byref(ctypes.c_float(-1)), FLOAT, runtime.TO_DEVICE)
    for numbers in made.of(length):
        runtime.copy(pattern, address_of(numbers), length, runtime.TO_DEVICE)
        runtime.poison(sums, FLOAT * (len(blocks) + 1))
        begins = [ctypes.c_void_p(pattern.value + SHIFT * at) for at in range(len(blocks))]
        for block, begin in zip(blocks, begins):
            runtime.copy(block, begin, BLOCK, runtime.ON_DEVICE)
        for at, (block, begin) in enumerate(zip(blocks, begins)):
            blas("cublasSaxpy_v2", handle, BLOCK // FLOAT, minus, begin, 1, block, 1)
            result = ctypes.c_void_p(sums.value + FLOAT * at)
            blas("cublasSasum_v2", handle, BLOCK // FLOAT, block, 1, result)
        # The last one is of what is not 0.
        result = ctypes.c_void_p(sums.value + FLOAT * len(blocks))
        blas("cublasSasum_v2", handle, BLOCK // FLOAT, pattern, 1, result)
        *kept, proof = runtime.download(sums, len(blocks) + 1)
        if not proof > 0:
            raise Refused("cublasSasum_v2 does not tell a wrong block from a right one")
        wrong += sum(each != 0 for each in kept)
    blas("cublasDestroy_v2", handle)
    for pointer in (pattern, sums, minus, *blocks):
        runtime("cudaFree", pointer)
    found["filled_mib"] = len(blocks) * BLOCK // MIB
    return wrong


def reason_not_to(use, free_mib, held_mib):
    """The name of others that need the memory of this GPU; None where nobody does.

    Others would fail for want of memory that they ask for while it is filled. The driver of a
    virtual GPU holds memory that no process has, and does not say how much this process has: where
    NVML lists this process alone, the memory in use is the driver's.
    """
    if use.others:
        return "programs"
    beside = held_mib - (OWN_MIB if use.own_mib is None else use.own_mib)
    if use.drawn_mib is not None:
        if use.drawn_mib > DRAWN_MIB or free_mib < left_mib(use) + BLOCK // MIB:
            return "display"
        return "in-use" if beside > use.drawn_mib + BESIDE_DISPLAY_MIB else None
    if beside <= BESIDE_MIB:
        return None
    if not use.virtual:
        return "in-use"
    return None if use.alone else "virtual"


def left_mib(use):
    """How much memory stays free for others."""
    return LEFT_MIB if use.drawn_mib is None else LEFT_BESIDE_DISPLAY_MIB


def allocated(runtime, wanted):
    """So many blocks of memory, or as many as there are."""
    blocks = []
    try:
        while len(blocks) < wanted:
            blocks.append(runtime.allocate(BLOCK))
    except Refused:  # what is free is in smaller pieces
        runtime.library.cudaGetLastError()
    return blocks


class Patterns:
    """Both patterns, for one GPU after the other: to make them takes two seconds."""

    def __init__(self):
        self.made = []

    def of(self, length):
        """The patterns, of this length or longer."""
        if not self.made or len(self.made[0]) < length:
            self.made = list(patterns(length))
        return self.made


def patterns(length):
    """Random floats from 1 to 2, and their complements, as bytes."""
    count = length // FLOAT
    mantissas = int.from_bytes(b"\xff\xff\x7f\x00" * count, "little")
    ones = int.from_bytes(b"\x00\x00\x80\x3f" * count, "little")
    first = int.from_bytes(os.urandom(length), "little") & mantissas | ones
    yield bytearray(first.to_bytes(length, "little"))
    yield bytearray((first ^ int.from_bytes(b"\xff" * length, "little")).to_bytes(length, "little"))
