"""The driver that is planned: by distribution and source, and every refusal of it."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.catalog import facts
from gpufleet.components.base.host import Host
from gpufleet.components.changes import changes
from gpufleet.components.driver import sources as driver_sources
from gpufleet.components.resolver import resolve
from tests.support.host_documents import (
    SYSTEMS,
    codes,
    converged,
    declaration,
    gpu_host,
    refusal,
    section,
    snapshot,
)

ROW = {
    "minimum",
    "because",
    "branch",
    "version",
    "source",
    "managed",
    "module",
    "module_because",
    "persistence",
    "fabric_manager",
    "subnet_manager",
    "mig",
    "reboot",
}


def plan(system: str, *devices: str, sections: Any = None, **declared: Any) -> dict[str, Any]:
    """A host that wants its driver managed, and whatever else is given."""
    return resolve({"gpu_driver": {}, **declared}, gpu_host(system, *devices, **(sections or {})))


# What an A100 gets on every supported system: from the distribution, and from NVIDIA's repository.
OFFERED = [
    ("debian-11", ("470", "proprietary"), ("560", "open")),
    ("debian-12", ("535", "proprietary"), ("620", "open")),
    ("debian-13", ("550", "proprietary"), ("620", "open")),
    ("ubuntu-20.04", ("570", "open"), ("570", "open")),
    ("ubuntu-22.04", ("595", "open"), ("620", "open")),
    ("ubuntu-24.04", ("595", "open"), ("620", "open")),
    ("rhel-8", None, ("620", "open")),
    ("rhel-9", None, ("620", "open")),
    ("rhel-10", None, ("620", "open")),
    ("rocky-8", None, ("620", "open")),
    ("rocky-9", None, ("620", "open")),
    ("rocky-10", None, ("620", "open")),
]


def test_every_system_is_tried() -> None:
    assert {system for system, _, _ in OFFERED} == set(SYSTEMS)
    tried = [driver_sources.system_of(Host(gpu_host(system))) for system in SYSTEMS]
    known = {row["name"] for row in facts.document("driver_offers.yml")["systems"]}
    assert {system.name for system in tried if system} == known


@pytest.mark.parametrize(("system", "distro", "repository"), OFFERED)
def test_every_system_has_a_whole_driver_row_or_a_clear_refusal(
    system: str, distro: tuple[str, str] | None, repository: tuple[str, str]
) -> None:
    for source, expected in (("distro", distro), ("nvidia_repo", repository)):
        found = plan(system, "20b0", gpu_driver={"source": source})
        row = found["driver"]
        assert set(row) == ROW
        if expected is None:
            (problem,) = found["problems"]
            assert (problem["code"], problem["where"]) == (
                "driver-not-offered",
                "gpu_driver.source",
            )
            assert "source: nvidia_repo" in problem["remedy"]
        else:
            assert found["problems"] == []
            assert (row["branch"], row["module"], row["source"]) == (*expected, source)
            assert row["managed"] is True
            assert row["persistence"] is True
            assert row["version"] is None


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_runfile_is_offered_everywhere(system: str) -> None:
    wanted = {"gpu_driver": {"source": "runfile", "branch": "580"}}
    assert codes(plan(system, "20b0", **wanted)) == ["eula-not-accepted"]
    found = plan(system, "20b0", **wanted, gpu_accept_nvidia_eula=True)
    assert found["problems"] == []
    assert (found["driver"]["branch"], found["driver"]["version"]) == ("580", "580.178.04")


def test_a_runfile_is_of_one_exact_version() -> None:
    wanted = {"gpu_accept_nvidia_eula": True}
    (problem,) = plan(
        "debian-12", "20b0", **wanted, gpu_driver={"source": "runfile", "branch": "616"}
    )["problems"]
    assert (problem["code"], problem["where"]) == ("driver-not-offered", "gpu_driver.branch")
    exact = plan(
        "debian-12", "20b0", **wanted, gpu_driver={"source": "runfile", "branch": "616.10"}
    )
    assert (exact["problems"], exact["driver"]["version"]) == ([], "616.10")


def test_a_branch_that_is_installed_is_kept_while_it_fits() -> None:
    def with_receipt(branch: str, device: str) -> dict[str, Any]:
        receipt = {"kind": "driver", "id": "driver", "version": f"{branch}.1", "branch": branch}
        return plan("ubuntu-24.04", device, sections={"receipts": {"receipts": [receipt]}})

    kept = with_receipt("580", "20b0")
    assert (kept["problems"], kept["driver"]["branch"]) == ([], "580")
    assert any("580 is installed and kept; 595" in note for note in kept["notes"])
    assert not any("installed and kept" in note for note in with_receipt("595", "20b0")["notes"])
    # V100 is no longer in 595, and 535 is no longer offered.
    assert with_receipt("595", "1db4")["driver"]["branch"] == "580"
    assert with_receipt("535", "20b0")["driver"]["branch"] == "595"


def test_the_system_stands_in_the_plan() -> None:
    assert plan("debian-12")["os"] == {
        "id": "debian",
        "version_id": "12",
        "codename": "bookworm",
        "family": "debian",
    }
    assert plan("rocky-9")["os"] == {
        "id": "rocky",
        "version_id": "9.6",
        "codename": None,
        "family": "redhat",
    }
    assert resolve({"gpu_driver": {}})["os"] is None
    assert resolve({"gpu_driver": {}}, snapshot(os="hung"))["os"] is None


@pytest.mark.parametrize(
    "about",
    [{"id": "arch"}, {"id": "debian", "version_id": "9"}, {"id": "ubuntu", "version_id": "99.04"}],
)
def test_a_system_that_is_not_known(about: dict[str, str]) -> None:
    host = snapshot(os=about)
    problem = refusal({"gpu_driver": {}}, host)
    assert (problem["code"], problem["where"]) == ("os-unsupported", "gpu_driver.source")
    assert "Ubuntu 24.04" in problem["message"]
    assert resolve({"gpu_driver": {"source": "preinstalled"}}, host)["problems"] == []
    assert resolve({}, host)["problems"] == []


@pytest.mark.parametrize(
    ("system", "wanted", "reported"),
    [
        ("debian-12", {"branch": "580"}, ["470, 535", 'branch: "580", source: nvidia_repo']),
        ("debian-12", {"branch": "580.65.06"}, ['branch: "580", source: nvidia_repo']),
        ("debian-11", {"branch": "535"}, ["470", 'branch: "535", source: nvidia_repo']),
        # Ubuntu 22.04 has made its 535 a way to 580.
        ("ubuntu-22.04", {"branch": "535"}, ["418, 470, 580, 595, 615", 'or branch "595"']),
        ("debian-13", {"branch": "580", "source": "nvidia_repo"}, ['branch: "580", source: runf']),
        ("rhel-9", {"branch": "580"}, ["it has none", 'branch: "580", source: nvidia_repo']),
    ],
)
def test_a_branch_that_the_source_does_not_have(
    system: str, wanted: dict[str, str], reported: list[str]
) -> None:
    (problem,) = plan(system, "20b0", gpu_driver=wanted)["problems"]
    assert (problem["code"], problem["where"]) == ("driver-not-offered", "gpu_driver.branch")
    for text in reported:
        assert text in problem["message"] + problem["remedy"]


def test_the_branch_is_new_enough_for_every_toolkit() -> None:
    wanted = declaration(gpu_toolkits=["13.0.0"], gpu_driver={})
    host = gpu_host("debian-12", "20b0")
    problem = refusal(wanted, host)
    assert (problem["code"], problem["where"]) == ("driver-too-old", "gpu_driver")
    assert "CUDA 13.0" in problem["message"]
    assert problem["remedy"] == 'set gpu_driver: {branch: "620", source: nvidia_repo}'
    assert resolve({**wanted, "gpu_driver": {"source": "nvidia_repo"}}, host)["problems"] == []
    older = resolve(declaration("2.13.1", gpu_driver={}), host)
    assert (older["problems"], older["driver"]["branch"]) == ([], "535")


def test_the_branch_that_is_maintained_and_lasts_goes_first() -> None:
    # 615 is newer than 595, and neither a production nor a long-term branch.
    assert [each.branch.number for each in _offers("ubuntu-24.04")] == ["470", "580", "595", "615"]
    assert plan("ubuntu-24.04", "20b0")["driver"]["branch"] == "595"
    assert plan("ubuntu-24.04", "1db4")["driver"]["branch"] == "580"
    notes = plan("debian-12", "20b0")["notes"]
    assert any("no longer maintains driver branch 535" in note for note in notes)
    assert not any("maintains" in note for note in plan("ubuntu-24.04", "1db4")["notes"])


def test_an_exact_version_has_its_branch_and_a_note_where_another_was_seen() -> None:
    seen = plan("debian-12", "20b0", gpu_driver={"branch": "535.261.03"})
    assert (seen["driver"]["branch"], seen["driver"]["version"]) == ("535", "535.261.03")
    assert not any("is declared;" in note for note in seen["notes"])
    other = plan("debian-12", "20b0", gpu_driver={"branch": "535.216.03"})
    assert other["problems"] == []
    assert any("535.216.03 is declared;" in note for note in other["notes"])


def test_a_host_that_was_not_reached_has_its_branch_chosen_later() -> None:
    found = resolve({"gpu_driver": {}, "gpu_gpus": ["H100"]})
    assert found["problems"] == []
    assert (found["driver"]["branch"], found["driver"]["managed"]) == (None, True)
    assert any("selected when the host is probed" in note for note in found["notes"])
    named = resolve({"gpu_driver": {"branch": "580"}, "gpu_gpus": ["H100"]})["driver"]
    assert (named["branch"], named["module"]) == ("580", "open")


NVSWITCH = {"gpus": {"nvswitches": ["0000:c1:00.0"]}}


@pytest.mark.parametrize("system", ["debian-12", "debian-13"])
def test_an_nvswitch_needs_a_fabric_manager_which_debian_has_not(system: str) -> None:
    (problem,) = plan(system, "20b0", sections=NVSWITCH)["problems"]
    assert (problem["code"], problem["where"]) == (
        "fabric-manager-unavailable",
        "gpu_driver.source",
    )
    assert "0000:c1:00.0" in problem["message"]
    assert "source: nvidia_repo" in problem["remedy"]
    better = plan(system, "20b0", sections=NVSWITCH, gpu_driver={"source": "nvidia_repo"})
    assert (better["problems"], better["driver"]["fabric_manager"]) == ([], True)
    assert plan(system, "20b0")["driver"]["fabric_manager"] is False


def test_an_nvswitch_with_a_branch_or_a_source_that_has_no_fabric_manager() -> None:
    own = plan("ubuntu-20.04", "20b0", sections=NVSWITCH)
    assert (own["problems"], own["driver"]["branch"]) == ([], "570")
    old = plan("ubuntu-20.04", "1db4", sections=NVSWITCH, gpu_driver={"branch": "418"})
    assert codes(old) == ["fabric-manager-unavailable"]
    runfile = {"source": "runfile", "branch": "580"}
    bare = plan(
        "debian-12", "20b0", sections=NVSWITCH, gpu_driver=runfile, gpu_accept_nvidia_eula=True
    )
    assert codes(bare) == ["fabric-manager-unavailable"]
    assert "source: nvidia_repo" in bare["problems"][0]["remedy"]


def test_an_nvswitch_where_no_source_has_a_fabric_manager() -> None:
    for source in ("distro", "nvidia_repo"):
        (problem,) = plan("debian-11", "20b0", sections=NVSWITCH, gpu_driver={"source": source})[
            "problems"
        ]
        assert problem["code"] == "fabric-manager-unavailable"
        assert "no source has a fitting branch for Debian 11" in problem["remedy"]


def test_transitional_packages_are_no_offer() -> None:
    for name, branch in [("debian-11", "460"), ("debian-12", "525"), ("ubuntu-24.04", "535")]:
        found = plan(name, "20b0", gpu_driver={"branch": branch})
        assert codes(found) == ["driver-not-offered"]


def test_boards_whose_nvswitches_no_pci_bus_shows() -> None:
    found = plan("ubuntu-24.04", "2901")
    assert (found["problems"], found["driver"]["fabric_manager"]) == ([], True)
    # Ubuntu's own repository is not known to have the subnet manager.
    assert found["driver"]["subnet_manager"] == {"packages": [], "modules": ["mlx5_ib", "ib_umad"]}
    declared = {"source": "nvidia_repo"}
    nvidia = plan("ubuntu-24.04", "2901", gpu_driver=declared)["driver"]["subnet_manager"]
    assert nvidia == {"packages": ["nvlsm"], "modules": ["mlx5_ib", "ib_umad"]}
    other = plan("ubuntu-24.04", "2bb5")["driver"]
    assert (other["fabric_manager"], other["subnet_manager"]) == (False, None)
    # The NVSwitches of H100 are on the bus, and a board of four H100 has none.
    assert plan("ubuntu-24.04", "2330")["driver"]["fabric_manager"] is False


ADAPTER = {"address": "0000:05:00.0", "vendor": "0x15b3", "device": "0x1021"}
FABRIC = {"unit": "nvidia-fabricmanager.service", "enabled": True, "active": False}


def guest(**sections: Any) -> dict[str, Any]:
    return {"gpus": {"hypervisor": True}, **sections}


def adapters(bridge: bool | None, rdma: bool = True) -> dict[str, Any]:
    devices = [{"address": ADAPTER["address"], "bridge": bridge}] if rdma else []
    return {"adapters": [ADAPTER], "devices": devices}


@pytest.mark.parametrize(
    ("count", "sections", "planned"),
    [
        (1, guest(), False),
        (1, guest(network=adapters(None)), False),
        (1, guest(driver={"fabric": FABRIC}), False),
        (1, guest(driver={"fabric": {**FABRIC, "active": True}}), True),
        (1, guest(network=adapters(True)), True),
        (1, {"gpus": {"hypervisor": False}}, True),
        (1, {"gpus": {"hypervisor": None}}, True),
        # What the probe could not read may be bridges.
        (2, guest(), True),
        (2, guest(network=adapters(None, rdma=False)), True),
        (2, guest(network=adapters(None)), True),
        (2, guest(network=adapters(False)), False),
        (2, guest(network={"adapters": [], "devices": []}), False),
        # CUDA starts without a fabric manager, or it started before the fabric manager failed.
        (2, guest(driver={"cuinit": 0, "fabric": {**FABRIC, "enabled": False}}), False),
        (2, guest(driver={"cuinit": 0, "fabric": FABRIC}), True),
        (2, guest(driver={"cuinit": 0, "fabric": FABRIC}, network=adapters(None)), True),
        (2, guest(driver={"cuinit": 0, "fabric": FABRIC}, network=adapters(False)), False),
        (2, guest(driver={"cuinit": 0}, network=adapters(True)), True),
        (2, guest(driver={"cuinit": 802}), True),
    ],
)
def test_a_guest_without_bridges_to_its_nvswitches_gets_no_fabric_manager(
    count: int, sections: Any, planned: bool
) -> None:
    found = plan("ubuntu-24.04", *["2901"] * count, sections=sections)
    assert found["problems"] == []
    assert found["driver"]["fabric_manager"] is planned
    assert (found["driver"]["subnet_manager"] is not None) is planned


def secured(enabled: bool | None, enrolled: bool | None, **more: object) -> dict[str, Any]:
    return {"kernel": {"secure_boot": {"enabled": enabled, "enrolled": enrolled, **more}}}


def test_secure_boot_without_an_enrolled_key() -> None:
    for enrolled in (False, None):
        (problem,) = plan("debian-12", "20b0", sections=secured(True, enrolled))["problems"]
        assert (problem["code"], problem["where"]) == ("secure-boot", "gpu_driver")
        for step in (
            "unless /var/lib/dkms/mok.pub exists, openssl req -new -x509",
            "mokutil --import /var/lib/dkms/mok.pub",
            "reboot",
            "Enroll MOK",
            "provision again",
        ):
            assert step in problem["remedy"]


def test_the_key_of_secure_boot_is_that_of_the_host() -> None:
    ubuntu = "/var/lib/shim-signed/mok/MOK.der"
    (problem,) = plan("ubuntu-24.04", "20b0", sections=secured(True, False))["problems"]
    assert (
        f"update-secureboot-policy --new-key; then mokutil --import {ubuntu}" in problem["remedy"]
    )
    own = secured(True, False, key="/var/lib/dkms/mok.pub")
    (problem,) = plan("ubuntu-24.04", "20b0", sections=own)["problems"]
    assert "as root: mokutil --import /var/lib/dkms/mok.pub" in problem["remedy"]
    # A path that nobody knows comes from the host alone, and into no command.
    (problem,) = plan("debian-12", "20b0", sections=secured(True, False, key="/x; y"))["problems"]
    assert "/x" not in problem["remedy"]


def test_an_enrolment_that_awaits_its_confirmation() -> None:
    asked = secured(True, False, key="/var/lib/dkms/mok.pub", pending=True)
    (problem,) = plan("debian-12", "20b0", sections=asked)["problems"]
    assert "awaits its enrolment" in problem["message"]
    assert problem["remedy"].startswith("on the host, reboot, and on the console choose Enroll MOK")


def test_the_kernel_decides_what_it_refuses() -> None:
    """Somebody may switch shim's checks off, or ask for signatures without Secure Boot."""
    assert plan("debian-12", "20b0", sections=secured(True, False, refuses=False))["problems"] == []
    (problem,) = plan("debian-12", "20b0", sections=secured(False, False, refuses=True))["problems"]
    assert "lockdown or module.sig_enforce" in problem["message"]
    assert "remove lockdown and module.sig_enforce" in problem["remedy"]


