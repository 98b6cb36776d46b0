"""The probe over planted trees: what it reads, what it makes of traps, and that it survives."""

from __future__ import annotations

import ast
import itertools
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpufleet.probe import constants, payload, runner
from gpufleet.probe.constants import FRAMEWORK_MARK
from gpufleet.probe.elf import elf_dynamic
from gpufleet.probe.host import DEFAULTS, Host
from gpufleet.probe.linker_cache import linker_cache, parse_linker_cache
from gpufleet.probe.manifest import compare_manifest, compare_records, manifest_of, recorded_files
from gpufleet.probe.processes import in_child
from gpufleet.probe.runner import COMPUTING, SECTIONS, probe
from gpufleet.probe.sections.receipts import unrecorded
from gpufleet.probe.sections.stacks import start_interpreter
from gpufleet.probe.text import last_lines
from gpufleet.probe.venvs import start_hooks
from gpufleet.probe.workload_run import FRAMEWORK_SILENT, write_script
from gpufleet.resolver import environment, resolve
from gpufleet.workload import loaded, output
from tests.support.elf_file import shared_library

LIB = "usr/local/cuda-11.8/targets/x86_64-linux/lib"


def put(root: Path, name: str, text: str = "", mode: int = 0o644) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host's tree with a CUDA 11.8 that holds cuDNN 8.6."""
    put(tmp_path, "etc/os-release", 'ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\n')
    put(tmp_path, "proc/uptime", "86400.5 1.0\n")
    put(tmp_path, "proc/modules", "ext4 1 0\n")
    toolkit = tmp_path / "usr/local/cuda-11.8"
    put(toolkit, "version.json", '{"cuda": {"name": "CUDA SDK", "version": "11.8.20220929"}}')
    put(toolkit, "bin/nvcc", "#!/bin/sh\necho 'release 11.8, V11.8.89'\n", 0o755)
    shared_library(tmp_path / LIB / "libcudart.so.11.8.89", "libcudart.so.11.0")
    shared_library(tmp_path / LIB / "libcudnn.so.8.6.0", "libcudnn.so.8")
    (tmp_path / LIB / "libcudnn.so.8").symlink_to("libcudnn.so.8.6.0")
    (tmp_path / LIB / "libcudnn.so").symlink_to("libcudnn.so.8")
    (toolkit / "lib64").symlink_to("targets/x86_64-linux/lib")
    put(toolkit, "include/cudnn_version.h",
        "#define CUDNN_MAJOR 8\n#define CUDNN_MINOR 6\n#define CUDNN_PATCHLEVEL 0\n")
    (tmp_path / "usr/local/cuda").symlink_to("cuda-11.8")
    (tmp_path / "tmp").mkdir()
    return tmp_path


def look(root: Path, **config: Any) -> dict[str, Any]:
    """The snapshot of a planted tree, its data by section."""
    found: dict[str, Any] = probe({"root": str(root), "deadline_s": 10, **config})
    assert {name: s["error"] for name, s in found["sections"].items() if s["state"] != "ok"} == {}
    return {name: section["data"] for name, section in found["sections"].items()}


# -- ELF ------------------------------------------------------------------------------------------


def test_of_many_words_the_last_lines_are_kept_whole() -> None:
    said = "first line\nsecond line\nthird line\n"
    assert last_lines(said, 100) == said.strip()
    assert last_lines(said, 15) == "third line"
    assert last_lines("one endless line", 4) == "line"


def test_elf_names_itself_and_what_it_needs(tmp_path: Path) -> None:
    path = shared_library(tmp_path / "libx.so.1", "libx.so.1", ("libc.so.6", "libm.so.6"))
    assert elf_dynamic(path) == {
        "soname": "libx.so.1", "needed": ["libc.so.6", "libm.so.6"]}


def test_elf_reads_a_real_library() -> None:
    import _ctypes  # noqa: PLC0415

    place = getattr(_ctypes, "__file__", None) or sys.executable
    assert any(name.startswith("libc.so") for name in elf_dynamic(place)["needed"])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty file"),
        (b"<!DOCTYPE html><html>Please log in</html>", "web page"),
        (b"libcudnn.so.8.6.0\n", "a text file"),
        (bytes(range(256)), "invalid ELF header"),
        (b"\x7fELF\x02\x01", "truncated"),
    ],
)
def test_what_is_no_library_says_why(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "libcudnn.so.8"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=reason):
        elf_dynamic(path)


def test_a_library_cut_off_anywhere_says_so(tmp_path: Path) -> None:
    whole = shared_library(tmp_path / "libx.so", "libx.so").read_bytes()
    cut = tmp_path / "cut.so"
    for length in range(4, len(whole)):
        cut.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="truncated"):
            elf_dynamic(cut)


# -- manifests and receipts -----------------------------------------------------------------------


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


def test_what_stands_in_the_places_of_small_files_is_told_by_its_checksum(root: Path) -> None:
    wishes = {
        "gpu_stacks": [{"tensorflow": "2.13.1", "environment": {"TF_CPP_MIN_LOG_LEVEL": 1}}],
        "gpu_accept_nvidia_eula": True, "gpu_profile": True, "gpu_jupyter_kernels": True,
    }
    rows = resolve(wishes)["environment"]
    for row in rows:
        put(root, row["path"].lstrip("/"), row["text"])
    put(root, "etc/profile.d/other.sh")
    (root / "opt/gpufleet/modulefiles/cuda/directory").mkdir()
    assert look(root)["receipts"]["texts"] == {
        **environment.digests(rows), "/opt/gpufleet/modulefiles/cuda/directory": "",
    }


