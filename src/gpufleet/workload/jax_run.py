"""Compute on each device through the JAX of this interpreter, 0.4.23 and later.

JAX takes the CPU where its CUDA plugin fails, and says so in its log at most; or it takes nothing,
and the run goes on without the plugin. The device is read from the result, and the plugin's own
reason is in the document.
"""

import logging
import os
import re

from .framework_run import convolutions, first_device, number_of, products, tried
from .output import captured, plain, unique
from .own_libraries import dies, open_own_libraries, own_libraries
from .timing import timed

# ruff: noqa: B905 (zip has no `strict` before Python 3.10)

PRECISIONS = ("float16", "bfloat16")
CUDA_PLATFORMS = ("gpu", "cuda")
# A line of XLA on a GPU that it leaves out: one that another process uses exclusively, or whose
# memory is full.
REFUSED = re.compile(r"(unable to create StreamExecutor for CUDA:(\d+): .*)")
# And of the driver.
REFUSED_ALL = re.compile(r"(failed call to cuInit: .*)")


class Lines(logging.Handler):
    """Lines that JAX logs as a warning or worse: only there it reports a failing plugin."""

    def __init__(self):
        logging.Handler.__init__(self, logging.WARNING)
        self.lines = []

    def emit(self, record):
        text = record.getMessage()
        if record.exc_info and record.exc_info[1]:
            text += " " + plain(record.exc_info[1])
        self.lines.append(" ".join(text.split())[:500])


