"""The remains of a killed `dkms add` are removed, and nothing else of DKMS's tree."""

from __future__ import annotations

from pathlib import Path

from tests.support.planted_host import put

from ansible_collections.gpufleet.gpu.plugins.module_utils import dkms  # isort: skip


def test_a_version_without_its_source_goes_and_all_others_stay(tmp_path: Path) -> None:
    for name in ("nvidia/580.65.06/build", "nvidia/570.124.06/build", "nvidia-open/595.58.03",
                 "nvidia/original_module", "zfs/2.1.0/build"):  # fmt: skip
        (tmp_path / name).mkdir(parents=True)
    # Its package is gone, perhaps only for now: dangling.
    (tmp_path / "nvidia/570.124.06/source").symlink_to("/usr/src/nvidia-570.124.06")
    (tmp_path / "nvidia/kernel-6.1.0-amd64").symlink_to("570.124.06/6.1.0-amd64")
    dkms.remove_half_added(str(tmp_path))
    assert sorted(path.name for path in (tmp_path / "nvidia").iterdir()) == [
        "570.124.06", "kernel-6.1.0-amd64", "original_module"]  # fmt: skip
    assert not list((tmp_path / "nvidia-open").iterdir())
    assert (tmp_path / "zfs/2.1.0/build").is_dir()


def test_a_build_is_forgotten_with_its_mark_and_no_other(tmp_path: Path) -> None:
    for kernel in ("6.1.0", "6.2.0"):
        put(tmp_path, f"nvidia/580.65.06/{kernel}/x86_64/module/nvidia.ko")
        (tmp_path / f"nvidia/kernel-{kernel}-x86_64").symlink_to(f"580.65.06/{kernel}/x86_64")
    (tmp_path / "nvidia/580.65.06/source").symlink_to("/usr/src/nvidia-580.65.06")
    dkms.forget_build("nvidia", "580.65.06", "6.1.0", str(tmp_path))
    assert sorted(path.name for path in (tmp_path / "nvidia").iterdir()) == [
        "580.65.06", "kernel-6.2.0-x86_64"]  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "nvidia/580.65.06").iterdir()) == [
        "6.2.0", "source"]  # fmt: skip
    # The driver that is installed for the kernel is of another version.
    dkms.forget_build("nvidia", "570.124.06", "6.2.0", str(tmp_path))
    assert (tmp_path / "nvidia/kernel-6.2.0-x86_64").is_symlink()
