"""Two stacks on one host, of CUDA 8 and of CUDA 11: each has its own libraries.

All five, and what people do to such hosts, are in `test_side_by_side.py`.
"""

from __future__ import annotations

import json
import os

import pytest

from lab import pythons
from lab.errors import LabError
from tests.support.lab_fleet import Fleet
from tests.support.mapped_libraries import mapped

try:
    pythons.find("3.6", os.environ)
except LabError as error:
    # TensorFlow 1.4.0 has no wheel for a newer Python, and this machine has no 3.6.
    pytest.skip(error.message, allow_module_level=True)

pytestmark = pytest.mark.lab
ARTIFACTS = ("--cuda", "8.0", "--cuda", "11.8")
UP = ("--hosts", "lab1", "--python", "3.6")
# Each stack's own place, and a library of it that must be there.
OWN = {
    "tensorflow-1.4.0": ("/usr/local/cuda-8.0/", "libcudnn.so.6.0.21"),
    "tensorflow-2.13.1": ("/usr/local/cuda-11.8/", "libcudnn.so.8.6.0"),
}
DECLARED = {
    "gpu_stacks": [{"tensorflow": name.partition("-")[2]} for name in OWN],
    "gpu_toolkits": [],
}


def test_one_provision_brings_both_and_each_maps_its_own_libraries_only(fleet: Fleet) -> None:
    words = ("-i", "inventory/side-by-side", "-e", json.dumps(DECLARED))
    output = " ".join(fleet.gpufleet("provision", *words).stdout.split())
    assert "all declared checks pass" in output
    for stack, (place, library) in OWN.items():
        assert f"{stack} multiplies matrices exactly on the CPU" in output
        files = mapped(fleet, stack)
        assert any(path.endswith(f"/{library}") for path in files)
        assert [path for path in files if not path.startswith(place)] == []
