"""The toolkit's cuBLASLt, which alone multiplies FP8 numbers."""

import ctypes

from .cublas import Blas
from .library import Library, Refused, library_file

# Attributes of a product and of what its algorithm may take, and the type float32.
TRANSPOSE_FIRST, MAX_WORKSPACE = 3, 1
COMPUTE_32F, R_32F = 68, 0
WORKSPACE = 32 << 20


class Choice(ctypes.Structure):
    """An algorithm that cuBLASLt proposes (cublasLtMatmulHeuristicResult_t)."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class Lt(Library):
    """The toolkit's cuBLASLt, on the GPU that was entered."""

    KNOWN = Blas.KNOWN

    def __init__(self, toolkit, runtime):
        Library.__init__(self, library_file(toolkit, "cublasLt"))
        self.handle = self.create("cublasLtCreate")
        self.space = runtime.allocate(WORKSPACE)

    def create(self, function, *arguments):
        made = ctypes.c_void_p()
        self(function, ctypes.byref(made), *arguments)
        return made

    def layout(self, kind, n):
        return self.create(
            "cublasLtMatrixLayoutCreate",
            kind,
            ctypes.c_uint64(n),
            ctypes.c_uint64(n),
            ctypes.c_int64(n),
        )

    def multiplication(self, n, wanted, first, second, product):
        """The call that multiplies FP8 operands to float32. The first operand is transposed, no
        factor scales them, and sums are kept in full (no fast accumulation)."""
        how = self.create("cublasLtMatmulDescCreate", COMPUTE_32F, R_32F)
        self(
            "cublasLtMatmulDescSetAttribute",
            how,
            TRANSPOSE_FIRST,
            ctypes.byref(ctypes.c_int32(1)),
            ctypes.c_size_t(4),
        )
        a, b, c = [self.layout(kind, n) for kind in (wanted.first, wanted.second, wanted.result)]
        preference = self.create("cublasLtMatmulPreferenceCreate")
        self(
            "cublasLtMatmulPreferenceSetAttribute",
            preference,
            MAX_WORKSPACE,
            ctypes.byref(ctypes.c_uint64(WORKSPACE)),
            ctypes.c_size_t(8),
        )
        choice, count = Choice(), ctypes.c_int()
        self(
            "cublasLtMatmulAlgoGetHeuristic",
            self.handle,
            how,
            a,
            b,
            c,
            c,
            preference,
            1,
            ctypes.byref(choice),
            ctypes.byref(count),
        )
        if count.value < 1 or choice.status:
            raise Refused(
                "cublasLtMatmulAlgoGetHeuristic returned no algorithm: %d %s"
                % (choice.status, self.describe(choice.status))
            )
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        return lambda: self(
            "cublasLtMatmul",
            self.handle,
            how,
            ctypes.byref(one),
            first,
            a,
            second,
            b,
            ctypes.byref(zero),
            product,
            c,
            product,
            c,
            ctypes.byref(choice),
            self.space,
            ctypes.c_size_t(WORKSPACE),
            None,
        )
