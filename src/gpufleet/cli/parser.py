"""The parser of every verb: help in groups, defaults, examples; an error is exit status 4."""

from __future__ import annotations

import argparse
import difflib
import shlex
import shutil
from collections.abc import Iterable, Sequence
from typing import NoReturn

from gpufleet.errors import ConfigurationError

from .verbs import VERBS

EXIT_STATUS = (
    "Exit status: 0 all healthy, 1 something failed, 3 something could not be judged,"
    " 4 usage or configuration."
)


# The widest line of a help text, in characters, and the width of what is not a terminal.
WIDTH = 100


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Shows each option's default, unless its help names one. Fits the terminal."""

    def __init__(self, prog: str) -> None:
        columns = shutil.get_terminal_size((WIDTH, 24)).columns
        super().__init__(prog, max_help_position=30, width=min(WIDTH, columns))

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text = action.help or ""
        unset = action.default in (None, False, argparse.SUPPRESS) or action.default == []
        return text if unset or "default:" in text else f"{text} (default: %(default)s)"


class Parser(argparse.ArgumentParser):
    """The options of one verb.

    `examples` are two commands without their `gpufleet`. `passes_to` names the program that
    receives the options which this parser does not know; without one they are errors.
    """

    def __init__(
        self,
        verb: str,
        examples: Sequence[str],
        *,
        passes_to: str = "",
        usage: str = "",
        exit_status: str = "",
    ) -> None:
        notes = [f"Other options are passed to {passes_to}."] if passes_to else []
        notes += [exit_status] if exit_status else []
        lines = ["Examples:", *(f"  gpufleet {example}" for example in examples)]
        super().__init__(
            prog=f"gpufleet {verb}",
            usage=f"gpufleet {verb} {usage or '[options]'}",
            description=f"{VERBS[verb].summary}.",
            formatter_class=HelpFormatter,
            epilog="\n".join((*lines, *(("", *notes) if notes else ()))),
            allow_abbrev=False,
            add_help=False,
        )
        self.passes_to = passes_to
        self._help_group = self.add_argument_group("Help")
        self._help_group.add_argument("-h", "--help", action="help", help="Show this help and exit")
        # After the groups of the verb.
        self._action_groups.remove(self._help_group)

    @property
    def remedy(self) -> str:
        """The remedy for a wrong option."""
        return f"{self.prog} --help lists the options."

    def error(self, message: str) -> NoReturn:
        """argparse's hook."""
        raise ConfigurationError(f"{message}.", remedy=self.remedy)

    def format_help(self) -> str:
        """argparse's hook."""
        self._action_groups.append(self._help_group)
        try:
            return super().format_help()
        finally:
            self._action_groups.pop()

    def parse(self, args: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """The options, and the arguments for the program that `passes_to` names."""
        options, rest = self.parse_known_args(args)
        if rest and not self.passes_to:
            raise unknown_option(rest, self._option_string_actions, self.remedy)
        return options, rest

    def given(self, args: Sequence[str]) -> dict[str, object]:
        """The options that `args` name, without those that have their default."""
        unset = argparse.Namespace(**dict.fromkeys(action.dest for action in self._actions))
        found, _ = self.parse_known_args(args, unset)
        return {name: value for name, value in vars(found).items() if value is not None}


def unknown_option(
    rest: Sequence[str], options: Iterable[str], remedy: str, programs: str = ""
) -> ConfigurationError:
    """The error for an unknown argument, with the nearest option that exists."""
    name = rest[0].partition("=")[0]
    near = difflib.get_close_matches(name, sorted(options), 1)
    message = (
        f"There is no option {name}{programs}."
        if name.startswith("-")
        else (f"'{name}' is not an option.")
    )
    return ConfigurationError(
        message, shlex.join(rest), f"Did you mean {near[0]}? {remedy}" if near else remedy
    )