def test_receipts_are_summed_up_and_what_is_unreadable_is_said(root: Path) -> None:
    toolkit = root / "usr/local/cuda-11.8"
    manifest = manifest_of(str(toolkit), ["version.json", "bin/nvcc"])
    state = "var/lib/gpufleet/"
    put(root, state + "receipts/toolkit-11.8.json", json.dumps(
        {"schema": 1, "kind": "toolkit", "id": "11.8", "path": "/usr/local/cuda-11.8",
         "version": "11.8.0", "manifest": manifest}))
    put(root, state + "receipts/cudnn-11.8-8.json", '{"kind":')
    put(root, state + "receipts/.cudnn-11.8-8.json.partial", "half")
    put(root, state + "journal/stack-x.json",
        '{"schema": 1, "kind": "stack", "id": "x", "path": "/x", "state": "installing"}')
    (toolkit / "version.json").unlink()
    found = look(root)["receipts"]
    assert found["receipts"] == [
        {"schema": 1, "kind": "toolkit", "id": "11.8", "path": "/usr/local/cuda-11.8",
         "version": "11.8.0", "files": 2,
         "changed": [{"path": "version.json", "what": "missing"}], "libraries": [],
         "unlisted": [f"/{LIB}/libcudart.so.11.8.89"], "exposed": []}]
    assert [entry["id"] for entry in found["journal"]] == ["x"]
    assert [entry["path"] for entry in found["unreadable"]] == [
        "/var/lib/gpufleet/receipts/cudnn-11.8-8.json"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"schema": 99}, "its schema is 99"), ({"manifest": "zzz"}, "no manifest"),
     ({"id": "12.5"}, "it is of toolkit 12.5"),
     ({"path": 5}, "no path"), ({"manifest": [{"path": "a"}]}, "manifest is damaged")],
)
def test_a_receipt_that_proves_nothing_is_unreadable(
    root: Path, change: dict[str, Any], reason: str
) -> None:
    good = {"schema": 1, "kind": "toolkit", "id": "11.8", "path": "/usr/local/cuda-11.8",
            "version": "11.8.0", "manifest": []}
    put(root, "var/lib/gpufleet/receipts/toolkit-11.8.json", json.dumps({**good, **change}))
    put(root, "var/lib/gpufleet/journal/stack-x.json",
        '{"schema": 1, "kind": "stack", "id": "x", "path": "/x"}')
    os.mkfifo(root / "var/lib/gpufleet/receipts/pipe.json")
    found = look(root)["receipts"]
    assert found["receipts"] == found["journal"] == []
    errors = [entry["error"] for entry in found["unreadable"]]
    assert (errors[0], errors[2]) == ("it is no file", "it has no state")
    assert reason in errors[1]


def test_what_others_could_exchange_is_told(root: Path) -> None:
    toolkit = root / "usr/local/cuda-11.8"
    lib = f"/{LIB}"

    def receipt() -> dict[str, Any]:
        found: dict[str, Any] = look(root)["receipts"]["receipts"][0]
        return found

    put(root, "var/lib/gpufleet/receipts/toolkit-11.8.json", json.dumps(
        {"schema": 1, "kind": "toolkit", "id": "11.8", "path": "/usr/local/cuda-11.8",
         "version": "11.8.0", "manifest": manifest_of(
             str(toolkit), ["version.json", "bin/nvcc", "lib64/libcudart.so.11.8.89"])}))
    healthy = receipt()
    assert (healthy["exposed"], healthy["unlisted"]) == ([], [])
    assert healthy["libraries"] == [f"{lib}/libcudart.so.11.8.89"]
    (root / "usr").chmod(0o757)
    (toolkit / "version.json").chmod(0o646)
    # A directory that all share, and where none can touch what is another's.
    (root / "usr/local").chmod(0o1777)
    put(root, "proc/self/mountinfo",
        f"36 25 0:31 / / rw - ext4 /dev/sda rw\n37 36 0:32 / {lib} rw - tmpfs tmpfs rw\n")
    # Preferred by the linker on a processor that has what it asks for.
    shared_library(root / LIB / "glibc-hwcaps/x86-64-v3/libcublas.so.11", "libcublas.so.11")
    found = receipt()
    assert found["exposed"] == [
        {"path": "/usr", "what": "mode 0757, others can write"},
        {"path": lib, "what": "something is mounted over it"},
        {"path": "/usr/local/cuda-11.8/version.json", "what": "mode 0646, others can write"}]
    assert found["unlisted"] == [f"{lib}/glibc-hwcaps/x86-64-v3/libcublas.so.11"]


def test_code_that_no_record_lists_is_told(tmp_path: Path) -> None:
    site = "lib/python3.11/site-packages/"
    put(tmp_path, site + "x-1.dist-info/RECORD", "x/a.py,sha256=z,1\nx/b/c.so,,2\n../../bin/x,,3\n")
    put(tmp_path, site + "theirs-1.dist-info/RECORD", "x/theirs.py,,1\ntheirs/a.py,,1\n")
    for name in ("x/a.py", "x/b/c.so", "x/theirs.py", "x/data.txt", "theirs/more.py", "x/new.py",
                 "x/__pycache__/a.pyc"):
        put(tmp_path, site + name)
    found = unrecorded(Host({}), str(tmp_path), {"x": "1"})
    assert found == [str(tmp_path / site / "x/new.py")]


