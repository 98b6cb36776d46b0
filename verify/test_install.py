"""Installations: complete, recorded by receipts, writable by root alone."""

from gpufleet.fleet.check_tests import generated_tests

# A test for each check with an id `install.*`, see docs/reference/checks.md.
globals().update(generated_tests("install", __file__))
