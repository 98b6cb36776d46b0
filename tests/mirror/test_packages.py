"""A lock's packages can be installed from the mirror alone: wheels, sources, and their builders."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

import pytest

from gpufleet.cli import artifacts
from gpufleet.fleet.inventory import HostSelector, inventory_hosts
from gpufleet.mirror import locks, needs, packages
from tests.support.mirror_site import ARCHIVE, RUNFILE, Desk, Site, source, wheel
from tests.support.warm_start import run_warm

UV = Path(sys.executable).with_name("uv")
LOCK = "tensorflow-2.13.1-py3.11.lock"
LOCK_2_18 = "tensorflow-2.18.1-py3.11.lock"
TINY, OLD = "tiny-1.0-py3-none-any.whl", "old-1.0.tar.gz"


def run_locks_warm(
    words: list[str], stdout: TextIO, check: bool, **surroundings: Any
) -> subprocess.CompletedProcess[str]:
    """Run the playbook of the locks, its output on standard error."""
    assert not check and stdout is sys.stderr
    done = run_warm(*words, **surroundings)
    sys.stderr.write(done.stdout + done.stderr)
    return done


@pytest.fixture
def stack(desk: Desk, site: Site, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A stack whose lock lists a wheel and a source, at an index of its own."""
    simple = site.root / "simple"
    wheel(simple / "tiny", "tiny", "1.0")
    wheel(simple / "tiny", "tiny", "1.0", "cp39-cp39-win_amd64")
    source(simple / "tiny", "tiny", "1.0")
    # From before pyproject.toml: what it is built with follows from PEP 517.
    source(simple / "old", "old", "1.0", setup_py="from setuptools import setup\nsetup()\n")
    wheel(simple / "setuptools", "setuptools", "59.6.0")
    wheel(simple / "setuptools", "setuptools", "30.0.0")
    wheel(simple / "wheel", "wheel", "0.37.1")
    write_lock(desk, [simple / "tiny" / TINY, simple / "old" / OLD])
    desk.variables |= {
        "gpu_stacks": [{"tensorflow": "2.13.1", "python": "3.11"}],
        "gpu_pip_index_url": f"{site.url}/simple",
    }
    monkeypatch.setenv("UV_CACHE_DIR", str(desk.root / "uv"))
    # Each fetch runs it.
    monkeypatch.setattr(locks, "subprocess", SimpleNamespace(run=run_locks_warm))
    monkeypatch.setenv("ANSIBLE_PIPELINING", "true")
    return desk


def write_lock(desk: Desk, files: list[Path]) -> None:
    """The stack's lock beside the inventory, listing these files of version 1.0."""
    lock = desk.inventory.parent / "stacks" / LOCK
    lock.parent.mkdir(exist_ok=True)
    lock.write_text("".join(map(pin, files)))


def pin(file: Path) -> str:
    """A file of version 1.0 as a lock has it."""
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return f"{file.name.partition('-')[0]}==1.0 \\\n    --hash=sha256:{digest}\n"


def wheels(desk: Desk) -> set[str]:
    """The packages in the mirror."""
    return {path.name for path in (desk.mirror / "wheels").iterdir()}


def test_packages_come_by_the_lock_with_what_builds_the_sources(stack: Desk) -> None:
    done = stack("fetch")
    assert done.status == 0
    assert wheels(stack) == {
        *(TINY, OLD),
        "setuptools-59.6.0-py3-none-any.whl",
        "wheel-0.37.1-py3-none-any.whl",
    }
    assert {RUNFILE, ARCHIVE} <= {path.name for path in stack.mirror.iterdir()}
    assert f"building {OLD}" in done.err


def test_a_second_fetch_asks_the_index_nothing(stack: Desk, site: Site) -> None:
    stack("fetch")
    site.asked.clear()
    assert stack("fetch").status == 0
    assert site.asked == []


