"""The package index: which one, which wheels it has, and reading them in parts."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import pytest

from tests.support.wheel_index import Index
from tools.catalog import index as package_index
from tools.catalog import remote
from tools.catalog.errors import MeasureError

WHEEL = "tensorflow-2.13.1-cp310-cp310-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"


def isolated(**settings: str) -> dict[str, str]:
    """An environment in which nobody set an index, and then these settings."""
    clean = {key: value for key, value in os.environ.items() if key[:3] not in ("UV_", "PIP")}
    return {**clean, "PIP_CONFIG_FILE": os.devnull, **settings}


@pytest.mark.parametrize("name", ["UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"])
def test_the_environment_names_the_index(name: str) -> None:
    for difference in ("https://x.example/simple/", "own=https://x.example/simple"):
        assert package_index.address(isolated(**{name: difference})) == "https://x.example/simple"


def test_pip_files_name_the_index_without_variables(tmp_path: Path) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = https://y.example/simple\n")
    environment = isolated(PIP_CONFIG_FILE=str(config))
    assert package_index.address(environment) == "https://y.example/simple"


def test_the_default_index_is_pypi() -> None:
    assert package_index.address(isolated()) == package_index.DEFAULT


def test_wheels_for_linux_come_by_version_and_python(index: Index) -> None:
    names = (
        WHEEL.replace("cp310", "cp311"),
        WHEEL,
        WHEEL.replace("cp310", "cp39"),
        WHEEL.replace("2.13.1", "2.4.0"),
        "tensorflow-2.13.1-cp310-cp310-win_amd64.whl",
        "tensorflow-2.13.1-cp310-cp310-macosx_12_0_arm64.whl",
        "tensorflow-2.13.1-cp310-cp310-manylinux_2_17_aarch64.manylinux2014_aarch64.whl",
        "tensorflow-2.13.1.tar.gz",
    )
    index.files = dict.fromkeys(names, b"x")
    found = package_index.files("tensorflow", index.address)
    assert [(str(each.version), each.python) for each in found] == [
        ("2.4.0", "3.10"),
        ("2.13.1", "3.9"),
        ("2.13.1", "3.10"),
        ("2.13.1", "3.11"),
    ]
    assert {each.platform for each in found} == {"manylinux_2_17_x86_64.manylinux2014_x86_64"}
    assert all(each.sha256 and len(each.sha256) == 64 for each in found)


def test_a_password_goes_to_the_index_and_into_no_message(index: Index) -> None:
    address = index.address.replace("//", "//me:s%20cret@")
    with pytest.raises(MeasureError) as refusal:
        package_index.files("nothing", address)
    assert "404" in str(refusal.value)
    assert "cret" not in str(refusal.value)
    assert index.passwords == ["Basic bWU6cyBjcmV0"]


def test_an_unreachable_index_is_named() -> None:
    with pytest.raises(MeasureError, match=r"127\.0\.0\.1:9/.*not read"):
        package_index.files("tensorflow", "http://127.0.0.1:9/simple")


@pytest.fixture
def archive(index: Index) -> str:
    """The address of a zip file with a large member before a small one."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as parts:
        parts.writestr("large", os.urandom(8 << 20))
        parts.writestr("small", "difference")
    index.files["a.zip"] = made.getvalue()
    return index.address.replace("simple", "files") + "/a.zip"


def test_only_ranges_that_are_read_are_fetched(index: Index, archive: str) -> None:
    with remote.remote(archive) as stream, zipfile.ZipFile(stream) as parts:
        assert parts.read("small") == b"difference"
    assert len(index.asked) < 6
    assert all(asked for _, asked in index.asked)


def test_a_long_read_takes_few_requests(index: Index, archive: str) -> None:
    with remote.remote(archive) as stream, zipfile.ZipFile(stream) as parts:
        assert len(parts.read("large")) == 8 << 20
    assert len(index.asked) < 14


def test_an_answer_that_ends_too_early_is_reported(index: Index, archive: str) -> None:
    with remote.remote(archive.replace("://", "://me:secret@")) as stream:
        index.files["a.zip"] = b"another"
        with pytest.raises(MeasureError, match="ended too early") as difference:
            stream.read(100)
    assert "secret" not in str(difference.value)


def test_a_server_without_ranges_sends_the_whole_file_once(index: Index, archive: str) -> None:
    index.ranges = False
    with remote.remote(archive) as stream, zipfile.ZipFile(stream) as parts:
        assert parts.read("small") == b"difference"
    assert len(index.asked) == 1
