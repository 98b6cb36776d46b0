"""Checks of what each GPU computes by CUDA's own libraries: exactness and speed."""
