"""Faults of the documents, by area; `tests/checks/test_faults.py` runs them."""
