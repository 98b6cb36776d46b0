"""PyTorch: its CUDA is in the wheel or in wheels; an index of its own has more builds."""

from .descriptor import Framework

PYTORCH = Framework(
    id="pytorch",
    title="PyTorch",
    example="2.6.0",
    example_options="--gpu V100 --json",
    own_index="https://download.pytorch.org/whl/",
    instead_of_local="comes with its CUDA",
    exact_cudnn=True,
    parts_before_products=("numpy",),
    parts_after_products=("convolution", "routines", "loader", "workers", "compile"),
    ignored_gpu=(
        "minimum cuda capability",
        "too old to be supported",
        "not compatible with the current PyTorch",
    ),
    lists_own_code=True,
    compiler="torch.compile",
    numpy_2_from="2.3",
)
