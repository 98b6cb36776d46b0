"""Compare the catalog with the frameworks' own wheels: `gpufleet measure`, a developer's tool.

Finds a release's wheel on the package index, reads the few members with version information (only
these parts of the file, if the server allows ranges), and compares them with the plan. Results are
stored in `catalog/data/measured/`, so that tests check later changes of the facts offline.
"""
