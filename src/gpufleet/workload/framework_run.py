"""Run a framework stage by stage, and report its document before each: a crash loses only what
came after.

A framework is a class with `name`, `title`, `module`, `variables` (that it reads when it is loaded)
and `stages(options)`: pairs of what it is doing and a function whose result updates the document.
The products below are the same for all: the device is read from the result, not from the request,
and each row is compared in exact integers.
"""

import os
import re
import shutil
import tempfile

from .exactness import operand, small_operand, wrong_rows
from .loaded import foreign_libraries, mapped_files
from .output import emit, plain
from .timing import SIZE_CPU, SIZE_FORMATS, SIZE_GPU, entry, now

# Errors of a framework that has no product of a precision on a device.
LACKING = re.compile(r"not implemented|not supported|unsupported", re.IGNORECASE)
# Errors of a driver in the same words: a fault.
DRIVER_SAYS = re.compile(r"CUDA error|CUDA_ERROR|\bPTX\b")


def run_stages(framework, options):
    """Run all stages; the document is printed before each of them and at the end."""
    os.environ.update(framework.variables)
    begin, mapped, scratch = now(), set(), scratch_directory()
    document = {
        "framework": framework.name,
        "state": "failed",
        "error": None,
        "version": None,
        "build": None,
        "loader": None,
        "devices": [],
        "small": None,
        "capabilities": [],
        "matmul": [],
        "tower_sum": None,
        "mapped": [],
        "strangers": [],
        "seconds": {"import": None, "total": None},
    }
    try:
        for doing, stage in framework.stages(options):
            document.update(error="stopped while " + doing, mapped=sorted(mapped))
            emit(document)
            document.update(stage())
            mapped |= mapped_files()
            if document["seconds"]["import"] is None:
                document["seconds"]["import"] = round(now() - begin, 2)
        document.update(state="ok", error=None)
    except Exception as error:
        document["error"] = plain(error)
    document["mapped"] = sorted(mapped | mapped_files())
    document["strangers"] = foreign_libraries(scratch)
    shutil.rmtree(scratch, ignore_errors=True)
    tempfile.tempdir = None
    document["seconds"]["total"] = round(now() - begin, 2)
    emit(document)


def scratch_directory():
    """A new directory for whatever the framework writes, removed at the end of the run; in the
    run's own directory, which the probe removes also after a crash."""
    home = os.environ.get("HOME") or ""
    own = os.path.basename(home).startswith("gpufleet-") and os.access(home, os.W_OK)
    tempfile.tempdir = tempfile.mkdtemp(prefix="gpufleet-", dir=home if own else None)
    return tempfile.tempdir


# -- devices -------------------------------------------------------------------------------------


def wanted_devices(gpus, expect):
    """Every GPU that is declared or whose number is in `gpus`; the CPU only if there is none."""
    declared = 0 if expect == "any" else int(expect)
    if expect == "0" or not (gpus or declared):
        return ["/CPU:0"]
    return ["/GPU:%d" % number for number in sorted({*gpus, *range(declared)})]


def wanted_by(engine, options):
    """The devices of a run; a GPU that the framework was refused is one of them."""
    return wanted_devices({*engine.gpus, *engine.refused}, options.expect_gpus)


def first_device(gpus):
    """The first one that a framework uses."""
    return "/GPU:%d" % min(gpus) if gpus else "/CPU:0"


def number_of(device):
    return int(device.rsplit(":", 1)[1])


def missing_gpu(found, engine):
    """Why an entry has no device, put into it; None where it has one."""
    number = number_of(found["requested"])
    if "GPU" in found["requested"] and number not in engine.gpus:
        count = len(engine.gpus)
        reason = engine.refused.get(number) or engine.no_gpu
        found["error"] = "%s reports %d GPU%s%s" % (
            engine.title,
            count,
            "" if count == 1 else "s",
            ": " + reason if reason else "",
        )
    return found["error"]


# -- products ------------------------------------------------------------------------------------


