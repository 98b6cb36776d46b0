"""Root starts no interpreter of which an account without privileges could change what it reads.

Each random environment is judged, and started where it is judged to be root's: what the start reads
is observed, and each account tries to change it. `pytest tests/fuzz/test_starts.py --mutations 200
--mutation-seed 7` tries other trees; a failure names the seed of its tree.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.on_host import trust
from gpufleet.on_host.python_start import interpreter_code
from tests.support import random_starts
from tests.support.attackers import changes, readings
from tests.support.random_starts import ATTACKERS, GROUP, PASSWD, START, Tree

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away"),
    pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed"),
]
SAMPLE = 100


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory that every account comes to, as pytest's own are not."""
    path = Path("/var/tmp") / f"gpufleet-{tmp_path_factory.mktemp('start').name}-{os.getpid()}"
    path.mkdir(mode=0o755)
    yield path
    random_starts.remove(path)


@pytest.fixture(autouse=True)
def accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The accounts and groups of the trees."""
    (tmp_path / "passwd").write_text(PASSWD)
    (tmp_path / "group").write_text(GROUP)
    rows = trust._rows
    monkeypatch.setattr(trust, "_rows", lambda name: rows(str(tmp_path / Path(name).name)))


def judged(python: Path) -> str | int:
    """The number of the account that an interpreter is started as, or why it is not started."""
    try:
        account = trust.account_for(lambda: interpreter_code(str(python)), as_owner=True)
    except trust.RefusedError as error:
        return str(error)
    return account.uid if account else 0


def attacked(tree: Tree, uid: int) -> list[str]:
    """The changes by accounts other than root and `uid` to the files that a start reads."""
    argv = [str(tree.start), "-c", START]
    read = readings(argv, tree.top.parent / "log", tree.top)
    return [
        f"account {attacker.uid} {change}"
        for attacker in ATTACKERS
        if attacker.uid != uid
        for change in changes(read, tree.top, attacker)
    ]


def tried(place: Path, seed: int, count: int) -> Counter[str]:
    """Judge and attack random trees; the number of each judgement."""
    pythons, found = random_starts.interpreters(), Counter[str]()
    for number in range(count):
        top = place / "tree"
        tree = random_starts.tree(top, pythons[number % len(pythons)], f"start {seed} {number}")
        judgement = judged(tree.start)
        if isinstance(judgement, int):
            found["root" if judgement == 0 else "an account"] += 1
            broken = attacked(tree, judgement)
            assert broken == [], (seed, number, judgement, tree.version, tree.done)
        else:
            found["refused"] += 1
        random_starts.remove(top)
    return found


@pytest.mark.costly
def test_no_account_can_change_what_a_start_of_root_reads(
    place: Path, request: pytest.FixtureRequest
) -> None:
    found = tried(place, request.config.getoption("--mutation-seed"), SAMPLE)
    assert min(found[kind] for kind in ("root", "an account", "refused")) > SAMPLE // 20, found


@pytest.mark.slow
def test_no_account_can_change_what_a_start_reads_in_thousands_of_trees(
    place: Path, request: pytest.FixtureRequest
) -> None:
    count = request.config.getoption("--mutations") * 5 // 2
    tried(place, request.config.getoption("--mutation-seed") + 1, count)


@pytest.mark.costly
@pytest.mark.parametrize("real", random_starts.interpreters(), ids=lambda path: path.name)
def test_an_ordinary_environment_is_roots(place: Path, real: Path) -> None:
    tree = random_starts.tree(place / "tree", real, "ordinary", changes=0)
    assert judged(tree.start) == 0
    # The observer sees what is read, and each attacker is stopped by the modes alone.
    assert attacked(tree, 0) == []
    tree.site.chmod(0o1777)
    assert {change.split()[2] for change in attacked(tree, 0)} == {"adds"}
    (tree.site / "planted.py").chmod(0o666)
    tree.venv.chmod(0o777)
    assert {change.split()[2] for change in attacked(tree, 0)} == {"adds", "writes", "replaces"}


@pytest.mark.costly
@pytest.mark.parametrize("options", [[], ["--system-site-packages"]], ids=["alone", "system"])
def test_an_environment_of_the_systems_python_is_roots(place: Path, options: list[str]) -> None:
    python = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
    subprocess.run([python, "-m", "venv", "--without-pip", *options, place / "venv"], check=True)
    assert judged(place / "venv/bin/python") == 0
