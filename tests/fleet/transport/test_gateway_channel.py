"""A gateway that somebody took over: what it sends runs nothing here, and costs nobody else."""

from __future__ import annotations

import base64
import os
import pickle
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import pytest
from ClusterShell.Communication import MessageProcessingError, StdOutMessage
from ClusterShell.NodeSet import NodeSet
from ClusterShell.Task import Task, task_self

from gpufleet.fleet.inventory import Become, Connection
from gpufleet.fleet.transport import gateway_channel
from gpufleet.fleet.transport.fanout import Outcome, Target, probe_targets
from gpufleet.fleet.transport.gateway_channel import GatewayChannel, plain_bytes
from tests.support.machine import deadline

HERE = platform.node().partition(".")[0]
REFUSED = "The gateway's answer is not accepted: gw1: "


class Command:
    """An object whose unpickling runs a shell command."""

    def __init__(self, line: str) -> None:
        self.line = line

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (self.line,)


def message(kind: str, data: bytes = b"", **attributes: object) -> bytes:
    """A message as a gateway sends it."""
    words = {"type": kind, "msgid": 1, **attributes}
    head = " ".join(f"{name}={quoteattr(str(value))}" for name, value in words.items())
    return f"<message {head}>".encode() + base64.b64encode(data) + b"</message>"


# A gateway's program: it opens the channel, and answers the command with what it was given.
GATEWAY = """#!{python}
import re, sys
sys.stdout.write("<?xml version='1.0' encoding='utf-8'?>\\n<channel version='1.9'>\\n")
sys.stdout.flush()
{before}
for line in sys.stdin:
    if "type=\\"CFG\\"" in line:
        sys.stdout.write("<message type='ACK' msgid='1' ack='0'></message>\\n")
    found = re.search('srcid="(\\\\d+)"', line)
    if found:
        sys.stdout.write({after!r}.replace("SRCID", found.group(1)) + "\\n")
    sys.stdout.flush()
"""


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Task]:
    """This thread's, with a stand-in for ssh before all others on the path."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    task = task_self()
    yield task
    task.topology = task.router = None


def probed(tmp_path: Path, before: bytes, after: bytes) -> dict[str, Outcome]:
    """A host behind the gateway, and one that is here, after the gateway sent its messages."""
    topology, ssh = tmp_path / "topology.conf", tmp_path / "ssh"
    topology.write_text(f"[routes]\n{HERE}: gw1\ngw1: gpu[01-04]\n")
    send = f"print({before.decode()!r}, flush=True)" if before else ""
    ssh.write_text(GATEWAY.format(python=sys.executable, before=send, after=after.decode()))
    ssh.chmod(0o755)
    (tmp_path / "tmp").mkdir()
    config = {"deadline_s": deadline(60), "root": str(tmp_path), "mode": "facts"}
    return probe_targets(
        [
            Target(Connection("behind", address="gpu01", become=Become(False)), config),
            Target(Connection("here", "local", become=Become(False)), config),
        ],
        topology=topology,
    )


@pytest.mark.parametrize("moment", ["before the channel is set up", "after it"])
def test_what_a_gateway_sends_is_never_unpickled(tmp_path: Path, task: Task, moment: str) -> None:
    ran = tmp_path / "ran"
    payload = pickle.dumps(Command(f"touch {ran}"), 4)
    early = message("SER", payload, srcid=0, nodes="gw1")
    late = message("OUT", payload, srcid="SRCID", nodes="gpu01")
    found = probed(tmp_path, *((early, b"") if moment.startswith("before") else (b"", late)))
    assert not ran.exists()
    assert found["behind"].cause.startswith(f"{REFUSED}a payload that is not output but objects")
    assert "take it out of the topology" in found["behind"].remedy
    assert found["here"].snapshot


class Metaworker:
    """A command that was given to the gateway, for one host."""

    def __init__(self) -> None:
        self.nodes, self.gwtargets, self.eh = NodeSet("gpu01"), {"gw1": {"gpu01"}}, self
        self.received: list[bytes] = []
        self.refused = ""

    def _on_remote_node_msgline(self, node: str, line: bytes, *names: str) -> None:
        self.received.append(line)


class Stream:
    """The channel's worker."""

    aborted = False

    def abort(self) -> None:
        self.aborted = True


def channel(
    setup: bool = True, start: bytes = b"<channel version='1.9'>"
) -> tuple[GatewayChannel, Metaworker]:
    """A channel with one command, number 7."""
    made, metaworker = GatewayChannel(task_self(), NodeSet("gw1")), Metaworker()
    made.worker, made.workers = Stream(), {7: metaworker}
    made.opened, made.setup = True, setup
    read(made, start)
    return made, metaworker


def read(made: GatewayChannel, *lines: bytes) -> None:
    for line in lines:
        made.ev_read(made.worker, "gw1", made.SNAME_READER, line)


@pytest.fixture(autouse=True)
def installed() -> None:
    gateway_channel.install(task_self())


def output(text: bytes = b"output", protocol: int = 4, **attributes: object) -> bytes:
    return message(
        "OUT", pickle.dumps(text, protocol), **{"srcid": 7, "nodes": "gpu01", **attributes}
    )


