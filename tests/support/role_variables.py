"""The variable files of the nvidia_driver role, as Ansible reads them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from ansible.template import trust_as_template

from gpufleet.catalog.facts import LOADER

ROLE = Path(__file__).resolve().parents[2] / "roles" / "nvidia_driver"


def trusted(value: Any) -> Any:
    """A value as Ansible reads it from a file of variables: texts may be templates."""
    if isinstance(value, dict):
        return {key: trusted(each) for key, each in value.items()}
    if isinstance(value, list):
        return [trusted(each) for each in value]
    return trust_as_template(value) if isinstance(value, str) else value


@cache
def variables(name: str) -> dict[str, Any]:
    """The variables of a file of the role's; read once, so not to be changed."""
    read: dict[str, Any] = trusted(yaml.load((ROLE / name).read_text(), Loader=LOADER))
    return read
