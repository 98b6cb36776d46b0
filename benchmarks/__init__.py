"""Benchmarks that compare alternatives in one run; results are ratios."""
