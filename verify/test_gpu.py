"""GPUs: count, identity, health, settings and speed."""

from gpufleet.fleet.check_tests import generated_tests

# A test for each check with an id `gpu.*`, see docs/reference/checks.md.
globals().update(generated_tests("gpu", __file__))