class Jax:
    """JAX."""

    name, title, module = "jax", "JAX", "jax"
    # As much memory as it needs, not three quarters of each GPU; and no plugin of NCCL's for the
    # network, as the sum is this host's.
    variables = (
        ("XLA_PYTHON_CLIENT_PREALLOCATE", "false"),
        ("NCCL_NET_PLUGIN", "none"),
        ("NCCL_TUNER_PLUGIN", "none"),
    )

    def stages(self, options):
        return (
            ("importing JAX", self.load),
            ("looking for devices", lambda: self.start(options)),
            ("multiplying", lambda: products(self.numpy, self, options)),
            ("convolving", lambda: convolutions(self.numpy, self, options)),
            ("transforming and solving", self.routines),
            ("JAX opened its libraries", self.open_libraries),
        )

    def load(self):
        self.crash = crash_of_cupti()
        if self.crash:
            # The rest is tried without the plugin, which would end this process.
            os.environ["JAX_PLATFORMS"] = "cpu"
        self.log = Lines()
        logging.getLogger("jax").addHandler(self.log)
        logging.getLogger("jax_plugins").addHandler(self.log)
        import jax

        self.jax = jax
        self.libraries = cuda_answers()
        return {"version": jax.__version__, "build": self.build()}

    def build(self):
        """The versions that the CUDA plugin was built with; a build for the CPU has none."""
        cuda, cudnn = [
            readable(name, answer(self.libraries, name + "_build_version"))
            for name in ("cuda_runtime", "cudnn")
        ]
        return {
            "cuda": cuda,
            "cudnn": cudnn,
            "cuda_build": self.libraries is not None,
            "compute_capabilities": [],
        }

    def start(self, options):
        import numpy

        self.numpy = numpy
        (devices, error), written = captured(lambda: self.devices(options))
        self.gpus = {device.id: device for device in devices if device.platform in CUDA_PLATFORMS}
        self.refused = {int(number): line[:500] for line, number in REFUSED.findall(written)}
        if error and not self.refused:
            # Each program ends here: the CPU, on which this run goes on, is not what it gets.
            self.refused = {0: error}
        messages = [*([error] if error else []), *REFUSED_ALL.findall(written)]
        self.no_gpu = None if self.gpus else self.reason(messages)
        capabilities = [getattr(card, "compute_capability", None) for card in self.gpus.values()]
        return {
            "devices": [str(device) for device in devices],
            "no_gpu": self.no_gpu,
            "capabilities": [str(one) for one in capabilities if one],
            "versions": self.versions(),
        }

    def devices(self, options):
        """JAX's devices, and why there is none by its CUDA plugin if that ends the search."""
        try:
            return self.jax.devices(), None
        except RuntimeError as error:
            if options.expect_gpus == "0":
                raise
            self.jax.config.update("jax_platforms", "cpu")
            return self.jax.devices(), plain(error).partition(" (you may need to uninstall")[0]

    def reason(self, messages=()):
        """Why JAX uses no GPU, as its parts say it; `messages`: those of its search for devices."""
        if self.crash:
            return "its CUDA plugin was not loaded: %s" % self.crash
        if self.libraries is None and not has_plugin():
            return "no CUDA plugin of JAX is installed"
        errors = getattr(bridge(), "_backend_errors", None) or {}
        found = [*messages]
        found += [str(errors[name]) for name in sorted(errors) if name in ("cuda", "gpu")]
        found += [line for line in self.log.lines if re.search("cuda|gpu", line, re.IGNORECASE)]
        if not found:
            try:
                self.libraries.cuda_device_count()
            except Exception as error:
                found.append(plain(error))
        return (
            "; ".join(unique(" ".join(text.split())[:500] for text in found))
            or without_node()
            or "jax.devices() lists none"
        )

    def versions(self):
        """The loaded libraries' own versions, and the platform of the devices."""
        found = {}
        for name in ("cuda_runtime", "cudnn", "cublas", "cufft", "cusolver", "cusparse", "cupti"):
            if self.crash and name == "cupti":
                continue
            if hasattr(self.libraries, name + "_get_version"):
                number = answer(self.libraries, name + "_get_version")
                found[name] = readable(name, number) or str(number)
        client = getattr(self.jax.devices()[0], "client", None)
        platform = getattr(client, "platform_version", None)
        if platform:
            found["platform"] = " ".join(str(platform).split())
        return found

    def open_libraries(self):
        found = open_own_libraries()
        if self.crash:
            found["failed"].append({"library": "libcupti", "error": self.crash})
        return {"loader": found}

    # -- the engine of `products` ----------------------------------------------------------------

    def precisions(self, _requested):
        return PRECISIONS

    def device(self, requested):
        if "GPU" in requested:
            return self.gpus[number_of(requested)]
        return self.jax.devices("cpu")[0]

    def matmul(self, left, right):
        return self.jax.numpy.matmul(left, right, precision=self.jax.lax.Precision.HIGHEST)

    def multiply(self, found, a, b):
        jax, device = self.jax, self.device(found["requested"])
        dtype = getattr(jax.numpy, found.get("precision") or "float32")
        left, right = [jax.device_put(jax.numpy.asarray(m, dtype=dtype), device) for m in (a, b)]
        step = jax.jit(self.matmul)

        def product():
            # Waited for: else the time would only cover queueing it.
            return step(left, right).block_until_ready()

        result = timed(found, product)
        found["device"] = device_name(result)
        return self.numpy.asarray(result).astype(self.numpy.float32)

    def tower_sum(self, devices, operands, b):
        """One program on all devices of a model, and their collective sum.

        JAX runs no program on devices of different models.
        """
        models = {}
        for name, operand in zip(devices, operands):
            device = self.device(name)
            models.setdefault(getattr(device, "device_kind", None), []).append((device, operand))
        return sum(self.collective_sum(pairs, b) for pairs in models.values())

    def collective_sum(self, pairs, b):
        jax = self.jax
        step = jax.pmap(
            lambda left, right: jax.lax.psum(self.matmul(left, right), "device"),
            axis_name="device",
            in_axes=(0, None),
            devices=[device for device, _ in pairs],
        )
        return self.numpy.asarray(step(self.numpy.stack([left for _, left in pairs]), b))[0]

    def convolve(self, found, images, kernels):
        jax, device = self.jax, self.device(found["requested"])
        step = jax.jit(
            lambda left, right: jax.lax.conv_general_dilated(
                left, right, (2, 2), "VALID", precision=jax.lax.Precision.HIGHEST
            )
        )
        result = step(*[jax.device_put(m, device) for m in (images, kernels)])
        found["device"] = device_name(result)
        return self.numpy.asarray(result)

    def routines(self):
        """A Fourier transform and a solver on the first device: exact with these operands."""
        jax, numpy = self.jax, self.numpy
        device = self.device(first_device(self.gpus))
        impulse = numpy.zeros(256, numpy.float32)
        impulse[0] = 1
        scale = numpy.diag([2.0, 4.0, 8.0, 16.0]).astype(numpy.float32)

        def fft():
            return bool(
                (
                    numpy.asarray(jax.jit(jax.numpy.fft.fft)(jax.device_put(impulse, device))) == 1
                ).all()
            )

        def solve():
            return numpy.asarray(
                jax.numpy.linalg.solve(
                    jax.device_put(scale, device), jax.device_put(numpy.ones((4, 1), "f"), device)
                )
            ).tolist() == [[0.5], [0.25], [0.125], [0.0625]]

        return tried([("fft", fft), ("solve", solve)])