@pytest.mark.parametrize("state", [(True, True), (False, False), (None, None), (False, None)])
def test_secure_boot_that_is_off_or_knows_the_key(state: tuple[bool | None, bool | None]) -> None:
    assert plan("debian-12", "20b0", sections=secured(*state))["problems"] == []


def test_a_driver_of_ours_that_runs_was_signed_with_a_key_that_is_enrolled() -> None:
    ours = {"receipts": [{"kind": "driver", "id": "driver", "branch": "535"}]}
    runs = {**secured(True, None), "driver": {"loaded": "535.261.03"}, "receipts": ours}
    assert plan("debian-12", "20b0", sections=runs)["problems"] == []
    assert plan("debian-12", "20b0", sections={**runs, "receipts": {}})["problems"]


def test_a_host_without_a_gpu_loads_no_modules() -> None:
    found = plan("debian-12", sections=secured(True, False), gpu_expect={"count": 0})
    assert found["problems"] == []


def test_what_is_not_managed_is_none_of_secure_boot_s_business() -> None:
    for wanted in ({"gpu_driver": {"source": "preinstalled"}}, {"gpu_driver": None}):
        assert plan("debian-12", "20b0", sections=secured(True, False), **wanted)["problems"] == []


def test_a_preinstalled_driver_is_only_checked() -> None:
    wanted = declaration("2.17.1", gpu_driver={"source": "preinstalled", "branch": "535"})
    host = gpu_host("rocky-9", "20b0", driver={"loaded": "535.183.01"})
    found = resolve(wanted, host)
    assert found["problems"] == []
    assert (found["driver"]["managed"], found["driver"]["branch"]) == (False, "535")
    assert (found["driver"]["module"], found["driver"]["module_because"]) == (None, None)
    section(host, "driver")["loaded"] = "470.256.02"
    problem = refusal(wanted, host)
    assert (problem["code"], problem["where"]) == ("driver-too-old", "gpu_driver")
    assert 'gpu_driver: {branch: "620", source: nvidia_repo}' in problem["remedy"]


