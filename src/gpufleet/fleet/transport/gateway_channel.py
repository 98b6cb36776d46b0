"""The channel to a gateway, on which nothing that the gateway sends is trusted.

ClusterShell unpickles what a gateway sends, which runs whatever code the gateway chooses, and
believes node names and numbers in it. This channel decodes one kind of payload, bytes, without an
unpickler; it refuses document type declarations, messages without end and messages about hosts that
the gateway was not asked for. What it refuses ends this channel, and nothing else: the hosts behind
the gateway have no answer then. What is sent to a gateway: the topology, ClusterShell's settings
and the commands; never a password.

Replaces names in ClusterShell, in this process; its version is pinned in requirements.txt.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import logging
import pickletools
from typing import Any
from xml.sax.handler import property_lexical_handler

import ClusterShell.Task
from ClusterShell.Communication import (
    ACKMessage,
    EndMessage,
    ErrorMessage,
    Message,
    MessageProcessingError,
    RetcodeMessage,
    RoutedMessageBase,
    RoutingMessage,
    StartMessage,
    StdErrMessage,
    StdOutMessage,
    TimeoutMessage,
    XMLReader,
)
from ClusterShell.Propagation import PropagationChannel
from ClusterShell.Worker.EngineClient import EngineClientEOF
from ClusterShell.Worker.Ssh import SshClient, WorkerSsh

# More than a message can have: a snapshot in base64 is sent in several.
MOST_MESSAGE_BYTES = 32 << 20
# The longest text that a gateway sends on its own behalf: it goes to every host behind it.
MOST_OWN_BYTES = 64 << 10
# The types of messages that a gateway sends, until the channel is set up and afterwards.
# ClusterShell passes over others, and would wait for the output of such a gateway.
_EARLY = {each.ident for each in (StartMessage, ACKMessage)}
_LATE = _EARLY | {
    each.ident
    for each in (
        *(EndMessage, ErrorMessage, RetcodeMessage, RoutingMessage),
        *(StdErrMessage, StdOutMessage, TimeoutMessage),
    )
}
# How a `bytes` object is pickled, protocols 3 and later.
_BYTES = {"SHORT_BINBYTES", "BINBYTES", "BINBYTES8"}
_FRAME = {"PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "STOP"}
_MOST_OPCODES = 8


def plain_bytes(message: Message) -> bytes:
    """The bytes in a message's payload; raises `MessageProcessingError` for anything else."""
    try:
        raw = base64.b64decode(message.data or b"")
        # Lists the opcodes and runs none of them.
        found = [
            (code.name, value)
            for code, value, _ in itertools.islice(pickletools.genops(raw), _MOST_OPCODES)
        ]
    except (ValueError, binascii.Error) as error:
        raise MessageProcessingError(f"a payload that cannot be read ({error})") from error
    values = [value for name, value in found if name in _BYTES]
    strange = [name for name, _ in found if name not in _BYTES | _FRAME]
    if strange or len(values) != 1 or found[-1][0] != "STOP":
        raise MessageProcessingError(
            "a payload that is not output but objects or code"
            + (f" ({', '.join(strange)})" if strange else "")
        )
    value = values[0]
    assert isinstance(value, bytes)
    return value


class _NoDoctype:
    """Refuses document type declarations: entities can multiply a short text without end."""

    def startDTD(self, name: str, public: str | None, system: str | None) -> None:  # noqa: N802
        raise MessageProcessingError("a document type declaration")

    def _ignore(self, *args: Any) -> None:
        pass

    endDTD = startEntity = endEntity = comment = startCDATA = endCDATA = _ignore  # noqa: N815


class _Reader(XMLReader):  # type: ignore[misc]
    """Reads messages of one channel; neither channels in channels nor messages in messages."""

    def startElement(self, name: str, attrs: Any) -> None:  # noqa: N802
        nested = self.version is not None if name == "channel" else self._draft is not None
        if nested:
            raise MessageProcessingError(f"a {name} inside a {name}")
        super().startElement(name, attrs)


