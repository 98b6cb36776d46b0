"""From fresh servers with NVIDIA GPUs to every GPU proven to compute, in every declared stack."""
