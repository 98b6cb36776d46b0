"""Two hosts' sides of a distributed run: how they meet, and what is told of who goes."""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, NoReturn

import pytest

from gpufleet.workload import rendezvous
from gpufleet.workload.distributed import PROGRAMS, variables
from gpufleet.workload.distributed_jax import use_gloo
from gpufleet.workload.distributed_pytorch import in_processes
from gpufleet.workload.rendezvous import (
    PeerLostError,
    error_message,
    listener,
    lost,
    meet,
    reached,
    visited,
)

numpy = pytest.importorskip("numpy", reason="numpy belongs to stacks; none is here")


def test_each_side_uses_all_gpus_by_the_numbers_of_the_bus() -> None:
    found = variables(2)
    assert found["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert found["TF_MIN_GPU_MULTIPROCESSOR_COUNT"] == "1"
    assert "CUDA_VISIBLE_DEVICES" not in found
    assert variables(0) == {**found, "CUDA_VISIBLE_DEVICES": "-1"}


# -- how they meet --------------------------------------------------------------------------------


class EndedError(Exception):
    """A side ended: its state."""


class Sitting:
    """A stand-in for a side and its line to the other: both are threads of this process."""

    def __init__(self, me: int, table: Table) -> None:
        self.me, self.table = me, table
        self.config = {
            "index": me,
            "kind": table.kind,
            "framework": table.framework,
            "addresses": ["127.0.0.1"] * 2,
            "gpus": 0,
        }
        self.address: str | None = None
        self.ended: str | None = None
        self.document: dict[str, Any] = {"ports": [], "reach": []}

    def stage(self, name: str) -> None:
        self.document["stage"] = name

    def gather(self, name: str, value: object) -> list[object]:
        if self.document["ports"] and name == "waiting for the other host's ports":
            self.table.meddle(self.document["ports"][0])
        self.table.output[self.me] = value
        self.table.barrier.wait()
        heard = list(self.table.output)
        self.table.barrier.wait()
        return heard

    def end(self, state: str, _error: str) -> NoReturn:
        self.ended = state
        raise EndedError(state)

    def sit(self) -> None:
        try:
            meet(self, 1, None, PROGRAMS[self.config["framework"]].GLOO)
        except EndedError:
            return


class Table:
    """Two sides that meet, and who else connects to the first port of each."""

    def __init__(self, kind: str, framework: str, meddle: Callable[[int], None]) -> None:
        self.kind, self.framework, self.meddle = kind, framework, meddle
        self.output: list[object] = [None, None]
        self.barrier = threading.Barrier(2, timeout=60)

    def met(self) -> list[Sitting]:
        sides = [Sitting(me, self) for me in (0, 1)]
        threads = [threading.Thread(target=side.sit) for side in sides]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return sides


def nobody(_port: int) -> None:
    """No other one connects."""


@pytest.fixture
def stay() -> Iterator[ExitStack]:
    """A stack of connections that stay until the test's end."""
    with ExitStack() as stack:
        yield stack


def stray(stay: ExitStack, kind: str, port: int) -> None:
    """A connection that is not the other host's: silent, reset, closed, or one that guesses."""
    made = stay.enter_context(socket.create_connection(("127.0.0.1", port)))
    if kind == "reset":
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if kind == "guesses":
        made.sendall(b"1")
    if kind in {"reset", "closed"}:
        made.close()


@pytest.mark.parametrize("kind", ["silent", "reset", "closed", "guesses"])
def test_a_stranger_s_connection_does_not_keep_two_hosts_apart(stay: ExitStack, kind: str) -> None:
    for side in Table("all-reduce", "pytorch", partial(stray, stay, kind)).met():
        assert side.ended is None
        assert side.address == "127.0.0.1"
        assert not [row for row in side.document["reach"] if row["error"]]


def test_a_guess_from_another_address_does_not_choose_gloo_s(stay: ExitStack) -> None:
    def guess(port: int) -> None:
        made = stay.enter_context(socket.create_connection(("127.0.0.9", port)))
        made.sendall(b"01")

    assert [side.address for side in Table("all-reduce", "jax", guess).met()] == ["127.0.0.1"] * 2


# -- the ports that the kernel chooses ------------------------------------------------------------


def closed(monkeypatch: pytest.MonkeyPatch, range_of: Callable[[int], bool]) -> None:
    """A stand-in for a firewall that refuses some ports."""
    real = rendezvous.reached
    monkeypatch.setattr(
        rendezvous,
        "reached",
        lambda address, port, word: "closed" if range_of(port) else real(address, port, word),
    )


def kernel_s(port: int) -> bool:
    return port not in range(*rendezvous.PORTS)


@pytest.mark.parametrize("framework", ["tensorflow", "pytorch", "jax"])
def test_nccl_runs_where_only_the_declared_ports_are_open(
    monkeypatch: pytest.MonkeyPatch, framework: str
) -> None:
    closed(monkeypatch, kernel_s)
    for side in Table("nccl", framework, nobody).met():
        assert side.ended is None
        assert side.address == "127.0.0.1"
        ports = [row["port"] for row in side.document["reach"] if row["error"]]
        assert len(ports) == 2
        assert all(map(kernel_s, ports))


@pytest.mark.parametrize(
    ("kind", "range_of"), [("all-reduce", kernel_s), ("nccl", lambda port: not kernel_s(port))]
)
def test_a_closed_port_that_is_needed_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, kind: str, range_of: Callable[[int], bool]
) -> None:
    closed(monkeypatch, range_of)
    assert [side.ended for side in Table(kind, "pytorch", nobody).met()] == ["unconnected"] * 2


