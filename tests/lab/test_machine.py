"""Facts about this machine: its Debian mirror, and the needs of its network."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import machine, mirror
from lab.errors import LabError
from lab.images import Recipe

DEB822 = """\
# a comment
Types: deb
URIs: https://cloud.example/apt
Suites: cloud-bookworm
Components: main

Types: deb-src
URIs: http://sources.example/debian
Suites: bookworm
Components: main

Types: deb
Enabled: no
URIs: http://disabled.example/debian
Suites: bookworm
Components: main

Types: deb
URIs:
 http://mirror.example/debian/
Suites: bookworm
  bookworm-updates
# another comment
Components: main contrib
"""


@pytest.fixture
def apt(tmp_path: Path) -> Path:
    (tmp_path / "sources.list.d").mkdir()
    return tmp_path


def test_the_mirror_in_paragraphs(apt: Path) -> None:
    (apt / "sources.list.d/debian.sources").write_text(DEB822)
    assert mirror.find({}, apt) == "http://mirror.example/debian"


def test_the_mirror_in_lines(apt: Path) -> None:
    (apt / "sources.list").write_text(
        "# deb http://old.example/debian bookworm main\n"
        "deb-src http://sources.example/debian bookworm main\n"
        "deb http://security.example/debian-security bookworm-security main\n"
        "deb [arch=amd64 signed-by=/k.gpg] https://mirror.example/debian trixie main # ours\n"
    )
    assert mirror.find({}, apt) == "https://mirror.example/debian"


def test_a_mirror_that_a_host_could_not_reach_is_passed_over(apt: Path) -> None:
    (apt / "sources.list").write_text(
        "deb file:/srv/debian bookworm main\ndeb http://m.example/debian stable main\n"
    )
    assert mirror.find({}, apt) == "http://m.example/debian"


def test_the_environment_decides(apt: Path) -> None:
    (apt / "sources.list").write_text("deb http://m.example/debian stable main\n")
    environment = {"GPUFLEET_DEBIAN_MIRROR": "http://chosen.example/debian/"}
    assert mirror.find(environment, apt) == "http://chosen.example/debian"


def test_no_mirror_is_an_error_with_a_remedy(apt: Path) -> None:
    (apt / "sources.list").write_text("deb http://ubuntu.example/ubuntu noble main\n")
    with pytest.raises(LabError) as caught:
        mirror.find({}, apt)
    assert "GPUFLEET_DEBIAN_MIRROR" in caught.value.remedy


def test_a_machine_without_a_site_of_its_own_changes_nothing(tmp_path: Path) -> None:
    found = machine.network({"HOME": str(tmp_path), "PIP_CONFIG_FILE": "/dev/null"}, tmp_path)
    assert found.files() == {}


def test_certificates_index_and_proxy_are_taken_over(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/ours.crt").write_text("certificate")
    settings = tmp_path / "pip.conf"
    settings.write_text(
        "[global]\nindex-url = https://pypi.example/simple\nfind-links = /srv/wheels\n"
        "extra-index-url = file:///srv/simple https://extra.example/simple\n"
    )
    environment = {
        "HOME": str(tmp_path),
        "PIP_CONFIG_FILE": str(settings),
        "HTTPS_PROXY": "http://proxy.example:3128",
        "http_proxy": "http://localhost:3128",
    }
    found = machine.network(environment, tmp_path)
    overlay = tmp_path / "overlay"
    found.write(overlay)

    pip = (overlay / "etc/pip.conf").read_text()
    assert "cert = /etc/ssl/certs/ca-certificates.crt" in pip
    assert "index-url = https://pypi.example/simple" in pip
    assert "extra-index-url = https://extra.example/simple\n" in pip
    assert "/srv" not in pip
    uv = (overlay / "etc/uv/uv.toml").read_text()
    assert uv.startswith("system-certs = true\n")
    assert '[[index]]\nurl = "https://pypi.example/simple"\ndefault = true' in uv
    login = (overlay / "etc/environment").read_text()
    assert "https_proxy=http://proxy.example:3128" in login
    assert "localhost" not in login
    apt = (overlay / "etc/apt/apt.conf.d/80proxy").read_text()
    assert apt == 'Acquire::https::Proxy "http://proxy.example:3128";\n'
    copied = overlay / "usr/local/share/ca-certificates/ours.crt"
    assert copied.read_text() == "certificate"
    assert copied.stat().st_mode & 0o777 == 0o644


def test_the_environment_comes_before_pips_files(tmp_path: Path) -> None:
    settings = tmp_path / "pip.conf"
    settings.write_text("[global]\nindex-url = https://file.example/simple\n")
    environment = {"PIP_CONFIG_FILE": str(settings), "PIP_INDEX_URL": "https://env.example/simple"}
    assert machine.network(environment, tmp_path).index_url == "https://env.example/simple"


def test_an_image_is_named_by_all_that_goes_into_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUFLEET_DEBIAN_MIRROR", "http://one.example/debian")
    one = Recipe("bookworm").digest
    assert Recipe("bookworm").digest == one
    assert Recipe("trixie").digest != one
    monkeypatch.setenv("GPUFLEET_DEBIAN_MIRROR", "http://two.example/debian")
    assert Recipe("bookworm").digest != one


def test_a_stand_in_is_another_distribution_on_top_of_a_debian(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GPUFLEET_DEBIAN_MIRROR", "http://one.example/debian")
    jammy, bookworm = Recipe("ubuntu-22.04"), Recipe("bookworm")
    assert (jammy.base, bookworm.base) == ("bookworm", "bookworm")
    assert set(bookworm.packages) < set(jammy.packages)
    assert "ID=ubuntu\n" in jammy.files["usr/lib/os-release"]
    assert jammy.digest != bookworm.digest
    before = jammy.digest
    jammy.files["usr/lib/os-release"] += "VARIANT=server\n"
    assert jammy.digest != before
    assert Recipe("ubuntu-20.04").components == Recipe("bullseye").components
    assert Recipe("rocky-9").script != jammy.script


def test_suites_differ_where_debian_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUFLEET_DEBIAN_MIRROR", "http://one.example/debian")
    assert "non-free-firmware" not in Recipe("bullseye").components
    assert "non-free-firmware" in Recipe("bookworm").components
    assert Recipe("forky").apt_options
    with pytest.raises(LabError, match="potato") as caught:
        Recipe("potato")
    assert "bookworm" in caught.value.remedy
