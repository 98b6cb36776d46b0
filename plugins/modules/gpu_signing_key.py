#!/usr/bin/python
# Apache-2.0, see LICENSE
"""Fetch a repository's signing key, and accept only the declared one."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_signing_key
short_description: Fetch a package repository's key, checked by its fingerprint
description:
  - Fetches an OpenPGP key in ASCII armour, as repositories offer it, and writes it where the
    package manager reads it, if all of its primary keys have declared fingerprints. A key that is
    there and right is not fetched again.
  - Package managers read key files leniently. The file therefore has to be one armoured block with
    nothing around it, and what is written is armoured again from the packets that were judged.
options:
  url:
    description: Where the key lies; C(http(s)://) or C(file://) on the host.
    type: str
    required: true
  fingerprints:
    description:
      - The fingerprints of the primary keys that are accepted, 40 hexadecimal digits each, or 64 of
        a key of version 6.
    type: list
    elements: str
    required: true
  dest:
    description: Where it is written, by the suffix C(.asc). The directory is made.
    type: path
    required: true
attributes:
  check_mode: {support: full}
  diff_mode: {support: full}
extends_documentation_fragment:
  - gpufleet.gpu.attributes
author: ["The gpufleet developers (!UNKNOWN)"]
"""

EXAMPLES = r"""
- name: Fetch Docker's key
  gpufleet.gpu.gpu_signing_key:
    url: https://download.docker.com/linux/debian/gpg
    fingerprints: [9DC858229FC7DD38854AE2D88D81803C0EBFCD88]
    dest: /etc/apt/keyrings/gpufleet-docker.asc
"""

RETURN = r"""
fingerprints:
  description: Those of the key's primary keys.
  type: list
  elements: str
  returned: when a key was read
"""

import os
import re

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.gpu.plugins.module_utils import openpgp
from ansible_collections.gpufleet.gpu.plugins.module_utils.download import opened
from ansible_collections.gpufleet.gpu.plugins.module_utils.file_errors import fail
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    StateError,
    write_atomically,
)

MOST_BYTES = 1 << 20


def accepted(content, wanted, where):
    """The key file to write, and its fingerprints. Raises ``StateError`` unless each is wanted."""
    try:
        packets, found = openpgp.read(content)
    except ValueError as error:
        raise StateError(
            "What lies at {} is {}. See whether the address is right, and whether a proxy answers "
            "in the server's place; ask the repository's owner if the file is really theirs. "
            "Nothing was changed.".format(where, error)
        ) from error
    strange = [each for each in found if each not in wanted]
    if strange:
        raise StateError(
            "The key at {} is {}, accepted is {}. If its owner says that the key was changed, and "
            "says it in a place you trust, declare the new fingerprint; else somebody is between "
            "you and the server. Nothing was changed.".format(
                where, ", ".join(strange), ", ".join(wanted)
            )
        )
    return openpgp.armoured(packets), found


def read_text(stream):
    """A key file's text: no more than a key can have, and what is not ASCII fits no key."""
    return stream.read(MOST_BYTES).decode("ascii", "replace")


def main():
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "required": True},
            "fingerprints": {"type": "list", "elements": "str", "required": True, "no_log": False},
            "dest": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    params = module.params
    wanted = [re.sub(r"\s", "", each).upper() for each in params["fingerprints"]]
    dest = params["dest"]
    text = found = None
    try:
        if os.path.isfile(dest):
            with open(dest, "rb") as stream:
                present = read_text(stream)
            try:
                text, found = accepted(present, wanted, dest)
                if text == present:
                    module.exit_json(changed=False, fingerprints=found)
            except StateError:
                pass  # an older key of ours, or a damaged one: to be fetched again
        answer = {
            "changed": True,
            "diff": {
                "before": "",
                "after": "{}: {}\n".format(dest, ", ".join(wanted)),
                "before_header": dest,
                "after_header": dest,
            },
        }
        if module.check_mode:
            module.exit_json(**answer)
        if text is None:
            with opened(params["url"]) as stream:
                text, found = accepted(read_text(stream), wanted, params["url"])
        answer["fingerprints"] = found
        write_atomically(dest, text)
        module.exit_json(**answer)
    except (StateError, OSError, ValueError) as error:
        fail(module, error)


if __name__ == "__main__":
    main()
