"""The settings of `pytest verify/`, which runs the checks."""

# The second opinion runs where it is named: its result is not the checks'.
collect_ignore = ["test_smoke.py"]
