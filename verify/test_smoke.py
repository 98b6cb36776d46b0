"""A second opinion on a host: what an administrator would look at, with testinfra alone.

    pytest verify/test_smoke.py --hosts=ansible://gpu_hosts --ansible-inventory=INVENTORY
    pytest verify/test_smoke.py --hosts=ssh://gpu01          a host without an inventory
    pytest verify/test_smoke.py                              this machine

This file needs nothing of gpufleet. It tests what it finds on the host, and skips what is not
there with the reason. Variables of the environment say what has to be there:

    SMOKE_GPUS=8                       the number of GPUs; default: as the PCI bus has
    SMOKE_CUDA=11.8                    the release of the default link; default: any toolkit's
    SMOKE_PREFIX=/usr/local            the directory of the toolkits cuda-*
    SMOKE_STACKS=/opt/gpufleet/stacks  the directory of the stacks, each a Python environment
    SMOKE_IMAGE=IMAGE                  an image on the host, to start a container with GPUs
"""

import os
import shlex
from pathlib import Path

import pytest

GPUS, CUDA, IMAGE = (os.environ.get(f"SMOKE_{name}") for name in ("GPUS", "CUDA", "IMAGE"))
PREFIX = os.environ.get("SMOKE_PREFIX", "/usr/local")
STACKS = os.environ.get("SMOKE_STACKS", "/opt/gpufleet/stacks")
ENGINES = {"docker": "--gpus all", "podman": "--device nvidia.com/gpu=all"}
ON_PCI = """for device in /sys/bus/pci/devices/*; do
    case $(cat $device/vendor $device/class) in 0x10de*0x03*) echo $device;; esac
done"""
# Each element of the product is 1024, also where the hardware rounds the operands.
PRODUCT = """
from importlib.util import find_spec
if find_spec("tensorflow"):
    import tensorflow
    if hasattr(tensorflow, "Session"):  # TensorFlow 1
        ones, seen = tensorflow.placeholder("float", (1024, 1024)), tensorflow.RunMetadata()
        values = tensorflow.Session().run(
            tensorflow.matmul(ones, ones), {ones: [[1.0] * 1024] * 1024},
            tensorflow.RunOptions(trace_level=1), seen)
        where = [each.device for each in seen.step_stats.dev_stats
                 if any("MatMul" in node.node_name for node in each.node_stats)]
    else:
        ones = tensorflow.ones((1024, 1024))
        product = ones @ ones
        where, values = product.device, product.numpy()
elif find_spec("torch"):
    import torch
    ones = torch.ones(1024, 1024, device="cuda" if torch.cuda.is_available() else "cpu")
    values = ones @ ones
    where = values.device
else:
    import jax
    ones = jax.numpy.ones((1024, 1024))
    values = ones @ ones
    where = values.devices()
print("GPU" if any(word in str(where).lower() for word in ("gpu", "cuda")) else "CPU",
      float(values.min()), float(values.max()))
"""
# Otherwise a framework takes all memory of a GPU, also where others compute.
SPARING = "TF_FORCE_GPU_ALLOW_GROWTH=true XLA_PYTHON_CLIENT_PREALLOCATE=false"


def lines(host, command):
    """The lines that a command prints, which has to succeed within ten minutes."""
    done = host.run("timeout 600 sh -c %s", command)
    assert done.rc == 0, f"{command}: ended with {done.rc}: {done.stdout}{done.stderr}"
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def gpus(host):
    """The number of GPUs that the host has to have."""
    return int(GPUS or len(lines(host, ON_PCI)))


@pytest.fixture(scope="module")
def toolkits(host):
    """The directories of the toolkits, such as /usr/local/cuda-11.8."""
    found = lines(host, f"find -L {PREFIX} -maxdepth 1 -type d -name 'cuda-*.*'")
    return found or pytest.skip(f"{PREFIX} has no toolkit")


def test_nvidia_smi(host, gpus):
    """`nvidia-smi` lists every GPU."""
    if not gpus:
        pytest.skip("the PCI bus has no NVIDIA GPU")
    assert len([line for line in lines(host, "nvidia-smi -L") if line.startswith("GPU ")]) == gpus


def test_nvcc(host, toolkits):
    """The `nvcc` of each toolkit has the release that the directory is named for."""
    for toolkit in toolkits:
        output = " ".join(lines(host, f"{toolkit}/bin/nvcc --version"))
        assert f"release {toolkit.rpartition('-')[2]}," in output


def test_cudnn_links(host, toolkits):
    """libcudnn.so leads to libcudnn.so.8, this to libcudnn.so.8.6.0, and so each part of cuDNN."""
    directories = " ".join(f"{toolkit}/lib64/" for toolkit in toolkits)
    rows = lines(host, f"find {directories} -name 'libcudnn*.so*' -printf '%p %Y %l\\n'")
    if not rows:
        pytest.skip("no toolkit has a cuDNN")
    targets = {path: target for path, _, target in (row.split(" ") for row in rows)}
    assert not [row for row in rows if " N " in row], "links that lead nowhere"
    for path, target in targets.items():
        name, _, version = path.partition(".so.")
        if target:
            # A link to another library or release is wrong as well.
            assert Path(target).name.startswith(f"{Path(path).name}."), path
        else:
            major = version.partition(".")[0]
            assert targets.get(f"{name}.so") and targets.get(f"{name}.so.{major}"), path


def test_linker_cache(host, toolkits):
    """`ldconfig -p` lists the CUDA runtime, and no file of CUDA's that is gone."""
    cached = [line.rpartition(" => ")[2] for line in lines(host, "/sbin/ldconfig -p")]
    cached = [path for path in cached if path.startswith(f"{PREFIX}/cuda")]
    assert any("/libcudart.so." in path for path in cached)
    lines(host, f"ls -L {' '.join(cached)}")


def test_default_link(host, toolkits):
    """/usr/local/cuda is a link to one of the toolkits."""
    path = f"{PREFIX}/cuda"
    link = host.file(path)
    if not (CUDA or link.is_symlink or link.exists):
        pytest.skip(f"{path} is not there")
    assert link.is_symlink
    accepted = [f"{PREFIX}/cuda-{CUDA}"] if CUDA else toolkits
    assert any(host.run(f"test {path} -ef {each}").succeeded for each in accepted), link.linked_to


def test_container_with_gpus(host, gpus):
    """A container has the GPUs that the host has."""
    engines = [engine for engine in ENGINES if host.exists(engine)]
    if not (gpus and engines and IMAGE):
        pytest.skip("it needs a GPU, docker or podman, and SMOKE_IMAGE")
    for engine in engines:
        run = f"{engine} run --rm --pull never --entrypoint nvidia-smi {ENGINES[engine]} {IMAGE}"
        assert lines(host, f"{run} -L") == lines(host, "nvidia-smi -L")


def test_matrix_product(host, gpus):
    """Each stack multiplies two matrices exactly, on a GPU where there is one."""
    pythons = host.run(f"ls -d {STACKS}/*/bin/python").stdout.split()
    if not pythons:
        pytest.skip(f"{STACKS} has no stack")
    expected = f"{'GPU' if gpus else 'CPU'} 1024.0 1024.0"
    for python in pythons:
        output = lines(host, f"{SPARING} {python} -B -c {shlex.quote(PRODUCT)}")
        assert output[-1:] == [expected], python
