"""Multiply matrices on each device through the TensorFlow of this interpreter.

Soft placement is off: TensorFlow may not quietly take the CPU. The device is read from the result
(2.x) or from the graphs that were really run (1.x), not from the request.
"""
import os
import time

from .exactness import operand, wrong_rows
from .loaded import foreign_libraries, mapped_files
from .output import emit, plain
from .tensorflow_1 import Graph
from .tensorflow_2 import Eager
from .tensorflow_checks import capabilities_of, small_checks
from .tensorflow_loader import query_loader
from .timing import SIZE_CPU, SIZE_GPU, entry


def build_of(tensorflow):
    try:
        info = dict(tensorflow.sysconfig.get_build_info())
    except AttributeError:
        try:
            from tensorflow.python.platform import build_info
        except ImportError:  # 1.0 has none
            build_info = None
        info = {"cuda_version": getattr(build_info, "cuda_version_number", None),
                "cudnn_version": getattr(build_info, "cudnn_version_number", None)}
    return {"cuda": info.get("cuda_version") or None, "cudnn": info.get("cudnn_version") or None,
            "compute_capabilities": list(info.get("cuda_compute_capabilities") or []),
            "cuda_build": bool(tensorflow.test.is_built_with_cuda())}


def wanted_devices(gpus, expect):
    """Every GPU that is declared or listed; the CPU only if no GPU is declared."""
    if expect == "0" or (expect == "any" and not gpus):
        return ["/CPU:0"]
    declared = 0 if expect == "any" else int(expect)
    return ["/GPU:%d" % index for index in range(max(gpus, declared))]


def missing_gpu(found, gpus):
    index = int(found["requested"].rsplit(":", 1)[1])
    if "GPU" in found["requested"] and index >= gpus:
        found["error"] = "TensorFlow reports %d GPU%s" % (gpus, "" if gpus == 1 else "s")
    return found["error"]


def products(numpy, engine, expect, size=None):
    entries, good, operands = [], [], []
    for index, requested in enumerate(wanted_devices(engine.gpus, expect)):
        n = size or (SIZE_GPU if "GPU" in requested else SIZE_CPU)
        found = entry(requested, n)
        entries.append(found)
        if missing_gpu(found, engine.gpus):
            continue
        a, b = operand(numpy, n, index + 1), operand(numpy, n, 0)
        try:
            found["wrong"] = wrong_rows(numpy, a, b, engine.multiply(found, a, b))
            good.append(requested)
            operands.append(a)
        except Exception as error:
            found["error"] = plain(error)
    total = {"devices": good, "wrong": None, "error": None}
    if not good:
        total["error"] = "no device computed"
        return entries, total
    try:
        b = operand(numpy, operands[0].shape[0], 0)
        result = engine.tower_sum(good, operands, b)
        total["wrong"] = wrong_rows(numpy, sum(operands), b, result)
    except Exception as error:
        total["error"] = plain(error)
    return entries, total


def through_tensorflow(options):
    # TensorFlow reads these once, when it is loaded.
    os.environ.update(TF_CPP_VMODULE="dso_loader=1", TF_CPP_MIN_LOG_LEVEL="0",
                      TF_FORCE_GPU_ALLOW_GROWTH="true")
    begin = time.time()
    document = {"state": "failed", "error": "stopped while importing TensorFlow", "version": None,
                "build": None, "loader": None, "devices": [], "small": None, "capabilities": [],
                "matmul": [], "tower_sum": None, "mapped": [], "strangers": [],
                "seconds": {"import": None, "total": None}}
    emit(document)
    mapped = set()
    try:
        import tensorflow
        document["seconds"]["import"] = round(time.time() - begin, 2)
        document["version"] = tensorflow.__version__
        document["build"] = build_of(tensorflow)
        document["error"] = "stopped while TensorFlow opened its libraries"
        mapped |= mapped_files()
        emit(document)
        document["loader"] = query_loader(tensorflow)
        mapped |= mapped_files()
        document.update(mapped=sorted(mapped), error="stopped while looking for devices")
        emit(document)
        import numpy
        engine = (Graph if tensorflow.__version__.startswith(("0.", "1.")) else Eager)(tensorflow)
        document.update(devices=engine.names, error="stopped while saying hello")
        emit(document)
        document["small"] = small_checks(engine, wanted_devices(engine.gpus, "any")[0])
        document.update(capabilities=capabilities_of(document["small"]),
                        error="stopped while multiplying")
        emit(document)
        document["matmul"], document["tower_sum"] = \
            products(numpy, engine, options.expect_gpus, options.size)
        document.update(state="ok", error=None)
    except Exception as error:
        document["error"] = plain(error)
    document["mapped"] = sorted(mapped | mapped_files())
    document["strangers"] = foreign_libraries()
    document["seconds"]["total"] = round(time.time() - begin, 2)
    emit(document)
