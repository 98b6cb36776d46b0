"""The small server: whole files, listings for installers, and what the inventory is to say."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from tests.support.mirror_site import heed_interrupts, wheel

ROOT = Path(__file__).resolve().parents[2]


def command(*words: str | Path) -> list[str | Path]:
    """The native command."""
    return [sys.executable, "-m", "gpufleet", "artifacts", "serve", *words]


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[None]:
    """Whatever fails, the process is not waited for in vain."""
    try:
        yield
    finally:
        process.kill()


def test_it_serves_files_and_listings_and_prints_the_inventory_s_lines(tmp_path: Path) -> None:
    tiny = wheel(tmp_path / "wheels", "tiny", "1.0")
    (tmp_path / "cuda.run").write_bytes(b"a runfile")
    words = command(tmp_path, "--bind", "127.0.0.1", "--port", "0")
    with (
        subprocess.Popen(
            words,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=heed_interrupts,  # noqa: PLW1509 (no threads here)
        ) as server,
        ended(server),
    ):
        assert server.stdout is not None
        output = yaml.safe_load(server.stdout.readline() + server.stdout.readline())
        assert output["gpu_wheelhouse"] == output["gpu_artifacts_source"] + "/wheels"
        with urllib.request.urlopen(output["gpu_artifacts_source"] + "/cuda.run") as answer:
            assert answer.read() == b"a runfile"
        with urllib.request.urlopen(output["gpu_wheelhouse"]) as answer:
            assert f'href="{tiny.name}"' in answer.read().decode()
        server.send_signal(signal.SIGINT)
        assert server.wait(10) == 0


def test_a_directory_that_is_no_mirror_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(command(tmp_path), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert "artifacts fetch" in done.stderr


def test_an_address_that_is_not_this_machine_s_is_refused(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    words = command(tmp_path, "--bind", "192.0.2.1")
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert "--bind 192.0.2.1" in done.stderr
