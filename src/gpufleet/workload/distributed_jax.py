"""The all-reduce of JAX between two hosts: NCCL with GPUs, gloo without.

JAX has a process for each host.
"""

import functools

from .reduction import communication, finish
from .rendezvous import initialised, meet, nccl_output, operand, target

NAME, TITLE, MODULE = "jax", "JAX", "jax"
GLOO = True  # whether gloo reduces between its CPUs, on a port that the kernel chooses


def work(kind):
    """The function of a kind of run."""
    return all_reduce


def all_reduce(side, module, numpy):
    """jax.distributed, and the sum over all devices of both processes."""
    gpus = side.config["gpus"] if side.config["kind"] == "nccl" else 0
    nccl = nccl_output()
    ports, _devices = meet(side, 1, None, GLOO)
    side.document["communication"] = communication(side)
    side.stage("starting its server")
    more = {"local_device_ids": list(range(gpus))} if gpus else {}
    if not gpus:
        use_gloo(module, side.address)
    module.distributed.initialize(
        target(side.config["addresses"][0], ports[0][0]), 2, side.me, **more
    )
    devices = module.local_devices()
    side.stage("computing")
    highest = module.lax.Precision.HIGHEST
    step = module.pmap(
        lambda left, right: module.lax.psum(
            module.numpy.matmul(left, right, precision=highest), "device"
        ),
        axis_name="device",
        in_axes=(0, None),
    )
    left = numpy.stack([operand(numpy, 1) + side.me] * len(devices))
    result = step(left, operand(numpy, 2))
    sums = [
        (
            "%s:%d" % ("CPU" if piece.device.platform == "cpu" else "GPU", number),
            numpy.asarray(piece.data).reshape(left.shape[1:]),
        )
        for number, piece in enumerate(result.addressable_shards)
    ]
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
        library.make_gloo_tcp_collectives, hostname=address
    )
