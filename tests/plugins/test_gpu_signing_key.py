"""A repository's key is the declared one, or nothing is written."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.gpufleet.gpu.plugins.module_utils import openpgp

from tests.support.ansible_modules import Run, load

MODULE = load("gpu_signing_key")
pytestmark = pytest.mark.skipif(not shutil.which("gpg"), reason="no gpg here to make keys with")


def gpg(home: Path, *words: str) -> str:
    home.mkdir(mode=0o700, exist_ok=True)
    argv = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--passphrase", "", *words]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def made(home: Path, name: str) -> tuple[Path, str]:
    """A key with a subkey, and its fingerprint by gpg itself."""
    gpg(home, "--quick-generate-key", f"{name} <{name}@localhost>", "ed25519", "sign", "never")
    reported = gpg(home, "--with-colons", "--list-keys").splitlines()
    fingerprint = next(line.split(":")[9] for line in reported if line.startswith("fpr:"))
    gpg(home, "--quick-add-key", fingerprint, "cv25519", "encr", "never")
    path = home / f"{name}.asc"
    path.write_text(gpg(home, "--armor", "--export"))
    return path, fingerprint


@pytest.fixture(scope="module", autouse=True)
def _no_agent_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """gpg starts an agent for each home, which would go on running."""
    yield
    for home in tmp_path_factory.getbasetemp().glob("*"):
        if (home / "pubring.kbx").exists():
            subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=True)


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The declared key, and its fingerprint."""
    return made(tmp_path_factory.mktemp("keys"), "one")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Another one, of somebody who wants his packages installed."""
    return made(tmp_path_factory.mktemp("others"), "two")


def deliver(run: Run, source: Path, fingerprint: str, dest: Path, check: bool = False):  # type: ignore[no-untyped-def]
    return run(MODULE, check, url=f"file://{source}", fingerprints=[fingerprint], dest=dest)


def test_the_declared_key_is_written(run: Run, key: tuple[Path, str], tmp_path: Path) -> None:
    source, fingerprint = key
    spaced = " ".join(fingerprint[at : at + 4] for at in range(0, 40, 4)).lower()
    answer = deliver(run, source, spaced, tmp_path / "keys" / "one.asc")
    assert answer["changed"]
    assert answer["fingerprints"] == [fingerprint]
    assert (tmp_path / "keys" / "one.asc").read_text() == source.read_text()


def test_one_that_is_there_is_not_fetched_again(
    run: Run, key: tuple[Path, str], tmp_path: Path
) -> None:
    source, fingerprint = key
    dest = tmp_path / "one.asc"
    deliver(run, source, fingerprint, dest)
    assert not deliver(run, tmp_path / "nowhere", fingerprint, dest)["changed"]


def test_another_key_is_refused_and_what_stood_there_stays(
    run: Run, key: tuple[Path, str], tmp_path: Path
) -> None:
    dest = tmp_path / "one.asc"
    dest.write_text("an older one")
    answer = deliver(run, key[0], "0" * 40, dest)
    assert answer["failed"]
    assert f"is {key[1]}, accepted is {'0' * 40}" in answer["msg"]
    assert dest.read_text() == "an older one"


def test_a_rotated_key_replaces_the_older_one(
    run: Run, key: tuple[Path, str], tmp_path: Path
) -> None:
    dest = tmp_path / "one.asc"
    dest.write_text("an older one")
    assert deliver(run, *key, dest)["changed"]
    assert dest.read_text() == key[0].read_text()


@pytest.mark.parametrize("text", ["<html>Forbidden</html>", "", "-----BEGIN PGP PUBLIC KEY"])
def test_what_is_no_key_is_printed_so(
    run: Run, key: tuple[Path, str], tmp_path: Path, text: str
) -> None:
    source = tmp_path / "page"
    source.write_text(text)
    answer = deliver(run, source, key[1], tmp_path / "one.asc")
    assert answer["failed"]
    assert "no OpenPGP key in ASCII armour" in answer["msg"]
    assert not (tmp_path / "one.asc").exists()


def test_a_key_that_was_cut_off(run: Run, key: tuple[Path, str], tmp_path: Path) -> None:
    lines = key[0].read_text().splitlines()
    source = tmp_path / "cut.asc"
    source.write_text("\n".join([*lines[:4], lines[-1]]))
    answer = deliver(run, source, key[1], tmp_path / "one.asc")
    assert answer["failed"]


def note(text: str) -> str:
    """The same block under another name: apt takes every block of a file."""
    return text.replace("PUBLIC KEY BLOCK", "NOTE")


def rearmoured(*contents: bytes) -> str:
    """A block of any bytes, with the right checksum."""
    content = b"".join(contents)
    text, check = (base64.b64encode(each).decode() for each in (content, openpgp.crc24(content)))
    return "\n".join([openpgp.BEGIN, "", text, f"={check}", openpgp.END, ""])


def spoiled(kind: str, own: str, foreign: str) -> str:
    """A key file in which a second key, or anything else, is beside the declared one."""
    both = [openpgp.dearmoured(own), openpgp.dearmoured(foreign)]
    lines = own.splitlines()
    return {
        "a block of another name behind it": own + note(foreign),
        "a block of another name before it": note(foreign) + own,
        "a second block": own + foreign,
        "a block in the block": "\n".join([*lines[:3], *foreign.splitlines(), *lines[3:], ""]),
        "a block in its headers": own.replace("\n\n", f"\nComment: x\n{note(foreign)}\n", 1),
        "a second key in the block": rearmoured(*both),
        "the second key first": rearmoured(*reversed(both)),
        "text before it": "Welcome\n" + own,
        "text after it": own + "mQENBF\n",
        "text behind the last line's dashes": own.rstrip() + " x\n",
        "a second body behind an empty line": own.replace(
            "\n=", "\n\n" + foreign.split("\n")[2] + "\n=", 1
        ),
        "characters outside base64": own.replace(lines[2], lines[2][:10] + "!" + lines[2][10:]),
        "padding in the middle": own.replace(lines[2], lines[2][:10] + "==" + lines[2][10:]),
        "a wrong checksum": re.sub(r"\n=.*", "\n=AAAA", own),
        "a packet of a private key": rearmoured(both[0], openpgp.packet(5, b"\4secret")),
        "a marker packet": rearmoured(both[0], openpgp.packet(10, b"PGP")),
        "a packet of unknown length": rearmoured(both[0], b"\xc6\xe1" + both[1]),
        "a packet to the end of the file": rearmoured(both[0], b"\x9b" + both[1]),
        "a key of version 3": rearmoured(openpgp.packet(6, b"\3" + bytes(20))),
        "a subkey of version 3": rearmoured(both[0], openpgp.packet(14, b"\3" + bytes(20))),
        "no packet": rearmoured(b""),
    }[kind]


SPOILED = (
    "a block of another name behind it",
    "a block of another name before it",
    "a second block",
    "a block in the block",
    "a block in its headers",
    "a second key in the block",
    "the second key first",
    "text before it",
    "text after it",
    "text behind the last line's dashes",
    "a second body behind an empty line",
    "characters outside base64",
    "padding in the middle",
    "a wrong checksum",
    "a packet of a private key",
    "a marker packet",
    "a packet of unknown length",
    "a packet to the end of the file",
    "a key of version 3",
    "a subkey of version 3",
    "no packet",
)


@pytest.mark.parametrize("kind", SPOILED)
def test_anything_beside_the_declared_key_is_refused(
    run: Run, key: tuple[Path, str], other: tuple[Path, str], tmp_path: Path, kind: str
) -> None:
    source, dest = tmp_path / "spoiled.asc", tmp_path / "one.asc"
    source.write_text(spoiled(kind, key[0].read_text(), other[0].read_text()))
    answer = deliver(run, source, key[1], dest)
    assert answer["failed"]
    assert "Nothing was changed" in answer["msg"]
    assert not dest.exists()


def test_a_second_key_that_an_earlier_version_installed_is_taken_away(
    run: Run, key: tuple[Path, str], other: tuple[Path, str], tmp_path: Path
) -> None:
    dest = tmp_path / "one.asc"
    dest.write_text(key[0].read_text() + note(other[0].read_text()))
    assert deliver(run, *key, dest)["changed"]
    assert dest.read_text() == key[0].read_text()


def test_headers_and_line_ends_are_not_handed_on(
    run: Run, key: tuple[Path, str], tmp_path: Path
) -> None:
    dest, clean = tmp_path / "one.asc", key[0].read_text()
    dest.write_bytes(clean.replace("\n\n", "\nVersion: 2\n\n", 1).replace("\n", "\r\n").encode())
    # Without the server: what is there was judged.
    assert deliver(run, tmp_path / "nowhere", key[1], dest)["changed"]
    assert dest.read_bytes() == clean.encode()


def test_the_fingerprint_of_a_key_of_version_6() -> None:
    body = b"\6" + bytes(40)
    text = openpgp.armoured([(6, body)])
    expected = hashlib.sha256(b"\x9b" + len(body).to_bytes(4, "big") + body).hexdigest().upper()
    assert openpgp.read(text) == ([(6, body)], [expected])


def trusts(program: str, keys: Path, home: Path, tmp_path: Path) -> bool:
    """Return whether a package manager's verifier takes a signature by the key of a home."""
    data, signature = tmp_path / "Release", tmp_path / "Release.gpg"
    data.write_text("Suite: stable\n")
    signature.unlink(missing_ok=True)
    gpg(home, "--detach-sign", "--armor", "--output", str(signature), str(data))
    argv = {
        # As apt 2.6 calls it, for gpgv; Debian 13's apt calls sqv.
        "apt-key": [
            "apt-key",
            "--quiet",
            "--keyring",
            str(keys),
            "verify",
            str(signature),
            str(data),
        ],
        "sqv": ["sqv", "--keyring", str(keys), str(signature), str(data)],
    }[program]
    return subprocess.run(argv, check=False, capture_output=True).returncode == 0


