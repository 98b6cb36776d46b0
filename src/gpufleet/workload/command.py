"""Multiply matrices on each GPU, and report where that happened.

    VENV/bin/python matmul.py                            through that stack's TensorFlow (1.x, 2.x)
    VENV/bin/python matmul.py --framework pytorch        through that stack's PyTorch, or JAX
    python3 matmul.py --toolkit /usr/local/cuda-12.3     through that toolkit's own libraries

The last line that begins with the mark is one JSON document, `framework` or a run of `compute` in
docs/reference/schemas/snapshot.json; the rest is the libraries' output. It is printed again
before each stage, so that a crash loses only what came after.
"""

import argparse
import importlib.util
import os
import sys

from .fabric_load import BLOCK_MIB
from .framework_run import run_stages
from .jax_run import Jax
from .pytorch_run import PyTorch
from .tensorflow_run import TensorFlow
from .timing import BUDGET_MIB
from .toolkit_run import through_toolkit
from .toolkit_stages import STAGES, run_stage

FRAMEWORKS = {framework.name: framework for framework in (TensorFlow, PyTorch, Jax)}


def chosen(name):
    """The class of a framework; of any that can be imported, TensorFlow before the others."""
    present = (
        framework for framework in FRAMEWORKS.values() if importlib.util.find_spec(framework.module)
    )
    return FRAMEWORKS[name] if name != "any" else next(present, TensorFlow)


def main(config=None):
    """Run what the arguments ask for. `config` is for programs that are fed on standard input."""
    parser = argparse.ArgumentParser(
        description="Multiply matrices on each GPU, and report where that happened."
    )
    parser.add_argument(
        "--framework",
        choices=[*FRAMEWORKS, "any"],
        default=TensorFlow.name,
        help="any: the first that this Python has",
    )
    parser.add_argument(
        "--toolkit", metavar="DIR", help="no framework: this CUDA toolkit, or a stack's CUDA wheels"
    )
    parser.add_argument("--expect-gpus", default="any", help="0, a number, or any")
    parser.add_argument("--size", type=int, help="rows of the matrices")
    parser.add_argument(
        "--budget",
        type=int,
        default=BUDGET_MIB,
        metavar="MIB",
        help="with less free memory than that a GPU is busy",
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="also what one toolkit of a host is enough for: sums that equal GPUs agree on, copies"
        " between the host and each GPU",
    )
    parser.add_argument(
        "--deep",
        action="store_true",
        help="also minutes of load, memory bandwidth, copies between GPUs",
    )
    parser.add_argument("--sustained", type=float, default=120, metavar="S")
    parser.add_argument(
        "--settle",
        type=float,
        default=120,
        metavar="S",
        help="how long to wait until a GPU is cool again",
    )
    parser.add_argument(
        "--fill",
        type=int,
        default=1 << 24,
        metavar="MIB",
        help="how much free memory of a GPU is filled with patterns in a deep run, at most",
    )
    parser.add_argument(
        "--disk",
        metavar="DIR",
        help="write and read a file in this directory while the GPUs are loaded",
    )
    parser.add_argument(
        "--fabric",
        action="store_true",
        help="copy between GPUs, and between each GPU and the host, while the GPUs are loaded",
    )
    parser.add_argument("--deadline", type=float, default=600, metavar="S")
    parser.add_argument(
        "--no-compile", metavar="REASON", help="compile no function: what is lacking for that"
    )
    # The settings of a stage's own process.
    parser.add_argument("--stage", choices=sorted(STAGES), help=argparse.SUPPRESS)
    parser.add_argument("--gpus", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--gpu", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--block", type=int, default=BLOCK_MIB, help=argparse.SUPPRESS)
    for name in ("--cudnn", "--places"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stage:
        run_stage(options)
    elif options.toolkit:
        through_toolkit(options)
    else:
        run_stages(chosen(options.framework)(), options)
    sys.stdout.flush()
    # Interpreter shutdown of an old TensorFlow may crash after all output.
    os._exit(0)
