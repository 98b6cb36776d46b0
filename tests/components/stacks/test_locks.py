"""A stack whose lock uv cannot make is refused before anything changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpufleet.catalog import facts, lock_results
from gpufleet.components.resolver import release, resolve
from gpufleet.fleet.inventory.hosts import Connection, InventoryHost
from gpufleet.fleet.judging import plan_of
from tests.support.host_documents import codes, converged, declaration, section, with_pythons

NO_WHEEL = {"tensorflow": "2.14.0", "cuda": "pip", "python": "3.11"}
LOCK = "tensorflow-2.14.0-cuda-pip-py3.11.lock"


def refused(stack: dict[str, str], *locks: str, **others: Any) -> list[str]:
    return codes(resolve(declaration(stack, **others), locks=locks))


def test_a_recorded_failure_is_refused_with_what_has_a_lock() -> None:
    plan = resolve(declaration(NO_WHEEL), locks=())
    (problem,) = plan["problems"]
    assert (problem["code"], problem["where"]) == ("lock-unavailable", "gpu_stacks[0].python")
    assert (
        "TensorFlow 2.14.0 with CUDA from pip for Python 3.11 cannot be made"
        in (problem["message"])
    )
    assert "tensorrt==8.5.3.1 has no wheels" in problem["message"]
    assert problem["remedy"] == (
        "declare Python 3.9 or 3.10, for which it has a lock, or declare TensorFlow 2.15.0.post1, "
        f"which has a lock for Python 3.11, or put a lock of your own into gpu_locks_dir, as {LOCK}"
    )


def test_a_release_without_any_lock_names_another_release() -> None:
    stack = {"tensorflow": "2.15.0", "cuda": "pip", "python": "3.9"}
    (problem,) = resolve(declaration(stack), locks=())["problems"]
    assert problem["remedy"].startswith("declare TensorFlow 2.15.0.post1, which has a lock")


def test_the_users_own_lock_is_used() -> None:
    assert refused(NO_WHEEL, LOCK) == []
    assert refused(NO_WHEEL, LOCK.replace("3.11", "3.10")) == ["lock-unavailable"]


@pytest.mark.parametrize(
    "changes", [{"python": "3.10"}, {"cuda": "11.8"}, {"tensorflow": "2.15.1"}]
)
def test_what_has_a_lock_is_not_refused(changes: dict[str, str]) -> None:
    assert refused({**NO_WHEEL, **changes}) == []


def test_what_is_added_to_a_stack_does_not_make_its_lock() -> None:
    assert refused(NO_WHEEL, gpu_jupyter_kernels=True) == ["lock-unavailable"]


def test_the_python_that_the_host_decides_is_refused_only_when_it_is_known() -> None:
    stack = {"tensorflow": "2.14.0", "cuda": "pip"}
    unprobed = resolve(declaration(stack), locks=())
    assert codes(unprobed) == []
    assert any("cannot be made" in note for note in unprobed["notes"])
    assert codes(resolve(declaration(stack), with_pythons("3.10"), locks=())) == []
    newest = resolve(declaration(stack), with_pythons("3.10", "3.11"), locks=())
    assert codes(newest) == ["lock-unavailable"]


def test_where_the_users_locks_are_not_known_it_is_a_note_unless_none_can_be_made() -> None:
    found = release("tensorflow", "1.2.0", python="3.6")
    assert "problems" not in found
    assert any("cannot be made" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("version", "python", "remedy"),
    [
        ("2.15.0", None, "TensorFlow 2.15.0.post1"),
        ("2.15.0", "3.10", "TensorFlow 2.15.0.post1"),
        ("2.14.0", "3.11", "declare Python 3.9 or 3.10"),
        ("2.14.1", "3.11", "declare Python 3.9 or 3.10"),
    ],
)
def test_what_can_never_be_locked_is_not_resolved(
    version: str, python: str | None, remedy: str
) -> None:
    (problem,) = release("tensorflow", version, cuda="pip", python=python)["problems"]
    assert (problem["code"], problem["where"]) == ("lock-unavailable", "--python")
    assert remedy in problem["remedy"]


def old_glibc(python: str) -> dict[str, Any]:
    host = with_pythons(python)
    section(host, "os")["glibc"] = "2.17"
    return host


def test_a_lock_for_newer_wheels_is_not_made_for_an_old_glibc() -> None:
    stack = {"tensorflow": "2.13.1", "python": "3.11"}
    (problem,) = resolve(declaration(stack), old_glibc("3.11"), locks=())["problems"]
    assert problem["code"] == "glibc"
    assert "no wheel for glibc 2.17" in problem["message"]
    assert "as tensorflow-2.13.1-py3.11.lock" in problem["remedy"]
    own = ["tensorflow-2.13.1-py3.11.lock"]
    assert codes(resolve(declaration(stack), old_glibc("3.11"), locks=own)) == []
    assert codes(resolve(declaration(stack), with_pythons("3.11"), locks=())) == []


def test_what_is_installed_on_an_old_glibc_is_verified() -> None:
    stack = {"tensorflow": "2.13.1", "python": "3.11"}
    host = old_glibc("3.11")
    plan = resolve(declaration(stack), host, locks=["tensorflow-2.13.1-py3.11.lock"])
    installed = converged(plan)
    section(installed, "os").update(section(host, "os"))
    assert "glibc" not in codes(resolve(declaration(stack), installed, locks=()))


def test_what_is_installed_is_verified() -> None:
    host = with_pythons("3.11")
    plan = resolve(declaration(NO_WHEEL), host, locks=[LOCK])
    installed = converged(plan)
    section(installed, "os")["pythons"] = section(host, "os")["pythons"]
    assert "lock-unavailable" in codes(resolve(declaration(NO_WHEEL), host, locks=()))
    assert "lock-unavailable" not in codes(resolve(declaration(NO_WHEEL), installed, locks=()))


@pytest.mark.parametrize(
    "rows",
    [
        {},
        {"2.14.0": [{"python": "3.10"}]},
        {"2.14.0": [{"requirements": ["tensorflow==2.14.0"]}]},
    ],
)
def test_what_is_not_recorded_is_not_refused(
    rows: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = next(
        row
        for row in facts.document("locks/tensorflow.yml")["2.14.0"]
        if (row["cuda"], row["python"]) == ("pip", "3.11")
    )
    results = {version: [{**recorded, **row} for row in found] for version, found in rows.items()}
    monkeypatch.setattr(lock_results, "_results", lambda _: results)
    assert refused(NO_WHEEL) == []


def test_the_plan_of_an_inventorys_host_knows_its_locks() -> None:
    host = InventoryHost("gpu01", declaration(NO_WHEEL), Connection("gpu01"))
    assert codes(plan_of(host, None)) == ["lock-unavailable"]
    with_lock = plan_of(replace(host, locks={LOCK: "a" * 64}), None)
    assert codes(with_lock) == []
    assert with_lock["stacks"][0]["lock_sha256"] == "a" * 64
