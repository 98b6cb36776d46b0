"""Checks of the host itself: its probe, its plan, its disks, its records of what is installed."""
