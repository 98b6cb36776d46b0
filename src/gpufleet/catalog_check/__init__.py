"""The fact base held against TensorFlow's own wheels: `gpufleet measure`, a developer's tool.

For a release it finds the wheel on the package index, reads the few members that tell (a part of
the file, where the index allows it), and compares what they say with the plan. What was measured is
kept in `catalog/data/measured.yml`, so that tests can hold later changes of the facts against it
without the network.
"""
