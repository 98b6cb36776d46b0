# Apache-2.0, see LICENSE
"""Fetch one artifact into the control machine's cache: in Ansible's own process.

Writes to the cache only. A fleet asks for each artifact once per host, and an interpreter for each
question would cost the control machine more than the comparison does.
"""

from __future__ import annotations

from types import SimpleNamespace

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.gpufleet.gpu.plugins.module_utils.download import signed
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import StateError
from ansible_collections.gpufleet.gpu.plugins.modules.gpu_artifact import ARGUMENTS, answer


class ActionModule(ActionBase):
    """Calls what the module of this name calls; the host is not asked."""

    TRANSFERS_FILES = False

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        _, params = self.validate_argument_spec(argument_spec=ARGUMENTS)
        declared = self._templar.template((task_vars or {}).get("gpu_artifacts") or {})
        addresses = [str(row.get("url") or "") for row in declared.values()]
        params = dict(params, url=signed(params["url"], addresses))
        here = SimpleNamespace(params=params, check_mode=self._task.check_mode)
        try:
            return dict(result, **answer(here))
        except (StateError, OSError) as error:
            raise AnsibleActionFail(str(error)) from error
