"""Fill the free memory of a GPU with patterns, and compare them on the GPU itself.

Each bit is once 0 and once 1: the second pattern is the complement of the first. Both are numbers
that cuBLAS computes with, from 1 to 2 and from -4 to -2. Each block begins elsewhere in the
pattern, so that one which stands in the place of another is seen.
"""

import ctypes
import os

from .library import Refused
from .runtime import MIB, address_of

# ruff: noqa: B905 (zip has no `strict` before Python 3.10)

BLOCK, SHIFT = 64 * MIB, 256
FLOAT = 4
# Memory that stays free, and what programs may hold, our own included: beside others nothing is
# filled, since they may need more at any moment.
LEFT_MIB, HELD_MIB = 1024, 2048
# The attribute of a device whose memory is the host's, which has other uses for it.
INTEGRATED = 18


def fill(runtime, blas, gpu, most_mib):
    """(MiB that were filled, or None where others need the memory; how many blocks changed)."""
    free, total = runtime.memory_mib()
    integrated = ctypes.c_int()
    runtime("cudaDeviceGetAttribute", ctypes.byref(integrated), INTEGRATED, gpu)
    if integrated.value or total - free > HELD_MIB:
        return None, 0
    wanted = max(0, min(free - LEFT_MIB, most_mib)) * MIB // BLOCK
    length = BLOCK + SHIFT * wanted
    pattern, blocks = runtime.allocate(length), allocated(runtime, wanted)
    sums, handle, wrong = runtime.allocate(FLOAT * (len(blocks) + 1)), blas.handle(), 0
    blas("cublasSetPointerMode_v2", handle, 1)
    minus = runtime.allocate(FLOAT)
    runtime.copy(minus, ctypes.byref(ctypes.c_float(-1)), FLOAT, runtime.TO_DEVICE)
    for numbers in patterns(length):
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
        *found, proof = runtime.download(sums, len(blocks) + 1)
        if not proof > 0:
            raise Refused("cublasSasum_v2 does not tell a wrong block from a right one")
        wrong += sum(each != 0 for each in found)
    blas("cublasDestroy_v2", handle)
    for pointer in (pattern, sums, minus, *blocks):
        runtime("cudaFree", pointer)
    return len(blocks) * BLOCK // MIB, wrong


def allocated(runtime, wanted):
    """So many blocks of memory, or as many as there are."""
    blocks = []
    try:
        while len(blocks) < wanted:
            blocks.append(runtime.allocate(BLOCK))
    except Refused:  # what is free is in smaller pieces
        runtime.library.cudaGetLastError()
    return blocks


def patterns(length):
    """Random floats from 1 to 2, and their complements, as bytes."""
    count = length // FLOAT
    mantissas = int.from_bytes(b"\xff\xff\x7f\x00" * count, "little")
    ones = int.from_bytes(b"\x00\x00\x80\x3f" * count, "little")
    first = int.from_bytes(os.urandom(length), "little") & mantissas | ones
    yield bytearray(first.to_bytes(length, "little"))
    yield bytearray((first ^ int.from_bytes(b"\xff" * length, "little")).to_bytes(length, "little"))
