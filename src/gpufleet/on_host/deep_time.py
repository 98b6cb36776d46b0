"""How much longer a deep probe takes, by its load, its GPUs and its toolkits. Pure.

The controller adds these seconds to the deadline of a host, and the probe reserves them for the
section that computes: they are in no other section's share.
"""

# A probe reserves so many times its load: the products in float32, and in fixed parts of the same
# time the products of the other formats and their sums, which take 0.63 of it on all GPUs together.
LOADS = 2
# How long a GPU may take to become cool again.
SETTLE_S = 120
# Each further GPU takes so many seconds: its memory is filled and compared, its load prepared.
GPU_S = 10
# The copies from one GPU to another one.
PAIR_S = 0.4
# A toolkit that computes without a load, and what each GPU adds to it.
TOOLKIT_S, TOOLKIT_GPU_S = 30, 5
# A host may have more toolkits than are declared, and wheels of CUDA.
LEAST_TOOLKITS = 3
# The GPUs of a host that declares no number of them: most hosts have no more.
UNDECLARED_GPUS = 8


def load_seconds(load_s, gpus):
    """The seconds that the newest toolkit needs for the load and the other deep stages."""
    further = max(0, gpus - 1)
    return LOADS * load_s + SETTLE_S + GPU_S * further + PAIR_S * gpus * further


def toolkits_seconds(toolkits, gpus):
    """The least seconds that so many toolkits need to compute without a load."""
    return max(LEAST_TOOLKITS, toolkits) * (TOOLKIT_S + TOOLKIT_GPU_S * gpus)


def deep_seconds(load_s, gpus, toolkits):
    """The seconds of a deep probe beyond the deadline of one that is not deep."""
    return load_seconds(load_s, gpus) + toolkits_seconds(toolkits, gpus)