def test_verify_knows_the_packages_without_the_index(stack: Desk, site: Site) -> None:
    stack("fetch")
    site.asked.clear()
    assert stack("verify").status == 0
    (stack.mirror / "wheels" / TINY).unlink()
    done = stack("verify", "--json")
    assert (done.status, done.state(f"wheels/{TINY}")) == (1, "missing")
    assert done.document["files"][-1]["kind"] == "package"
    assert site.asked == []


def test_a_lock_that_changed_since_is_not_taken_for_mirrored(stack: Desk, site: Site) -> None:
    stack("fetch")
    write_lock(stack, [site.root / "simple" / "tiny" / TINY])
    done = stack("verify", "--json")
    assert (done.status, done.document["complete"]) == (1, False)
    problem = done.document["problems"][0]
    assert LOCK in problem["message"]
    assert "artifacts fetch" in problem["remedy"]
    assert stack("fetch").status == 0
    assert stack("verify").status == 0


def test_a_package_that_the_index_lacks_is_reported_and_the_rest_comes(
    stack: Desk, site: Site
) -> None:
    (site.root / "simple" / "old" / OLD).unlink()
    done = stack("fetch", "--json")
    assert (done.status, done.state(RUNFILE)) == (1, "fetched")
    assert "old" in done.document["problems"][0]["message"]


def test_another_content_than_the_lock_s_is_not_taken(stack: Desk, site: Site) -> None:
    (site.root / "simple" / "tiny" / "tiny-1.0.tar.gz").unlink()
    wheel(site.root / "simple" / "tiny", "tiny", "1.0", "py2.py3-none-any")
    (site.root / "simple" / "tiny" / TINY).unlink()
    done = stack("fetch", "--json")
    assert done.status == 1
    assert "gpu_pip_index_url" in done.document["problems"][0]["remedy"]


def test_a_login_at_the_index_is_used_and_not_printed(stack: Desk, site: Site) -> None:
    server = site.url.removeprefix("http://")
    stack.variables["gpu_pip_index_url"] = f"http://me:secret@{server}/simple"
    done = stack("fetch", "--json")
    assert done.status == 0
    assert "secret" not in done.out + done.err
    assert "secret" not in (stack.mirror / "contents.json").read_text()


def test_a_stack_that_is_no_mapping_is_refused_beside_one_that_is(stack: Desk) -> None:
    stack.variables["gpu_stacks"].insert(0, "2.18.1")
    done = stack("fetch", "--json")
    assert done.status == 4
    assert done.document["problems"][0]["where"] == "gpu01: gpu_stacks[0]"


def test_a_lock_that_cannot_be_resolved_tells_no_login(stack: Desk, site: Site) -> None:
    (stack.inventory.parent / "stacks" / LOCK).unlink()
    server = site.url.removeprefix("http://")
    stack.variables["gpu_pip_index_url"] = f"http://me:secret@{server}/simple"
    done = stack("fetch", "--json")
    assert done.status == 1
    assert "tensorflow==2.13.1" in done.err
    assert "secret" not in done.out + done.err


# Parts of addresses that are secrets, each as the index's address has it, and what may be shown.
SECRET_ADDRESSES = {
    "query": "http://127.0.0.1:1/simple?token=hidden1",
    "login and query": "http://hidden2:hidden3@127.0.0.1:1/simple?token=hidden1&x=hidden4",
    "signature": "http://127.0.0.1:1/simple/?sv=1&sig=hidden1%2Bhidden2%3D",
    "a token as the login": "http://hidden1@127.0.0.1:1/simple",
    "a question mark in the query": "http://127.0.0.1:1/simple?a=hidden1?b=hidden2",
}


@pytest.mark.parametrize("address", SECRET_ADDRESSES.values(), ids=SECRET_ADDRESSES)
@pytest.mark.parametrize("lock", ["there", "to be resolved"])
def test_an_index_that_does_not_answer_tells_no_secret_of_its_address(
    stack: Desk, lock: str, address: str
) -> None:
    if lock != "there":
        (stack.inventory.parent / "stacks" / LOCK).unlink()
    stack.variables["gpu_pip_index_url"] = address
    done = stack("fetch", "--json")
    assert done.status == 1
    assert "127.0.0.1:1" in done.out + done.err
    assert "hidden" not in done.out + done.err


