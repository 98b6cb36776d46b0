"""GPUs in containers: engine, CDI, devices, and exact results."""

from gpufleet.fleet.check_tests import generated_tests

# A test for each check with an id `containers.*`, see docs/reference/checks.md.
globals().update(generated_tests("containers", __file__))
