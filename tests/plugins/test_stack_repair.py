"""The repair of a stack: contents, interpreters, receipts, and environments that are made again."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import pytest

from tests.support.stack_bench import Bench

from ansible_collections.gpufleet.gpu.plugins.module_utils import stack_contents  # isort: skip
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (  # isort: skip
    Installation,
    StateError,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.recreation import (  # isort: skip
    Recreation,
)

pytestmark = pytest.mark.costly


def step(bench: Bench, repair: str, **more: Any) -> dict[str, Any]:
    """A step of the stack's repair; it must succeed, and a run without one has nothing to do."""
    answer = bench.install(repair=repair, **more)
    assert not answer.get("failed"), answer
    assert not bench.install()["changed"]
    return answer


def aside(bench: Bench) -> set[str]:
    """The names of the files that were set aside."""
    return {path.name for path in (bench.state / "set-aside").rglob("*") if path.is_file()}


@pytest.fixture
def whole(bench: Bench) -> Bench:
    """A stack whose one package has a right record."""
    content = b"whole"
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    bench.uv.write_text(bench.uv.read_text().replace("sha256=x", f"sha256={digest}"))
    bench.install()
    assert not bench.install()["changed"]
    return bench


def test_a_library_of_the_same_size_and_another_content_is_restored(whole: Bench) -> None:
    """Bit rot: provision compared sizes only, and had nothing to do."""
    library = whole.site() / "native.so"
    library.write_text("WHOLE")
    assert not whole.install()["changed"]
    assert whole.install(check=True, repair="contents")["because"].endswith("native.so: sha256")
    assert step(whole, "contents")["changed"]
    assert library.read_text() == "whole"
    assert not whole.install(repair="contents")["changed"]


@pytest.mark.parametrize("text", ["", "native.so,sha256=y,5\n", None])
def test_provision_reinstalls_a_stack_whose_package_record_differs(
    whole: Bench, text: str | None
) -> None:
    """An emptied RECORD vouches for no file: the package's own files are not compared at all."""
    record = next(whole.site().glob("numpy-*.dist-info")) / "RECORD"
    before = record.read_text()
    record.unlink()
    if text is not None:
        record.write_text(text)
    (whole.site() / "native.so").write_text("WHOLE")
    answer = whole.install()
    assert "numpy-1.24.3.dist-info/RECORD: " in answer["because"]
    assert "--reinstall" in whole.calls.read_text().splitlines()[-1]
    assert (record.read_text(), (whole.site() / "native.so").read_text()) == (before, "whole")
    assert not whole.install(repair="contents")["changed"]


def test_contents_add_the_package_records_to_an_earlier_receipt(whole: Bench) -> None:
    place, complete = whole.state / "receipts" / "stack-tensorflow-2.13.1.json", whole.receipt()
    records = {row["path"] for row in complete["manifest"] if row["path"].endswith("/RECORD")}
    assert len(records) == 2
    manifest = [row for row in complete["manifest"] if row["path"] not in records]
    place.write_text(json.dumps({**complete, "manifest": manifest}))
    whole.calls.write_text("")
    assert not whole.install()["changed"]
    step(whole, "contents")
    assert {row["path"] for row in whole.receipt()["manifest"]} >= records
    assert "--reinstall" not in whole.calls.read_text()
    assert not whole.install(repair="contents")["changed"]


