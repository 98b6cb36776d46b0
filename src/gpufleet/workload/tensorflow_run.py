"""Multiply matrices on each device through the TensorFlow of this interpreter.

Soft placement is off: TensorFlow may not quietly take the CPU. The device is read from the result
(2.x) or from the graphs that were really run (1.x), not from the request.
"""

import re

from .framework_run import first_device, products
from .output import captured, unique
from .tensorflow_1 import Graph
from .tensorflow_2 import Eager
from .tensorflow_checks import capabilities_of, small_checks
from .tensorflow_loader import query_loader

# Why TensorFlow lists no GPU, as its log says it.
REASON = re.compile(
    r"(failed call to cuInit: .*|Cannot dlopen some GPU libraries|"
    r"Ignoring visible gpu device .*)"
)


class TensorFlow:
    """TensorFlow 1.x or 2.x."""

    name, title, module = "tensorflow", "TensorFlow", "tensorflow"
    variables = (
        ("TF_CPP_VMODULE", "dso_loader=1"),
        ("TF_CPP_MIN_LOG_LEVEL", "0"),
        ("TF_FORCE_GPU_ALLOW_GROWTH", "true"),
        # Else it leaves out a small GPU beside a larger one, though it lists both.
        ("TF_MIN_GPU_MULTIPROCESSOR_COUNT", "1"),
    )

    def stages(self, options):
        return (
            ("importing TensorFlow", self.load),
            ("TensorFlow opened its libraries", lambda: {"loader": query_loader(self.tensorflow)}),
            ("looking for devices", self.start),
            ("saying hello", self.say_hello),
            ("multiplying", lambda: products(self.numpy, self, options)),
        )

    def load(self):
        import tensorflow

        self.tensorflow = tensorflow
        return {"version": tensorflow.__version__, "build": build_of(tensorflow)}

    def start(self):
        import numpy

        self.numpy, version = numpy, self.tensorflow.__version__
        kind = Graph if version.startswith(("0.", "1.")) else Eager
        self.engine, written = captured(lambda: kind(self.tensorflow))
        self.gpus, self.multiply = range(self.engine.gpus), self.engine.multiply
        reasons = REASON.findall(written)
        if not self.tensorflow.test.is_built_with_cuda():
            reasons.append("it was built without CUDA")
        self.no_gpu, self.refused = None if self.gpus else "; ".join(unique(reasons)) or None, {}
        self.tower_sum = self.engine.tower_sum
        return {"devices": self.engine.names, "no_gpu": self.no_gpu}

    def say_hello(self):
        small = small_checks(self.engine, first_device(self.gpus))
        return {"small": small, "capabilities": capabilities_of(small)}

    @staticmethod
    def precisions(_device):
        """Beyond float32: gpu.formats tells of the others."""
        return ()


def build_of(tensorflow):
    try:
        info = dict(tensorflow.sysconfig.get_build_info())
    except AttributeError:
        try:
            from tensorflow.python.platform import build_info
        except ImportError:  # 1.0 has none
            build_info = None
        info = {
            "cuda_version": getattr(build_info, "cuda_version_number", None),
            "cudnn_version": getattr(build_info, "cudnn_version_number", None),
        }
    return {
        "cuda": info.get("cuda_version") or None,
        "cudnn": info.get("cudnn_version") or None,
        "compute_capabilities": list(info.get("cuda_compute_capabilities") or []),
        "cuda_build": bool(tensorflow.test.is_built_with_cuda()),
    }
