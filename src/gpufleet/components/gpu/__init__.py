"""Checks of the GPUs by what nvidia-smi and the kernel log report."""
