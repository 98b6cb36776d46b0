#!/usr/bin/python
# Apache-2.0, see LICENSE
"""Disable the entries of a package repository that others wrote."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_repository_entries
short_description: Disable entries of a package repository
description:
  - Disables the entries of apt (C(.list), C(.sources)) or dnf (C(.repo)) whose address matches, so
    that the packages come from one entry with one key. All else in these files is kept.
  - A line becomes a comment, a stanza gets C(Enabled - no), a section gets C(enabled=0).
options:
  paths:
    description: Files, and directories whose files are meant.
    type: list
    elements: path
    required: true
  pattern:
    description: A regular expression that is searched in each address, without its login.
    type: str
    required: true
  excludes:
    description: Names of files that are left alone; with C(*) and C(?).
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
- name: Disable other entries for NVIDIA's repository
  gpufleet.gpu.gpu_repository_entries:
    paths: [/etc/apt/sources.list, /etc/apt/sources.list.d]
    pattern: /compute/cuda/repos/
    excludes: ["gpufleet-*"]
"""

RETURN = r"""
files:
  description: Files in which entries were disabled.
  type: list
  elements: str
  returned: always
"""

import os
import re
from fnmatch import fnmatch

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.gpu.plugins.module_utils.file_errors import fail
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    StateError,
    write_atomically,
)

# A login in an address: the same repository has none where it is kept elsewhere.
LOGIN = re.compile(r"//[^/@\s]*@")
NOTE = "# Disabled by gpufleet: "
# deb [arch=amd64 signed-by=/usr/share/keyrings/x.gpg] https://...
LINE = re.compile(r"\s*deb(?:-src)?\s+(?:\[[^\]]*\]\s*)?(\S+)")
FIELD = re.compile(r"(?P<name>[\w-]+)[ \t]*[:=][ \t]*(?P<value>.*)")
# Words that apt and dnf read as no (apt: StringToBool; dnf: libdnf's boolean options).
OFF = {"0", "no", "false", "off", "without", "disable"}


def without_lines(text, matches):
    """The text of a ``.list`` with its matching lines as comments."""

    def after(line):
        entry = LINE.match(line)
        return NOTE + line.lstrip() if entry and matches(entry.group(1)) else line

    return "".join(after(line) for line in text.splitlines(keepends=True))


def without_stanzas(text, matches):
    """The text of a ``.sources`` with its matching stanzas disabled.

    Raises ``StateError`` for a stanza that has an address of another repository as well.
    """
    blocks, lines = [], text.splitlines(keepends=True)
    for line in lines:
        if not blocks or (not line.strip() and blocks[-1]):
            blocks.append([])
        blocks[-1].append(line)
    for block in blocks:
        if is_off(block):
            continue
        addresses = value_of(block, "uris").split()
        found = [address for address in addresses if matches(address)]
        if found and len(found) < len(addresses):
            raise StateError(
                "one entry has the addresses {}: only the first is replaced. Write an entry for "
                "each, and run again".format(
                    " and ".join([found[0], next(a for a in addresses if a not in found)])
                )
            )
        if found:
            disable(block, "Enabled", ": ", "no")
    return "".join(line for block in blocks for line in block)


def without_sections(text, matches):
    """The text of a ``.repo`` with its matching sections disabled."""
    sections = [[]]
    for line in text.splitlines(keepends=True):
        if line.startswith("["):
            sections.append([])
        sections[-1].append(line)
    for section in sections[1:]:
        addresses = re.split(r"[\s,]+", value_of(section, "baseurl"))
        if any(map(matches, addresses)) and not is_off(section):
            disable(section, "enabled", "=", "0")
    return "".join(line for section in sections for line in section)


def value_of(lines, name):
    """The value of a field, its continued lines included; empty without it."""
    found, inside = [], False
    for line in lines:
        field = FIELD.match(line)
        if field:
            inside = field.group("name").lower() == name
            found += [field.group("value")] * inside
        elif inside and line[:1] in (" ", "\t"):
            found.append(line)
    return " ".join(found).strip()


def is_off(lines):
    """Return whether a stanza or a section is disabled."""
    return value_of(lines, "enabled").lower() in OFF


def disable(lines, name, mark, value):
    """Set a field of a stanza or of a section, in its place or before all others."""
    names = {
        at: FIELD.match(line).group("name") for at, line in enumerate(lines) if FIELD.match(line)
    }
    there = [at for at, found in names.items() if found.lower() == name.lower()]
    for at in there:
        lines[at] = name + mark + value + "\n"
    if not there:
        lines.insert(min(names), name + mark + value + "\n")


FORMS = {".list": without_lines, ".sources": without_stanzas, ".repo": without_sections}


def disabled(path, text, matches):
    """The text of a file with its matching entries disabled. Raises ``StateError``."""
    try:
        return FORMS[os.path.splitext(path)[1]](text, matches)
    except StateError as error:
        raise StateError("{}: {}. Nothing was changed.".format(path, error)) from error


def files(paths, excludes):
    """The files of repositories in files and directories, sorted."""
    found = []
    for path in paths:
        if os.path.isdir(path):
            found += [os.path.join(path, name) for name in sorted(os.listdir(path))]
        else:
            found.append(path)
    return [
        path
        for path in found
        if os.path.splitext(path)[1] in FORMS
        and os.path.isfile(path)
        and not any(fnmatch(os.path.basename(path), name) for name in excludes)
    ]


def main():
    module = AnsibleModule(
        argument_spec={
            "paths": {"type": "list", "elements": "path", "required": True},
            "pattern": {"type": "str", "required": True},
            "excludes": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    try:
        wanted = re.compile(module.params["pattern"])

        def matches(address):
            return wanted.search(LOGIN.sub("//", address))

        rows = []
        for path in files(module.params["paths"], module.params["excludes"]):
            with open(path, encoding="utf-8", errors="surrogateescape", newline="") as stream:
                before = stream.read()
            after = disabled(path, before, matches)
            if after != before:
                rows.append((path, before, after))
        if not module.check_mode:
            for path, _, after in rows:
                file = os.path.realpath(path)
                write_atomically(file, after, os.stat(file).st_mode & 0o7777)
        module.exit_json(
            changed=bool(rows),
            files=[path for path, _, _ in rows],
            diff=[
                {"before": b, "after": a, "before_header": path, "after_header": path}
                for path, b, a in rows
            ],
        )
    except (StateError, OSError) as error:
        fail(module, error)


if __name__ == "__main__":
    main()
