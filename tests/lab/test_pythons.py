"""An interpreter of this machine is found, copied, and works on a host."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import pythons
from lab.errors import LabError
from tests.support.elf_file import runpath
from tests.support.lab_command import call
from tests.support.lab_fleet import instance

OLD = "3.6"


def prefix(place: Path, name: str, version: str = OLD) -> Path:
    made = place / name
    (made / "bin").mkdir(parents=True)
    (made / f"bin/python{version}").write_text("an interpreter")
    return made


def nowhere(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home"), **more}


def test_the_newest_of_that_version_is_found(tmp_path: Path) -> None:
    place = tmp_path / "home/.pyenv/versions"
    for name in ("3.6.9", "3.6.15", "3.7.1"):
        prefix(place, name)
    (place / "3.6.99").mkdir()  # empty
    found = pythons.find(OLD, nowhere(tmp_path), tmp_path / "opt")
    assert found == place / "3.6.15"


def test_named_directories_come_first_and_the_usual_last(tmp_path: Path) -> None:
    usual = prefix(tmp_path / "opt", OLD)
    assert pythons.find(OLD, nowhere(tmp_path), tmp_path / "opt") == usual
    named = prefix(tmp_path / "named", "3.6.1")
    environment = nowhere(tmp_path, GPUFLEET_PYTHONS=f"/absent:{tmp_path / 'named'}")
    assert pythons.find(OLD, environment, tmp_path / "opt") == named


def test_none_is_printed_with_the_places(tmp_path: Path) -> None:
    environment = nowhere(tmp_path, GPUFLEET_PYTHONS="/some/where")
    with pytest.raises(LabError, match=r"Python 3\.6 is not on this machine") as caught:
        pythons.find(OLD, environment, tmp_path / "opt")
    assert "/some/where" in caught.value.remedy
    assert str(tmp_path / "opt") in caught.value.remedy


@pytest.mark.parametrize("version", ["3", "3.6.15", "three", "*"])
def test_a_version_has_two_parts(version: str, tmp_path: Path) -> None:
    with pytest.raises(LabError, match="is not a version of Python"):
        pythons.find(version, nowhere(tmp_path))


def test_the_copy_has_what_is_needed_and_searches_its_own_place(tmp_path: Path) -> None:
    source = prefix(tmp_path, "a-place-with-a-long-name")
    runpath(source / "bin/python3.6", f"{source}/lib")
    library = source / "lib/python3.6"
    for name in ("os.py", "test/test_os.py", "site-packages/mine.py", "__pycache__/os.pyc"):
        (library / name).parent.mkdir(parents=True, exist_ok=True)
        (library / name).write_text("")
    (source / "lib/libpython3.6m.so.1.0").write_text("")
    (source / "lib/libpython3.6m.so").symlink_to("libpython3.6m.so.1.0")
    target = pythons.lay_out(source, OLD, tmp_path / "copy")
    found = {str(path.relative_to(target)) for path in target.rglob("*") if not path.is_dir()}
    assert found == {
        *("bin/python3.6", "bin/python3", "bin/python", "lib/python3.6/os.py"),
        *("lib/libpython3.6m.so", "lib/libpython3.6m.so.1.0"),
    }
    assert b"\0/opt/python/3.6/lib\0" in (target / "bin/python3.6").read_bytes()
    assert str(source).encode() in (source / "bin/python3.6").read_bytes()


def own_python() -> bool:
    try:
        pythons.find(OLD, os.environ)
    except LabError:
        return False
    return True


@pytest.fixture
def own_lab(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GPUFLEET_LAB", instance("python"))
    yield
    call("down")


@pytest.mark.lab
@pytest.mark.skipif(os.getuid() != 0, reason="lab hosts need root")
@pytest.mark.skipif(not own_python(), reason=f"there is no Python {OLD} on this machine")
def test_it_works_on_a_host_and_is_left_alone_then(own_lab: None) -> None:
    del own_lab
    up = ("up", "--hosts", "lab1", "--python", OLD)
    done = call(*up)
    assert done.returncode == 0, done.stderr
    script = (
        "runuser -u deploy -- /opt/python/3.6/bin/python3.6 -m venv /tmp/v"
        " && /tmp/v/bin/pip --version && stat -c %Z /opt/python/3.6"
    )
    first = call("exec", "lab1", "--", "sh", "-c", script)
    assert "(python 3.6)" in first.stdout, first.stderr
    again = call(*up)
    assert again.returncode == 0, again.stderr
    assert "Copying" not in again.stderr
    second = call("exec", "lab1", "--", "stat", "-c", "%Z", "/opt/python/3.6")
    assert second.stdout == first.stdout.splitlines()[-1] + "\n"


@pytest.mark.skipif(os.getuid() != 0, reason="all others are told first that root is needed")
def test_a_python_that_is_missing_is_reported_before_anything_is_started() -> None:
    done = call("up", "--python", "3.99", GPUFLEET_LAB=instance("none"))
    assert done.returncode == 1
    assert done.stderr.startswith("error: Python 3.99 is not on this machine")
