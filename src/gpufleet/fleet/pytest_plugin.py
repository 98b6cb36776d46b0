"""The pytest plugin: hosts are probed once, and tests get their plan, snapshot and verdicts.

    pytest verify/ --ansible-inventory=INV                   every check
    pytest verify/test_cudnn.py --ansible-inventory=INV      the checks of one area
    pytest verify/ --ansible-inventory=INV -k linker.cache   the checks of this name
    pytest verify/ --ansible-inventory=INV -m deep           what takes minutes: load and contents
    pytest site-tests --ansible-inventory=INV                a site's own tests

The installed package provides it, so that a site's own tests use the fixtures `gpu_plan`,
`gpu_snapshot` and `gpu_verdicts` beside testinfra's `host`. Hosts and `--hosts` are testinfra's.
All hosts are probed in parallel, once, after collection and before the first test, whatever files
are run: one connection per check would take minutes per host. The probe changes nothing on a host.
"""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from gpufleet.documents.plan import Plan
from gpufleet.documents.snapshot import Snapshot
from gpufleet.documents.verdict import CheckResult
from gpufleet.errors import ConfigurationError
from gpufleet.fleet.inventory import GROUP, Connection, HostSelector, InventoryHost, inventory_hosts
from gpufleet.judge import judge

from .check_tests import check_id_of
from .options import ProbeOptions
from .pair_selection import PairOptions
from .probing import verify
from .saved import judge_saved
from .session import HostRun, Session
from .suite import PreparedSession, area_of, message, not_judged_reason

SESSION = pytest.StashKey[Session]()
HOSTS = pytest.StashKey[list[str]]()
# The fixture that all others of this plugin use: a test that uses any of them has it.
RUN = "gpu_run"
# testinfra's fixture behind `host`, which has a value for each host of a test.
HOST = "_testinfra_host"


# -- fixtures --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gpu_run(request: pytest.FixtureRequest, host: Any) -> HostRun:
    """The host's part of the verification: what the other fixtures are taken from."""
    return _runs(request.config)[name_of(host)]


@pytest.fixture(scope="module")
def gpu_plan(gpu_run: HostRun) -> Plan:
    """The plan of the host: what the inventory declares, resolved. `plan --json` prints it too."""
    return deepcopy(gpu_run.plan)


@pytest.fixture(scope="module")
def gpu_snapshot(gpu_run: HostRun) -> Snapshot:
    """The probe's snapshot of the host; a host that was not read fails the test."""
    snapshot = gpu_run.snapshot
    if snapshot is None:
        pytest.fail(message(gpu_run.result["checks"][0]), pytrace=False)
    return snapshot


@pytest.fixture(scope="module")
def gpu_verdicts(gpu_run: HostRun) -> Mapping[str, CheckResult]:
    """The verdict of each check by its id; a host that was not judged fails the test."""
    # A test that asks for the verdicts that are FAIL would pass on a host without verdicts.
    if reason := not_judged_reason(gpu_run.result):
        pytest.fail(message(reason), pytrace=False)
    return {check["id"]: deepcopy(check) for check in gpu_run.result["checks"]}


