"""Obstacles of apt or dnf are read from apt itself, and from the files of dnf."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gpufleet.on_host.host import Host
from gpufleet.on_host.repositories import stopped as stopping
from gpufleet.on_host.sections.packages import dnf_repositories, section_packages

APT = shutil.which("apt-get")
needs_apt = pytest.mark.skipif(APT is None, reason="apt-get is not installed here")
KEY = "usr/share/keyrings/a.gpg"


def put(root: Path, name: str, text: str, mode: int = 0o644) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def stopped(root: Path) -> list[str] | None:
    settings = {"root": str(root), "tmpdir": "/tmp", "prefix": "/usr/local"}
    found = section_packages(Host(settings, 20))["stopped"]
    return None if found is None else list(found)


def debian(root: Path, files: dict[str, str]) -> list[str] | None:
    """The complaints of the real apt about sources below a directory."""
    root.chmod(0o755)
    put(root, "var/lib/dpkg/status", "")
    put(root, KEY, "")
    put(root, "usr/bin/apt-get", f'#!/bin/sh\nexec {APT} "$@"\n', 0o755)
    for name in ("var/lib/apt/lists/partial", "etc/apt/preferences.d", "etc/apt/apt.conf.d"):
        (root / name).mkdir(parents=True)
    for name, text in files.items():
        put(root, f"etc/apt/{name}", text)
    return stopped(root)


LINE = "deb [signed-by=/usr/share/keyrings/{}.gpg] https://u:secret@h.example/r /\n"


@needs_apt
@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"sources.list": LINE.format("a")}, None),
        ({"sources.list": "# nothing\n"}, None),
        ({"sources.list.d/a.list": LINE.format("a") * 2}, None),
        (
            {"sources.list.d/a.list": LINE.format("a"), "sources.list.d/b.list": LINE.format("b")},
            "Conflicting values set for option Signed-By regarding source https://h.example/r/",
        ),
        (
            {
                "sources.list": LINE.format("a"),
                "sources.list.d/b.list": "deb https://u:secret@h.example/r /\n",
            },
            "Conflicting values",
        ),
        ({"sources.list.d/a.list": "dep https://h.example/r /\n"}, "/a.list"),
        ({"sources.list.d/a.list": "<!DOCTYPE html>\n<html>\n"}, "/a.list"),
        ({"sources.list.d/a.sources": "Types: deb\nURIs:\n"}, "/a.sources"),
        ({"sources.list.d/a.list": LINE.format("gone")}, "/usr/share/keyrings/gone.gpg, which is"),
    ],
)
def test_apt_says_what_stops_it(tmp_path: Path, files: dict[str, str], says: str | None) -> None:
    found = debian(tmp_path, files)
    assert found is not None
    assert "secret" not in "".join(found)
    assert any(says in text for text in found) if says else found == []


def test_without_apt_it_is_not_known(tmp_path: Path) -> None:
    put(tmp_path, "var/lib/dpkg/status", "")
    assert stopped(tmp_path) is None


@pytest.mark.parametrize(
    ("section", "conf", "says"),
    [
        ("baseurl=https://h.example/r", "", None),
        ("baseurl=file:///mnt/gone", "", "/x.repo: repository x has no repodata in /mnt/gone"),
        ("baseurl=file:///mnt/gone\nskip_if_unavailable=1", "", None),
        ("baseurl=file:///mnt/gone", "[main]\nskip_if_unavailable=True\n", None),
        (
            "baseurl=file:///mnt/gone\nskip_if_unavailable=0",
            "[main]\nskip_if_unavailable=True\n",
            "no repodata",
        ),
        ("baseurl=file:///mnt/there", "", None),
        ("baseurl=file:///mnt/$basearch", "", None),
        ("baseurl=file:///mnt/gone\nenabled=0", "", None),
        ("name=x", "", "no baseurl, mirrorlist or metalink"),
        ("metalink=https://h.example/m", "", None),
    ],
)
def test_dnf_needs_each_repository(
    tmp_path: Path, section: str, conf: str, says: str | None
) -> None:
    put(tmp_path, "mnt/there/repodata/repomd.xml", "")
    put(tmp_path, "etc/dnf/dnf.conf", conf)
    put(tmp_path, "etc/yum.repos.d/x.repo", f"[x]\n{section}\n")
    host = Host({"root": str(tmp_path)}, 20)
    found = stopping(host, "rpm", [], [row[:2] for row in dnf_repositories(host)])
    assert found is not None
    assert (says in found[0]) if says else found == []
