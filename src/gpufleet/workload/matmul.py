"""Multiply matrices on each GPU, and tell the truth about where that happened.

    VENV/bin/python matmul.py                            through that stack's TensorFlow (1.x, 2.x)
    python3 matmul.py --toolkit /usr/local/cuda-12.3     through that toolkit's own libraries

One file, standard library (and that stack's TensorFlow) only, Python 3.6 and later, run with an
empty environment. The last line that begins with the mark is one JSON document, `framework` or a
run of `compute` in docs/documents.md; all else is the libraries' chatter. It is printed anew
before each stage, so that a crash loses only what came after.

What makes it a proof:

- Soft placement is off: TensorFlow may not quietly take the CPU. The device is read from the
  result (2.x) or from the graphs that were really run (1.x), not from the request.
- The operands are small integers, so every product and sum is exact in float32 and in TF32,
  in whatever order it is summed: the host's check demands equality, not closeness.
- `mapped` is read from this very process after it computed: which files, not which names.
- Each part of a toolkit is tried in a process of its own: one that crashes or hangs is a finding,
  and the others are still judged.
"""
import argparse
import array
import concurrent.futures
import ctypes
import glob
import json
import operator
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

# ruff: noqa: B905 (zip has no `strict` before Python 3.10)

MARK = "gpufleet-framework: "
COMPUTE_MARK = "gpufleet-compute: "
SIZE_CPU, SIZE_GPU, SIZE_DEEP = 512, 2048, 4096
REPEATS = 5
# What a run may take of a GPU's memory: less than that is free, and somebody else computes there.
BUDGET_MIB = 1024
# The same files as the probe knows; both are single files, so each has it.
CUDA_FILE = re.compile(
    r"^lib(cudart|cublas|cublasLt|cufft|cufftw|curand|cusolver|cusolverMg|cusparse|cudnn\w*|nvrtc"
    r"|nvrtc-builtins|nvJitLink|cupti|nccl|npp\w+|nvjpeg|nvblas|cufile)\.so(\.|$)")

# TensorFlow's own check of its libraries, newest name first. Each returns a status object by
# hidden pointer and does nothing but dlopen.
LOADERS = (
    "_ZN3tsl8internal9DsoLoader22TryDlopenCUDALibrariesEv",
    "_ZN3tsl8internal9DsoLoader26MaybeTryDlopenGPULibrariesEv",
    "_ZN10tensorflow8internal9DsoLoader22TryDlopenCUDALibrariesEv",
    "_ZN15stream_executor8internal9DsoLoader22TryDlopenCUDALibrariesEv",
    "_ZN15stream_executor8internal9DsoLoader26MaybeTryDlopenGPULibrariesEv",
)
OPENED = re.compile(r"Successfully opened (?:dynamic|CUDA) library (\S+)")
NOT_OPENED = re.compile(r"(?:Could not (?:load|dlopen) (?:dynamic )?library '([^']+)'; dlerror: )"
                        r"(.*?)(?:; LD_LIBRARY_PATH:.*)?$", re.MULTILINE)


def emit(document, mark=MARK):
    sys.stdout.write("\n" + mark + json.dumps(document) + "\n")
    sys.stdout.flush()


def mapped_files():
    """Real paths of CUDA's and cuDNN's files in this process."""
    found = set()
    with open("/proc/self/maps") as maps:
        for line in maps:
            fields = line.split(None, 5)
            if len(fields) == 6:
                path = fields[5].rstrip("\n")
                if CUDA_FILE.match(os.path.basename(path)):
                    found.add(path)
    return found


def strangers():
    """Real paths of code in this process that is neither the environment's, nor its Python's, nor
    the system's: modules that were imported, and files that are mapped. CUDA's are in `mapped`.
    """
    real = os.path.realpath
    library, base = real(os.path.dirname(os.__file__)), real(sys.base_prefix)
    homes = [real(sys.prefix), library, "/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib64",
             os.path.dirname(real(__file__)), real(sys.executable)]
    homes += [] if base in ("/usr", "/usr/local", "/") else [base]
    used = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    with open("/proc/self/maps") as maps:
        fields = [line.rstrip("\n").split(None, 5) for line in maps]
    used |= {each[5] for each in fields if len(each) == 6 and "x" in each[1] and ".so" in each[5]}
    used = {path for path in used if path and path.startswith("/")}
    # Debian's Python has links into /etc in its standard library.
    used = {real(path) for path in used
            if not path.startswith(library + "/") or "-packages/" in path}
    # Python's own library stands beside, not in, its standard library. The driver's may stand
    # anywhere; what a whole host preloads is for the checks of the environment.
    known = re.compile(CUDA_FILE.pattern + r"|^libpython3|^lib(cuda|nvidia-[\w-]+)\.so")
    try:
        with open("/etc/ld.so.preload") as stream:
            homes += [real(path) for path in stream.read().replace(":", " ").split()]
    except OSError:
        pass
    own = tuple(home + "/" for home in homes)
    return sorted(path for path in used if not known.match(os.path.basename(path)) and (
        not (path + "/").startswith(own) or (
            "-packages/" in path and not path.startswith(homes[0] + "/"))))


# -- the numbers ---------------------------------------------------------------------------------

def operand(numpy, n, seed):
    return numpy.random.RandomState(seed).randint(-8, 9, size=(n, n)).astype(numpy.float32)


def wrong_rows(numpy, a, b, c, rounds=2):
    """Rows of `c` that are not those of `a @ b`: Freivalds' check in exact integers.

    A wrong row passes with a chance of at most 2**-20 in each round.
    """
    if c.shape != (a.shape[0], b.shape[1]):
        return a.shape[0]
    # No element of a product is as large as 2**40; one of 2**63 is no integer of 64 bits either.
    whole = numpy.isfinite(c) & (c == numpy.rint(c)) & (abs(c) < 2.0 ** 40)
    bad = ~whole.all(axis=1)
    a, b, c = [m.astype(numpy.int64) for m in (a, b, numpy.where(whole, c, 0))]
    for _ in range(rounds):
        r = numpy.random.RandomState(random.randrange(1 << 31)).randint(1, 1 << 20, b.shape[1])
        bad |= a.dot(b.dot(r)) != c.dot(r)
    return int(bad.sum())


