"""Section `receipts`, and the receipts it reads."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from gpufleet.components.resolver import resolve
from gpufleet.components.stacks import environment_plan as environment
from gpufleet.documents.sections.cuda import Receipts
from gpufleet.documents.validator import faults
from gpufleet.on_host import contents
from gpufleet.on_host.host import Host
from gpufleet.on_host.manifest import manifest_of
from gpufleet.on_host.sections.receipts import unrecorded
from tests.support.elf_file import shared_library
from tests.support.planted_host import LIB, NOBODY, probe_tree, put


def test_what_stands_in_the_places_of_small_files_is_named_by_its_checksum(root: Path) -> None:
    declared = {
        "gpu_stacks": [{"tensorflow": "2.13.1", "environment": {"TF_CPP_MIN_LOG_LEVEL": 1}}],
        "gpu_accept_nvidia_eula": True,
        "gpu_profile": True,
        "gpu_jupyter_kernels": True,
    }
    rows = resolve(declared)["environment"]
    for row in rows:
        put(root, row["path"].lstrip("/"), row["text"])
    put(root, "etc/profile.d/other.sh")
    (root / "opt/gpufleet/modulefiles/cuda/directory").mkdir()
    assert probe_tree(root)["receipts"]["texts"] == {
        **environment.digests(rows),
        "/opt/gpufleet/modulefiles/cuda/directory": "",
    }


def test_receipts_are_summed_up_and_what_is_unreadable_is_printed(root: Path) -> None:
    toolkit = root / "usr/local/cuda-11.8"
    manifest = manifest_of(str(toolkit), ["version.json", "bin/nvcc"])
    state = "var/lib/gpufleet/"
    put(
        root,
        state + "receipts/toolkit-11.8.json",
        json.dumps(
            {
                "schema": 1,
                "kind": "toolkit",
                "id": "11.8",
                "path": "/usr/local/cuda-11.8",
                "version": "11.8.0",
                "manifest": manifest,
            }
        ),
    )
    put(root, state + "receipts/cudnn-11.8-8.json", '{"kind":')
    put(root, state + "receipts/.cudnn-11.8-8.json.partial", "half")
    put(
        root,
        state + "journal/stack-x.json",
        '{"schema": 1, "kind": "stack", "id": "x", "path": "/x", "state": "installing"}',
    )
    (toolkit / "version.json").unlink()
    found = probe_tree(root)["receipts"]
    assert found["receipts"] == [
        {
            "schema": 1,
            "kind": "toolkit",
            "id": "11.8",
            "path": "/usr/local/cuda-11.8",
            "version": "11.8.0",
            "files": 2,
            "changed": [{"path": "version.json", "what": "missing"}],
            "libraries": [],
            "unlisted": [f"/{LIB}/libcudart.so.11.8.89"],
            "exposed": [],
        }
    ]
    assert [entry["id"] for entry in found["journal"]] == ["x"]
    assert [entry["path"] for entry in found["unreadable"]] == [
        "/var/lib/gpufleet/receipts/cudnn-11.8-8.json"
    ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schema": 99}, "its schema is 99"),
        ({"manifest": "zzz"}, "no manifest"),
        ({"id": "12.5"}, "it is of toolkit 12.5"),
        ({"path": 5}, "no path"),
        ({"manifest": [{"path": "a"}]}, "manifest is damaged"),
        ({"manifest": []}, "manifest is empty"),
    ],
)
def test_a_receipt_that_proves_nothing_is_unreadable(
    root: Path, change: dict[str, Any], reason: str
) -> None:
    good = {
        "schema": 1,
        "kind": "toolkit",
        "id": "11.8",
        "path": "/usr/local/cuda-11.8",
        "version": "11.8.0",
        "manifest": [{"path": "a", "type": "file"}],
    }
    put(root, "var/lib/gpufleet/receipts/toolkit-11.8.json", json.dumps({**good, **change}))
    put(
        root,
        "var/lib/gpufleet/journal/stack-x.json",
        '{"schema": 1, "kind": "stack", "id": "x", "path": "/x"}',
    )
    os.mkfifo(root / "var/lib/gpufleet/receipts/pipe.json")
    found = probe_tree(root)["receipts"]
    assert found["receipts"] == found["journal"] == []
    errors = [entry["error"] for entry in found["unreadable"]]
    assert (errors[0], errors[2]) == ("it is not a regular file", "it has no state")
    assert reason in errors[1]


def test_what_others_could_exchange_is_reported(root: Path) -> None:
    toolkit = root / "usr/local/cuda-11.8"
    lib = f"/{LIB}"

    def receipt() -> dict[str, Any]:
        found: dict[str, Any] = probe_tree(root)["receipts"]["receipts"][0]
        return found

    put(
        root,
        "var/lib/gpufleet/receipts/toolkit-11.8.json",
        json.dumps(
            {
                "schema": 1,
                "kind": "toolkit",
                "id": "11.8",
                "path": "/usr/local/cuda-11.8",
                "version": "11.8.0",
                "manifest": manifest_of(
                    str(toolkit), ["version.json", "bin/nvcc", "lib64/libcudart.so.11.8.89"]
                ),
            }
        ),
    )
    healthy = receipt()
    assert (healthy["exposed"], healthy["unlisted"]) == ([], [])
    assert healthy["libraries"] == [f"{lib}/libcudart.so.11.8.89"]
    (root / "usr").chmod(0o757)
    (toolkit / "version.json").chmod(0o646)
    # A directory that all share, and where none can touch what is another's.
    (root / "usr/local").chmod(0o1777)
    put(
        root,
        "proc/self/mountinfo",
        f"36 25 0:31 / / rw - ext4 /dev/sda rw\n37 36 0:32 / {lib} rw - tmpfs tmpfs rw\n",
    )
    # Preferred by the linker on a processor that has what it asks for.
    shared_library(root / LIB / "glibc-hwcaps/x86-64-v3/libcublas.so.11", "libcublas.so.11")
    found = receipt()
    assert found["exposed"] == [
        {"path": "/usr", "what": "mode 0757, others can write"},
        {"path": lib, "what": "something is mounted over it"},
        {"path": "/usr/local/cuda-11.8/version.json", "what": "mode 0646, others can write"},
    ]
    assert found["unlisted"] == [f"{lib}/glibc-hwcaps/x86-64-v3/libcublas.so.11"]


# What a record has for a file that contains "right".
RIGHT = base64.urlsafe_b64encode(hashlib.sha256(b"right").digest()).decode().rstrip("=")


@pytest.fixture
def stack(root: Path) -> Path:
    """A stack with one package of one file; its receipt lists the package's record."""
    venv = root / "opt/gpufleet/stacks/one"
    site = venv / "lib/python3.11/site-packages"
    for name in ("pyvenv.cfg", "bin/python", "bin/activate"):
        put(venv, name)
    put(site, "x/a.py", "right")
    put(site, "x-1.dist-info/METADATA", "Name: x\nVersion: 1\n")
    put(site, "x-1.dist-info/RECORD", f"x/a.py,sha256={RIGHT},5\nx-1.dist-info/RECORD,,\n")
    return venv


