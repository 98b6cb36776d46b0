"""One side of a distributed run between two hosts, and the device of each part.

Fed to a stack's own interpreter on standard input, on both hosts at the same time. Standard
library and that stack's framework only, Python 3.6 and later. A line that begins with
the mark is one JSON object: this side's message to the other (`said`), and its results so far
(`document`, see docs/reference/documents.md). As soon as both have sent a message, the control
machine answers each with the list of both messages. The rest uses the network under test.

- Ports are free ones of each host, outside the range that the kernel gives to others. Before
  TensorFlow waits for anything, each side connects to each port: a firewall is reported as such.
- The operands are small integers, so every product and sum is exact in float32 and in TF32: the
  check demands equality, not closeness.
- Nothing is left behind: all servers live in this one process, and it ends with its standard
  input (the ssh session), at its deadline, or by the kernel's alarm if it cannot do so itself.
"""
import importlib
import json
import os
import random
import re
import signal
import socket
import sys
import tempfile
import threading
import time
from queue import Queue

from gpufleet.probe.constants import FRAMEWORKS

from .exactness import operand as square
from .output import plain

# ruff: noqa: B905 (zip has no `strict` before Python 3.10)

MARK = "gpufleet-pair: "
# Below the range of outgoing connections, where a port that is free now stays free.
PORTS = (20000, 32768)
REACH_S = 5
# For who is connected and says nothing: the other host has sent its word before it is waited for.
SILENCE_S = 1
ROWS = 256
# What the frameworks raise when the other side is gone: the types of TensorFlow's and PyTorch's
# errors, and the texts of gloo, NCCL and gRPC, whose errors are plain RuntimeErrors.
LOST = re.compile(
    r"^(UnavailableError|AbortedError|CancelledError|DistNetworkError|PeerLostError):"
    r"|[Cc]onnection (closed by peer|reset|refused)|Connect timeout|timed out connecting"
    r"|[Nn]o route to host|[Nn]etwork is unreachable|[Cc]onnection timed out"
    r"|Broken pipe|remote process exited|^\w+: (UNAVAILABLE|DEADLINE_EXCEEDED): ")


class PeerLostError(Exception):
    """The other side is gone, as a process of this side noticed."""


def lost(error):
    """Whether an error says that the other side is gone."""
    return bool(LOST.search("%s: %s" % (type(error).__name__, error)))


def error_message(error):
    """An error's first line, and what NCCL gives as its last error some lines below."""
    last = re.search(r"Last error:\s*(\S.*)", str(error))
    first = plain(error)
    return first if not last or last.group(0) in first else "%s; %s" % (
        first, last.group(1)[:300].strip())


class Side:
    """This side's document, and its line to the other side."""

    def __init__(self, config):
        self.config, self.me = config, config["index"]
        self.begin = time.time()
        self.answers, self.lock = Queue(), threading.Lock()
        # At which the other host reached this one.
        self.address = None
        self.document = {
            "state": "running", "stage": "starting", "error": None, "version": None,
            "device": None, "ports": [], "reach": [], "variables": [], "products": [], "sum": None,
            "communication": None, "in_sync": None, "replicas": [], "nccl": [], "seconds": None}

    def emit(self, message=None):
        line = "\n%s%s\n" % (MARK, json.dumps({"said": message, "document": self.document}))
        os.write(1, line.encode())

    def stage(self, name):
        self.document["stage"] = name
        self.emit()

    def gather(self, name, value):
        """Hand a value over, and wait for that of each side."""
        self.document["stage"] = name
        self.emit({"value": value})
        return self.answers.get()

    def listen(self):
        """In a thread of its own: answers, and the end of the session."""
        for line in sys.stdin.buffer:
            self.answers.put([item["value"] for item in json.loads(line.decode())])
        self.end("stopped", "the other side ended, or the ssh session did")

    def end(self, state, error):
        """Send the last message, once, and exit with every server and thread."""
        self.lock.acquire()
        try:
            self.document.update(state=state, error=error,
                                 seconds=round(time.time() - self.begin, 2))
            self.emit()  # the other end may be closed
        finally:
            os._exit(0)

    def watch(self):
        """Have the session's end, the deadline and at last the kernel end this process."""
        deadline = self.config["deadline_s"]
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, deadline + 3)
        late = threading.Timer(deadline, self.end, ("hung", "no answer within %g s" % deadline))
        for thread in (late, threading.Thread(target=self.listen)):
            thread.daemon = True
            thread.start()


