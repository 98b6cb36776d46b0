"""Fetch NVIDIA's wheels into the cache, by exact version and checksum."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lab import files
from lab.command import run
from lab.errors import LabError
from lab.progress import Progress
from lab.settings import Lab

PINS = Path(__file__).with_name("wheels.yml")
AT_ONCE = 4


@dataclass(frozen=True)
class Wheel:
    requirement: str
    file: str
    sha256: str
    size_bytes: int

    @property
    def version(self) -> str:
        return self.requirement.partition("==")[2]

    @property
    def platform(self) -> str:
        """The platform in the file's name: the last of its parts."""
        return self.file.removesuffix(".whl").rpartition("-")[2]


def pinned(requirement: str, arch: str = "", pins: Path = PINS) -> Wheel:
    """The wheel of a requirement for an architecture; empty: for x86_64."""
    known: dict[str, Any] = yaml.safe_load(pins.read_text(encoding="utf-8"))
    key = f"{requirement} {arch}".strip()
    if key not in known:
        raise LabError(f"{key} is not pinned", f"Add its file and sha256 to {pins}.")
    return Wheel(requirement, **known[key])


def fetch(lab: Lab, wanted: list[Wheel], progress: Progress) -> None:
    """Have every one of these in the cache, and of the right content."""
    with files.lock(lab.locks, "wheels", progress.say):
        with ThreadPoolExecutor(AT_ONCE) as pool:
            right = pool.map(lambda wheel: _is_there(lab, wheel), wanted)
            absent = [wheel for wheel, there in zip(wanted, right, strict=True) if not there]
        if not absent:
            return
        total = sum(wheel.size_bytes for wheel in absent)
        title = f"Downloading {len(absent)} wheels of NVIDIA's libraries, {total / 1e6:.0f} MB"
        with (
            progress.step(title) as step,
            files.scratch(lab.cache, "wheels") as work,
            ThreadPoolExecutor(AT_ONCE) as pool,
        ):
            got = 0
            # The big ones first, so that the last minute is not spent on one of them alone.
            absent.sort(key=lambda wheel: -wheel.size_bytes)
            tasks = {pool.submit(_download, lab, wheel, work): wheel for wheel in absent}
            try:
                for task in as_completed(tasks):
                    task.result()
                    got += tasks[task].size_bytes
                    step.detail = f"{got / 1e6:.0f} MB here"
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise


def _is_there(lab: Lab, wheel: Wheel) -> bool:
    path = lab.wheels / wheel.file
    return (
        path.exists()
        and path.stat().st_size == wheel.size_bytes
        and files.sha256(path) == wheel.sha256
    )


def _download(lab: Lab, wheel: Wheel, work: Path) -> None:
    own = work / wheel.file
    own.mkdir()
    wanted = own / "requirements.txt"
    wanted.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n", encoding="ascii")
    try:
        run(
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
            # Not through pip's own cache: it would keep a second copy of each.
            *("--no-cache-dir", "--only-binary=:all:", "--require-hashes"),
            *("--platform", wheel.platform),
            *("--dest", own, "--requirement", wanted),
            timeout=3600,
            extra={"TMPDIR": str(own)},
        )
    except LabError as error:
        raise LabError(
            error.message,
            f"{wheel.requirement} comes from the Python package index that pip is set to"
            " (`pip config list`). Check that the index is reachable, or put the file"
            f" {wheel.file} into {lab.wheels} yourself; then run the same command again.",
        ) from None
    files.move(own / wheel.file, lab.wheels / wheel.file)
