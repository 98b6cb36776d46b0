"""A stack's own index, with uv itself: declared, locked with its hashes, installed from it."""

from __future__ import annotations

import ensurepip
import functools
import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpufleet.components.resolver import resolve
from tests.support.ansible_modules import Run, load, sha256
from tests.support.elf_file import shared_library
from tests.support.host_documents import declaration
from tests.support.secure_index import SecureIndex, make_wheel, secure_index

from ansible_collections.gpufleet.gpu.plugins.module_utils import (  # isort: skip
    python_environment,
)

pytestmark = pytest.mark.costly
UV = Path(sys.executable).parent / "uv"
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
BINDING = Path(__file__).resolve().parents[2] / "roles/stacks/files/_gpufleet_binding.py"
CUBLAS = "libcublas.so.11"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SecureIndex]:
    """The usual index and one of a CUDA variant; both have packages that the other has not."""
    usual, own = tmp_path / "indexes" / "simple", tmp_path / "indexes" / "cu118"
    make_wheel(usual, "torch", "2.6.0", {"torch/__init__.py": b"cuda = '12.4'\n"})
    make_wheel(usual, "setuptools", "75.0")
    (pip,) = (Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl")
    shutil.copy(pip, usual)
    make_wheel(usual, "numpy", "2.2.0", {"numpy/__init__.py": b"usual = True\n"})
    make_wheel(own, "numpy", "1.26.4", {"numpy/__init__.py": b"usual = False\n"})
    make_wheel(
        own,
        "torch",
        "2.6.0+cu118",
        {"torch/__init__.py": b"cuda = '11.8'\n"},
        ("nvidia-cublas-cu11==11.11.3.6",),
    )
    library = shared_library(tmp_path / "made" / CUBLAS, CUBLAS).read_bytes()
    make_wheel(own, "nvidia-cublas-cu11", "11.11.3.6", {f"nvidia/cublas/lib/{CUBLAS}": library})
    for name in (
        "UV_DEFAULT_INDEX",
        "UV_INDEX",
        "UV_INDEX_URL",
        "UV_EXTRA_INDEX_URL",
        "PIP_INDEX_URL",
        "PIP_EXTRA_INDEX_URL",
        "PIP_FIND_LINKS",
        "UV_FIND_LINKS",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "PIP_CERT",
    ):
        monkeypatch.delenv(name, raising=False)
    # What is tested is which index is asked, not how a machine reaches others.
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "control-cache"))
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    for name in ("UV_HTTP_RETRIES", "PIP_RETRIES"):
        monkeypatch.setenv(name, "0")
    with secure_index(tmp_path / "indexes") as found:
        monkeypatch.setenv("SSL_CERT_FILE", str(found.authority))
        monkeypatch.setattr(python_environment, "AUTHORITIES", (str(found.authority),))
        yield found


@functools.cache
def filled_environment() -> tempfile.TemporaryDirectory[str]:
    """An environment with the pip that this interpreter brings, which takes seconds to install."""
    made = tempfile.TemporaryDirectory()
    subprocess.run([sys.executable, "-m", "venv", Path(made.name, "venv")], check=True)
    return made


def copying_interpreter(path: Path) -> Path:
    """A stand-in for this interpreter, which copies a filled environment instead of making one."""
    filled = Path(filled_environment().name, "venv")
    path.write_text(
        f'#!/bin/sh\n[ "$1 $2" != "-m venv" ] || exec cp -a {filled} "$3"\n'
        f'exec {sys.executable} "$@"\n'
    )
    path.chmod(0o755)
    return path


def planned(index: SecureIndex) -> Any:
    """The stack as people declare it, in the plan."""
    plan = resolve(
        declaration(
            {"pytorch": "2.6.0", "cuda": "11.8", "index": index.url("cu118"), "name": "vision"}
        )
    )
    assert plan["problems"] == []
    (stack,) = plan["stacks"]
    return stack


def lock_it(run: Run, site: SecureIndex, path: Path, **more: Any) -> dict[str, Any]:
    """Resolve the stack's lock as the role does."""
    stack = planned(site)
    given = {
        "path": path,
        "requirements": [*stack["requirements"], "pip"],
        "python": VERSION,
        "uv": UV,
        "index_url": site.url("simple"),
        "index": stack["index"],
    }
    return run(load("gpu_stack_lock"), **{**given, **more})


def install_it(run: Run, index: SecureIndex, lock: Path, root: Path, **more: Any) -> dict[str, Any]:
    """Install the stack from its lock as the role does."""
    stack = planned(index)
    by_pip = more.get("installer") == "pip"
    given = {
        "name": stack["name"],
        "framework": "pytorch",
        "distribution": stack["distribution"],
        "version": stack["version"],
        "venv": root / "stack",
        "python": VERSION,
        "interpreter": copying_interpreter(root / "python3") if by_pip else sys.executable,
        "uv": UV,
        "lock": lock,
        "lock_sha256": sha256(lock).partition(":")[2],
        "index_url": index.url("simple"),
        "index": stack["index"],
        "cache": root / "cache",
        "state_dir": root / "state",
        "activation": root / "variables.sh",
        "binding": BINDING.read_text(),
        "libraries": stack["sonames"],
        "libraries_optional": stack["sonames_optional"],
    }
    return run(load("gpu_stack"), **{**given, **more})


