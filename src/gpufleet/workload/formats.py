"""Exact products in the number formats that people compute with, by the toolkit's cuBLAS.

The operands are integers that each format holds exactly, and so small that every sum is exact too,
also in tensor cores that add up FP8 products with 14 bits: each element has to be right, whatever
the order of the sum. A format that the GPU or this cuBLAS does not have is reported as such.

Numbers of types and functions are those of NVIDIA's public headers (library_types.h, cublas_api.h,
cublasLt.h), the needed releases those of the cuBLAS documentation and the CUDA release notes.
"""

import array
import ctypes
import math
import operator
import struct
from collections import namedtuple

from .cublas import Blas
from .cublas_lt import Lt
from .driver import Driver
from .entries import for_each_gpu, new_entries
from .exactness import ExactProduct
from .library import Refused
from .runtime import Runtime
from .timing import REPEATS, SIZE_FORMATS, now

# cudaDataType_t
R_32F, R_64F, R_16F, R_8I, R_32I, R_16BF, R_E4M3, R_E5M2 = 0, 1, 2, 3, 10, 14, 28, 29
# cublasComputeType_t of 11.0 and later; before, a cudaDataType_t was given.
COMPUTE_32F, COMPUTE_TF32, COMPUTE_32I = 68, 77, 72
FORMER = {COMPUTE_32F: R_32F, COMPUTE_32I: R_32I}
# cublasGemmAlgo_t: what cuBLAS prefers. Before 11.0 tensor cores were used only on request.
DEFAULT, DEFAULT_TENSOR_OP = -1, 99

# `needs`: pairs of compute capability and cuBLAS; the last one that the GPU reaches counts.
Format = namedtuple("Format", "name first second result compute needs")
# The first cuBLAS with machine code for GPUs of that major version. An older one depends on what
# the driver compiles of it, and may have nothing for their tensor cores: no fault of the GPU.
VOLTA, *AMPERE = (
    ((7, 0), (9, 0)),
    ((8, 0), (11, 0)),
    ((9, 0), (11, 11)),
    ((10, 0), (12, 8)),
    ((11, 0), (13, 0)),
    ((12, 0), (12, 8)),
)
FP8 = (
    ((8, 9), (12, 1, 3)),
    ((9, 0), (11, 11)),
    ((10, 0), (12, 8)),
    ((10, 3), (12, 9)),
    ((11, 0), (13, 0)),
    ((12, 0), (12, 8)),
    ((12, 1), (12, 9)),
)
FORMATS = (
    Format("fp64", R_64F, R_64F, R_64F, None, (((0, 0), (0,)),)),
    Format("fp16", R_16F, R_16F, R_32F, COMPUTE_32F, (((5, 0), (8, 0)), VOLTA, *AMPERE)),
    Format("int8", R_8I, R_8I, R_32I, COMPUTE_32I, (((6, 1), (8, 0)), VOLTA, *AMPERE)),
    Format("tf32", R_32F, R_32F, R_32F, COMPUTE_TF32, AMPERE),
    Format("bf16", R_16BF, R_16BF, R_32F, COMPUTE_32F, AMPERE),
    Format("fp8-e4m3", R_E4M3, R_E4M3, R_32F, None, FP8),
    Format("fp8-e5m2", R_E5M2, R_E4M3, R_32F, None, FP8),
)
# The result's type: as an array of Python, and the type of the factors beside the operands.
RESULTS = {R_32F: ("f", ctypes.c_float), R_64F: ("d", ctypes.c_double), R_32I: ("i", ctypes.c_int)}


def e4m3(value):
    """The FP8 number of four exponent and three mantissa bits, of a small integer."""
    if not value:
        return b"\0"
    fraction, exponent = math.frexp(abs(value))
    bits = (exponent + 6) << 3 | int((2 * fraction - 1) * 8)
    return bytes([bits | (0x80 if value < 0 else 0)])


# E5M2 and BF16 are the upper half of FP16 and float32.
ENCODERS = {
    R_8I: lambda value: struct.pack("<b", value),
    R_16F: lambda value: struct.pack("<e", value),
    R_32F: lambda value: struct.pack("<f", value),
    R_64F: lambda value: struct.pack("<d", value),
    R_16BF: lambda value: struct.pack("<f", value)[2:],
    R_E4M3: e4m3,
    R_E5M2: lambda value: struct.pack("<e", value)[1:],
}


def encoded(integers, kind):
    """Bytes of integers (signed ones, as bytes) in the format."""
    codes = [
        ENCODERS[kind](byte if byte <= 8 else byte - 256 if byte >= 248 else 0)
        for byte in range(256)
    ]
    width = len(codes[0])
    numbers = bytearray(width * len(integers))
    for at in range(width):
        numbers[at::width] = integers.translate(bytes(code[at] for code in codes))
    return array.array("B", bytes(numbers))


