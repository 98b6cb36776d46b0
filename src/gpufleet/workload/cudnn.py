"""cuDNN: an exact convolution on a GPU."""

import array
import ctypes
import operator
import os
import random

from .entries import RUNNING, busy
from .library import Library
from .runtime import Runtime


class Convolver(Library):
    """cuDNN, by the functions that 5 to 9 have in common."""

    def describe(self, status):
        return self.name_of_status("cudnnGetErrorString", status)

    def version(self):
        self.library.cudnnGetVersion.restype = ctypes.c_size_t
        number = self.library.cudnnGetVersion()
        major = 1000 if number < 10000 else 10000  # 8.9.7 is 8907, 9.1.0 is 90100
        return "%d.%d.%d" % (number // major, number % major // 100, number % 100)

    def create(self, kind):
        thing = ctypes.c_void_p()
        self("cudnnCreate" + kind, ctypes.byref(thing))
        return thing


CHANNELS, SIDE, WINDOW = 8, 16, 3


def convolve(options, report):
    found = {
        "gpu": options.gpu,
        "soname": os.path.basename(options.cudnn),
        "version": None,
        "wrong": None,
        "busy": None,
        "error": RUNNING,
    }
    report(cudnn=[found])
    cudnn, runtime = Convolver(options.cudnn), Runtime(options.toolkit)
    found["version"] = cudnn.version()
    report(cudnn=[found])
    runtime.enter(options.gpu)
    found["busy"] = busy(runtime, options.budget)
    if found["busy"] is None:
        image = [random.randint(-8, 8) for _ in range(CHANNELS * SIDE * SIDE)]
        weights = [random.randint(-8, 8) for _ in range(CHANNELS * CHANNELS * WINDOW * WINDOW)]
        computed = convolution(cudnn, runtime, image, weights)
        found["wrong"] = sum(map(operator.ne, computed, expected_convolution(image, weights)))
    found["error"] = None
    report(cudnn=[found])


def convolution(cudnn, runtime, image, weights):
    """By implicit GEMM, which each release has, with a border of one."""
    handle = cudnn.create("")
    x, y = cudnn.create("TensorDescriptor"), cudnn.create("TensorDescriptor")
    w, how = cudnn.create("FilterDescriptor"), cudnn.create("ConvolutionDescriptor")
    for tensor in (x, y):
        cudnn("cudnnSetTensor4dDescriptor", tensor, 0, 0, 1, CHANNELS, SIDE, SIDE)
    cudnn("cudnnSetFilter4dDescriptor", w, 0, 0, CHANNELS, CHANNELS, WINDOW, WINDOW)
    # Border, step, dilation, cross-correlation, and the type to compute in: 5 does not read that.
    cudnn("cudnnSetConvolution2dDescriptor", how, 1, 1, 1, 1, 1, 1, 1, 0)
    size, one, zero = ctypes.c_size_t(), ctypes.c_float(1), ctypes.c_float(0)
    cudnn("cudnnGetConvolutionForwardWorkspaceSize", handle, x, w, how, y, 0, ctypes.byref(size))
    pointers = [runtime.upload(array.array("f", numbers)) for numbers in (image, weights)]
    result, scratch = runtime.allocate(4 * len(image)), runtime.allocate(max(size.value, 4))
    cudnn(
        "cudnnConvolutionForward",
        handle,
        ctypes.byref(one),
        x,
        pointers[0],
        w,
        pointers[1],
        how,
        0,
        scratch,
        size,
        ctypes.byref(zero),
        y,
        result,
    )
    runtime.wait()
    return runtime.download(result, len(image))


def expected_convolution(image, weights):
    """The same on this processor, in whole numbers."""
    wide, area = SIDE + 2, WINDOW * WINDOW
    padded = [0] * (CHANNELS * wide * wide)
    for position, value in enumerate(image):
        channel, rest = divmod(position, SIDE * SIDE)
        row, column = divmod(rest, SIDE)
        padded[(channel * wide + row + 1) * wide + column + 1] = value
    computed = []
    for out in range(CHANNELS):
        total = [0] * (SIDE * SIDE)
        for position in range(CHANNELS * area):
            weight = weights[out * CHANNELS * area + position]
            channel, rest = divmod(position, area)
            down, right = divmod(rest, WINDOW)
            for row in range(SIDE):
                at = (channel * wide + row + down) * wide + right
                for column in range(SIDE):
                    total[row * SIDE + column] += weight * padded[at + column]
        computed += total
    return computed
