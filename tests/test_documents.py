"""Generated documents and examples are true of the project as it stands."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from docs import distributions, screenshots
from docs.generate import plain, table
from gpufleet.catalog import facts
from gpufleet.fleet.inventory import HostSelector, inventory_hosts
from gpufleet.judge.judge import CHECK_IDS
from gpufleet.report import rendering
from tests.faults.catalogue import faults

ROOT = Path(__file__).resolve().parents[1]


def test_the_page_of_distributions_has_every_system_of_the_catalog() -> None:
    rows = distributions.load()["distributions"].items()
    systems = facts.document("driver_offers.yml")["systems"]
    assert {row.get("system", name) for name, row in rows} == {row["name"] for row in systems}


def test_the_threat_model_names_tests_that_there_are() -> None:
    text = (ROOT / "docs/explanation/security.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", text)
    assert len(named) > 20
    for path, name in named:
        assert f"\ndef {name}(" in (ROOT / path).read_text(), f"{path}::{name}"


def test_screenshots_are_stale_after_the_style_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    templates = tmp_path / "templates"
    shutil.copytree(rendering.TEMPLATES, templates)
    monkeypatch.setattr(screenshots, "DIGEST", tmp_path / "pages.sha256")
    monkeypatch.setattr(screenshots, "SAMPLES", ((1, 0),))
    assert screenshots.stale()
    screenshots.DIGEST.write_text(screenshots.digest())
    assert not screenshots.stale()
    monkeypatch.setattr(rendering, "TEMPLATES", templates)
    assert not screenshots.stale()
    with (templates / "report.css").open("a") as style:
        style.write("body {margin: 1px}")
    assert screenshots.stale()


def test_ansible_s_markup_becomes_markdown() -> None:
    assert plain("Use C(a: {b: (c)}) or\n  V(x).") == "Use `a: {b: (c)}` or `x`."


def test_bars_in_cells_do_not_make_columns() -> None:
    assert table(["a"], [["x | y"]]).splitlines()[-1] == "| x \\| y |"


def test_every_host_of_the_example_inventory_can_be_planned() -> None:
    from gpufleet.components import resolver  # noqa: PLC0415 (only here)

    hosts = inventory_hosts(HostSelector([str(ROOT / "inventory" / "example")]))
    assert len(hosts) == 33
    for host in hosts:
        plan = resolver.resolve(host.variables, None, host.name)
        assert plan["problems"] == [], host.name
    legacy = next(host for host in hosts if host.name.startswith("legacy"))
    assert "ProxyJump=deploy@bastion.ber.example.org" in " ".join(legacy.connection.ssh_arguments)


def test_faults_name_checks_that_there_are() -> None:
    named = {name for fault in faults() if fault.stage != "plan"
             for name in (fault.check, *fault.also)}  # fmt: skip
    assert named <= set(CHECK_IDS)
