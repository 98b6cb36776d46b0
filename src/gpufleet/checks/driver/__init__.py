"""Checks of the driver: what is installed, what programs can use, whether it runs."""