# -- hooks -----------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """The plugin's own options, beside testinfra's."""
    group = parser.getgroup("gpufleet")
    group.addoption("--gpu-limit", metavar="HOSTS", help="as ansible-playbook's --limit")
    group.addoption("--gpu-extra-vars", metavar="VARS", action="append", default=[])
    group.addoption("--gpu-vault-password-file", metavar="FILE", action="append", default=[])
    group.addoption("--gpu-fanout", metavar="N", type=int, default=ProbeOptions.fanout)
    group.addoption("--gpu-deadline", metavar="S", type=float, default=ProbeOptions.deadline_s)
    group.addoption("--gpu-deep", action="store_true", help="compare contents, not only dates")
    group.addoption(
        "--gpu-pair",
        metavar="HOST,OTHER",
        action="append",
        default=[],
        help="also compute on these two together, distributed",
    )
    group.addoption("--gpu-pairs", action="store_true", help="and between each host and the next")
    group.addoption("--gpu-pair-stack", metavar="NAME", help="in this stack only")
    group.addoption(
        "--gpu-snapshot",
        metavar="FILE",
        action="append",
        default=[],
        help="judge this saved snapshot; no host is probed",
    )
    group.addoption(
        "--gpu-plan",
        metavar="FILE",
        action="append",
        default=[],
        help="the saved plan of a saved snapshot's host",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", "deep: needs --gpu-deep; -m deep alone implies it")


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Iterator[None]:
    """Run a test of this plugin's fixtures on the session's hosts, and name it by the host alone.

    `--hosts` and a module's own `testinfra_hosts` select hosts as they do for any test of
    testinfra.
    """
    if HOST in metafunc.fixturenames:
        _let_testinfra_find_ansible()
    if RUN not in metafunc.fixturenames:
        yield
        return
    parametrize = metafunc.parametrize

    def by_host(names: Any, hosts: Any, *args: Any, **options: Any) -> None:
        if names == HOST:
            if not hosts:
                raise pytest.UsageError(_no_hosts(metafunc))
            options["ids"] = [name_of(host) for host in hosts]
        parametrize(names, hosts, *args, **options)

    module = metafunc.module
    ours = metafunc.config.option.hosts is None and not hasattr(module, "testinfra_hosts")
    if ours:
        try:
            module.testinfra_hosts = _hosts(metafunc.config)
        except ConfigurationError as error:
            raise pytest.UsageError(str(error)) from error
    metafunc.parametrize = by_host  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        # A test of the same module that uses only `host` keeps testinfra's own selection.
        if ours:
            del module.testinfra_hosts


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Probe the hosts; then keep the checks that were judged, in the reading order of the areas."""
    ours = [item for item in items if RUN in getattr(item, "fixturenames", ())]
    if not ours or config.option.collectonly:
        return
    if _saved(config) is None:
        hosts = {name_of(host): host for host in map(_host_of, ours) if host}
        try:
            config.stash[SESSION] = verify(
                _named(config, hosts),
                ProbeOptions(
                    fanout=config.option.gpu_fanout,
                    deadline_s=config.option.gpu_deadline,
                    deep=_is_deep(config, ours),
                ),
                pair_options=PairOptions(
                    tuple(config.option.gpu_pair),
                    config.option.gpu_pairs,
                    config.option.gpu_pair_stack,
                ),
            )
        except ConfigurationError as error:
            raise pytest.UsageError(str(error)) from error
    checks = {item: name for item in ours if (name := check_id_of(item.function))}  # type: ignore[attr-defined]
    kept = _judged(config, checks)
    kept.sort(key=lambda item: judge.AREAS.index(area_of(checks[item])))
    items[:] = [*kept, *(item for item in items if item not in checks)]


def _judged(config: pytest.Config, checks: Mapping[pytest.Item, str]) -> list[pytest.Item]:
    """The tests of checks that have a verdict.

    Of a host that gave no verdict on what was selected, the first test fails for all of them.
    """
    results = {host: run.result for host, run in _runs(config).items()}
    judged = {host: {row["id"] for row in result["checks"]} for host, result in results.items()}
    kept = [item for item, name in checks.items() if name in judged[name_of(_host_of(item))]]
    reached = {name_of(_host_of(item)) for item in kept}
    silent: dict[str, pytest.Item] = {}
    for item in checks:
        host = name_of(_host_of(item))
        if host not in reached and not_judged_reason(results[host]):
            silent.setdefault(host, item)
    return [*kept, *silent.values()]


def _no_hosts(metafunc: pytest.Metafunc) -> str:
    wanted = metafunc.config.option.hosts or getattr(metafunc.module, "testinfra_hosts", [])
    listed = wanted if isinstance(wanted, str) else ", ".join(map(str, wanted))
    why = "" if shutil.which("ansible-inventory") else ": ansible-inventory is not on the PATH"
    return f"testinfra finds none of the hosts {listed}{why}"


# -- the session -----------------------------------------------------------------------------------


def _let_testinfra_find_ansible() -> None:
    """Put this environment's `ansible-inventory` on the path, where testinfra searches for it."""
    here = str(Path(sys.executable).parent)
    path = os.environ.get("PATH", os.defpath)
    if here not in path.split(os.pathsep):
        os.environ["PATH"] = f"{here}{os.pathsep}{path}"


def _selector(config: pytest.Config) -> HostSelector:
    option = config.option
    inventory = option.ansible_inventory
    return HostSelector(
        [inventory] if inventory else [],
        option.gpu_limit,
        option.gpu_extra_vars,
        option.gpu_vault_password_file,
    )


def _saved(config: pytest.Config) -> Session | None:
    """A session that needs no host: prepared by `gpufleet verify`, or of saved documents."""
    prepared: PreparedSession | None = config.pluginmanager.get_plugin(PreparedSession.NAME)
    if prepared:
        config.stash[SESSION] = prepared.session
    elif SESSION not in config.stash and config.option.gpu_snapshot:
        selector = _selector(config)
        config.stash[SESSION] = judge_saved(
            config.option.gpu_snapshot, config.option.gpu_plan, selector
        )
    return config.stash.get(SESSION, None)


def _runs(config: pytest.Config) -> dict[str, HostRun]:
    return {run.name: run for run in config.stash[SESSION].hosts}


def _hosts(config: pytest.Config) -> list[str]:
    """The hosts as testinfra names them: of the session, or of the inventory's group."""
    if HOSTS not in config.stash:
        saved = _saved(config)
        scheme = "ssh" if saved and config.option.gpu_snapshot else "ansible"
        hosts = saved.hosts if saved else inventory_hosts(_selector(config))
        config.stash[HOSTS] = [f"{scheme}://{host.name}" for host in hosts]
    return config.stash[HOSTS]


def _host_of(item: pytest.Item) -> Any:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get(HOST) if callspec else None


def name_of(host: Any) -> str:
    """A testinfra host's name: its backends keep it each in its own way."""
    found = getattr(host.backend, "host", None) or host.backend.hostname
    return str(getattr(found, "name", found))


def _is_deep(config: pytest.Config, items: list[pytest.Item]) -> bool:
    """Return whether to probe deeply: by --gpu-deep, or if `-m deep` has left nothing else."""
    selected = bool(config.option.markexpr) and all(
        item.get_closest_marker("deep") for item in items
    )
    return bool(config.option.gpu_deep or selected)


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
        warnings.warn(
            f"{name} is not in the group {GROUP} of the inventory: nothing is declared"
            " for it, so only the host itself is judged",
            stacklevel=1,
        )
        spec = getattr(host.backend, "host", None)
        local = host.backend.get_connection_type() == "local"
        found.append(
            InventoryHost(
                name,
                {},
                Connection(
                    name,
                    "local" if local else "ssh",
                    address=name,
                    user=getattr(spec, "user", None),
                    port=int(port) if (port := getattr(spec, "port", None)) else None,
                ),
            )
        )
    return found
