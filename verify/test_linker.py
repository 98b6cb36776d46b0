"""The dynamic linker: registered directories, cache, and foreign libraries."""

from gpufleet.fleet.check_tests import generated_tests

# A test for each check with an id `linker.*`, see docs/reference/checks.md.
globals().update(generated_tests("linker", __file__))
