"""What probe and workload have in common: the names of CUDA's files, the marks of output lines."""
import re

# libcudadebugger, libcuda and friends are the driver's and belong to the driver section.
CUDA_FILE = re.compile(
    r"^lib(cudart|cublas|cublasLt|cufft|cufftw|curand|cusolver|cusolverMg|cusparse|cudnn\w*|nvrtc"
    r"|nvrtc-builtins|nvJitLink|cupti|nccl|npp\w+|nvjpeg|nvblas|cufile)\.so(\.|$)")
DRIVER_FILE = re.compile(r"^lib(cuda|nvidia-ml|nvidia-ptxjitcompiler)\.so(\.|$)")
FRAMEWORK_MARK = "gpufleet-framework: "
COMPUTE_MARK = "gpufleet-compute: "
# What ends the reason where root would run, or load, what another account could have written.
REFUSED = "it is not run as root"
