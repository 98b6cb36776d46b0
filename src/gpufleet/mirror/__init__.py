"""Everything that a fleet installs, in one directory: for a site with no way to the internet.

    DIR/FILE             CUDA's runfiles and patches, cuDNN's archives: gpu_artifacts_source
    DIR/wheels/FILE      the Python packages of the stacks' locks: gpu_wheelhouse
    DIR/contents.json    which packages each lock means, by the lock's checksum

Plans and locks say what is needed; the modules' own code brings it, checked.
"""

from gpufleet.inventory import start_ansible

# What the modules share is imported by the collection's name.
start_ansible()
