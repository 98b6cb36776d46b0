"""Framework stacks: release, libraries, and exact results on every GPU."""

from gpufleet.fleet.check_tests import generated_tests

# A test for each check with an id `stack.*`, see docs/reference/checks.md.
globals().update(generated_tests("stack", __file__))
