"""GPUs in containers."""
