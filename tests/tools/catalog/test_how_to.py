"""The guide "Add a release" is followed literally, in a copy of the checkout, without a network."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import published

pytestmark = pytest.mark.costly

ROOT = Path(__file__).parents[3]
GUIDE = "docs/how-to/add-a-cuda-version.md"
TOOLKIT, CUDNN = "13.99.0", "9.99.0.1"
# Frameworks need a package index: test_addition.py has one of its own. The tests run anyway.
ELSEWHERE = re.compile(r"--(tensorflow|pytorch|jax)|==|^test ")
OFFLINE = {
    "UV_OFFLINE": "1",
    **dict.fromkeys(("UV_DEFAULT_INDEX", "PIP_INDEX_URL"), "http://127.0.0.1:9/simple"),
}


def copy_of_checkout(folder: Path) -> Path:
    """A copy of the checkout with the files of a fresh clone."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, target, follow_symlinks=False)
    return folder


def commands(guide: str) -> list[list[str]]:
    """The guide's commands, in its order."""
    lines = re.findall(r"^ {4,}\./gpufleet (.+)$", guide, re.MULTILINE)
    return [shlex.split(line) for line in lines if not ELSEWHERE.search(line)]


def run(checkout: Path, *command: str) -> str:
    """Run a command of the copy; its output."""
    done = subprocess.run(
        [sys.executable, "-m", "gpufleet", *command],
        cwd=checkout,
        env={**os.environ, **OFFLINE, "PYTHONPATH": str(checkout / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr)
    return done.stdout


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout in which each command of the guide was run."""
    checkout = copy_of_checkout(tmp_path_factory.mktemp("checkout"))
    for name, manifest in (
        (f"redistrib_{TOOLKIT}.json", published.cuda(TOOLKIT)),
        ("redistrib_9.99.0.json", published.cudnn(CUDNN)),
    ):
        (checkout / name).write_text(json.dumps(manifest), encoding="utf-8")
    md5 = published.digest("runfile", "md5")
    (checkout / "md5sum.txt").write_text(f"{md5}  cuda_{TOOLKIT}_linux.run\n", encoding="utf-8")
    found = commands((checkout / GUIDE).read_text(encoding="utf-8"))
    assert [command[:2] for command in found] == [
        ["catalog", "add"],
        ["catalog", "add"],
        ["catalog", "check"],
        ["catalog", "add"],
    ]
    outputs = [run(checkout, *command) for command in found]
    # The first one is a dry run, which writes nothing.
    assert "--dry-run" in found[0]
    assert f"+  - version: {TOOLKIT}" in outputs[0]
    assert f"+  - version: {TOOLKIT}" in outputs[1]
    assert f"+  - version: {CUDNN}" in outputs[3]
    return checkout


def test_the_rows_of_the_new_releases_are_valid(followed: Path) -> None:
    assert run(followed, "catalog", "check", "--rows") == "every row is valid\n"
    text = (followed / "src/gpufleet/catalog/data/toolkits/13.yml").read_text(encoding="utf-8")
    assert f"md5: {published.digest('runfile', 'md5')}" in text


def test_the_new_toolkit_and_cudnn_resolve_with_a_checksum_that_is_vouched_for(
    followed: Path,
) -> None:
    declared = {
        "gpu_accept_nvidia_eula": True,
        "gpu_toolkits": [{"cuda": TOOLKIT, "cudnn": [CUDNN]}],
        "gpu_artifacts": {
            f"cuda_{TOOLKIT}_linux.run": {"sha256": "0" * 64, "size_bytes": 4300000000}
        },
    }
    program = (
        "import json, sys; from gpufleet.components import resolver;"
        "print(json.dumps(resolver.resolve(json.load(sys.stdin))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(declared),
        env={**os.environ, "PYTHONPATH": str(followed / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    plan = json.loads(done.stdout)
    assert plan["problems"] == []
    assert [row["version"] for row in plan["toolkits"]] == [TOOLKIT]
    assert [row["version"] for row in plan["cudnn"]] == [CUDNN]
    answer = json.loads(run(followed, "resolve", "--jax", "0.12.0.1", "--cuda", "13", "--json"))
    assert answer["jax"] == "0.12.0.1"