@pytest.mark.parametrize("python", ["script", "gone", "directory", "hangs", "another"])
def test_a_replaced_interpreter_is_not_executed_to_repair_the_stack(
    whole: Bench, python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repair ran the script, failed, and left a journal on which each later run failed."""
    place, ran = whole.venv / "bin" / "python", whole.root / "ran"
    target = place.resolve()
    place.unlink()
    if python == "directory":
        place.mkdir()
        (place / "theirs").write_text("")
    elif python == "another":
        place.symlink_to("/bin/sh")
    elif python != "gone":
        place.write_text(f"#!/bin/sh\ntouch {ran}\n{'exec sleep 99' if python == 'hangs' else ''}")
        place.chmod(0o755)
    assert whole.install()["changed"]
    assert place.resolve() == target
    assert not ran.exists()
    assert not whole.install()["changed"]


def test_an_interpreter_that_does_not_start_is_replaced(
    whole: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole.site() / "sitecustomize.py").write_text("import time; time.sleep(99)")
    monkeypatch.setattr(stack_contents, "START_S", 1)
    step(whole, "contents")
    assert not (whole.site() / "sitecustomize.py").exists()
    assert aside(whole) == {"sitecustomize.py"}


def test_a_failed_repair_does_not_block_the_next_one(whole: Bench) -> None:
    entry = {"fresh": False, "state": "installing", "kind": "stack", "id": "tensorflow-2.13.1",
             "path": str(whole.venv), "started": "2026-01-01T00:00:00Z"}  # fmt: skip
    (whole.state / "journal" / "stack-tensorflow-2.13.1.json").write_text(json.dumps(entry))
    (whole.venv / "bin" / "python").unlink()
    (whole.venv / "bin" / "python").write_text("#!/bin/sh\nexit 1\n")
    assert whole.install()["state"] == "half-installed"
    assert not whole.install()["changed"]


def test_code_that_no_package_contains_is_set_aside_and_compiled_code_removed(
    whole: Bench,
) -> None:
    """A broken file in tensorflow-plugins and a replaced .pyc: provision had nothing to do."""
    plugins, cache = whole.site() / "tensorflow-plugins", whole.site() / "__pycache__"
    for folder in (plugins, cache):
        folder.mkdir(exist_ok=True)
    (plugins / "libbroken.so").write_text("no library")
    (cache / "native.cpython-311.pyc").write_bytes(b"raises")
    assert not whole.install()["changed"]
    assert "libbroken.so" in whole.install(check=True, repair="contents")["because"]
    step(whole, "contents")
    assert not plugins.exists()
    assert not list(cache.glob("*"))
    assert aside(whole) == {"libbroken.so"}
    assert not whole.install(repair="contents")["changed"]


@pytest.mark.parametrize("text", [None, "", "{}", "no JSON", "[]", '{"schema": 1}', "directory"])
def test_a_lost_or_damaged_receipt_is_written_again(whole: Bench, text: str | None) -> None:
    """The stack became a foreign one, and only moving it away by hand helped."""
    receipt, before = whole.state / "receipts" / "stack-tensorflow-2.13.1.json", whole.receipt()
    receipt.unlink()
    if text == "directory":
        receipt.mkdir()
    elif text is not None:
        receipt.write_text(text)
    (whole.venv / "mine").write_text("")
    step(whole, "reinstall")
    after = whole.receipt()
    assert {**after, "installed": 0, "manifest": 0} == {**before, "installed": 0, "manifest": 0}
    assert {row["path"] for row in before["manifest"]} <= {row["path"] for row in after["manifest"]}
    assert (whole.venv / "mine").exists(), "its contents are the lock's: it is kept"


def test_a_recreated_stack_keeps_what_people_added_aside(whole: Bench) -> None:
    (whole.venv / "mine").write_text("precious")
    step(whole, "recreate")
    assert not (whole.venv / "mine").exists()
    assert aside(whole) == {"mine"}
    assert not list(whole.root.glob(".gpufleet-*"))


@pytest.mark.parametrize(
    "call",
    ["uv venv", "uv pip install", "bind", "set_aside", "recreation.finish", "installation.finish"],
)
def test_a_recreation_that_is_killed_is_finished_by_the_next_run(
    whole: Bench, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole.venv / "mine").write_text("precious")

    def killed(*_: Any, **__: Any) -> None:
        raise StateError("killed")

    if call.startswith("uv "):
        whole.write(fails=f'[ "$1 $2" != "{call[3:]}" ] && [ "$1" != "{call[3:]}" ] || exit 9')
    else:
        where = {"recreation.finish": (Recreation, "finish"),
                 "installation.finish": (Installation, "finish")}  # fmt: skip
        monkeypatch.setattr(*where.get(call, (whole.module, call)), killed)
    assert whole.install(repair="recreate")["failed"]
    monkeypatch.undo()
    whole.write()
    assert whole.install()["state"] == "half-installed"
    assert not whole.install()["changed"]
    assert aside(whole) == {"mine"}
    assert not list(whole.root.glob(".gpufleet-*"))
