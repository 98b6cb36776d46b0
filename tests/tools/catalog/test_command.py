"""`gpufleet catalog check` against an index on this machine and against the real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpufleet.cli.main import main
from tests.support.wheel_index import Index, modern, wheel_file
from tools.catalog import compare, index, measurement, record

NAME = "tensorflow-2.13.1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
# One of each era, with the largest library to read, in MiB: linked to CUDA; opened while it runs;
# with CUDA from pip; CUDA within the wheel; a plugin.
SAMPLE = [
    ("tensorflow", "1.4.0", 200),
    ("tensorflow", "2.13.1", 50),
    ("tensorflow", "2.18.1", 100),
    pytest.param("pytorch", "1.11.0", 60, marks=pytest.mark.slow),
    pytest.param("pytorch", "2.6.0", 60, marks=pytest.mark.slow),
    ("jax", "0.5.3", 60),
]


@pytest.fixture
def recorded(tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this run records; it asks the index on this machine."""
    monkeypatch.setattr(record, "DIRECTORY", tmp_path / "measured")
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.address)
    return tmp_path / "measured" / "tensorflow.yml"


@pytest.mark.costly
def test_check_reports_and_records_a_wheel_that_contradicts(
    tmp_path: Path, index: Index, recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index.files[NAME] = modern(tmp_path / NAME).read_bytes()
    assert main(["catalog", "check", "--tensorflow", "2.13.1"]) == 1
    output = capsys.readouterr().out
    assert "TensorFlow 2.13.1: " in output
    assert "sonames: the plan has libcufft.so.10, the wheel does not" in output
    assert "Python: the plan says 3.10, 3.8, 3.9, the wheel does not" in output
    row = record.load("tensorflow")["2.13.1"]
    assert (row["wheel"], row["cuda"]) == (NAME, "11.8")
    assert "# TensorFlow's wheels, as measured" in recorded.read_text()


@pytest.mark.costly
def test_check_records_a_release_that_is_not_on_the_index(
    tmp_path: Path, index: Index, recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index.files[NAME] = modern(tmp_path / NAME).read_bytes()
    assert main(["catalog", "check", "--tensorflow", "2.14.0"]) == 0
    assert record.load("tensorflow")["2.14.0"]["absent"] == "tensorflow 2.14.0 is not on the index"
    assert "not on the index" in capsys.readouterr().out
    assert recorded.exists()


@pytest.mark.costly
def test_check_reports_an_unreadable_wheel_and_records_nothing(
    index: Index, recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index.files[NAME] = b"no wheel at all"
    assert main(["catalog", "check", "--tensorflow", "2.13.1"]) == 3
    assert "could not be measured" in capsys.readouterr().out
    assert not recorded.exists()


@pytest.mark.costly
def test_check_reads_the_cuda_of_jax_in_its_plugin(
    tmp_path: Path, index: Index, recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "jax_cuda12_plugin-0.5.3-cp312-cp312-manylinux2014_x86_64.whl"
    metadata = (
        "Metadata-Version: 2.1\nName: jax-cuda12-plugin\nVersion: 0.5.3\n"
        "Requires-Dist: nvidia-cublas-cu12>=1; extra == 'with-cuda'\n"
    )
    index.files[name] = wheel_file(
        tmp_path / name, {"jax_cuda12_plugin-0.5.3.dist-info/METADATA": metadata}
    ).read_bytes()
    assert main(["catalog", "check", "--jax", "0.5.3"]) == 1
    output = capsys.readouterr().out
    assert "Python: the plan says 3.10, 3.11, 3.13, the wheel does not" in output
    assert record.load("jax")["0.5.3"]["wheel"] == name
    assert not recorded.exists()


def test_check_refuses_an_unknown_release(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["catalog", "check", "--tensorflow", "3.99.0"]) == 4
    assert "No TensorFlow GPU release: 3.99.0" in capsys.readouterr().err


@pytest.mark.costly
@pytest.mark.parametrize(("framework", "version", "largest"), SAMPLE)
def test_the_plan_agrees_with_the_real_wheel(framework: str, version: str, largest: int) -> None:
    row = measurement.measure(framework, version, index.address(), largest << 20)
    assert "absent" not in row
    assert compare.differences(compare.expected(framework, version), row) == []
    assert row["linked"] or row["opened"] or row["sass"]
    recorded = record.load(framework)[version]
    assert {key: row[key] for key in ("sha256", "pins", "sass")} == {
        key: recorded[key] for key in ("sha256", "pins", "sass")
    }
    assert set(row["linked"]) <= set(recorded["linked"])
