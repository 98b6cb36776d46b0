"""Removal takes exactly what the receipt lists, and refuses while a stack needs it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.ansible_modules import Run, load, tree
from tests.support.elf_file import shared_library


class Host:
    """A state directory, a toolkit with a cuDNN in it, and a stack bound to both."""

    def __init__(self, root: Path, run: Run) -> None:
        self.module, self.run, self.state = load("gpu_removal"), run, root / "state"
        self.toolkit, self.stack = root / "cuda-11.8", root / "stacks" / "tf"
        lib = self.toolkit / "targets" / "lib"
        shared_library(lib / "libcudart.so.11.8.89", "libcudart.so.11.0")
        (lib / "libcudart.so.11.0").symlink_to("libcudart.so.11.8.89")
        (self.toolkit / "lib64").symlink_to("targets/lib")
        self.receipt("toolkit", "11.8", self.toolkit)
        shared_library(lib / "libcudnn.so.8", "libcudnn.so.8")
        self.receipt("cudnn", "11.8-8", self.toolkit, only=["targets/lib/libcudnn.so.8"])
        (self.stack / "bin").mkdir(parents=True)
        (self.stack / "bin" / "python").write_text("#!")
        bound = [str(self.toolkit / "lib64" / "libcudart.so.11.0")]
        self.receipt("stack", "tf", self.stack, binding=bound, packages={"tensorflow": "2.13.1"})
        site = self.stack / "lib" / "python3.11" / "site-packages"
        info = site / "tensorflow-2.13.1.dist-info"
        info.mkdir(parents=True)
        (site / "core.py").write_text("12345")
        (site / "tensorflow.libs").mkdir()  # some wheels have an empty directory
        (info / "METADATA").write_text("123")
        (info / "RECORD").write_text(f"core.py,sha256=x,5\n{info.name}/METADATA,sha256=x,3\n")

    def receipt(
        self, kind: str, ident: str, path: Path, only: list[str] | None = None, **more: Any
    ) -> None:
        """Write a receipt of what stands at a path."""
        document = {
            "schema": 1,
            "kind": kind,
            "id": ident,
            "path": str(path),
            "version": "1",
            "manifest": [{"path": name, "type": "file"} for name in only or tree(path)],
            **more,
        }
        folder = self.state / "receipts"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{kind}-{ident}.json").write_text(json.dumps(document))

    def remove(self, kind: str, ident: str, check: bool = False, **more: Any) -> dict[str, Any]:
        """Run the module."""
        return self.run(self.module, check, kind=kind, id=ident, state_dir=self.state, **more)

    def receipts(self) -> set[str]:
        """The names of the receipts that stand."""
        return {path.stem for path in (self.state / "receipts").iterdir()}


@pytest.fixture
def host(tmp_path: Path, run: Run) -> Host:
    return Host(tmp_path, run)


def test_a_toolkit_that_a_stack_needs_is_not_removed(host: Host) -> None:
    before = tree(host.toolkit)
    answer = host.remove("toolkit", "11.8")
    assert answer["failed"]
    assert "needed by tf" in answer["msg"]
    assert "--stack tf" in answer["msg"]
    assert tree(host.toolkit) == before


def test_stack_and_toolkit_go_in_one_run_and_leave_nothing(host: Host) -> None:
    host.remove("stack", "tf")
    answer = host.remove("toolkit", "11.8", without=["tf"])
    assert (answer["changed"], answer["left"]) == (True, [])
    assert not host.toolkit.exists()
    assert not host.stack.exists()
    assert host.receipts() == set()
    assert not list((host.state / "journal").iterdir())


def test_what_people_added_is_left_and_named(host: Host) -> None:
    host.remove("stack", "tf")
    added = host.toolkit / "targets" / "lib" / "theirs.so"
    added.write_text("precious")
    answer = host.remove("toolkit", "11.8")
    assert answer["left"] == [str(added)]
    assert added.read_text() == "precious"


def test_one_stack_leaves_the_others_bit_for_bit(host: Host, tmp_path: Path) -> None:
    before = tree(host.toolkit)
    host.remove("stack", "tf")
    assert tree(host.toolkit) == before
    assert host.receipts() == {"toolkit-11.8", "cudnn-11.8-8"}


def test_compiled_python_goes_with_its_directory(host: Host) -> None:
    cache = host.stack / "bin" / "__pycache__"
    cache.mkdir()
    (cache / "x.pyc").write_text("")
    assert host.remove("stack", "tf", check=True)["left"] == []
    assert host.remove("stack", "tf")["left"] == []
    assert not host.stack.exists()


def test_what_uv_puts_beside_the_packages_of_an_old_python_goes(host: Host) -> None:
    """With a Python before 3.10. Files that stay would make it an environment of somebody else."""
    site = host.stack / "lib" / "python3.9" / "site-packages"
    site.mkdir(parents=True)
    for name in ("_virtualenv.py", "_virtualenv.pth"):
        (site / name).write_text("")
    assert host.remove("stack", "tf", check=True)["left"] == []
    assert host.remove("stack", "tf")["left"] == []
    assert not host.stack.exists()


def test_a_stack_that_comes_while_the_lock_is_waited_for_is_heeded(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = host.state / "receipts" / "stack-tf.json"
    text = stack.read_text()
    stack.unlink()

    @contextmanager
    def lock(_: object) -> Iterator[None]:
        stack.write_text(text)
        yield

    monkeypatch.setattr(host.module, "host_lock", lock)
    before = tree(host.toolkit)
    assert "is needed by tf" in host.remove("toolkit", "11.8")["msg"]
    assert tree(host.toolkit) == before


def test_removing_again_changes_nothing(host: Host) -> None:
    host.remove("stack", "tf")
    assert not host.remove("stack", "tf")["changed"]


def test_check_mode_removes_nothing(host: Host) -> None:
    before = tree(host.stack)
    assert host.remove("stack", "tf", check=True)["changed"]
    assert tree(host.stack) == before


def environment(host: Host, name: str) -> Path:
    """An environment without a receipt, bound to the toolkit."""
    venv = host.stack.parent / name
    site = venv / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    (venv / "pyvenv.cfg").write_text("version = 3.11.2\n")
    document = {"libraries": [str(host.toolkit / "lib64" / "libcudart.so.11.0")]}
    (site / "_gpufleet_binding.json").write_text(json.dumps(document))
    return venv


def test_an_environment_of_somebody_else_s_keeps_its_toolkit(host: Host) -> None:
    host.remove("stack", "tf")
    venv = environment(host, "theirs")
    before = tree(host.toolkit)
    for kind, ident in (("toolkit", "11.8"), ("cudnn", "11.8-8")):
        answer = host.remove(kind, ident, stack_root=venv.parent)
        assert f"is needed by {venv}. Remove that first." in answer["msg"]
    assert tree(host.toolkit) == before


def test_check_mode_names_what_would_be_left(host: Host) -> None:
    added = host.toolkit / "bin" / "mine"
    added.parent.mkdir()
    added.write_text("precious")
    answer = host.remove("toolkit", "11.8", check=True, without=["tf"])
    assert (answer["changed"], answer["left"]) == (True, [str(added)])


def test_cudnn_alone_leaves_its_toolkit_bit_for_bit(host: Host) -> None:
    host.remove("stack", "tf")
    (host.toolkit / "empty").mkdir()
    before = tree(host.toolkit)
    answer = host.remove("cudnn", "11.8-8")
    assert (answer["changed"], answer["left"]) == (True, [])
    gone = before.keys() - tree(host.toolkit).keys()
    assert gone == {"targets/lib/libcudnn.so.8"}
    assert (host.toolkit / "empty").is_dir()
    assert host.receipts() == {"toolkit-11.8"}


def begun(host: Host, name: str, **entry: object) -> None:
    """Leave in the journal what a killed run leaves, and no receipt."""
    (host.state / "receipts" / f"{name}.json").unlink()
    (host.state / "journal").mkdir(exist_ok=True)
    kind, _, ident = name.partition("-")
    entry = {"kind": kind, "id": ident, "version": "1", "path": str(host.toolkit), **entry}
    (host.state / "journal" / f"{name}.json").write_text(json.dumps(entry))


def test_a_first_cudnn_that_was_killed_goes_and_its_toolkit_stays(host: Host) -> None:
    host.remove("stack", "tf")
    begun(host, "cudnn-11.8-8", state="installing", fresh=True)
    (host.toolkit / ".gpufleet-cudnn-11.8-8").mkdir()
    host.remove("cudnn", "11.8-8")
    assert (host.toolkit / "targets/lib/libcudart.so.11.8.89").exists()
    assert not (host.toolkit / "targets/lib/libcudnn.so.8").exists()
    assert not (host.toolkit / ".gpufleet-cudnn-11.8-8").exists()
    assert not list((host.state / "journal").iterdir())


def test_a_killed_removal_of_a_killed_first_installation_is_finished(host: Host) -> None:
    host.remove("stack", "tf")
    host.remove("cudnn", "11.8-8")
    begun(host, "toolkit-11.8", state="installing", fresh=True)
    assert host.remove("toolkit", "11.8", check=True)["left"] == []
    installation = host.module.open_installation({"state_dir": host.state}, "toolkit", "11.8")
    installation.begin_removal()
    assert host.remove("toolkit", "11.8")["changed"]
    assert not host.toolkit.exists()


def test_a_killed_removal_is_finished(host: Host) -> None:
    (host.state / "journal").mkdir()
    (host.state / "journal" / "stack-tf.json").write_text(
        json.dumps({"state": "removing", "path": str(host.stack), "version": "1", "fresh": False})
    )
    (host.stack / "bin" / "python").unlink()
    assert host.remove("stack", "tf")["changed"]
    assert not host.stack.exists()
    assert not list((host.state / "journal").iterdir())


@pytest.mark.parametrize(
    ("place", "text", "reason"),
    [
        ("journal/toolkit-12.4.json", "garbage", "it lacks the path"),
        ("journal/toolkit-12.4.json", '{"state": "installing"}', "it lacks the path"),
        ("receipts/toolkit-11.8.json", "garbage", "Expecting value"),
    ],
)
def test_a_record_that_cannot_be_used_is_named_and_nothing_is_removed(
    host: Host, place: str, text: str, reason: str
) -> None:
    file = host.state / place
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    before = tree(host.toolkit)
    answer = host.remove("toolkit", file.stem.partition("-")[2], without=["tf"])
    assert answer["failed"]
    assert f"its record {file} cannot be used ({reason}" in answer["msg"]
    assert tree(host.toolkit) == before


def test_a_toolkit_that_somebody_moved_behind_a_link_goes(host: Host, tmp_path: Path) -> None:
    host.remove("stack", "tf")
    moved = tmp_path / "data" / "cuda-11.8"
    moved.parent.mkdir()
    host.toolkit.rename(moved)
    host.toolkit.symlink_to(moved)
    answer = host.remove("toolkit", "11.8", without=["tf"])
    assert answer["changed"]
    assert not host.toolkit.is_symlink()
    assert tree(moved) == {}
    assert host.receipts() == set()
