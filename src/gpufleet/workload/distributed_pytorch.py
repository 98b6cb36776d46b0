"""The all-reduce of PyTorch between two hosts: NCCL with GPUs, gloo without.

PyTorch has a process for each GPU.
"""

import ctypes
import functools
import json
import os
import selectors
import signal
from collections import namedtuple

from .reduction import communication, finish
from .rendezvous import (
    KilledError,
    PeerLostError,
    error_message,
    initialised,
    lost,
    meet,
    nccl_output,
    operand,
    target,
)

NAME, TITLE, MODULE = "pytorch", "PyTorch", "torch"
GLOO = True  # whether gloo reduces between its CPUs, on a port that the kernel chooses
PR_SET_PDEATHSIG = 1

# One process of PyTorch's: its host's index, where all meet, its number of how many, its GPU.
Rank = namedtuple("Rank", "host where rank ranks gpu")


def work(kind):
    """The function of a kind of run."""
    return all_reduce


def all_reduce(side, torch, numpy):
    """An all-reduce of torch.distributed: a rank for each GPU, or one for each host's CPU."""
    gpus = side.config["gpus"] if side.config["kind"] == "nccl" else 0
    ports, _devices = meet(side, 1, None, GLOO)
    side.document["communication"] = communication(side)
    side.stage("computing")
    where = "tcp://" + target(side.config["addresses"][0], ports[0][0])
    each = gpus or 1
    if not torch.distributed.is_available():
        raise RuntimeError("this build of PyTorch has no torch.distributed")
    ranks = [
        Rank(side.me, where, side.me * each + local, 2 * each, local if gpus else None)
        for local in range(each)
    ]
    if gpus:
        found = in_processes(
            numpy, [(rank.gpu, functools.partial(by_nccl, torch, numpy, rank)) for rank in ranks]
        )
        finish(
            side,
            numpy,
            [row[:2] for row in found],
            2 * each,
            [line for row in found for line in row[2]],
        )
    else:
        sums = by_gloo(torch, numpy, ranks[0], side.address)
        finish(side, numpy, [("CPU:0", sums)], 2 * each, [])


def by_nccl(torch, numpy, one):
    """The sum of all ranks' products, as this rank's GPU gets it."""
    import torch.distributed as dist

    device = torch.device("cuda:%d" % one.gpu)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", init_method=one.where, rank=one.rank, world_size=one.ranks)
    product = own_product(torch, numpy, one, device)
    dist.all_reduce(product)
    if product.device != device:
        raise RuntimeError("the sum is on %s" % product.device)
    numbers = product.cpu().numpy()
    dist.destroy_process_group()
    return numbers


def by_gloo(torch, numpy, one, address):
    """The same between CPUs, by a group of gloo's that listens at this address.

    `init_process_group` takes an interface, GLOO_SOCKET_IFNAME, and no address; an interface may
    have several, of which gloo takes the first. Old releases have other names of the same (run:
    1.0.0, 1.4.0, 1.13.1, 2.6.0, 2.15.0).
    """
    import torch.distributed as dist

    store = next(dist.rendezvous("%s?rank=%d&world_size=%d" % (one.where, one.rank, one.ranks)))[0]
    gloo = dist.ProcessGroupGloo
    options = (getattr(gloo, "_Options", None) or gloo.Options)()
    devices = "_devices" if hasattr(options, "_devices") else "devices"
    device = getattr(gloo, "create_device", None) or gloo.create_tcp_device
    setattr(options, devices, [device(hostname=address)])
    group = gloo(store, one.rank, one.ranks, options)
    product = own_product(torch, numpy, one, torch.device("cpu"))
    group.allreduce([product]).wait()
    return product.numpy()


def own_product(torch, numpy, one, device):
    left, right = [
        torch.from_numpy(m).to(device) for m in (operand(numpy, 1) + one.host, operand(numpy, 2))
    ]
    return torch.matmul(left, right)


def in_processes(numpy, tasks):
    """The device, array and NCCL's lines of each task, in own processes that end with this one.

    All are read side by side: when one fails the others wait for it, some for half an hour.
    """
    reading = selectors.DefaultSelector()
    for number, task in tasks:
        process, written = started(task)
        reading.register(written, selectors.EVENT_READ, (number, process, []))
    found = {}
    while reading.get_map():
        for key, _events in reading.select():
            number, process, pieces = key.data
            pieces.append(os.read(key.fd, 1 << 20))
            if not pieces[-1]:
                reading.unregister(key.fd)
                os.close(key.fd)
                found[number] = result(numpy, number, process, b"".join(pieces))
    return [found[number] for number, _task in tasks]


def started(task):
    """A task's process, and the end of a pipe for a line of JSON and the task's array."""
    read, write = os.pipe()
    process = os.fork()
    if process:
        os.close(write)
        return process, read
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    status = 1
    try:
        with os.fdopen(write, "wb") as stream:
            try:
                nccl = nccl_output()
                numbers = task().tobytes()
                about = {"error": None, "nccl": initialised(nccl)}
            except BaseException as error:
                about, numbers = {"error": error_message(error), "lost": lost(error)}, b""
            stream.write(json.dumps(about).encode() + b"\n" + numbers)
            status = 0
    finally:
        os._exit(status)


def unreported_end(number, process):
    """The error of a process that ended without a word."""
    status = os.waitpid(process, 0)[1]
    if not os.WIFSIGNALED(status):
        end = "ended with status %d" % os.WEXITSTATUS(status)
        return RuntimeError("GPU %d: its process %s" % (number, end))
    names = {item.value: item.name for item in signal.Signals}
    killer = names.get(os.WTERMSIG(status), os.WTERMSIG(status))
    kind = KilledError if killer == "SIGKILL" else RuntimeError
    return kind("GPU %d: its process was killed (%s)" % (number, killer))


def result(numpy, number, process, written):
    """The output of a task's process; an error that it wrote is raised."""
    head, _, rest = written.partition(b"\n")
    if not head:
        raise unreported_end(number, process)
    about = json.loads(head.decode())
    if about["error"]:
        raise (PeerLostError if about["lost"] else RuntimeError)(
            "GPU %d: %s" % (number, about["error"])
        )
    numbers = numpy.frombuffer(rest, numpy.float32)
    return "GPU:%d" % number, numbers.reshape((int(len(numbers) ** 0.5), -1)), about["nccl"]
