"""A stack's lock: made once, kept, and never taken for another purpose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule

from tests.support.ansible_modules import Run, load

UV = """#!/bin/sh
cat >{asked}
echo "$@" >>{calls}
echo "$UV_DEFAULT_INDEX|$UV_INDEX" >{calls}.indexes
echo "six==1.17.0 \\\\"
echo "    --hash=sha256:00"
"""


@pytest.fixture
def asked(tmp_path: Path) -> dict[str, Any]:
    """The arguments of every call, with a stand-in for uv."""
    uv = tmp_path / "uv"
    uv.write_text(UV.format(asked=tmp_path / "asked", calls=tmp_path / "calls"))
    uv.chmod(0o755)
    path = tmp_path / "stacks" / "six.lock"
    return {"path": path, "requirements": ["six==1.17.0"], "python": "3.11", "uv": uv}


def test_it_is_resolved_once(run: Run, asked: dict[str, Any]) -> None:
    module = load("gpu_stack_lock")
    assert run(module, **asked)["changed"]
    assert (asked["uv"].parent / "asked").read_text() == "six==1.17.0\n"
    assert not run(module, **asked)["changed"]
    assert len((asked["uv"].parent / "calls").read_text().splitlines()) == 1


def test_it_says_what_it_was_made_for(run: Run, asked: dict[str, Any]) -> None:
    run(load("gpu_stack_lock"), **asked)
    assert asked["path"].read_text().startswith("# six==1.17.0 for Python 3.11.")


@pytest.mark.parametrize(("python", "version"), [("3.6", "3.6.8"), ("3.11", "3.11")])
def test_python_3_6_is_one_that_hosts_have(
    run: Run, asked: dict[str, Any], python: str, version: str
) -> None:
    run(load("gpu_stack_lock"), **{**asked, "python": python})
    words = (asked["uv"].parent / "calls").read_text().split()
    assert words[words.index("--python-version") + 1] == version
    assert f"for Python {python}." in asked["path"].read_text()


@pytest.mark.parametrize("other", [{"requirements": ["six==1.16.0"]}, {"python": "3.12"}])
def test_one_made_for_something_else_is_refused(
    run: Run, asked: dict[str, Any], other: dict[str, Any]
) -> None:
    run(load("gpu_stack_lock"), **asked)
    answer = run(load("gpu_stack_lock"), **{**asked, **other})
    assert answer["failed"]
    assert "Remove it to resolve it again" in answer["msg"]


def test_one_that_a_person_wrote_is_taken(run: Run, asked: dict[str, Any]) -> None:
    asked["path"].parent.mkdir()
    asked["path"].write_text("six==1.17.0 --hash=sha256:00\n")
    assert not run(load("gpu_stack_lock"), **asked)["changed"]


def test_check_mode_writes_nothing(run: Run, asked: dict[str, Any]) -> None:
    assert run(load("gpu_stack_lock"), check=True, **asked)["changed"]
    assert not asked["path"].exists()


def test_the_index_s_password_is_in_no_command(run: Run, asked: dict[str, Any]) -> None:
    run(load("gpu_stack_lock"), index_url="https://user:secret@mirror.example.org/simple", **asked)
    assert "secret" not in (asked["uv"].parent / "calls").read_text()


def test_a_stack_s_own_index_is_asked_beside_the_usual_one(
    run: Run, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX"):
        monkeypatch.delenv(name, raising=False)
    usual, own = "https://mirror.example.org/simple", "https://user:secret@wheels.example.org/cu118"
    for index_url, index in ((usual, own), ("", own), (usual, "")):
        asked["path"].unlink(missing_ok=True)
        assert run(load("gpu_stack_lock"), index_url=index_url, index=index, **asked)["changed"]
        indexes = (asked["uv"].parent / "calls.indexes").read_text()
        assert indexes == f"{index_url}|{index}\n"
    assert "secret" not in (asked["uv"].parent / "calls").read_text()


@pytest.mark.parametrize(
    ("arch", "platform"), [("x86_64", "linux"), ("aarch64", "aarch64-unknown-linux-gnu")]
)
def test_it_is_resolved_for_the_hosts_architecture(
    run: Run, asked: dict[str, Any], arch: str, platform: str
) -> None:
    module = load("gpu_stack_lock")
    run(module, **{**asked, "arch": arch})
    words = (asked["uv"].parent / "calls").read_text().split()
    assert words[words.index("--python-platform") + 1] == platform
    other = {"x86_64": "aarch64", "aarch64": "x86_64"}[arch]
    answer = run(module, **{**asked, "arch": other})
    assert answer["failed"]
    assert "was resolved for" in answer["msg"]


UV_OF_TENSORBOARD = """#!/bin/sh
given=$(cat)
echo "$given" >>{asked}
echo "tensorboard=={tensorboard} --hash=sha256:00"
case "$given" in *"setuptools<82"*) echo "setuptools==81.0.0 --hash=sha256:00" ;;
*) echo "setuptools=={setuptools} --hash=sha256:00" ;; esac
"""


@pytest.mark.parametrize(
    ("tensorboard", "setuptools", "pinned"),
    [
        ("2.20.0", "84.2.1", "81.0.0"),
        ("2.13.0", "82.0.1", "81.0.0"),
        ("1.15.0", "82.0.0", "81.0.0"),
        ("2.21.0", "84.2.1", "84.2.1"),
        ("2.20.0", "81.0.0", "81.0.0"),
        ("3.0.0rc1", "84.2.1", "84.2.1"),
    ],
)
def test_a_bound_that_tensorboard_needs_and_does_not_declare(
    run: Run, asked: dict[str, Any], tensorboard: str, setuptools: str, pinned: str
) -> None:
    """tensorboard 2.20 and older import pkg_resources, which setuptools lost with 82."""
    text = UV_OF_TENSORBOARD.format(
        asked=asked["uv"].parent / "asked", tensorboard=tensorboard, setuptools=setuptools
    )
    asked["uv"].write_text(text)
    answer = run(load("gpu_stack_lock"), **asked)
    assert f"setuptools=={pinned}" in asked["path"].read_text()
    assert asked["path"].read_text().startswith("# six==1.17.0 for Python 3.11.")
    assert not answer.get("warnings")


@pytest.mark.parametrize(
    ("requirement", "times"),
    [
        ("tensorflow==2.13.1", 1),
        ("tensorflow[and-cuda]==2.20.0", 1),
        ("tensorflow-gpu==1.15.0", 1),
        ("tensorboard==2.20.0", 1),
        ("TensorFlow_CPU==2.17.1", 1),
        # What brings tensorboard is known only afterwards.
        ("example==1.0", 2),
        ("tensorboard", 2),
    ],
)
def test_a_bound_of_what_is_required_is_resolved_once(
    run: Run, asked: dict[str, Any], requirement: str, times: int
) -> None:
    text = UV_OF_TENSORBOARD.format(
        asked=asked["uv"].parent / "asked", tensorboard="2.20.0", setuptools="84.2.1"
    )
    asked["uv"].write_text(text.replace("given=$(cat)", f"given=$(cat); echo . >>{asked['uv']}.n"))
    asked["requirements"] = [requirement]
    run(load("gpu_stack_lock"), **asked)
    assert len(Path(f"{asked['uv']}.n").read_text().splitlines()) == times
    assert "setuptools==81.0.0" in asked["path"].read_text()


@pytest.mark.parametrize("requirement", ["tensorflow==2.21.0", "torch==2.6.0", "jax==0.5.3"])
def test_other_requirements_get_no_bound(run: Run, asked: dict[str, Any], requirement: str) -> None:
    asked["requirements"] = [requirement]
    run(load("gpu_stack_lock"), **asked)
    assert (asked["uv"].parent / "asked").read_text() == f"{requirement}\n"


def test_a_lock_of_before_that_lacks_the_bound_is_named(
    run: Run, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked["path"].parent.mkdir()
    asked["path"].write_text("tensorboard==2.20.0\nsetuptools==84.2.1\n")
    said: list[str] = []
    monkeypatch.setattr(AnsibleModule, "warn", lambda _, text, **__: said.append(text))
    answer = run(load("gpu_stack_lock"), **asked)
    assert not answer["changed"]
    assert ["it needs setuptools<82" in text for text in said] == [True]
