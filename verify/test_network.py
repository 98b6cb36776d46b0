"""Network ports: links, counters, settings, and copies between GPUs and adapters."""

from gpufleet.fleet.check_tests import generated_tests

# A test for each check with an id `network.*`, see docs/reference/checks.md.
globals().update(generated_tests("network", __file__))
