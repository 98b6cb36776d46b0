"""Compute on each device through the PyTorch of this interpreter, 1.0 and later.

A tensor names its device, and nothing of PyTorch's moves it: what was requested on a GPU is
computed there or fails.
"""

from .framework_run import convolutions, first_device, number_of, products, tried
from .output import plain
from .own_libraries import open_own_libraries
from .pytorch_programs import compiled, workers
from .timing import now, timed

# ruff: noqa: B905 (zip has no `strict` before Python 3.10)

# By which part of the run's time a function is to be compiled.
COMPILE_SHARE = 0.9
# Beyond float32, with the compute capability that has them in hardware.
PRECISIONS = (("float16", (5, 3)), ("bfloat16", (8, 0)))


class PyTorch:
    """PyTorch."""

    name, title, module = "pytorch", "PyTorch", "torch"
    variables = ()

    def stages(self, options):
        begin = now()
        return (
            ("importing PyTorch", self.load),
            ("looking for devices", self.start),
            ("exchanging arrays with numpy", self.exchange),
            ("multiplying", lambda: products(self.numpy, self, options)),
            ("convolving", lambda: convolutions(self.numpy, self, options)),
            ("transforming and solving", self.routines),
            ("PyTorch opened its libraries", lambda: {"loader": open_own_libraries()}),
            ("loading data by two workers", lambda: {"workers": workers(self.torch)}),
            (
                "compiling a function",
                lambda: {
                    "compile": compiled(
                        self.numpy,
                        self.torch,
                        "cuda:0" if self.gpus else None,
                        options.no_compile,
                        begin + COMPILE_SHARE * options.deadline - now(),
                    )
                },
            ),
        )

    def load(self):
        import torch

        self.torch = torch
        return {
            "version": torch.__version__.partition("+")[0],
            "build": self.build(),
            "versions": self.versions(),
        }

    def build(self):
        torch = self.torch
        cuda = torch.version.cuda
        try:
            cudnn = dotted(torch.backends.cudnn.version())
        except Exception:  # `versions` has the reason
            cudnn = None
        return {
            "cuda": cuda,
            "cudnn": cudnn,
            "cuda_build": cuda is not None,
            "compute_capabilities": self.architectures(),
        }

    def architectures(self):
        """The targets of the build's code, such as sm_90 and compute_90; without a driver too."""
        try:
            return (self.torch._C._cuda_getArchFlags() or "").split()
        except (AttributeError, RuntimeError):  # before 1.8, or without CUDA
            return []

    def versions(self):
        """The versions that libraries report, or the reason why there is none, by name."""
        torch, found = self.torch, {}
        for name, ask in (
            ("cudnn", lambda: dotted(torch.backends.cudnn.version())),
            ("nccl", lambda: dotted(torch.cuda.nccl.version())),
        ):
            try:
                found[name] = ask() or "none"
            except Exception as error:
                found[name] = plain(error)
        return found

    def start(self):
        cuda = self.torch.cuda
        # The count alone may come from the driver's management library.
        self.gpus = range(cuda.device_count() if cuda.is_available() else 0)
        self.no_gpu, self.refused = None if self.gpus else self.reason(), {}
        pairs = [cuda.get_device_capability(gpu) for gpu in self.gpus]
        self.capabilities = ["%d.%d" % pair for pair in pairs]
        return {
            "devices": ["cpu"] + ["cuda:%d" % gpu for gpu in self.gpus],
            "capabilities": self.capabilities,
            "no_gpu": self.no_gpu,
        }

    def reason(self):
        """Why PyTorch uses no GPU, as it says itself."""
        try:
            self.torch.zeros(1).cuda()
        except Exception as error:
            return plain(error)
        return "torch.cuda.is_available() is False"

    def exchange(self):
        """A build for numpy 1 cannot exchange arrays with numpy 2; all that follows does."""
        import numpy

        self.numpy = numpy
        found = {"version": numpy.__version__, "error": None}
        try:
            numbers = numpy.arange(8, dtype=numpy.float32)
            if self.torch.from_numpy(numbers).numpy().tolist() != numbers.tolist():
                found["error"] = "an array came back changed"
        except Exception as error:
            found["error"] = plain(error)
        return {"numpy": found}

    # -- the engine of `products` ----------------------------------------------------------------

    def precisions(self, requested):
        if "GPU" not in requested:
            return [name for name, _ in PRECISIONS if hasattr(self.torch, name)]
        own = self.torch.cuda.get_device_capability(number_of(requested))
        return [name for name, least in PRECISIONS if own >= least and hasattr(self.torch, name)]

    def device(self, requested):
        return self.torch.device("cuda:%d" % number_of(requested) if "GPU" in requested else "cpu")

    def multiply(self, found, a, b):
        torch, device = self.torch, self.device(found["requested"])
        dtype = getattr(torch, found.get("precision") or "float32")
        left, right = [torch.from_numpy(m).to(device).to(dtype) for m in (a, b)]

        def product():
            result = torch.matmul(left, right)
            # One number is read: else the time would only cover queueing the product.
            result[0, 0].item()
            return result

        result = timed(found, product)
        found["device"] = device_name(result)
        return result.float().cpu().numpy()

    def tower_sum(self, devices, operands, b):
        """On the first device, to which the others' products are copied."""
        torch, first = self.torch, self.device(devices[0])
        parts = [
            torch.matmul(*[torch.from_numpy(m).to(self.device(device)) for m in (a, b)])
            for device, a in zip(devices, operands)
        ]
        return sum(part.to(first) for part in parts).cpu().numpy()

    def convolve(self, found, images, kernels):
        torch, device = self.torch, self.device(found["requested"])
        result = torch.nn.functional.conv2d(
            *[torch.from_numpy(m).to(device) for m in (images, kernels)], stride=2
        )
        found["device"] = device_name(result)
        return result.cpu().numpy()

    def routines(self):
        """A Fourier transform and a solver on the first device: exact with these operands."""
        torch, device = self.torch, self.device(first_device(self.gpus))

        # A GPU that is refused is so from the first tensor on.
        def fft():
            impulse = torch.zeros(256, device=device)
            impulse[0] = 1
            return bool((torch.fft.fft(impulse).cpu() == torch.ones(256)).all())

        def solve():
            scale = torch.diag(torch.tensor([2.0, 4.0, 8.0, 16.0], device=device))
            right = torch.ones(4, 1, device=device)
            return torch.linalg.solve(scale, right).cpu().tolist() == [
                [0.5],
                [0.25],
                [0.125],
                [0.0625],
            ]

        return tried(
            [
                (name, routine)
                for name, routine, module in (("fft", fft, "fft"), ("solve", solve, "linalg"))
                if hasattr(getattr(torch, module, None), name)
            ]
        )


def device_name(tensor):
    """A tensor's device as the checks have it: /GPU:0."""
    device = tensor.device
    return "/CPU:0" if device.type == "cpu" else "/GPU:%d" % device.index


def dotted(version):
    """9.1.0 of 90100, 8.5.0 of 8500, 2.21.5 of (2, 21, 5), 2708 and 22105; None of none."""
    if not version:
        return None
    if isinstance(version, tuple):
        return ".".join(str(part) for part in version)
    # cuDNN 9 and NCCL 2.9 have two digits for each part after the first.
    major, rest = divmod(version, 10000 if version >= 10000 else 1000)
    return "%d.%d.%d" % (major, rest // 100, rest % 100)
