"""The host: reachable, probed, with a valid plan and free disk space."""

from gpufleet.fleet.check_tests import generated_tests

# A test for each check with an id `host.*`, see docs/reference/checks.md.
globals().update(generated_tests("host", __file__))