def stack_status(root: Path, stack: Path, *, records: bool = True) -> dict[str, Any]:
    """The status of the stack's receipt, which is written on the first call."""
    place = root / "var/lib/gpufleet/receipts/stack-one.json"
    if not place.exists():
        names = [
            "pyvenv.cfg",
            "bin",
            *(["lib/python3.11/site-packages/x-1.dist-info/RECORD"] if records else []),
        ]
        put(
            root,
            "var/lib/gpufleet/receipts/stack-one.json",
            json.dumps(
                {
                    "schema": 1,
                    "kind": "stack",
                    "id": "one",
                    "path": "/opt/gpufleet/stacks/one",
                    "version": "1",
                    "installed": "2026-11-20T12:00:00Z",
                    "packages": {"x": "1"},
                    "manifest": manifest_of(str(stack), names),
                }
            ),
        )
    found: dict[str, Any] = next(
        row for row in probe_tree(root)["receipts"]["receipts"] if row["kind"] == "stack"
    )
    return found


def test_an_emptied_package_record_is_a_changed_file(root: Path, stack: Path) -> None:
    """A loss of power left RECORD empty; files of the package changed or were deleted."""
    healthy = stack_status(root, stack)
    assert (healthy["changed"], healthy["recorded"], healthy["unlisted"]) == ([], True, [])
    site = "lib/python3.11/site-packages/"
    (stack / site / "x/a.py").unlink()
    assert stack_status(root, stack)["changed"] == [{"path": site + "x/a.py", "what": "missing"}]
    (stack / site / "x-1.dist-info/RECORD").write_text("")
    found = stack_status(root, stack)
    assert found["changed"] == [{"path": site + "x-1.dist-info/RECORD", "what": "size"}]
    assert found["unlisted"] == []