def not_applicable(wanted, capability, version):
    """Why this GPU or this cuBLAS has no such products; None where both have."""
    reached = [release for least, release in wanted.needs if capability >= least]
    if not reached or (wanted.name == "int8" and capability == (6, 2)):
        return "it needs compute capability %d.%d, the GPU has %d.%d" % (
            *wanted.needs[0][0],
            *capability,
        )
    if version < reached[-1]:
        return "it needs cuBLAS %s on compute capability %d.%d, this is %s" % (
            ".".join(map(str, reached[-1])),
            *capability,
            ".".join(map(str, version)),
        )
    return None


class Products:
    """The same product of integers in each format, on the GPU that was entered."""

    def __init__(self, runtime, blas, toolkit, n):
        self.runtime, self.blas, self.toolkit, self.n = runtime, blas, toolkit, n
        self.handle, self.version, self.lt = blas.handle(), blas.version(), None
        exact = ExactProduct(n)
        a, b = [runtime.upload(operand) for operand in exact.operands]
        c = runtime.poisoned(4 * n * n)
        blas.multiply(self.handle, n, a, b, c)
        runtime.wait()
        if exact.confirm(runtime.download(c, n * n)):
            raise Refused("the float32 product that others are compared with is wrong")
        for pointer in (a, b, c):
            runtime("cudaFree", pointer)
        whole = list(map(int, exact.right))
        self.right = {kind: array.array(code, whole) for kind, (code, _) in RESULTS.items()}
        # cuBLAS counts by columns: with the first operand transposed, which FP8 demands, it
        # multiplies the second by the transposed first, row after row.
        rows = exact.b.tobytes()
        self.first = b"".join(rows[column::n] for column in range(n))
        self.second = exact.a.tobytes()

    def check(self, wanted, found, capability, least_s):
        """Multiply a few times, or longer; each element of each product is compared."""
        right = self.right[wanted.result]
        length = len(right) * right.itemsize
        first = self.runtime.upload(encoded(self.first, wanted.first))
        second = self.runtime.upload(encoded(self.second, wanted.second))
        product = self.runtime.allocate(length)
        multiply = self.multiplication(wanted, capability, first, second, product)
        raw, wrong, begin = right.tobytes(), 0, now()
        while found["checked"] < REPEATS or now() - begin < least_s:
            self.runtime.poison(product, length)
            multiply()
            self.runtime.wait()
            computed = self.runtime.read(product, length)
            if computed != raw:
                wrong += sum(map(operator.ne, array.array(right.typecode, bytes(computed)), right))
            found["checked"] += 1
        found["wrong"] = wrong
        for pointer in (first, second, product):
            self.runtime("cudaFree", pointer)

    def multiplication(self, wanted, capability, first, second, product):
        """The call by which cuBLAS multiplies in this format."""
        n, kind = self.n, RESULTS[wanted.result][1]
        one, zero = kind(1), kind(0)
        if wanted.first in (R_E4M3, R_E5M2):
            self.lt = self.lt or Lt(self.toolkit, self.runtime)
            return self.lt.multiplication(n, wanted, first, second, product)
        if wanted.first == R_64F:
            return lambda: self.blas(
                "cublasDgemm_v2",
                self.handle,
                1,
                0,
                n,
                n,
                n,
                ctypes.byref(one),
                first,
                n,
                second,
                n,
                ctypes.byref(zero),
                product,
                n,
            )
        compute, algorithm = wanted.compute, DEFAULT
        if self.version < (11,):
            compute = FORMER[compute]
            if self.version >= (9,) and capability >= (7, 0) and wanted.first == R_16F:
                algorithm = DEFAULT_TENSOR_OP
        return lambda: self.blas(
            "cublasGemmEx",
            self.handle,
            1,
            0,
            n,
            n,
            n,
            ctypes.byref(one),
            first,
            wanted.first,
            n,
            second,
            wanted.second,
            n,
            ctypes.byref(zero),
            product,
            wanted.result,
            n,
            compute,
            algorithm,
        )


def multiply_in_formats(options, report):
    """All formats on one GPU, each reported before the next."""
    entries = [
        entry
        for each in FORMATS
        for entry in new_entries(
            options, format=each.name, checked=0, requested=REPEATS, not_applicable=None
        )
    ]
    report(formats=entries)
    runtime, blas, cuda = Runtime(options.toolkit), Blas(options.toolkit), Driver()
    cuda("cuInit", 0)
    capability = tuple(
        map(int, cuda.capability(cuda.number("cuDeviceGet", options.gpu)).split("."))
    )
    by_name, products = {each.name: each for each in FORMATS}, []

    def compute(found):
        wanted = by_name[found["format"]]
        found["not_applicable"] = not_applicable(wanted, capability, blas.version())
        if found["not_applicable"]:
            return
        if not products:
            products.append(
                Products(
                    runtime, blas, options.toolkit, min(options.size or SIZE_FORMATS, SIZE_FORMATS)
                )
            )
        products[0].check(wanted, found, capability, options.seconds)

    for_each_gpu("formats", entries, report, runtime, compute)
