"""Check the arguments that go on to ansible-playbook, before anything is done.

Were a mistyped option left to the playbook, a rollout would have drained its first batch by then,
and a provisioning that runs nothing would never report it.
"""

from __future__ import annotations

import contextlib
import io
import shlex
from collections.abc import Sequence

from ansible.cli.playbook import PlaybookCLI

from gpufleet.errors import ConfigurationError

from .parser import Parser, unknown_option


def check_playbook_args(own: Parser, rest: Sequence[str]) -> None:
    """Raise `ConfigurationError` for arguments that are not ansible-playbook's options either."""
    if not rest:
        return
    playbook = PlaybookCLI(["ansible-playbook"])
    playbook.init_parser()
    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
            found, unknown = playbook.parser.parse_known_args(["site.yml", *rest])
    except SystemExit:
        last = output.getvalue().strip().rpartition("\n")[2]
        message = last.removeprefix("ansible-playbook: error: ")
        raise ConfigurationError(f"{message}.", shlex.join(rest), own.remedy) from None
    # A further playbook is what no option takes as its value.
    unknown += found.args[1:]
    if not unknown:
        return
    options = {*own._option_string_actions, *playbook.parser._option_string_actions}
    remedy = own.remedy if unknown[0].startswith("-") else f"Select hosts by --limit. {own.remedy}"
    raise unknown_option(unknown, options, remedy, ", neither here nor in ansible-playbook")
