"""The toolkits, cuDNN and the dynamic linker."""
