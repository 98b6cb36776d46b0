"""Follow the remedies of refused stacks: what each of its ways changes in the entry."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

Row = dict[str, Any]

# What a stack may declare beside its release, and releases that no framework has.
PYTHONS = [None, "2.7", *(f"3.{minor}" for minor in range(5, 15))]
CUDA = [None, "pip", "local", "8.0", "9.0", "10.0", "11.2", "11.8", "12.4", "12.9", "13.0", "13.4"]
CUDNN = [None, "7.6", "8.9", "9.3"]
GPUS = [None, "3.5", "3.7", "5.2", "6.0", "7.0", "7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3"]
GPUS += ["10.7", "12.0", "12.1"]
UNKNOWN = {"tensorflow": ["1.4.7", "2.16.0"], "pytorch": ["1.8.2", "3.0"], "jax": ["0.1.77", "9"]}

_WITHOUT = r"(?:, without (?P<without>[a-z]+(?:, [a-z]+)*(?: and [a-z]+)?))?"
_RELEASE = r"(?:TensorFlow|PyTorch|JAX) (?P<release>[\w.]+)" + _WITHOUT
_CUDA = r'cuda: "(?P<cuda>[\d.]+)"'
_WAYS = [
    r'declare one of these, such as "(?P<release>[\w.]+)"' + _WITHOUT,
    rf"declare {_RELEASE}(?:, (?:whose|which) .*)?",
    rf"the (?:newest|first) (?:\w+) built for (?:it|them all) is (?P<release>[\w.]+){_WITHOUT}",
    rf"the (?:newest|first) CUDA for it is [\d.]+, and {_RELEASE} was built with .*",
    rf"the (?:newest|first) CUDA for it is [\d.]+: set {_CUDA}",
    r"the (?:newest|first) CUDA for it is [\d.]+: remove (?P<without>cuda)",
    r"(?:the (?:newest|first) CUDA for it is [\d.]+; )?no known \w+ release was built for this GPU; "
    r"from (?P<release>[\w.]+)" + _WITHOUT + r" on, cuda: (?P<cuda>pip) .*",
    r"remove the pin(?:: .*)?",
    r"remove (?P<without>[a-z]+(?:, [a-z]+)*(?: and [a-z]+)?)(?: from this stack)?(?:: .*| \(.*\))?",
    rf"(?:set|add) {_CUDA}(?: and index: (?P<index>\S+))?(?:, for the same release)?",
    r"add index: (?P<index>\S+) to this stack",
    r"declare Python (?P<pythons>[\d.]+(?: or [\d.]+)*)(?:, for which it has a lock)?",
    r"set it to cuDNN (?P<cudnn>[\d.]+)",
    r'set cudnn: "(?P<cudnn>[\d.]+)"',
    rf"with cuDNN (?P<cudnn>[\d.]+), use {_RELEASE}",
    rf"declare {_CUDA} or newer in .*",
]
# What names no change of the entry: a person's work, or that nothing serves.
_NO_WAY = re.compile(
    r"put a lock of your own into .*|run a vendor's build in a container|no known .*|.*; no known \w+ release was built for this GPU"
    r"(?:; run a vendor's build in a container)?"
    r"|the (?:newest|first) CUDA for it is [\d.]+; no known .*"
)
# Releases of other frameworks, without what the entry declares of CUDA.
_OTHERS = re.compile(r".*; use (?P<others>\w+ [\w.]+(?: or \w+ [\w.]+)*), with code for it")
_BESIDE = re.compile(r"; gpu_toolkits can install toolkit [\d.]+ beside it$")


def ways(problem: Row, entry: Row) -> Iterator[tuple[str, Row]]:
    """Each way of a problem's remedy, and the entry that it leads to."""
    text = _BESIDE.sub("", problem["remedy"])
    for way in re.split(r", or |; or declare another release: |; (?=with cuDNN)", text):
        if others := _OTHERS.fullmatch(way):
            for other in others["others"].split(" or "):
                framework, release = other.lower().split()
                kept = {"python": entry["python"]} if "python" in entry else {}
                yield way, {framework: release, **kept}
            continue
        if _NO_WAY.fullmatch(way):
            continue
        found = next((match for each in _WAYS if (match := re.fullmatch(each, way))), None)
        assert found, f"no one can follow {way!r} of {problem}"
        for changes in _changes(found, problem):
            if release := changes.pop("release", None):
                changes[next(iter(entry))] = release
            yield way, {key: each for key, each in {**entry, **changes}.items() if each is not None}


def _changes(found: re.Match[str], problem: Row) -> Iterator[Row]:
    named = {key: value for key, value in found.groupdict().items() if value is not None}
    left = dict.fromkeys(filter(None, re.split(", | and ", named.pop("without", ""))))
    pythons = named.pop("pythons", "").split(" or ")
    if found[0].startswith("remove the pin"):
        left |= dict.fromkeys(
            ["cudnn"] if problem["where"].endswith("cudnn") else ["cuda", "index"]
        )
    for python in pythons:
        yield {**left, **named, **({"python": python} if python else {})}


def follow(resolve: Any, entry: Row) -> int:
    """Follow every way of every remedy, and then the first ones until the entry resolves.

    Each ends its problem and leads to no other one. How many were followed.
    """
    problems = resolve(entry)
    followed = _follow_each(resolve, entry, problems)
    while named := [(problem, each) for problem in problems for each in ways(problem, entry)]:
        _, (_, entry) = named[0]
        problems = resolve(entry)
        followed += 1
    return followed


def _follow_each(resolve: Any, entry: Row, before: list[Row]) -> int:
    followed = 0
    codes = {each["code"] for each in before}
    for problem in before:
        for way, changed in ways(problem, entry):
            followed += 1
            after = {each["code"] for each in resolve(changed)}
            left = codes - {problem["code"]}
            assert after <= left, f"{entry}: {way!r} leads to {after - left} ({changed})"
    return followed
