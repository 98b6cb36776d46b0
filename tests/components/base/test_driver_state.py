"""A managed driver: what a run has to do about it, told from documents alone.

Every fault by itself is broken, and seen to be caught, by the checks' own specifications.
"""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.components.base import driver_state
from gpufleet.components.base.host import Host
from gpufleet.components.changes import changes
from gpufleet.components.driver import running as driver_running
from gpufleet.components.resolver import resolve
from tests.support.host_documents import (
    KERNEL,
    converged,
    declaration,
    mangled,
    receipt,
    section,
    snapshot,
)

Row = dict[str, Any]

PLANNED = {
    "minimum": None,
    "because": None,
    "branch": "535",
    "version": None,
    "source": "distro",
    "managed": True,
    "module": "proprietary",
    "module_because": "declared",
    "persistence": True,
    "fabric_manager": False,
    "mig": None,
    "reboot": "auto",
}


@pytest.fixture
def plan() -> Row:
    """A host without a GPU whose driver is managed."""
    return {
        **resolve(declaration(gpu_expect={"count": 0})),
        "host": "gpu01",
        "driver": dict(PLANNED),
    }


@pytest.fixture
def host(plan: Row) -> Row:
    return converged(plan)


def only(plan: Row, host: Row | None) -> Row:
    rows = changes(plan, host)
    assert len(rows) == 1, rows
    assert (rows[0]["what"], rows[0]["id"]) == ("driver", "driver")
    return rows[0]


def action(plan: Row, host: Row | None) -> tuple[str, str]:
    row = only(plan, host)
    return row["action"], row["because"]


def with_cards(plan: Row, host: Row, **driver: Any) -> None:
    plan["expect"]["count"] = 1
    section(host, "gpus")["pci"] = [{"address": "0000:01:00.0", "driver": "nvidia"}]
    section(host, "driver").update(
        loaded="535.261.03",
        persistence={"unit": driver_running.PERSISTENCE, "enabled": True, "active": True},
        **driver,
    )


def test_a_driver_as_it_should_be_is_left_alone(plan: Row, host: Row) -> None:
    assert changes(plan, host) == []
    with_cards(plan, host)
    assert changes(plan, host) == []


def test_a_driver_that_is_not_managed_is_never_a_change(plan: Row) -> None:
    plan["driver"]["managed"] = False
    assert changes(plan, snapshot()) == []


def test_a_bare_host_gets_one(plan: Row) -> None:
    reported = action(plan, snapshot())
    assert reported[0] == "install"
    assert reported[1].startswith("no package of the driver is installed")


def test_one_that_somebody_else_installed_is_taken_over(plan: Row, host: Row) -> None:
    section(host, "receipts")["receipts"] = []
    assert action(plan, host) == ("install", "the installed one has no receipt")


def test_one_that_a_runfile_installed_is_refused(plan: Row) -> None:
    host = snapshot(driver={"library": "550.163.01"})
    reported = action(plan, host)
    assert reported[0] == "refuse"
    assert "a runfile installed it" in reported[1]


def test_an_installation_that_was_killed_is_finished(plan: Row, host: Row) -> None:
    section(host, "receipts")["journal"] = [
        {"kind": "driver", "id": "driver", "state": "installing", "started": "12:00"}
    ]
    assert action(plan, host) == ("finish", "the journal records installing since 12:00")


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"branch": "550"}, "branch 550 is planned"),
        ({"branch": "535", "version": "535.216.03"}, "535.216.03 is planned"),
        ({"source": "nvidia_repo"}, "installed with source distro, planned is nvidia_repo"),
        ({"module": "open"}, "installed with module proprietary, planned is open"),
    ],
)
def test_another_branch_version_or_source_is_an_upgrade(
    plan: Row, host: Row, change: Row, reported: str
) -> None:
    plan["driver"].update(change)
    found = action(plan, host)
    assert found[0] == "upgrade"
    assert reported in found[1]


def test_modules_of_another_flavour_are_a_repair(plan: Row, host: Row) -> None:
    section(host, "kernel")["installed"][0]["modules"][0]["license"] = "Dual MIT/GPL"
    assert action(plan, host) == (
        "repair",
        f"the module of kernel {KERNEL} (it runs, it boots next) is open, planned is proprietary",
    )


def test_a_kernel_without_a_module_is_a_repair_before_it_boots(plan: Row, host: Row) -> None:
    section(host, "kernel")["installed"].append(
        {"version": "6.1.0-51-amd64", "image": True, "headers": False, "modules": []}
    )
    found = action(plan, host)
    assert found[0] == "repair"
    assert "kernel 6.1.0-51-amd64 has no NVIDIA module, and no headers" in found[1]


