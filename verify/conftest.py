"""The suite as pytest sees it: each check on each host is a test.

    pytest verify/ --ansible-inventory=INV                   every check
    pytest verify/test_cudnn.py --ansible-inventory=INV      those of one area
    pytest verify/ --ansible-inventory=INV -k linker.cache   those of this name
    pytest verify/ --ansible-inventory=INV -m deep           what takes minutes: load and contents

Hosts and `--hosts` are testinfra's. All hosts are probed in parallel, once, after collection and
before the first test, whatever files are run: one connection per check would take minutes per
host. Nothing on a host is changed.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpufleet.checks import CHECKS, PAIR_CHECKS, judge
from gpufleet.errors import ConfigurationError
from gpufleet.inventory import GROUP, Connection, HostSelector, InventoryHost, inventory_hosts
from gpufleet.verification.pair_selection import PairOptions
from gpufleet.verification.session import ProbeOptions, Session, judge_saved, verify
from gpufleet.verification.suite import PreparedSession

SESSION = pytest.StashKey[Session]()
HOSTS = pytest.StashKey[list[str]]()
DEEP = {check.id for check in (*CHECKS.values(), *PAIR_CHECKS.values()) if check.deep}


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
                    help="also compute on these two together, distributed")
    group.addoption("--gpu-pairs", action="store_true", help="and between each host and the next")
    group.addoption("--gpu-pair-stack", metavar="NAME", help="in this stack only")
    group.addoption("--gpu-snapshot", metavar="FILE", action="append", default=[],
                    help="judge this saved snapshot; no host is probed")
    group.addoption("--gpu-plan", metavar="FILE", action="append", default=[],
                    help="the saved plan of a saved snapshot's host")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and let testinfra find this environment's `ansible-inventory`."""
    config.addinivalue_line("markers", "deep: needs --gpu-deep; -m deep alone implies it")
    here = str(Path(sys.executable).parent)
    path = os.environ.get("PATH", os.defpath)
    if here not in path.split(os.pathsep):
        os.environ["PATH"] = f"{here}{os.pathsep}{path}"


def _selector(config: pytest.Config) -> HostSelector:
    option = config.option
    inventory = option.ansible_inventory
    return HostSelector([inventory] if inventory else [], option.gpu_limit, option.gpu_extra_vars,
                    option.gpu_vault_password_file)


def _saved(config: pytest.Config) -> Session | None:
    """A session that needs no host: prepared by `gpufleet verify`, or of saved documents."""
    prepared: PreparedSession | None = config.pluginmanager.get_plugin(PreparedSession.NAME)
    if prepared:
        config.stash[SESSION] = prepared.session
    elif SESSION not in config.stash and config.option.gpu_snapshot:
        selector = _selector(config)
        config.stash[SESSION] = judge_saved(
            config.option.gpu_snapshot, config.option.gpu_plan, selector)
    return config.stash.get(SESSION, None)


def _hosts(config: pytest.Config) -> list[str]:
    """The hosts as testinfra names them: of the session, or of the inventory's group."""
    if HOSTS not in config.stash:
        saved = _saved(config)
        scheme = "ssh" if saved and config.option.gpu_snapshot else "ansible"
        hosts = saved.hosts if saved else inventory_hosts(_selector(config))
        config.stash[HOSTS] = [f"{scheme}://{host.name}" for host in hosts]
    return config.stash[HOSTS]


def _cases(area: str) -> list[Any]:
    """The ids of an area's checks, as parameters."""
    return [
        pytest.param(check_id, marks=pytest.mark.deep if check_id in DEEP else ())
        for check_id in judge.CHECK_IDS if check_id.startswith(f"{area}.")
    ]


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Iterator[None]:
    """Hosts by testinfra (ours by default), then every check of the file's area on each."""
    ours = "check_id" in metafunc.fixturenames
    if ours and metafunc.config.option.hosts is None:
        try:
            metafunc.module.testinfra_hosts = _hosts(metafunc.config)
        except ConfigurationError as error:
            raise pytest.UsageError(str(error)) from error
    yield
    if ours:
        metafunc.parametrize("check_id", _cases(metafunc.module.AREA))


def _host_of(item: pytest.Item) -> Any:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("_testinfra_host") if callspec else None


def name_of(host: Any) -> str:
    """A testinfra host's name: its backends keep it each in its own way."""
    found = getattr(host.backend, "host", None) or host.backend.hostname
    return str(getattr(found, "name", found))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Probe the hosts; then keep what was judged, in the reading order of the areas."""
    ours = [item for item in items if "check_id" in getattr(item, "fixturenames", ())]
    if not ours or config.option.collectonly:
        return
    if _saved(config) is None:
        hosts = {name_of(host): host for host in map(_host_of, ours) if host}
        try:
            config.stash[SESSION] = verify(_named(config, hosts), ProbeOptions(
                fanout=config.option.gpu_fanout, deadline_s=config.option.gpu_deadline,
                deep=_is_deep(config, ours)), pair_options=PairOptions(
                    tuple(config.option.gpu_pair), config.option.gpu_pairs,
                    config.option.gpu_pair_stack))
        except ConfigurationError as error:
            raise pytest.UsageError(str(error)) from error
    judged = [item for item in ours if _is_judged(config, item)]
    reached = {name_of(_host_of(item)) for item in judged}
    # Of a host that gave no verdict on what was selected, the first test fails for all of them.
    silent = {name_of(_host_of(item)): item for item in reversed(ours)
              if _is_unreachable(config, name_of(_host_of(item)))}
    judged += [item for name, item in silent.items() if name not in reached]
    judged.sort(key=lambda item: judge.AREAS.index(item.module.AREA))  # type: ignore[attr-defined]
    others = [item for item in items if "check_id" not in getattr(item, "fixturenames", ())]
    items[:] = [*judged, *others]


def _is_deep(config: pytest.Config, items: list[pytest.Item]) -> bool:
    """Whether to probe deeply: by --gpu-deep, or as `-m deep` has left nothing else."""
    selected = bool(config.option.markexpr) and all(
        item.get_closest_marker("deep") for item in items)
    return bool(config.option.gpu_deep or selected)


def _is_judged(config: pytest.Config, item: Any) -> bool:
    return item.callspec.params["check_id"] in _results(config)[name_of(_host_of(item))]


def _is_unreachable(config: pytest.Config, host: str) -> bool:
    return judge.REACHABLE in _results(config)[host]


def _named(config: pytest.Config, hosts: dict[str, Any]) -> list[InventoryHost]:
    """The hosts that testinfra names: with the inventory's settings, else with those of its URL."""
    known: dict[str, InventoryHost] = {}
    if config.option.ansible_inventory or config.option.hosts is None:
        known = {host.name: host for host in inventory_hosts(_selector(config))}
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
    """The verdict of this check on this host; of an unreachable host, that it is unreachable."""
    checks = _results(request.config)[name_of(host)]
    return checks.get(check_id) or checks[judge.REACHABLE]
