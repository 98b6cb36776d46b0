"""The computations on a host: through a stack's framework, or by a toolkit's own libraries.

Standard library (and the stack's framework) only, Python 3.6 and later. `gpufleet.on_host.payload`
packs it as one script, which the probe starts with an empty environment; by hand:
``VENV/bin/python -m gpufleet.workload [--toolkit DIR]``, started in `src/`. It uses the GPUs and
writes nothing.
"""
