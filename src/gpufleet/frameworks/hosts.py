"""The facts about each framework that hosts need. Standard library, Python 3.6 and later.

The probe has this file too, by the link `on_host/frameworks.py`: it travels to hosts. Where an
environment has several frameworks and nothing is declared, the first of them is run.
"""

import collections

Names = collections.namedtuple(
    "Names",
    (
        "module",  # what Python imports
        "distributions",  # the packages that carry its releases
        "compiled",  # how the packages begin whose code the driver may compile
        "variables",  # the variables by which users keep it from GPUs
        "libraries",  # where its packages have CUDA libraries of their own
        "starts_compiler",  # whether its run starts a C compiler
        # Its lines when it leaves a GPU unused, or compiles its code again for it: regular
        # expressions.
        "log_lines",
    ),
)
FRAMEWORKS = {
    "tensorflow": Names(
        module="tensorflow",
        distributions=("tensorflow", "tensorflow-gpu"),
        compiled=("tensorflow",),
        variables=(),
        libraries=(),
        starts_compiler=False,
        log_lines=(
            "minimum required Cuda capability",
            "jit-compiled from PTX",
            "Skipping registering GPU",
            "CUDA_ERROR_OUT_OF_MEMORY",
        ),
    ),
    "pytorch": Names(
        module="torch",
        distributions=("torch",),
        compiled=("torch", "triton"),
        variables=(),
        # PyTorch up to 1.12; later ones have NVIDIA's wheels.
        libraries=("torch/lib",),
        starts_compiler=True,
        log_lines=(
            "not compatible with the current PyTorch",
            "too old to be supported",
            "is too old",
            "minimum cuda capability supported",
            "CUDA initialization: ",
        ),
    ),
    "jax": Names(
        module="jax",
        distributions=("jax",),
        compiled=("jax",),
        variables=("JAX_PLATFORMS", "JAX_PLATFORM_NAME"),
        libraries=(),
        starts_compiler=False,
        log_lines=(
            "Unable to initialize backend '(?:cuda|gpu)'",
            "Jax plugin configuration error",
            "unable to create StreamExecutor",
            "[Ff]alling back to cpu",
            r"Unable to load cu\w+",
            r"Outdated cu\w+ installation",
        ),
    ),
}


def each_of(field: str) -> "tuple[str, ...]":
    """The entries that all frameworks have in that field."""
    return tuple(entry for each in FRAMEWORKS.values() for entry in getattr(each, field))