def digest(path: Path) -> str:
    return f"--hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def test_the_lock_has_the_hashes_of_the_stack_s_own_index(
    run: Run, index: SecureIndex, tmp_path: Path
) -> None:
    lock = tmp_path / "locks" / "vision.lock"
    answer = lock_it(run, index, lock)
    assert answer.get("changed"), answer["msg"]
    text = lock.read_text()
    usual, own = index.root / "simple", index.root / "cu118"
    for wheel in own.glob("*.whl"):  # also numpy, which the usual index has a newer one of
        assert digest(wheel) in text, wheel.name
    assert digest(usual / "setuptools-75.0-py3-none-any.whl") in text
    assert "torch==2.6.0+cu118" in text
    for name in ("torch-2.6.0", "numpy-2.2.0"):
        assert digest(usual / f"{name}-py3-none-any.whl") not in text
    assert index.address not in text


@pytest.mark.parametrize("installer", ["uv", "pip"])  # pip: for Pythons that uv does not support
def test_the_stack_is_installed_from_both_and_bound_to_what_came_with_it(
    run: Run, index: SecureIndex, tmp_path: Path, installer: str
) -> None:
    lock = tmp_path / "locks" / "vision.lock"
    lock_it(run, index, lock)
    index.asked.clear()
    answer = install_it(run, index, lock, tmp_path, installer=installer)
    assert answer.get("changed"), answer["msg"]
    site = tmp_path / "stack" / "lib" / f"python{VERSION}" / "site-packages"
    assert (site / "torch" / "__init__.py").read_text() == "cuda = '11.8'\n"
    assert (site / "numpy" / "__init__.py").read_text() == "usual = False\n"
    document = (site / "_gpufleet_binding.json").read_text()
    assert str(site / "nvidia" / "cublas" / "lib" / CUBLAS) in document
    wheels = {path.rpartition("/")[2] for path in index.asked if path.endswith(".whl")}
    assert {each.name for each in (index.root / "cu118").iterdir()} <= wheels
    assert not install_it(run, index, lock, tmp_path, installer=installer)["changed"]


@pytest.mark.parametrize(
    ("section", "trusted"), [("global", True), ("install", True), ("wheel", False)]
)
def test_the_authorities_of_the_host_s_own_pip_settings_are_kept(  # noqa: PLR0917
    run: Run,
    index: SecureIndex,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    section: str,
    trusted: bool,
) -> None:
    """The system's list, without the index's authority, does not replace the one of pip.conf."""
    lock = tmp_path / "locks" / "vision.lock"
    lock_it(run, index, lock)
    settings = tmp_path / "pip.conf"
    settings.write_text(f"[{section}]\ncert = {index.authority}\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    (tmp_path / "other").mkdir()
    with secure_index(tmp_path / "other" / "indexes") as other:
        monkeypatch.setattr(python_environment, "AUTHORITIES", (str(other.authority),))
        answer = install_it(run, index, lock, tmp_path, installer="pip")
    assert bool(answer.get("failed")) is not trusted, answer.get("msg")
    if not trusted:
        assert "certificate" in answer["msg"].lower()


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_a_file_that_the_index_changed_is_refused(
    run: Run, index: SecureIndex, tmp_path: Path, installer: str
) -> None:
    lock = tmp_path / "locks" / "vision.lock"
    lock_it(run, index, lock)
    make_wheel(
        index.root / "cu118",
        "torch",
        "2.6.0+cu118",
        {"torch/__init__.py": b"evil = 1\n"},
        ("nvidia-cublas-cu11==11.11.3.6",),
    )
    shutil.rmtree(tmp_path / "control-cache")
    answer = install_it(run, index, lock, tmp_path, installer=installer)
    assert answer["failed"]
    assert "torch" in answer["msg"]
    assert "hash" in answer["msg"].lower()
    assert not list((tmp_path / "stack").rglob("torch/__init__.py"))
    assert not (tmp_path / "state" / "receipts").exists() or not list(
        (tmp_path / "state" / "receipts").rglob("*vision*")
    )


def test_without_its_index_a_variant_is_not_found(
    run: Run, index: SecureIndex, tmp_path: Path
) -> None:
    lock = tmp_path / "locks" / "vision.lock"
    answer = lock_it(run, index, lock, index="")
    assert answer["failed"]
    assert "torch==2.6.0+cu118" in answer["msg"]
    assert not lock.exists()


def test_an_index_whose_authority_is_unknown_is_not_asked(
    run: Run, index: SecureIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    answer = lock_it(run, index, tmp_path / "locks" / "vision.lock")
    assert answer["failed"]
    assert "UnknownIssuer" in answer["msg"] or "certificate" in answer["msg"]
    assert index.asked == []


def test_the_authorities_of_the_system_count_for_a_declared_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uv and pip have lists of their own; those are all there is where the system has none."""
    known, missing = tmp_path / "authorities.pem", tmp_path / "missing.pem"
    known.touch()
    monkeypatch.delenv("PIP_CERT", raising=False)
    own = {
        "UV_INDEX": "https://wheels.example.org",
        "PIP_EXTRA_INDEX_URL": "https://wheels.example.org",
    }
    for there, trust in (
        ((missing, known), {"UV_SYSTEM_CERTS": "true", "PIP_CERT": str(known)}),
        ((missing,), {}),
    ):
        monkeypatch.setattr(python_environment, "AUTHORITIES", tuple(map(str, there)))
        assert python_environment.index_variables("", own["UV_INDEX"]) == {**own, **trust}
        assert python_environment.index_variables("", "") == {}
