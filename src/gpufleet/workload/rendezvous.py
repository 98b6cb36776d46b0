"""How the two sides of a distributed run meet: messages, ports, deadlines, exact operands.

Fed to a stack's own interpreter on standard input, on both hosts at the same time. Standard
library and that stack's framework only, Python 3.6 and later. A line that begins with
the mark is one JSON object: this side's message to the other (`said`), and its results so far
(`document`, see src/gpufleet/documents/pairs.py). As soon as both have sent a message, the control
machine answers each with the list of both messages. The rest uses the network under test.

- Ports are free ones of each host, outside the range that the kernel gives to others. Before
  TensorFlow waits for anything, each side connects to each port: a firewall is reported as such.
- The operands are small integers, so every product and sum is exact in float32 and in TF32: the
  check demands equality, not closeness.
- Nothing is left behind: all servers live in this one process, and it ends with its standard
  input (the ssh session), at its deadline, or by the kernel's alarm if it cannot do so itself.
"""

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

from .exactness import operand as square
from .output import plain
from .timing import now

MARK = "gpufleet-pair: "
# Below the range of outgoing connections, where a port that is free now stays free.
PORTS = (20000, 32768)
REACH_S = 5
# For who is connected and says nothing: the other host has sent its word before it is waited for.
SILENCE_S = 1
ROWS = 256
# Errors of the frameworks when the other side is gone: the types of TensorFlow's and PyTorch's
# errors, and the texts of gloo, NCCL and gRPC, whose errors are plain RuntimeErrors.
LOST = re.compile(
    r"^(UnavailableError|AbortedError|CancelledError|DistNetworkError|PeerLostError):"
    r"|[Cc]onnection (closed by peer|reset|refused)|Connect timeout|timed out connecting"
    r"|[Nn]o route to host|[Nn]etwork is unreachable|[Cc]onnection timed out"
    r"|Broken pipe|remote process exited|^\w+: (UNAVAILABLE|DEADLINE_EXCEEDED): "
)


class PeerLostError(Exception):
    """The other side is gone, as a process of this side noticed."""


class KilledError(RuntimeError):
    """A process of this side was killed by SIGKILL, as the kernel does where memory is short."""


def lost(error):
    """Return whether an error says that the other side is gone."""
    return bool(LOST.search("%s: %s" % (type(error).__name__, error)))


def error_message(error):
    """An error's first line, and what NCCL gives as its last error some lines below."""
    last = re.search(r"Last error:\s*(\S.*)", str(error))
    first = plain(error)
    return (
        first
        if not last or last.group(0) in first
        else "%s; %s" % (first, last.group(1)[:300].strip())
    )


class Side:
    """This side's document, and its line to the other side."""

    def __init__(self, config):
        self.config, self.me = config, config["index"]
        self.begin = now()
        self.answers, self.lock = Queue(), threading.Lock()
        # At which the other host reached this one.
        self.address = None
        self.document = self.empty()

    def empty(self):
        """The document before anything was done."""
        return {
            "state": "running",
            "stage": "starting",
            "error": None,
            "version": None,
            "device": None,
            "ports": [],
            "reach": [],
            "variables": [],
            "products": [],
            "sum": None,
            "communication": None,
            "in_sync": None,
            "replicas": [],
            "nccl": [],
            "seconds": None,
        }

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
            self.document.update(state=state, error=error, seconds=round(now() - self.begin, 2))
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
    """Return whether a port is of the range of PORTS."""
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


def meet(side, count, device, gloo):
    """Ports of both sides, proven to be reachable from here and there: ([[port]], [device])."""
    sockets = [listener() for _ in range(count)]
    if side.config["kind"] == "nccl" or gloo:
        # NCCL and gloo listen on ports that the kernel chooses, and wait long for a closed one.
        sockets.append(listener(0))
    side.document["ports"] = [item.getsockname()[1] for item in sockets]
    # The word by which the other side knows this one's connections: nobody else can guess it.
    values = side.gather(
        "waiting for the other host's ports", [side.document["ports"], device, os.urandom(16).hex()]
    )
    words = [word for _ports, _device, word in values]
    side.stage("connecting to the other host")
    for index, (ports, _device, _word) in enumerate(values):
        address = side.config["addresses"][index]
        for port in ports:
            side.document["reach"].append(
                {
                    "to": index,
                    "address": address,
                    "port": port,
                    "error": reached(address, port, words[side.me]),
                }
            )
    # NCCL may use another network than this one: its own run tells.
    failed = [
        item["error"]
        for item in side.document["reach"]
        if item["error"] and (side.config["kind"] != "nccl" or declared(item["port"]))
    ]
    if not any(side.gather("waiting until the other host has connected", failed)):
        side.address = visited(sockets[0], words[1 - side.me])
        if not side.address:
            failed = ["the other host's connection to it arrived elsewhere"]
            side.document["reach"].append(
                {
                    "to": side.me,
                    "address": side.config["addresses"][side.me],
                    "port": side.document["ports"][0],
                    "error": failed[0],
                }
            )
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
