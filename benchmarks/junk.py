# Apache-2.0, see LICENSE
"""The cost of a host that sends 8 MiB of anything to the two others: the judge's time and memory.

Three hosts answer; in turn one of them sends each kind of junk, the largest that is accepted as
output. Measured is all that the control machine does with the three answers, from the bytes to the
verdicts, in a process of its own, against the same with three usual answers. No lab host is needed.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

from rich.console import Console
from rich.table import Table

from gpufleet.documents.received import MOST_BYTES
from tests.fuzz import readers
from tests.support.healthy_host import data, document
from tests.support.host_parts import with_gpus

MOST_S, MOST_MB = 1.0, 100
VARIABLES = {"gpu_stacks": [{"tensorflow": "2.13.1"}], "gpu_expect": {"count": 2}}
SHOWN = 8
# Lists and mappings of a healthy snapshot of at least so many bytes are repeated.
LEAST = 60


def usual() -> dict[str, Any]:
    """A healthy host with two GPUs."""
    plan, snapshot = document("plan.json"), document("snapshot.json")
    with_gpus(plan, snapshot)
    return snapshot


def sized(text: str) -> bytes:
    """As much of it as is accepted as output."""
    return (text * (MOST_BYTES // len(text) + 1)).encode()[:MOST_BYTES]


def plain() -> Iterator[tuple[str, bytes]]:
    """Bytes that are no snapshot, and documents that are nothing else than large."""
    for name, text in {
        "[": "[",
        '{"a":': '{"a":',
        "[[],": "[[],",
        "zeros": "0",
        "spaces": " ",
        "quotes": '"',
        "backslashes": "\\",
        "escapes": '"\\u0000',
        "commas": ",",
        "ESC": "\x1b[2J",
        "NUL": "\x00",
        "words": "no end of words ",
        "bidi": "\u202e",
        "wide": "\U0001f4a5",
    }.items():
        yield f"bytes: {name}", sized(text)
    yield (
        "bytes: invalid UTF-8",
        b'{"schema": 1, "sections": {"' + b"\xff\xfe" * (MOST_BYTES // 2 - 20),
    )
    head, tail = b'{"schema": 1, "sections": {"os": {"state": "ok", "data": ', b"}}}"
    for name, part in {
        "empty lists": b"[],",
        "empty mappings": b"{},",
        "zeros": b"0,",
        "floats": b"1.5,",
        "texts": b'"",',
        "long numbers": b"9" * 4000 + b",",
        "1e999": b"1e999,",
        "nulls": b"null,",
        "rows": b'{"a":{"b":[1]}},',
        "wide": '"\U0001f4a5",'.encode(),
        "control": b'"\\u001b[2J\\u202e\\ud800",',
        "long texts": b'"' + b"x" * 16000 + b'",',
        "digits": b'"' + b"1" * 16000 + b'x",',
        "at": b'"' + b"a" * 16000 + b'@",',
        "slashes": b'"' + b"/" * 16000 + b'",',
    }.items():
        room = MOST_BYTES - len(head) - len(tail) - 10
        yield f"list: {name}", head + b"[" + part * (room // len(part)) + b"0]" + tail
    room = MOST_BYTES - len(head) - len(tail) - 10
    yield "one text", head + b'"' + b"x" * room + b'"' + tail
    yield "one number", head + b"9" * room + tail
    yield (
        "keys",
        head + b"{" + b",".join(b'"%07d":0' % number for number in range(room // 12)) + b"}" + tail,
    )
    yield (
        "sections",
        b'{"schema": 1, "sections": {'
        + b",".join(b'"s%07d": {"state": "ok"}' % number for number in range(room // 29))
        + b"}}",
    )


def grown() -> Iterator[tuple[str, bytes]]:
    """A usual snapshot in which one list is repeated as often as there is room, or is accepted."""
    whole = usual()
    room = MOST_BYTES - len(json.dumps(whole)) - 1000
    for place in sorted(lists(whole), key=str):
        changed = deepcopy(whole)
        around: Any = changed
        for step in place[:-1]:
            around = around[step]
        value = around[place[-1]]
        text = json.dumps(value)
        times = min(room // len(text), 240_000 // max(1, text.count(",") + text.count("{") + 1))
        if isinstance(value, dict):
            item = next(iter(value.values()))
            one = len(json.dumps(item)) + 14
            around[place[-1]] = {
                **value,
                **{f"/x{number:07}": item for number in range(min(room // one, 60_000))},
            }
        else:
            around[place[-1]] = value * min(times, 99_000 // len(value))
        yield f"many: {'/'.join(map(str, place[1:]))}", json.dumps(changed).encode()


def lists(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of its lists, and of mappings by path; one of rows that are alike."""
    if isinstance(value, list) and value and len(json.dumps(value)) > LEAST:
        yield here
    if isinstance(value, dict) and any(key[:1] == "/" for key in value):
        yield here
    if isinstance(value, list):
        value = dict(enumerate(value[:1]))
    if isinstance(value, dict):
        for key, item in value.items():
            yield from lists(item, (*here, key))