def test_a_lock_is_resolved_where_there_is_none(stack: Desk, site: Site) -> None:
    wheel(site.root / "simple" / "tensorflow", "tensorflow", "2.13.1")
    wheel(site.root / "simple" / "pip", "pip", "26.3")
    lock = stack.inventory.parent / "stacks" / LOCK
    lock.unlink()
    assert stack("fetch").status == 0
    assert "tensorflow==2.13.1" in lock.read_text()
    # TensorFlow 2.13.1 has tensorboard, which needs a setuptools below 82: it is asked for at once.
    assert wheels(stack) == {
        "tensorflow-2.13.1-py3-none-any.whl",
        "pip-26.3-py3-none-any.whl",
        "setuptools-59.6.0-py3-none-any.whl",
    }


@pytest.mark.parametrize(
    ("declaration", "there", "meant"),
    [
        ({}, [], ["tensorflow-2.18.1-py3.12.lock"]),
        # Hosts have had it with these; nobody asked for the newest.
        ({}, ["-py3.10", "-py3.11"], ["tensorflow-2.18.1-py3.10.lock", LOCK_2_18]),
        ({"python": "3.9"}, ["-py3.11"], [LOCK_2_18, "tensorflow-2.18.1-py3.9.lock"]),
        ({"cuda": "pip"}, ["-cuda-pip-py3.11"], ["tensorflow-2.18.1-cuda-pip-py3.11.lock"]),
    ],
)
def test_the_locks_beside_the_inventory_tell_the_hosts_pythons(
    desk: Desk, declaration: dict[str, str], there: list[str], meant: list[str]
) -> None:
    desk.variables["gpu_stacks"] = [{"tensorflow": "2.18.1", **declaration}]
    desk.words("fetch")
    stacks = desk.inventory.parent / "stacks"
    stacks.mkdir()
    for name in (*there, "-other-py3.8"):
        (stacks / f"tensorflow-2.18.1{name}.lock").touch()
    found = needs.needs_of(inventory_hosts(HostSelector([str(desk.inventory)])))
    assert sorted(path.name for path in found.locks) == meant
    # What only other Pythons have is there already, and not this plan's to ask for.
    assert all(lock.requirements or lock.path.exists() for lock in found.locks.values())


@pytest.mark.parametrize(
    ("declared", "own"),
    [({}, ""), ({"gpu_jupyter_kernels": True}, "-jupyter"), ({"gpu_gpus": ["T4"]}, "")],
)
def test_the_lock_for_older_gpus_is_mirrored_too(
    desk: Desk, declared: dict[str, Any], own: str
) -> None:
    """TensorFlow keeps cuDNN below 9.11 for them, in a lock of its own."""
    name = "tensorflow-2.21.0-cuda-pip{}" + own + "-py3.12.lock"
    meant = [name.format(part) for part in ("", "-older-gpu")]
    desk.variables |= {"gpu_stacks": [{"tensorflow": "2.21.0", "cuda": "pip"}], **declared}
    desk.words("fetch")
    stacks = desk.inventory.parent / "stacks"
    stacks.mkdir()
    for each in meant:
        (stacks / each).touch()
    found = needs.needs_of(inventory_hosts(HostSelector([str(desk.inventory)])))
    assert sorted(path.name for path in found.locks) == sorted(meant)


def test_uv_installs_from_the_mirror_with_no_index(stack: Desk, tmp_path: Path) -> None:
    write_lock(stack, [stack.root / "site" / "simple" / "tiny" / TINY])
    stack("fetch")
    subprocess.run([UV, "venv", "--quiet", tmp_path / "venv"], check=True)
    lock = stack.inventory.parent / "stacks" / LOCK
    words = ["--no-deps", "--require-hashes", "--no-index", "--find-links", stack.mirror / "wheels"]
    subprocess.run(
        [UV, "pip", "install", "--python", tmp_path / "venv/bin/python", *words, "-r", lock],
        check=True,
    )
    assert list(tmp_path.glob("venv/lib/*/site-packages/tiny.py"))


