"""Load the links between GPUs, and each GPU's link with the host, while all GPUs compute.

All links at once: each GPU sends to another one and to the host's memory, and receives from both.
Each round has other pairs, and at its end each link's last block is compared. Copies have streams
of their own: the engines that make them take little from the products.
"""

import concurrent.futures
import ctypes
import itertools
import threading

from .copies import connect
from .entries import RUNNING
from .library import Refused
from .memory import patterns
from .runtime import MIB, address_of
from .timing import now

# A sender begins at its own place in the pattern, so that no two send the same block.
BLOCK_MIB, SHIFT, FLOAT = 64, 256, 4
# So many copies are queued at once, and so long a round lasts at most.
SERIES, ROUND_S = 8, 2
# A link that takes longer beyond its round gives no answer any more.
ANSWER_S = 60
# How long what is under way may take when the load ends.
PAUSE_S = 30
BLOCKING_SYNC, NON_BLOCKING, PORTABLE = 4, 1, 1
# The host's memory is a sender and a receiver like each GPU.
HOST = None
UNLOADED = "GPU %d was not loaded"
SILENT = "no answer within %d s"


class Card:
    """A GPU with the pattern that it sends and expects, and memory to receive in."""

    def __init__(self, runtime, blas, gpu, pattern, block):
        self.runtime, self.blas, self.gpu, self.block = runtime, blas, gpu, block
        runtime("cudaSetDevice", gpu)
        self.pattern = runtime.allocate(len(pattern))
        runtime.copy(self.pattern, address_of(pattern), len(pattern), runtime.TO_DEVICE)
        self.handle, self.stream = blas.handle(), new_stream(runtime)
        # Comparisons do not wait for the products that are queued.
        blas("cublasSetStream_v2", self.handle, self.stream)
        # Two links may end here, each in a thread of its own.
        self.lock = threading.Lock()
        runtime.wait()
        self.prove()

    def sent(self, number):
        """The block that this sender's number stands for."""
        return ctypes.c_void_p(self.pattern.value + SHIFT * number)

    def memory(self):
        """Memory for one block, without any block of the pattern in it."""
        return self.runtime.poisoned(self.block)

    def differs(self, place, number):
        """Return whether a block is not this sender's. The memory is of no sender afterwards."""
        self.runtime("cudaSetDevice", self.gpu)
        minus, found = ctypes.c_float(-1), ctypes.c_float(float("nan"))
        count = self.block // FLOAT
        right = self.sent(number)
        with self.lock:
            self.blas("cublasSaxpy_v2", self.handle, count, ctypes.byref(minus), right, 1, place, 1)
            self.blas("cublasSasum_v2", self.handle, count, place, 1, ctypes.byref(found))
        return found.value != 0

    def prove(self):
        """Refuse a comparison that does not tell a block from another one."""
        place = self.memory()
        answers = []
        for number in (0, 1):
            self.runtime.copy(place, self.sent(number), self.block, self.runtime.ON_DEVICE)
            self.runtime.wait()
            answers.append(self.differs(place, 0))
        self.runtime("cudaFree", place)
        if answers != [False, True]:
            raise Refused("cublasSasum_v2 does not tell a wrong block from a right one")


class Link:
    """One direction of a link, of which this card does the work.

    `copy` queues a block; `differs` judges the last one.
    """

    def __init__(self, card, found, copy, differs):
        self.runtime, self.gpu, self.block = card.runtime, card.gpu, card.block
        self.found, self.copy, self.differs = found, copy, differs
        self.runtime("cudaSetDevice", self.gpu)
        self.stream = new_stream(self.runtime)
        # Its stream does not wait for what was written into the memory before.
        self.runtime.wait()
        self.blocks, self.seconds = 0, 0.0

    def round(self, until, ended):
        """Copy without a pause, in a thread of its own, and compare what arrived last."""
        try:
            self.runtime("cudaSetDevice", self.gpu)
            begin = now()
            while True:
                for _ in range(SERIES):
                    self.copy(self.stream)
                self.runtime("cudaStreamSynchronize", self.stream)
                self.blocks += SERIES
                if ended.is_set() or now() >= until:
                    break
            self.seconds += max(now() - begin, 1e-6)
            self.found["wrong"] += self.differs()
            self.found["checked"] += 1
            gib = self.blocks * self.block / 2**30
            self.found.update(gib=round(gib, 1), gib_s=round(gib / self.seconds, 2))
        except (Refused, OSError) as error:
            self.found["error"] = str(error)


