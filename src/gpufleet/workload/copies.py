"""Memory bandwidth of each GPU, and copies between GPUs."""
import array
import ctypes
import operator

from .entries import RUNNING, WAITING, blank, on_each
from .library import Refused
from .runtime import Runtime, address
from .timing import best_rate

MIB = 1 << 20


def copy_on_device(options, tell):
    """Memory bandwidth: a large block copied on the device itself."""
    entries = blank(options, gib_s=None)
    tell(bandwidth=entries)
    runtime = Runtime(options.toolkit)
    length, sample = 256 * MIB, array.array("f", range(MIB // 4))

    def compute(found):
        source, target = runtime.room(length), runtime.room(length)
        ends = [ctypes.c_void_p(source.value + at) for at in (0, length - MIB)]
        for end in ends:
            runtime.copy(end, address(sample), MIB, runtime.TO_DEVICE)
        found["gib_s"] = best_rate(
            runtime, lambda: runtime.copy(target, source, length, runtime.ON_DEVICE), 2 * length,
            0.5)
        ends = [ctypes.c_void_p(target.value + at) for at in (0, length - MIB)]
        found["wrong"] = sum(runtime.get(end, len(sample)) != sample for end in ends)
        for place in (source, target):
            runtime("cudaFree", place)

    on_each("bandwidth", entries, tell, runtime, compute)


def copy_between(options, tell):
    """From each GPU to each other one."""
    entries = [{"from": a, "to": b, "access": None, "gib_s": None, "wrong": None, "error": WAITING}
               for a in range(options.gpus) for b in range(options.gpus) if a != b]
    tell(peer=entries)
    runtime = Runtime(options.toolkit)
    sample = array.array("f", range(4 * MIB))
    for found in entries:
        found["error"] = RUNNING
        tell(peer=entries)
        try:
            copy_pair(runtime, found, sample)
            found["error"] = None
        except (Refused, OSError) as error:
            found["error"] = str(error)
    tell(peer=entries)


def copy_pair(runtime, found, sample):
    a, b, access = found["from"], found["to"], ctypes.c_int()
    length = 4 * len(sample)
    runtime("cudaDeviceCanAccessPeer", ctypes.byref(access), b, a)
    found["access"] = bool(access.value)
    runtime.enter(a)
    source = runtime.put(sample)
    runtime.enter(b)
    target = runtime.room(length)
    if found["access"]:
        runtime.library.cudaDeviceEnablePeerAccess(a, 0)  # it may be already, which is an error
        runtime.library.cudaGetLastError()
    found["gib_s"] = best_rate(runtime, lambda: runtime(
        "cudaMemcpyPeer", target, b, source, a, ctypes.c_size_t(length)), length, 0.1)
    found["wrong"] = sum(map(operator.ne, runtime.get(target, len(sample)), sample))
    runtime("cudaFree", target)
    runtime.enter(a)
    runtime("cudaFree", source)