def headers() -> Iterator[tuple[str, bytes]]:
    """Headers and libraries by the thousand, each of which differs."""
    for key, count in (("headers", 12_000), ("headers", 60_000), ("libraries", 12_000)):
        snapshot = usual()
        tree = data(snapshot, "cudnn")["trees"][0]
        rows = tree[key] or [{}]
        tree[key] = [
            {**rows[0], "path": f"/usr/local/cuda-11.8/x{number}", "version": "1.0"}
            for number in range(count)
        ]
        yield f"{count} different {key}", json.dumps(snapshot).encode()


def kinds() -> Iterator[tuple[str, bytes]]:
    """All kinds of junk, each made when it is its turn."""
    yield from headers()
    yield from plain()
    yield from grown()


def used(raw: bytes, send: Any) -> None:
    """In a process of its own: seconds of CPU and megabytes that three hosts need."""
    other = json.dumps(usual()).encode()
    hosts = [readers.host(name, VARIABLES) for name in ("gpu01", "gpu02", "gpu03")]
    readers.arrived(other, hosts[0])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.process_time()
    runs = [
        readers.arrived(each, host) for each, host in zip((raw, other, other), hosts, strict=True)
    ]
    seconds = time.process_time() - begin
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    send.send((seconds, grown_kib / 1000, [run.result["verdict"] for run in runs]))


def cost(raw: bytes) -> tuple[float, float, list[str]]:
    """Seconds, megabytes and verdicts of three hosts."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=used, args=(raw, send))
    process.start()
    found: tuple[float, float, list[str]] = receive.recv()
    process.join()
    return found


def measure(rounds: int, console: Console) -> Table:
    """The most expensive kinds."""
    whole = json.dumps(usual()).encode()
    plain_s, plain_mb, verdicts = cost(whole)
    rows = []
    for name, raw in kinds():
        with console.status(name):
            found = [cost(raw) for _ in range(rounds)]
        assert all(each[2][1:] == verdicts[1:] for each in found), name
        rows.append(
            (
                min(each[0] for each in found) - plain_s,
                min(each[1] for each in found) - plain_mb,
                name,
                found[0][2][0],
                len(raw),
            )
        )
    table = Table(title=f"{len(rows)} kinds of junk from one of three hosts")
    for heading in ("kind", "MiB", "its verdict", "more CPU, s", "more memory, MB"):
        table.add_column(heading)
    by: list[Callable[[Any], float]] = [lambda row: -row[0], lambda row: -row[1]]
    shown = dict.fromkeys(row for key in by for row in sorted(rows, key=key)[:SHOWN])
    for seconds, megabytes, name, verdict, size in shown:
        table.add_row(
            name, f"{size / (1 << 20):.1f}", verdict, f"{seconds:.2f}", f"{megabytes:.0f}"
        )
    table.caption = (
        f"At most {MOST_S:g} s and {MOST_MB} MB more; the median is"
        f" {statistics.median(row[0] for row in rows):.2f} s and"
        f" {statistics.median(row[1] for row in rows):.0f} MB. Usual: {plain_s:.2f} s."
    )
    return table
