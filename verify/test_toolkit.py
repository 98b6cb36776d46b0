"""CUDA toolkits: release, files, default link, and what their libraries compute."""

from gpufleet.fleet.check_tests import generated_tests

# A test for each check with an id `toolkit.*`, see docs/reference/checks.md.
globals().update(generated_tests("toolkit", __file__))
