"""The real wheels of TensorFlow 1.0 and 1.4 import and compute on top of the stubs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from lab import pythons
from lab.errors import LabError
from tests.support.lab_artifacts import DESCRIBED, make

try:
    PYTHON = pythons.find("3.6", os.environ) / "bin/python3.6"
except LabError as error:
    pytest.skip(error.message, allow_module_level=True)

pytestmark = pytest.mark.slow

# The libraries that both load, in an order in which each has what it needs.
TOOLKIT = ("cudart", "cublas", "cufft", "curand", "cusolver")
SCRIPT = """\
import ctypes, sys
for path in sys.argv[1:]:
    ctypes.CDLL(path)
import numpy, tensorflow
from tensorflow.python.client import device_lib
a = tensorflow.placeholder(tensorflow.float32, [64, 64])
x = numpy.arange(64 * 64, dtype='float32').reshape(64, 64) % 5
product = tensorflow.Session().run(tensorflow.matmul(a, a), {a: x})
assert (product == x.dot(x)).all()
print(tensorflow.__version__, [device.device_type for device in device_lib.list_local_devices()])
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CUDA 8.0 and both its cuDNN."""
    place = tmp_path_factory.mktemp("unpacked")
    for name, entry in DESCRIBED.items():
        made = make(name, place / f"made-{name}")
        if entry["kind"] == "legacy":
            command = ["sh", made, "--silent", f"--extract={place}"]
            subprocess.run(command, check=True, env={**os.environ, "PERL5LIB": "."})
        elif entry["kind"] == "legacy-cudnn":
            subprocess.run(["tar", "-C", place, "-xzf", made], check=True)
    return place


def stack(release: str, place: Path) -> Path:
    subprocess.run([PYTHON, "-m", "venv", place], check=True)
    for words in (["pip==21.3.1"], [f"tensorflow-gpu=={release}"]):
        install = [place / "bin/python", "-m", "pip", "install", "--quiet", *words]
        done = subprocess.run(install, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return place / "bin/python"


def run(python: Path, *libraries: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-W", "ignore", "-c", SCRIPT, *libraries],
        capture_output=True,
        text=True,
        check=False,
        env={},
    )


@pytest.mark.parametrize(("release", "cudnn"), [("1.0.0", 5), ("1.4.0", 6)])
def test_it_computes_and_says_why_there_is_no_gpu(
    release: str, cudnn: int, unpacked: Path, tmp_path: Path
) -> None:
    python = stack(release, tmp_path / "venv")
    bound = [unpacked / f"lib64/lib{name}.so.8.0" for name in TOOLKIT]
    driver = unpacked / "lib64/stubs/libcuda.so"
    without = run(python, *bound, driver)
    done = run(python, *bound, driver, unpacked / f"cuda/lib64/libcudnn.so.{cudnn}")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{release} ['CPU']\n"
    assert "failed call to cuInit: CUDA_ERROR_NO_DEVICE" in done.stderr
    if release == "1.4.0":
        assert "ImportError: libcudnn.so.6: cannot open shared object file" in without.stderr
    else:
        assert "Couldn't open CUDA library libcudnn.so.5" in without.stderr
