"""The NVIDIA driver: packages, kernel modules, device files and daemons."""

from gpufleet.fleet.check_tests import generated_tests

# A test for each check with an id `driver.*`, see docs/reference/checks.md.
globals().update(generated_tests("driver", __file__))
