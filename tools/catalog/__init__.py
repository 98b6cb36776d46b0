"""Keep the catalog true: `gpufleet catalog`, a developer's tool.

Adds what NVIDIA and the package index publish, validates the rows, compares them with the
frameworks' own wheels, and makes and imports every lock. The results for wheels and locks are kept
in `catalog/data/measured/` and `catalog/data/locks/`, so that tests check later changes offline.
"""
