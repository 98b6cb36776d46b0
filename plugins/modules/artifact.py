#!/usr/bin/python
# Apache-2.0, see LICENSE
"""Bring one artifact into the cache on the control machine, checked, once for the whole fleet."""

from __future__ import annotations

DOCUMENTATION = r"""
module: artifact
short_description: Bring an artifact into the cache, checked
description:
  - Runs on the control machine. Takes the file from a directory, or downloads it into the cache
    under a partial name (continuing where an earlier download stopped), checks it and renames it.
  - Any number of hosts may ask for the same file at once; it is fetched once.
options:
  file:
    description: The artifact's file name.
    type: str
    required: true
  checksum:
    description: Its checksum as V(ALGORITHM:HEX).
    type: str
    required: true
  url:
    description: Where it can be had, when there is no O(source).
    type: str
    default: ""
  source:
    description: A directory that holds it.
    type: str
    default: ""
  cache:
    description: The directory that downloads are kept in.
    type: path
    required: true
  login_required:
    description: Whether a person must log in at O(url) to get it.
    type: bool
    default: false
attributes:
  check_mode: {support: full}
author: [The gpufleet developers]
"""

EXAMPLES = r"""
- name: Fetch the runfile once
  artifact:
    file: cuda_11.8.0_520.61.05_linux.run
    checksum: sha256:9223c4af3aebe4a7bbed9abd9b163b03a1b34b855fbc2b4a0d1b706ac09a5a16
    url: https://developer.download.nvidia.com/compute/cuda/11.8.0/local_installers/cuda_11.8.0_520.61.05_linux.run
    cache: ~/.cache/gpufleet/artifacts
  delegate_to: localhost
"""

RETURN = r"""
path:
  description: The checked file.
  type: str
  returned: always
"""

import contextlib
import fcntl
import json
import os
import shutil
from http.client import HTTPException
from urllib.error import HTTPError

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpufleet_receipts import StateError, digest_of, write_atomically
from ansible.module_utils.urls import open_url

TIMEOUT_S = 60
PARTIAL_CONTENT = 206
RANGE_NOT_SATISFIABLE = 416


@contextlib.contextmanager
def held(path):
    """Hold the lock of one artifact, so that one process fetches and the others wait."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def verified(path, checksum, cache):
    """Check a file; a content that was checked before is not read again. Raises ``StateError``."""
    status = os.stat(path)
    seal = {"path": path, "checksum": checksum, "size": status.st_size, "mtime": status.st_mtime_ns}
    seal_file = os.path.join(cache, "checked", os.path.basename(path) + ".json")
    if os.path.isfile(seal_file):
        with open(seal_file) as stream:
            if json.load(stream) == seal:
                return
    algorithm, _, declared = checksum.partition(":")
    found = digest_of(path, algorithm)
    if found != declared:
        raise StateError(
            "{0} has {1} {2}, but {3} is declared. Either the file is damaged (remove it and get "
            "it again) or the declared checksum is wrong (correct gpu_artifacts in the "
            "inventory).".format(path, algorithm, found, declared)
        )
    write_atomically(seal_file, json.dumps(seal))


def ask(url, partial):
    """The server's answer, for what the partial file lacks; None where it lacks nothing."""
    have = os.path.getsize(partial) if os.path.exists(partial) else 0
    headers = {"Range": "bytes={}-".format(have)} if have else {}
    try:
        return open_url(url, headers=headers, timeout=TIMEOUT_S)
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


def download(params, target):
    """Download to a partial file, continuing an earlier one, and rename it once it is checked."""
    partial = target + ".partial"
    try:
        answer = ask(params["url"], partial)
    except (OSError, ValueError) as error:  # what urllib raises, time-outs included
        raise StateError(
            "{file} is not in the cache and {url} cannot be reached: {error}. Restore the "
            "connection, or put the file into a directory and name that in "
            "gpu_artifacts_source.".format(error=error, **params)
        ) from error
    if answer is not None:
        with answer:
            receive(params["file"], answer, partial)
    try:
        verified(partial, params["checksum"], params["cache"])
    except StateError:
        os.unlink(partial)
        raise
    os.rename(partial, target)


def obtain(module):
    """The path of the checked file."""
    params = module.params
    if params["source"]:
        if not os.path.isabs(os.path.expanduser(params["source"])):
            raise StateError(
                "gpu_artifacts_source is {source}: name the directory by its absolute "
                "path.".format(**params)
            )
        path = os.path.join(os.path.expanduser(params["source"]), params["file"])
        if not os.path.isfile(path):
            raise StateError(
                "{file} is not in {source}, which gpu_artifacts_source names. Put it there; it can "
                "be had from {url}.".format(**params)
            )
        verified(path, params["checksum"], params["cache"])
        return path, False
    path = os.path.join(params["cache"], params["file"])
    if os.path.isfile(path):
        verified(path, params["checksum"], params["cache"])
        return path, False
    if params["login_required"]:
        raise StateError(
            "{file} needs a login with NVIDIA. Get it from {url}, put it into a directory and name "
            "that in gpu_artifacts_source.".format(**params)
        )
    if not module.check_mode:
        download(params, path)
    return path, True


def main():
    module = AnsibleModule(
        argument_spec={
            "file": {"type": "str", "required": True},
            "checksum": {"type": "str", "required": True},
            "url": {"type": "str", "default": ""},
            "source": {"type": "str", "default": ""},
            "cache": {"type": "path", "required": True},
            "login_required": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        with held(os.path.join(params["cache"], "locks", params["file"])):
            path, changed = obtain(module)
        module.exit_json(path=path, changed=changed)
    except (StateError, OSError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
