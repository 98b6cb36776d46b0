"""Programs of another processor: what the lab registers with the kernel, and what it asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import emulation
from lab.errors import LabError
from lab.images import Recipe
from lab.wheels import pinned


@pytest.fixture
def formats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The kernel's list of formats, and an interpreter that is there."""
    interpreter = tmp_path / "qemu"
    interpreter.touch()
    register = tmp_path / "formats"
    register.mkdir()
    (register / "register").touch()
    monkeypatch.setattr(emulation, "FORMATS", register)
    monkeypatch.setattr(emulation, "INTERPRETERS", {"arm64": interpreter})
    return register


def test_the_entry_keeps_the_rights_of_setuid_programs(formats: Path) -> None:
    emulation.ensure("arm64")
    name, kind, offset, magic, mask, interpreter, flags = (
        (formats / "register").read_text().lstrip(":").split(":")
    )
    assert (name, kind, offset, interpreter) == (
        "gpufleet-arm64",
        "M",
        "0",
        str(formats.parent / "qemu"),
    )
    assert {"C", "F"} <= set(flags)
    # The machine in an ELF header; every bit of it counts.
    assert magic.endswith(r"\xb7\x00")
    assert mask.endswith(r"\xff\xff")
    assert magic.count("\\x") + 3 == mask.count("\\x") == 20


def test_an_entry_that_exists_is_left(formats: Path) -> None:
    (formats / "gpufleet-arm64").touch()
    emulation.ensure("arm64")
    assert (formats / "register").read_text() == ""


def test_without_qemu_the_packages_are_named(formats: Path) -> None:
    (formats.parent / "qemu").unlink()
    with pytest.raises(LabError, match="arm64") as caught:
        emulation.ensure("arm64")
    assert "qemu-user-static" in caught.value.remedy


def test_an_arm64_image_is_one_of_its_own() -> None:
    plain, arm64 = Recipe("bookworm"), Recipe("arm64-bookworm")
    assert (plain.arch, arm64.arch) == ("", "arm64")
    assert plain.packages == arm64.packages
    assert plain.digest != arm64.digest


def test_a_wheel_has_its_platform_in_its_name() -> None:
    requirement = "nvidia-cuda-runtime-cu12==12.5.82"
    assert pinned(requirement).platform == "manylinux2014_x86_64"
    assert pinned(requirement, "aarch64").platform == "manylinux2014_aarch64"
    assert pinned(requirement, "aarch64").version == "12.5.82"
