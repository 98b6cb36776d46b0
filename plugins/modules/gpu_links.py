#!/usr/bin/python
# Apache-2.0, see LICENSE
"""Restore the symbolic links of an installation from its receipt, without its artifact."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_links
short_description: Restore the symbolic links of an installation
description:
  - Creates each link that the receipt of a toolkit or of cuDNN lists and that is missing or has
    another target. The receipt has the targets, so that no artifact is needed. Changes no file.
  - Fails where there is no receipt, where an installation was interrupted, or where something else
    than a link is in a link's place; M(gpufleet.gpu.gpu_cuda_runfile) and
    M(gpufleet.gpu.gpu_cudnn_archive) repair those.
options:
  kind:
    description: The kind of the receipt.
    type: str
    choices: [toolkit, cudnn]
    required: true
  id:
    description: The receipt's id, such as V(11.8) of a toolkit or V(11.8-8) of cuDNN.
    type: str
    required: true
  path:
    description: The toolkit's tree.
    type: path
    required: true
  version:
    description: The full version of the toolkit or of cuDNN.
    type: str
    required: true
attributes:
  check_mode: {support: full}
  diff_mode: {support: full}
extends_documentation_fragment:
  - gpufleet.gpu.attributes
  - gpufleet.gpu.state_dir
author: ["The gpufleet developers (!UNKNOWN)"]
"""

EXAMPLES = r"""
- name: Restore the links of cuDNN 8 in CUDA 11.8
  gpufleet.gpu.gpu_links:
    kind: cudnn
    id: 11.8-8
    path: /usr/local/cuda-11.8
    version: 8.6.0.163
"""

RETURN = r"""
links:
  description: The restored links.
  type: list
  elements: str
  returned: always
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.gpu.plugins.module_utils.file_errors import fail
from ansible_collections.gpufleet.gpu.plugins.module_utils.links import (
    differing,
    make_link,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    Installation,
    StateError,
    host_lock,
)


def installed(params):
    """The installation that the receipt describes; raises where its links cannot be restored."""
    installation = Installation(
        params["kind"], params["id"], params["path"], params["version"], params["state_dir"]
    )
    receipt = installation.receipt
    if receipt is None or installation.half_done:
        why = "an earlier run was interrupted" if installation.half_done else "it has no receipt"
    elif (receipt["path"], receipt["version"]) != (params["path"], params["version"]):
        why = "its receipt is of {version} in {path}".format(**receipt)
    else:
        return installation
    raise StateError(
        "The links of {kind} {id} cannot be restored: {0}. Run again: the next run installs "
        "it.".format(why, **params)
    )


def restore(installation, entries):
    """Restore the links. A run that is killed meanwhile is finished by the next one."""
    receipt = dict(installation.receipt)
    source, manifest = receipt.pop("source"), receipt.pop("manifest")
    installation.begin(fresh=False)
    for entry in entries:
        make_link(entry["target"], os.path.join(installation.path, entry["path"]))
    installation.finish(source, manifest, **receipt)


def main():
    module = AnsibleModule(
        argument_spec={
            "kind": {"type": "str", "choices": ["toolkit", "cudnn"], "required": True},
            "id": {"type": "str", "required": True},
            "path": {"type": "path", "required": True},
            "version": {"type": "str", "required": True},
            "state_dir": {"type": "path", "default": "/var/lib/gpufleet"},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        entries = differing(installed(params))
        names = [entry["path"] for entry in entries]
        answer = {"changed": bool(names), "links": names}
        answer["diff"] = {
            "before": "",
            "after": "".join("{path} -> {target}\n".format(**entry) for entry in entries),
            "before_header": params["path"],
            "after_header": params["path"],
        }
        if entries and not module.check_mode:
            with host_lock(params["state_dir"]):
                # Another run may have repaired it while this one waited for the lock.
                installation = installed(params)
                entries = differing(installation)
                if entries:
                    restore(installation, entries)
        module.exit_json(**answer)
    except (StateError, OSError) as error:
        fail(module, error)


if __name__ == "__main__":
    main()