def test_every_place_of_the_linkers_is_searched(root: Path) -> None:
    conf = "etc/ld.so.conf.d/"
    put(root, "etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n")
    put(root, conf + "cuda.conf", "/usr/local/cuda-11.8/lib64\n")
    place = "usr/lib/x86_64-linux-gnu"
    shared_library(root / place / "glibc-hwcaps/x86-64-v3/libx.so.1", "libx.so.1")
    shared_library(root / place / "glibc-hwcaps/x86-64-v3/libcublas.so.11.4", "libcublas.so.11")
    found = {row["path"]: row["soname"] for row in look(root)["linker"]["providers"]}
    assert found[f"/{place}/glibc-hwcaps/x86-64-v3/libcublas.so.11.4"] == "libcublas.so.11"
    assert set(found.values()) == {"libcublas.so.11", "libcudart.so.11.0", "libcudnn.so.8"}


def test_a_stack_is_started_as_people_start_it(tmp_path: Path) -> None:
    venv = tmp_path / "stack"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    site = next(venv.glob("lib/python3*/site-packages"))
    host = Host({})
    assert start_interpreter(host, str(venv)) == {
        "python": "{}.{}.{}".format(*sys.version_info[:3]), "prefix": str(venv), "strange": [],
        "error": None}
    other = tmp_path / "other/site-packages"
    other.mkdir(parents=True)
    # At the end of the way it shadows nothing, as after `pip install --editable`.
    (site / "end.pth").write_text(f"{other}\n")
    assert (start_interpreter(host, str(venv))["strange"], start_hooks(host, str(venv))) == ([], [])
    (site / "first.pth").write_text(f"import sys; sys.path.insert(0, {str(other)!r})\n")
    assert start_interpreter(host, str(venv))["strange"] == [str(other)]
    assert start_hooks(host, str(venv)) == [str(site / "first.pth")]


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


def test_what_users_cannot_pass_is_named_once(root: Path) -> None:
    (root / "usr/local/cuda-11.8").chmod(0o700)
    found = look(root)
    closed = [{"path": "/usr/local/cuda-11.8", "mode": "0700"}]
    assert found["toolkits"]["trees"][0]["closed"] == closed
    assert found["cudnn"]["trees"][0]["closed"] == closed
    (root / "usr/local/cuda-11.8").chmod(0o755)
    (root / LIB / "libcudnn.so.8.6.0").chmod(0o600)
    found = look(root)
    assert found["toolkits"]["trees"][0]["closed"] == []
    assert found["cudnn"]["trees"][0]["closed"] == [
        {"path": f"/{LIB}/libcudnn.so.8.6.0", "mode": "0600"}]


def test_a_login_that_ends_early_is_not_an_empty_one(root: Path) -> None:
    put(root, "etc/profile.d/zz.sh", "exit 0\n")
    section = probe({"root": str(root), "deadline_s": 10})["sections"]["environment"]
    assert section["state"] == "error"
    assert "ended (status 0) before" in section["error"]


def test_a_login_that_hangs_is_hung(root: Path) -> None:
    put(root, "etc/profile.d/zz.sh", "sleep 99\n")
    section = probe({"root": str(root), "deadline_s": 2})["sections"]["environment"]
    assert section["state"] == "hung"


def test_what_variables_lead_to_is_looked_at(root: Path) -> None:
    shared_library(root / "opt/bbb/libcudnn.so.8", "libcudnn.so.8")
    shared_library(root / "opt/x.so", "libcudart.so.11.0")
    put(root, "etc/environment", "LD_LIBRARY_PATH=/opt/bbb\n")
    put(root, "etc/ld.so.preload", "/opt/x.so\n")
    assert look(root)["environment"]["offers"] == {
        "/opt/bbb": ["libcudnn.so.8"], "/opt/x.so": ["libcudart.so.11.0"]}


def test_the_linker_of_tomorrow_is_foreseen(root: Path) -> None:
    put(root, "etc/ld.so.conf", "include ld.so.conf.d/*.conf\n")
    put(root, "etc/ld.so.conf.d/000.conf", "/opt/aaa\n")
    put(root, "etc/ld.so.conf.d/gpufleet-cuda.conf", "/usr/local/cuda-11.8/lib64\n")
    shared_library(root / "opt/aaa/libcudnn.so.8", "libcudnn.so.8")
    put(root, "etc/ld.so.cache", "cut short")
    found = look(root)["linker"]
    assert {e["soname"]: e["path"] for e in found["offered"]} == {
        "libcudnn.so.8": "/opt/aaa/libcudnn.so.8",
        "libcudart.so.11.0": "/usr/local/cuda-11.8/lib64/libcudart.so.11.8.89"}
    assert found["cache_error"].startswith("/etc/ld.so.cache is damaged")


def test_a_name_that_is_no_utf8_stays_legible(root: Path) -> None:
    (root / os.fsdecode(f"{LIB}/libcudnn_\udcff.so.8".encode("utf-8", "surrogateescape"))).touch()
    libraries = look(root)["cudnn"]["trees"][0]["libraries"]
    assert f"/{LIB}/libcudnn_?.so.8" in [library["path"] for library in libraries]


