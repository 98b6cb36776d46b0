"""The facts about Red Hat's packages are sourced, and the roles ask for packages that there are."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from gpufleet.catalog.facts import DATA
from gpufleet.paths import ROOT

FACTS: dict[str, Any] = yaml.safe_load((DATA / "distributions/redhat.yml").read_text("utf-8"))


def sources(node: Any) -> set[str]:
    """Every source that a row below a node names."""
    if isinstance(node, list):
        return set().union(*map(sources, node))
    if not isinstance(node, dict):
        return set()
    named = node.get("source", [])
    own = {named} if isinstance(named, str) else set(named)
    return own.union(*map(sources, node.values()))


def test_every_row_names_a_source_that_is_listed() -> None:
    rows = {key: node for key, node in FACTS.items() if key not in ("sources", "unknown")}
    assert sources(rows) <= set(FACTS["sources"])
    for row in FACTS["driver"]["packages"]:
        assert row["source"], row["name"]


@pytest.mark.parametrize("major", ["8", "9", "10"])
@pytest.mark.parametrize("version", FACTS["driver"]["versions"])
def test_the_role_asks_for_packages_that_a_branch_has(major: str, version: str) -> None:
    path = ROOT / f"roles/nvidia_driver/vars/redhat-{major}.yml"
    [source] = yaml.safe_load(path.read_text("utf-8"))["__nvidia_driver_sources"].values()
    number = int(version.partition(".")[0])
    there = {
        row["name"]
        for row in FACTS["driver"]["packages"]
        if row.get("since", 0) <= number < row.get("before", 1000)
    }
    wanted = {name for names in source["branches"]["any"].values() for name in names}
    assert wanted | set(source["persistence"]) <= there
    manager = "nvidia-fabricmanager" if number >= 580 else "nvidia-fabric-manager"
    assert manager in there and f"'{manager}'" in source["fabric_manager"][0]
