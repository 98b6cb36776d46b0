"""Become an interpreter of the host, as the account that alone could have written what it loads.

It stands before a side of a distributed run, whose standard input has to reach that interpreter;
the probe's own sections start theirs by `processes.run_command`, behind the same judgement.
"""

import json
import os
import sys

from .processes import become
from .python_start import interpreter_code
from .trust import RefusedError, account_for

VARIABLES = {"PATH": "/usr/bin:/bin"}


def main(config):
    """Replace this process by `argv`, or exit: 1 with the reason, `absent` where it is not there.

    `config`: JSON, `argv` (a list whose first entry is the interpreter's path; null: the one that
    runs this), `absent` (an exit status) and `code` (directories and files that it loads besides).
    """
    config = json.loads(config)
    python = config["argv"][0] or sys.executable
    if not os.access(python, os.X_OK):
        sys.exit(config["absent"])
    os.chdir("/")
    more = config.get("code") or []
    try:
        account = account_for(
            lambda: dict(interpreter_code(python), **dict.fromkeys(more, "")), as_owner=True
        )
    except RefusedError as error:
        sys.exit(str(error))
    if account:
        become(account)
    os.execve(python, [python, *config["argv"][1:]], VARIABLES)
