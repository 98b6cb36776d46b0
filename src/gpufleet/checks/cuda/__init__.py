"""Checks of the installed CUDA: toolkits, cuDNN, the linker's directories, the environment."""
