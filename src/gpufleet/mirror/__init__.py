"""The offline mirror: everything that a fleet installs, in one directory, for air-gapped sites.

    DIR/FILE             CUDA runfiles and patches, cuDNN archives: gpu_artifacts_source
    DIR/wheels/FILE      the Python packages of the stacks' locks: gpu_wheelhouse
    DIR/contents.json    the packages of each lock, by the lock's checksum

Plans and locks list what is needed; the modules' own code downloads and checks it.
"""

from gpufleet.fleet.inventory import start_ansible

# The modules' shared code is imported by the collection's name.
start_ansible()