def test_a_host_without_a_gpu_has_its_driver_managed_all_the_same() -> None:
    expect = {"count": 0}
    found = plan("debian-12", gpu_expect=expect)
    assert found["problems"] == []
    assert (found["driver"]["branch"], found["driver"]["managed"]) == ("535", True)
    # Its stacks need no driver, but what is declared must be there to be installed.
    stacks = declaration(gpu_toolkits=["13.0.0"], gpu_expect=expect, gpu_driver={})
    assert resolve(stacks, gpu_host("debian-12"))["problems"] == []
    assert codes(plan("debian-12", gpu_expect=expect, gpu_driver={"branch": "580"})) == [
        "driver-not-offered"
    ]
    reported = plan("debian-12", gpu_expect=expect, gpu_driver={"branch": "470", "module": "open"})
    assert codes(reported) == ["driver-unknown"]


def test_mig_where_a_gpu_can_be_split() -> None:
    layout = {"all": ["3g.40gb", "3g.40gb"]}
    for device in ("20b0", "2330", "2bb5"):
        found = plan("ubuntu-24.04", device, gpu_mig=layout)
        assert (found["problems"], found["driver"]["mig"]) == ([], layout)
    (problem,) = plan("ubuntu-24.04", "1db4", gpu_mig=layout)["problems"]
    assert (problem["code"], problem["where"]) == ("mig-unsupported", "gpu_mig")
    assert plan("ubuntu-24.04", "2b85", gpu_mig=layout)["problems"][0]["code"] == "mig-unsupported"
    assert plan("ubuntu-24.04", "1db4", gpu_mig=[])["driver"]["mig"] == {"all": []}
    assert resolve({"gpu_mig": [], "gpu_gpus": ["A100"]})["driver"]["managed"] is False
    assert codes(resolve({"gpu_mig": layout, "gpu_gpus": ["T4"]})) == ["mig-unsupported"]


