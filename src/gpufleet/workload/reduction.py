"""The common part of all-reduces by NCCL and gloo, whichever framework runs them.

As with TensorFlow each replica multiplies, and gets the sum of all; the hosts' operands differ
by 1. Left alone, gloo takes the address of the host's own name, which Debian gives to the host
alone (`127.0.1.1`), or the first address of an interface. Here it gets the one address at which the
other host did reach this one.
"""

from .rendezvous import exact, operand, wrong_rows


def communication(side):
    return "NCCL" if side.config["kind"] == "nccl" else "GLOO"


def finish(side, numpy, sums, in_sync, nccl):
    """Compare the sum of each replica of this host: [(device, array)]; and what NCCL said."""
    a, b = operand(numpy, 1), operand(numpy, 2)
    expected = exact(numpy, in_sync // 2 * (a + a + 1), b)
    side.document.update(
        in_sync=in_sync,
        nccl=nccl[:16],
        replicas=[
            {"device": device, "wrong": wrong_rows(numpy, expected, found)}
            for device, found in sums
        ],
    )
    side.gather("waiting for the other host to finish", True)
