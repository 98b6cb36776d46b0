"""The rows of the catalog are valid, and each fault names file, row and key."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpufleet.catalog import facts
from gpufleet.cli.main import main
from tests.support import published
from tools.catalog import validation
from tools.catalog.tables import Data, Row, sort_key


def test_the_catalog_is_valid_sorted_and_in_its_form() -> None:
    assert validation.faults(Data(facts.DATA)) == []


def last(data: Data, folder: str) -> Row:
    return max(data.rows(folder), key=sort_key)


FAULTS: dict[str, tuple[Callable[[Data], Any], str]] = {
    "missing": (
        lambda data: last(data, "toolkits").pop("host_gcc"),
        r"toolkits/13\.yml: 13\.\d+\.\d+\.host_gcc is missing, and should be a mapping",
    ),
    "type": (
        lambda data: last(data, "toolkits")["driver"].update(minimum=580),
        r"toolkits/13\.yml: 13\.\d+\.\d+\.driver\.minimum is 580, and should be non-empty text",
    ),
    "misspelled": (
        lambda data: last(data, "cudnn").update(sha265="x"),
        r"cudnn/9\.yml: 9\.[\d.]+\.sha265 is no key of a ArchiveRow",
    ),
    "misspelled inside": (
        lambda data: last(data, "toolkits")["installers"]["linux_x86_64"].update(sha="x"),
        r"toolkits/13\.yml: [\d.]+\.installers\.linux_x86_64\.sha is no key of a File",
    ),
    "checksum": (
        lambda data: last(data, "cudnn").update(sha256="abc"),
        r"cudnn/9\.yml: [\d.]+\.sha256 is abc, and should be 64 hexadecimal digits",
    ),
    "word": (
        lambda data: last(data, "jax").update(cuda_version="unknown"),
        r"jax/[\d.]+\.yml: [\d.]+\.cuda_version is 'unknown', and should be null",
    ),
    "source": (
        lambda data: last(data, "toolkits")["host_gcc"].update(source=["nobody"]),
        r"toolkits/13\.yml: [\d.]+\.source: nobody is not explained in toolkits/meta\.yml",
    ),
    "twice": (
        lambda data: data.rows("pytorch").append(last(data, "pytorch")),
        r"pytorch/2\.15\.yml: 2\.15\.0 is there twice",
    ),
    "version": (
        lambda data: last(data, "toolkits").update(version="thirteen"),
        r"toolkits/thirteen\.yml: thirteen\.version is no version number",
    ),
    "python": (
        lambda data: last(data, "tensorflow")["ceilings_needed_today"].update(
            by_python={"3.1": ["numpy<2"]}
        ),
        r"tensorflow/2\.22\.yml: .*ceilings_needed_today: there is no wheel for Python 3\.1",
    ),
    "branch": (
        lambda data: data.document("drivers.yml")["branches"][-1].update(type="XX"),
        r"drivers\.yml: \d+\.type is 'XX', and should be one of PB, NFB, LTS, LTSB",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_names_file_row_and_key(tmp_path: Path, name: str) -> None:
    damage, expected = FAULTS[name]
    data = Data(published.copy_of_data(tmp_path))
    damage(data)
    faults = validation.row_faults(data)
    assert len(faults) == 1
    assert re.search(expected, faults[0]), faults


@pytest.mark.costly
def test_rows_in_another_order_are_reported_and_sorted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = published.copy_of_data(tmp_path)
    monkeypatch.setattr(facts, "DATA", copied)
    path = copied / "toolkits" / "12.yml"
    whole = path.read_text()
    head, first, second, rest = whole.split("  - version: ", 3)
    path.write_text("  - version: ".join((head, second, first, rest)))
    assert main(["catalog", "check", "--rows"]) == 1
    assert "toolkits/12.yml is not in the catalog's form" in capsys.readouterr().err
    assert main(["catalog", "check", "--sort"]) == 0
    assert path.read_text() == whole