def products(numpy, engine, options):
    """The entries "matmul" and "tower_sum" of an engine's run.

    An engine has a `title`, the numbers of its `gpus`, the reason why there is none (`no_gpu`) or
    not one of them (`refused`, by number), `multiply` and `tower_sum`; `precisions(device)` beyond
    float32.
    """
    entries, good, operands = [], [], []
    for index, requested in enumerate(wanted_by(engine, options)):
        n = options.size or (SIZE_GPU if "GPU" in requested else SIZE_CPU)
        found = entry(requested, n)
        entries.append(found)
        if missing_gpu(found, engine):
            continue
        a, b = operand(numpy, n, index + 1), operand(numpy, n, 0)
        if multiplied(numpy, engine, found, a, b):
            good.append(requested)
            operands.append(a)
        for precision in engine.precisions(requested):
            small = dict(
                entry(requested, min(n, SIZE_FORMATS)), precision=precision, not_applicable=None
            )
            entries.append(small)
            multiplied(
                numpy,
                engine,
                small,
                *[small_operand(numpy, small["n"], seed) for seed in (index + 1, 0)],
            )
    return {"matmul": entries, "tower_sum": summed(numpy, engine, good, operands)}


def multiplied(numpy, engine, found, a, b):
    """Fill in the entry of one product; whether it came to a result."""
    try:
        found["wrong"] = wrong_rows(numpy, a, b, engine.multiply(found, a, b))
    except Exception as error:
        text = plain(error)
        lacking = (
            "not_applicable" in found and LACKING.search(text) and not DRIVER_SAYS.search(text)
        )
        found["not_applicable" if lacking else "error"] = text
        return False
    return True


def summed(numpy, engine, devices, operands):
    """The sum of one product of each device."""
    total = {"devices": devices, "wrong": None, "error": None}
    if not devices:
        total["error"] = "no device computed"
        return total
    try:
        b = operand(numpy, operands[0].shape[0], 0)
        result = engine.tower_sum(devices, operands, b)
        total["wrong"] = wrong_rows(numpy, sum(operands), b, result)
    except Exception as error:
        total["error"] = plain(error)
    return total


# -- what else a library of the stack computes ---------------------------------------------------


def convolutions(numpy, engine, options):
    """The entry "convolution": one on each device that is wanted, each number compared."""
    images, kernels = small_images(numpy)
    expected, entries = convolved(numpy, images, kernels), []
    for requested in wanted_by(engine, options):
        found = {"requested": requested, "device": None, "wrong": None, "error": None}
        entries.append(found)
        if missing_gpu(found, engine):
            continue
        try:
            result = engine.convolve(found, images, kernels)
            found["wrong"] = (
                int((result != expected).sum()) if result.shape == expected.shape else expected.size
            )
        except Exception as error:
            found["error"] = plain(error)
    return {"convolution": entries}


# The convolution's stride in both directions. With a stride of 1 a library may choose an algorithm
# that is not exact (Winograd's, a Fourier transform); none of these supports a stride of 2.
STRIDE = 2


def small_images(numpy):
    """Images and kernels of small integers: (2, 16, 33, 33) and (32, 16, 3, 3)."""
    numbers = numpy.random.RandomState(7)
    return [
        numbers.randint(-8, 9, size=shape).astype(numpy.float32)
        for shape in ((2, 16, 33, 33), (32, 16, 3, 3))
    ]


def convolved(numpy, images, kernels):
    """Their convolution in exact integers, without padding."""
    left, right = images.astype(numpy.int64), kernels.astype(numpy.int64)
    count = (left.shape[2] - right.shape[2]) // STRIDE + 1
    total = 0
    for row in range(right.shape[2]):
        for column in range(right.shape[3]):
            part = left[
                :, :, row : row + STRIDE * count : STRIDE, column : column + STRIDE * count : STRIDE
            ]
            total = total + numpy.einsum("nchw,oc->nohw", part, right[:, :, row, column])
    return total


def tried(routines):
    """The entry "routines": None, or the reason for a wrong result, by name.

    A routine is a function that returns whether its result is right.
    """
    found = {}
    for name, routine in routines:
        try:
            found[name] = None if routine() else "its result is wrong"
        except Exception as error:
            found[name] = plain(error)
    return {"routines": found}
