"""Login environment: variables that disturb CUDA, modulefiles, profile and kernels."""

from gpufleet.fleet.check_tests import generated_tests

# A test for each check with an id `environment.*`, see docs/reference/checks.md.
globals().update(generated_tests("environment", __file__))