class Chosen(socket.socket):
    """A stand-in for a kernel whose range holds the declared ports: it chooses these first."""

    choices: ClassVar[list[int]]

    def bind(self, address: Any) -> None:
        super().bind((address[0], address[1] or self.choices.pop(0)))


@pytest.mark.parametrize("family", [socket.AF_INET6, socket.AF_INET])
def test_the_kernel_s_port_is_none_of_the_declared(
    monkeypatch: pytest.MonkeyPatch, family: socket.AddressFamily
) -> None:
    class OneFamily(Chosen):
        def __init__(self, wanted: int, kind: int) -> None:
            if wanted != family:
                raise OSError("Address family not supported by protocol")
            super().__init__(wanted, kind)

    with listener() as one, listener() as two:
        free = [item.getsockname()[1] for item in (one, two)]
    OneFamily.choices = [*free, 0]
    monkeypatch.setattr("gpufleet.workload.rendezvous.socket.socket", OneFamily)
    with listener(0) as found:
        assert kernel_s(found.getsockname()[1])


# -- between two hosts ----------------------------------------------------------------------------


RIGHT = numpy.arange(4, dtype=numpy.float32).reshape(2, 2)


def fails(error: Exception) -> Callable[[], NoReturn]:
    """A task that ends with this error."""

    def task() -> NoReturn:
        raise error

    return task


def test_each_gpu_has_a_process_whose_failure_is_reported() -> None:
    [(device, found, _), _] = in_processes(numpy, [(0, lambda: RIGHT), (1, lambda: RIGHT + 1)])
    assert (device, found.tolist()) == ("GPU:0", RIGHT.tolist())
    with pytest.raises(RuntimeError, match="GPU 1: RuntimeError: no such device"):
        in_processes(numpy, [(0, lambda: RIGHT), (1, fails(RuntimeError("no such device")))])


@pytest.mark.parametrize(
    ("ends", "reported_as"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), r"was killed \(SIGKILL\)"),
        (
            lambda: os.kill(os.getpid(), signal.SIGRTMIN + 3),
            rf"was killed \({signal.SIGRTMIN + 3}\)",
        ),
        (lambda: os._exit(3), "ended with status 3"),
    ],
)
def test_how_the_process_of_a_gpu_ended_is_reported(
    ends: Callable[[], None], reported_as: str
) -> None:
    with pytest.raises(RuntimeError, match=f"GPU 1: its process {reported_as}"):
        in_processes(numpy, [(0, lambda: RIGHT), (1, ends)])


def test_the_first_failure_is_reported_before_another_gpu_s_deadline() -> None:
    waits: Callable[[], None] = lambda: time.sleep(600)  # noqa: E731
    begin = time.monotonic()
    with pytest.raises(RuntimeError, match="GPU 1: RuntimeError: no such device"):
        in_processes(numpy, [(0, waits), (1, fails(RuntimeError("no such device"))), (2, waits)])
    assert time.monotonic() - begin < 60
    gone = RuntimeError("NCCL error in: x.cpp, remote process exited or there was a network error")
    with pytest.raises(PeerLostError, match="GPU 1: RuntimeError: NCCL error"):
        in_processes(numpy, [(0, waits), (1, fails(gone))])


def test_what_nccl_writes_is_kept_of_each_process() -> None:
    """As NCCL does: each process opens its file again, and empties it."""

    def writes(number: int) -> Any:
        log = Path(os.environ["NCCL_DEBUG_FILE"])
        log.write_text(f"rank {number} of 8 Init COMPLETE\nsomething else\n", encoding="utf-8")
        return RIGHT

    found = in_processes(numpy, [(number, partial(writes, number)) for number in range(8)])
    assert [lines for _, _, lines in found] == [
        [f"rank {number} of 8 Init COMPLETE"] for number in range(8)
    ]


