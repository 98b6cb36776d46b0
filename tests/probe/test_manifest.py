"""Manifests and packages' records against what is on disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpufleet.probe.manifest import compare_manifest, compare_records, manifest_of, recorded_files
from tests.support.planted_host import put


def test_a_manifest_is_of_real_paths_and_knows_libraries_by_content(root: Path) -> None:
    toolkit = root / "usr/local/cuda-11.8"
    manifest = manifest_of(str(toolkit), ["lib64/libcudnn.so.8", "lib64/libcudnn.so.8.6.0",
                                                "include"])
    by_path = {entry["path"]: entry for entry in manifest}
    library = "targets/x86_64-linux/lib/libcudnn.so.8.6.0"
    assert list(by_path) == ["include/cudnn_version.h",
                             "targets/x86_64-linux/lib/libcudnn.so.8", library]
    assert by_path["targets/x86_64-linux/lib/libcudnn.so.8"] == {
        "path": "targets/x86_64-linux/lib/libcudnn.so.8", "type": "link",
        "target": "libcudnn.so.8.6.0"}
    assert len(by_path[library]["sha256"]) == 64
    assert by_path["include/cudnn_version.h"]["sha256"] is None
    assert by_path["include/cudnn_version.h"]["mode"] == "0644"


def test_a_manifest_does_not_leave_its_root(root: Path) -> None:
    with pytest.raises(ValueError, match="leads out"):
        manifest_of(str(root / "usr/local/cuda-11.8"), ["../cuda"])


def test_each_kind_of_change_is_named(root: Path) -> None:
    toolkit = root / "usr/local/cuda-11.8"
    library = toolkit / "lib64/libcudnn.so.8.6.0"

    def changed(deep: bool = False) -> dict[str, str]:
        found = compare_manifest(str(toolkit), manifest, deep)
        return {Path(entry["path"]).name: entry["what"] for entry in found}

    manifest = manifest_of(str(toolkit), ["lib64/libcudnn.so.8.6.0", "lib64/libcudnn.so.8",
                                                "lib64/libcudnn.so", "version.json", "bin/nvcc"])
    assert changed(deep=True) == {}
    before = library.stat()
    content = bytearray(library.read_bytes())
    content[-1] ^= 1
    library.write_bytes(content)
    os.utime(library, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert changed() == {}
    assert changed(deep=True) == {"libcudnn.so.8.6.0": "sha256"}
    (toolkit / "version.json").unlink()
    (toolkit / "bin/nvcc").chmod(0o700)
    (toolkit / "lib64/libcudnn.so").unlink()
    (toolkit / "lib64/libcudnn.so").write_bytes(content)
    (toolkit / "lib64/libcudnn.so.8").unlink()
    (toolkit / "lib64/libcudnn.so.8").symlink_to("elsewhere")
    os.utime(library, (0, 0))
    assert changed() == {"version.json": "missing", "nvcc": "mode", "libcudnn.so": "type",
                         "libcudnn.so.8": "target", "libcudnn.so.8.6.0": "mtime"}


def test_packages_vouch_for_their_own_files(tmp_path: Path) -> None:
    site = tmp_path / "lib/python3.11/site-packages"
    for name in ("keras", "mine"):
        put(site, f"{name}/core.py", "x = 1\n")
        put(site, f"{name}/gone.py", "x = 1\n")
        put(site, f"{name}-1.0.dist-info/RECORD",
            f"{name}/core.py,sha256=AAAA,6\n{name}/gone.py,,6\n{name}-1.0.dist-info/RECORD,,\n")
        (site / name / "gone.py").unlink()
    gone = {"path": "lib/python3.11/site-packages/keras/gone.py", "what": "missing"}
    files = recorded_files(str(tmp_path), {"keras": "1.0"})
    assert compare_records(str(tmp_path), files) == [gone]
    deep = compare_records(str(tmp_path), files, deep=True)
    assert deep == [{"path": "lib/python3.11/site-packages/keras/core.py", "what": "sha256"}, gone]
    put(site, "keras/core.py", "x = 11\n")
    assert compare_records(str(tmp_path), files)[0]["what"] == "size"
