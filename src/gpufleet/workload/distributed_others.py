"""The all-reduce of PyTorch and of JAX between two hosts: NCCL with GPUs, gloo without.

PyTorch has a process for each GPU, JAX one for each host. As with TensorFlow each replica
multiplies, and gets the sum of all; the hosts' operands differ by 1.
"""
import ctypes
import json
import os
import signal
import socket
from collections import namedtuple

from .distributed import exact, meet, operand, target, wrong_rows
from .output import plain

PR_SET_PDEATHSIG = 1

# One process of PyTorch's: its host's index, where all meet, its number of how many, its GPU.
Rank = namedtuple("Rank", "host where rank ranks gpu")


def communication(side):
    return "NCCL" if side.config["kind"] == "nccl" else "GLOO"


def finish(side, numpy, sums, in_sync):
    """Compare the sum of each replica of this host: [(device, array)]."""
    a, b = operand(numpy, 1), operand(numpy, 2)
    expected = exact(numpy, in_sync // 2 * (a + a + 1), b)
    side.document.update(in_sync=in_sync, replicas=[
        {"device": device, "wrong": wrong_rows(numpy, expected, found)} for device, found in sums])
    side.gather("waiting for the other host to finish", True)
    side.nccl.seek(0)
    lines = [line.strip()[:200] for line in side.nccl if "Init COMPLETE" in line]
    side.document["nccl"] = lines[:16]


# -- PyTorch -------------------------------------------------------------------------------------


def pytorch(side, torch, numpy):
    """torch.distributed.all_reduce: one rank for each GPU, or one for each host's CPU."""
    gpus = side.config["gpus"] if side.config["kind"] == "nccl" else 0
    ports, _devices = meet(side, 1, None)
    side.document["communication"] = communication(side)
    name = own_interface(side.config["addresses"][1 - side.me])
    if name:
        # gloo takes the address of the host's name, which may be one of this host alone.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
    side.stage("computing")
    where = "tcp://" + target(side.config["addresses"][0], ports[0][0])
    each = gpus or 1
    ranks = [Rank(side.me, where, side.me * each + local, 2 * each, local if gpus else None)
             for local in range(each)]
    if gpus:
        sums = in_processes(numpy, [
            (rank.gpu, lambda rank=rank: reduced(torch, numpy, rank)) for rank in ranks])
    else:
        sums = [("CPU:0", reduced(torch, numpy, ranks[0]))]
    finish(side, numpy, sums, 2 * each)


def reduced(torch, numpy, one):
    """The sum of all ranks' products, as this rank gets it."""
    import torch.distributed as dist
    if not dist.is_available():
        raise RuntimeError("this build of PyTorch has no torch.distributed")
    device = torch.device("cpu" if one.gpu is None else "cuda:%d" % one.gpu)
    if one.gpu is not None:
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if one.gpu is None else "nccl", init_method=one.where,
                            rank=one.rank, world_size=one.ranks)
    left, right = [torch.from_numpy(m).to(device)
                   for m in (operand(numpy, 1) + one.host, operand(numpy, 2))]
    product = torch.matmul(left, right)
    dist.all_reduce(product)
    if product.device != device:
        raise RuntimeError("the sum is on %s" % product.device)
    numbers = product.cpu().numpy()
    dist.destroy_process_group()
    return numbers


def in_processes(numpy, tasks):
    """[(device, array)] of tasks, each in a process of its own, which ends with this one."""
    children = []
    for number, task in tasks:
        read, write = os.pipe()
        child = os.fork()
        if not child:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            status = 1
            try:
                with os.fdopen(write, "wb") as stream:
                    try:
                        stream.write(b"+" + task().tobytes())
                        status = 0
                    except BaseException as error:
                        stream.write(json.dumps(plain(error)).encode())
            finally:
                os._exit(status)
        os.close(write)
        children.append((number, read))
    found = []
    for number, read in children:
        with os.fdopen(read, "rb") as stream:
            written = stream.read()
        if not written.startswith(b"+"):
            raise RuntimeError("GPU %d: %s" % (
                number, json.loads(written.decode()) if written else "its process died"))
        numbers = numpy.frombuffer(written[1:], numpy.float32)
        found.append(("GPU:%d" % number, numbers.reshape((int(len(numbers) ** 0.5), -1))))
    return found


def own_interface(other):
    """The interface by which this host reaches the other one; None where that is not known."""
    import fcntl
    import struct
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((other, 9))
            own = probe.getsockname()[0]
            for _number, name in socket.if_nameindex():
                try:
                    packed = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack(  # SIOCGIFADDR
                        "256s", name.encode()[:15]))
                except OSError:
                    continue
                if socket.inet_ntoa(packed[20:24]) == own:
                    return name
    except OSError:  # an IPv6 address, or no route
        pass
    return None


# -- JAX -----------------------------------------------------------------------------------------


def jax(side, module, numpy):
    """jax.distributed, and the sum over all devices of both processes."""
    gpus = side.config["gpus"] if side.config["kind"] == "nccl" else 0
    ports, _devices = meet(side, 1, None)
    side.document["communication"] = communication(side)
    side.stage("starting its server")
    more = {"local_device_ids": list(range(gpus))} if gpus else {}
    if not gpus:
        module.config.update("jax_platforms", "cpu")
        module.config.update("jax_cpu_collectives_implementation", "gloo")
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
    finish(side, numpy, sums, module.device_count())
