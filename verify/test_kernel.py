"""The kernel log since boot: Xids and hardware errors."""

from gpufleet.fleet.check_tests import generated_tests

# A test for each check with an id `kernel.*`, see docs/reference/checks.md.
globals().update(generated_tests("kernel", __file__))
