#!/usr/bin/python
# Apache-2.0, see LICENSE
"""Merge settings into Docker's daemon.json, and keep all others."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_docker_daemon
short_description: Merge settings into Docker's daemon.json
description:
  - Registers runtimes and sets values in Docker's configuration file. Other keys keep their value
    and position. A backup of the file is kept beside it. A file that is not valid JSON is refused
    before anything changes. A file with a byte order mark, which Docker reads, is written without
    it, as UTF-8.
  - Does not restart or reload Docker; the result's C(restart) says which is necessary.
options:
  path:
    description: The file.
    type: path
    default: /etc/docker/daemon.json
  runtimes:
    description: >-
      Runtimes to register, as C({NAME - PROGRAM}). A runtime of that name whose program has the
      same file name is not changed.
    type: dict
    default: {}
  values:
    description: Keys and their values. Mappings are merged.
    type: dict
    default: {}
  without_runtimes:
    description: Runtimes to remove; refused for the C(default-runtime).
    type: list
    elements: str
    default: []
attributes:
  check_mode: {support: full}
  diff_mode: {support: full}
extends_documentation_fragment:
  - gpufleet.gpu.attributes
author: ["The gpufleet developers (!UNKNOWN)"]
"""

EXAMPLES = r"""
- name: Register NVIDIA's runtime
  gpufleet.gpu.gpu_docker_daemon:
    runtimes: {nvidia: nvidia-container-runtime}
    values: {live-restore: true}
"""

RETURN = r"""
restart:
  description: Whether Docker must be restarted to apply the settings; otherwise a reload is enough.
  type: bool
  returned: always
backup_file:
  description: The backup of the former file.
  type: str
  returned: when an existing file was changed
"""

import codecs
import copy
import json
import os
import re

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.gpu.plugins.module_utils.file_errors import fail
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    StateError,
    write_atomically,
)

# Docker reads these once, when it starts (docs.docker.com/reference/cli/dockerd, "Configuration
# reload behavior"; of the features, that of CDI registers its driver at the start).
READ_AT_START = ("data-root", "features", "exec-opts", "storage-driver")


def decoded(data):
    """The text of a file's bytes: UTF-8, or what a byte order mark says, as Docker reads it."""
    marked = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return data.decode("utf-16" if marked else "utf-8-sig")


def parsed(text, path):
    """The settings in a file's text. Raises ``StateError`` with the location of the error."""

    def once(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise StateError(
                "{} has {} twice; Docker would use the last. Remove one and run again. "
                "Nothing was changed.".format(path, ", ".join(twice))
            )
        return dict(pairs)

    if not text.strip():
        return {}
    try:
        settings = json.loads(text, object_pairs_hook=once)
    except ValueError as error:
        raise StateError(
            "{} is not valid JSON: {}. Correct it and run again (python3 -m json.tool {} "
            "shows the position). Nothing was changed.".format(path, error, path)
        ) from error
    for name, value in [("the file", settings)] + [
        (key, settings.get(key, {})) for key in ("runtimes", "features") if type(settings) is dict
    ]:
        if not isinstance(value, dict):
            raise StateError(
                "{}: {} is not a mapping in braces. Correct it and run again. Nothing was "
                "changed.".format(path, name)
            )
    return settings


def merged(settings, runtimes, values, without=()):
    """The settings with runtimes and values in them, and without some runtimes; pure."""
    after = copy.deepcopy(settings)
    for name, program in runtimes.items():
        there = after.setdefault("runtimes", {}).get(name)
        have = there.get("path") if isinstance(there, dict) else None
        if os.path.basename(have or "") != os.path.basename(program):
            after["runtimes"][name] = dict(there or {}, path=program)
    _set(after, values)
    for name in without:
        if after.get("default-runtime") == name:
            raise StateError(
                "{0} is Docker's default-runtime: without it no container would start. Remove "
                "default-runtime from daemon.json first, and run again.".format(name)
            )
        after.get("runtimes", {}).pop(name, None)
        if after.get("runtimes") == {} and settings["runtimes"]:
            del after["runtimes"]
    return after


def _set(into, values):
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _set(into[key], value)
        else:
            into[key] = copy.deepcopy(value)


def written(settings, like):
    """The settings as text, indented as a text was before."""
    indent = re.search(r"^([ \t]+)\S", like, re.MULTILINE)
    return json.dumps(settings, indent=indent.group(1) if indent else 4, ensure_ascii=False) + "\n"


def main():
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "default": "/etc/docker/daemon.json"},
            "runtimes": {"type": "dict", "default": {}},
            "values": {"type": "dict", "default": {}},
            "without_runtimes": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    params = module.params
    path = os.path.realpath(params["path"])
    before = ""
    try:
        if os.path.exists(path):
            with open(path, "rb") as stream:
                before = decoded(stream.read())
        settings = parsed(before, path)
        after = merged(settings, params["runtimes"], params["values"], params["without_runtimes"])
        changed = after != settings
        text = written(after, before) if changed else before
        answer = {
            "changed": changed,
            "restart": any(settings.get(key) != after.get(key) for key in READ_AT_START),
            "diff": {"before": before, "after": text, "before_header": path, "after_header": path},
        }
        if changed and not module.check_mode:
            mode = 0o644
            if before:
                mode = os.stat(path).st_mode & 0o7777
                answer["backup_file"] = module.backup_local(path)
            write_atomically(path, text, mode)
        module.exit_json(**answer)
    except (StateError, OSError, UnicodeDecodeError) as error:
        fail(module, error)


if __name__ == "__main__":
    main()