class Exact:
    """Square operands of small integers, and the same check of their product without numpy.

    The operands' share of it is computed once (one second for n = 2048), each product costs half
    a second more. A wrong row passes with a chance of at most 2**-30.
    """

    SMALL = bytes((byte % 17 - 8) & 0xff for byte in range(256))

    def __init__(self, n):
        self.n = n
        self.a, self.b = [self._random(n * n) for _ in "ab"]
        self.vector = [random.randrange(1, 1 << 30) for _ in range(n)]
        self.expected = self._times(self.a, self._times(self.b, self.vector))
        self.operands = [array.array("f", matrix) for matrix in (self.a, self.b)]

    def _random(self, length):
        raw = random.getrandbits(8 * length).to_bytes(length, "little")
        return array.array("b", raw.translate(self.SMALL))

    def _times(self, matrix, vector):
        n = self.n
        return [sum(map(operator.mul, matrix[at:at + n], vector))
                for at in range(0, n * n, n)]

    def wrong_rows(self, c):
        """Rows of `c`, an array of n * n floats, that are not those of the product."""
        if len(c) != self.n ** 2:
            return self.n
        return sum(self._wrong(c[row * self.n:(row + 1) * self.n], self.expected[row])
                   for row in range(self.n))

    def _wrong(self, row, expected):
        try:
            whole = list(map(int, row))
        except (ValueError, OverflowError):  # no number, or none that ends
            return True
        return whole != row.tolist() or sum(map(operator.mul, whole, self.vector)) != expected


def entry(requested, n):
    return {"requested": requested, "device": None, "n": n, "wrong": None, "first_s": None,
            "steady_s": None, "tflops": None, "error": None}


def plain(error):
    text = str(error).strip().splitlines()
    return "%s: %s" % (type(error).__name__, text[0][:500] if text else "")


