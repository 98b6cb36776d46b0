"""Multiply matrices through TensorFlow, and tell the truth about where that happened.

Run by a stack's own interpreter with an empty environment. Standard library and that stack's
TensorFlow (1.x or 2.x) only, Python 3.6 and later. The last line that begins with the mark is
one JSON document, the `framework` of docs/documents.md; all else is TensorFlow's chatter. It is
printed anew before each stage, so that a crash loses only what came after.

What makes it a proof:

- Soft placement is off: TensorFlow may not quietly take the CPU. The device is read from the
  result (2.x) or from the graphs that were really run (1.x), not from the request.
- The operands are small integers, so every product and sum is exact in float32 and in TF32,
  in whatever order it is summed: the host's check demands equality, not closeness.
- `mapped` is read from this very process after it computed: which files, not which names.
"""
import argparse
import ctypes
import json
import os
import random
import re
import sys
import tempfile
import time

# ruff: noqa: B905 (zip has no `strict` before Python 3.10)

MARK = "gpufleet-framework: "
SIZE_CPU, SIZE_GPU = 512, 2048
REPEATS = 5
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


def emit(document):
    sys.stdout.write("\n" + MARK + json.dumps(document) + "\n")
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
    used = {real(path) for path in used if not path.startswith(library + "/")}
    own = tuple(home + "/" for home in homes)
    # Python's own library stands beside, not in, its standard library.
    known = re.compile(CUDA_FILE.pattern + r"|^libpython3")
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
    whole = numpy.isfinite(c) & (c == numpy.rint(c))
    bad = ~whole.all(axis=1)
    a, b, c = [numpy.where(numpy.isfinite(m), m, 0).astype(numpy.int64) for m in (a, b, c)]
    for _ in range(rounds):
        r = numpy.random.RandomState(random.randrange(1 << 31)).randint(1, 1 << 20, b.shape[1])
        bad |= a.dot(b.dot(r)) != c.dot(r)
    return int(bad.sum())


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
                    text = captured(getattr(library, symbol))
                    failed = [{"library": library_, "error": error}
                              for library_, error in NOT_OPENED.findall(text)]
                    return {"ran": True, "opened": unique(OPENED.findall(text)), "failed": failed}
    return silent


def captured(function):
    """What a C++ function writes to standard error, descriptor and all."""
    status = ctypes.create_string_buffer(64)
    function.argtypes, function.restype = [ctypes.c_void_p], ctypes.c_void_p
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as stream:
        os.dup2(stream.fileno(), 2)
        try:
            function(status)
        finally:
            os.dup2(saved, 2)
            os.close(saved)
        stream.seek(0)
        return stream.read().decode("utf-8", "replace")


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
        @self.tf.function(autograph=False)
        def towers():
            parts = []
            for device, a in zip(devices, operands):
                with self.tf.device(device):
                    parts.append(self.tf.linalg.matmul(self.tf.constant(a), self.tf.constant(b)))
            with self.tf.device("/CPU:0"):
                return self.tf.add_n(parts)
        return towers().numpy()


# -- TensorFlow 1 --------------------------------------------------------------------------------

class Graph:
    def __init__(self, tensorflow):
        from tensorflow.python.client import device_lib
        self.tf = tensorflow
        self.config = tensorflow.ConfigProto(allow_soft_placement=False)
        self.config.gpu_options.allow_growth = True
        devices = device_lib.list_local_devices(self.config) \
            if device_lib.list_local_devices.__code__.co_argcount else \
            device_lib.list_local_devices()
        self.names = [device.name for device in devices]
        self.gpus = len([device for device in devices if device.device_type == "GPU"])

    def multiply(self, found, a, b):
        tf = self.tf
        with tf.Graph().as_default() as graph, tf.device(found["requested"].lower()):
            # Placeholders: a product of constants is folded away before it is placed.
            left, right = [tf.placeholder(tf.float32, a.shape) for _ in "ab"]
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
                with tf.device(device.lower()):
                    left, right = [tf.placeholder(tf.float32, b.shape) for _ in "ab"]
                    parts.append(tf.matmul(left, right))
                feed[left], feed[right] = a, b
            with tf.device("/cpu:0"):
                total = tf.add_n(parts)
        with tf.Session(graph=graph, config=self.config) as session:
            return session.run(total, feed)


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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--expect-gpus", default="any", help="0, a number, or any")
    parser.add_argument("--size", type=int, help="rows of the matrices")
    options = parser.parse_args()
    # TensorFlow reads these once, when it is loaded.
    os.environ.update(TF_CPP_VMODULE="dso_loader=1", TF_CPP_MIN_LOG_LEVEL="0",
                      TF_FORCE_GPU_ALLOW_GROWTH="true")
    begin = time.time()
    document = {"state": "failed", "error": "stopped while importing TensorFlow", "version": None,
                "build": None, "loader": None, "devices": [], "matmul": [], "tower_sum": None,
                "mapped": [], "strangers": [], "seconds": {"import": None, "total": None}}
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
        document.update(mapped=sorted(mapped), error="stopped while multiplying")
        emit(document)
        import numpy
        engine = (Graph if tensorflow.__version__.startswith(("0.", "1.")) else Eager)(tensorflow)
        document["devices"] = engine.names
        document["matmul"], document["tower_sum"] = \
            products(numpy, engine, options.expect_gpus, options.size)
        document.update(state="ok", error=None)
    except Exception as error:
        document["error"] = plain(error)
    document["mapped"] = sorted(mapped | mapped_files())
    document["strangers"] = strangers()
    document["seconds"]["total"] = round(time.time() - begin, 2)
    emit(document)
    # Interpreter shutdown of an old TensorFlow may crash after all is said.
    os._exit(0)


if __name__ == "__main__":
    main()
