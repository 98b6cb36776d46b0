"""The checkout as an archive: what git tracks, as it stands; the same files, the same digest."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

import pytest

from gpufleet.cli.pack import files, installed_files, pack


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small checkout with what use leaves in one."""
    root = tmp_path / "checkout"
    for name in (
        "gpufleet",
        "verify/probe.py",
        ".venv/bin/python",
        "reports/latest/report.html",
        "verify/__pycache__/probe.pyc",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "gpufleet").chmod(0o755)
    (root / "link").symlink_to("verify/probe.py")
    return root


def names(archive: Path) -> list[str]:
    with tarfile.open(archive) as made:
        return made.getnames()


@pytest.mark.parametrize("tracked", [True, False])
def test_what_use_leaves_behind_is_not_packed(
    checkout: Path, tmp_path: Path, tracked: bool
) -> None:
    if tracked:
        for words in (["init", "-q"], ["add", "gpufleet", "verify/probe.py", "link"]):
            subprocess.run(["git", *words], cwd=checkout, check=True)
        (checkout / "notes").write_text("nobody tracks it")
    digest = pack(files(checkout), tmp_path / "a.tar")
    assert names(tmp_path / "a.tar") == ["gpufleet", "link", "verify/probe.py"]
    (checkout / "verify" / "probe.py").touch()
    assert pack(files(checkout), tmp_path / "b.tar") == digest
    with tarfile.open(tmp_path / "a.tar") as made:
        assert made.getmember("gpufleet").mode == 0o755
        assert made.getmember("link").linkname == "verify/probe.py"


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "verify" / "probe.py").write_text("other"),
        lambda root: (root / "verify" / "probe.py").chmod(0o755),
        lambda root: (root / "verify" / "probe.py").rename(root / "verify" / "probes.py"),
    ],
)
def test_another_content_mode_or_name_is_another_version(
    checkout: Path, tmp_path: Path, change: object
) -> None:
    digest = pack(files(checkout), tmp_path / "a.tar")
    assert callable(change)
    change(checkout)
    assert pack(files(checkout), tmp_path / "a.tar") != digest


def test_an_installed_package_makes_a_checkout_again(tmp_path: Path) -> None:
    package, collection = tmp_path / "site/gpufleet", tmp_path / "site/ansible_collections/gpu"
    for path in (
        package / "cli/main.py",
        package / "__pycache__/x.pyc",
        collection / "gpufleet",
        collection / "requirements.txt",
        collection / "roles/cuda/tasks/main.yml",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.name)
    digest = pack(installed_files(package, collection), tmp_path / "a.tar")
    assert len(digest) == 16
    with tarfile.open(tmp_path / "a.tar") as made:
        assert made.getnames() == [
            "gpufleet",
            "requirements.txt",
            "roles/cuda/tasks/main.yml",
            "src/gpufleet/cli/main.py",
        ]
        assert made.getmember("gpufleet").mode == 0o755
