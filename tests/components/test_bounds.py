"""One host's answer costs the control machine a bounded time: each expression, text and list.

The expressions of `src/` that the control machine uses are found in its modules, with the methods
by which they are used, and run over long texts of many kinds. Those of tables are found by name.
"""

from __future__ import annotations

import ast
import copy
import importlib
import json
import pkgutil
import re
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import gpufleet
from gpufleet.catalog import facts
from gpufleet.documents import received
from gpufleet.judge import judge
from gpufleet.report.bundle import Names
from tests.support.healthy_host import Document, document
from tests.support.host_parts import event, with_gpus
from tests.support.machine import deadline

# The longest text of a snapshot, and how long an expression may take for it, in processor seconds.
LENGTH, MOST_S = received.MOST_TEXT, 0.2
METHODS = {"search", "match", "fullmatch", "sub", "subn", "findall", "finditer", "split"}
# What runs on hosts.
ELSEWHERE = ("gpufleet.on_host.", "gpufleet.workload.")

# Texts that are repeated, and texts that begin a match and never end it.
REPEATED = (
    *"a0A -./:@_=,;([{'\"!<é\n\t\\",
    *("a.", "a-", "a0", "0.", "0:", "a/", "a@", "@a", "a ", "0 ", "a=", "0x", "://", "//", "a://"),
    *("aa.bb.", "lib.so", "lib", "nvidia", "cu", "token", "token-", 'token="', "password=", "eyJ-"),
    *("sk-", "ecdsa-sha2-", "serial-", "serial ", "link 1(", "GPU ", "Link ", "R0", "to 0x1 "),
    *("/home/", "server a", "pid='", "name=", "-----BEGIN ", "-----END ", "GPU-", "0000:", "10 "),
    *("-1 ", "°C", "sm_", "a\n", "(a", "[a", "{}", "<a>", "http://a?", "//a@", "Basic ", "RECORD"),
)
BEGINNINGS = (
    "a",
    "serial",
    "token",
    "to 0x1",
    "link 1(",
    "GPU ",
    "-i",
    "@",
    "server",
    "bearer",
    "//",
)
USUAL = ("a", "0", " ", "-", ".", "token", "link 1(", "a@")
Use = tuple[re.Pattern[str], str]


def kinds() -> Iterator[str]:
    for text in REPEATED:
        yield (text * LENGTH)[:LENGTH]
    for text in BEGINNINGS:
        for rest in (" ", "a", "= "):
            yield (text + rest * LENGTH)[:LENGTH]
            yield (rest * LENGTH)[: LENGTH - len(text)] + text


@cache
def modules() -> list[ModuleType]:
    names = [each.name for each in pkgutil.walk_packages(gpufleet.__path__, "gpufleet.")]
    return [
        importlib.import_module(name)
        for name in names
        if not f"{name}.".startswith(ELSEWHERE) and not name.endswith("__main__")
    ]


def by_name() -> dict[str, set[re.Pattern[str]]]:
    """The expressions that modules have under a name, also those that come from the probe."""
    found: dict[str, set[re.Pattern[str]]] = {}
    for module in modules():
        for name, value in vars(module).items():
            if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
                found.setdefault(name, set()).add(value)
    return found