def test_a_full_tmp_does_not_keep_a_framework_from_running(root: Path) -> None:
    host = Host({"tmpdir": "/proc/no", "matmul": "x"})
    home, script = write_script(host)
    assert Path(script).read_text(encoding="utf-8") == "x"
    shutil.rmtree(home)


# -- sections -------------------------------------------------------------------------------------


def test_a_toolkit_is_described_from_its_own_files(root: Path) -> None:
    found = look(root)["toolkits"]
    assert found["trees"] == [
        {"path": "/usr/local/cuda-11.8", "short": "11.8", "version": "11.8.20220929",
         "version_source": "version.json", "nvcc": "11.8.89", "nvcc_error": None,
         "cudart": ["11.8.89"], "receipt": False, "realpath": "/usr/local/cuda-11.8",
         "closed": [], "headers": []}]
    assert found["default"] == {"path": "/usr/local/cuda", "state": "link", "target": "cuda-11.8",
                                "realpath": "/usr/local/cuda-11.8"}


def test_an_old_toolkit_has_a_version_txt_and_a_broken_nvcc_says_why(root: Path) -> None:
    old = root / "usr/local/cuda-8.0"
    put(old, "version.txt", "CUDA Version 8.0.61\nCUDA Patch Version 8.0.61.2\n")
    put(old, "bin/nvcc", "#!/bin/sh\necho 'libfoo.so: cannot open' >&2; exit 127\n", 0o755)
    tree = look(root)["toolkits"]["trees"][0]
    assert (tree["version"], tree["version_source"]) == ("8.0.61", "version.txt")
    assert tree["nvcc_error"] == "libfoo.so: cannot open"


def test_a_default_link_to_nowhere(root: Path) -> None:
    (root / "usr/local/cuda").unlink()
    (root / "usr/local/cuda").symlink_to("cuda-12.9")
    found = look(root)["toolkits"]["default"]
    assert (found["state"], found["target"], found["realpath"]) == ("link", "cuda-12.9", None)


def test_cudnn_is_described_link_by_link(root: Path) -> None:
    tree = look(root)["cudnn"]["trees"][0]
    place = f"/{LIB}"
    assert tree["headers"] == [
        {"path": "/usr/local/cuda-11.8/include/cudnn_version.h", "mode": "0644",
         "version": "8.6.0"}]
    assert [(x["path"], x["soname"], x["error"]) for x in tree["libraries"]] == [
        (f"{place}/libcudnn.so.8.6.0", "libcudnn.so.8", None)]
    assert {(x["path"], x["target"], x["exists"]) for x in tree["links"]} == {
        (f"{place}/libcudnn.so", "libcudnn.so.8", True),
        (f"{place}/libcudnn.so.8", "libcudnn.so.8.6.0", True)}


def test_cudnn_traps(root: Path) -> None:
    """A web page as library, a truncated one, a copy for a link, a link to nowhere."""
    place = root / LIB
    put(place, "libcudnn_adv_infer.so.8.6.0", "<html>Log in</html>")
    whole = shared_library(place / "libcudnn_ops_infer.so.8.6.0", "libcudnn_ops_infer.so.8")
    whole.write_bytes(whole.read_bytes()[:-8])
    (place / "libcudnn.so.8").unlink()
    shutil.copy(place / "libcudnn.so.8.6.0", place / "libcudnn.so.8")
    (place / "libcudnn_ops_infer.so.8").symlink_to("libcudnn_ops_infer.so.8.5.0")
    tree = look(root)["cudnn"]["trees"][0]
    libraries = {Path(x["path"]).name: x for x in tree["libraries"]}
    assert "web page" in libraries["libcudnn_adv_infer.so.8.6.0"]["error"]
    assert "truncated" in libraries["libcudnn_ops_infer.so.8.6.0"]["error"]
    assert libraries["libcudnn.so.8"]["soname"] == "libcudnn.so.8"
    assert [Path(x["path"]).name for x in tree["links"] if not x["exists"]] == [
        "libcudnn_ops_infer.so.8"]


def test_a_missing_soname_link_does_not_hide_the_version(root: Path) -> None:
    (root / LIB / "libcudnn.so.8").unlink()
    loaded = look(root)["cudnn"]["trees"][0]["loaded"]
    assert [(x["soname"], x["path"]) for x in loaded] == [
        ("libcudnn.so.8", f"/{LIB}/libcudnn.so.8.6.0")]


def test_a_library_that_crashes_is_an_error_of_its_own() -> None:
    state, value, error = in_child(signal.raise_signal, (signal.SIGKILL,), 5)
    assert (state, value, error) == ("error", None, "killed by SIGKILL")


def cache_of(entries: list[tuple[int, str, str]]) -> bytes:
    """An ld.so.cache as ldconfig writes it since glibc 2.32."""
    table, strings = b"", b""
    start = 48 + 24 * len(entries)
    for flags, soname, path in entries:
        key = start + len(strings)
        strings += soname.encode() + b"\0"
        table += struct.pack("=iIIIQ", flags, key, start + len(strings), 0, 0)
        strings += path.encode() + b"\0"
    head = b"glibc-ld.so.cache1.1" + struct.pack("=II", len(entries), len(strings)) + bytes(20)
    return head + table + strings