def test_another_package_record_of_the_same_size_is_a_changed_file(root: Path, stack: Path) -> None:
    stack_status(root, stack)
    record = stack / "lib/python3.11/site-packages/x-1.dist-info/RECORD"
    info = record.stat()
    record.write_text(record.read_text().replace("sha256=", "sha512="))
    os.utime(record, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert stack_status(root, stack)["changed"] == [
        {"path": str(record.relative_to(stack)), "what": "sha256"}
    ]


def given_to(path: Path, uid: int) -> None:
    for name in [path, *path.rglob("*")]:
        os.chown(name, uid, uid, follow_symlinks=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_contents_that_changed_while_a_user_owned_the_stack_are_compared(
    root: Path, stack: Path
) -> None:
    """Given to a user, who changed a file, and given back: root would have executed that file."""
    assert stack_status(root, stack)["exposed"] == []
    code = stack / "lib/python3.11/site-packages/x/a.py"
    given_to(stack, NOBODY)
    code.write_text("wrong")
    found = stack_status(root, stack)
    assert {"path": "/opt/gpufleet/stacks/one", "what": f"belongs to user {NOBODY}"} in found[
        "exposed"
    ]
    given_to(stack, 0)
    found = stack_status(root, stack)
    assert found["exposed"] == []
    assert found["changed"] == [{"path": str(code.relative_to(stack)), "what": "sha256"}]
    code.write_text("right")
    assert stack_status(root, stack)["changed"] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
@pytest.mark.parametrize("link", ["opt/gpufleet/stacks/one", "opt/gpufleet/stacks/one/lib"])
def test_a_link_to_a_home_is_named_instead_of_what_it_leads_to(
    root: Path, stack: Path, link: str
) -> None:
    stack_status(root, stack)
    home = root / "home/alice/mine"
    home.parent.mkdir(parents=True)
    (root / link).rename(home)
    (root / link).symlink_to(os.path.relpath(home, (root / link).parent))
    given_to(home.parent, NOBODY)
    exposed = stack_status(root, stack)["exposed"]
    assert [(entry["path"], entry["link"]) for entry in exposed] == [
        (f"/{link}", "/home/alice/mine")
    ]
    assert exposed[0]["what"].startswith("a link to /home/alice/mine: /")
    assert "belongs to user" in exposed[0]["what"]


def test_a_receipt_without_package_records_is_read(root: Path, stack: Path) -> None:
    """Earlier releases did not record them: a record is compared with nothing, unless empty."""
    found = stack_status(root, stack, records=False)
    assert (found["changed"], found["recorded"], found["unlisted"]) == ([], False, [])
    record = stack / "lib/python3.11/site-packages/x-1.dist-info/RECORD"
    record.write_text("")
    place = f"/{record.relative_to(root)}"
    assert stack_status(root, stack)["unlisted"] == [f"{place} (it lists no file)"]
    record.unlink()
    assert stack_status(root, stack)["unlisted"] == [f"{place} (it is not there)"]


def test_code_that_no_record_lists_is_reported(tmp_path: Path) -> None:
    site = "lib/python3.11/site-packages/"
    put(tmp_path, site + "x-1.dist-info/RECORD", "x/a.py,sha256=z,1\nx/b/c.so,,2\n../../bin/x,,3\n")
    put(tmp_path, site + "theirs-1.dist-info/RECORD", "x/theirs.py,,1\ntheirs/a.py,,1\n")
    for name in (
        "x/a.py",
        "x/b/c.so",
        "x/theirs.py",
        "x/data.txt",
        "theirs/more.py",
        "x/new.py",
        "x/__pycache__/a.pyc",
    ):
        put(tmp_path, site + name)
    found = unrecorded(Host({}), str(tmp_path), {"x": "1"})
    assert found == [str(tmp_path / site / "x/new.py")]


@pytest.mark.parametrize(
    "other", ["one/__init__.py", "one.cpython-311-x86_64-linux-gnu.so", "x.py"]
)
def test_code_that_takes_the_name_of_a_module_is_reported(tmp_path: Path, other: str) -> None:
    """A directory six/ beside six.py, which Python prefers, went unnoticed."""
    site = "lib/python3.11/site-packages/"
    put(tmp_path, site + "x-1.dist-info/RECORD", "x/a.py,,1\none.py,,1\n__pycache__/one.pyc,,\n")
    put(tmp_path, site + "theirs-1.dist-info/RECORD", "two.py,,1\n")
    for name in ("one.py", "x/a.py", "two.py", "two/__init__.py", "two.so", "three.py", other):
        put(tmp_path, site + name)
    assert unrecorded(Host({}), str(tmp_path), {"x": "1"}) == [str(tmp_path / site / other)]


def test_an_access_list_that_lets_others_write_is_reported(root: Path) -> None:
    """`setfacl -m u:deploy:rwx` of a toolkit's bin went unnoticed: mode 0775, root's group."""
    top = root / "usr/local/cuda-11.8"
    put(
        root,
        "var/lib/gpufleet/receipts/toolkit-11.8.json",
        json.dumps(
            {
                "schema": 1,
                "kind": "toolkit",
                "id": "11.8",
                "path": "/usr/local/cuda-11.8",
                "version": "11.8.0",
                "installed": "2026-11-20T12:00:00Z",
                "manifest": manifest_of(str(top), ["bin/nvcc"]),
            }
        ),
    )
    entries = [(1, 7, -1), (2, 7, 1000), (4, 5, -1), (16, 7, -1), (32, 5, -1)]
    packed = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    try:
        os.setxattr(top / "bin", "system.posix_acl_access", packed)
    except OSError as error:
        pytest.skip(f"this file system has no access lists: {error}")
    exposed = probe_tree(root)["receipts"]["receipts"][0]["exposed"]
    assert exposed == [
        {
            "path": "/usr/local/cuda-11.8/bin",
            "what": "mode 0775, its access list (getfacl) lets others write",
        }
    ]
    (top / "bin").chmod(0o755)  # as the remedy says: no entry allows more than the group's bits
    assert probe_tree(root)["receipts"]["receipts"][0]["exposed"] == []


def test_a_journal_that_is_no_directory_is_unreadable(root: Path) -> None:
    put(root, "var/lib/gpufleet/journal")
    assert probe_tree(root)["receipts"]["unreadable"] == [
        {"path": "/var/lib/gpufleet/journal", "error": "Not a directory"}
    ]


@pytest.fixture
def toolkit(root: Path) -> Path:
    """A toolkit with a receipt, in whose largest library a byte changed; size and time stayed."""
    place = root / "usr/local/cuda-11.8"
    put(
        root,
        "var/lib/gpufleet/receipts/toolkit-11.8.json",
        json.dumps(
            {
                "schema": 1,
                "kind": "toolkit",
                "id": "11.8",
                "path": "/usr/local/cuda-11.8",
                "version": "11.8.0",
                "installed": "2026-11-20T12:00:00Z",
                "manifest": manifest_of(str(place), ["version.json", "lib64/libcudart.so.11.8.89"]),
            }
        ),
    )
    put(
        root,
        "proc/self/mountinfo",
        "36 25 8:1 / / rw - ext4 /dev/sda1 rw\n37 36 8:2 / /usr/local rw - xfs /dev/sdb rw\n",
    )
    library = place / "lib64/libcudart.so.11.8.89"
    before, content = library.stat(), bytearray(library.read_bytes())
    content[-1] ^= 1
    library.write_bytes(content)
    os.utime(library, ns=(before.st_atime_ns, before.st_mtime_ns))
    return place


LIBRARY = f"{LIB}/libcudart.so.11.8.89".replace("usr/local/cuda-11.8/", "")
NIGHT = {"days": 14, "seconds": 5, "components": []}


def probed(root: Path, **config: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The changed files, and the scrub."""
    found = probe_tree(root, **config)["receipts"]
    assert faults(Receipts, found, "receipts") == []
    return found["receipts"][0]["changed"], found.get("scrub", {})


def test_a_changed_byte_is_the_same_finding_at_night_as_with_deep(
    root: Path, toolkit: Path
) -> None:
    wrong = [{"path": LIBRARY, "what": "sha256"}]
    assert probed(root) == ([], {})
    assert probed(root, deep=True) == probed(root, contents=True) == (wrong, {})
    changed, night = probed(root, scrub=NIGHT)
    assert changed == wrong
    (state,) = night["components"]
    assert (state["component"], state["files"], state["bad"], night["error"]) == (
        "toolkit-11.8",
        1,
        wrong,
        None,
    )
    # Nothing is due, and the finding stays.
    changed, night = probed(root, scrub={**NIGHT, "components": [state]})
    assert changed == wrong
    (deep,) = probed(root, scrub=NIGHT, deep=True)[1]["components"]
    assert deep["read"] is not None


def test_a_file_that_the_disk_cannot_give_names_the_disk_and_spares_the_section(
    root: Path, toolkit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: str, ends: float) -> str:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(contents, "sha256_on_disk", broken)
    wrong = [
        {
            "path": LIBRARY,
            "what": "unreadable",
            "error": "Input/output error",
            "disk": "/dev/sdb at /usr/local",
        }
    ]
    assert probed(root, deep=True)[0] == wrong
    changed, night = probed(root, scrub=NIGHT)
    assert changed == wrong
    assert probed(root, scrub={**NIGHT, "components": night["components"]})[0] == wrong


def test_a_disk_that_gives_no_answer_costs_its_seconds_and_no_earlier_finding(
    root: Path, toolkit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (known,) = probed(root, scrub=NIGHT)[1]["components"]
    monkeypatch.setattr(contents, "sha256_on_disk", lambda path, ends: time.sleep(60))
    begin = time.monotonic()
    changed, night = probed(root, scrub={**NIGHT, "seconds": 0.3, "components": [known]})
    assert time.monotonic() - begin < 8
    assert changed == [{"path": LIBRARY, "what": "sha256"}]
    assert night["error"] == "no answer within 0.3 s"
    assert night["components"] == [known]
