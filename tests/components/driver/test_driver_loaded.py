"""The loaded driver, which gpufleet does not manage, against the GPUs of the host."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.components.resolver import resolve
from tests.support.host_documents import declaration, gpu_host


@pytest.mark.parametrize(
    ("version", "devices", "last"),
    [
        ("595.58.03", ("1db1",), "580"),  # Tesla V100
        ("590.48.01", ("15f8",), "580"),  # Tesla P100
        ("615.71.10", ("1b80", "1db1"), "580"),  # GeForce GTX 1080
        ("495.46", ("102d",), "470"),  # Tesla K80
        ("580.105.08", ("1db1",), None),
        ("595.58.03", ("20b0",), None),  # A100
    ],
)
@pytest.mark.parametrize("source", [{}, {"gpu_driver": {"source": "preinstalled"}}])
def test_a_loaded_driver_whose_branch_ended_for_the_gpus(
    version: str, devices: tuple[str, ...], last: str | None, source: dict[str, Any]
) -> None:
    loaded = {"loaded": version, "library": version, "on_disk": version, "modules": ["nvidia"]}
    host = gpu_host("ubuntu-24.04", *devices, driver=loaded)
    found = resolve(declaration({"pytorch": "1.13.1", "python": "3.11"}, **source), host)
    ours = [each for each in found["problems"] if "the last branch that does" in each["message"]]
    assert len(ours) == (len(devices) if last else 0), found["problems"]
    for each in ours:
        assert each["message"].endswith(f"the last branch that does is {last}")
        assert f"install driver branch {last}" in each["remedy"]


def test_an_old_card_beside_another_is_a_note() -> None:
    version = "595.58.03"
    loaded = {"loaded": version, "library": version, "on_disk": version, "modules": ["nvidia"]}
    host = gpu_host("ubuntu-24.04", "1db1", "20b0", driver=loaded)
    found = resolve(declaration({"pytorch": "2.6.0"}), host)
    assert found["problems"] == []
    assert any("does not support Tesla V100" in note for note in found["notes"])
