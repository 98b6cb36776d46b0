"""Documents that must not change: what gpufleet makes of the hosts of the tests, kept whole.

`.venv/bin/python -m tests.golden` writes them into `data/`, a file per area, and `test_golden.py`
compares them with what the code makes now. Each change of behaviour shows there.
"""
