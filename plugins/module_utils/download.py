# Apache-2.0, see LICENSE
"""Files that are brought whole and checked, or not at all; a download goes on where it stopped."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from http.client import HTTPException
from urllib.error import HTTPError

from ansible.module_utils.urls import open_url
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    StateError,
    digest_of,
    write_atomically,
)

TIMEOUT_S = 60
PARTIAL_CONTENT = 206
RANGE_NOT_SATISFIABLE = 416


class UnreachableError(StateError):
    """A server that does not answer, or not with the file."""


@contextlib.contextmanager
def held(path):
    """Hold the lock of one artifact, so that one process fetches and the others wait."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def check(path, checksum):
    """Compare a file's content with its checksum, ``ALGORITHM:HEX``. Raises ``StateError``."""
    algorithm, _, declared = checksum.partition(":")
    found = digest_of(path, algorithm)
    if found != declared:
        raise StateError(
            "{0} has {1} {2}, but {3} is declared. Either the file is damaged (remove it and get "
            "it again) or the declared checksum is wrong (correct gpu_artifacts in the "
            "inventory).".format(path, algorithm, found, declared)
        )


def seal_of(path, checksum, cache):
    """(Where is noted that a file was checked, what is to stand there)."""
    status = os.stat(path)
    seal = {"path": path, "checksum": checksum, "size": status.st_size, "mtime": status.st_mtime_ns}
    return os.path.join(cache, "checked", os.path.basename(path) + ".json"), seal


def verified(path, checksum, cache):
    """Check a file; a content that was checked before is not read again. Raises ``StateError``."""
    seal_file, seal = seal_of(path, checksum, cache)
    if os.path.isfile(seal_file):
        with open(seal_file) as stream:
            if json.load(stream) == seal:
                return
    check(path, checksum)
    write_atomically(seal_file, json.dumps(seal))


def put(partial, target, checksum, cache):
    """Give a finished file its name once it is checked; a wrong one is removed."""
    try:
        check(partial, checksum)
    except StateError:
        os.unlink(partial)
        raise
    os.rename(partial, target)
    seal_file, seal = seal_of(target, checksum, cache)
    write_atomically(seal_file, json.dumps(seal))


def opened(url, **more):
    """The server's answer; raises ``OSError`` or ``ValueError``."""
    return open_url(
        url,
        timeout=TIMEOUT_S,
        # A login that stands in the address is sent at once, and to this server alone.
        force_basic_auth=True,
        unredirected_headers=["Authorization"],
        # An archive is wanted as it is, also where a server calls its format an encoding.
        decompress=False,
        **more
    )


def ask(url, partial):
    """The server's answer, for what the partial file lacks; None where it lacks nothing."""
    have = os.path.getsize(partial) if os.path.exists(partial) else 0
    headers = {"Range": "bytes={}-".format(have)} if have else {}
    try:
        return opened(url, headers=headers)
    except HTTPError as error:
        if have and error.code == RANGE_NOT_SATISFIABLE:
            return None
        raise


def receive(name, answer, partial):
    """Write an answer to the partial file; raises when it breaks off, keeping what came."""
    # 206: the server continues; anything else starts again.
    mode = "ab" if answer.status == PARTIAL_CONTENT else "wb"
    promised, before = answer.headers.get("Content-Length"), 0
    try:
        with open(partial, mode) as stream:
            before = stream.tell()
            shutil.copyfileobj(answer, stream, 1 << 20)
        broken = promised and os.path.getsize(partial) - before < int(promised)
        reason = "the connection was closed early"
    except (HTTPException, OSError) as error:
        broken, reason = True, str(error)
    if broken:
        raise StateError(
            "The download of {} broke off after {} MB: {}. Run again: it goes on from "
            "there.".format(name, os.path.getsize(partial) // 1000000, reason)
        )


def download(url, target, checksum, cache):
    """Download to a partial file, continuing an earlier one, and rename it once it is checked."""
    name, partial = os.path.basename(target), target + ".partial"
    try:
        answer = ask(url, partial)
    except (OSError, ValueError) as error:  # what urllib raises, time-outs included
        raise UnreachableError("{} cannot be reached: {}".format(url, error)) from error
    if answer is not None:
        with answer:
            receive(name, answer, partial)
    put(partial, target, checksum, cache)