@pytest.mark.parametrize(
    "program", [program for program in ("apt-key", "sqv") if shutil.which(program)]
)
def test_apt_trusts_the_written_key_and_no_other(
    run: Run, key: tuple[Path, str], other: tuple[Path, str], tmp_path: Path, program: str
) -> None:
    dest = tmp_path / "one.asc"
    assert deliver(run, *key, dest)["changed"]
    assert trusts(program, dest, key[0].parent, tmp_path)
    assert not trusts(program, dest, other[0].parent, tmp_path)


@pytest.mark.parametrize("program", [program for program in ("rpmkeys",) if shutil.which(program)])
def test_rpm_imports_the_written_key_alone(
    run: Run, key: tuple[Path, str], tmp_path: Path, program: str
) -> None:
    dest, database = tmp_path / "one.asc", ["--dbpath", str(tmp_path / "rpm")]
    deliver(run, *key, dest)
    subprocess.run([program, *database, "--import", str(dest)], check=True)
    keys = subprocess.run(
        ["rpm", *database, "-qa", "gpg-pubkey*"], check=True, text=True, capture_output=True
    ).stdout.split()
    assert [name.split("-")[2] for name in keys] == [key[1][-8:].lower()]


def test_check_mode_writes_nothing(run: Run, key: tuple[Path, str], tmp_path: Path) -> None:
    assert deliver(run, *key, tmp_path / "one.asc", check=True)["changed"]
    assert not (tmp_path / "one.asc").exists()
