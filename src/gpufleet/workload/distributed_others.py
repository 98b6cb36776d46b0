"""The all-reduce of PyTorch and of JAX between two hosts: NCCL with GPUs, gloo without.

PyTorch has a process for each GPU, JAX one for each host. As with TensorFlow each replica
multiplies, and gets the sum of all; the hosts' operands differ by 1.

Left alone, gloo takes the address of the host's own name, which Debian gives to the host alone
(`127.0.1.1`), or the first address of an interface. Here it gets the one address at which the
other host did reach this one.
"""
import ctypes
import functools
import json
import os
import selectors
import signal
from collections import namedtuple

from .distributed import (
    PeerLostError,
    error_message,
    exact,
    initialised,
    lost,
    meet,
    nccl_output,
    operand,
    target,
    wrong_rows,
)

PR_SET_PDEATHSIG = 1

# One process of PyTorch's: its host's index, where all meet, its number of how many, its GPU.
Rank = namedtuple("Rank", "host where rank ranks gpu")


def communication(side):
    return "NCCL" if side.config["kind"] == "nccl" else "GLOO"


def finish(side, numpy, sums, in_sync, nccl):
    """Compare the sum of each replica of this host: [(device, array)]; and what NCCL said."""
    a, b = operand(numpy, 1), operand(numpy, 2)
    expected = exact(numpy, in_sync // 2 * (a + a + 1), b)
    side.document.update(in_sync=in_sync, nccl=nccl[:16], replicas=[
        {"device": device, "wrong": wrong_rows(numpy, expected, found)} for device, found in sums])
    side.gather("waiting for the other host to finish", True)


# -- PyTorch -------------------------------------------------------------------------------------


def pytorch(side, torch, numpy):
    """An all-reduce of torch.distributed: a rank for each GPU, or one for each host's CPU."""
    gpus = side.config["gpus"] if side.config["kind"] == "nccl" else 0
    ports, _devices = meet(side, 1, None)
    side.document["communication"] = communication(side)
    side.stage("computing")
    where = "tcp://" + target(side.config["addresses"][0], ports[0][0])
    each = gpus or 1
    if not torch.distributed.is_available():
        raise RuntimeError("this build of PyTorch has no torch.distributed")
    ranks = [Rank(side.me, where, side.me * each + local, 2 * each, local if gpus else None)
             for local in range(each)]
    if gpus:
        found = in_processes(numpy, [
            (rank.gpu, functools.partial(by_nccl, torch, numpy, rank)) for rank in ranks])
        finish(side, numpy, [row[:2] for row in found], 2 * each,
               [line for row in found for line in row[2]])
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
    store = next(dist.rendezvous(
        "%s?rank=%d&world_size=%d" % (one.where, one.rank, one.ranks)))[0]
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
    left, right = [torch.from_numpy(m).to(device)
                   for m in (operand(numpy, 1) + one.host, operand(numpy, 2))]
    return torch.matmul(left, right)


def in_processes(numpy, tasks):
    """[(device, array, NCCL's lines)] of tasks, each in a process of its own, which end with this.

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
    """(process, the end of a pipe), where it writes a line of JSON and the task's array."""
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


def end_of(process):
    """How a process of this one ended."""
    status = os.waitpid(process, 0)[1]
    if not os.WIFSIGNALED(status):
        return "ended with status %d" % os.WEXITSTATUS(status)
    names = {item.value: item.name for item in signal.Signals}
    return "was killed (%s)" % names.get(os.WTERMSIG(status), os.WTERMSIG(status))


def result(numpy, number, process, written):
    """What a task's process wrote, or the error that it wrote."""
    head, _, rest = written.partition(b"\n")
    about = json.loads(head.decode()) if head else {
        "error": "its process %s" % end_of(process), "lost": False}
    if about["error"]:
        raise (PeerLostError if about["lost"] else RuntimeError)(
            "GPU %d: %s" % (number, about["error"]))
    numbers = numpy.frombuffer(rest, numpy.float32)
    return "GPU:%d" % number, numbers.reshape((int(len(numbers) ** 0.5), -1)), about["nccl"]


# -- JAX -----------------------------------------------------------------------------------------


def jax(side, module, numpy):
    """jax.distributed, and the sum over all devices of both processes."""
    gpus = side.config["gpus"] if side.config["kind"] == "nccl" else 0
    nccl = nccl_output()
    ports, _devices = meet(side, 1, None)
    side.document["communication"] = communication(side)
    side.stage("starting its server")
    more = {"local_device_ids": list(range(gpus))} if gpus else {}
    if not gpus:
        use_gloo(module, side.address)
    module.distributed.initialize(target(side.config["addresses"][0], ports[0][0]), 2, side.me,
                                  **more)
    devices = module.local_devices()
    side.stage("computing")
    highest = module.lax.Precision.HIGHEST
    step = module.pmap(lambda left, right: module.lax.psum(
        module.numpy.matmul(left, right, precision=highest), "device"),
        axis_name="device", in_axes=(0, None))
    left = numpy.stack([operand(numpy, 1) + side.me] * len(devices))
    result = step(left, operand(numpy, 2))
    sums = [("%s:%d" % ("CPU" if piece.device.platform == "cpu" else "GPU", number),
             numpy.asarray(piece.data).reshape(left.shape[1:]))
            for number, piece in enumerate(result.addressable_shards)]
    finish(side, numpy, sums, module.device_count(), initialised(nccl))


def use_gloo(module, address):
    """Have JAX reduce between CPUs by gloo, which listens at this address.

    Its library takes an address, `hostname`; no release of JAX hands one to it, nor has a setting.
    """
    module.config.update("jax_platforms", "cpu")
    try:
        module.config.update("jax_cpu_collectives_implementation", "gloo")
    except AttributeError:  # before 0.4.27
        module.config.update("jax_cpu_enable_gloo_collectives", True)
    from jax._src import xla_bridge
    library = xla_bridge.xla_client._xla
    library.make_gloo_tcp_collectives = functools.partial(
        library.make_gloo_tcp_collectives, hostname=address)