@pytest.mark.parametrize(("seen", "address"), [("127.0.0.1", "127.0.0.1"), ("::1", "::1")])
def test_gloo_gets_the_address_at_which_the_other_host_came(seen: str, address: str) -> None:
    with listener() as listening:
        port = listening.getsockname()[1]
        assert reached("127.0.1.1", port, "mine") is None  # this host itself, by its own name
        assert reached(seen, port, "theirs") is None
        assert visited(listening, "theirs") == address


def test_what_cannot_be_a_name_is_reached_no_more_than_a_host_that_is_down() -> None:
    assert "label too long" in str(reached("x" * 64, 1, "mine"))


def test_a_connection_that_came_elsewhere_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpufleet.workload.rendezvous.REACH_S", 0.2)
    with listener(0) as listening:
        assert reached("127.0.0.1", listening.getsockname()[1], "mine") is None
        assert visited(listening, "theirs") is None


@pytest.mark.parametrize(
    "setting", ["jax_cpu_collectives_implementation", "jax_cpu_enable_gloo_collectives"]
)
def test_jax_s_gloo_listens_at_that_address(monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    made: list[tuple[object, str]] = []
    chosen: dict[str, object] = {}

    def update(name: str, value: object) -> None:
        if name not in {"jax_platforms", setting}:
            raise AttributeError(f"Unrecognized config option: {name}")
        chosen[name] = value

    library = SimpleNamespace(
        make_gloo_tcp_collectives=lambda distributed_client, hostname: made.append(
            (distributed_client, hostname)
        )
    )
    package = ModuleType("jax._src")
    package.xla_bridge = SimpleNamespace(  # type: ignore[attr-defined]
        xla_client=SimpleNamespace(_xla=library)
    )
    monkeypatch.setitem(sys.modules, "jax", ModuleType("jax"))
    monkeypatch.setitem(sys.modules, "jax._src", package)
    use_gloo(SimpleNamespace(config=SimpleNamespace(update=update)), "10.1.0.1")
    library.make_gloo_tcp_collectives(distributed_client="its")  # as JAX does
    assert made == [("its", "10.1.0.1")]
    assert chosen["jax_platforms"] == "cpu"
    assert chosen[setting]


# As they were raised between two network namespaces; NCCL's and DistNetworkError as libtorch has
# them.
@pytest.mark.parametrize(
    ("text", "gone"),
    [
        (
            "UNKNOWN: Gloo context initialization failed: [external/gloo/gloo/transport/tcp/pair.h:301]"
            " Connect timeout [none]",
            True,
        ),
        (
            "UNKNOWN: Gloo context initialization failed: [external/gloo/gloo/transport/tcp/pair.cc:152]"
            " timed out connecting: SO_ERROR: Connection refused, remote=[127.0.1.1]:34191",
            True,
        ),
        ("Connection reset by peer", True),
        ("NCCL error in: x.cpp:268, remote process exited or there was a network error", True),
        ("NCCL error in: x.cpp:268, unhandled cuda error (run with NCCL_DEBUG=INFO)", False),
        (
            "NCCL error in: x.cpp:268, unhandled system error\nncclSystemError: System call failed.\n"
            "Last error:\nsocketPollConnect: Connect to 192.168.122.1<40213> returned 113(No route to"
            " host) errno 115",
            True,
        ),
        (
            "NCCL error in: x.cpp:268\nLast error:\nsocketStartConnect: Connect to 10.0.0.2<40213> failed"
            " : Connection timed out",
            True,
        ),
        ("INTERNAL: NCCL operation failed: Network is unreachable", True),
        ("CUDA out of memory", False),
        ("UNAVAILABLE: Failed to send RPC to coordination service", True),
    ],
)
def test_an_error_says_whether_the_other_host_is_gone(text: str, gone: bool) -> None:
    assert lost(RuntimeError(text)) is gone


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "NCCL error in: x.cpp:268, unhandled system error\nncclSystemError: System call failed.\n"
            "Last error:\nsocketPollConnect: Connect to 192.168.122.1<40213> returned 113(No route to"
            " host)\n",
            "RuntimeError: NCCL error in: x.cpp:268, unhandled system error;"
            " socketPollConnect: Connect to 192.168.122.1<40213> returned 113(No route to host)",
        ),
        (
            "INTERNAL: NCCL failed. Last error: no route",
            "RuntimeError: INTERNAL: NCCL failed. Last error: no route",
        ),
        ("NCCL error in: x.cpp:268\nLast error:\n", "RuntimeError: NCCL error in: x.cpp:268"),
        ("CUDA out of memory\nmore", "RuntimeError: CUDA out of memory"),
    ],
)
def test_what_nccl_names_as_its_last_error_is_reported(text: str, shown: str) -> None:
    assert error_message(RuntimeError(text)) == shown