def timed(found, product, first=None):
    """Run it once, then often; the first run pays for initialisation and compilation."""
    begin = time.time()
    result = (first or product)()
    found["first_s"] = round(time.time() - begin, 4)
    times = []
    for _ in range(REPEATS):
        begin = time.time()
        product()
        times.append(time.time() - begin)
    found["steady_s"] = round(sorted(times)[REPEATS // 2], 6)
    found["tflops"] = round(2.0 * found["n"] ** 3 / max(found["steady_s"], 1e-9) / 1e12, 4)
    return result


# -- TensorFlow's library loader -----------------------------------------------------------------

def ask_loader(tensorflow):
    """Have TensorFlow open its CUDA libraries here and now, GPU or none; read what it says."""
    silent = {"ran": False, "opened": [], "failed": []}
    directory = os.path.dirname(tensorflow.__file__)
    core = os.path.join(os.path.dirname(directory), "tensorflow_core")
    for place in (directory, core):
        names = sorted(os.listdir(place)) if os.path.isdir(place) else []
        for name in names:
            if not name.startswith(("libtensorflow_framework.so", "libtensorflow_cc.so")):
                continue
            try:
                library = ctypes.CDLL(os.path.join(place, name))
            except OSError:
                continue
            for symbol in LOADERS:
                if hasattr(library, symbol):
                    text = captured(lambda: status_of(getattr(library, symbol)))[1]  # noqa: B023
                    failed = [{"library": library_, "error": error}
                              for library_, error in NOT_OPENED.findall(text)]
                    return {"ran": True, "opened": unique(OPENED.findall(text)), "failed": failed}
    return silent


def status_of(function):
    """Call a C++ function that returns a status object by hidden pointer."""
    status = ctypes.create_string_buffer(64)
    function.argtypes, function.restype = [ctypes.c_void_p], ctypes.c_void_p
    function(status)


def captured(function):
    """(result, text) of a call, with what C++ writes in it, descriptors and all."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    saved = [os.dup(number) for number in (1, 2)]
    with tempfile.TemporaryFile() as written:
        for number in (1, 2):
            os.dup2(written.fileno(), number)
        try:
            result = function()
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            for number, copy in zip((1, 2), saved):
                os.dup2(copy, number)
                os.close(copy)
            written.seek(0)
            text = written.read().decode("utf-8", "replace")
            # The probe reads it too.
            sys.stderr.write(text)
            sys.stderr.flush()
    return result, text


def unique(items):
    return list(dict.fromkeys(items))


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
    """Every GPU that is declared or seen; the CPU only where no GPU is declared."""
    if expect == "0" or (expect == "any" and not gpus):
        return ["/CPU:0"]
    declared = 0 if expect == "any" else int(expect)
    return ["/GPU:%d" % index for index in range(max(gpus, declared))]


def unseen(found, gpus):
    index = int(found["requested"].rsplit(":", 1)[1])
    if "GPU" in found["requested"] and index >= gpus:
        found["error"] = "TensorFlow sees %d GPU%s" % (gpus, "" if gpus == 1 else "s")
    return found["error"]


# -- TensorFlow 2 --------------------------------------------------------------------------------

class Eager:
    def __init__(self, tensorflow):
        self.tf = tensorflow
        listing = getattr(tensorflow.config, "list_physical_devices", None) or \
            tensorflow.config.experimental.list_physical_devices
        devices = listing()
        self.names = [device.name for device in devices]
        gpus = [device for device in devices if device.device_type == "GPU"]
        self.gpus = len(gpus)
        for gpu in gpus:
            tensorflow.config.experimental.set_memory_growth(gpu, True)
        tensorflow.config.set_soft_device_placement(False)
        # Read once, before the first operation.
        tensorflow.debugging.set_log_device_placement(True)

    def local_devices(self):
        from tensorflow.python.client import device_lib
        return device_lib.list_local_devices()

    def hello(self):
        said = self.tf.constant(HELLO)
        return said.numpy(), getattr(said, "backing_device", None) or said.device

    def place(self, device):
        """Have it say where it multiplies."""
        with self.tf.device(device):
            one = self.tf.constant([[1.0]])
            self.tf.linalg.matmul(one, one).numpy()

    def multiply(self, found, a, b):
        with self.tf.device(found["requested"]):
            left, right = self.tf.constant(a), self.tf.constant(b)

            def product():
                # Copied back, else the time would be that of queueing it.
                result = self.tf.linalg.matmul(left, right)
                return result, result.numpy()
            result, numbers = timed(found, product)
        found["device"] = getattr(result, "backing_device", None) or result.device
        return numbers

    def tower_sum(self, devices, operands, b):
        # Nothing in it is for AutoGraph, which would take its time and write a temporary file.
        # Its operands are arguments: of constants Grappler would make the sum itself, on the CPU.
        @self.tf.function(autograph=False)
        def towers(lefts, right):
            parts = []
            for device, left in zip(devices, lefts):
                with self.tf.device(device):
                    parts.append(self.tf.linalg.matmul(left, right))
            with self.tf.device("/CPU:0"):
                return self.tf.add_n(parts)

        with self.tf.device("/CPU:0"):
            lefts, right = [self.tf.constant(a) for a in operands], self.tf.constant(b)
        return towers(lefts, right).numpy()


# -- TensorFlow 1 --------------------------------------------------------------------------------

class Graph:
    def __init__(self, tensorflow):
        from tensorflow.python.client import device_lib
        self.tf = tensorflow
        self.config = tensorflow.ConfigProto(allow_soft_placement=False)
        self.config.gpu_options.allow_growth = True
        # The first session settles how memory is taken in this process: to list the devices
        # (which in 1.0 knows no configuration) would take all of it.
        with tensorflow.Session(config=self.config):
            pass
        self.devices = device_lib.list_local_devices(self.config) \
            if device_lib.list_local_devices.__code__.co_argcount else \
            device_lib.list_local_devices()
        self.names = [device.name for device in self.devices]
        self.gpus = len([device for device in self.devices if device.device_type == "GPU"])

    def local_devices(self):
        return self.devices

    def hello(self):
        tf, metadata = self.tf, self.tf.RunMetadata()
        options = tf.RunOptions(output_partition_graphs=True)
        with tf.Graph().as_default() as graph:
            said = tf.constant(HELLO, name="hello")
        with tf.Session(graph=graph, config=self.config) as session:
            value = session.run(said, None, options, metadata)
        placed = [node.device for part in metadata.partition_graphs for node in part.node
                  if node.name == "hello"]
        return value, placed[0] if placed else None

    def place(self, device):
        """Have it say where it multiplies."""
        tf = self.tf
        config = tf.ConfigProto()
        config.CopyFrom(self.config)
        config.log_device_placement = True
        with tf.Graph().as_default() as graph:
            left, right = [tf.placeholder(tf.float32, (1, 1)) for _ in "ab"]
            with tf.device(device.lower()):
                result = tf.matmul(left, right, name="placed")
        with tf.Session(graph=graph, config=config) as session:
            session.run(result, {left: [[1.0]], right: [[1.0]]})

    def multiply(self, found, a, b):
        tf = self.tf
        with tf.Graph().as_default() as graph:
            # Placeholders: a product of constants is folded away before it is placed.
            left, right = [tf.placeholder(tf.float32, a.shape) for _ in "ab"]
            with tf.device(found["requested"].lower()):
                result = tf.matmul(left, right, name="product")
        metadata = tf.RunMetadata()
        options = tf.RunOptions(output_partition_graphs=True)
        with tf.Session(graph=graph, config=self.config) as session:
            feed = {left: a, right: b}
            numbers = timed(found, lambda: session.run(result, feed),
                            lambda: session.run(result, feed, options, metadata))
        placed = [node.device for part in metadata.partition_graphs for node in part.node
                  if node.name == "product" and "MatMul" in node.op]
        found["device"] = placed[0] if placed else None
        return numbers

    def tower_sum(self, devices, operands, b):
        tf = self.tf
        with tf.Graph().as_default() as graph:
            parts, feed = [], {}
            for device, a in zip(devices, operands):
                left, right = [tf.placeholder(tf.float32, b.shape) for _ in "ab"]
                with tf.device(device.lower()):
                    parts.append(tf.matmul(left, right))
                feed[left], feed[right] = a, b
            with tf.device("/cpu:0"):
                total = tf.add_n(parts)
        with tf.Session(graph=graph, config=self.config) as session:
            return session.run(total, feed)


# -- the small checks that people know by heart --------------------------------------------------

HELLO = "Hello, TensorFlow!"
# `placed: (MatMul): /job:...`, 1.0 without the second colon, `Executing op MatMul in device /job`.
PLACED = re.compile(r"(?:\(\w*MatMul\w*\):?|op \w*MatMul\w* in device) *(/job:\S+)")
CAPABILITY = re.compile(r"compute capability: (\d+\.\d+)")


def small_checks(engine, requested):
    """Each asks what people look at; one that fails says so and leaves the others alone."""
    found = {"hello": None, "local_devices": [], "gpu_device_name": None, "placement": [],
             "built_with_cuda": None, "errors": {}}

    def hello():
        value, device = engine.hello()
        text = value.decode() if isinstance(value, bytes) else str(value)
        return {"value": text, "device": device}

    def devices():
        return [{"name": device.name, "type": device.device_type,
                 "memory_mib": device.memory_limit >> 20,
                 "description": device.physical_device_desc}
                for device in engine.local_devices()]

    for name, ask in (
        ("hello", hello), ("local_devices", devices),
        ("gpu_device_name", lambda: engine.tf.test.gpu_device_name()),  # noqa: PLW0108 (may lack)
        ("placement", lambda: unique(PLACED.findall(
            captured(lambda: engine.place(requested))[1]))),
        ("built_with_cuda", lambda: bool(engine.tf.test.is_built_with_cuda())),
    ):
        try:
            found[name] = ask()
        except Exception as error:
            found["errors"][name] = plain(error)
    return found


def capabilities_of(small):
    """Of each GPU, as TensorFlow names it."""
    return [capability for device in small["local_devices"] if device["type"] == "GPU"
            for capability in CAPABILITY.findall(device["description"] or "")[:1]]


# -- the run -------------------------------------------------------------------------------------

def products(numpy, engine, expect, size=None):
    entries, good, operands = [], [], []
    for index, requested in enumerate(wanted_devices(engine.gpus, expect)):
        n = size or (SIZE_GPU if "GPU" in requested else SIZE_CPU)
        found = entry(requested, n)
        entries.append(found)
        if unseen(found, engine.gpus):
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
        document["loader"] = ask_loader(tensorflow)
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
    document["strangers"] = strangers()
    document["seconds"]["total"] = round(time.time() - begin, 2)
    emit(document)


# -- a toolkit by itself: its libraries ----------------------------------------------------------

class Refused(Exception):  # noqa: N818 (it is an answer)
    """What a library answered instead of doing what it was asked."""


def library_places(toolkit):
    places = [toolkit + "/lib64", *sorted(glob.glob(toolkit + "/targets/*/lib")), toolkit + "/lib"]
    return [place for place in places if os.path.isdir(place)]


def library_file(toolkit, stem):
    """The file of that toolkit by its SONAME, which is the shortest of its versioned names."""
    for place in library_places(toolkit):
        found = [name for name in os.listdir(place) if re.match(r"lib%s\.so\.\d" % stem, name)]
        if found:
            return os.path.join(place, min(sorted(found, reverse=True), key=len))
    raise Refused("there is no lib%s.so.* in %s" % (stem, toolkit))


class Library:
    """A library whose functions return 0, or else a number that `words` may have a name for."""

    KNOWN = ()

    def __init__(self, path):
        self.library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)

    def __call__(self, function, *arguments):
        try:
            status = getattr(self.library, function)(*arguments)
        except AttributeError:
            raise Refused("it has no %s" % function) from None
        if status:
            raise Refused(("%s returned %d %s" % (function, status, self.words(status))).rstrip())

    def words(self, status):
        return dict(self.KNOWN).get(status, "")

    def told_by(self, function, status):
        try:
            name = getattr(self.library, function)
        except AttributeError:
            return ""
        name.restype = ctypes.c_char_p
        return (name(status) or b"").decode("utf-8", "replace")


class Driver(Library):
    """libcuda.so.1, which belongs to no toolkit."""

    KNOWN = ((100, "CUDA_ERROR_NO_DEVICE"), (802, "CUDA_ERROR_SYSTEM_NOT_READY"),
             (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"), (999, "CUDA_ERROR_UNKNOWN"))
    MAJOR, MINOR = 75, 76

    def __init__(self):
        Library.__init__(self, "libcuda.so.1")

    def words(self, status):
        name = ctypes.c_char_p()
        try:
            self.library.cuGetErrorName(status, ctypes.byref(name))
        except AttributeError:
            pass
        return name.value.decode() if name.value else Library.words(self, status)

    def number(self, function, *arguments):
        value = ctypes.c_int()
        self(function, ctypes.byref(value), *arguments)
        return value.value

    def capability(self, device):
        return "%d.%d" % tuple(self.number("cuDeviceGetAttribute", number, device)
                               for number in (self.MAJOR, self.MINOR))

    def enter(self, gpu):
        """Compute on that GPU from now on, in the context that the runtime shares."""
        context = ctypes.c_void_p()
        device = self.number("cuDeviceGet", gpu)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self("cuCtxSetCurrent", context)
        return device


class Runtime(Library):
    """The toolkit's libcudart."""

    TO_DEVICE, FROM_DEVICE, ON_DEVICE = 1, 2, 3

    def __init__(self, toolkit):
        Library.__init__(self, library_file(toolkit, "cudart"))

    def words(self, status):
        return self.told_by("cudaGetErrorName", status)

    def enter(self, gpu):
        self("cudaSetDevice", gpu)
        self("cudaFree", None)

    def free_mib(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return free.value >> 20

    def room(self, length):
        place = ctypes.c_void_p()
        self("cudaMalloc", ctypes.byref(place), ctypes.c_size_t(length))
        return place

    def put(self, numbers):
        """A copy of an array on the GPU."""
        length = len(numbers) * numbers.itemsize
        place = self.room(length)
        self.copy(place, address(numbers), length, self.TO_DEVICE)
        return place

    def get(self, place, count):
        """An array of that many floats from there. It begins as what no product is."""
        numbers = array.array("f", [float("nan")]) * count
        self.copy(address(numbers), place, 4 * count, self.FROM_DEVICE)
        return numbers

    def copy(self, target, source, length, direction):
        self("cudaMemcpy", target, source, ctypes.c_size_t(length), direction)

    def wait(self):
        self("cudaDeviceSynchronize")


def address(numbers):
    return ctypes.c_void_p(numbers.buffer_info()[0])


class Blas(Library):
    """The toolkit's cuBLAS, on the GPU that was entered."""

    KNOWN = ((1, "CUBLAS_STATUS_NOT_INITIALIZED"), (3, "CUBLAS_STATUS_ALLOC_FAILED"),
             (7, "CUBLAS_STATUS_INVALID_VALUE"), (8, "CUBLAS_STATUS_ARCH_MISMATCH"),
             (11, "CUBLAS_STATUS_MAPPING_ERROR"), (13, "CUBLAS_STATUS_EXECUTION_FAILED"),
             (14, "CUBLAS_STATUS_INTERNAL_ERROR"), (15, "CUBLAS_STATUS_NOT_SUPPORTED"))

    def __init__(self, toolkit):
        Library.__init__(self, library_file(toolkit, "cublas"))

    def handle(self):
        handle = ctypes.c_void_p()
        self("cublasCreate_v2", ctypes.byref(handle))
        return handle

    def multiply(self, handle, n, a, b, c):
        """c = a * b, all of them row after row. cuBLAS thinks in columns, and so multiplies the
        transposes in the other order."""
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        self("cublasSgemm_v2", handle, 0, 0, n, n, n, ctypes.byref(one), b, n, a, n,
             ctypes.byref(zero), c, n)


class Compiler(Library):
    """The toolkit's NVRTC."""

    def __init__(self, toolkit):
        Library.__init__(self, library_file(toolkit, "nvrtc"))

    def words(self, status):
        return self.told_by("nvrtcGetErrorString", status)

    def version(self):
        major, minor = ctypes.c_int(), ctypes.c_int()
        self("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return "%d.%d" % (major.value, minor.value)

    def compile(self, target=None, kind="PTX"):
        """The kernel for a target such as sm_90, as PTX or as CUBIN (machine code)."""
        program, size = ctypes.c_void_p(), ctypes.c_size_t()
        self("nvrtcCreateProgram", ctypes.byref(program), KERNEL, b"gpufleet.cu", 0, None, None)
        words = [("--gpu-architecture=" + target).encode()] if target else []
        self("nvrtcCompileProgram", program, len(words), (ctypes.c_char_p * len(words))(*words))
        self("nvrtcGet%sSize" % kind, program, ctypes.byref(size))
        code = ctypes.create_string_buffer(size.value + 1)
        self("nvrtcGet" + kind, program, code)
        return code.raw

    def code_for(self, capability):
        """(target, code) for a GPU: its own machine code, else PTX for the driver to finish.

        A driver older than the toolkit, though it may run the toolkit's machine code, refuses
        its PTX: hence the order.
        """
        digits = capability.replace(".", "")
        ways = [("sm_" + digits, "CUBIN")] if hasattr(self.library, "nvrtcGetCUBIN") else []
        for target, kind in [*ways, ("compute_" + digits, "PTX")]:
            try:
                return target, self.compile(target, kind)
            except Refused:
                continue
        return "default", self.compile()


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


# -- a toolkit by itself: the stages, each in a process of its own -------------------------------

# What stands in an entry until it is known better.
RUNNING, WAITING = "it was stopped", "it was not tried"
# Attributes of a device, by the numbers of the driver's interface.
FIGURES = {"sm_count": 16, "clock_khz": 13, "memory_clock_khz": 36, "memory_bus_bits": 37,
           "l2_bytes": 38, "warp_size": 10}


def ask_driver(options, tell):
    """deviceQuery's figures, from the driver itself."""
    told, devices = {"cuinit": None, "version": None, "error": WAITING}, []
    tell(driver=told, devices=devices)
    cuda = Driver()
    told.update(version=version_of(cuda.number("cuDriverGetVersion")), error=RUNNING)
    tell(driver=told, devices=devices)
    told["cuinit"] = cuda.library.cuInit(0)
    if told["cuinit"]:
        told["error"] = "cuInit returned %d %s" % (told["cuinit"], cuda.words(told["cuinit"]))
    else:
        for index in range(cuda.number("cuDeviceGetCount")):
            devices.append(figures(cuda, index))
            tell(driver=told, devices=devices)
            devices[-1]["free_mib"] = free_on(cuda, index)
        told["error"] = None
    tell(driver=told, devices=devices)


def version_of(number):
    return "%d.%d" % (number // 1000, number % 1000 // 10)


def figures(cuda, index):
    device = cuda.number("cuDeviceGet", index)
    name, place = ctypes.create_string_buffer(256), ctypes.create_string_buffer(64)
    cuda("cuDeviceGetName", name, 256, device)
    cuda("cuDeviceGetPCIBusId", place, 64, device)
    total, raw = ctypes.c_size_t(), ctypes.create_string_buffer(16)
    cuda("cuDeviceTotalMem_v2", ctypes.byref(total), device)
    # Drivers before 396 tell none.
    known = hasattr(cuda.library, "cuDeviceGetUuid") \
        and cuda.library.cuDeviceGetUuid(raw, device) == 0
    digits = raw.raw.hex()
    parts = ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))
    found = {key: cuda.number("cuDeviceGetAttribute", number, device)
             for key, number in FIGURES.items()}
    found.update(index=index, address=place.value.decode().lower(),
                 uuid="GPU-" + "-".join(digits[a:b] for a, b in parts)
                 if known else None,
                 name=name.value.decode("utf-8", "replace"),
                 compute_capability=cuda.capability(device),
                 memory_mib=total.value >> 20, free_mib=None,
                 clock_mhz=found.pop("clock_khz") // 1000,
                 memory_clock_mhz=found.pop("memory_clock_khz") // 1000,
                 l2_kib=found.pop("l2_bytes") >> 10)
    return found


def free_on(cuda, gpu):
    """Free memory in MiB; None where there is not even enough to ask."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    try:
        cuda.enter(gpu)
        cuda("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    except Refused:
        return None
    return free.value >> 20


KERNEL_NAME = b"gpufleet_mix"
KERNEL = b"""
extern "C" __global__ void gpufleet_mix(const unsigned *in, unsigned *out, unsigned n)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[i] * 2654435761u + (i ^ (in[i] >> 7));
}
"""


def mixed(numbers):
    """What the kernel makes of them."""
    return array.array("I", [(number * 2654435761 + (place ^ (number >> 7))) & 0xffffffff
                             for place, number in enumerate(numbers)])


def compile_and_run(options, tell):
    found = {"version": None, "arch": None, "ptx": False, "error": RUNNING,
             "ran": [{"gpu": gpu, "arch": None, "wrong": None, "error": WAITING}
                     for gpu in range(options.gpus)]}
    tell(nvrtc=found)
    compiler = Compiler(options.toolkit)
    found["version"] = compiler.version()
    tell(nvrtc=found)
    text = compiler.compile().decode("utf-8", "replace")
    target = re.search(r"^\.target +(\w+)", text, re.MULTILINE)
    found.update(arch=target and target.group(1), error=None,
                 ptx=bool(target) and ".entry " + KERNEL_NAME.decode() in text)
    for entry in found["ran"]:
        entry["error"] = RUNNING
        tell(nvrtc=found)
        try:
            cuda = Driver()
            cuda("cuInit", 0)
            entry["arch"], code = compiler.code_for(cuda.capability(cuda.enter(entry["gpu"])))
            entry.update(wrong=run_kernel(cuda, code), error=None)
        except (Refused, OSError) as error:
            entry["error"] = str(error)
    tell(nvrtc=found)


def run_kernel(cuda, code, count=4096):
    """How many of the numbers the GPU made otherwise than this processor."""
    given = array.array("I", [random.getrandbits(32) for _ in range(count)])
    made = array.array("I", [0]) * count
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    cuda("cuModuleLoadData", ctypes.byref(module), code)
    cuda("cuModuleGetFunction", ctypes.byref(function), module, KERNEL_NAME)
    places, length = [ctypes.c_uint64() for _ in "io"], ctypes.c_size_t(4 * count)
    for place, numbers in zip(places, (given, made)):
        cuda("cuMemAlloc_v2", ctypes.byref(place), length)
        cuda("cuMemcpyHtoD_v2", place, address(numbers), length)
    number = ctypes.c_uint(count)
    arguments = (ctypes.c_void_p * 3)(*[ctypes.addressof(each) for each in (*places, number)])
    cuda("cuLaunchKernel", function, count // 256, 1, 1, 256, 1, 1, 0, None, arguments, None)
    cuda("cuCtxSynchronize")
    cuda("cuMemcpyDtoH_v2", address(made), places[1], length)
    for place in places:
        cuda("cuMemFree_v2", place)
    return sum(map(operator.ne, made, mixed(given)))


def on_each(key, entries, tell, runtime, compute):
    """Have `compute` fill in each GPU's entry, where enough of its memory is free."""
    for found in entries:
        found["error"] = RUNNING
        tell(**{key: entries})
        try:
            runtime.enter(found["gpu"])
            found["busy"] = busy(runtime, found.pop("budget"))
            if found["busy"] is None:
                compute(found)
            found["error"] = None
        except (Refused, OSError) as error:
            found["error"] = str(error)
    tell(**{key: entries})


def blank(options, **more):
    gpus = range(options.gpus) if options.gpu is None else [options.gpu]
    return [dict(more, gpu=gpu, wrong=None, busy=None, error=WAITING, budget=options.budget)
            for gpu in gpus]


def busy(runtime, budget_mib):
    """Too little free memory for a run beside others; None where there is enough."""
    free = runtime.free_mib()
    return {"free_mib": free, "wanted_mib": budget_mib} if free < budget_mib else None


def multiply(options, tell):
    n = options.size or SIZE_GPU
    entries = blank(options, n=n, first_s=None, steady_s=None, tflops=None)
    tell(cublas=entries)
    runtime, blas = Runtime(options.toolkit), Blas(options.toolkit)
    exact = Exact(n)
    on_each("cublas", entries, tell, runtime, lambda found: measure(runtime, blas, exact, found))


def measure(runtime, blas, exact, found):
    """The first product by itself, then many in a row until the clocks have risen."""
    n = exact.n
    a, b = [runtime.put(operand) for operand in exact.operands]
    c = runtime.room(4 * n * n)
    begin = time.time()
    handle = blas.handle()
    blas.multiply(handle, n, a, b, c)
    runtime.wait()
    found["first_s"] = round(time.time() - begin, 6)
    started, times = time.time(), []
    while not times or time.time() - started < 0.5:
        begin = time.time()
        for _ in range(REPEATS):
            blas.multiply(handle, n, a, b, c)
        runtime.wait()
        times.append((time.time() - begin) / REPEATS)
    # The fastest: what else runs on the GPU at this moment is not its fault.
    best = max(min(times), 1e-9)
    found["steady_s"], found["tflops"] = round(best, 9), round(2.0 * n ** 3 / best / 1e12, 6)
    found["wrong"] = exact.wrong_rows(runtime.get(c, n * n))
    blas("cublasDestroy_v2", handle)
    for place in (a, b, c):
        runtime("cudaFree", place)


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


# -- a toolkit by itself: --deep -----------------------------------------------------------------

MIB = 1 << 20
# After a stress a GPU has settled when it is at most this much warmer than before it.
SETTLED_C = 10
HOLDS_BACK = {0x4: "sw-power-cap", 0x8: "hw-slowdown", 0x20: "sw-thermal", 0x40: "hw-thermal",
              0x80: "hw-power-brake"}


def copy_on_device(options, tell):
    """Memory bandwidth: a large block copied on the device itself."""
    entries = blank(options, gib_s=None)
    tell(bandwidth=entries)
    runtime = Runtime(options.toolkit)
    length, sample = 256 * MIB, array.array("f", range(MIB // 4))

    def compute(found):
        source, target = runtime.room(length), runtime.room(length)
        ends = [ctypes.c_void_p(source.value + at) for at in (0, length - MIB)]
        for end in ends:
            runtime.copy(end, address(sample), MIB, runtime.TO_DEVICE)
        found["gib_s"] = best_rate(
            runtime, lambda: runtime.copy(target, source, length, runtime.ON_DEVICE), 2 * length,
            0.5)
        ends = [ctypes.c_void_p(target.value + at) for at in (0, length - MIB)]
        found["wrong"] = sum(runtime.get(end, len(sample)) != sample for end in ends)
        for place in (source, target):
            runtime("cudaFree", place)

    on_each("bandwidth", entries, tell, runtime, compute)


def best_rate(runtime, move, length, least_s):
    """GiB/s of the fastest of some moves of `length` bytes, read and written ones counted.

    It goes on for so long because the clocks of a GPU that was idle rise only then.
    """
    started, times = time.time(), []
    while len(times) < 2 * REPEATS or time.time() - started < least_s:
        begin = time.time()
        move()
        runtime.wait()
        times.append(time.time() - begin)
    return round(length / max(min(times), 1e-9) / 2 ** 30, 2)


def copy_between(options, tell):
    """From each GPU to each other one."""
    entries = [{"from": a, "to": b, "access": None, "gib_s": None, "wrong": None, "error": WAITING}
               for a in range(options.gpus) for b in range(options.gpus) if a != b]
    tell(peer=entries)
    runtime = Runtime(options.toolkit)
    sample = array.array("f", range(4 * MIB))
    for found in entries:
        found["error"] = RUNNING
        tell(peer=entries)
        try:
            copy_pair(runtime, found, sample)
            found["error"] = None
        except (Refused, OSError) as error:
            found["error"] = str(error)
    tell(peer=entries)


def copy_pair(runtime, found, sample):
    a, b, access = found["from"], found["to"], ctypes.c_int()
    length = 4 * len(sample)
    runtime("cudaDeviceCanAccessPeer", ctypes.byref(access), b, a)
    found["access"] = bool(access.value)
    runtime.enter(a)
    source = runtime.put(sample)
    runtime.enter(b)
    target = runtime.room(length)
    if found["access"]:
        runtime.library.cudaDeviceEnablePeerAccess(a, 0)  # it may be already, which is an error
        runtime.library.cudaGetLastError()
    found["gib_s"] = best_rate(runtime, lambda: runtime(
        "cudaMemcpyPeer", target, b, source, a, ctypes.c_size_t(length)), length, 0.1)
    found["wrong"] = sum(map(operator.ne, runtime.get(target, len(sample)), sample))
    runtime("cudaFree", target)
    runtime.enter(a)
    runtime("cudaFree", source)


class Sensors(Library):
    """NVML's view of one GPU; what cannot be read is None."""

    def __init__(self, place):
        Library.__init__(self, "libnvidia-ml.so.1")
        self("nvmlInit_v2")
        self.handle = ctypes.c_void_p()
        self("nvmlDeviceGetHandleByPciBusId_v2", place.encode(), ctypes.byref(self.handle))

    def read(self, function, kind, *arguments):
        value = kind()
        try:
            self(function, self.handle, *[*arguments, ctypes.byref(value)])
        except Refused:
            return None
        return value.value

    def sample(self):
        power = self.read("nvmlDeviceGetPowerUsage", ctypes.c_uint)
        reasons = self.read("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong)
        return {"temperature_c": self.read("nvmlDeviceGetTemperature", ctypes.c_uint, 0),
                "clock_sm_mhz": self.read("nvmlDeviceGetClockInfo", ctypes.c_uint, 1),
                "power_w": power and power // 1000,
                "throttle": None if reasons is None else [
                    name for bit, name in sorted(HOLDS_BACK.items()) if reasons & bit]}


def sensors(place):
    """What reads a GPU's sensors; without NVML each reading is of nothing."""
    try:
        return Sensors(place).sample
    except (Refused, OSError):
        return lambda: {"temperature_c": None, "clock_sm_mhz": None, "power_w": None,
                        "throttle": None}


class Load:
    """One GPU that multiplies without a pause."""

    def __init__(self, runtime, blas, exact, found, place):
        self.found, self.runtime, self.blas, self.n = found, runtime, blas, exact.n
        runtime.enter(found["gpu"])
        self.a, self.b = [runtime.put(operand) for operand in exact.operands]
        self.c, self.handle = runtime.room(4 * self.n ** 2), blas.handle()
        self.products, self.sense = 1, sensors(place)
        self.cool_c = self.sense()["temperature_c"]

    def begin(self, products):
        self.runtime("cudaSetDevice", self.found["gpu"])
        for _ in range(products):
            self.blas.multiply(self.handle, self.n, self.a, self.b, self.c)

    def end(self):
        self.runtime("cudaSetDevice", self.found["gpu"])
        self.runtime.wait()

    def round(self, due):
        """One helping, in a thread of its own: why it was refused, None if it was not.

        Its time is its own, and what its sensors tell is of the load: the queue is still full.
        """
        try:
            started = time.time()
            self.begin(self.products)
            self.told = self.sense() if due else None
            self.end()
            self.took = max(time.time() - started, 1e-6)
        except Refused as error:
            return str(error)
        return None

    def result(self):
        self.end()
        return self.runtime.get(self.c, self.n ** 2)

    def settled(self):
        now = self.sense()["temperature_c"]
        return now is None or self.cool_c is None or now <= self.cool_c + SETTLED_C


def sustain(options, tell):
    """All GPUs at once, as a real load has them, for a while; then until they are cool again."""
    n = options.size or SIZE_DEEP
    entries = blank(options, n=n, seconds=None, samples=[], settled_s=None)
    runtime, blas, exact = Runtime(options.toolkit), Blas(options.toolkit), Exact(n)
    places, loads = options.places.split(","), []
    on_each("sustained", entries, tell, runtime, lambda found: loads.append(
        Load(runtime, blas, exact, found, places[found["gpu"]])))
    for load in loads:
        load.found.update(samples=[], error=RUNNING)
    begin = sampled = time.time()
    with concurrent.futures.ThreadPoolExecutor(max(1, len(loads))) as pool:
        while loads and time.time() - begin < options.sustained:
            due = time.time() - sampled >= 1
            sampled = time.time() if due else sampled
            for load, error in list(zip(loads, pool.map(Load.round, loads, [due] * len(loads)))):
                if error:
                    load.found["error"] = error
                    loads.remove(load)
                    continue
                if due:
                    tflops = 2.0 * n ** 3 * load.products / load.took / 1e12
                    load.found["samples"].append(dict(
                        load.told, at_s=round(time.time() - begin, 1), tflops=round(tflops, 6)))
                # About half a second at a time, and fewer than a GPU's queue takes (about 1024).
                load.products = max(1, min(900, int(load.products * 0.5 / load.took)))
            if due:
                tell(sustained=entries)
    took = round(time.time() - begin, 1)
    for load in list(loads):
        try:
            load.found.update(seconds=took, wrong=exact.wrong_rows(load.result()), error=None)
        except Refused as error:
            load.found["error"] = str(error)
            loads.remove(load)
    tell(sustained=entries)
    let_go(runtime, entries)
    begin = time.time()
    while loads and time.time() - begin < options.settle:
        for load in [load for load in loads if load.settled()]:
            load.found["settled_s"] = round(time.time() - begin, 1)
            loads.remove(load)
        if loads:
            time.sleep(1)
    tell(sustained=entries)


def let_go(runtime, entries):
    """End all that was begun on each GPU: one that is still open does not cool down to idle."""
    for found in entries:
        try:
            runtime("cudaSetDevice", found["gpu"])
            runtime("cudaDeviceReset")
        except Refused:  # a GPU that has failed, and says so itself
            continue


# -- a toolkit by itself: the run ----------------------------------------------------------------

STAGES = {"driver": ask_driver, "nvrtc": compile_and_run, "cublas": multiply, "cudnn": convolve,
          "bandwidth": copy_on_device, "peer": copy_between, "sustained": sustain}


def run_stage(options):
    """One stage, in this process; its parent reads what it tells."""
    said = {}

    def tell(**more):
        said.update(more, mapped=sorted(mapped_files()))
        emit(said, COMPUTE_MARK)

    try:
        STAGES[options.stage](options, tell)
    except (Refused, OSError) as error:
        tell(error=str(error))
    except Exception as error:
        tell(error=plain(error))


def scratch():
    """A file with no name, in memory where the kernel can: a full disk is no obstacle."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("gpufleet"), "w+b")
    return tempfile.TemporaryFile()


def in_process(options, stage, deadline_s, more):
    """(what a stage told, why it ended early or None), of a process that may crash or hang."""
    words = [sys.executable, "-I", "-S", os.path.abspath(__file__), "--toolkit", options.toolkit,
             "--stage", stage, "--budget", str(options.budget),
             "--sustained", str(options.sustained), "--settle", str(options.settle)]
    words += ["--size", str(options.size)] if options.size else []
    given = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    environment = dict(os.environ, CUDA_DEVICE_ORDER="PCI_BUS_ID", LD_LIBRARY_PATH=":".join(
        filter(None, [*library_places(options.toolkit), *given])))
    with scratch() as out, scratch() as err:
        with open(os.devnull) as null:
            process = subprocess.Popen([*words, *more], stdin=null, stdout=out, stderr=err,
                                       env=environment)
        deadline = time.time() + deadline_s
        while process.poll() is None and time.time() < deadline:
            time.sleep(0.005)
        status = process.returncode
        if status is None:
            # Killed and not waited for: it may be in a D state.
            process.kill()
        out.seek(0)
        err.seek(0)
        told, complaint = last_told(out.read()), err.read().decode("utf-8", "replace")
    if status == 0:
        return told, None
    if status is None:
        return told, "no answer within %g s" % deadline_s
    reason = "killed by %s" % signal_name(-status) if status < 0 else "ended with %d" % status
    return told, ": ".join([reason, *complaint.strip().splitlines()[-1:]])[:500]


def last_told(raw):
    told = {}
    for line in raw.decode("utf-8", "replace").splitlines():
        if line.startswith(COMPUTE_MARK):
            try:
                told = json.loads(line[len(COMPUTE_MARK):])
            except ValueError:  # cut off
                continue
    return told


def signal_name(number):
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal %d" % number


def with_reason(value, reason):
    """Say in each entry that was not finished why it was not."""
    entries = [value, *value.get("ran", [])] if isinstance(value, dict) else value
    begun = any(entry["error"] == RUNNING for entry in entries)
    for entry in entries:
        entry.pop("budget", None)
        if entry["error"] == RUNNING:
            entry["error"] = reason or RUNNING
        elif entry["error"] == WAITING:
            entry["error"] = "%s, since before it: %s" % (WAITING, reason) if begun \
                else reason or WAITING
    return value


class Run:
    """A toolkit's document, stage by stage."""

    def __init__(self, options):
        self.options, self.begin, self.ended, self.mapped = options, time.time(), "ok", set()
        self.document = {
            "toolkit": options.toolkit, "state": "failed", "error": None,
            "driver": {"cuinit": None, "version": None, "error": None}, "devices": [],
            "cublas": [], "nvrtc": None, "cudnn": [], "bandwidth": None, "peer": None,
            "sustained": None, "mapped": [], "seconds": None}

    def tell(self, **more):
        self.document.update(more, mapped=sorted(self.mapped),
                             seconds=round(time.time() - self.begin, 2))
        emit(self.document, COMPUTE_MARK)

    def stage(self, name, otherwise, share=0.5, **more):
        """Do a stage and note what it says of itself; `otherwise` stands if it says nothing."""
        self.tell(error="stopped in the stage " + name)
        return self.done(name, otherwise, share, more)

    def each(self, name, entries, **more):
        """The same in a process for each GPU, all at once: eight in a row would take minutes."""
        self.tell(error="stopped in the stage " + name)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            told = pool.map(lambda entry: self.done(
                name, [entry], 0.5, dict(more, gpu=entry["gpu"]))[0], entries)
        return list(told)

    def done(self, name, otherwise, share, more):
        words = [word for key, value in more.items() for word in ("--" + key, str(value))]
        left_s = self.begin + self.options.deadline - time.time()
        told, ended = in_process(self.options, name, max(2, left_s * share), words)
        self.mapped |= set(told.pop("mapped", []))
        if ended and self.ended != "hung":
            self.ended = "hung" if ended.startswith("no answer") else "failed"
        reason = told.pop("error", None) or ended
        self.document["devices"] = told.get("devices", self.document["devices"])
        return with_reason(told.get(name, otherwise), reason)


def cudnns(toolkit):
    """{soname: file} of the cuDNNs in a toolkit."""
    return {name: os.path.join(place, name) for place in library_places(toolkit)
            for name in sorted(os.listdir(place)) if re.match(r"libcudnn\.so\.\d+$", name)}


# The GPUs' own files.
NODES = "/dev/nvidia[0-9]*"


def held_ready():
    """Open files of all GPUs. Where nothing else has one open, a driver without persistence shuts
    it down at the end of each stage, and takes seconds to start it for the next."""
    held = []
    for node in glob.glob(NODES):
        try:
            held.append(open(node, "r+b", buffering=0))  # noqa: SIM115 (to the end)
        except OSError:  # for the stages to tell
            continue
    return held


def through_toolkit(options):
    run, wanted = Run(options), options.expect_gpus
    if wanted != "0":
        silent = {"cuinit": None, "version": None, "error": RUNNING}
        # It is the one that waits until each GPU has started.
        run.tell(driver=run.stage("driver", silent, 0.8))
    there = len(run.document["devices"])
    # Not of a driver that hung: this process is to go on.
    held = held_ready() if there and run.ended == "ok" else []
    gpus = max(there, 0 if wanted == "any" else int(wanted))

    def entries(numbers, **more):
        return [dict(more, gpu=gpu, wrong=None, busy=None, error=RUNNING) for gpu in numbers]

    def on_all(stage, fields, **more):
        """Of each GPU that is there, and of each that ought to be."""
        lacking = "the driver shows %d GPU%s" % (there, "" if there == 1 else "s")
        return run.each(stage, entries(range(there), **fields), **more) + [
            dict(entry, error=lacking) for entry in entries(range(there, gpus), **fields)]

    run.tell(nvrtc=run.stage("nvrtc", {"version": None, "arch": None, "ptx": False, "ran": [],
                                       "error": RUNNING}, gpus=there))
    run.tell(cublas=on_all("cublas", {"n": options.size or SIZE_GPU, "first_s": None,
                                      "steady_s": None, "tflops": None}))
    for soname, path in cudnns(options.toolkit).items():
        found = on_all("cudnn", {"soname": soname, "version": None}, cudnn=path)
        run.tell(cudnn=run.document["cudnn"] + found)
    if options.deep and there:
        everywhere = {"gpus": there, "places": ",".join(
            device["address"] for device in run.document["devices"])}
        run.tell(bandwidth=run.stage(
            "bandwidth", entries(range(there), gib_s=None), 0.2, **everywhere))
        pairs = [{"from": a, "to": b, "access": None, "gib_s": None, "wrong": None,
                  "error": RUNNING} for a in range(there) for b in range(there) if a != b]
        run.tell(peer=run.stage("peer", pairs, 0.3, gpus=there) if pairs else [])
        run.tell(sustained=run.stage(
            "sustained", entries(range(there), n=options.size or SIZE_DEEP, seconds=None,
                                 samples=[], settled_s=None), 1, **everywhere))
    for node in held:
        node.close()
    run.tell(state=run.ended, error=None if run.ended == "ok" else "a stage did not end")


# -- the command ---------------------------------------------------------------------------------

def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toolkit", metavar="DIR", help="not TensorFlow: this CUDA toolkit itself")
    parser.add_argument("--expect-gpus", default="any", help="0, a number, or any")
    parser.add_argument("--size", type=int, help="rows of the matrices")
    parser.add_argument("--budget", type=int, default=BUDGET_MIB, metavar="MIB",
                        help="with less free memory than that a GPU is busy")
    parser.add_argument("--deep", action="store_true",
                        help="also minutes of load, memory bandwidth, copies between GPUs")
    parser.add_argument("--sustained", type=float, default=120, metavar="S")
    parser.add_argument("--settle", type=float, default=120, metavar="S",
                        help="how long to wait until a GPU is cool again")
    parser.add_argument("--deadline", type=float, default=600, metavar="S")
    # Those of a stage's own process.
    parser.add_argument("--stage", choices=sorted(STAGES), help=argparse.SUPPRESS)
    parser.add_argument("--gpus", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--gpu", type=int, help=argparse.SUPPRESS)
    for name in ("--cudnn", "--places"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stage:
        run_stage(options)
    elif options.toolkit:
        through_toolkit(options)
    else:
        through_tensorflow(options)
    sys.stdout.flush()
    # Interpreter shutdown of an old TensorFlow may crash after all is said.
    os._exit(0)


if __name__ == "__main__":
    main()