class FabricLoad(threading.Thread):
    """The load of all links of these GPUs; `found` is what it reports, an entry for each direction.

    `loaded`: the GPUs that take part, which have their contexts already.
    """

    def __init__(self, runtime, blas, loaded, options):
        threading.Thread.__init__(self, daemon=True)
        self.runtime, self.ended, self.links = runtime, threading.Event(), {}
        # The last round of each link, and until when the links are waited for at the end.
        self.started, self.pause_ends = {}, float("inf")
        gpus, self.block = options.gpus, options.block * MIB
        ends = [*range(gpus), HOST]
        self.found = [new_entry(a, b) for a in ends for b in ends if a != b]
        self.gpus, self.host = gpus, None
        self.pattern = next(patterns(self.block + SHIFT * (gpus + 1)))
        self.cards, self.errors = {}, {gpu: UNLOADED % gpu for gpu in range(gpus)}
        for gpu in loaded:
            self.prepare(gpu, lambda gpu=gpu: self.cards.update({gpu: self.card(blas, gpu)}))
        if self.cards:
            self.prepare(HOST, self.host_memory)
        for found in self.found:
            self.connect(found)
        strides = max(1, gpus - 1)
        self.rounds = [self.of_stride(stride) for stride in range(1, strides + 1)]
        # Each pair has its turn twice at least.
        self.round_s = min(ROUND_S, options.sustained / (2.0 * strides))

    def prepare(self, end, work):
        """Prepare a GPU, or the host's memory, which takes no part where that is refused."""
        try:
            work()
            self.errors.pop(end, None)
        except (Refused, OSError) as error:
            self.errors[end] = str(error)

    def card(self, blas, gpu):
        return Card(self.runtime, blas, gpu, self.pattern, self.block)

    def host_memory(self):
        """The pattern in memory of the host that GPUs copy from by themselves."""
        self.runtime("cudaSetDevice", min(self.cards))
        self.host = self.locked(len(self.pattern))
        ctypes.memmove(self.host, address_of(self.pattern), len(self.pattern))

    def locked(self, length):
        place = ctypes.c_void_p()
        self.runtime("cudaHostAlloc", ctypes.byref(place), ctypes.c_size_t(length), PORTABLE)
        return place

    def connect(self, found):
        """Make the link of an entry, or record why there is none."""
        a, b = found["from"], found["to"]
        refused = [self.errors[end] for end in (a, b) if end in self.errors]
        if refused:
            found["error"] = refused[0]
            return
        try:
            link = (
                self.to_host(found, a)
                if b is HOST
                else self.from_host(found, b)
                if a is HOST
                else self.between(found, a, b)
            )
        except (Refused, OSError) as error:
            found["error"] = str(error)
            return
        if link:
            self.links[a, b] = link
        else:
            found["error"] = None

    def between(self, found, a, b):
        """From a GPU to another one, if that can address its memory; else None."""
        runtime, card = self.runtime, self.cards[b]
        found["access"] = connect(runtime, a, b)
        if not found["access"]:
            return None
        source, place, length = (
            self.cards[a].sent(a + 1),
            card.memory(),
            ctypes.c_size_t(self.block),
        )

        def copy(stream):
            runtime("cudaMemcpyPeerAsync", place, b, source, a, length, stream)

        return Link(card, found, copy, lambda: card.differs(place, a + 1))

    def from_host(self, found, b):
        """From the host's memory to a GPU."""
        runtime, card, length = self.runtime, self.cards[b], ctypes.c_size_t(self.block)
        runtime("cudaSetDevice", b)
        place, source = card.memory(), self.host

        def copy(stream):
            runtime("cudaMemcpyAsync", place, source, length, runtime.TO_DEVICE, stream)

        return Link(card, found, copy, lambda: card.differs(place, 0))

    def to_host(self, found, a):
        """From a GPU to the host's memory."""
        runtime, length = self.runtime, ctypes.c_size_t(self.block)
        runtime("cudaSetDevice", a)
        place, source = self.locked(self.block), self.cards[a].sent(a + 1)
        expected = address_of(self.pattern, SHIFT * (a + 1))

        def copy(stream):
            runtime("cudaMemcpyAsync", place, source, length, runtime.FROM_DEVICE, stream)

        def differs():
            wrong = differ(place, expected, self.block)
            ctypes.memset(place, 0xA5, self.block)
            return wrong

        return Link(self.cards[a], found, copy, differs)

    def of_stride(self, stride):
        """The links of a round: each GPU sends to the one so many numbers after it."""
        pairs = [(gpu, (gpu + stride) % self.gpus) for gpu in range(self.gpus)]
        ends = [*pairs, *((gpu, HOST) for gpu, _ in pairs), *((HOST, gpu) for gpu, _ in pairs)]
        return [self.links[each] for each in ends if each in self.links]

    def run(self):
        pool = concurrent.futures.ThreadPoolExecutor(max(1, len(self.links)))
        for links in itertools.cycle(self.rounds):
            due = [link for link in links if link.found["error"] == RUNNING]
            until = now() + self.round_s
            for link in due:
                self.started[link] = pool.submit(link.round, until, self.ended)
            self.await_answers(due, until + ANSWER_S)
            if self.ended.wait(0 if due else self.round_s):
                break
        # The thread of a link that gives no answer does not end.
        pool.shutdown(wait=False)

    def await_answers(self, links, until):
        """Wait for these links, but not until the end for one that gives no answer.

        It fails alone. The link with the host shows that the GPU itself gives none: then each link
        of this GPU fails, and the other links go on.
        """
        waiting = [self.started[link] for link in links]
        while waiting and now() < min(until, self.pause_ends):
            left_s = max(0, min(1, until - now()))
            waiting = concurrent.futures.wait(waiting, timeout=left_s).not_done
        reason = SILENT % (PAUSE_S if self.ended.is_set() else ANSWER_S)
        silent = [link for link in links if not self.started[link].done()]
        for link in silent:
            link.found["error"] = reason
        for gpu in {link.gpu for link in silent if HOST in ends_of(link.found)}:
            for found in self.found:
                if gpu in ends_of(found) and found["error"] == RUNNING:
                    found["error"] = "GPU %d: %s" % (gpu, reason)

    def under_way(self):
        """The GPUs of links that gave no answer: their copies may still be under way."""
        silent = [link for link, copied in self.started.items() if not copied.done()]
        return {end for link in silent for end in ends_of(link.found)} - {HOST}

    def end(self):
        """End, and wait a little while for the copies that are under way."""
        self.pause_ends = now() + PAUSE_S
        self.ended.set()
        self.join(2 * PAUSE_S)
        for found in self.found:
            if found["error"] == RUNNING:
                found["error"] = SILENT % (2 * PAUSE_S) if self.is_alive() else None


def ends_of(found):
    """Both ends of an entry's link."""
    return {found["from"], found["to"]}


def differ(one, other, length):
    """Return whether two places of the host's memory differ.

    Other threads go on queueing products meanwhile, as they could not while Python compares bytes.
    """
    return ctypes.CDLL(None).memcmp(one, other, ctypes.c_size_t(length)) != 0


def new_entry(a, b):
    return {
        "from": a,
        "to": b,
        "access": None,
        "gib": 0.0,
        "gib_s": None,
        "checked": 0,
        "wrong": 0,
        "error": RUNNING,
    }


def new_stream(runtime):
    """A stream that waits for no other one."""
    stream = ctypes.c_void_p()
    runtime("cudaStreamCreateWithFlags", ctypes.byref(stream), NON_BLOCKING)
    return stream


def sleep_while_waiting(runtime, gpus):
    """Have threads that wait for these GPUs sleep: there are many, and the disk's needs its time.

    It only counts before anything is done on a GPU.
    """
    for gpu in gpus:
        try:
            runtime("cudaSetDevice", gpu)
            runtime("cudaSetDeviceFlags", BLOCKING_SYNC)
        except Refused:  # the load itself reports it
            continue
