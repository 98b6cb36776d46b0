#!/usr/bin/python
# Apache-2.0, see LICENSE
"""Write the journal entry and the receipt of an installation that a role does in several tasks."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_installation_record
short_description: Write journal entries and receipts
description:
  - For installations that a role does in several tasks. V(begun) writes an entry to the host's
    journal, V(finished) writes the receipt and closes the entry, so that the next run detects and
    finishes an interrupted one. V(removing) and V(removed) do the same for a removal.
  - Writes nothing in check mode.
options:
  kind:
    description: The kind of the installation, such as V(containers).
    type: str
    required: true
  id:
    description: The id of the installation within its kind.
    type: str
    required: true
  state:
    description: The progress of the installation or the removal.
    type: str
    choices: [begun, finished, removing, removed]
    required: true
  version:
    description: The installed version.
    type: str
    default: ""
  files:
    description: Absolute paths of the installation's own files, for the state V(finished).
    type: list
    elements: path
    default: []
  facts:
    description: Further fields of the receipt and of the journal's entry, also C(source), which is
      the plan by default.
    type: dict
    default: {}
  keep:
    description: >-
      Facts about the host before gpufleet changed it. Their values in an earlier receipt or in the
      entry of an interrupted run are kept.
    type: list
    elements: str
    default: []
attributes:
  check_mode: {support: full}
  diff_mode: {support: none}
extends_documentation_fragment:
  - gpufleet.gpu.attributes
  - gpufleet.gpu.state_dir
author: ["The gpufleet developers (!UNKNOWN)"]
"""

EXAMPLES = r"""
- name: Write the journal entry
  gpufleet.gpu.gpu_installation_record:
    kind: containers
    id: engine
    state: begun
"""

RETURN = r"""
receipt:
  description: The receipt without its manifest; empty where none exists.
  type: dict
  returned: always
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.gpu.plugins.module_utils.file_errors import fail
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.manifest import manifest_of
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    Installation,
    StateError,
    host_lock,
)


def known(installation, params):
    """The facts, with those kept that an earlier run entered."""
    facts = dict(params["facts"])
    for document in (installation.journal, installation.receipt):
        facts.update({key: document[key] for key in params["keep"] if key in (document or {})})
    return facts


def record(installation, params):
    """Write what the state asks for."""
    facts = known(installation, params)
    if params["state"] == "begun":
        installation.begin(fresh=False, **facts)
    elif params["state"] == "finished":
        paths = [os.path.relpath(path, "/") for path in params["files"]]
        source = facts.pop("source", {"file": "plan"})
        installation.finish(source, manifest_of("/", paths), **facts)
    elif params["state"] == "removing":
        installation.begin_removal()
    else:
        installation.finish_removal()


def main():
    module = AnsibleModule(
        argument_spec={
            "kind": {"type": "str", "required": True},
            "id": {"type": "str", "required": True},
            "state": {
                "type": "str",
                "choices": ["begun", "finished", "removing", "removed"],
                "required": True,
            },
            "version": {"type": "str", "default": ""},
            "files": {"type": "list", "elements": "path", "default": []},
            "facts": {"type": "dict", "default": {}},
            "keep": {"type": "list", "elements": "str", "default": []},
            "state_dir": {"type": "path", "default": "/var/lib/gpufleet"},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        installation = Installation(
            params["kind"], params["id"], "/", params["version"], params["state_dir"]
        )
        if not module.check_mode:
            with host_lock(params["state_dir"]):
                record(installation, params)
        receipt = dict(installation.receipt or {})
        receipt.pop("manifest", None)
        module.exit_json(changed=not module.check_mode, receipt=receipt)
    except (StateError, OSError) as error:
        fail(module, error)


if __name__ == "__main__":
    main()
