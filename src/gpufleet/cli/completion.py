"""`gpufleet completion bash|zsh`: a completion script, generated from the parsers of the verbs."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator

from .main import parsers
from .parser import Parser
from .verbs import GROUPS

# Values that are files; a shell completes them by itself.
FILES = {"INV", "FILE", "DIR", "DIRECTORY"}

BASH = """\
# bash completion of gpufleet: source <(gpufleet completion bash)
_gpufleet() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
    local verb=${{COMP_WORDS[1]}} words=
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W {verbs} -- "$word"))
        return
    fi
    case "$verb $before" in
{values}
        *) case "$verb" in
{options}
           esac
           [[ $word == -* || -z $words ]] || words= ;;
    esac
    if [[ -n $words ]]; then
        COMPREPLY=($(compgen -W "$words" -- "$word"))
    fi
}}
complete -o default -F _gpufleet gpufleet ./gpufleet
"""
ZSH = """\
#compdef gpufleet
# zsh completion of gpufleet: put it into a file named _gpufleet in a directory of $fpath.
_gpufleet() {{
    local -a verbs=(
{verbs}
    )
    if ((CURRENT == 2)); then
        _describe verb verbs
        return
    fi
    local verb=$words[2]
    shift words
    ((CURRENT--))
    case $verb in
{options}
        *) _files ;;
    esac
}}
if [[ $funcstack[1] == _gpufleet ]]; then
    _gpufleet "$@"
else
    compdef _gpufleet gpufleet ./gpufleet
fi
"""


def parser() -> Parser:
    """The options."""
    verb = Parser(
        "completion",
        ("completion bash >/etc/bash_completion.d/gpufleet", "completion zsh >~/.zfunc/_gpufleet"),
        usage="bash|zsh",
    )
    verb.add_argument_group("Shell").add_argument(
        "shell", choices=["bash", "zsh"], help="Print the script for this shell: bash or zsh"
    )
    return verb


def run(options: argparse.Namespace, _: list[str]) -> int:
    """Print the script; the exit status."""
    print(bash() if options.shell == "bash" else zsh(), end="")
    return 0


def choices(action: argparse.Action) -> list[str]:
    """The values that an action accepts, where they are few."""
    return list(map(str, action.choices or ()))


def bash() -> str:
    """The script for bash."""
    values, options = [], []
    for name, verb in parsers().items():
        names = [option for action in verb._actions for option in action.option_strings]
        positional = [
            value
            for action in verb._actions
            if not action.option_strings
            for value in choices(action)
        ]
        if positional:
            values.append(
                f"        {shlex.quote(f'{name} {name}')})"
                f" words={shlex.quote(' '.join(positional))} ;;"
            )
        for action in verb._actions:
            if action.option_strings and action.nargs != 0:
                keys = "|".join(shlex.quote(f"{name} {option}") for option in action.option_strings)
                values.append(f"        {keys}) words={shlex.quote(' '.join(choices(action)))} ;;")
        options.append(f"               {name}) words={shlex.quote(' '.join(names))} ;;")
    verbs = [verb.name for group in GROUPS.values() for verb in group]
    return BASH.format(
        verbs=shlex.quote(" ".join(verbs)), values="\n".join(values), options="\n".join(options)
    )


def zsh() -> str:
    """The script for zsh."""
    lines = []
    for name, verb in parsers().items():
        specs = " \\\n            ".join(_zsh_specs(verb))
        rest = " '*:file:_files'" if verb.passes_to else ""
        lines.append(f"        {name}) _arguments \\\n            {specs}{rest} ;;")
    verbs = [
        f"        {shlex.quote(f'{verb.name}:{verb.summary}')}"
        for group in GROUPS.values()
        for verb in group
    ]
    return ZSH.format(verbs="\n".join(verbs), options="\n".join(lines))


def _zsh_specs(verb: Parser) -> Iterator[str]:
    for action in verb._actions:
        text = (action.help or "").partition(";")[0].partition(" (default")[0]
        text = text.replace("%%", "%").translate(str.maketrans("[]:", "(),"))
        value = ""
        if action.nargs != 0:
            metavar = str(action.metavar or action.dest)
            accepted = (
                f"({' '.join(choices(action))})"
                if action.choices
                else ("_files" if metavar in FILES else "")
            )
            value = f":{metavar.replace(':', ',')}:{accepted}"
        if not action.option_strings:
            yield shlex.quote(value or ":")
            continue
        for option in action.option_strings:
            repeated = "*" if isinstance(action, argparse._AppendAction) else ""
            yield shlex.quote(f"{repeated}{option}[{text}]{value}")
