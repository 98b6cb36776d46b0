"""A damaged state file costs no night: it is set aside, and named wherever people look."""

from __future__ import annotations

import contextlib
import io
import json
import math
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpufleet.cli.main import main
from gpufleet.watch import state
from gpufleet.watch.history import History
from tests.support.receivers import Listener

Configured = Callable[..., Path]
Damage = Callable[[Path], None]


def nightly(path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(["nightly", "--config", str(path), *words])
    return subprocess.CompletedProcess([], status, out.getvalue(), err.getvalue())


def written(content: bytes) -> Damage:
    return lambda path: path.write_bytes(content) and None


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def overwritten(path: Path) -> None:
    """In the middle, as by a bad disk."""
    content = bytearray(path.read_bytes())
    begin = len(content) // 3
    content[begin : begin + 2 * len(content) // 3] = b"\xff" * (len(content) // 3)
    path.write_bytes(content)


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "kept").touch()


def dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


# Damage that any file may have.
DAMAGES: dict[str, Damage] = {
    "empty": written(b""),
    "truncated": truncated,
    "garbage": written(b"\x00\xff\xfegarbage" * 300),
    "overwritten": overwritten,
    "a directory": directory,
}
JSON: dict[str, Damage] = {
    "no UTF-8": written(b'{"last_success": "\xff"}'),
    "null": written(b"null"),
    "a list": written(b"[1]"),
    "a number": written(b"7"),
    "deep": written(b"[" * 100_000),
    "a long number": written(b'{"last_success": ' + b"9" * 5000 + b"}"),
}
WRONG: tuple[Any, ...] = (None, "text", [1], {"a": "b"}, True, math.nan, math.inf)


def replaced(key: str, value: Any) -> Damage:
    def damage(path: Path) -> None:
        path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))

    return damage


def without(key: str) -> Damage:
    def damage(path: Path) -> None:
        found = json.loads(path.read_text())
        del found[key]
        path.write_text(json.dumps(found))

    return damage


def cases() -> Iterator[Any]:
    """Each state file with each damage; of a JSON file also each key with values of other types."""
    for name in (state.HEARTBEAT, state.DELIVERED, state.HISTORY):
        of_all = DAMAGES if name == state.HISTORY else {**DAMAGES, **JSON}
        for what, damage in of_all.items():
            yield pytest.param(name, damage, id=f"{name} {what}")
    keys = {
        state.HEARTBEAT: ("finished", "last_run", "last_success", "status", "troubles", "hosts"),
        state.DELIVERED: (state.OWED,),
    }
    for name, listed in keys.items():
        for key in listed:
            for value in WRONG:
                if fits(key, value):
                    continue
                yield pytest.param(
                    *(name, replaced(key, value)),
                    id=f"{name} {key}={value}",
                    marks=[pytest.mark.costly] * (value is not None),
                )
    for key in ("finished", "last_run", "last_success", "status", "troubles"):
        yield pytest.param(state.HEARTBEAT, without(key), id=f"{state.HEARTBEAT} no {key}")
    yield pytest.param(state.DELIVERED, replaced(state.OWED, 5), id="owed=5")
    yield pytest.param(state.DELIVERED, replaced(state.OWED, {"a": [None]}), id="owed null")
    yield pytest.param(state.DELIVERED, replaced(state.DONE, {"1": [5]}), id="done of numbers")


def fits(key: str, value: Any) -> bool:
    """Return whether the key may have a value."""
    return (
        (key, value)
        in (
            ("finished", "text"),
            ("hosts", None),
        )
        or (key == "troubles" and value == {"a": "b"})
        or (
            # SQLite, which counts runs, and exit statuses have no such numbers; they harm nothing.
            key == "status" and isinstance(value, float)
        )
    )


