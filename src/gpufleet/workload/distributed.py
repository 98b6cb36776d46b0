"""One side of a distributed run between two hosts: the framework's own, by the kind of the run.

Fed to a stack's own interpreter on standard input, on both hosts at the same time; `rendezvous`
says how the sides meet. Standard library and that stack's framework only, Python 3.6 and later.
"""

import importlib
import json
import os

from . import distributed_jax, distributed_pytorch, distributed_tensorflow
from .rendezvous import Side, error_message, lost

PROGRAMS = {
    each.NAME: each for each in (distributed_tensorflow, distributed_pytorch, distributed_jax)
}


def main(config):
    """Run this side; `config` is a JSON document."""
    side = Side(json.loads(config))
    side.watch()
    # Keras would write its settings into a home.
    os.environ.update(
        HOME=os.devnull, TF_FORCE_GPU_ALLOW_GROWTH="true", XLA_PYTHON_CLIENT_PREALLOCATE="false"
    )
    if side.config["gpus"] == 0:
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    try:
        program = PROGRAMS[side.config.get("framework") or distributed_tensorflow.NAME]
        side.stage("importing " + program.TITLE)
        import numpy

        module = importlib.import_module(program.MODULE)
        side.document["version"] = module.__version__.partition("+")[0]
        program.work(side.config["kind"])(side, module, numpy)
    except BaseException as error:
        side.end("lost" if lost(error) else "failed", error_message(error))
    side.end("ok", None)