def test_what_gpufleet_itself_needs_comes_too_and_is_only_read(
    stack: Desk, site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = wheel(site.root / "simple" / "own", "own", "1.0")
    (tmp_path / "requirements.txt").write_text(pin(own))
    monkeypatch.setattr(artifacts, "ROOT", tmp_path)
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"{site.url}/simple")
    assert stack("fetch", "--with-gpufleet").status == 0
    assert own.name in wheels(stack)
    assert (tmp_path / "requirements.txt").read_text() == pin(own)


def test_damaged_contents_are_named(stack: Desk) -> None:
    stack.mirror.mkdir()
    (stack.mirror / "contents.json").write_text("{")
    done = stack("verify", "--json")
    assert done.status == 1
    assert "contents.json" in done.document["problems"][0]["message"]


def test_a_path_in_contents_leads_nowhere_else(stack: Desk) -> None:
    stack("fetch")
    path = stack.mirror / "contents.json"
    path.write_text(path.read_text().replace(f"wheels/{TINY}", f"../../{TINY}"))
    assert f"wheels/{TINY}" in {row["path"] for row in stack("verify", "--json").document["files"]}


ABI3 = ("cp311-abi3-manylinux_2_28_x86_64", "cp311-abi3-manylinux2014_x86_64")
LEGACY = ("cp36-cp36m-manylinux1_x86_64", "cp36-cp36m-manylinux2010_x86_64")
FOREIGN = ("cp310-cp310-manylinux1_x86_64", "cp311-cp311-musllinux_1_2_x86_64",
           "cp311-cp311-manylinux2014_aarch64", "cp311-cp311t-manylinux_2_17_x86_64")  # fmt: skip
# On a host that is too old for the native one an installer takes the pure one.
BOTH = ("cp311-cp311-manylinux_2_28_x86_64", "py3-none-any")


@pytest.mark.parametrize(
    ("python", "offered", "chosen"),
    [
        ("3.11", BOTH, BOTH),
        ("3.11", ("cp39-abi3-manylinux_2_28_x86_64", *ABI3), ABI3),
        ("3.6", LEGACY, LEGACY[1:]),
        ("3.11", FOREIGN, ()),
    ],
    ids=["native and pure", "of several C libraries", "legacy", "of other machines"],
)
def test_of_the_wheels_those_come_that_some_host_would_choose(
    python: str, offered: tuple[str, ...], chosen: tuple[str, ...]
) -> None:
    found = packages.best(["a-1.tar.gz", *(f"a-1-{tag}.whl" for tag in offered)], python)
    assert set(found) == {f"a-1-{tag}.whl" for tag in chosen}


def test_for_hosts_of_another_architecture_its_own_wheels_come() -> None:
    names = [f"a-1-cp312-cp312-{each}_{arch}.whl" for each in GLIBCS for arch in ARCHES]
    found = packages.best([*names, "a-1-cp312-cp312-manylinux1_aarch64.whl"], "3.12", "aarch64")
    assert set(found) == {name for name in names if name.endswith("_aarch64.whl")}


ARCHES = ("x86_64", "aarch64")
GLIBCS = ("manylinux2014", "manylinux_2_28")


def test_what_a_source_asks_to_be_built_with(tmp_path: Path) -> None:
    asked = 'requires = ["hatchling>=1"]\n'
    modern = source(tmp_path, "modern", "1.0", pyproject_toml=f"[build-system]\n{asked}")
    assert packages.declared_by(modern) == ["hatchling>=1", "wheel"]
    plain = source(tmp_path, "plain", "1.0", pyproject_toml="[tool.x]\n")
    assert packages.declared_by(plain) == ["setuptools>=40.8.0", "wheel"]
    assert packages.declared_by(source(tmp_path, "bare", "1.0")) == packages.declared_by(plain)
