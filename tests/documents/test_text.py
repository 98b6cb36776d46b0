"""Text from hosts: names in commands and in prose, and what a terminal would obey."""

from __future__ import annotations

import shlex

import pytest

from gpufleet.documents.text import gpufleet, plain, printable, quoted, shell

NAMES = ["tensorflow-2.13.1", "11.8", "/opt/gpufleet/stacks/a", "535.261.03-1.el9", "a,b=c@d%e:f"]
OTHERS = [
    "",
    "-rf",
    "--all",
    "a b",
    "a;b",
    "$(a)",
    "`a`",
    "a\nb",
    "a'b",
    'a"b',
    "a\\b",
    "~a",
    "a*",
    "a|b",
    "a&b",
    "a>b",
    "#a",
    "é",
    "\u202ea",
    "a\n",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_plain_name_is_a_word_of_a_command_as_it_is(name: str) -> None:
    assert plain(name)
    assert quoted(name) == name
    assert shell("rm -f", name, instead="x") == f"rm -f {name}"


@pytest.mark.parametrize("name", OTHERS)
def test_another_name_is_in_no_command_and_no_shell_obeys_it_in_prose(name: str) -> None:
    assert not plain(name)
    assert shell("mv", "/a", name, instead="in words") == "in words"
    assert not set(quoted(name)[1:-1]) & set("'\"$`;&|<>()*?~#!{}[]\n")
    assert len(shlex.split(quoted(name))) == 1


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("/home/some user/.profile", "'/home/some user/.profile'"),
        ("a;b", "'a\\x3bb'"),
        ("a\nb", "'a\\x0ab'"),
        ("é", "'é'"),
        ("\u202ea", "'\\u202ea'"),
        ("a\\b", "'a\\x5cb'"),
    ],
)
def test_another_name_is_readable_in_prose(name: str, shown: str) -> None:
    assert quoted(name) == shown


def test_a_command_of_gpufleet_quotes_its_words() -> None:
    line = gpufleet("verify", "--limit", "a b;c")
    assert line == "./gpufleet verify --limit 'a b;c'"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Permission denied (publickey).\r\n", "Permission denied (publickey).\n"),
        ("one\rtwo", "one\N{REPLACEMENT CHARACTER}two"),
        ("a\x1b[2Jb", "a\N{REPLACEMENT CHARACTER}[2Jb"),
        ("columns\tand\nlines", "columns\tand\nlines"),
    ],
)
def test_printable_replaces_control_characters_and_keeps_lines(text: str, expected: str) -> None:
    assert printable(text) == expected
