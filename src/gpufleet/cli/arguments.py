"""The words of `provision` and `rollout`: their own, and what goes on to ansible-playbook.

A mistyped one is told before anything is done. Were it left to the playbook, a rollout would have
drained its first batch by then, and a provisioning that runs nothing would never tell.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import shlex
from collections.abc import Sequence

from ansible.cli.playbook import PlaybookCLI

from gpufleet.errors import ConfigurationError

from .parser import Parser


def read(own: Parser, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Our options, and the words that are ansible-playbook's; one that is nobody's is refused."""
    options, rest = own.parse_known_args(words)
    if rest:
        _known(own, rest)
    return options, rest


def _known(own: Parser, words: list[str]) -> None:
    playbook = PlaybookCLI(["ansible-playbook"])
    playbook.init_parser()
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            found, strange = playbook.parser.parse_known_args(["site.yml", *words])
    except SystemExit:
        last = said.getvalue().strip().rpartition("\n")[2].removeprefix("ansible-playbook: error: ")
        raise ConfigurationError(f"{last}.", shlex.join(words), own.remedy) from None
    # What is no option is a playbook to it.
    strange += found.args[1:]
    if not strange:
        return
    word = strange[0].partition("=")[0]
    if not word.startswith("-"):
        raise ConfigurationError(f"'{word}' is no option.", shlex.join(words),
                                 f"Hosts are named by --limit. {own.remedy}")
    options = {*own._option_string_actions, *playbook.parser._option_string_actions}
    near = difflib.get_close_matches(word, sorted(options), 1)
    raise ConfigurationError(
        f"There is no option {word}, neither here nor of ansible-playbook.", shlex.join(words),
        f"Did you mean {near[0]}?" if near else own.remedy)
