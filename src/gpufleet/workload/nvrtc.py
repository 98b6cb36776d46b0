"""The toolkit's NVRTC: compile a kernel, run it on each GPU."""

import array
import ctypes
import operator
import random
import re

from .driver import Driver
from .entries import RUNNING, WAITING
from .library import Library, Refused, library_file
from .runtime import address

# ruff: noqa: B905 (zip has no `strict` before Python 3.10)


class Compiler(Library):
    """The toolkit's NVRTC."""

    def __init__(self, toolkit):
        Library.__init__(self, library_file(toolkit, "nvrtc"))

    def describe(self, status):
        return self.name_of_status("nvrtcGetErrorString", status)

    def version(self):
        major, minor = ctypes.c_int(), ctypes.c_int()
        self("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return "%d.%d" % (major.value, minor.value)

    def compile(self, target=None, kind="PTX", kernel=None):
        """A kernel for a target such as sm_90, as PTX or as CUBIN (machine code)."""
        program, size = ctypes.c_void_p(), ctypes.c_size_t()
        text = kernel or KERNEL
        self("nvrtcCreateProgram", ctypes.byref(program), text, b"gpufleet.cu", 0, None, None)
        args = [("--gpu-architecture=" + target).encode()] if target else []
        self("nvrtcCompileProgram", program, len(args), (ctypes.c_char_p * len(args))(*args))
        self("nvrtcGet%sSize" % kind, program, ctypes.byref(size))
        code = ctypes.create_string_buffer(size.value + 1)
        self("nvrtcGet" + kind, program, code)
        return code.raw

    def code_for(self, capability):
        """Target and code for a GPU: its own machine code, else PTX for the driver to finish.

        A driver older than the toolkit, though it may run the toolkit's machine code, refuses
        its PTX: hence the order.
        """
        digits = capability.replace(".", "")
        ways = [("sm_" + digits, "CUBIN")] if hasattr(self.library, "nvrtcGetCUBIN") else []
        for target, kind in [*ways, ("compute_" + digits, "PTX")]:
            try:
                return target, self.compile(target, kind)
            except Refused:
                continue
        return "default", self.compile()


KERNEL_NAME = b"gpufleet_mix"
KERNEL = b"""
extern "C" __global__ void gpufleet_mix(const unsigned *in, unsigned *out, unsigned n)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[i] * 2654435761u + (i ^ (in[i] >> 7));
}
"""


def expected_numbers(numbers):
    """The numbers that the kernel makes of these."""
    return array.array(
        "I",
        [
            (number * 2654435761 + (pointer ^ (number >> 7))) & 0xFFFFFFFF
            for pointer, number in enumerate(numbers)
        ],
    )


def compile_and_run(options, report):
    found = {
        "version": None,
        "arch": None,
        "ptx": False,
        "error": RUNNING,
        "ran": [
            {"gpu": gpu, "arch": None, "wrong": None, "error": WAITING}
            for gpu in range(options.gpus)
        ],
    }
    report(nvrtc=found)
    compiler = Compiler(options.toolkit)
    found["version"] = compiler.version()
    report(nvrtc=found)
    text = compiler.compile().decode("utf-8", "replace")
    target = re.search(r"^\.target +(\w+)", text, re.MULTILINE)
    found.update(
        arch=target and target.group(1),
        error=None,
        ptx=bool(target) and ".entry " + KERNEL_NAME.decode() in text,
    )
    for entry in found["ran"]:
        entry["error"] = RUNNING
        report(nvrtc=found)
        try:
            cuda = Driver()
            cuda("cuInit", 0)
            entry["arch"], code = compiler.code_for(cuda.capability(cuda.enter(entry["gpu"])))
            entry.update(wrong=run_kernel(cuda, code), error=None)
        except (Refused, OSError) as error:
            entry["error"] = str(error)
    report(nvrtc=found)


def run_kernel(cuda, code, count=4096):
    """The count of numbers that differ between the GPU and this processor."""
    given = array.array("I", [random.getrandbits(32) for _ in range(count)])
    computed = array.array("I", [0]) * count
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    cuda("cuModuleLoadData", ctypes.byref(module), code)
    cuda("cuModuleGetFunction", ctypes.byref(function), module, KERNEL_NAME)
    pointers, length = [ctypes.c_uint64() for _ in "io"], ctypes.c_size_t(4 * count)
    for pointer, numbers in zip(pointers, (given, computed)):
        cuda("cuMemAlloc_v2", ctypes.byref(pointer), length)
        cuda("cuMemcpyHtoD_v2", pointer, address(numbers), length)
    number = ctypes.c_uint(count)
    arguments = (ctypes.c_void_p * 3)(*[ctypes.addressof(item) for item in (*pointers, number)])
    cuda("cuLaunchKernel", function, count // 256, 1, 1, 256, 1, 1, 0, None, arguments, None)
    cuda("cuCtxSynchronize")
    cuda("cuMemcpyDtoH_v2", address(computed), pointers[1], length)
    for pointer in pointers:
        cuda("cuMemFree_v2", pointer)
    return sum(map(operator.ne, computed, expected_numbers(given)))
