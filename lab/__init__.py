"""Throwaway hosts and stand-in NVIDIA artifacts, for machines without a GPU.

`python -m lab up` starts them, `python -m lab down` leaves nothing behind. The hosts are Debian
systems in containers, reached by ssh like any other server; the artifacts are made from the
libraries that NVIDIA publishes on the Python package index, or of stubs where it published none.
Only tests and benchmarks import this package: without it, gpufleet still manages real servers.
"""