class GatewayChannel(PropagationChannel):  # type: ignore[misc]
    """The channel to one gateway; it ends when the gateway sends what it may not send."""

    def __init__(self, task: Any, gateway: Any) -> None:
        super().__init__(task, gateway)
        self.logger.setLevel(logging.CRITICAL)  # it would print what the gateway sent
        self._xml_reader = _Reader()
        self._parser.setContentHandler(self._xml_reader)
        self._parser.setProperty(property_lexical_handler, _NoDoctype())
        self._pending = self._own = 0
        self._refused = False

    def ev_read(self, worker: Any, node: Any, sname: str, msg: bytes) -> None:
        """Read what the gateway sent. A defect in reading it ends the channel as well."""
        if self._refused:
            return
        try:
            if sname == self.SNAME_ERROR:
                self.recv(StdErrMessage(node, msg))
                return
            self._pending += len(msg)
            if self._pending > MOST_MESSAGE_BYTES:
                raise MessageProcessingError("a message without end")
            self._parser.feed(msg + b"\n")
            if hasattr(self._parser, "flush"):  # where expat defers parsing
                self._parser.flush()
            while self._xml_reader.msg_available():
                self.recv(self._xml_reader.pop_msg())
        except Exception as error:
            self._refuse(error)

    def recv(self, msg: Message) -> None:
        """Process a message, if it is about a host that this gateway was asked for."""
        self._pending = 0
        if msg.type == StdErrMessage.ident and msg.srcid == 0:
            # The gateway's own; the name in it is not needed.
            msg.nodes = str(self.gateway)
            self._own += len(msg.data or b"") + 1
            if self._own > MOST_OWN_BYTES:
                return
        elif isinstance(msg, RoutedMessageBase):
            if msg.srcid not in self.workers:
                raise MessageProcessingError("a message about a command that it was not given")
            worker = self.workers[msg.srcid]
            if msg.type == RoutingMessage.ident or not worker.gwtargets.get(str(self.gateway)):
                return  # about gateways behind it, or late: the command was given up
            if msg.nodes != str(worker.nodes):
                raise MessageProcessingError("a message about a host that it was not asked for")
        elif msg.type == EndMessage.ident and not self.setup:
            raise MessageProcessingError("the end of a channel that was not set up")
        elif msg.type == ErrorMessage.ident and not self.setup:
            raise MessageProcessingError(msg.reason)
        self._check_type(msg)
        super().recv(msg)

    def _check_type(self, msg: Message) -> None:
        own = msg.type == StdErrMessage.ident and msg.srcid == 0
        first = not self.opened and msg.type != StartMessage.ident
        if not own and (first or msg.type not in (_LATE if self.setup else _EARLY)):
            when = "after" if self.setup else "before"
            raise MessageProcessingError(
                f"a message of type {msg.type} {when} the channel was set up"
            )

    def _refuse(self, error: Exception) -> None:
        """End the channel; the hosts behind it get the reason."""
        text = "".join(each if each.isprintable() else "?" for each in str(error)[:300])
        for worker in self.workers.values():
            worker.eh.refused = f"{self.gateway}: {text or type(error).__name__}"
        self._refused = True
        self._close(abort=True)


class _GatewayClient(SshClient):  # type: ignore[misc]
    """ssh to a gateway; a line without end is cut off as the end of its output."""

    def _read(self, sname: str, size: int = 65536) -> bytes:
        if len(self.streams[sname].rbuf) > MOST_MESSAGE_BYTES:
            raise EngineClientEOF
        return bytes(super()._read(sname, size))


class GatewayWorker(WorkerSsh):  # type: ignore[misc]
    """ClusterShell's ssh to a gateway, with bounded lines."""

    SHELL_CLASS = _GatewayClient


def install(task: Any) -> None:
    """Have ClusterShell use this channel, and no unpickler, for all gateways."""
    ClusterShell.Task.PropagationChannel = GatewayChannel
    Message.data_decode = plain_bytes
    if task.default("distant_worker") is WorkerSsh:
        task.set_default("distant_worker", GatewayWorker)