def test_the_linkers_cache_keeps_its_order_and_shows_stale_entries(root: Path) -> None:
    path = root / "etc/ld.so.cache"
    path.write_bytes(cache_of([
        (0x0003, "libcudnn.so.8", "/lib32/libcudnn.so.8"),
        (0x0303, "libcudnn.so.8", "/usr/local/cuda-11.8/lib64/libcudnn.so.8"),
        (0x0303, "libcudnn.so.8", "/opt/gone/libcudnn.so.8"),
        (0x0303, "libz.so.1", "/lib/libz.so.1"),
    ]))
    assert linker_cache(str(root)) == [
        {"soname": "libcudnn.so.8", "path": "/usr/local/cuda-11.8/lib64/libcudnn.so.8",
         "exists": True, "realpath": f"/{LIB}/libcudnn.so.8.6.0"},
        {"soname": "libcudnn.so.8", "path": "/opt/gone/libcudnn.so.8", "exists": False,
         "realpath": "/opt/gone/libcudnn.so.8"}]


def test_an_unknown_cache_format_is_an_error_not_an_empty_list() -> None:
    with pytest.raises(ValueError, match="unknown format"):
        parse_linker_cache(b"something else")


@pytest.mark.skipif(not Path("/etc/ld.so.cache").exists(), reason="no linker cache here")
def test_the_real_cache_is_read_as_ldconfig_prints_it() -> None:
    ldconfig = shutil.which("ldconfig", path="/sbin:/usr/sbin:/bin:/usr/bin")
    if not ldconfig:
        pytest.skip("no ldconfig here to compare with")
    printed = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=True).stdout
    theirs = [line.split(" => ")[1] for line in printed.splitlines()
              if " => " in line and "x86-64" in line]
    ours = [path for _, path in parse_linker_cache(Path("/etc/ld.so.cache").read_bytes())]
    assert theirs and [path for path in ours if path in set(theirs)] == theirs


def test_the_linkers_configuration_follows_includes(root: Path) -> None:
    put(root, "etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n/usr/lib/x # comment\n")
    put(root, "etc/ld.so.conf.d/gpufleet-cuda.conf", "/usr/local/cuda-11.8/lib64\n")
    found = look(root)["linker"]
    assert found["files"] == [
        {"path": "/etc/ld.so.conf", "directories": ["/usr/lib/x"]},
        {"path": "/etc/ld.so.conf.d/gpufleet-cuda.conf",
         "directories": ["/usr/local/cuda-11.8/lib64"]}]
    assert found["unregistered"] == []
    (root / "etc/ld.so.conf.d/gpufleet-cuda.conf").unlink()
    assert look(root)["linker"]["unregistered"] == ["/usr/local/cuda-11.8/lib64"]


def test_cards_and_driver_from_planted_kernel_trees(root: Path) -> None:
    for number, (vendor, kind) in enumerate([("0x10de", "0x030200"), ("0x10de", "0x040300"),
                                             ("0x8086", "0x030000"), ("0x10de", "0x068000")]):
        card = root / f"sys/bus/pci/devices/0000:0{number}:00.0"
        for key, value in (("vendor", vendor), ("device", "0x2330"), ("class", kind)):
            put(card, key, value + "\n")
        (card / "driver").symlink_to("../../../drivers/nvidia")
    put(root, "dev/nvidia0")
    put(root, "proc/modules", "nvidia_uvm 1 0\nnvidia 1 1\nnouveau 1 0\next4 1 0\n")
    put(root, "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.163.01  Release Build\n")
    put(root, "usr/lib/x86_64-linux-gnu/libcuda.so.535.261.03")
    found = look(root)
    assert found["gpus"] == {"nodes": ["/dev/nvidia0"], "node_access": found[
        "gpus"]["node_access"], "nvswitches": ["0000:03:00.0"],
                             "mig": None, "pci": [
        {"vendor": "0x10de", "device": "0x2330", "class": "0x030200", "driver": "nvidia",
         "address": "0000:00:00.0"}]}
    absent = {"unit": None, "enabled": None, "active": None}
    assert found["driver"] == {
        "loaded": "550.163.01", "library": "535.261.03", "cuda_version": None, "cuinit": None,
        "modules": ["nvidia_uvm", "nvidia", "nouveau"], "on_disk": None, "dkms": [],
        "nouveau": {"loaded": True, "blacklisted": False}, "persistence": absent,
        "fabric": {**absent, "version": None}, "holders": [], "reboot_pending": None}


def test_a_login_is_a_real_shell_that_may_be_noisy(root: Path) -> None:
    put(root, "etc/environment", 'CUDA_HOME="/opt/cuda"\n')
    put(root, "etc/profile.d/cuda.sh",
        "echo Welcome; export LD_LIBRARY_PATH=$CUDA_HOME/lib64:$LD_LIBRARY_PATH\n")
    login = look(root)["environment"]["login"]
    assert login["CUDA_HOME"] == "/opt/cuda"
    assert login["LD_LIBRARY_PATH"] == "/opt/cuda/lib64:"
    assert login["PYTHONPATH"] is None


