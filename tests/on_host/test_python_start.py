"""The files that a starting Python interpreter reads are judged as Python and the linker decide.

`tests/fuzz/test_starts.py` compares the judgement of random trees with what their starts read.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpufleet.on_host import python_start, trust
from gpufleet.on_host.processes import run_command
from gpufleet.on_host.python_start import interpreter_code, path_lines
from tests.support.elf_file import shared_library
from tests.support.planted_host import NOBODY, put

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
VERSION = f"python3.{sys.version_info[1]}"


class Stack:
    """An environment of root's, with a base Python and a user's home beside it."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.base, self.venv, self.home = top / "base", top / "venv", top / "home/ann"
        self.site = self.venv / "lib" / VERSION / "site-packages"
        self.base_site = self.base / "lib" / VERSION / "dist-packages"
        self.python = put(self.venv, "bin/python", "#!/bin/sh\nid -u\n", 0o755)
        put(self.base, f"lib/{VERSION}/os.py")
        put(self.base, f"bin/{VERSION}", "", 0o755)
        self.base_site.mkdir()
        self.site.mkdir(parents=True)
        self.home.mkdir(parents=True)
        os.chown(self.home, NOBODY, 0)
        self.configure("include-system-site-packages = false\n")

    def configure(self, text: str) -> None:
        put(self.venv, "pyvenv.cfg", f"home = {self.base}/bin\n{text}")

    def line(self, text: str, name: str = "x.pth", site: Path | None = None) -> None:
        (site or self.site).joinpath(name).write_bytes(text.encode())


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    return Stack(tmp_path)


def writers(stack: Stack) -> set[int]:
    """The accounts beside root that could have written what a start reads."""
    judgement = trust.Judgement()
    for path in interpreter_code(str(stack.python)):
        judgement.code(path)
    return set(judgement.found)


def sticky_site(stack: Stack) -> None:
    os.chown(stack.site, 0, NOBODY)  # the group that is nobody's
    stack.site.chmod(0o3775)


def runpath(value: str) -> Callable[[Stack], None]:
    def plant(stack: Stack) -> None:
        shared_library(
            stack.site / "liba.so", None, (), value.format(home=stack.home, top=stack.top)
        )

    return plant


def line(text: str, name: str = "x.pth") -> Callable[[Stack], None]:
    def plant(stack: Stack) -> None:
        (stack.home / "a b").mkdir()
        stack.line(text.format(home=stack.home, up="../../../.."), name)

    return plant


def base_packages(settings: str) -> Callable[[Stack], None]:
    """A line in the base Python's packages, which count as far as the environment has them."""

    def plant(stack: Stack) -> None:
        stack.configure(settings)
        stack.line(f"{stack.home}\n", site=stack.base_site)

    return plant


def owned(name: str) -> Callable[[Stack], None]:
    def plant(stack: Stack) -> None:
        os.chown(put(stack.top, name), NOBODY, 0)

    return plant


def linked_library(stack: Stack) -> None:
    """The library is elsewhere; its own directory is that of the link's name, and of its file."""
    elsewhere = stack.top / "elsewhere/liba.so"
    shared_library(elsewhere, None, (), "$ORIGIN/next")
    (stack.site / "liba.so").symlink_to(elsewhere)
    (stack.site / "next").symlink_to(stack.home)


def cut_off(stack: Stack) -> None:
    """A library that the linker loads, and whose section table is missing."""
    path = shared_library(stack.site / "liba.so", None, (), str(stack.home))
    content = bytearray(path.read_bytes())
    content[40:48] = (1 << 20).to_bytes(8, "little")
    content[58:62] = (64).to_bytes(2, "little") * 2
    path.write_bytes(content)


