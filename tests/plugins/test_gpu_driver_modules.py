"""Building the driver's modules: what the module reports to the role, and what DKMS is asked for."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from gpufleet.on_host.host import Host
from tests.support.ansible_modules import load
from tests.support.planted_host import put


@pytest.mark.parametrize(
    ("drivers", "cards"),
    [
        ((), 0),
        ((None, "nvidia"), 2),
        (("vfio-pci", "nvidia"), 1),
        (("vfio-pci", "vfio-pci"), 0),
        (("pci-stub", "xen-pciback", "nvgrace_gpu_vfio_pci", "nouveau"), 1),
    ],
)
def test_cards_given_to_virtual_machines_are_not_counted(
    tmp_path: Path, drivers: tuple[str | None, ...], cards: int
) -> None:
    """The role starts the persistence daemon by this number, which fails without a card."""
    for at, driver in enumerate(drivers):
        place = f"sys/bus/pci/devices/0000:0{at}:00.0"
        for name, text in (("vendor", "0x10de"), ("device", "0x2330"), ("class", "0x030200")):
            put(tmp_path, f"{place}/{name}", text)
        if driver:
            (tmp_path / place / "driver").symlink_to(f"/sys/bus/pci/drivers/{driver}")
    module = load("gpu_driver_modules")
    assert module.own_cards(Host({"root": str(tmp_path), "mode": "full"})) == cards


KERNEL, VERSION = "5.15.0-91-generic", "535.261.03"
TREE = f"var/lib/dkms/nvidia/{VERSION}"
BUILT = f"{TREE}/{KERNEL}/x86_64/module/nvidia.ko"
LINK = f"var/lib/dkms/nvidia/kernel-{KERNEL}-x86_64"
INSTALLED = f"lib/modules/{KERNEL}/updates/dkms/nvidia.ko"
WHOLE = "a module that is whole"

# The descriptor of the host's lock.
LOCK = 7


class OldDkms:
    """DKMS 2.8, which keeps what is built or installed already, whatever --force says."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.params = {"version": VERSION}
        self.verbs: list[str] = []

    def get_bin_path(self, name: str, required: bool = False) -> str:
        return name

    def run_command(self, words: list[str], pass_fds: list[int]) -> tuple[int, str, str]:
        # A build goes on where the module is killed.
        assert pass_fds == [LOCK]
        assert words[0] == "dkms"
        assert f"nvidia/{VERSION}" in words
        assert words[-2:] == ["-k", KERNEL]
        self.verbs.append(words[1])
        built, link = self.root / BUILT, self.root / LINK
        installed = built.exists() and link.is_symlink()
        if words[1] == "uninstall":
            if not installed:
                return 4, "", "The module is not currently installed."
            target = self.root / INSTALLED
            if target.exists() and target.read_bytes() == built.read_bytes():
                target.unlink()
            link.unlink()
        elif not installed:
            if not built.exists():
                if built.parent.parent.exists():
                    return 3, "", "This module/version has already been built."
                put(self.root, BUILT, WHOLE)
            put(self.root, INSTALLED, built.read_text())
            link.unlink(missing_ok=True)
            link.symlink_to(f"{VERSION}/{KERNEL}/x86_64")
        return 0, "", ""


@pytest.mark.parametrize("installed", ["", "cut", None])
@pytest.mark.parametrize("built", ["", "cut", WHOLE, None])
@pytest.mark.parametrize("marked", [True, False])
def test_dkms_2_8_builds_what_is_damaged_and_installs_what_is_gone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    installed: str | None,
    built: str | None,
    marked: bool,
) -> None:
    """A loss of power damages the build that DKMS keeps, what is installed, or both.

    Without a mark a run was killed between its steps.
    """
    put(tmp_path, f"usr/src/nvidia-{VERSION}/dkms.conf")
    (tmp_path / TREE / KERNEL / "x86_64/module").mkdir(parents=True)
    (tmp_path / TREE / "source").symlink_to(f"/usr/src/nvidia-{VERSION}")
    if built is not None:
        put(tmp_path, BUILT, built)
    if marked:
        (tmp_path / LINK).symlink_to(f"{VERSION}/{KERNEL}/x86_64")
    if installed is not None:
        put(tmp_path, INSTALLED, installed)
    module, dkms = load("gpu_driver_modules"), OldDkms(tmp_path)
    helpers = importlib.import_module(module.has_whole_build.__module__)
    monkeypatch.setattr(
        helpers, "damage", lambda path: None if Path(path).read_text() == WHOLE else "it is cut off"
    )
    row = {"name": "nvidia", "path": "nvidia.ko", "error": "it is empty"}
    modules = module.Modules.__new__(module.Modules)
    vars(modules).update(
        module=dkms,
        params=dkms.params,
        dnf=False,
        host=Host({"root": str(tmp_path), "mode": "full"}),
        kernels={KERNEL: {"headers": True, "modules": [] if installed is None else [row]}},
    )
    modules.build(KERNEL, LOCK)
    assert (tmp_path / INSTALLED).read_text() == WHOLE
    assert (tmp_path / LINK).is_symlink()
    assert dkms.verbs == ["uninstall"] * marked + ["install"]
