# Apache-2.0, see LICENSE
"""Download artifacts with checksums; an interrupted download is continued."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
from http.client import HTTPException
from urllib.error import HTTPError

from ansible.module_utils.urls import open_url
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    StateError,
    digest_of,
    open_lock,
    write_atomically,
)

TIMEOUT_S = 60
# The most that is received of a file of unknown size; the largest that are known have 6 GB.
MOST_BYTES = 16 << 30
# The bytes that such a download leaves free on the disk.
FREE_BYTES = 100 << 20
PARTIAL_CONTENT = 206
RANGE_NOT_SATISFIABLE = 416
BLOCK = 1 << 20


class UnreachableError(StateError):
    """A server that does not respond, or not with the file."""


@contextlib.contextmanager
def held(path):
    """Hold an artifact's lock, so that one process downloads it and others wait."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with os.fdopen(open_lock(path), "w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def check(path, checksum):
    """Compare a file's content with its checksum, ``ALGORITHM:HEX``. Raises ``StateError``."""
    algorithm, _, declared = checksum.partition(":")
    found = digest_of(path, algorithm)
    if found != declared:
        raise StateError(
            "{0} has {1} {2}, but {3} is declared. Either the file is damaged (remove it and "
            "download it again) or the declared checksum is wrong (correct gpu_artifacts in the "
            "inventory).".format(path, algorithm, found, declared)
        )


def seal_of(path, checksum, cache):
    """Return (the path of a checked file's record, the record's contents)."""
    status = os.stat(path)
    seal = {"path": path, "checksum": checksum, "size": status.st_size, "mtime": status.st_mtime_ns}
    return os.path.join(cache, "checked", os.path.basename(path) + ".json"), seal


def verified(path, checksum, cache):
    """Check a file, unless its record shows that it was checked. Raises ``StateError``."""
    seal_file, seal = seal_of(path, checksum, cache)
    if os.path.isfile(seal_file):
        with open(seal_file) as stream:
            if json.load(stream) == seal:
                return
    check(path, checksum)
    write_atomically(seal_file, json.dumps(seal))


def put(partial, target, checksum, cache):
    """Check a downloaded file and rename it; removes a file with a wrong checksum."""
    try:
        check(partial, checksum)
    except StateError:
        os.unlink(partial)
        raise
    os.rename(partial, target)
    seal_file, seal = seal_of(target, checksum, cache)
    write_atomically(seal_file, json.dumps(seal))


def opened(url, **more):
    """Return the server's response; raises ``OSError`` or ``ValueError``."""
    return open_url(
        url,
        timeout=TIMEOUT_S,
        # Credentials in the address are sent at once, and to this server only.
        force_basic_auth=True,
        unredirected_headers=["Authorization"],
        # An archive stays compressed, also where a server declares its format as an encoding.
        decompress=False,
        **more,
    )


def signed(url, declared):
    """The declared address of which a plan shows ``url``, with its query, which a plan hides."""
    begin = url[:-3] if url.endswith("?***") else None
    return next((address for address in declared if begin and address.startswith(begin)), url)


def public(text, url):
    """A text without the secrets of an address: its login, and its query, which may be a
    signature."""
    query = url.partition("?")[2]
    login = url.partition("//")[2].partition("/")[0].rpartition("@")[0]
    for secret, form in ((query, "?{}"), (login, "{}@")):
        text = text.replace(form.format(secret), form.format("***")) if secret else text
    return text


def ask(url, partial):
    """Return the response for the rest of a partial file; None where the file is complete."""
    have = os.path.getsize(partial) if os.path.exists(partial) else 0
    headers = {"Range": "bytes={}-".format(have)} if have else {}
    try:
        return opened(url, headers=headers)
    except HTTPError as error:
        if have and error.code == RANGE_NOT_SATISFIABLE:
            return None
        raise


def copy(answer, stream, most, spare):
    """Copy what the server sends; returns False one byte past ``most``. Raises ``OSError``.

    ``spare``: how many bytes of the disk stay free.
    """
    while stream.tell() <= most:
        if spare and shutil.disk_usage(stream.name).free < spare:
            raise OSError(errno.ENOSPC, "Less than 100 MiB would be left free on the disk")
        block = answer.read(min(BLOCK, most + 1 - stream.tell()))
        if not block:
            return True
        stream.write(block)
    return False


def promised_bytes(answer):
    """How many bytes a response has by its own account; 0 where it names no number.

    What is no number may come from a proxy. The checksum decides whether the file is complete.
    """
    length = answer.headers.get("Content-Length") or ""
    return int(length) if re.match("[0-9]{1,15}$", length) else 0


def receive(name, answer, partial, size=None):
    """Append a response to the partial file; raises where it breaks off, and keeps the part.

    ``size``: the file's, where it is known. What is longer is another file, and is not kept; nor is
    the part where the disk has no space for the rest.
    """
    # 206: the server continues; anything else starts again.
    mode = "ab" if answer.status == PARTIAL_CONTENT else "wb"
    promised, before = promised_bytes(answer), 0
    most, spare = (MOST_BYTES, FREE_BYTES) if size is None else (size, 0)
    try:
        with open(partial, mode) as stream:
            before = stream.tell()
            ended = copy(answer, stream, most, spare)
        broken = os.path.getsize(partial) - before < promised
        reason = "the connection was closed early"
    except (HTTPException, OSError) as error:
        if getattr(error, "errno", None) == errno.ENOSPC:
            os.unlink(partial)
            raise StateError(
                "{} was not downloaded: {}. Free some space in {}.".format(
                    name, error, os.path.dirname(partial)
                )
            ) from error
        ended, broken, reason = True, True, str(error)
    if not ended:
        os.unlink(partial)
        raise StateError(
            "The server sends more than the {} bytes that {} {}. It sends another file, or without "
            "end: see what answers at the address{}.".format(
                most,
                name,
                "may have" if size is None else "has",
                "" if size is None else ", or correct size_bytes in gpu_artifacts",
            )
        )
    if broken:
        raise StateError(
            "The download of {} broke off after {} MB: {}. Run again to continue it.".format(
                name, os.path.getsize(partial) // 1000000, reason
            )
        )


def download(url, target, checksum, cache, size=None):
    """Download to a partial file, continuing an earlier one, check it and rename it.

    ``size``: the file's, where it is known; a server that sends more is not listened to.
    """
    name, partial = os.path.basename(target), target + ".partial"
    try:
        answer = ask(url, partial)
    # Errors of urllib, time-outs included, and of a server that does not answer in HTTP.
    except (HTTPException, OSError, ValueError) as error:
        raise UnreachableError(public("{} cannot be reached: {}".format(url, error), url)) from None
    if answer is not None:
        with answer:
            receive(name, answer, partial, size)
    put(partial, target, checksum, cache)
