"""Copies between the host's memory and each GPU, and the PCI Express link while they run.

One GPU after the other: several at once would share the processor's memory, switches and slots.
"""

import array
import ctypes
import os

from .copies import MIB, wrong_words
from .entries import for_each_gpu, new_entries
from .runtime import Runtime
from .sensors import link_reader
from .timing import best_rate

# A series of copies is queued at once, of memory that the GPU reads and writes by itself.
LENGTH, SERIES = 32 * MIB, 4
# So many series last longer than NVML takes to read the link: 10 ms on generation 5.
SERIES_WHILE_READING = 4


def copy_to_and_from_host(options, report):
    entries = new_entries(options, copies=None, link=None)
    report(host_copies=entries)
    runtime, addresses = Runtime(options.toolkit), options.places.split(",")
    for_each_gpu(
        "host_copies",
        entries,
        report,
        runtime,
        lambda found: copy_both_ways(runtime, found, link_reader(addresses[found["gpu"]])),
    )


def copy_both_ways(runtime, found, read_link):
    """Speed each way, the link under this load, and whether numbers arrive there and back."""
    sample, length = os.urandom(LENGTH), ctypes.c_size_t(LENGTH)
    host, device = ctypes.c_void_p(), runtime.poisoned(LENGTH)
    runtime("cudaHostAlloc", ctypes.byref(host), length, 0)
    ctypes.memmove(host, sample, LENGTH)
    readings, rates = [], {}
    for key, target, source, direction in (
        ("to_device_gib_s", device, host, runtime.TO_DEVICE),
        ("from_device_gib_s", host, device, runtime.FROM_DEVICE),
    ):

        def copy(target=target, source=source, direction=direction):
            for _ in range(SERIES):
                runtime("cudaMemcpyAsync", target, source, length, direction, None)

        rates[key] = best_rate(runtime, copy, SERIES * LENGTH, 0.2)
        for _ in range(SERIES_WHILE_READING):
            copy()
        readings.append(read_link())
        runtime.wait()
    # The link of a GPU that was idle rises when it is used, so that the higher reading counts.
    found["link"] = {
        key: max((reading[key] for reading in readings if reading[key] is not None), default=None)
        for key in readings[0]
    }
    found["copies"] = rates
    runtime.poison(device, LENGTH)
    ctypes.memmove(host, sample, LENGTH)
    runtime.copy(device, host, LENGTH, runtime.TO_DEVICE)
    ctypes.memset(host, 0xA5, LENGTH)
    runtime.copy(host, device, LENGTH, runtime.FROM_DEVICE)
    found["wrong"] = wrong_words(array.array("I", sample), ctypes.string_at(host, LENGTH))
    runtime("cudaFreeHost", host)
    runtime("cudaFree", device)
