"""Finds what makes a group of members (hosts, or the GPUs of a host) slow, wrong or hung.

Pure: `bisection.bisect` yields rounds of tests, another package runs them and sends the results.
"""