def test_small_files_that_changed_are_a_repair(plan: Row, host: Row) -> None:
    receipt(host, "driver", "driver")["changed"] = [
        {"path": "etc/modprobe.d/gpufleet-nouveau.conf", "what": "missing"}
    ]
    assert "gpufleet-nouveau.conf (missing)" in action(plan, host)[1]


def test_several_faults_are_counted(plan: Row, host: Row) -> None:
    section(host, "packages")["pins"] = []
    section(host, "driver")["nouveau"]["blacklisted"] = False
    assert action(plan, host)[1].endswith("(and 1 more)")


def test_a_driver_that_runs_in_another_version_is_restarted(plan: Row, host: Row) -> None:
    with_cards(plan, host)
    section(host, "driver")["loaded"] = "470.256.02"
    found = action(plan, host)
    assert found[0] == "restart"
    assert "the loaded kernel module is 470.256.02, on disk is 535.261.03" in found[1]
    section(host, "packages")["pins"] = []
    assert action(plan, host)[0] == "repair"


def test_a_service_waits_for_the_restart_that_is_pending(plan: Row, host: Row) -> None:
    """Beside libraries of another driver the daemon cannot start: no run repairs that."""
    plan["driver"]["reboot"] = "never"
    with_cards(plan, host, holders=[{"pid": 7, "user": "ada", "command": "python", "nodes": []}])
    section(host, "driver")["persistence"]["active"] = False
    assert "persistenced.service does not run" in action(plan, host)[1]
    section(host, "driver")["loaded"] = "470.256.02"
    assert changes(plan, host) == []


@pytest.mark.parametrize("cuinit", [None, 0, 802])
def test_a_guest_for_which_no_fabric_manager_is_planned_needs_none(
    plan: Row, host: Row, cuinit: int | None
) -> None:
    stopped = {"unit": driver_running.FABRIC, "enabled": True, "active": False}
    with_cards(plan, host, cuinit=cuinit, fabric=stopped)
    section(host, "gpus")["pci"][0]["device"] = "0x2901"
    assert f"{driver_running.FABRIC} does not run" in action(plan, host)[1]
    section(host, "gpus")["hypervisor"] = True
    assert changes(plan, host) == []


def test_the_daemon_needs_a_card_that_no_virtual_machine_has(plan: Row, host: Row) -> None:
    plan["expect"]["count"] = None
    given = {"address": "0000:01:00.0", "driver": "vfio-pci"}
    section(host, "gpus")["pci"] = [given, {**given, "driver": "nvidia"}]
    assert "persistenced.service is not installed" in action(plan, host)[1]
    section(host, "gpus")["pci"] = [given, given]
    assert changes(plan, host) == []


def test_without_a_card_nothing_needs_to_run(plan: Row, host: Row) -> None:
    assert section(host, "driver")["loaded"] is None
    plan["expect"]["count"] = None
    assert changes(plan, host) == []
    section(host, "gpus")["pci"] = [{"address": "0000:01:00.0", "driver": None}]
    assert "persistenced.service is not installed" in action(plan, host)[1]


@pytest.mark.parametrize("name", [*driver_state.SECTIONS, "receipts"])
def test_a_section_that_hung_never_counts_as_converged(plan: Row, host: Row, name: str) -> None:
    host["sections"][name] = {"state": "hung", "data": None, "error": "deadline"}
    found = action(plan, host)
    because = f"the host's {name} could not be read (deadline; --deadline S waits longer)"
    assert found == ("unread", because)


def test_a_mangled_snapshot_never_raises(plan: Row, host: Row) -> None:
    with_cards(plan, host)
    plan["driver"].update(
        fabric_manager=True,
        mig={"all": ["1g.10gb"]},
        subnet_manager={"packages": ["nvlsm"], "modules": ["ib_umad"]},
    )
    section(host, "driver").update(
        nvlsm={"program": None, "running": False, "modules": []},
        mig_boot={"unit": "x", "enabled": True, "active": False, "layout": {"0": ["1g.10gb"]}},
    )
    section(host, "gpus")["mig"] = [{"gpu": 0, "mode": "on", "instances": ["1g.10gb"]}]
    section(host, "packages").update(
        broken=[{"name": "dkms", "status": "unpacked"}],
        sources=[{"path": "/x.list", "uris": ["http://nvidia"], "suites": ["/"]}],
    )
    for each in mangled(host):
        assert isinstance(changes(plan, each), list)


