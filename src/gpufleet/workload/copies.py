"""Memory of each GPU: its bandwidth, and what it keeps; and copies between GPUs."""

import array
import ctypes
import operator
import os

from .cublas import Blas
from .entries import RUNNING, WAITING, for_each_gpu, new_entries
from .library import Refused
from .memory import Patterns, fill
from .runtime import MIB, Runtime, address_of
from .timing import best_rate

# A large block is written and compared in parts, of which each begins elsewhere in the sample.
PART, SHIFT = 16 * MIB, 64
# So many copies between two GPUs are queued at once: one of NVLink takes little longer than the
# processor takes to start it and to notice its end.
PAIR_LENGTH, SERIES = 16 * MIB, 8
# Statuses of cudaDeviceEnablePeerAccess where it is on already, and where a GPU has no room for
# another peer.
ALREADY_ON, TOO_MANY_PEERS = 704, 711


def copy_on_device(options, report):
    """Memory bandwidth: a large block copied on the device itself; then all that is free."""
    entries = new_entries(options, gib_s=None, filled_mib=None, unfilled=None)
    report(bandwidth=entries)
    runtime, blas = Runtime(options.toolkit), Blas(options.toolkit)
    length, made = 256 * MIB, Patterns()
    sample = bytearray(os.urandom(PART + SHIFT * (length // PART)))
    parts = [(at * PART, at * SHIFT) for at in range(length // PART)]

    def compute(found):
        source, target = runtime.allocate(length), runtime.allocate(length)
        for at, begin in parts:
            place = ctypes.c_void_p(source.value + at)
            runtime.copy(place, address_of(sample, begin), PART, runtime.TO_DEVICE)

        def copy():
            runtime.copy(target, source, length, runtime.ON_DEVICE)

        found["gib_s"] = best_rate(runtime, copy, 2 * length, 0.5)
        runtime.poison(target, length)
        copy()
        # Every byte: one that a faulty cell changed is as likely in the middle as at an end.
        found["wrong"] = sum(
            runtime.read(ctypes.c_void_p(target.value + at), PART)
            != memoryview(sample)[begin : begin + PART]
            for at, begin in parts
        )
        for pointer in (source, target):
            runtime("cudaFree", pointer)
        found["wrong"] += fill(runtime, blas, found, options.fill, made)

    for_each_gpu("bandwidth", entries, report, runtime, compute)


def copy_between(options, report):
    """From each GPU to each other one."""
    entries = [
        {"from": a, "to": b, "access": None, "gib_s": None, "wrong": None, "error": WAITING}
        for a in range(options.gpus)
        for b in range(options.gpus)
        if a != b
    ]
    report(peer=entries)
    runtime = Runtime(options.toolkit)
    for found in entries:
        found["error"] = RUNNING
        report(peer=entries)
        try:
            copy_pair(runtime, found, PAIR_LENGTH)
            found["error"] = None
        except (Refused, OSError) as error:
            found["error"] = str(error)
    report(peer=entries)


def copy_pair(runtime, found, length):
    """Copies of numbers that only this pair has, into memory that is poisoned before each check."""
    a, b = found["from"], found["to"]
    sample = array.array("I", os.urandom(length))
    runtime.enter(a)
    source = runtime.upload(sample)
    # The upload may still be on its way when its call returns, and the copies, in a queue of the
    # other GPU, do not wait for it.
    runtime.wait()
    runtime.enter(b)
    target = runtime.allocate(length)
    found["access"] = connect(runtime, a, b)

    def copy(times=1):
        for _ in range(times):
            runtime("cudaMemcpyPeerAsync", target, b, source, a, ctypes.c_size_t(length), None)

    def wrong():
        runtime.poison(target, length)
        copy()
        runtime.wait()
        return wrong_words(sample, runtime.read(target, length))

    found["wrong"] = wrong()
    found["gib_s"] = best_rate(runtime, lambda: copy(SERIES), SERIES * length, 0.1)
    found["wrong"] += wrong()
    runtime("cudaFree", target)
    runtime.enter(a)
    runtime("cudaFree", source)


def connect(runtime, a, b):
    """Let two GPUs address each other's memory; whether the second one addresses the first's.

    CUDA enables each direction by itself, and either GPU may make a copy. The second GPU is entered
    afterwards.
    """
    for gpu, peer in ((a, b), (b, a)):
        can = ctypes.c_int()
        runtime("cudaDeviceCanAccessPeer", ctypes.byref(can), gpu, peer)
        runtime("cudaSetDevice", gpu)
        access = bool(can.value) and enable_access(runtime, peer)
    return access


def enable_access(runtime, peer):
    """Let this GPU address a peer's memory; whether it does."""
    status = runtime.library.cudaDeviceEnablePeerAccess(peer, 0)
    if status:
        runtime.library.cudaGetLastError()
    if status not in (0, ALREADY_ON, TOO_MANY_PEERS):
        raise Refused(
            "cudaDeviceEnablePeerAccess returned %d %s" % (status, runtime.describe(status))
        )
    return status != TOO_MANY_PEERS


def wrong_words(sample, raw):
    """How many numbers of a sample (an array of `I`) these bytes do not have."""
    if raw == sample.tobytes():
        return 0
    return sum(map(operator.ne, array.array("I", bytes(raw)), sample))