def test_what_services_and_cron_are_given_is_read_from_their_files(root: Path) -> None:
    given = {
        ("etc/security/pam_env.conf", "# A DEFAULT=1\nCUDA_HOME DEFAULT=/opt/cuda\n", False),
        ("etc/environment.d/site.conf", "PYTHONPATH=/opt/site\n", False),
        ("etc/systemd/system.conf.d/site.conf",
         '[Manager]\nDefaultEnvironment=A=1 \\\n "PYTHONHOME=/opt/a b"\n', False),
        ("etc/systemd/system/service.d/all.conf",
         "[Service]\nEnvironment=LD_PRELOAD=/opt/x.so\n", False),
        ("etc/systemd/system/train.service",
         "[Service]\nEnvironmentFile=-/etc/default/train\nEnvironmentFile=-/none\n", True),
        ("etc/crontab", "CUDA_VISIBLE_DEVICES=\n0 3 * * * root A=1 true\n", False),
        ("etc/cron.d/train", "CUDA_VISIBLE_DEVICES = '0'\n", True),
    }
    for name, text, _ in given:
        put(root, name, text)
    put(root, "etc/default/train", "export CUDA_VISIBLE_DEVICES=1\n")
    put(root, "etc/systemd/system/plain.service", "[Service]\nEnvironment=LANG=C\n")
    found = look(root)["environment"]
    seen = {row["where"]: row for row in found["others"] if row["where"].startswith("/etc")}
    del seen["/etc/ld.so.preload"]
    assert {name: row["job"] for name, row in seen.items()} == {
        f"/{name}": job for name, _, job in given}
    assert {name: row["variables"] for name, row in seen.items()} == {
        "/etc/security/pam_env.conf": {"CUDA_HOME": "/opt/cuda"},
        "/etc/environment.d/site.conf": {"PYTHONPATH": "/opt/site"},
        "/etc/systemd/system.conf.d/site.conf": {"PYTHONHOME": "/opt/a b"},
        "/etc/systemd/system/service.d/all.conf": {"LD_PRELOAD": "/opt/x.so"},
        "/etc/systemd/system/train.service": {"CUDA_VISIBLE_DEVICES": "1"},
        "/etc/crontab": {"CUDA_VISIBLE_DEVICES": ""},
        "/etc/cron.d/train": {"CUDA_VISIBLE_DEVICES": "0"},
    }
    assert found["unread"] == []


def test_the_files_that_name_a_variable_are_told(root: Path) -> None:
    put(root, "etc/environment", "CUDA_HOME=/opt/cuda\n")
    put(root, "etc/profile.d/site.sh", "# PYTHONPATH=/no\nexport CUDA_HOME LD_PRELOAD=\n")
    assert look(root)["environment"]["mentions"] == {
        "CUDA_HOME": ["/etc/environment", "/etc/profile.d/site.sh"],
        "LD_PRELOAD": ["/etc/profile.d/site.sh"]}


def test_packages_are_read_without_importing_anything(root: Path) -> None:
    venv = root / "opt/gpufleet/stacks/relic"
    put(venv, "pyvenv.cfg", "home = /usr/bin\nversion_info = 3.6.15\n")
    site = "lib/python3.6/site-packages/"
    put(venv, site + "Keras_Preprocessing-1.1.2.dist-info/METADATA",
        "Metadata-Version: 2.1\nName: Keras_Preprocessing\nVersion: 1.1.2\n\nName: no\n")
    put(venv, site + "termcolor-1.1.0.egg-info/PKG-INFO", "Name: termcolor\nVersion: 1.1.0\n")
    put(venv, site + "_gpufleet_binding.json",
        '{"libraries": ["/usr/local/cuda-8.0/lib64/libcudart.so.8.0"]}')
    assert look(root)["stacks"]["stacks"] == [
        {"name": "relic", "venv": "/opt/gpufleet/stacks/relic", "python": "3.6.15",
         "packages": {"keras-preprocessing": "1.1.2", "termcolor": "1.1.0"}, "receipt": False,
         "bound_to": "/usr/local/cuda-8.0/lib64", "framework": None,
         "realpath": "/opt/gpufleet/stacks/relic", "closed": [], "hooks": [], "binding": None,
         "start": {"python": None, "prefix": None, "strange": [],
                   "error": f"{venv}/bin/python: No such file or directory"}}]


# -- one after the other --------------------------------------------------------------------------


@pytest.mark.parametrize(("gpus", "node", "apart"), [
    (2, True, True), (None, True, True), (0, True, False), (2, False, False)])
def test_on_a_gpu_one_section_computes_after_the_other(
    root: Path, monkeypatch: pytest.MonkeyPatch, gpus: int | None, node: bool, apart: bool
) -> None:
    def computing(host: Host) -> list[float]:
        begin = time.monotonic()
        time.sleep(0.3)
        return [begin, time.monotonic()]

    monkeypatch.setattr(runner, "SECTIONS", dict.fromkeys(COMPUTING, computing))
    if node:
        put(root, "dev/nvidiactl")
    found = look(root, mode="full", expect_gpus=gpus)
    times = [found[name] for name in ("compute", "stacks", "containers")]
    ended = [one[1] <= other[0] for one, other in itertools.pairwise(times)]
    assert ended == [apart, apart]


