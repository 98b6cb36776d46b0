"""Constants of probe and workload: the names of CUDA's files, the marks of output lines."""

import re

# libcudadebugger, libcuda and friends are the driver's and belong to the driver section.
CUDA_FILE = re.compile(
    r"^lib(cudart|cublas|cublasLt|cufft|cufftw|curand|cusolver|cusolverMg|cusparse|cudnn\w*|nvrtc"
    r"|nvrtc-builtins|nvJitLink|cupti|nccl|npp\w+|nvjpeg|nvblas|cufile)\.so(\.|$)"
)
# And what frameworks carry: libraries that no toolkit has, and copies under a name with a digest,
# such as libcudart-e409450e.so.11.0.
CARRIED_FILE = re.compile(
    r"^lib(cusparseLt|nvshmem\w*|nvToolsExt"
    r"|(cudart|cublas|cublasLt|cufft|curand|cusolver|cusparse|cudnn\w*|nccl|nvrtc|nvrtc-builtins|nvToolsExt)"
    r"-[0-9a-f]{8})\.so(\.|$)"
)


def is_cuda_file(name):
    """Return whether a file is one of CUDA's or cuDNN's, or a copy that frameworks carry."""
    return bool(CUDA_FILE.match(name) or CARRIED_FILE.match(name))


DRIVER_FILE = re.compile(r"^lib(cuda|nvidia-ml|nvidia-ptxjitcompiler)\.so(\.|$)")
FRAMEWORK_MARK = "gpufleet-framework: "
COMPUTE_MARK = "gpufleet-compute: "
# The attributes of a file that hold against root, with chattr's letter for each.
ATTRIBUTE_LETTERS = {"immutable": "i", "append-only": "a"}
# The end of the reason where root would run or load a file that others could have written.
REFUSED = "it is not run as root"
# A part of that reason where an error left open who could have written the file.
UNJUDGED = "cannot be judged"
# A variable's value has no more characters in a snapshot: what is longer is cut, because a text
# that the controller refuses costs it the whole section.
MOST_VALUE = 8 << 10
# The text of /run/systemd/container in an image that is being built, which has no kernel.
IMAGE = "image"