@pytest.mark.parametrize("protocol", [3, 4])
def test_output_arrives(protocol: int) -> None:
    made, metaworker = channel()
    read(made, output(protocol=protocol), output(b"x" * 70000, protocol=protocol))
    assert metaworker.received == [b"output", b"x" * 70000]
    assert not metaworker.refused


ODD = [
    message("CFG", pickle.dumps({}, 4), gateway="gw1"),
    message("CTL", pickle.dumps({}, 4), srcid=7, action="shell", target="gpu01"),
    message("GEN"),
]


@pytest.mark.parametrize("setup", [False, True])
@pytest.mark.parametrize("line", ODD)
def test_a_type_that_no_gateway_sends_ends_the_channel(setup: bool, line: bytes) -> None:
    made, metaworker = channel(setup)
    read(made, line)
    assert metaworker.refused
    assert made.worker.aborted


@pytest.mark.parametrize(
    "line",
    [
        output(),
        message("RET", srcid=7, nodes="gpu01", retcode=0),
        message("TIM", srcid=7, nodes="gpu01"),
        message("ERR", reason="no such topology"),
    ],
)
def test_a_result_before_the_channel_is_set_up_ends_it(line: bytes) -> None:
    made, metaworker = channel(setup=False)
    read(made, line)
    assert metaworker.refused
    assert made.worker.aborted


BOMB = (
    b"<!DOCTYPE a [<!ENTITY a '"
    + b"x" * 1000
    + b"'>"
    + b"".join(
        b"<!ENTITY a%d '%s'>" % (n, b"&a%d;" % (n - 1) * 10 if n > 1 else b"&a;")
        for n in range(1, 9)
    )
    + b"]><message>&a8;</message>"
)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([message("OUT", pickle.dumps(["a", "b"], 4), srcid=7, nodes="gpu01")], "objects or code"),
        ([message("OUT", pickle.dumps(b"a", 4)[:-1], srcid=7, nodes="gpu01")], "cannot be read"),
        # A memo of 32 GiB; a text that claims 16 EiB; no pickle; opcodes without end.
        ([message("OUT", b"\x80\x04C\x01ar\xff\xff\xff\xff.", srcid=7, nodes="gpu01")], None),
        ([message("OUT", b"\x80\x04\x8e" + b"\xff" * 8 + b"a.", srcid=7, nodes="gpu01")], "read"),
        ([message("OUT", b"", srcid=7, nodes="gpu01")], "a payload that cannot be read"),
        (
            [message("OUT", b"\x80\x04" + b"\x94" * 10**6, srcid=7, nodes="gpu01")],
            "objects or code",
        ),
        ([output(srcid=8)], "a command that it was not given"),
        ([output(srcid="9" * 5000)], "Exceeds the limit"),
        ([output(nodes="gpu[1-999999999]")], "a host that it was not asked for"),
        ([output(nodes="@*:$(id)")], "a host that it was not asked for"),
        ([message("RET", srcid=7, nodes="gpu02", retcode=0)], "a host that it was not asked for"),
        ([message("ERR", reason="stop \x9b2J")], "gw1: stop ?2J"),
        ([b"<channel version='1'>"] * 2, "a channel inside a channel"),
        ([b"<message type='OUT' msgid='1' srcid='7' nodes='gpu01'>"] * 2, "a message inside"),
        (
            [b"<message type='OUT' msgid='1' srcid='7' nodes='gpu01'>"] + [b"QQ==" * 1000] * 600,
            "a message without end",
        ),
        ([b"<message type='" + b"O" * 1000] + [b"O" * 4000] * 600, "a message without end"),
    ],
)
def test_what_is_not_accepted_ends_the_channel_and_nothing_else(
    lines: list[bytes], reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_channel, "MOST_MESSAGE_BYTES", 2 << 20)
    made, metaworker = channel()
    read(made, *lines)
    assert (reason or "") in f"gw1: {metaworker.refused}"
    assert bool(metaworker.refused) is made.worker.aborted is (reason is not None)


def test_entities_that_multiply_a_text_are_refused_before_they_are_read() -> None:
    made, metaworker = channel(start=BOMB)
    assert metaworker.refused == "gw1: a document type declaration"
    assert made.worker.aborted


@pytest.mark.parametrize("line", [b"<message", b"</channel>", b"\x1b[2J"])
def test_a_channel_that_ends_or_is_no_xml_raises_nothing(line: bytes) -> None:
    made, _ = channel(setup=False)
    read(made, line + b">")
    assert made.worker.aborted


def test_what_a_gateway_says_of_its_own_is_bounded() -> None:
    made, metaworker = channel()
    for _ in range(100):
        made.ev_read(made.worker, "gw1", made.SNAME_ERROR, b"x" * 4000)
    assert sum(map(len, metaworker.received)) < 100000


def test_late_output_of_a_command_that_was_given_up_is_dropped() -> None:
    made, metaworker = channel()
    metaworker.gwtargets.clear()
    read(made, output())
    assert not metaworker.received
    assert not metaworker.refused


def test_no_other_type_than_bytes_is_taken_from_a_payload() -> None:
    for value in ("text", 1, None, [], {}, b"a" * 3):
        made = StdOutMessage("gpu01", value)
        if isinstance(value, bytes):
            assert plain_bytes(made) == value
        else:
            with pytest.raises(MessageProcessingError):
                plain_bytes(made)