def test_one_that_hangs_on_a_gpu_leaves_time_to_the_others(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "SECTIONS", {
        "stacks": lambda host: time.sleep(60), "containers": lambda host: "c",
        "compute": lambda host: time.sleep(60)})
    put(root, "dev/nvidiactl")
    begin = time.monotonic()
    found = probe({"root": str(root), "mode": "full", "expect_gpus": 1, "deadline_s": 1.5})
    assert {name: section["state"] for name, section in found["sections"].items()} == {
        "compute": "hung", "stacks": "hung", "containers": "ok"}
    assert time.monotonic() - begin < 3


def test_the_minutes_of_load_are_beside_the_toolkits_share(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "SECTIONS", dict.fromkeys(
        COMPUTING, lambda host: host.inner_s))
    put(root, "dev/nvidiactl")
    found = look(root, mode="full", expect_gpus=1, deadline_s=660, deep=True)
    assert found["compute"] - 2 * DEFAULTS["sustained_s"] > 90
    assert found["containers"] < 660


# -- framework runs -------------------------------------------------------------------------------


def framework(root: Path, script: str, deadline_s: float = 10) -> Any:
    """What comes of a stack whose interpreter is a shell script."""
    venv = root / "opt/gpufleet/stacks/s"
    put(venv, "pyvenv.cfg", "version = 3.11.2\n")
    put(venv, "bin/python", "#!/bin/sh\n" + script, 0o755)
    found = look(root, mode="full", matmul="print()", expect_gpus=0,
                 deadline_s=deadline_s)
    assert list((root / "tmp").iterdir()) == []
    return found["stacks"]["stacks"][0]["framework"]


def said(**document: Any) -> str:
    return f"echo '{FRAMEWORK_MARK}{json.dumps(document)}'\n"


def test_a_framework_run_is_found_among_chatter(root: Path) -> None:
    script = "echo noise; echo more >&2\n" + said(state="ok", error=None, version="2") + "echo x\n"
    assert framework(root, script) == dict(
        FRAMEWORK_SILENT, state="ok", error=None, version="2", said=[])


def test_what_tensorflow_says_of_a_gpu_that_it_leaves_out_is_kept(root: Path) -> None:
    line = "Ignoring visible gpu device: the minimum required Cuda capability is 3.5."
    script = f"echo '{line}' >&2\n" + said(state="ok", error=None) + "echo x >&2\n"
    assert framework(root, script)["said"] == [line]


def test_a_framework_run_has_an_empty_environment(root: Path) -> None:
    found = framework(root, "env >&2; exit 3\n")
    assert found["state"] == "failed"
    assert {line.partition("=")[0] for line in found["error"].split("\n") if "=" in line} <= {
        "ended with status 3: PATH", "PATH", "HOME", "PWD", "ended with status 3: HOME",
        "ended with status 3: PWD"}


def test_a_crash_keeps_what_was_said_before_it(root: Path) -> None:
    found = framework(root, said(state="failed", error="stopped while multiplying", version="2")
                      + "kill -ABRT $$\n")
    assert (found["state"], found["version"]) == ("failed", "2")
    assert found["error"] == "stopped while multiplying, killed by SIGABRT"


def test_a_framework_run_that_hangs_is_its_own_finding(root: Path) -> None:
    script = said(state="failed", error="stopped while importing") + "sleep 600\n"
    # A fifth of them is what a busy machine may take besides.
    found = framework(root, script, deadline_s=6)
    assert found["state"] == "hung"
    assert "no answer within 4.8 s" in found["error"]


def test_an_interpreter_that_is_gone(root: Path) -> None:
    venv = root / "opt/gpufleet/stacks/s"
    put(venv, "pyvenv.cfg", "version = 3.11.2\n")
    stacks = look(root, mode="full", matmul="pass", expect_gpus=0)["stacks"]["stacks"]
    found = stacks[0]["framework"]
    assert found["state"] == "failed"
    assert "No such file" in found["error"]


def test_probe_and_matmul_know_the_same_files() -> None:
    assert constants.CUDA_FILE.pattern == loaded.CUDA_FILE.pattern
    assert constants.FRAMEWORK_MARK == output.FRAMEWORK_MARK


# -- hangs ----------------------------------------------------------------------------------------


def test_a_section_that_hangs_is_abandoned_and_the_others_are_read(root: Path) -> None:
    (root / "proc/driver/nvidia").mkdir(parents=True)
    os.mkfifo(root / "proc/driver/nvidia/version")
    begin = time.monotonic()
    found = probe({"root": str(root), "deadline_s": 1.5})
    assert time.monotonic() - begin < 4
    states = {name: section["state"] for name, section in found["sections"].items()}
    assert states.pop("driver") == "hung"
    assert set(states.values()) == {"ok"}
    assert found["sections"]["driver"]["data"] is None
    assert found["sections"]["driver"]["error"] == "no answer within 1.5 s"


def test_an_interpreter_that_gives_no_answer_is_not_one_that_is_not_there(root: Path) -> None:
    put(root, "usr/bin/python3.11", "#!/bin/sh\nexec sleep 60\n", 0o755)
    found = probe({"root": str(root), "deadline_s": 1.5})["sections"]["os"]
    assert (found["state"], found["data"]) == ("hung", None)
    assert "/usr/bin/python3.11 gave no answer within" in found["error"]


