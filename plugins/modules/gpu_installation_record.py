#!/usr/bin/python
# Apache-2.0, see LICENSE
"""Journal and receipt of an installation that a role makes of several tasks."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_installation_record
short_description: Journal and receipt of what a role installs by several tasks
description:
  - V(state=begun) enters the installation in the host's journal, V(state=finished) writes its
    receipt and closes the entry, so that a run that was killed in between is known, and finished
    by the next. V(state=removing) and V(state=removed) do the same for a removal.
  - In check mode nothing is entered.
options:
  kind:
    description: What it is, such as V(containers).
    type: str
    required: true
  id:
    description: Which of its kind.
    type: str
    required: true
  state:
    description: How far it is.
    type: str
    choices: [begun, finished, removing, removed]
    required: true
  version:
    description: What was installed.
    type: str
    default: ""
  files:
    description: The files that are ours alone, by their absolute paths; for V(state=finished).
    type: list
    elements: path
    default: []
  facts:
    description: What else the receipt is to say, and the journal's entry too; C(source) as well,
      which otherwise is the plan.
    type: dict
    default: {}
  keep:
    description: >-
      Facts that say what was found before gpufleet changed anything. What an earlier receipt or a
      killed run's entry says of them stays.
    type: list
    elements: str
    default: []
attributes:
  check_mode: {support: full}
  diff_mode: {support: none}
extends_documentation_fragment:
  - gpufleet.gpu.attributes
  - gpufleet.gpu.state_dir
author: [The gpufleet developers]
"""

EXAMPLES = r"""
- name: Enter the installation in the journal
  gpufleet.gpu.gpu_installation_record:
    kind: containers
    id: engine
    state: begun
"""

RETURN = r"""
receipt:
  description: The receipt as it stands, without its manifest; empty where there is none.
  type: dict
  returned: always
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.gpu.plugins.module_utils.probe.manifest import manifest_of
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
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
