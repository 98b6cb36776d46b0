"""The NVIDIA driver, its kernel modules and repositories."""