def test_an_abandoned_child_does_not_hold_the_callers_pipe(root: Path) -> None:
    """ssh ends only when the last holder of its pipes is gone."""
    (root / "proc/driver/nvidia").mkdir(parents=True)
    os.mkfifo(root / "proc/driver/nvidia/version")
    ended = subprocess.run(
        [sys.executable, "-", f"root={root}", "deadline_s=1", "matmul="],
        input=payload.probe().encode(), capture_output=True, timeout=20, check=True)
    assert json.loads(ended.stdout)["sections"]["driver"]["state"] == "hung"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_denied_as_user(root: Path) -> None:
    put(root, "proc/uptime", "1 1", 0o000)
    assert probe({"root": str(root)})["sections"]["kernel"]["state"] == "denied"


def test_what_may_not_be_read_is_denied(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    def refuse(host: object) -> None:
        raise PermissionError("no")

    monkeypatch.setitem(SECTIONS, "kernel", refuse)
    section = probe({"root": str(root)})["sections"]["kernel"]
    assert (section["state"], section["error"], section["data"]) == ("denied", "no", None)


# -- as it is really started ----------------------------------------------------------------------


def interpreter(minor: int) -> str:
    """A Python 3.`minor` that runs; version managers leave names on the path that do not."""
    name = f"python3.{minor}"
    own = sorted(Path.home().glob(f".*/versions/3.{minor}.*/bin/python"))
    for found in filter(None, [shutil.which(name), *map(str, own)]):
        if subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
            return found
    pytest.skip(f"no {name} here")


NOBODY = 65534
# An interpreter of root's own home is started by root, and goes on as an ordinary user.
BECOME_NOBODY = f"import os, {{}}; os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"


def as_started(python: str, config: dict[str, Any], user: str = "as-it-is") -> dict[str, Any]:
    """The snapshot of the probe on standard input of an interpreter."""
    script = f"CONFIG = {json.dumps(config)!r}\n" + payload.probe()
    if user == "nobody":
        if os.geteuid():
            pytest.skip("only root can become another user")
        texts = [payload.probe(), *payload.sources("probe").values()]
        wanted = {alias.name for text in texts for node in ast.walk(ast.parse(text))
                  if isinstance(node, ast.Import) for alias in node.names}
        wanted |= {"encodings.ascii", "importlib.machinery"}
        script = BECOME_NOBODY.format(", ".join(sorted(wanted))) + script
    ended = subprocess.run([python, "-I", "-S", "-"], input=script.encode(), capture_output=True,
                           timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr.decode()
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


@pytest.fixture
def open_root(root: Path) -> Iterator[Path]:
    """The same tree where every user comes to it; pytest's own directories are shut."""
    with tempfile.TemporaryDirectory() as directory:
        copy = shutil.copytree(root, Path(directory, "root"), symlinks=True)
        for place in (copy, copy.parent):
            place.chmod(0o755)
        yield copy


def form(value: Any) -> Any:
    """The same with the type of each value in its place."""
    if isinstance(value, dict):
        return {key: form(inner) for key, inner in value.items() if key != "seconds"}
    if isinstance(value, list):
        return [form(inner) for inner in value]
    return type(value)


@pytest.mark.parametrize("user", ["as-it-is", "nobody"])
@pytest.mark.parametrize("minor", range(6, 15))
def test_every_python_says_the_same_on_standard_input(
    minor: int, user: str, open_root: Path
) -> None:
    config = {"root": str(open_root), "host": "gpu01", "deadline_s": 20}
    snapshot = as_started(interpreter(minor), config, user)
    assert snapshot["euid"] == (NOBODY if user == "nobody" else os.geteuid())
    assert [section["error"] for section in snapshot["sections"].values() if section["error"]] == []
    assert form(snapshot) == form(as_started(sys.executable, config, user))


def test_what_only_root_sees_is_told_by_whoever_is_not_root() -> None:
    config = {"host": "gpu01", "deadline_s": 20}
    mine, theirs = as_started("/usr/bin/python3", config), \
        as_started("/usr/bin/python3", config, "nobody")
    assert list(mine["sections"]) == list(theirs["sections"])
    whole = {name for name, section in theirs["sections"].items() if section["state"] == "ok"}
    assert {theirs["sections"][name]["state"] for name in set(theirs["sections"]) - whole} <= {
        "denied"}
    for name in whole:
        assert list(mine["sections"][name]["data"]) == list(theirs["sections"][name]["data"])
    assert [row for row in mine["unseen"] if row not in theirs["unseen"]] == []
    assert {"section": "kernel", "what": "/proc/1/environ",
            "because": "this account may not see it"} in theirs["unseen"]


def test_a_place_that_may_not_be_listed_is_no_empty_one(open_root: Path) -> None:
    (open_root / "usr/local").chmod(0o700)
    snapshot = as_started("/usr/bin/python3", {"root": str(open_root), "host": "gpu01"}, "nobody")
    rows = {(row["section"], row["what"]) for row in snapshot["unseen"]}
    assert ("toolkits", "/usr/local") in rows


def test_every_section_and_field_of_the_snapshot_is_there(root: Path) -> None:
    found = probe({"root": str(root)})
    assert list(found) == ["schema", "host", "mode", "euid", "started", "finished", "unseen",
                           "sections"]
    assert list(found["sections"]) == list(SECTIONS)
    for section in found["sections"].values():
        assert list(section) == ["state", "seconds", "error", "data"]
    assert set(found["sections"]["disks"]["data"]["free_mib"]) == {
        "/", "/tmp", "/usr/local", "/opt/gpufleet/stacks", "/var/lib/gpufleet"}