@pytest.mark.parametrize(
    ("packages", "state", "because"),
    [
        (["nvlsm"], {}, None),
        (["nvlsm"], {"running": True, "program": None, "modules": []}, None),
        (["nvlsm"], {"program": None}, "nvlsm) is not installed"),
        ([], {"program": None}, None),
        (["nvlsm"], {"modules": ["mlx5_ib"]}, "are not loaded: ib_umad"),
        (["nvlsm"], {"modules": None}, "are not loaded: ib_umad, mlx5_ib"),
    ],
)
def test_what_the_subnet_manager_of_a_b200_needs(
    plan: Row, host: Row, packages: list[str], state: Row, because: str | None
) -> None:
    modules = ["mlx5_ib", "ib_umad"]
    plan["driver"]["subnet_manager"] = {"packages": packages, "modules": modules}
    program = "/opt/nvidia/nvlsm/sbin/nvlsm"
    healthy = {"program": program, "running": False, "modules": modules}
    section(host, "driver")["nvlsm"] = {**healthy, **state}
    faults = list(driver_running.subnet_manager(plan, Host(host)))
    assert [because in fault.cause for fault in faults if because] == [True] * len(faults)
    assert len(faults) == (because is not None)


def test_a_managed_driver_brings_its_own_library() -> None:
    plan = resolve(declaration("1.4.0", gpu_expect={"count": 0}))
    assert plan["driver_library"]
    plan["driver"] = dict(PLANNED)
    host = converged(plan)
    assert changes(plan, host) == []
    section(host, "driver")["library"] = None
    found = only(plan, host)
    assert found["because"] == "its user-space library, libcuda.so, is not installed"


def test_a_driver_that_is_declared_no_longer_is_named_and_stays(plan: Row, host: Row) -> None:
    later = resolve(declaration(gpu_stacks=[], gpu_prune=True), host)
    assert later["problems"] == []
    assert changes(later, host) == []
    (note,) = (text for text in later["notes"] if text.startswith("driver 535.261.03"))
    assert "no longer managed" in note


def test_a_repository_that_no_run_takes_away_starts_none(plan: Row, host: Row) -> None:
    plan["driver"]["source"] = receipt(host, "driver", "driver")["source"] = "nvidia_repo"
    sources = section(host, "packages")["sources"] = [
        {"path": f"/etc/apt/sources.list.d/{name}", "uris": [uri], "suites": ["/"]}
        for name, uri in (
            ("gpufleet-nvidia.sources", "https://mirror.example/nvidia"),
            ("nvidia-local.list", "file:///var/nvidia-driver-local-repo"),
        )
    ]
    assert changes(plan, host) == []
    sources[1]["uris"] = ["https://nvidia.example/compute/cuda/repos/debian12/x86_64"]
    assert action(plan, host)[0] == "repair"


@pytest.mark.parametrize(
    ("package", "version"),
    [
        ("535.261.03-1", "535.261.03"),
        ("3:535.261.03-1.el9", "535.261.03"),
        ("535.171.04-0ubuntu0.22.04.1", "535.171.04"),
        ("580.95-1", "580.95"),
        ("20220217+3~deb12u1", None),
        ("1.2.2", None),
        ("5.15.0-100.110+1", None),
        (None, None),
    ],
)
def test_nvidias_version_in_a_packages(package: str | None, version: str | None) -> None:
    assert driver_state.upstream(package) == version


def test_of_mixed_packages_the_kernel_modules_tells_the_version(plan: Row, host: Row) -> None:
    section(host, "packages")["driver"][0]["version"] = "525.147.05-1"
    assert driver_state.installed(plan, Host(host)) == "535.261.03"


def test_a_library_that_programs_open_is_installed_wherever_it_is(plan: Row, host: Row) -> None:
    """One outside the known places, without a version in its name, was called not installed."""
    with_cards(plan, host, library=None, library_path="/usr/local/nvidia/lib/libcuda.so.1")
    assert not list(driver_running.mismatch(plan, Host(host)))
    with_cards(plan, host, library_path=None)
    (fault,) = driver_running.mismatch(plan, Host(host))
    assert "is not installed" in fault.cause
    with_cards(plan, host, library_path="/usr/lib/wsl/lib/libcuda.so.1.1", cuinit=0)
    section(host, "driver")["loaded"] = None
    assert not list(driver_running.mismatch(plan, Host(host)))
