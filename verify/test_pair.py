"""Two hosts together: exact distributed runs (--gpu-pair, --gpu-pairs)."""

from gpufleet.fleet.check_tests import generated_tests

# A test for each check with an id `pair.*`, see docs/reference/checks.md.
globals().update(generated_tests("pair", __file__))
