"""Programs that only developers of gpufleet run. None is in the wheel."""