# -- JAX's own parts, whose names differ between releases -----------------------------------------


def bridge():
    """The module that knows the backends and why one failed."""
    try:
        from jax._src import xla_bridge
    except ImportError:
        return None
    return xla_bridge


def without_node():
    """The reason why JAX does not try its CUDA plugin: it sees no device file of a GPU; or None."""
    try:
        from jax._src import hardware_utils

        if not hardware_utils.has_visible_nvidia_gpu():
            return "it sees no device file of a GPU, such as /dev/nvidia0"
    except (ImportError, AttributeError):  # other releases do not look for one
        pass
    return None


def cuda_answers():
    """The module by which the plugin tells its libraries' versions; None where there is none."""
    try:
        from jax._src.lib import cuda_versions

        return cuda_versions
    except ImportError:
        return None


def has_plugin():
    """Return whether a CUDA plugin is installed, or CUDA kernels of a jaxlib before 0.4.30."""
    try:
        import pkgutil

        import jax_plugins

        found = [item.name for item in pkgutil.iter_modules(jax_plugins.__path__)]
        if any("cuda" in name for name in found):
            return True
    except (ImportError, AttributeError):
        pass
    import jaxlib

    return os.path.isdir(os.path.join(os.path.dirname(jaxlib.__file__), "cuda"))


def crash_of_cupti():
    """The signal that ends a process with the CUDA plugin, as a sentence; None if none does."""
    for name, path in own_libraries().items():
        if name.startswith("libcupti."):
            signal = dies(path, "cuptiGetVersion")
            if signal:
                return "cuptiGetVersion of %s ends its process with signal %d" % (name, signal)
    return None


def answer(libraries, function):
    try:
        return getattr(libraries, function)()
    except Exception:  # it is not there, or does not know
        return None


def readable(library, number):
    """12.3 of CUDA's 12030, 9.1.1 and 8.9.2 of cuDNN's 90101 and 8902; None of others."""
    if not number or library not in ("cuda_runtime", "cudnn"):
        return None
    if library == "cuda_runtime":
        return "%d.%d" % (number // 1000, number % 1000 // 10)
    major, rest = divmod(number, 10000 if number >= 10000 else 1000)
    return "%d.%d.%d" % (major, rest // 100, rest % 100)


def device_name(array):
    """The device of an array as the checks have it: /GPU:0."""
    devices = array.devices() if callable(getattr(array, "devices", None)) else {array.device()}
    if len(devices) != 1:
        return None
    device = next(iter(devices))
    kind = "GPU" if device.platform in CUDA_PLATFORMS else device.platform.upper()
    return "/%s:%d" % (kind, device.id)
