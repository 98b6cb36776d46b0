"""One host's part in collectives of NCCL between the GPUs of several hosts.

Fed to a host's interpreter on standard input, on all hosts of a group at the same time; `Side` of
`rendezvous` says how they meet by way of the control machine. Standard library only, Python 3.6
and later. Each result is compared with the exact one: the operands are small integers, so that
every sum is exact in float32 in any order.

Operands repeat after `PERIOD` numbers, which is a prime: a part of a result that is in another
place differs. The expected bytes are computed once and compared block by block.
"""

import ctypes
import json
import os
import struct
import time

from .library import Refused
from .nccl import Communicators, Nccl, UniqueId
from .rendezvous import Side, error_message, lost
from .runtime import MIB, Runtime

PERIOD, VALUES = 4093, 61
BLOCKS = 256
WARM = 2
# More than a host can have; a host that names more is not believed.
MOST_GPUS = 1024


class Member(Side):
    """This host's document, see `CollectiveSide` in src/gpufleet/documents/collectives.py."""

    def empty(self):
        return {
            "state": "running",
            "stage": "starting",
            "error": None,
            "nccl": None,
            "library": None,
            "gpus": None,
            "results": [],
            "skipped": [],
            "seconds": None,
        }


def main(config):
    """Run this host's part; `config` is a JSON document."""
    side = Member(json.loads(config))
    side.watch()
    # CUDA numbers GPUs as the host does, also where one is faster than others.
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    os.environ.update(side.config.get("environment") or {}, HOME=os.devnull)
    try:
        work(side)
    except Refused as error:
        side.end("lost" if lost(error) else "failed", str(error))
    except BaseException as error:
        side.end("failed", error_message(error))
    side.end("ok", None)


def work(side):
    config, document = side.config, side.document
    side.stage("loading NCCL")
    nccl = Nccl(config["place"])
    document.update(nccl=nccl.version(), library=nccl.path)
    side.stage("looking for GPUs")
    runtime = Runtime(config["place"])
    seen = runtime.count()
    document["gpus"] = seen
    gpus = list(range(seen)) if config["gpus"] is None else config["gpus"]
    if not gpus or max(gpus) >= seen:
        side.end(
            "failed",
            "CUDA shows %d GPU%s, %d are needed"
            % (seen, "" if seen == 1 else "s", max(gpus or [0]) + 1),
        )
    # The side that makes the id also listens for the others, from now on.
    own = nccl.unique_id().text() if side.me == 0 else None
    values = side.gather("waiting for the other hosts", [len(gpus), own])
    counts = [count for count, _id in values]
    if not all(isinstance(count, int) and 0 < count <= MOST_GPUS for count in counts):
        side.end("failed", "a host names %s GPUs" % str(counts)[:100])
    side.stage("connecting the ranks")
    own = range(sum(counts[: side.me]), sum(counts[: side.me + 1]))
    ranks = Communicators((nccl, runtime), gpus, own, sum(counts), UniqueId.of(values[0][1]))
    ranks.wait()
    largest = fitting(side, runtime, gpus)
    if not largest:
        side.end("failed", "no size fits into the free memory of the GPUs")
    sources, targets = [[on(runtime, gpu, runtime.allocate, largest) for gpu in gpus] for _ in "st"]
    # The same sizes on all hosts.
    values = side.gather("waiting until all hosts have memory", largest)
    for operation in config["operations"]:
        for size in config["sizes"]:
            if size > min(values):
                document["skipped"].append({"operation": operation, "bytes": size})
                continue
            side.stage("%s of %d bytes" % (operation, size))
            measure(side, ranks, (operation, size), (sources, targets))
    side.stage("disconnecting the ranks")
    ranks.destroy()


def on(runtime, gpu, function, *arguments):
    runtime("cudaSetDevice", gpu)
    return function(*arguments)


def fitting(side, runtime, gpus):
    """The largest size of which two buffers fit into half of each GPU's free memory, else 0."""
    free = min(on(runtime, gpu, runtime.free_mib) for gpu in gpus) * MIB
    return max([size for size in side.config["sizes"] if 4 * size <= free] or [0])


def measure(side, ranks, what, buffers):
    """Run one collective several times; the result's row has its median time and wrong numbers."""
    (operation, size), (sources, targets) = what, buffers
    count, run, expected = plan(ranks, operation, size)
    for at, gpu in enumerate(ranks.gpus):
        ranks.runtime("cudaSetDevice", gpu)
        rank = ranks.own[at]
        fill(ranks.runtime, sources[at], 4 * count, block([rank]))
        ranks.runtime.poison(targets[at], size)
    row = {"operation": operation, "bytes": size, "seconds": None, "repeats": 0, "wrong": None}
    side.document["results"].append(row)
    times = []
    for number in range(WARM + side.config["repeats"]):
        begin = time.perf_counter()
        run(sources, targets, count)
        ranks.wait()
        if number >= WARM:
            times.append(time.perf_counter() - begin)
    wrong = 0
    for at, gpu in enumerate(ranks.gpus):
        ranks.runtime("cudaSetDevice", gpu)
        begin = 0
        for part in expected(ranks.own[at]):
            wrong += differing(ranks.runtime, targets[at], begin, 4 * count, part)
            begin += 4 * count
    row.update(seconds=round(sorted(times)[len(times) // 2], 7), repeats=len(times), wrong=wrong)
    side.emit()


def plan(ranks, operation, size):
    """The count of numbers that a rank gives, the function, and the blocks that a rank must get."""
    if operation == "all_reduce":
        total = block(range(ranks.ranks))
        return size // 4, ranks.all_reduce, lambda _rank: [total]
    if operation == "all_gather":
        return (
            size // 4 // ranks.ranks,
            ranks.all_gather,
            lambda _rank: (block([each]) for each in range(ranks.ranks)),
        )
    return size // 4, ranks.shift, lambda rank: [block([(rank - 1) % ranks.ranks])]


def value(number, rank):
    return (number * (2 * rank + 3) + rank) % VALUES


def block(ranks):
    """The bytes of the first PERIOD numbers of the sum of these ranks' operands."""
    # Operands of two ranks are the same where the ranks differ by VALUES.
    often = {}
    for rank in ranks:
        often[rank % VALUES] = often.get(rank % VALUES, 0) + 1
    numbers = [
        float(sum(times * value(number, rank) for rank, times in often.items()))
        for number in range(PERIOD)
    ]
    return struct.pack("<%df" % PERIOD, *numbers)


def fill(runtime, pointer, length, repeated):
    """Copy the block into a GPU's memory again and again."""
    text = bytearray(repeated * BLOCKS)
    whole = (ctypes.c_char * len(text)).from_buffer(text)
    for begin in range(0, length, len(text)):
        runtime.copy(
            ctypes.c_void_p(pointer.value + begin),
            whole,
            min(len(text), length - begin),
            runtime.TO_DEVICE,
        )


def differing(runtime, pointer, begin, length, repeated):
    """How many numbers of this part of a GPU's memory are not those of the repeated block."""
    wanted, found = repeated * BLOCKS, 0
    for at in range(0, length, len(wanted)):
        size = min(len(wanted), length - at)
        read = bytes(runtime.read(ctypes.c_void_p(pointer.value + begin + at), size))
        if read != wanted[:size]:
            found += sum(
                read[place : place + 4] != wanted[place : place + 4] for place in range(0, size, 4)
            )
    return found
