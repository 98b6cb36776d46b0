"""Faults of the documents, by area; `tests/components/test_faults.py` runs them."""
