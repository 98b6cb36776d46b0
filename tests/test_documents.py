"""What is generated or shown as an example is true of the project as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from docs.generate import pages, plain, table
from gpufleet.checks.judge import CHECK_IDS
from gpufleet.inventory import HostSelector, inventory_hosts
from tests.faults.catalogue import faults

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(("path", "text"), list(pages()), ids=lambda value: str(value)[-30:])
def test_generated_documents_are_up_to_date(path: Path, text: str) -> None:
    assert path.read_text() == text, "run './gpufleet docs'"


def test_the_threat_model_names_tests_that_there_are() -> None:
    text = (ROOT / "docs/explanation/security.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", text)
    assert len(named) > 20
    for path, name in named:
        assert f"\ndef {name}(" in (ROOT / path).read_text(), f"{path}::{name}"


def test_ansible_s_markup_becomes_markdown() -> None:
    assert plain("Use C(a: {b: (c)}) or\n  V(x).") == "Use `a: {b: (c)}` or `x`."


def test_bars_in_cells_do_not_make_columns() -> None:
    assert table(["a"], [["x | y"]]).splitlines()[-1] == "| x \\| y |"


def test_every_host_of_the_example_inventory_can_be_planned() -> None:
    from gpufleet import resolver  # noqa: PLC0415 (only here)

    hosts = inventory_hosts(HostSelector([str(ROOT / "inventory" / "example")]))
    assert len(hosts) == 33
    for host in hosts:
        plan = resolver.resolve(host.variables, None, host.name)
        assert plan["problems"] == [], host.name
    relic = next(host for host in hosts if host.name.startswith("relic"))
    assert "ProxyJump=deploy@bastion.ber.example.org" in " ".join(relic.connection.ssh_arguments)


@pytest.mark.parametrize("role", sorted((ROOT / "roles").iterdir()), ids=lambda path: path.name)
def test_every_default_of_a_role_is_specified(role: Path) -> None:
    specification = yaml.safe_load((role / "meta" / "argument_specs.yml").read_text())
    options = specification["argument_specs"]["main"]["options"]
    defaults = role / "defaults" / "main.yml"
    variables = yaml.safe_load(defaults.read_text()) if defaults.exists() else {}
    assert set(variables) <= set(options)


def test_faults_name_checks_that_there_are() -> None:
    named = {name for fault in faults() if fault.stage != "plan"
             for name in (fault.check, *fault.also)}  # fmt: skip
    assert named <= set(CHECK_IDS)