# -- the network ---------------------------------------------------------------------------------

def listener(chosen=None):
    """A socket that listens on a free port of all addresses; 0: on one that the kernel chooses.

    The kernel's range may hold that of PORTS (1024 to 65535). A firewall may let those in alone,
    so they prove nothing about the kernel's.
    """
    for left in reversed(range(200)):
        port = random.randrange(*PORTS) if chosen is None else chosen
        for family, anywhere in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
            try:
                found = socket.socket(family, socket.SOCK_STREAM)
            except OSError:  # a host without IPv6
                continue
            try:
                if family == socket.AF_INET6:
                    found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                found.bind((anywhere, port))
                found.listen(128)
            except OSError:
                found.close()
                continue
            if chosen is None or not left or not declared(found.getsockname()[1]):
                return found
            found.close()
            break
    raise OSError("no free port between %d and %d" % PORTS)


def declared(port):
    """Whether a port is of the range of PORTS."""
    return PORTS[0] <= port < PORTS[1]


def reached(address, port, word):
    """Why no connection comes about; None if one does, which says this word."""
    try:
        with socket.create_connection((address, port), timeout=REACH_S) as made:
            made.sendall(word.encode())
    except (OSError, UnicodeError) as error:  # what cannot be a host's name is a UnicodeError
        return str(error)
    return None


def visited(listening, word):
    """The own address at which the other host connected, with its word; None where it did not.

    An address of this host alone, as its own name may have, is none of these. Anything else may
    connect too, such as a scan of all ports: say nothing, something else, or go.
    """
    end = time.monotonic() + REACH_S
    while time.monotonic() < end:
        listening.settimeout(max(0.001, end - time.monotonic()))
        try:
            made, _peer = listening.accept()
            with made:
                made.settimeout(SILENCE_S)
                if made.recv(len(word) + 1) == word.encode():
                    address = made.getsockname()[0]
                    return address[7:] if address.startswith("::ffff:") else address
        except OSError:
            continue
    return None


def target(address, port):
    return "%s:%d" % ("[%s]" % address if ":" in address else address, port)


def meet(side, count, device):
    """Ports of both sides, proven to be reachable from here and there: ([[port]], [device])."""
    sockets = [listener() for _ in range(count)]
    if side.config["kind"] == "nccl" or framework_of(side.config) != "tensorflow":
        # NCCL and gloo listen on ports that the kernel chooses, and wait long for a closed one.
        sockets.append(listener(0))
    side.document["ports"] = [item.getsockname()[1] for item in sockets]
    # The word by which the other side knows this one's connections: nobody else can guess it.
    values = side.gather("waiting for the other host's ports",
                         [side.document["ports"], device, os.urandom(16).hex()])
    words = [word for _ports, _device, word in values]
    side.stage("connecting to the other host")
    for index, (ports, _device, _word) in enumerate(values):
        address = side.config["addresses"][index]
        for port in ports:
            side.document["reach"].append({"to": index, "address": address, "port": port,
                                           "error": reached(address, port, words[side.me])})
    # NCCL may use another network than this one: its own run tells.
    failed = [item["error"] for item in side.document["reach"] if item["error"]
              and (side.config["kind"] != "nccl" or declared(item["port"]))]
    if not any(side.gather("waiting until the other host has connected", failed)):
        side.address = visited(sockets[0], words[1 - side.me])
        if not side.address:
            failed = ["the other host's connection to it arrived elsewhere"]
            side.document["reach"].append({
                "to": side.me, "address": side.config["addresses"][side.me],
                "port": side.document["ports"][0], "error": failed[0]})
    # Closed before the other side goes on, or its framework connects to what goes now.
    for item in sockets:
        item.close()
    if any(side.gather("waiting until the other host was connected to", failed)):
        side.end("unconnected", (failed or ["the other host cannot connect to this one"])[0])
    return [ports for ports, *_ in values], [device for _ports, device, _word in values]


# -- the numbers ---------------------------------------------------------------------------------

def operand(numpy, seed):
    return square(numpy, ROWS, seed)


def wrong_rows(numpy, expected, found):
    """Rows that are not exactly those expected."""
    if found.shape != expected.shape:
        return ROWS
    return int((found.astype(numpy.float64) != expected).any(axis=1).sum())