def test_containers_stand_in_the_plan_as_they_are_declared() -> None:
    assert resolve({})["containers"] is None
    found = resolve({"gpu_containers": {"toolkit": "1.20.0"}, "gpu_expect": {"count": 8}})
    assert found["containers"] == {
        "engine": "docker",
        "source": "distro",
        "toolkit": "1.20.0",
        "accept_cves": [],
        "image": None,
        "data_root": None,
        "gpus": 8,
    }


def test_a_planned_driver_leaves_the_other_changes_alone() -> None:
    found = resolve(declaration("2.13.1", gpu_driver={}), gpu_host("debian-12", "20b0"))
    rows = changes(found, converged(found))
    assert [row for row in rows if row["what"] != "driver"] == []


def test_offers_are_of_known_branches_and_modules() -> None:
    table = facts.document("driver_offers.yml")
    for row in table["systems"]:
        system = driver_sources.System(row)
        assert system.family in {"debian", "redhat"}
        assert set(row["source"]) <= set(table["sources"])
        for source in driver_sources.SOURCES:
            for offer in system.offers(source):
                known = set(driver_sources.modules(offer.branch))
                assert set(offer.modules) <= known, (row["name"], offer)
                assert offer.modules


def _offers(name: str) -> list[driver_sources.Offer]:
    system = driver_sources.system_of(Host(gpu_host(name)))
    assert system
    return system.offers("distro")
