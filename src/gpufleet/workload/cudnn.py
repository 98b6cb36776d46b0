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

    def words(self, status):
        return self.told_by("cudnnGetErrorString", status)

    def version(self):
        self.library.cudnnGetVersion.restype = ctypes.c_size_t
        number = self.library.cudnnGetVersion()
        major = 1000 if number < 10000 else 10000  # 8.9.7 is 8907, 9.1.0 is 90100
        return "%d.%d.%d" % (number // major, number % major // 100, number % 100)

    def made(self, kind):
        thing = ctypes.c_void_p()
        self("cudnnCreate" + kind, ctypes.byref(thing))
        return thing

CHANNELS, SIDE, WINDOW = 8, 16, 3


def convolve(options, tell):
    found = {"gpu": options.gpu, "soname": os.path.basename(options.cudnn), "version": None,
             "wrong": None, "busy": None, "error": RUNNING}
    tell(cudnn=[found])
    cudnn, runtime = Convolver(options.cudnn), Runtime(options.toolkit)
    found["version"] = cudnn.version()
    tell(cudnn=[found])
    runtime.enter(options.gpu)
    found["busy"] = busy(runtime, options.budget)
    if found["busy"] is None:
        image = [random.randint(-8, 8) for _ in range(CHANNELS * SIDE * SIDE)]
        weights = [random.randint(-8, 8) for _ in range(CHANNELS * CHANNELS * WINDOW * WINDOW)]
        made = convolution(cudnn, runtime, image, weights)
        found["wrong"] = sum(map(operator.ne, made, convolved(image, weights)))
    found["error"] = None
    tell(cudnn=[found])


def convolution(cudnn, runtime, image, weights):
    """By implicit GEMM, which each release has, with a border of one."""
    handle, x, y = cudnn.made(""), cudnn.made("TensorDescriptor"), cudnn.made("TensorDescriptor")
    w, how = cudnn.made("FilterDescriptor"), cudnn.made("ConvolutionDescriptor")
    for tensor in (x, y):
        cudnn("cudnnSetTensor4dDescriptor", tensor, 0, 0, 1, CHANNELS, SIDE, SIDE)
    cudnn("cudnnSetFilter4dDescriptor", w, 0, 0, CHANNELS, CHANNELS, WINDOW, WINDOW)
    # Border, step, dilation, cross-correlation, and the type to compute in: 5 does not read that.
    cudnn("cudnnSetConvolution2dDescriptor", how, 1, 1, 1, 1, 1, 1, 1, 0)
    size, one, zero = ctypes.c_size_t(), ctypes.c_float(1), ctypes.c_float(0)
    cudnn("cudnnGetConvolutionForwardWorkspaceSize", handle, x, w, how, y, 0, ctypes.byref(size))
    places = [runtime.put(array.array("f", numbers)) for numbers in (image, weights)]
    result, scratch_place = runtime.room(4 * len(image)), runtime.room(max(size.value, 4))
    cudnn("cudnnConvolutionForward", handle, ctypes.byref(one), x, places[0], w, places[1], how, 0,
          scratch_place, size, ctypes.byref(zero), y, result)
    runtime.wait()
    return runtime.get(result, len(image))


def convolved(image, weights):
    """The same on this processor, in whole numbers."""
    wide, area = SIDE + 2, WINDOW * WINDOW
    padded = [0] * (CHANNELS * wide * wide)
    for place, value in enumerate(image):
        channel, rest = divmod(place, SIDE * SIDE)
        row, column = divmod(rest, SIDE)
        padded[(channel * wide + row + 1) * wide + column + 1] = value
    made = []
    for out in range(CHANNELS):
        total = [0] * (SIDE * SIDE)
        for place in range(CHANNELS * area):
            weight = weights[out * CHANNELS * area + place]
            channel, rest = divmod(place, area)
            down, right = divmod(rest, WINDOW)
            for row in range(SIDE):
                at = (channel * wide + row + down) * wide + right
                for column in range(SIDE):
                    total[row * SIDE + column] += weight * padded[at + column]
        made += total
    return made