@pytest.fixture
def recorded(configured: Configured, listener: Listener) -> Path:
    """The configuration of a site with a night behind it, whose messages were delivered."""
    path = configured(webhooks=[{"url": listener.url}])
    assert nightly(path).returncode == 1
    assert nightly(path, "--status").returncode == 0
    listener.heard.clear()
    return path


@pytest.mark.parametrize(("name", "damage"), list(cases()))
def test_a_damaged_state_file_is_set_aside_and_named_and_the_night_goes_on(
    recorded: Path, listener: Listener, name: str, damage: Damage
) -> None:
    folder = recorded.parent / "state"
    damage(folder / name)
    assert nightly(recorded, "--status").returncode == (1 if name == state.HEARTBEAT else 0)
    done = nightly(recorded)
    assert done.returncode == 5, done.stderr
    assert "Traceback" not in done.stderr
    # Nothing is deleted: a person may find out what happened.
    [aside] = folder.glob(f"{name}.damaged-20??-*Z")
    assert aside.is_dir() == (damage is directory)
    # The night is recorded and judged as any other.
    with History(folder / state.HISTORY) as history:
        assert len(history.nights()) == (1 if name == state.HISTORY else 2)
    failure = [body for _, _, body in listener.heard if body["event"] == "failure"]
    assert len(failure) == 1 and failure[0]["judged"]
    said = f"{folder / name} is damaged"
    assert said in " ".join(failure[0]["errors"])
    status = nightly(recorded, "--status")
    assert status.returncode == 1
    assert said in status.stdout and aside.name in status.stdout
    # Once: the next night has nothing to say of it.
    assert nightly(recorded).returncode == 1
    assert nightly(recorded, "--status").returncode == 0
    assert len(list(folder.glob("*.damaged-*"))) == 1


def test_what_sqlite_keeps_beside_a_damaged_history_goes_with_it(recorded: Path) -> None:
    folder = recorded.parent / "state"
    (folder / state.HISTORY).write_bytes(b"garbage" * 1000)
    for ending in ("-wal", "-shm"):
        (folder / f"{state.HISTORY}{ending}").write_bytes(b"of the damaged one")
    assert nightly(recorded).returncode == 5
    kept = sorted(path.name.partition("Z")[2] for path in folder.glob("*.damaged-*"))
    assert kept == ["", "-shm", "-wal"]


def test_a_lock_that_is_a_directory_stops_no_night(recorded: Path) -> None:
    lock = recorded.parent / "state" / "lock"
    lock.unlink()
    lock.mkdir()
    done = nightly(recorded)
    assert done.returncode == 1
    assert f"{lock} is damaged (it is a directory)" in done.stderr


def test_how_far_contents_were_read_may_be_unreadable(recorded: Path) -> None:
    file = recorded.parent / "state" / state.HISTORY
    with sqlite3.connect(file) as base:
        base.execute("INSERT INTO flags VALUES ('gone', 'scrub', '[{')")
        base.execute("INSERT INTO flags VALUES ('other', 'scrub', '5')")
    base.close()
    assert nightly(recorded).returncode == 1


def test_a_damaged_file_that_cannot_be_renamed_costs_no_night(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = recorded.parent / "state"
    (folder / state.DELIVERED).write_text("[")

    def refuse(path: Path, target: Any) -> Path:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "rename", refuse)
    done = nightly(recorded)
    assert done.returncode == 5
    assert "It could not be renamed (Operation not permitted): move it away." in done.stderr
    shutil.rmtree(folder)


def test_the_former_name_of_a_file_is_known(recorded: Path, listener: Listener) -> None:
    folder = recorded.parent / "state"
    before = (folder / state.DELIVERED).read_bytes()
    (folder / state.DELIVERED).rename(folder / state.FORMERLY_DELIVERED)
    assert nightly(recorded).returncode == 1
    assert not listener.heard
    assert not (folder / state.FORMERLY_DELIVERED).exists()
    assert (folder / state.DELIVERED).read_bytes() != before  # the night is noted in it
