"""Memory bandwidth of each GPU, and copies between GPUs."""
import array
import ctypes
import operator

from .entries import RUNNING, WAITING, for_each_gpu, new_entries
from .library import Refused
from .runtime import Runtime, address
from .timing import best_rate

MIB = 1 << 20


def copy_on_device(options, report):
    """Memory bandwidth: a large block copied on the device itself."""
    entries = new_entries(options, gib_s=None)
    report(bandwidth=entries)
    runtime = Runtime(options.toolkit)
    length, sample = 256 * MIB, array.array("f", range(MIB // 4))

    def compute(found):
        source, target = runtime.allocate(length), runtime.allocate(length)
        ends = [ctypes.c_void_p(source.value + at) for at in (0, length - MIB)]
        for end in ends:
            runtime.copy(end, address(sample), MIB, runtime.TO_DEVICE)
        found["gib_s"] = best_rate(
            runtime, lambda: runtime.copy(target, source, length, runtime.ON_DEVICE), 2 * length,
            0.5)
        ends = [ctypes.c_void_p(target.value + at) for at in (0, length - MIB)]
        found["wrong"] = sum(runtime.download(end, len(sample)) != sample for end in ends)
        for pointer in (source, target):
            runtime("cudaFree", pointer)

    for_each_gpu("bandwidth", entries, report, runtime, compute)


def copy_between(options, report):
    """From each GPU to each other one."""
    entries = [{"from": a, "to": b, "access": None, "gib_s": None, "wrong": None, "error": WAITING}
               for a in range(options.gpus) for b in range(options.gpus) if a != b]
    report(peer=entries)
    runtime = Runtime(options.toolkit)
    sample = array.array("f", range(4 * MIB))
    for found in entries:
        found["error"] = RUNNING
        report(peer=entries)
        try:
            copy_pair(runtime, found, sample)
            found["error"] = None
        except (Refused, OSError) as error:
            found["error"] = str(error)
    report(peer=entries)


def copy_pair(runtime, found, sample):
    a, b, access = found["from"], found["to"], ctypes.c_int()
    length = 4 * len(sample)
    runtime("cudaDeviceCanAccessPeer", ctypes.byref(access), b, a)
    found["access"] = bool(access.value)
    runtime.enter(a)
    source = runtime.upload(sample)
    runtime.enter(b)
    target = runtime.allocate(length)
    if found["access"]:
        runtime.library.cudaDeviceEnablePeerAccess(a, 0)  # it may be already, which is an error
        runtime.library.cudaGetLastError()
    found["gib_s"] = best_rate(runtime, lambda: runtime(
        "cudaMemcpyPeer", target, b, source, a, ctypes.c_size_t(length)), length, 0.1)
    found["wrong"] = sum(map(operator.ne, runtime.download(target, len(sample)), sample))
    runtime("cudaFree", target)
    runtime.enter(a)
    runtime("cudaFree", source)