KEY = "include-system-site-packages"
# What an administrator does: whether a user can change what root's start reads.
CASES: dict[str, tuple[Callable[[Stack], None], bool]] = {
    "nothing": (lambda stack: None, False),
    "a sticky directory of a group": (sticky_site, True),
    "RUNPATH": (runpath("{home}/lib"), True),
    "RUNPATH to a missing directory": (runpath("{home}/missing/lib"), True),
    "RUNPATH of a missing directory of root's": (runpath("{top}/missing/lib"), False),
    "RUNPATH from the library": (runpath("$ORIGIN/../../../../home/ann"), True),
    "RUNPATH in braces": (runpath("/nowhere:${{ORIGIN}}/../../../../home/ann"), True),
    "RUNPATH of another word": (runpath("$ORIGINAL/../../../../home/ann"), False),
    "RUNPATH of a linked library": (linked_library, True),
    "RUNPATH of a library cut off": (cut_off, True),
    "RUNPATH where everybody adds": (runpath("/tmp/gpufleet-missing/lib"), True),
    "a relative line": (line("{up}/home/ann/x\n"), True),
    "a relative line that stays": (line("../site-packages/x\n"), False),
    "a blank": (line("{home}/a b\n"), True),
    "blanks after it": (line("{home} \t\r\n"), True),
    "a blank before it": (line(" {home}\n"), False),
    "a comment": (line("#{home}\n"), False),
    "a mark before it": (line("\ufeff{home}\n"), True),
    "a form feed before it": (line("x\x0c{home}\n"), True),
    "a line of code": (line("import sys; sys.path.append('{home}/a b')\n"), True),
    "a relative path in code": (
        line("import sys; sys.path.append('../../../../home/ann')\n"),
        True,
    ),
    "code that is none": (line("import sys; sys.path.append('{home}'\n"), True),
    "another suffix": (line("{home}\n", "x.pth.disabled"), False),
    "an editable package": (line("MAP = {{'x': '{home}/x'}}\n", "__editable___x_finder.py"), True),
    "the base's packages": (base_packages(f"{KEY} = true\n"), True),
    "the base's packages in capitals": (base_packages(f" {KEY.upper()}=TRUE\n"), True),
    "the base's packages without a line": (base_packages(""), True),
    "the base's packages after another line": (base_packages(f"{KEY}=false\n{KEY}=true\n"), True),
    "the base's packages left out": (base_packages(f"{KEY} = false\n"), False),
    "the base's packages left out by any word": (base_packages(f"{KEY} = no\n"), False),
    "the library's archive": (owned(f"base/lib/{VERSION.replace('.', '')}.zip"), True),
    "a path file": (owned("venv._pth"), False),
    "settings beside the program": (owned("venv/bin/pyvenv.cfg"), True),
    "settings beside the base": (owned("base/bin/pybuilddir.txt"), True),
    "customization of the base": (owned(f"base/lib/{VERSION}/sitecustomize.py"), True),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_start_reads_is_judged(case: str, stack: Stack) -> None:
    change, exposed = CASES[case]
    assert writers(stack) == set()
    change(stack)
    assert bool(writers(stack)) is exposed


def test_a_reason_names_what_leads_to_the_path(stack: Stack) -> None:
    stack.line(f"{stack.home}/x\n")
    library = shared_library(stack.site / "liba.so", None, (), "/tmp/gpufleet-missing/lib")
    with pytest.raises(trust.RefusedError) as refused:
        trust.account_for(lambda: interpreter_code(str(stack.python)), as_owner=True)
    assert str(refused.value) == (
        f"every account can create /tmp/gpufleet-missing ({library} searches there);"
        f" {stack.home} belongs to nobody (65534) ({stack.site}/x.pth names it):"
        " it is not run as root"
    )


def test_hidden_files_count_for_the_releases_that_read_them(stack: Stack) -> None:
    for version, read in (("python3.9", True), ("python3.13", False)):
        site = put(stack.venv, f"lib/{version}/site-packages/.x.pth", f"{stack.home}\n").parent
        assert (str(stack.home) in python_start.named_at_start(str(site))) is read


def test_lines_end_as_in_each_release() -> None:
    assert set(path_lines("a\rb\r\nc\x0bd\n\n #e\n#f\n\0g\n")) == {
        "a",
        "b",
        "c\x0bd",
        "c",
        "d",
        " #e",
    }


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE])
def test_what_cannot_be_judged_does_not_run_as_root(
    number: int, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every error counted as "it is not there", and what is not there is nobody's."""
    real = os.lstat

    def failing(path: str) -> os.stat_result:
        if str(path) == str(stack.site):
            raise OSError(number, os.strerror(number), path)
        return real(path)

    monkeypatch.setattr(trust.os, "lstat", failing)
    refused = f"{stack.site} cannot be judged: {os.strerror(number)}: it is not run as root"
    for as_owner in (True, False):
        with pytest.raises(trust.RefusedError, match=refused):
            trust.account_for([str(stack.site / "x.py")], as_owner=as_owner)


def test_a_hook_that_cannot_be_read_does_not_run_as_root(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.line("x\n")

    def failing(path: str) -> bytes:
        raise OSError(errno.EIO, "Input/output error", path)

    monkeypatch.setattr(python_start, "read_bytes", failing)
    with pytest.raises(trust.RefusedError, match="cannot be judged: Input/output error"):
        interpreter_code(str(stack.python))


@pytest.fixture
def starts(stack: Stack) -> Iterator[Callable[[], str]]:
    """Start the stack's interpreter as the probe does; the number of the account that ran it."""

    def start() -> str:
        path = str(stack.python)
        return run_command([path], 10, code=lambda: interpreter_code(path))[1].strip()

    yield start


def test_each_start_is_judged_again(stack: Stack, starts: Callable[[], str]) -> None:
    assert starts() == "0"
    os.chown(put(stack.site, "sitecustomize.py"), NOBODY, 0)
    # Where the directories above are closed to that account, it cannot start it either.
    assert starts() in {"", str(NOBODY)}
