"""Compare each of thousands of products with the right one, on the GPU that computed them.

It needs nothing but cuBLAS, so that it works with each release: the right product is subtracted,
and the absolute values of what remains are summed. The sum is 0 where each element is right; an
element that is no number makes a sum that is none.
"""

import ctypes

from .library import Refused
from .runtime import address
from .timing import now

# The most products of one series: a GPU's queue takes about 1024 launches, a product three.
SERIES = 300
ON_HOST, ON_DEVICE = 0, 1
FLOAT = 4


class Comparison:
    """The right product on one GPU, and for each product of a series its difference from it."""

    def __init__(self, runtime, blas, handle, right):
        self.runtime, self.blas, self.handle, self.count = runtime, blas, handle, len(right)
        self.right, self.sums = runtime.upload(right), runtime.poisoned(FLOAT * SERIES)
        self.host_right = right

    def begin(self):
        """Forget the series before: a sum that is not written is no number."""
        self.runtime.poison(self.sums, FLOAT * SERIES)

    def compare(self, product, at):
        """Queue the comparison of the product that has this number in the series, and undo it."""
        minus = ctypes.c_float(-1)
        result = ctypes.c_void_p(self.sums.value + FLOAT * at)
        self.blas(
            "cublasSaxpy_v2",
            self.handle,
            self.count,
            ctypes.byref(minus),
            self.right,
            1,
            product,
            1,
        )
        self.blas("cublasSetPointerMode_v2", self.handle, ON_DEVICE)
        self.blas("cublasSasum_v2", self.handle, self.count, product, 1, result)
        self.blas("cublasSetPointerMode_v2", self.handle, ON_HOST)

    def wrong(self, products):
        """How many products of the series differ from the right one."""
        return sum(difference != 0 for difference in self.runtime.download(self.sums, products))

    def prove(self, product):
        """Refuse a comparison that does not tell a right product from one with a wrong element."""
        self.begin()
        length = FLOAT * self.count
        for at in (0, 1):
            self.runtime.copy(product, address(self.host_right), length, self.runtime.TO_DEVICE)
            if at:
                last = ctypes.c_void_p(product.value + length - FLOAT)
                self.runtime("cudaMemset", last, 0x3F, ctypes.c_size_t(FLOAT))
            self.compare(product, at)
        right, wrong = self.runtime.download(self.sums, 2)
        if right != 0 or not wrong > 0:
            raise Refused("cublasSasum_v2 does not tell a wrong product from a right one")

    def seconds(self, product, times=20):
        """The time of one comparison in seconds, at best."""
        took = []
        for _ in range(3):
            begin = now()
            for at in range(times):
                self.compare(product, at)
            self.runtime.wait()
            took.append((now() - begin) / times)
        return min(took)

    def release(self):
        for pointer in (self.right, self.sums):
            self.runtime("cudaFree", pointer)
