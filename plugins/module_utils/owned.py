# Apache-2.0, see LICENSE
"""Refuse to run, as root, what another account could have written.

Reads the host.
"""

from __future__ import annotations

import functools
import os

from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.python_start import (
    program_code,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.trust import (
    RefusedError,
    account_for,
    walk,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import StateError


def refuse_foreign(words):
    """Judge the programs and directories among the words of a command. Raises ``StateError``.

    A Python interpreter is judged with its environment and library. Of a directory only the way to
    it counts: what a program is to write there.
    """
    if os.geteuid():
        return
    try:
        for path in [word.rpartition("=")[2] for word in words]:
            if path.startswith("/") and os.path.isfile(path):
                account_for(functools.partial(program_code, path), as_owner=False)
            elif path.startswith("/") and os.path.isdir(path) and walk(path)[0]:
                raise RefusedError("; ".join(walk(path)[0].values()))
    except RefusedError as error:
        raise StateError(
            "Root runs nothing that another account could have written: {}. On the host: chown "
            "root:root and chmod go-w what is named, or declare another directory.".format(error)
        ) from None
