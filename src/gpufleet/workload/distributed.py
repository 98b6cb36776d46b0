"""One side of a distributed run between two hosts: the framework's own, by the kind of the run.

Fed to a stack's own interpreter on standard input, on both hosts at the same time; `rendezvous`
says how the sides meet. Standard library and that stack's framework only, Python 3.6 and later.
"""

import importlib
import json
import os

from . import distributed_jax, distributed_pytorch, distributed_tensorflow
from .rendezvous import KilledError, Side, error_message, lost

PROGRAMS = {
    each.NAME: each for each in (distributed_tensorflow, distributed_pytorch, distributed_jax)
}


def variables(gpus):
    """The environment variables that the frameworks read when they start."""
    found = {
        # Keras would write its settings into a home.
        "HOME": os.devnull,
        # GPUs have the numbers that they have elsewhere, also where they differ in speed or size.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "TF_MIN_GPU_MULTIPROCESSOR_COUNT": "1",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    if gpus == 0:
        found["CUDA_VISIBLE_DEVICES"] = "-1"
    return found


def main(config):
    """Run this side; `config` is a JSON document."""
    side = Side(json.loads(config))
    side.watch()
    os.environ.update(variables(side.config["gpus"]))
    try:
        program = PROGRAMS[side.config.get("framework") or distributed_tensorflow.NAME]
        side.stage("importing " + program.TITLE)
        import numpy

        module = importlib.import_module(program.MODULE)
        side.document["version"] = module.__version__.partition("+")[0]
        program.work(side.config["kind"])(side, module, numpy)
    except BaseException as error:
        side.document["killed"] = isinstance(error, KilledError)
        side.end("lost" if lost(error) else "failed", error_message(error))
    side.end("ok", None)
