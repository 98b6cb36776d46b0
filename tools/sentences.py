"""List each sentence that gpufleet says, once, for a reader: `python -m tools.sentences`.

They come from the golden documents, the help of all commands, the source and the roles. Names and
numbers do not make another sentence. Below each stands the place that says it.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

import benchmarks.__main__ as benchmarks
import lab.__main__ as lab
from docs import generate
from gpufleet.cli.main import parsers
from tests.golden import documents

ROOT = Path(__file__).resolve().parents[1]
# The last keys of the places of sentences in golden documents.
KEYS = "act because cause evidence message module_because notes remedy statement subject summary"
KEYS += " text tflops_because"
# The calls that say a text to the user, and the keys of tasks.
REFUSALS = {"ConfigurationError", "fail_json", "Finding", "Fault"}
MESSAGES = {"fail_msg", "msg"}
NAMES = (
    (r"https?://[^\s,;)]+", "URL"),
    (r"GPU-[0-9a-f-]{8,}", "UUID"),
    (r"\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9]\b", "ADDRESS"),
    (r"\b(?:gpu|lab|node|host|r\d+n|legacy)[a-z]*-?[a-z]*\[?\d[\w,\]-]*", "HOST"),
    (r"(?<![\w.])~?/[\w.+@-]+(?:/[\w.*+@:-]+)*", "PATH"),
    (r"\b[0-9a-f]{12,}\b", "SUM"),
    (r"\b\d[\d.,:]*\d\b|\b\d\b", "N"),
)
Sentences = Iterator[tuple[str, str]]


def texts(value: object) -> Iterator[str]:
    """The lines of a value's texts."""
    if isinstance(value, str):
        yield from value.splitlines()
    elif isinstance(value, list):
        for each in value:
            yield from texts(each)


def of_documents() -> Sentences:
    """The place and the text of each sentence in the golden documents; no contents of files."""
    keys = set(KEYS.split())
    for document, values in documents.read().items():
        for place, value in values.items():
            words = [part for part in place.split(" / ") if not part.isdigit()]
            if words and words[-1] in keys and "environment" not in words:
                yield from ((f"{document} / {place}", text) for text in texts(value))


def of_parser(parser: argparse.ArgumentParser) -> Sentences:
    """The description and the options' help of a command and its subcommands."""
    for paragraph in re.split(r"\n\s*\n", parser.description or ""):
        if not paragraph.startswith("    "):
            yield parser.prog, " ".join(paragraph.split())
    for action in parser._actions:
        if action.help and action.help != argparse.SUPPRESS:
            yield f"{parser.prog} {action.dest}", action.help.replace("%%", "%")
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from of_parser(each)


def of_source() -> Sentences:
    """Each text, or template of one, of a refusal or a finding in the source."""
    for path in sorted([*ROOT.glob("src/**/*.py"), *ROOT.glob("plugins/**/*.py")]):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in REFUSALS:
                for part in (*node.args, *(keyword.value for keyword in node.keywords)):
                    yield f"{path.relative_to(ROOT)}:{part.lineno}", template(part)


def template(node: Any) -> str:
    """The text of a literal; a placeholder is X."""
    if isinstance(node, ast.JoinedStr):
        return "".join(template(each) or "X" for each in node.values)
    return str(node.value) if isinstance(node, ast.Constant) else ""


def of_roles() -> Sentences:
    """Each message of the roles' tasks; an expression of Jinja is X."""
    for path in sorted(ROOT.glob("roles/*/tasks/*.yml")):
        found = [yaml.safe_load(path.read_text(encoding="utf-8"))]
        while found:
            each = found.pop()
            found += each if isinstance(each, list) else []
            for key, value in each.items() if isinstance(each, dict) else ():
                found.append(value)
                if key in MESSAGES and isinstance(value, str):
                    text = re.sub(r"\{\{.*?\}\}", "X", " ".join(value.split()))
                    yield str(path.relative_to(ROOT)), text


def sentences() -> list[tuple[str, str]]:
    """Place and text of each sentence; of those that differ by names and numbers, the first."""
    found: dict[str, tuple[str, str]] = {}
    programs = [benchmarks.parser(), generate.parser(), lab.parser(), *parsers().values()]
    for said in (of_documents(), *map(of_parser, programs), of_source(), of_roles()):
        for place, text in said:
            alike = text
            for pattern, name in NAMES:
                alike = re.sub(pattern, name, alike)
            if " " in alike:
                found.setdefault(alike, (place, text))
    return sorted(found.values(), key=lambda each: each[1])


if __name__ == "__main__":
    for source, sentence in sentences():
        print(f"{sentence}\n    {source}")
