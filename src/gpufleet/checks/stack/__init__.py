"""Checks of the stacks: what is installed, and what each framework computes."""
