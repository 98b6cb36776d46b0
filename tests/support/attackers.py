"""The files that a start of a program reads, and an unprivileged account's changes to them.

What is read is observed (`strace`); what can be changed is tried, as the account.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.machine import deadline

# Texts as the kernel gets them: a Path has another form.
# ruff: noqa: PTH104, PTH108, PTH113, PTH114, PTH115, PTH118, PTH120

CALL = re.compile(r'(\w+)\((?:AT_FDCWD, )?"((?:[^"\\]|\\.)*)"(.*)$')


@dataclass(frozen=True)
class Attacker:
    """An account with its groups."""

    uid: int
    groups: tuple[int, ...]


@dataclass(frozen=True)
class Reading:
    """A path that a start asked the kernel for, and whether it listed it as a directory."""

    path: str
    listed: bool


def readings(argv: Sequence[str], log: Path, top: Path) -> set[Reading]:
    """All that a start asks for below a directory; each name that is not there is among it."""
    subprocess.run(
        ["strace", "-f", "-qq", "-e", "trace=%file", "-o", str(log), *argv],
        cwd="/",
        env={"PATH": "/usr/bin:/bin", "HOME": "/root"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=deadline(60),
        check=False,
    )
    found = set()
    for line in log.read_text(encoding="latin-1").splitlines():
        match = CALL.search(line)
        if match:
            name = os.fsdecode(codecs.escape_decode(match[2])[0])
            path = os.path.join("/", name)
            if f"{path}/".startswith(f"{top}/"):
                found.add(
                    Reading(path, "O_DIRECTORY" in match[3] and match[3].count("ENOENT") == 0)
                )
    assert found, f"{argv} reads nothing below {top}"
    return found


def steps(path: str) -> list[str]:
    """Each directory, link and file that the kernel passes on its way to a path."""
    found, at, left, links = [], "", path.split("/")[::-1], 0
    while left:
        part = left.pop()
        if part in ("", "."):
            continue
        if part == "..":
            at = os.path.dirname(at)
            continue
        at += f"/{part}"
        found.append(at)
        if not os.path.lexists(at):
            break
        if os.path.islink(at):
            links += 1
            if links > 40:
                break
            target = os.readlink(at)
            at = "" if target.startswith("/") else os.path.dirname(at)
            left += target.split("/")[::-1]
    return found


def changes(read: Iterable[Reading], top: Path, attacker: Attacker) -> list[str]:
    """The changes that an account could make to these files: each is made, and taken back."""
    paths = sorted(read, key=lambda one: one.path)
    receiver, sender = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(receiver)
            os.setgroups(list(attacker.groups))
            os.setgid(attacker.groups[0])
            os.setuid(attacker.uid)
            with os.fdopen(sender, "w") as stream:
                json.dump(_changes(paths, f"{top}/"), stream)
        finally:
            os._exit(0)
    os.close(sender)
    with os.fdopen(receiver) as stream:
        text = stream.read()
    os.waitpid(pid, 0)
    found: list[str] = json.loads(text)
    return found


def _changes(read: Sequence[Reading], top: str) -> list[str]:
    found, tried = [], set()
    for reading in read:
        passed = [step for step in steps(reading.path) if step.startswith(top)]
        for step in passed:
            if step not in tried:
                tried.add(step)
                found += [
                    f"{how} {step}" for how in ("replaces", "writes", "creates") if DO[how](step)
                ]
        if reading.listed and passed and _creates(f"{passed[-1]}/added-by-another"):
            found.append(f"adds to {passed[-1]}")
    return found


def _replaces(path: str) -> bool:
    try:
        os.rename(path, f"{path}.moved")
        os.rename(f"{path}.moved", path)
    except OSError:
        return False
    return True


def _writes(path: str) -> bool:
    try:
        if not os.path.isfile(path) or os.path.islink(path):
            return False
        os.close(os.open(path, os.O_WRONLY))
    except OSError:
        return False
    return True


def _creates(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        os.unlink(path)
    except OSError:
        return False
    return True


DO = {"replaces": _replaces, "writes": _writes, "creates": _creates}
