"""The lab host of `inventory/frameworks`: TensorFlow, PyTorch and JAX, five stacks."""

from __future__ import annotations

# The artifacts that a fleet of these hosts needs, for the fixture `fleet`.
ARTIFACTS = ("--cuda", "12.5", "--cuda", "11.8")
UP = ("--hosts", "lab1")

WHERE = ("-i", "inventory/frameworks")
ROOT = "/opt/gpufleet/stacks"
# Below each of them.
SITE = "lib/python3.11/site-packages"
