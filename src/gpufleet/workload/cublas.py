"""The toolkit's cuBLAS: an exact product on each GPU, and how fast."""

import ctypes

from .comparison import Comparison
from .entries import for_each_gpu, new_entries
from .exactness import ExactProduct
from .library import Library, Refused, library_file
from .runtime import Runtime
from .timing import REPEATS, SIZE_GPU, now


class Blas(Library):
    """The toolkit's cuBLAS, on the GPU that was entered."""

    KNOWN = (
        (1, "CUBLAS_STATUS_NOT_INITIALIZED"),
        (3, "CUBLAS_STATUS_ALLOC_FAILED"),
        (7, "CUBLAS_STATUS_INVALID_VALUE"),
        (8, "CUBLAS_STATUS_ARCH_MISMATCH"),
        (11, "CUBLAS_STATUS_MAPPING_ERROR"),
        (13, "CUBLAS_STATUS_EXECUTION_FAILED"),
        (14, "CUBLAS_STATUS_INTERNAL_ERROR"),
        (15, "CUBLAS_STATUS_NOT_SUPPORTED"),
    )

    def __init__(self, toolkit):
        Library.__init__(self, library_file(toolkit, "cublas"))

    def handle(self):
        handle = ctypes.c_void_p()
        self("cublasCreate_v2", ctypes.byref(handle))
        return handle

    def version(self):
        """The release, such as (12, 1, 3)."""
        values = []
        try:
            for number in range(3):
                value = ctypes.c_int()
                self("cublasGetProperty", number, ctypes.byref(value))
                values.append(value.value)
        except Refused:  # releases without it number themselves 8000
            value, handle = ctypes.c_int(), self.handle()
            self("cublasGetVersion_v2", handle, ctypes.byref(value))
            self("cublasDestroy_v2", handle)
            values = [value.value // 1000, value.value % 1000 // 100]
        return tuple(values)

    def multiply(self, handle, n, a, b, c):
        """c = a * b, all of them row after row. cuBLAS thinks in columns, and so multiplies the
        transposes in the other order."""
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        self(
            "cublasSgemm_v2",
            handle,
            0,
            0,
            n,
            n,
            n,
            ctypes.byref(one),
            b,
            n,
            a,
            n,
            ctypes.byref(zero),
            c,
            n,
        )


def multiply(options, report):
    n = options.size or SIZE_GPU
    asked = {"n": n, "checked": 0, "requested": 1 + REPEATS}
    entries = new_entries(options, first_s=None, steady_s=None, tflops=None, **asked)
    report(cublas=entries)
    runtime, blas = Runtime(options.toolkit), Blas(options.toolkit)
    exact = ExactProduct(n)
    for_each_gpu(
        "cublas", entries, report, runtime, lambda found: measure(runtime, blas, exact, found)
    )


def measure(runtime, blas, exact, found):
    """The first product by itself, then many in a row until the clocks have risen.

    Each is compared with the right one: the first by this processor, the others on the GPU, after
    the series in which they were timed.
    """
    n = exact.n
    a, b = [runtime.upload(operand) for operand in exact.operands]
    products = [runtime.poisoned(4 * n * n) for _ in range(REPEATS)]
    begin = now()
    handle = blas.handle()
    blas.multiply(handle, n, a, b, products[0])
    runtime.wait()
    found["first_s"] = round(now() - begin, 6)
    wrong, found["checked"] = exact.confirm(runtime.download(products[0], n * n)), 1
    comparison = None
    if exact.right is not None:
        comparison = Comparison(runtime, blas, handle, exact.right)
        comparison.prove(products[0])
    started, times = now(), []
    while not times or now() - started < 0.5:
        begin = now()
        for c in products:
            blas.multiply(handle, n, a, b, c)
        runtime.wait()
        times.append((now() - begin) / REPEATS)
        if comparison:
            comparison.begin()
            for at, c in enumerate(products):
                comparison.compare(c, at)
            wrong += comparison.wrong(REPEATS)
            found["checked"] += REPEATS
    # The fastest: what else runs on the GPU at this moment is not its fault.
    best = max(min(times), 1e-9)
    found["steady_s"], found["tflops"] = round(best, 9), round(2.0 * n**3 / best / 1e12, 6)
    found["wrong"] = wrong
    if comparison:
        comparison.release()
    blas("cublasDestroy_v2", handle)
    for pointer in (a, b, *products):
        runtime("cudaFree", pointer)