class _Values(ast.NodeTransformer):
    """Puts the values of a module in the place of what an f-string names, else a plain name."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.Constant:
        try:
            return ast.Constant(str(evaluated(node.value, self.module)))
        except NameError:
            return ast.Constant("name")


def evaluated(node: ast.expr, module: ModuleType) -> Any:
    whole = ast.fix_missing_locations(ast.Expression(node))
    return eval(compile(whole, str(module.__file__), "eval"), vars(module))


def written_in(module: ModuleType) -> Iterator[Use]:
    """The expressions in calls of a module, with the method that is called."""
    named = by_name()
    for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        method, owner = node.func.attr, node.func.value
        name = getattr(owner, "id", getattr(owner, "attr", ""))
        if method in METHODS and name == "re":
            try:
                pattern = evaluated(_Values(module).visit(node.args[0]), module)
            except NameError:
                continue  # of a table: see `of_tables`
            flags = [flag for flag in re.RegexFlag if f"re.{flag.name}" in ast.unparse(node)]
            if isinstance(pattern, str):
                yield re.compile(pattern, sum(flag.value for flag in flags)), method
        elif method in METHODS:
            for pattern in named.get(name, ()):
                yield pattern, method


def of_tables() -> Iterator[Use]:
    rules = facts.document("smi_rules.yml")
    texts, newer = rules["texts"], rules["newer"]
    patterns = [texts["no_value"], texts["excused"], *texts["faults"]]
    patterns += [newer[name] for name in ("known", "names", "neutral")]
    for row in rules["models"].values():
        patterns += [row[name] for name in ("names", "unlike") if name in row]
    for pattern in patterns:
        yield re.compile(pattern, re.IGNORECASE), "search"
    for pattern, _ in Names()._of_forms:
        yield pattern, "sub"


@cache
def uses() -> list[Use]:
    found = [use for module in modules() if module.__file__ for use in written_in(module)]
    return list(dict.fromkeys([*found, *of_tables()]))


def seconds(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def run(use: Use, text: str) -> float:
    pattern, method = use
    words = ("", text) if method in {"sub", "subn"} else (text,)
    if method == "finditer":
        return seconds(lambda: list(pattern.finditer(text)))
    return seconds(lambda: getattr(pattern, method)(*words))


def slow(texts: Iterator[str]) -> list[str]:
    long = list(texts)
    return [
        f"{method} {pattern.pattern[:100]!r} over {text[:20]!r}..."
        for pattern, method in uses()
        for text in long
        if run((pattern, method), text) > deadline(MOST_S)
        # A moment in which the machine was busy is none of the expression.
        and run((pattern, method), text) > deadline(MOST_S)
    ]


def test_all_expressions_are_found() -> None:
    assert len(uses()) > 150
    assert any(re.search(r"\(\?<!\\d\)-\?\\d\+ °C", pattern.pattern) for pattern, _ in uses())


def test_no_expression_reads_a_usual_text_again_and_again() -> None:
    assert not slow((text * LENGTH)[:LENGTH] for text in USUAL)


@pytest.mark.exhaustive
def test_no_expression_reads_any_text_again_and_again() -> None:
    assert not slow(kinds())


@pytest.mark.parametrize(
    ("pattern", "text"),
    [(r".*\bto 0x", "a"), (r"-?\d+ °C", "0"), (r"[\w-]*token", "a"), (r" +(?=\n)", " ")],
)
def test_an_expression_that_does_is_found(
    pattern: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.uses", lambda: [(re.compile(pattern), "search")])
    monkeypatch.setattr(f"{__name__}.MOST_S", 0.02)
    assert slow(iter([text * LENGTH]))


# -- documents: what cost the judge minutes --------------------------------------------------------


def healthy() -> tuple[Document, Document]:
    plan, snapshot = document("plan.json"), document("snapshot.json")
    with_gpus(plan, snapshot, 8)
    return plan, snapshot


def judged(plan: Document, snapshot: Document) -> dict[str, str]:
    """The verdicts of a host that is judged in a bounded time, by check."""
    found = received.snapshot(json.dumps(snapshot).encode(), "gpu01")
    assert found is not None
    judge.judge_typed(plan, copy.deepcopy(found))  # what is read once in a process
    result: Any = None

    def work() -> None:
        nonlocal result
        result = judge.judge_typed(plan, found)

    assert seconds(work) < deadline(0.5)
    return {check["id"]: check["verdict"] for check in result["checks"]}


@pytest.mark.parametrize(
    "path",
    [
        "fabric[{}]/state",
        "x{}/y/z",
        "x/y/z{}",
        "mig_devices/mig_device[{}]/index",
        "ecc_errors/v[{}]/a",
        "a{}error_state",
    ],
)
@pytest.mark.parametrize("text", ["Unknown Error", "N/A", "1", "Yes"])
def test_elements_of_a_card_cost_little(path: str, text: str) -> None:
    plan, snapshot = healthy()
    elements = snapshot["sections"]["smi"]["data"]["devices"][0]["elements"]
    more = received.MOST_ELEMENTS - len(elements)
    elements.update({path.format(number): text for number in range(more)})
    judged(plan, snapshot)


def test_more_elements_than_a_card_has_damage_the_section() -> None:
    plan, snapshot = healthy()
    elements = snapshot["sections"]["smi"]["data"]["devices"][0]["elements"]
    elements.update({f"x{number}": "1" for number in range(received.MOST_ELEMENTS)})
    assert judged(plan, snapshot)["gpu.smi"] == "INCONCLUSIVE"


@pytest.mark.parametrize("code", [154, 74, 145, 45, 13])
@pytest.mark.parametrize("text", ["a", " ", "link 1(", "to 0x1", "0x1 ", "Fatal "])
def test_a_message_of_the_kernel_costs_little(code: int, text: str) -> None:
    plan, snapshot = healthy()
    said = f"NVRM: Xid (PCI:0000:00:00): {code}, "
    for _ in range(20):
        event(snapshot, "xid", code=code, address="0000:00:00.0", text=said + text * 2000)
    judged(plan, snapshot)


@pytest.mark.parametrize("letter", ["0", "a", " ", "-", ":"])
def test_addresses_and_names_cost_little(letter: str) -> None:
    plan, snapshot = healthy()
    data = snapshot["sections"]["gpus"]["data"]
    data["pci"] += [
        {**data["pci"][1], "address": letter * 15990 + f"{number:08x}"} for number in range(20)
    ]
    assert judged(plan, snapshot)["gpu.count"] == "FAIL"


# -- what is cut -----------------------------------------------------------------------------------


def cut(section: str, data: Any) -> Any:
    row = {"state": "ok", "seconds": 0.1, "error": None, "data": data}
    return received.checked(row, "section", cuts=True)["data"]


def test_names_and_messages_are_cut_and_paths_are_not() -> None:
    long = "x" * 5000
    found = cut("gpus", {"address": long, "path": long, "text": long, "error": long})
    assert {name: len(text) for name, text in found.items()} == {
        "address": received.MOST_NAME + len(received.CUT),
        "text": received.MOST_MESSAGE + len(received.CUT),
        "path": 5000,
        "error": 5000,
    }
    assert cut("gpus", found) == found


def test_what_stands_in_lists_and_among_elements_is_cut_by_the_name_of_these() -> None:
    long = "x" * 300
    assert cut("smi", {"uuid": [long]})["uuid"] == ["x" * received.MOST_NAME + received.CUT]
    assert cut("smi", {"elements": {"a/b": long}})["elements"]["a/b"].endswith(received.CUT)
    # The name is that of a mapping, not of the text.
    assert cut("kernel", {"installed": [{"path": long}]})["installed"][0]["path"] == long


def test_what_was_cut_is_equal_to_no_whole_name() -> None:
    long = "x" * received.MOST_NAME
    found = cut("smi", {"name": f"{long}1", "model": long})
    assert found["name"] != found["model"] == long
