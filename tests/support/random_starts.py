"""Random environments of a Python interpreter: owners, modes, access lists, links, start hooks.

Seeded: the same number gives the same tree. Each tree has a base Python of its own, whose standard
library is links to a real one, and an environment made from it.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support.access_lists import may_write
from tests.support.attackers import Attacker
from tests.support.elf_file import shared_library

NOBODY, DAEMON, NAMELESS = 65534, 1, 54321
# Group 77 has one member, 79 two, 78 none; a directory service has the members of 80.
PASSWD = f"root:x:0:0:\nnobody:x:{NOBODY}:{NOBODY}:\ndaemon:x:{DAEMON}:{DAEMON}:\n"
GROUP = "root:x:0:\none:x:77:nobody\nnone:x:78:\ntwo:x:79:nobody,daemon\n"
ATTACKERS = (
    Attacker(NOBODY, (NOBODY, 77, 79)),
    Attacker(DAEMON, (DAEMON, 79)),
    Attacker(NAMELESS, (NAMELESS, 80)),
)
# How a path is exposed: its owner, its group, what is added to its mode, and an access list.
RIGHTS = {
    "safe": (0, 0, 0, False),
    "safe, sticky": (0, 0, 0o1000, False),
    "a group without members": (0, 78, 0o020, False),
    "root's group": (0, 0, 0o020, False),
    "an owner": (NOBODY, 0, 0, False),
    "another owner": (DAEMON, 0, 0, False),
    "an owner without a name": (NAMELESS, 0, 0, False),
    "everybody": (0, 0, 0o022, False),
    "everybody, sticky": (0, 0, 0o1022, False),
    "a group": (0, 77, 0o020, False),
    "a group, sticky": (0, 77, 0o3020, False),
    "a group of two": (0, 79, 0o020, False),
    "a group of a directory service": (0, 80, 0o020, False),
    "a list": (0, 0, 0, True),
    "a list, sticky": (0, 0, 0o1000, True),
}
# What is done after the start hooks: modules are searched, found or not.
START = """
import sys
for name in ("planted", "planted_sub.inner", "missing_everywhere"):
    try:
        __import__(name)
    except ImportError:
        pass
