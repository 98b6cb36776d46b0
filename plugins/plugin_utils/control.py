# Apache-2.0, see LICENSE
"""The action plugins' need of the control machine: the Python package gpufleet."""

from __future__ import annotations

import sys

from ansible.errors import AnsibleError


def require_package(error):
    """Raise ``AnsibleError`` with a remedy where importing gpufleet failed with ``error``."""
    if error is not None:
        raise AnsibleError(
            "The collection gpufleet.gpu needs the Python package gpufleet in the environment that "
            "runs Ansible, and it cannot be imported there ({}). Install its wheel, which "
            "./gpufleet build writes into dist/ in a checkout of gpufleet: "
            "{} -m pip install dist/gpufleet-*.whl".format(error, sys.executable)
        )
