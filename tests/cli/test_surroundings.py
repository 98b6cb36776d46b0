"""Odd surroundings of a command: a sentence and the documented status, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from gpufleet.cli.main import parsers
from tests.support.command_line import PLAN, ROOT, SNAPSHOT
from tests.support.warm_start import run_warm

PARSERS = parsers()
# A cheap use of each verb, with the exit status in usual surroundings.
INVENTORY = "gpu01,"
USES: dict[str, tuple[list[str], int]] = {
    "init": (["init", "fleet"], 0),
    "completion": (["completion", "bash"], 0),
    "resolve": (["resolve", "--tensorflow", "2.13.1"], 0),
    "plan": (["plan", "-i", "hosts.yml", "--offline"], 0),
    "provision": (["provision", "-i", "nowhere"], 4),
    "rollout": (["rollout", "-i", "hosts.yml", "--plan"], 0),
    "remove": (["remove", "-i", "nowhere", "--driver", "--yes"], 4),
    "playbook": (["playbook", "nothing", "-i", INVENTORY], 4),
    "verify": (["verify", "--snapshot", SNAPSHOT, "--plan", PLAN, "--report", "reports"], 0),
    "nightly": (["nightly", "--config", "nightly.yml", "--check"], 0),
    "fabric": (["fabric", "test", "-i", "hosts.yml", "--shared"], 4),
    "history": (["history", "--database", "none.sqlite"], 4),
    "silence": (["silence", "--list", "--database", "none.sqlite"], 4),
    "manifest": (["manifest", "propose", "--snapshot", SNAPSHOT], 4),
    "commission": (["commission", "-i", "hosts.yml", "--state", "state"], 4),
    "fleet": (["fleet", "-i", "nowhere"], 4),
    "artifacts": (["artifacts", "verify", "none", "-i", "hosts.yml"], 4),
    "test": (["test", "--shards", "--nothing"], 1),
    "lint": (["lint", "--nothing"], 4),
    "build": (["build", "--nothing"], 4),
    "catalog": (["catalog", "nothing"], 4),
}
HOSTS = "gpu_hosts: {hosts: {gpu01: {ansible_host: 192.0.2.1, gpu_expect: {count: 0}}}}\n"
Around = Callable[[Path], dict[str, Any]]


def locale(name: str) -> Around:
    return lambda _: {"env": {**os.environ, "LC_ALL": name, "LANG": name}}


def to_full(stream: str) -> Around:
    return lambda _: {stream: Path("/dev/full").open("wb")}


def closed(*numbers: int) -> Around:
    def around(_: Path) -> dict[str, Any]:
        return {"preexec_fn": lambda: [os.close(number) for number in numbers]}

    return around


def removed(directory: Path) -> dict[str, Any]:
    there = directory / "removed"
    there.mkdir()

    def remove() -> None:
        os.chdir(there)
        there.rmdir()

    return {"preexec_fn": remove}


SURROUNDINGS: dict[str, Around] = {
    "LC_ALL=C": locale("C"),
    "LC_ALL=POSIX": locale("POSIX"),
    "an unknown locale": locale("xx_YY.ISO-8859-1"),
    "no variables": lambda _: {"env": {"PATH": os.environ["PATH"]}},
    "stdout is full": to_full("stdout"),
    "stderr is full": to_full("stderr"),
    "stdin closed": closed(0),
    "stdout closed": closed(1),
    "stderr closed": closed(2),
    "all closed": closed(0, 1, 2),
    "no directory": removed,
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "hosts.yml").write_text(HOSTS)
    (tmp_path / "nightly.yml").write_text(
        json.dumps({"inventory": [str(tmp_path / "hosts.yml")], "state_dir": str(tmp_path / "s")})
    )
    return tmp_path


def run(directory: Path, around: Around, *words: str) -> subprocess.CompletedProcess[bytes]:
    more = {
        "cwd": directory,
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        **around(directory),
    }
    return subprocess.run(
        [sys.executable, "-m", "gpufleet", *words], timeout=120, check=False, **more
    )


def test_every_verb_has_a_cheap_use() -> None:
    # What report shows depends on whether this checkout has a report already.
    assert USES.keys() == PARSERS.keys() - {"report"}


def some(verbs: Iterable[str]) -> list[Any]:
    """Pairs of a verb and surroundings, spread over the tiers of tests.

    In each run of the tests, one verb in each of them; with the tests on hosts, each verb in one of
    them; the rest with the tests that take minutes.
    """
    names = list(SURROUNDINGS)
    return [
        pytest.param(verb, name, marks=marks(number, names.index(name)))
        for number, verb in enumerate(verbs)
        for name in names
    ]


def marks(verb: int, surroundings: int) -> list[pytest.MarkDecorator]:
    """The marks of a verb in surroundings, by their places in the lists."""
    if verb == surroundings:
        return []
    return [pytest.mark.costly if verb % len(SURROUNDINGS) == surroundings else pytest.mark.slow]


@pytest.mark.parametrize(("verb", "surroundings"), some(["", *PARSERS]))
def test_help_in_odd_surroundings(directory: Path, verb: str, surroundings: str) -> None:
    done = run(directory, SURROUNDINGS[surroundings], *filter(None, [verb, "--help"]))
    check(done, surroundings, 0)
    if done.stdout and done.returncode == 0:
        assert b"Usage" in done.stdout or b"usage" in done.stdout


@pytest.mark.costly
@pytest.mark.parametrize(("verb", "surroundings"), some(reversed(USES)))
def test_a_use_in_odd_surroundings(directory: Path, verb: str, surroundings: str) -> None:
    words, status = USES[verb]
    done = run(directory, SURROUNDINGS[surroundings], *words)
    check(done, surroundings, status)


def check(done: subprocess.CompletedProcess[bytes], surroundings: str, usual: int) -> None:
    """The usual status, or 4 where it cannot do its work in these surroundings; no traceback."""
    printed = (done.stdout or b"") + (done.stderr or b"")
    assert b"Traceback" not in printed, printed.decode(errors="replace")
    assert b"Exception ignored" not in printed, printed.decode(errors="replace")
    refuses = surroundings in {"stdout is full", "no directory"}
    assert done.returncode in ({4, usual} if refuses else {usual}), printed.decode(errors="replace")
    if refuses and usual == 0:
        assert done.returncode == 4 or surroundings == "stdout is full"
        if done.returncode == 4:
            assert len((done.stderr or b"").splitlines()) >= 1


def test_a_full_output_is_named(directory: Path) -> None:
    done = run(directory, to_full("stdout"), *USES["resolve"][0])
    assert done.returncode == 4
    [line] = done.stderr.decode().splitlines()
    assert line.startswith("gpufleet: No space left on device.")
    assert "standard output" in line


def test_a_removed_directory_is_named(directory: Path) -> None:
    done = run(directory, removed, "verify", "-i", "hosts.yml")
    assert done.returncode == 4
    [line] = done.stderr.decode().splitlines()
    assert line.startswith("gpufleet: The current directory cannot be used: ")


def test_who_reads_only_the_beginning_gets_no_error() -> None:
    """As with `| head -1`."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "gpufleet", "completion", "bash"],
        cwd=ROOT,
        stdout=write,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (128 + 13, b"")