"""
# Parts of the standard library that no start reads, or that a tree has of its own.
UNREAD = {"test", "idlelib", "tkinter", "lib2to3", "ensurepip", "turtledemo"}
OWN = {"site-packages", "__pycache__"}


class Tree:
    """One environment below `top`, and what is changed in it by a seeded choice."""

    def __init__(self, top: Path, real: Path, choice: random.Random) -> None:
        self.top, self.choice, self.numbers = top, choice, 0
        self.version = re.sub(r"^python", "", real.name)
        self.base, self.venv = top / "base", top / "stacks" / "tensorflow-2.13.1"
        self.library = self.base / "lib" / f"python{self.version}"
        self.site = self.venv / "lib" / f"python{self.version}" / "site-packages"
        self.base_site = self.library / "site-packages"
        self.start = self.venv / "bin/python"
        self.done: list[str] = []
        self._base(real)
        self._environment()

    def _base(self, real: Path) -> None:
        python = self.base / "bin" / real.name
        python.parent.mkdir(parents=True)
        shutil.copyfile(real, python)
        python.chmod(0o755)
        self.base_site.mkdir(parents=True)
        standard = real.parents[1] / "lib"
        for path in standard.iterdir():
            if ".so" in path.name:
                (self.base / "lib" / path.name).symlink_to(path)
        for path in (standard / self.library.name).iterdir():
            if path.name not in UNREAD | OWN:
                (self.library / path.name).symlink_to(path)

    def _environment(self) -> None:
        self.site.mkdir(parents=True)
        (self.venv / "bin").mkdir()
        self.start.symlink_to(self.base / "bin" / f"python{self.version}")
        self.settings()
        self.put(self.site / "planted.py")
        self.put(self.site / "planted_sub/__init__.py")
        self.put(self.site / "planted_sub/inner.py")

    def settings(self, *lines: str, system: str = "include-system-site-packages = false") -> None:
        text = "\n".join([f"home = {self.base}/bin", system, f"version = {self.version}.1", *lines])
        self.put(self.venv / "pyvenv.cfg", f"{text}\n")

    def put(self, path: Path, text: str = "") -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="surrogateescape", newline="")
        return path

    def fresh(self, stem: str = "x") -> str:
        self.numbers += 1
        return f"{self.choice.choice((stem, f'{stem} {stem}', f'{stem}é'))}{self.numbers}"

    # Owners and modes

    def expose(self, path: Path) -> None:
        """Leave a path as it is, or give an account or a group a right to change it."""
        how = self.choice.choice(tuple(RIGHTS))
        uid, gid, bits, listed = RIGHTS[how]
        self.done.append(f"{how}: {path}")
        os.chown(path, uid, gid, follow_symlinks=False)
        if path.is_symlink() or not path.exists():
            return
        path.chmod(path.stat().st_mode | (bits if path.is_dir() else bits & 0o777))
        if listed:
            may_write(path, NOBODY)

    def place(self) -> Path:
        """A directory that something names: of any owner, there or not, behind a link or not."""
        path = self.top / self.fresh("place") / self.fresh("inner")
        kind = self.choice.randrange(6)
        if kind == 0:  # its parent is there, it is not
            path.parent.mkdir()
            self.expose(path.parent)
        elif kind > 1:
            path.mkdir(parents=True)
            self.put(path / "planted.py")
            self.expose(self.choice.choice((path, path, path.parent, path / "planted.py")))
        if kind > 3:
            link = self.top / self.fresh("link")
            link.symlink_to(self.choice.choice((str(path), os.path.relpath(path, self.top))))
            self.expose(link)
            return link
        return path

    # What is changed

    def path_line(self) -> None:
        place = str(self.place())
        line = self.choice.choice(
            (
                place,
                os.path.relpath(place, self.site),
                f"./{os.path.relpath(place, self.site)}/../{Path(place).name}",
                f"{place}   ",
                f"  {place}",
                f"\ufeff{place}",
                f"#{place}",
                f"nothing\x0c{place}",
                f"nothing\x85{place}",
                f"/{place}",
            )
        )
        end = self.choice.choice(("", "\n", "\r\n", "\r", "\n\nrest\n"))
        self.hook(line + end)

    def import_line(self) -> None:
        place = self.place()
        named = self.choice.choice((str(place), os.path.relpath(place, "/"), f"~/../{place}"))
        self.hook(
            self.choice.choice(
                (
                    f"import sys; sys.path.insert(0, {named!r})\n",
                    f"import sys, os; sys.path.append(os.path.expanduser({named!r}))\n",
                    f"import\tsys; sys.path[:0] = [{named!r}]",
                )
            )
        )

    def hook(self, text: str) -> None:
        site = self.choice.choice((self.site, self.base_site))
        if site == self.base_site:
            self.any_settings()
        name = self.choice.choice(("a.pth", "b b.pth", ".hidden.pth", "c.PTH", "d.pth.txt"))
        self.done.append(f"{site / name}: {text!r}")
        self.put(site / name, text)

    def library_places(self) -> None:
        place = self.place()
        searched = self.choice.choice(
            (
                str(place),
                f"$ORIGIN/{os.path.relpath(place, self.site)}",
                f"${{ORIGIN}}/{os.path.relpath(place, self.site)}/",
                f"/nonexistent:{place}",
                f"{os.path.relpath(place, '/')}",
                f"$ORIGIN/$LIB:$ORIGIN/{os.path.relpath(place, self.site)}",
            )
        )
        self.done.append(f"RUNPATH {searched}")
        if place.is_dir() and self.choice.random() < 0.6:
            library = shared_library(place / "libneeded.so.1", "libneeded.so.1")
            self.expose(library)
        library = shared_library(self.site / "liba.so", None, ("libneeded.so.1",), searched)
        loaded = library
        if self.choice.random() < 0.3:
            loaded = self.site / "libb.so"
            shared_library(loaded, None, ("liba.so",), "$ORIGIN")
        self.put(self.site / "load.pth", f"import ctypes; ctypes.CDLL({str(loaded)!r})\n")

    def any_settings(self) -> None:
        key = "include-system-site-packages"
        system = self.choice.choice(
            (
                f"{key} = true",
                f"{key}=TRUE",
                f"  {key.title()} = True",
                f"{key} = no",
                "",
                f"#{key}",
                f"{key} = false\n{key} = true",
                f"{key} = true\n{key} = false",
                f"{key}: true",
            )
        )
        self.done.append(f"pyvenv.cfg: {system!r}")
        self.settings(system=system)
        if self.choice.random() < 0.3:
            self.put(self.venv / "bin/pyvenv.cfg", f"home = {self.base}/bin\n{system}\n")

    def any_part(self) -> None:
        parts = [
            self.base,
            self.base / "bin",
            self.base / "lib",
            self.library,
            self.base_site,
            self.library / "os.py",
            self.venv.parent,
            self.venv,
            self.venv / "bin",
            self.start,
            self.venv / "pyvenv.cfg",
            self.site,
            self.site / "planted_sub",
            self.site / "planted_sub/inner.py",
        ]
        # An earlier change may have put a link or a file in place of a directory.
        self.expose(self.choice.choice([part for part in parts if os.path.lexists(part)]))

    def new_part(self) -> None:
        """A file that a start prefers or executes where it exists."""
        number = self.version.replace(".", "")
        path = self.choice.choice(
            (
                self.site / "sitecustomize.py",
                self.base_site / "usercustomize.py",
                self.base / "lib" / f"python{number}.zip",
                self.venv.with_suffix("._pth"),
                self.base / "bin/pybuilddir.txt",
                self.library / "__pycache__/os.cpython.pyc",
                self.venv / "bin/nothing",
            )
        )
        if not path.exists():
            self.put(path)
        self.expose(path)

    def link_in_packages(self) -> None:
        name = self.choice.choice(("planted.py", "planted_sub", "other"))
        path, place = self.site / name, self.place()
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.symlink_to(self.choice.choice((place, place / "planted.py")))
        self.expose(path)

    def link_to_environment(self) -> None:
        link = self.top / self.fresh("stack")
        link.symlink_to(self.venv)
        self.expose(link)
        self.start = link / "bin/python"

    def editable(self) -> None:
        place = self.place()
        name = "__editable___planted_finder"
        self.put(
            self.site / f"{name}.py",
            f"MAPPING = {{'planted': {str(place)!r}}}\ndef install():\n"
            "    import sys; sys.path[:0] = list(MAPPING.values())\n",
        )
        self.put(self.site / "__editable__.pth", f"import {name}; {name}.install()\n")
        self.done.append(f"editable: {place}")


CHANGES: tuple[Callable[[Tree], None], ...] = (
    Tree.path_line,
    Tree.path_line,
    Tree.import_line,
    Tree.library_places,
    Tree.library_places,
    Tree.any_settings,
    Tree.any_part,
    Tree.any_part,
    Tree.new_part,
    Tree.link_in_packages,
    Tree.link_to_environment,
    Tree.editable,
)


def tree(top: Path, real: Path, seed: str, changes: int | None = None) -> Tree:
    """A tree with some changes, or as many as are given."""
    choice = random.Random(seed)
    top.mkdir(mode=0o755)
    built = Tree(top, real, choice)
    for change in choice.choices(CHANGES, k=choice.randrange(4) if changes is None else changes):
        change(built)
    return built


def interpreters() -> list[Path]:
    """The interpreters of this machine's other releases, and this one's base, of root's own."""
    own = Path(os.path.realpath(sys.executable))
    found = {own.name: own}
    for path in own.parents[2].glob("*/bin/python3.*"):
        if re.fullmatch(r"python3\.([6-9]|1\d)", path.name) and not path.is_symlink():
            found.setdefault(path.name, path)
    return [found[name] for name in sorted(found)]


def remove(top: Path) -> None:
    subprocess.run(["rm", "-rf", str(top)], check=True)
