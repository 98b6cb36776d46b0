"""A role's defaults: those of defaults/main.yml are those of its argument specification."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpufleet.documents.spec import Spec
from gpufleet.paths import ROOT

ROLES = sorted(path for path in (ROOT / "roles").iterdir() if path.is_dir())
# A default that yields to an older name of the variable.
FORMER_NAME = re.compile(r"^\{\{ \w+ \| default\('([^']*)'\) \}\}$")


def documented(role: Path) -> dict[str, Any]:
    entries = yaml.safe_load((role / "meta" / "argument_specs.yml").read_text())["argument_specs"]
    return {
        name: option["default"]
        for entry in entries.values()
        for name, option in entry["options"].items()
        if "default" in option
    }


def values(role: Path) -> dict[str, Any]:
    path = role / "defaults" / "main.yml"
    return yaml.safe_load(path.read_text()) or {} if path.exists() else {}


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_defaults_are_documented_as_they_are(role: Path) -> None:
    described, actual = documented(role), values(role)
    assert set(described) == set(actual)
    for name, value in actual.items():
        former = FORMER_NAME.match(value) if isinstance(value, str) else None
        if name == "gpu_artifacts_cache":  # an expression, documented as the path that it gives
            continue
        assert described[name] == (former.group(1) if former else value), name


def test_plan_defaults_are_those_of_the_spec() -> None:
    actual, spec = values(ROOT / "roles" / "gpu_plan"), Spec()
    assert actual["gpu_prefix"] == spec.prefix
    assert actual["gpu_stack_root"] == spec.stack_root
    assert actual["gpu_tmpdir"] == spec.tmpdir
    assert actual["gpu_driver_reboot"] == spec.driver_reboot
    flags = (actual["gpu_accept_nvidia_eula"], actual["gpu_prune"], actual["gpu_cuda_adopt"])
    assert flags == (spec.eula_accepted, spec.prune, spec.adopt)
