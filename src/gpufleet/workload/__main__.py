"""By hand: ``VENV/bin/python -m gpufleet.workload``, started in `src/`."""

from .command import main

main()
