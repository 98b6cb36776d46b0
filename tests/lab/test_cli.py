"""The command line: mistakes are told in plain words, with a remedy and a status."""

from __future__ import annotations

import os

import pytest

from lab import command
from lab.__main__ import table
from lab.errors import LabError
from lab.state import Host
from tests.support.lab_command import call


@pytest.mark.parametrize("words", [(), ("bogus",), ("up", "--bogus"), ("exec",)])
def test_wrong_usage_has_a_status_of_its_own(words: tuple[str, ...]) -> None:
    done = call(*words)
    assert done.returncode == 4
    assert "usage: python -m lab" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("words", "environment", "message"),
    [
        (("list",), {"GPUFLEET_LAB": "No Lab"}, "cannot name a lab"),
        (("exec", "gpu01", "--", "true"), {}, "'gpu01' is not a name for a lab host"),
        (("exec", "lab1"), {}, "no command was given"),
        (("many", "--hosts", "0"), {}, "the stand-in cannot have 0 hosts"),
        (("up", "--hosts", "web"), {}, "'web' is not a name for a lab host"),
        (("up", "--hosts", ","), {}, "no host was named"),
    ],
)
@pytest.mark.skipif(os.getuid() != 0, reason="all others are told first that root is needed")
def test_a_mistake_is_explained(
    words: tuple[str, ...], environment: dict[str, str], message: str
) -> None:
    done = call(*words, **environment)
    assert done.returncode == 1
    error, remedy = done.stderr.strip().splitlines()
    assert error.startswith("error: ")
    assert message in error
    assert remedy.startswith("remedy: ")


def test_a_missing_program_is_named_with_the_packages() -> None:
    with pytest.raises(LabError, match="no-such-program is not installed") as caught:
        command.run("no-such-program")
    assert "apt-get install" in caught.value.remedy


def test_a_failed_program_is_quoted() -> None:
    with pytest.raises(LabError, match="status 3:\n  the reason"):
        command.run("sh", "-c", "echo the reason >&2; exit 3")


def test_a_program_that_does_not_end_is_stopped() -> None:
    with pytest.raises(LabError, match="did not finish within"):
        command.run("sleep", "60", timeout=0.1)


def test_the_table_lines_up() -> None:
    hosts = [Host("lab1", "10.0.0.11", "bookworm", "c1"), Host("lab10", "10.0.0.20", "sid", "c2")]
    lines = table(hosts).splitlines()
    assert lines[0].split() == ["NAME", "ADDRESS", "SUITE", "STATE", "CONTAINER"]
    assert len({line.index(word) for line, word in zip(lines[1:], ("c1", "c2"), strict=True)}) == 1
