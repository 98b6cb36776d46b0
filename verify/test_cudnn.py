"""cuDNN: version, symlinks, files, permissions, and an exact convolution."""

from gpufleet.fleet.check_tests import generated_tests

# A test for each check with an id `cudnn.*`, see docs/reference/checks.md.
globals().update(generated_tests("cudnn", __file__))