def exact(numpy, *factors):
    left, right = [factor.astype(numpy.int64) for factor in factors]
    return left.dot(right)


# -- the parameter server ------------------------------------------------------------------------

def parameter_server(side, tensorflow, numpy):
    """Variables on each parameter server, a product on each worker, their sum: by this master.

    Each product's operand comes from the other host's server, and both hosts are masters, so
    every way between the two is taken.
    """
    tf = getattr(getattr(tensorflow, "compat", None), "v1", tensorflow)
    me, names = side.me, side.config["addresses"]
    ports, devices = meet(side, 2, own_device(side, tf))
    side.stage("starting its servers")
    cluster = tf.train.ClusterSpec({
        job: [target(name, own[number]) for name, own in zip(names, ports)]
        for number, job in enumerate(("ps", "worker"))})
    config = tf.ConfigProto(allow_soft_placement=False)
    config.gpu_options.allow_growth = True
    without = tf.ConfigProto(device_count={"GPU": 0})
    # Both kept to the end: a server goes with its object.
    servers = [tf.train.Server(cluster, job_name=job, task_index=me, config=item)
               for job, item in (("worker", config), ("ps", without))]
    side.gather("waiting for the other host's servers", True)
    side.stage("computing")
    own = "side%d_" % me
    with tf.Graph().as_default() as graph:
        variables, parts, sources = [], [], []
        for task in (0, 1):
            with tf.device("/job:ps/task:%d/device:CPU:0" % task):
                sources.append(tf.placeholder(tf.float32, (ROWS, ROWS)))
                variables.append(tf.get_variable(own + "part%d" % task, (ROWS, ROWS), tf.float32,
                                                 tf.zeros_initializer()))
        with tf.device("/job:ps/task:%d/device:CPU:0" % (1 - me)):
            total = tf.get_variable(own + "total", (ROWS, ROWS), tf.float32,
                                    tf.zeros_initializer())
        with tf.device("/job:worker/task:%d/device:CPU:0" % me):
            factor = tf.placeholder(tf.float32, (ROWS, ROWS))
        for task in (0, 1):
            with tf.device("/job:worker/task:%d/device:%s" % (task, devices[task])):
                parts.append(tf.matmul(variables[1 - task], factor, name="product%d" % task))
        fill = [tf.assign(*pair) for pair in zip(variables, sources)]
        add = tf.assign_add(total, tf.add_n(parts, name="total"))
        start = tf.global_variables_initializer()
    metadata, options = tf.RunMetadata(), tf.RunOptions(output_partition_graphs=True)
    operands, b = [operand(numpy, 10 * me + task) for task in (1, 2)], operand(numpy, 10 * me)
    with tf.Session(servers[0].target, graph=graph, config=config) as session:
        session.run(start)
        session.run(fill, dict(zip(sources, operands)))
        numbers, _ = session.run([parts, add], {factor: b}, options, metadata)
        added = session.run(total)
        placed = placement(metadata)
        if not placed:  # 1.0 returns no graphs of remote devices, but the devices that spent time
            options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
            session.run([parts, add], {factor: b}, options, metadata)
            placed = placement(metadata)
    for task in (0, 1):
        name = own + "part%d" % task
        side.document["variables"].append({"task": task, "device": placed.get(name)})
        side.document["products"].append({
            "task": task, "device": placed.get("product%d" % task),
            "wrong": wrong_rows(numpy, exact(numpy, operands[1 - task], b), numbers[task])})
    side.document["variables"].append({"task": 1 - me, "device": placed.get(own + "total")})
    side.document["sum"] = {"wrong": wrong_rows(numpy, exact(numpy, sum(operands), b), added)}
    side.gather("waiting for the other host to finish", True)


def placement(metadata):
    """Which device each part was really given to: {node: device}, of what was run."""
    found = {node.node_name: device.device for device in metadata.step_stats.dev_stats
             for node in device.node_stats}
    found.update((node.name, node.device) for part in metadata.partition_graphs
                 for node in part.node if "MatMul" in node.op or "Var" in node.op)
    return found


def own_device(side, tf):
    """This worker's device: the declared kind; undeclared, a GPU if one is listed."""
    declared = side.config["gpus"]
    visible = declared if declared is not None else int(tf.test.is_gpu_available())
    side.document["device"] = "GPU:0" if visible else "CPU:0"
    return side.document["device"]


# -- the all-reduce ------------------------------------------------------------------------------

