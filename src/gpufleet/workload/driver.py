"""The driver's libcuda: the GPUs and their properties."""

import ctypes
import time

from .entries import RUNNING, WAITING
from .library import Library, Refused


class Driver(Library):
    """libcuda.so.1, which belongs to no toolkit."""

    KNOWN = (
        (100, "CUDA_ERROR_NO_DEVICE"),
        (802, "CUDA_ERROR_SYSTEM_NOT_READY"),
        (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
        (999, "CUDA_ERROR_UNKNOWN"),
    )
    MAJOR, MINOR = 75, 76

    def __init__(self):
        Library.__init__(self, "libcuda.so.1")

    def describe(self, status):
        name = ctypes.c_char_p()
        try:
            self.library.cuGetErrorName(status, ctypes.byref(name))
        except AttributeError:
            pass
        return name.value.decode() if name.value else Library.describe(self, status)

    def number(self, function, *arguments):
        value = ctypes.c_int()
        self(function, ctypes.byref(value), *arguments)
        return value.value

    def capability(self, device):
        return "%d.%d" % tuple(
            self.number("cuDeviceGetAttribute", number, device)
            for number in (self.MAJOR, self.MINOR)
        )

    def enter(self, gpu):
        """Compute on that GPU from now on, in the context that the runtime shares."""
        context = ctypes.c_void_p()
        device = self.number("cuDeviceGet", gpu)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self("cuCtxSetCurrent", context)
        return device


# Attributes of a device, by the numbers of the driver's interface.
FIGURES = {
    "sm_count": 16,
    "clock_khz": 13,
    "memory_clock_khz": 36,
    "memory_bus_bits": 37,
    "l2_bytes": 38,
    "warp_size": 10,
}


def query_devices(options, report):
    """deviceQuery's figures, from the driver itself."""
    found, devices = {"cuinit": None, "version": None, "error": WAITING}, []
    report(driver=found, devices=devices)
    cuda = Driver()
    found.update(version=version_of(cuda.number("cuDriverGetVersion")), error=RUNNING)
    report(driver=found, devices=devices)
    begin = time.perf_counter()
    found["cuinit"] = cuda.library.cuInit(0)
    # Without a persistence daemon this loads the driver onto each card.
    found["cuinit_s"] = round(time.perf_counter() - begin, 4)
    if found["cuinit"]:
        found["error"] = "cuInit returned %d %s" % (found["cuinit"], cuda.describe(found["cuinit"]))
    else:
        for index in range(cuda.number("cuDeviceGetCount")):
            devices.append(figures(cuda, index))
            report(driver=found, devices=devices)
            devices[-1]["free_mib"] = free_on(cuda, index)
        found["error"] = None
    report(driver=found, devices=devices)


def version_of(number):
    return "%d.%d" % (number // 1000, number % 1000 // 10)


def figures(cuda, index):
    device = cuda.number("cuDeviceGet", index)
    name, address = ctypes.create_string_buffer(256), ctypes.create_string_buffer(64)
    cuda("cuDeviceGetName", name, 256, device)
    cuda("cuDeviceGetPCIBusId", address, 64, device)
    total, raw = ctypes.c_size_t(), ctypes.create_string_buffer(16)
    cuda("cuDeviceTotalMem_v2", ctypes.byref(total), device)
    # Drivers before 396 report none.
    known = (
        hasattr(cuda.library, "cuDeviceGetUuid") and cuda.library.cuDeviceGetUuid(raw, device) == 0
    )
    digits = raw.raw.hex()
    parts = ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))
    found = {
        key: cuda.number("cuDeviceGetAttribute", number, device) for key, number in FIGURES.items()
    }
    found.update(
        index=index,
        address=address.value.decode().lower(),
        uuid="GPU-" + "-".join(digits[a:b] for a, b in parts) if known else None,
        name=name.value.decode("utf-8", "replace"),
        compute_capability=cuda.capability(device),
        memory_mib=total.value >> 20,
        free_mib=None,
        clock_mhz=found.pop("clock_khz") // 1000,
        memory_clock_mhz=found.pop("memory_clock_khz") // 1000,
        l2_kib=found.pop("l2_bytes") >> 10,
    )
    return found


def free_on(cuda, gpu):
    """Free memory in MiB; None if there is too little for the query itself."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    try:
        cuda.enter(gpu)
        cuda("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    except Refused:
        return None
    return free.value >> 20
