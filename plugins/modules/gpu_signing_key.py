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
options:
  url:
    description: Where the key lies; C(http(s)://) or C(file://) on the host.
    type: str
    required: true
  fingerprints:
    description: The fingerprints of the primary keys that are accepted, 40 hexadecimal digits each.
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

import base64
import binascii
import hashlib
import os
import re

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.gpu.plugins.module_utils.download import opened
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    StateError,
    write_atomically,
)

MOST_BYTES = 1 << 20
PUBLIC_KEY = 6  # the packet of a primary key; a subkey's is 14


def packets(content):
    """(tag, body) of each OpenPGP packet (RFC 4880, section 4.2). Raises ``ValueError``."""
    position = 0
    while position < len(content):
        head = content[position]
        if not head & 0x80:
            raise ValueError("not an OpenPGP key")
        if head & 0x40:
            tag, first = head & 0x3F, content[position + 1]
            if first < 192:
                length, position = first, position + 2
            elif first < 224:
                length, position = ((first - 192) << 8) + content[position + 2] + 192, position + 3
            else:
                length = int.from_bytes(content[position + 2 : position + 6], "big")
                position += 6
        else:
            tag, size = (head >> 2) & 0xF, 1 << (head & 3)
            length = int.from_bytes(content[position + 1 : position + 1 + size], "big")
            position += 1 + size
        if length < 1 or position + length > len(content):
            raise ValueError("an OpenPGP key that is cut off")
        yield tag, content[position : position + length]
        position += length


def fingerprints(content):
    """The fingerprints of the primary keys in a key file's text."""
    blocks = re.findall(
        r"-----BEGIN PGP PUBLIC KEY BLOCK-----.*?\n\s*\n(.*?)(?:\n=[^\n]*)?\s*-----END",
        content.replace("\r\n", "\n"),
        re.DOTALL,
    )
    if not blocks:
        raise ValueError("no OpenPGP key in ASCII armour")
    try:
        bodies = [
            body
            for block in blocks
            for tag, body in packets(base64.b64decode(block))
            if tag == PUBLIC_KEY
        ]
    except IndexError:
        raise ValueError("an OpenPGP key that is cut off") from None
    if not bodies or any(body[0] != 4 for body in bodies):
        raise ValueError("no OpenPGP key of version 4")
    # Section 12.2: of the packet, behind a byte and its length.
    return [
        hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body).hexdigest().upper()
        for body in bodies
    ]


def accepted(content, wanted, where):
    """The key's fingerprints. Raises ``StateError`` unless each is wanted."""
    try:
        found = fingerprints(content)
    except (ValueError, binascii.Error) as error:
        raise StateError(
            "What lies at {} is {}. See whether the address is right, and whether a proxy answers "
            "in the server's place.".format(where, error)
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
    return found


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
    try:
        if os.path.isfile(dest):
            with open(dest, errors="replace") as stream:
                try:
                    found = accepted(stream.read(MOST_BYTES), wanted, dest)
                    module.exit_json(changed=False, fingerprints=found)
                except StateError:
                    pass  # an older key of ours, or a damaged one: to be fetched again
        answer = {"changed": True, "diff": {"before": "", "after": "{}: {}\n".format(
            dest, ", ".join(wanted)), "before_header": dest, "after_header": dest}}
        if module.check_mode:
            module.exit_json(**answer)
        with opened(params["url"]) as stream:
            content = stream.read(MOST_BYTES).decode("ascii", "replace")
        answer["fingerprints"] = accepted(content, wanted, params["url"])
        write_atomically(dest, content)
        module.exit_json(**answer)
    except (StateError, OSError, ValueError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