def test_what_is_printed_goes_to_no_other_file(directory: Path) -> None:
    """With standard output closed, the first file that is opened would have its number."""
    words = USES["verify"][0]
    done = run(directory, closed(1, 2), *words)
    assert done.returncode == 0
    [report] = (directory / "reports").glob("2*")
    json.loads((report / "report.json").read_text())
    assert (report / "report.html").read_text().startswith("<!")


HEADERS = ("abc", "-5", "", "1e3", "9" * 400, "12, 12", "0x10", "\u00b2")


@pytest.fixture(params=HEADERS, ids=repr)
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server, or a proxy before it, whose headers name no size."""
    length = request.param

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.wfile.write(b"HTTP/1.1 206 Partial Content\r\n")
            for name in ("Content-Length", "Content-Range"):
                self.wfile.write(f"{name}: {length}\r\n".encode("latin-1", "replace"))
            self.wfile.write(b"Connection: close\r\n\r\n")
            if self.command == "GET":
                self.wfile.write(b"content")
            self.close_connection = True

        do_HEAD = do_GET  # noqa: N815 (its base names it)

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as found:
        threading.Thread(target=found.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()


def test_a_size_that_is_no_number_costs_the_file_and_nothing_else(
    directory: Path, server: str
) -> None:
    (directory / "hosts.yml").write_text(
        json.dumps(
            {
                "gpu_hosts": {
                    "hosts": {
                        "gpu01": {
                            "ansible_host": "192.0.2.1",
                            "gpu_toolkits": ["11.8"],
                            "gpu_accept_nvidia_eula": True,
                            "gpu_artifacts_source": server,
                            "gpu_expect": {"count": 0},
                        }
                    }
                }
            }
        )
    )
    words = ("artifacts", "fetch", "mirror", "-i", "hosts.yml")
    done = run_warm("-m", "gpufleet", *words, cwd=directory)
    printed = done.stdout + done.stderr
    assert "Traceback" not in printed, printed
    assert done.returncode == 1, printed