def all_reduce(side, tensorflow, numpy):
    """Each replica of both hosts multiplies, and gets the sum of all: MultiWorkerMirrored."""
    tf, kind = tensorflow, "NCCL" if side.config["kind"] == "nccl" else "RING"
    nccl = nccl_output()
    ports, _devices = meet(side, 1, None)
    workers = [target(name, own[0])
               for name, own in zip(side.config["addresses"], ports)]
    os.environ["TF_CONFIG"] = json.dumps({
        "cluster": {"worker": workers}, "task": {"type": "worker", "index": side.me}})
    side.stage("starting its server")
    # As many on each host: the strategy knows no other way.
    devices = tf.config.experimental
    if side.config["gpus"] is not None:
        cards = devices.list_physical_devices("GPU")[:side.config["gpus"]]
        devices.set_visible_devices(cards, "GPU")
    strategy = multi_worker(tf.distribute, kind)
    side.document.update(communication=kind, in_sync=int(strategy.num_replicas_in_sync))
    a, b = operand(numpy, 1), operand(numpy, 2)

    def replica(left, right):
        product = tf.linalg.matmul(left, right)
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, product)

    run = getattr(strategy, "run", None) or strategy.experimental_run_v2
    step = tf.autograph.experimental.do_not_convert(replica)
    side.stage("computing")
    # Arguments: a product of constants is folded away before it is placed. Told apart by host, not
    # by replica: 2.0 numbers the replicas of each host from 0.
    with tf.device("/CPU:0"):
        operands = tf.constant(a + side.me), tf.constant(b)
    results = strategy.experimental_local_results(
        tf.function(lambda *given: run(step, args=given), autograph=False)(*operands))
    expected = exact(numpy, side.document["in_sync"] // 2 * (a + a + 1), b)
    for result in results:
        side.document["replicas"].append({
            "device": getattr(result, "backing_device", None) or result.device,
            "wrong": wrong_rows(numpy, expected, result.numpy())})
    side.gather("waiting for the other host to finish", True)
    side.document["nccl"] = initialised(nccl)


def multi_worker(distribute, kind):
    """The strategy of every release from 2.0 on, communicating in one way and no other."""
    old = distribute.experimental
    if hasattr(old, "CommunicationOptions"):
        options = old.CommunicationOptions(
            implementation=getattr(old.CommunicationImplementation, kind))
        return distribute.MultiWorkerMirroredStrategy(communication_options=options)
    return old.MultiWorkerMirroredStrategy(getattr(old.CollectiveCommunication, kind))


# -- what NCCL writes ----------------------------------------------------------------------------

def nccl_output():
    """The file of what NCCL writes in this process, from now on.

    NCCL empties the file when it starts, so each process needs its own. It has no name: a killed
    process leaves none behind.
    """
    found = tempfile.TemporaryFile("w+")  # noqa: SIM115 (to the process's end)
    os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_FILE="/proc/self/fd/%d" % found.fileno())
    return found


def initialised(output):
    """The lines in which NCCL says which GPU takes part as which rank."""
    output.seek(0)
    return [line.strip()[:200] for line in output if "Init COMPLETE" in line][:16]


# -- the run -------------------------------------------------------------------------------------

def framework_of(config):
    return config.get("framework") or "tensorflow"


def runs(config):
    """What people call the framework, and the function of this kind of run."""
    from . import distributed_others as others
    return {"tensorflow": ("TensorFlow", parameter_server if config["kind"] == "parameter-server"
                           else all_reduce),
            "pytorch": ("PyTorch", others.pytorch), "jax": ("JAX", others.jax)}[
                framework_of(config)]


def main(config):
    """Run this side; `config` is a JSON document."""
    side = Side(json.loads(config))
    side.watch()
    # Keras would write its settings into a home.
    os.environ.update(HOME=os.devnull, TF_FORCE_GPU_ALLOW_GROWTH="true",
                      XLA_PYTHON_CLIENT_PREALLOCATE="false")
    if side.config["gpus"] == 0:
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    try:
        title, work = runs(side.config)
        side.stage("importing " + title)
        import numpy
        module = importlib.import_module(FRAMEWORKS[framework_of(side.config)][0])
        side.document["version"] = module.__version__.partition("+")[0]
        work(side, module, numpy)
    except BaseException as error:
        side.end("lost" if lost(error) else "failed", error_message(error))
    side.end("ok", None)
