"""JAX: a plugin for a major version of CUDA, which takes it from wheels or from a toolkit."""

from .descriptor import Distributed, Framework

JAX = Framework(
    id="jax",
    title="JAX",
    example="0.5.3",
    example_options="--cuda local",
    cuda_plugin=True,
    bounds_cudnn=True,
    parts_after_products=("convolution", "routines", "loader"),
    # The first release whose library has gloo (`jax_cpu_enable_gloo_collectives`, from 0.4.27 on
    # `jax_cpu_collectives_implementation`): read and run in the wheels of 0.4.20 to 0.10.2.
    distributed=Distributed(cpus_from=(0, 4, 22)),
)
