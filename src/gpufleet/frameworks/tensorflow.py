"""TensorFlow: one build for each release, which finds its CUDA in a toolkit or in wheels."""

from .descriptor import Distributed, Framework

TENSORFLOW = Framework(
    id="tensorflow",
    title="TensorFlow",
    example="2.17.1",
    image="tensorflow/tensorflow:2.17.1",
    variable="tensorflow_gpu_version",  # of the role with this name
    instead_of_local="uses an installed toolkit without it",
    # As before there were others, whose modulefiles name it.
    excludes_all=False,
    parts_before_products=("small",),
    ignored_gpu=("minimum required",),
    own_libraries=False,
    distributed=Distributed(
        parameter_servers=True,
        communication="RING",
        reduction="multi-worker all-reduce",
        cpus_from=(2,),
        gpus_from=(2,),
    ),
)
