"""NCCL, called by ctypes: communicators of this process's GPUs, and collectives between all ranks.

Functions and numbers are those of NCCL's documented interface (nccl.h, releases 2.7 and later).
All calls use the default stream of each GPU.
"""

import ctypes
import time

from .library import Absent, Library, Refused, library_file

FLOAT32, SUM = 7, 0
# cudaErrorNotReady, since CUDA 10.1 and before.
NOT_READY = (600, 34)
# How long a GPU is asked again without a pause, and the longest pause after that.
SPIN_S, PAUSE_S = 0.005, 0.001


class UniqueId(ctypes.Structure):
    """By which the ranks of one communicator find each other."""

    _fields_ = (("internal", ctypes.c_char * 128),)

    def text(self):
        return bytes(self).hex()

    @classmethod
    def of(cls, text):
        return cls.from_buffer_copy(bytes.fromhex(text))


class Nccl(Library):
    """The libnccl of a stack or directory."""

    def __init__(self, place):
        self.path = library_file(place, "nccl")
        Library.__init__(self, self.path)

    def describe(self, status):
        """NCCL's text of a status, and the last error that it noted."""
        text = self.name_of_status("ncclGetErrorString", status)
        try:
            last = self.library.ncclGetLastError
        except AttributeError:  # before 2.13
            return text
        last.restype = ctypes.c_char_p
        more = (last(None) or b"").decode("utf-8", "replace").strip()
        return "%s; %s" % (text, more) if more else text

    def version(self):
        """The release, such as 2.21.5."""
        value = ctypes.c_int()
        self("ncclGetVersion", ctypes.byref(value))
        # Releases before 2.9 count 1000 for the first number.
        first = 10000 if value.value >= 10000 else 1000
        return "%d.%d.%d" % (
            value.value // first,
            value.value % first // 100,
            value.value % 100,
        )

    def unique_id(self):
        found = UniqueId()
        self("ncclGetUniqueId", ctypes.byref(found))
        return found

    def together(self, calls):
        """Start the calls of all GPUs of this process as one group."""
        self("ncclGroupStart")
        try:
            for call in calls:
                call()
        finally:
            self("ncclGroupEnd")


class Communicators:
    """A communicator for each GPU of this process.

    `own` has the rank of each of these GPUs, `ranks` is the number of ranks in all.
    """

    def __init__(self, libraries, gpus, own, ranks, unique_id):
        nccl, runtime = libraries
        self.nccl, self.runtime, self.gpus = nccl, runtime, gpus
        self.ranks, self.own = ranks, list(own)
        self.all = [ctypes.c_void_p() for _ in gpus]
        nccl.together(
            self._on(
                gpu, "ncclCommInitRank", ctypes.byref(one), ctypes.c_int(ranks), unique_id, rank
            )
            for gpu, one, rank in zip(gpus, self.all, self.own)  # noqa: B905 (Python 3.6)
        )

    def _on(self, gpu, *call):
        def started():
            self.runtime("cudaSetDevice", gpu)
            self.nccl(*call)

        return started

    def each(self, function):
        """A group of `function(index of the GPU, its communicator, its rank)`'s calls."""
        calls = []
        for index, gpu in enumerate(self.gpus):
            for call in function(index, self.all[index], self.own[index]):
                calls.append(self._on(gpu, *call))
        self.nccl.together(calls)

    def all_reduce(self, sources, targets, count):
        self.each(
            lambda at, comm, _rank: [
                (
                    "ncclAllReduce",
                    sources[at],
                    targets[at],
                    ctypes.c_size_t(count),
                    FLOAT32,
                    SUM,
                    comm,
                    None,
                )
            ]
        )

    def all_gather(self, sources, targets, count):
        """Each rank gives `count` numbers and gets those of all."""
        self.each(
            lambda at, comm, _rank: [
                (
                    "ncclAllGather",
                    sources[at],
                    targets[at],
                    ctypes.c_size_t(count),
                    FLOAT32,
                    comm,
                    None,
                )
            ]
        )

    def shift(self, sources, targets, count):
        """Each rank sends to the next one and receives from the one before it."""

        def calls(at, comm, rank):
            size = ctypes.c_size_t(count)
            after, before = (rank + 1) % self.ranks, (rank - 1) % self.ranks
            return [
                ("ncclSend", sources[at], size, FLOAT32, after, comm, None),
                ("ncclRecv", targets[at], size, FLOAT32, before, comm, None),
            ]

        self.each(calls)

    def wait(self):
        """Wait until all GPUs of this process are done, or NCCL notices what went wrong.

        A kernel of NCCL does not end where a link or another host failed: CUDA alone would be
        waited for without end.
        """
        begin, busy = time.perf_counter(), list(self.gpus)
        while busy:
            busy = [gpu for gpu in busy if not self.done(gpu)]
            for comm in self.all:
                self.refuse_failed(comm)
            waited = time.perf_counter() - begin
            if busy and waited > SPIN_S:
                # A pause is at most a hundredth of the time that is measured.
                time.sleep(min(waited / 100, PAUSE_S))

    def done(self, gpu):
        """Return whether the default stream of this GPU is empty."""
        self.runtime("cudaSetDevice", gpu)
        status = self.runtime.library.cudaStreamQuery(None)
        if status in NOT_READY:
            self.runtime.library.cudaGetLastError()
        elif status:
            raise Refused(
                "cudaStreamQuery returned %d %s" % (status, self.runtime.describe(status))
            )
        return not status

    def refuse_failed(self, comm):
        noticed = ctypes.c_int()
        try:
            self.nccl("ncclCommGetAsyncError", comm, ctypes.byref(noticed))
        except Absent:
            return  # an older NCCL: it notices nothing by itself
        if noticed.value:
            raise Refused("NCCL noticed %d %s" % (noticed.value, self.nccl.describe(noticed.value)))

    def destroy(self):
        for comm in self.all:
            self.nccl("ncclCommDestroy", comm)
