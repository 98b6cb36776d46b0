"""Pack the probe, or the workload, as one text that runs on a host and leaves no file there.

The text is a short program (Python 3.6 and later, also with ``-I -S``) that carries the sources of
the modules compressed, imports them from memory and calls one function. It is fed to an interpreter
on standard input, or written to one script. `CONFIG = '<json>'` may stand before it. By hand, to
take the probe to a host: ``python3 -m gpufleet.probe.payload >probe.py``, started in `src/`.
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
import json
import sys
import zlib
from importlib.machinery import ModuleSpec

SOURCES = """
{packed}
"""


class Sources:
    """Import the modules of SOURCES, and give tracebacks the text of their lines."""

    def __init__(self, packed):
        self.texts = json.loads(
            zlib.decompress(base64.b85decode(packed.replace("\\n", ""))).decode("utf-8"))

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
# Lines of comments and docstrings travel empty, so that the others keep their numbers.
COMMENT = re.compile("^ *#.*$", re.MULTILINE)
# What does not travel: this file, and what starts a package by hand.
LEFT_OUT = ("payload", "__main__")


@functools.lru_cache(maxsize=None)
def probe():
    """The probe's text. Its configuration is one JSON document."""
    return find_engine_program("gpufleet.probe.runner", sources("probe"))


@functools.lru_cache(maxsize=None)
def workload():
    """The script that the probe starts in a framework's interpreter, and for each toolkit."""
    return find_engine_program("gpufleet.workload.command", _workload())


@functools.lru_cache(maxsize=None)
def distributed():
    """The text of one side of a distributed run."""
    return find_engine_program("gpufleet.workload.distributed", _workload())


@functools.lru_cache(maxsize=None)
def as_owner():
    """The text that becomes another interpreter. Its configuration: see `as_owner.main`."""
    return find_engine_program("gpufleet.probe.as_owner", sources("probe"))


def _workload():
    constants = "gpufleet.probe.constants"
    return dict(sources("workload"), **{"gpufleet.probe": "",
                                        constants: sources("probe")[constants]})


def find_engine_program(entry, texts):
    """One text that calls `main` of the module `entry` with CONFIG, or None where there is none.

    Of the modules `texts` it has those that `entry` imports, and that these import: a gateway takes
    all of it in one argument of 128 KiB.
    """
    found = imported(entry, texts)
    raw = json.dumps({name: COMMENT.sub("", without_docstrings(texts[name], found[name]))
                      for name in found},
                     sort_keys=True).encode()
    # A fifteenth shorter than base 64, and as free of quotes.
    packed = base64.b85encode(zlib.compress(raw, 9)).decode()
    return PROGRAM.format(entry=entry, packed="\n".join(
        packed[at:at + 100] for at in range(0, len(packed), 100)))


def imported(entry, texts):
    """{name: its statements} of `entry`, of what it imports of `texts`, and of what these import.
    """
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
                parts = package.split(".")[:1 - node.level or None] if node.level else []
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
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) \
                or ast.get_docstring(node, clean=False) is None:
            continue
        first = node.body[0]
        lines[first.lineno - 1] = " " * first.col_offset + "0"
        for number in range(first.lineno, first.end_lineno):
            lines[number] = ""
    return "\n".join(lines)


def sources(package):
    """{module: text} of a package of gpufleet, subpackages included; also out of a zip file."""
    found = {"gpufleet": "", "gpufleet." + package: ""}
    _collect(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), package),
             "gpufleet." + package + ".", found)
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
