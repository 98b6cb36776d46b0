"""The suite as pytest sees it: each check on each host is an item.

`pytest verify/ --ansible-inventory=INV` is all there is to it. Hosts and `--hosts` are
testinfra's; all snapshots are taken in parallel, once, after collection and before the first
test, because a test of its own ssh connections per check would take minutes per host.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpufleet.checks import judge
from gpufleet.errors import ConfigurationError
from gpufleet.inventory import GROUP, Connection, HostSelector, InventoryHost, inventory_hosts
from gpufleet.verification.pairs import PairOptions
from gpufleet.verification.session import ProbeOptions, Session, judge_saved, verify

SESSION = pytest.StashKey[Session]()


class Prepared:
    """A session that `python -m gpufleet verify` has made already, handed to pytest as a plugin."""

    NAME = "gpufleet-prepared"

    def __init__(self, session: Session) -> None:
        self.session = session


def pytest_addoption(parser: pytest.Parser) -> None:
    """The suite's own options, beside testinfra's."""
    group = parser.getgroup("gpufleet")
    group.addoption("--gpu-limit", metavar="HOSTS", help="as ansible-playbook's --limit")
    group.addoption("--gpu-extra-vars", metavar="VARS", action="append", default=[])
    group.addoption("--gpu-vault-password-file", metavar="FILE", action="append", default=[])
    group.addoption("--gpu-fanout", metavar="N", type=int, default=ProbeOptions.fanout)
    group.addoption("--gpu-deadline", metavar="S", type=float, default=ProbeOptions.deadline_s)
    group.addoption("--gpu-deep", action="store_true", help="compare contents, not only dates")
    group.addoption("--gpu-pair", metavar="HOST,OTHER", action="append", default=[],
                    help="also run a distributed TensorFlow between these two")
    group.addoption("--gpu-pairs", action="store_true", help="and between each host and the next")
    group.addoption("--gpu-pair-stack", metavar="NAME", help="in this stack only")
    group.addoption("--gpu-snapshot", metavar="FILE", action="append", default=[],
                    help="judge this saved snapshot instead of looking")
    group.addoption("--gpu-plan", metavar="FILE", action="append", default=[],
                    help="the saved plan of a saved snapshot's host")


def pytest_configure(config: pytest.Config) -> None:
    """testinfra asks `ansible-inventory` for hosts: that of this interpreter's environment."""
    here = str(Path(sys.executable).parent)
    path = os.environ.get("PATH", os.defpath)
    if here not in path.split(os.pathsep):
        os.environ["PATH"] = f"{here}{os.pathsep}{path}"


def _question(config: pytest.Config) -> HostSelector:
    option = config.option
    inventory = option.ansible_inventory
    return HostSelector([inventory] if inventory else [], option.gpu_limit, option.gpu_extra_vars,
                    option.gpu_vault_password_file)


def _saved(config: pytest.Config) -> Session | None:
    """A session that needs no host: made before, or of saved documents."""
    prepared: Prepared | None = config.pluginmanager.get_plugin(Prepared.NAME)
    if prepared:
        config.stash[SESSION] = prepared.session
    elif SESSION not in config.stash and config.option.gpu_snapshot:
        question = _question(config)
        config.stash[SESSION] = judge_saved(
            config.option.gpu_snapshot, config.option.gpu_plan, question)
    return config.stash.get(SESSION, None)


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Iterator[None]:
    """Hosts by testinfra (ours by default), then every check on each."""
    ours = "check_id" in metafunc.fixturenames
    option = metafunc.config.option
    if ours and option.hosts is None:
        try:
            saved = _saved(metafunc.config)
            if saved:
                scheme = "ssh" if option.gpu_snapshot else "ansible"
                hosts = [f"{scheme}://{host.name}" for host in saved.hosts]
            else:
                hosts = [
                    f"ansible://{host.name}" for host in inventory_hosts(_question(metafunc.config))
                ]
        except ConfigurationError as error:
            raise pytest.UsageError(str(error)) from error
        metafunc.module.testinfra_hosts = hosts
    yield
    if ours:
        metafunc.parametrize("check_id", judge.CHECK_IDS)


def _host_of(item: pytest.Item) -> Any:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("_testinfra_host") if callspec else None


def name_of(host: Any) -> str:
    """A testinfra host's name: its backends keep it each in its own way."""
    found = getattr(host.backend, "host", None) or host.backend.hostname
    return str(getattr(found, "name", found))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take the snapshots; then leave an unreachable host its one check, and others theirs."""
    ours = [item for item in items if "check_id" in getattr(item, "fixturenames", ())]
    if not ours or config.option.collectonly:
        return
    if _saved(config) is None:
        hosts = {name_of(host): host for host in map(_host_of, ours) if host}
        try:
            config.stash[SESSION] = verify(_named(config, hosts), ProbeOptions(
                fanout=config.option.gpu_fanout, deadline_s=config.option.gpu_deadline,
                deep=config.option.gpu_deep), pair_options=PairOptions(
                    tuple(config.option.gpu_pair), config.option.gpu_pairs,
                    config.option.gpu_pair_stack))
        except ConfigurationError as error:
            raise pytest.UsageError(str(error)) from error
    results = _results(config)
    items[:] = [
        item for item in items
        if item not in ours
        or item.callspec.params["check_id"] in results[name_of(_host_of(item))]  # type: ignore[attr-defined]
    ]


def _named(config: pytest.Config, hosts: dict[str, Any]) -> list[InventoryHost]:
    """The hosts that testinfra names: with the inventory's settings, else with those of its URL."""
    known: dict[str, InventoryHost] = {}
    if config.option.ansible_inventory or config.option.hosts is None:
        known = {host.name: host for host in inventory_hosts(_question(config))}
    found = []
    for name, host in hosts.items():
        if name in known:
            found.append(known[name])
            continue
        warnings.warn(f"{name} is not in the group {GROUP} of the inventory: nothing is declared"
                      " for it, so only the host itself is judged", stacklevel=1)
        spec = getattr(host.backend, "host", None)
        local = host.backend.get_connection_type() == "local"
        found.append(InventoryHost(name, {}, Connection(
            name, "local" if local else "ssh", address=name, user=getattr(spec, "user", None),
            port=int(port) if (port := getattr(spec, "port", None)) else None)))
    return found


def _results(config: pytest.Config) -> dict[str, dict[str, dict[str, str]]]:
    return {
        host.name: {check["id"]: check for check in host.result["checks"]}
        for host in config.stash[SESSION].hosts
    }


@pytest.fixture
def entry(request: pytest.FixtureRequest, host: Any, check_id: str) -> dict[str, str]:
    """The verdict of this check on this host."""
    return _results(request.config)[name_of(host)][check_id]
