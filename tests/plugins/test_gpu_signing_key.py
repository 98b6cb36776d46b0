"""A repository's key is the declared one, or nothing is written."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.ansible_modules import Run, load

MODULE = load("gpu_signing_key")
pytestmark = pytest.mark.skipif(not shutil.which("gpg"), reason="no gpg here to make keys with")


def gpg(home: Path, *words: str) -> str:
    home.mkdir(mode=0o700, exist_ok=True)
    argv = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--passphrase", "", *words]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A key with a subkey, and its fingerprint by gpg itself."""
    home = tmp_path_factory.mktemp("keys")
    gpg(home, "--quick-generate-key", "one <one@localhost>", "ed25519", "sign", "never")
    told = gpg(home, "--with-colons", "--list-keys").splitlines()
    fingerprint = next(line.split(":")[9] for line in told if line.startswith("fpr:"))
    gpg(home, "--quick-add-key", fingerprint, "cv25519", "encr", "never")
    path = home / "one.asc"
    path.write_text(gpg(home, "--armor", "--export"))
    return path, fingerprint


def bring(run: Run, source: Path, fingerprint: str, dest: Path, check: bool = False):  # type: ignore[no-untyped-def]
    return run(MODULE, check, url=f"file://{source}", fingerprints=[fingerprint], dest=dest)


def test_the_declared_key_is_written(run: Run, key: tuple[Path, str], tmp_path: Path) -> None:
    source, fingerprint = key
    spaced = " ".join(fingerprint[at : at + 4] for at in range(0, 40, 4)).lower()
    answer = bring(run, source, spaced, tmp_path / "keys" / "one.asc")
    assert answer["changed"]
    assert answer["fingerprints"] == [fingerprint]
    assert (tmp_path / "keys" / "one.asc").read_text() == source.read_text()


def test_one_that_is_there_is_not_fetched_again(
    run: Run, key: tuple[Path, str], tmp_path: Path
) -> None:
    source, fingerprint = key
    dest = tmp_path / "one.asc"
    bring(run, source, fingerprint, dest)
    assert not bring(run, tmp_path / "nowhere", fingerprint, dest)["changed"]


def test_another_key_is_refused_and_what_stood_there_stays(
    run: Run, key: tuple[Path, str], tmp_path: Path
) -> None:
    dest = tmp_path / "one.asc"
    dest.write_text("an older one")
    answer = bring(run, key[0], "0" * 40, dest)
    assert answer["failed"]
    assert f"is {key[1]}, accepted is {'0' * 40}" in answer["msg"]
    assert dest.read_text() == "an older one"


def test_a_rotated_key_replaces_the_older_one(
    run: Run, key: tuple[Path, str], tmp_path: Path
) -> None:
    dest = tmp_path / "one.asc"
    dest.write_text("an older one")
    assert bring(run, *key, dest)["changed"]
    assert dest.read_text() == key[0].read_text()


@pytest.mark.parametrize("text", ["<html>Forbidden</html>", "", "-----BEGIN PGP PUBLIC KEY"])
def test_what_is_no_key_is_said_so(
    run: Run, key: tuple[Path, str], tmp_path: Path, text: str
) -> None:
    source = tmp_path / "page"
    source.write_text(text)
    answer = bring(run, source, key[1], tmp_path / "one.asc")
    assert answer["failed"]
    assert "no OpenPGP key in ASCII armour" in answer["msg"]
    assert not (tmp_path / "one.asc").exists()


def test_a_key_that_was_cut_off(run: Run, key: tuple[Path, str], tmp_path: Path) -> None:
    lines = key[0].read_text().splitlines()
    source = tmp_path / "cut.asc"
    source.write_text("\n".join([*lines[:4], lines[-1]]))
    answer = bring(run, source, key[1], tmp_path / "one.asc")
    assert answer["failed"]


def test_check_mode_writes_nothing(run: Run, key: tuple[Path, str], tmp_path: Path) -> None:
    assert bring(run, *key, tmp_path / "one.asc", check=True)["changed"]
    assert not (tmp_path / "one.asc").exists()
