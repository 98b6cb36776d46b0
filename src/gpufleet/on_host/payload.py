"""Pack the probe, or the workload, as one text that runs on a host and leaves no file there.

The text is a short program (Python 3.6 and later, also with ``-I -S``) that carries the sources of
the modules compressed, imports them from memory and calls one function. It is fed to an interpreter
on standard input, or written to one script. `CONFIG = '<json>'` may stand before it. By hand, to
take the probe to a host: ``python3 -m gpufleet.on_host.payload >probe.py``, started in `src/`.
"""

import ast
import base64
import functools
import json
import os
import pkgutil
import re
import sys
import zlib

PROGRAM = '''\
# {entry} in one text. SOURCES has the modules, compressed; they are
# imported from memory.
import base64
import sys
import zlib
from importlib.machinery import ModuleSpec

SOURCES = """
{packed}
"""


class Sources:
    """Import the modules of SOURCES, and give tracebacks the text of their lines."""

    def __init__(self, packed):
        parts = zlib.decompress(base64.b85decode(packed.replace("\\n", ""))).decode("utf-8")
        names_and_texts = iter(parts.split("\\0"))
        self.texts = dict(zip(names_and_texts, names_and_texts))

    def find_spec(self, name, path=None, target=None):
        if name not in self.texts:
            return None
        package = any(other.startswith(name + ".") for other in self.texts)
        return ModuleSpec(name, self, is_package=package)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        path = module.__name__.replace(".", "/") + ".py"
        exec(compile(self.texts[module.__name__], path, "exec"), module.__dict__)

    def get_source(self, name):
        return self.texts[name]


sys.meta_path.insert(0, Sources(SOURCES))
from {entry} import main

main(globals().get("CONFIG"))
'''
# Comments and docstrings travel empty, so that the lines keep their numbers.
# The code before a comment has whole strings only, of one line and without a backslash.
COMMENT = re.compile(r"""^((?:[^'"#\\]|'[^'\\]*'|"[^"\\]*")*?) *#.*$""")
INDENTATION = re.compile("^(?:    )+")
# The modules whose `main` is called.
PROBE, WORKLOAD = "gpufleet.on_host.runner", "gpufleet.workload.command"
# Modules that do not travel: this file, and the one that starts a package by hand.
LEFT_OUT = ("payload", "__main__")


@functools.lru_cache(maxsize=None)
def probe():
    """The probe's text. Its configuration is one JSON document."""
    return pack_program(PROBE, sources("on_host"))


@functools.lru_cache(maxsize=None)
def workload():
    """The script that the probe starts in a framework's interpreter, and for each toolkit."""
    return pack_program(WORKLOAD, workload_sources())


@functools.lru_cache(maxsize=None)
def distributed():
    """The text of one side of a distributed run."""
    return pack_program("gpufleet.workload.distributed", workload_sources())


@functools.lru_cache(maxsize=None)
def collective():
    """The text of one host's part in NCCL's collectives."""
    return pack_program("gpufleet.workload.collective", workload_sources())


@functools.lru_cache(maxsize=None)
def as_owner():
    """The text that becomes another interpreter. Its configuration: see `as_owner.main`."""
    return pack_program("gpufleet.on_host.as_owner", sources("on_host"))


def workload_sources():
    """The workload, and what it may import: of the probe travels what it does (`joined`)."""
    return dict(sources("on_host"), **sources("workload"))


def pack_program(entry, texts):
    """One text that calls `main` of the module `entry` with CONFIG, or None where there is none."""
    # A fifteenth shorter than base 64, and as free of quotes.
    packed = base64.b85encode(zlib.compress(joined(entry, texts).encode(), 9)).decode()
    return PROGRAM.format(
        entry=entry, packed="\n".join(packed[at : at + 100] for at in range(0, len(packed), 100))
    )


def joined(entry, texts):
    """The names and texts of those modules of `texts` that `entry` imports, and that these import.

    No others: a gateway takes all of it in one argument of 128 KiB.
    """
    found = imported(entry, texts)
    return "\0".join(
        part for name in sorted(found) for part in (name, shortened(texts[name], found[name]))
    )


def imported(entry, texts):
    """The statements of `entry` and of the modules in `texts` that it needs, by module name."""
    found, left = {}, [entry]
    while left:
        name = left.pop()
        if name in found or name not in texts:
            continue
        found[name] = statements(texts[name])
        parent = name.rpartition(".")[0]
        left.append(parent)
        package = name if any(other.startswith(name + ".") for other in texts) else parent
        for node in found[name]:
            if isinstance(node, ast.Import):
                left += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                parts = package.split(".")[: 1 - node.level or None] if node.level else []
                source = ".".join(parts + ([node.module] if node.module else []))
                left += [source] + [source + "." + alias.name for alias in node.names]
    return found


def statements(text):
    """The module, and the statements in it: no expression has an import or a docstring in it."""
    found = [ast.parse(text)]
    for node in found:
        for block in ("body", "orelse", "finalbody", "handlers"):
            found.extend(getattr(node, block, ()))
    return found


def without_docstrings(text, nodes):
    """The same program, of which `nodes` are the statements; no statement changes its line."""
    lines = text.split("\n")
    for node in nodes:
        if (
            not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
            or ast.get_docstring(node, clean=False) is None
        ):
            continue
        first = node.body[0]
        lines[first.lineno - 1] = " " * first.col_offset + "0"
        for number in range(first.lineno, first.end_lineno):
            lines[number] = ""
    return "\n".join(lines)


def shortened(text, nodes):
    """The same program without docstrings and comments, a blank for a level of indentation.

    `nodes` are its statements, the module first. No statement changes its line.
    """
    strings = {
        number
        for node in ast.walk(nodes[0])
        if isinstance(node, (ast.Constant, ast.JoinedStr))
        for number in range(node.lineno, node.end_lineno)
    }
    lines = without_docstrings(text, nodes).split("\n")
    return "\n".join(
        # The lines of a text that continues are part of its value.
        line
        if number in strings
        else INDENTATION.sub(lambda blanks: blanks[0][::4], COMMENT.sub(r"\1", line))
        for number, line in enumerate(lines)
    )


def sources(package):
    """The text of each module of a package of gpufleet, subpackages too; also out of a zip file."""
    found = {"gpufleet": "", "gpufleet." + package: ""}
    _collect(
        os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), package),
        "gpufleet." + package + ".",
        found,
    )
    return found


def _collect(directory, prefix, found):
    for finder, name, is_package in pkgutil.iter_modules([directory], prefix):
        tail = name.rpartition(".")[2]
        if tail in LEFT_OUT:
            continue
        found[name] = finder.find_spec(name).loader.get_source(name)
        if is_package:
            _collect(os.path.join(directory, tail), name + ".", found)


if __name__ == "__main__":
    sys.stdout.write("CONFIG = %r\n%s" % (json.dumps({"matmul": workload()}), probe()))
