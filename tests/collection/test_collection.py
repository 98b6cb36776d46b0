"""The collection as others install it: what the archive contains, its documentation, a playbook.

No test changes this machine: playbooks run in check mode with directories of their own.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
import yaml

from tools.cli import build

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / ".venv" / "bin"
NAME = "gpufleet.gpu"
RANGE: str = yaml.safe_load((ROOT / "meta" / "runtime.yml").read_text())["requires_ansible"]
OLDEST, END = RANGE.removeprefix(">=").split(",<")
PINS = list(build.pins((ROOT / "requirements.txt").read_text()))

# A site's own playbook: one of gpufleet's roles, with the variables that it needs at least.
PLAYBOOK = """
- hosts: all
  gather_facts: false
  vars:
    gpu_toolkits: ["11.8"]
    gpu_accept_nvidia_eula: true
    gpu_prefix: {directory}/prefix
    gpu_artifacts_cache: {directory}/cache
    ansible_python_interpreter: "{{{{ ansible_playbook_python }}}}"
  roles: [gpufleet.gpu.cuda]
"""


def run(*arguments: str | Path, **environment: str) -> str:
    """The output of a command that succeeds, run outside of the checkout's settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    done = subprocess.run(
        arguments, cwd="/", env={**kept, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def archive(built: Path) -> Path:
    """The built collection, beside the wheel."""
    (archive,) = built.glob("gpufleet-gpu-*.tar.gz")
    return archive


@pytest.fixture(scope="module")
def collections(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the collection installed, without a network."""
    directory = tmp_path_factory.mktemp("collections")
    # The checkout's own environment has the collection already, as a link: hence --force.
    options = ("--offline", "--force", "--collections-path", directory)
    run(BIN / "ansible-galaxy", "collection", "install", *options, archive)
    return directory


def check(playbook: Path, collections: Path, program: Path) -> str:
    """The output of a playbook in check mode on this machine."""
    playbook.write_text(PLAYBOOK.format(directory=playbook.parent))
    return run(
        program, "--check", "--connection", "local", "--inventory", "localhost,", playbook,
        ANSIBLE_COLLECTIONS_PATH=str(collections), ANSIBLE_HOME=str(playbook.parent / "home"),
    )  # fmt: skip


def test_the_archive_contains_the_collection_and_nothing_else(archive: Path) -> None:
    with tarfile.open(archive) as tar:
        names = [name for name in tar.getnames() if not name.endswith("/")]
    assert {name.partition("/")[0] for name in names} == {
        "CHANGELOG.md", "FILES.json", "LICENSE", "MANIFEST.json", "README.md", "meta", "playbooks",
        "plugins", "roles", "src", "tests"}  # fmt: skip
    parts = {tuple(name.split("/")[:3]) for name in names if name.count("/") > 1}
    assert {part for part in parts if part[0] == "src"} == {
        ("src", "gpufleet", "frameworks"),
        ("src", "gpufleet", "on_host"),
    }
    assert [name for name in names if name.startswith("src/gpufleet/frameworks/")] == [
        "src/gpufleet/frameworks/hosts.py"
    ]
    assert {part[:2] for part in parts if part[0] == "tests"} <= {("tests", "sanity")}


def test_every_link_of_the_installed_collection_resolves(collections: Path) -> None:
    root = collections / "ansible_collections" / "gpufleet" / "gpu"
    links = [path for path in root.rglob("*") if path.is_symlink()]
    assert links
    for path in links:
        assert path.resolve(strict=True).is_relative_to(root.resolve()), path


@pytest.mark.parametrize("kind", ["module", "role", "callback"])
def test_everything_is_documented(collections: Path, kind: str) -> None:
    folder = {"module": "plugins/modules", "role": "roles", "callback": "plugins/callback"}[kind]
    names = sorted(
        f"{NAME}.{path.stem}" for path in (ROOT / folder).iterdir() if path.name != "__pycache__"
    )
    printed = run(
        BIN / "ansible-doc", "--type", kind, "--json", *names,
        ANSIBLE_COLLECTIONS_PATH=str(collections),
    )  # fmt: skip
    documents = json.loads(printed)
    assert sorted(documents) == names
    if kind == "module":
        for name, document in documents.items():
            assert document["doc"]["short_description"], name
            assert yaml.safe_load(document["examples"]), name
            assert document["return"], name


def test_every_playbook_is_known_by_its_full_name(collections: Path) -> None:
    names = sorted(f"{NAME}.{path.stem}" for path in (ROOT / "playbooks").glob("*.yml"))
    run(
        BIN / "ansible-playbook", "--syntax-check", "--inventory", "localhost,", *names,
        ANSIBLE_COLLECTIONS_PATH=str(collections),
    )  # fmt: skip


@pytest.mark.costly
def test_a_role_works_in_the_playbook_of_somebody_else(collections: Path, tmp_path: Path) -> None:
    output = check(tmp_path / "play.yml", collections, BIN / "ansible-playbook")
    assert "changed: [localhost] => (item=CUDA 11.8.0)" in output
    assert not (tmp_path / "prefix").exists()


def newer_python() -> str:
    """A Python that the newest ansible-core supports, which is not always that of the checkout."""
    pyenv = Path.home() / ".pyenv" / "versions"
    for path in (sys.executable, *pyenv.glob("3.1[23].*/bin/python"), "python3.13", "python3.12"):
        code = "import sys; sys.exit(not (3, 12) <= sys.version_info < (3, 14))"
        with contextlib.suppress(FileNotFoundError):
            if subprocess.run([path, "-c", code], capture_output=True, check=False).returncode == 0:
                return str(path)
    pytest.skip("the newest ansible-core needs Python 3.12 or 3.13, and this machine has none")


@pytest.mark.slow
@pytest.mark.parametrize("core", [f"=={OLDEST}", f"<{END}"], ids=["oldest", "newest"])
def test_it_works_with_every_supported_ansible_core(
    archive: Path, core: str, tmp_path: Path
) -> None:
    """In a fresh environment with nothing but ansible-core and gpufleet's wheel."""
    uv, fresh = BIN / "uv", tmp_path / "environment"
    (wheel,) = archive.parent.glob("gpufleet-*.whl")
    run(uv, "venv", "--python", newer_python() if core.startswith("<") else sys.executable, fresh)
    others = [f"{name}=={found}" for name, found, _ in PINS if name != "ansible-core"]
    (tmp_path / "others.txt").write_text("\n".join(others))
    target = ("--python", fresh / "bin" / "python", "--constraint", tmp_path / "others.txt")
    run(uv, "pip", "install", *target, f"ansible-core{core}")
    playbook, collections = tmp_path / "play.yml", tmp_path / "collections"
    install = ("collection", "install", "--offline", "--collections-path", collections)
    run(fresh / "bin" / "ansible-galaxy", *install, archive)

    with pytest.raises(AssertionError, match="pip install dist/gpufleet-"):
        check(playbook, collections, fresh / "bin" / "ansible-playbook")

    run(uv, "pip", "install", *target, wheel, f"ansible-core{core}")
    output = check(playbook, collections, fresh / "bin" / "ansible-playbook")
    assert "changed: [localhost] => (item=CUDA 11.8.0)" in output
    names = sorted(f"{NAME}.{path.stem}" for path in (ROOT / "playbooks").glob("*.yml"))
    run(
        fresh / "bin" / "ansible-playbook", "--syntax-check", "--inventory", "localhost,", *names,
        ANSIBLE_COLLECTIONS_PATH=str(collections),
    )  # fmt: skip
    run(fresh / "bin" / "gpufleet", "init", tmp_path / "fleet")
    plans = run(fresh / "bin" / "gpufleet", "plan", "--offline", "--json", "-i", tmp_path / "fleet")
    assert len(json.loads(plans)["hosts"]) == 2


def test_package_collection_and_roles_support_the_same_ansible_core() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"ansible-core{RANGE}" in project["dependencies"]
    for path in (ROOT / "roles").glob("*/meta/main.yml"):
        oldest = yaml.safe_load(path.read_text())["galaxy_info"]["min_ansible_version"]
        assert f"{oldest}.0" == OLDEST, path
