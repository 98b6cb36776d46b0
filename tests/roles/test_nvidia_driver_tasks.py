"""The role's tasks: refusals before changes, and nothing that verify names and no task mends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

from gpufleet.catalog import facts
from gpufleet.components.base.host import Host
from gpufleet.components.changes import changes
from gpufleet.components.driver import running as driver_running
from gpufleet.components.resolver import resolve
from tests.support.host_documents import KERNEL, declaration, gpu_host
from tests.support.planted_host import probe_tree, put
from tests.support.role_variables import trusted, variables

TASKS = Path(__file__).resolve().parents[2] / "roles" / "nvidia_driver" / "tasks"


def tasks(name: str) -> list[dict[str, Any]]:
    """The tasks of a file."""
    read: list[dict[str, Any]] = yaml.safe_load((TASKS / f"{name}.yml").read_text())
    return read


def mig_tasks(part: str) -> list[dict[str, Any]]:
    """The tasks of one part of the file for MIG, which is one block."""
    [block] = tasks("mig")
    found: list[dict[str, Any]] = block[part]
    return found


def places(name: str) -> list[str]:
    """The names of the tasks of a file, in their order."""
    return [task["name"] for task in tasks(name)]


def test_what_cannot_be_vouched_for_is_refused_before_anything_changes() -> None:
    found = places("install")
    assert [name.partition(" ")[0] for name in found[:3]] == ["Select", "Refuse", "Refuse"]
    assert found.index("Configure NVIDIA's repository") < found.index("Disable nouveau")


@pytest.mark.parametrize("name", ["repository_apt", "repository_dnf"])
def test_a_key_is_accepted_before_entries_of_other_hands_go(name: str) -> None:
    assert places(name)[0] == "Install the signing key"


def test_a_fabric_manager_without_an_nvswitch_is_taken_out_of_the_way() -> None:
    service = tasks("services")[-1]
    assert "when" not in service
    assert "gpu_plan.driver.fabric_manager" in service["vars"]["__nvidia_driver_service_runs"]


WAITS = {"action": "wait", "runs": False}
REBOOTS = {"action": "reboot", "runs": False}
RUNS = {"action": "none", "runs": True}


@pytest.mark.parametrize(
    ("first", "rebooted", "check", "started", "mig"),
    [
        (RUNS, None, False, True, True),
        (WAITS, None, False, False, False),
        (WAITS, None, True, False, False),
        (REBOOTS, RUNS, False, True, True),
        # In check mode the reboot is only predicted: nvidia-smi still fails.
        (REBOOTS, REBOOTS, True, True, False),
        ({"action": "reload", "runs": False}, None, True, True, False),
        # gpu_driver_reboot: always, on the control node.
        ({"action": "wait", "runs": True}, None, False, True, True),
        # gpu_expect: {count: 0} needs no driver that runs, and has a card on the bus.
        ({"action": "none", "runs": False}, None, False, False, False),
    ],
)
def test_services_start_and_mig_changes_only_with_the_installed_driver(
    first: dict[str, Any], rebooted: dict[str, Any] | None, check: bool, started: bool, mig: bool
) -> None:
    known = {
        **variables("vars/main.yml"),
        "__nvidia_driver_restart": first,
        "__nvidia_driver_reboot": {"rebooted": True} if rebooted else {"skipped": True},
        "__nvidia_driver_rebooted": rebooted or {"skipped": True},
        "ansible_check_mode": check,
        "omit": "omitted",
        "gpu_plan": {"driver": {"mig": {"all": []}}},
    }
    templar = Templar(loader=DataLoader(), variables=known)
    service = next(
        each for each in tasks("service") if each["name"] == "Start and enable the service"
    )
    unit = service["ansible.builtin.systemd_service"]
    assert unit["enabled"] is True
    state = templar.template(trusted(unit["state"]))
    assert state == ("started" if started else "omitted")
    layout = next(each for each in mig_tasks("block") if "gpufleet.gpu.gpu_mig_layout" in each)
    assert templar.evaluate_conditional(trusted(layout["when"])) is mig
    handlers = yaml.safe_load((TASKS.parent / "handlers" / "main.yml").read_text())
    assert templar.evaluate_conditional(trusted(handlers[0]["when"])) is started


def test_a_runfile_brings_the_unit_that_verify_asks_for() -> None:
    unit = tasks("runfile")[-1]["ansible.builtin.copy"]
    assert unit["dest"] == "/etc/systemd/system/nvidia-persistenced.service"
    assert (TASKS.parent / "files" / unit["src"]).is_file()


def test_apt_is_called_once_no_two_entries_contradict_each_other() -> None:
    found = places("repository_apt")
    package = next(at for at, name in enumerate(found) if "package cuda-keyring" in name)
    assert found.index("Disable other entries of the same repository") < package


def test_what_dnf_brought_has_a_receipt_by_which_the_host_is_left_alone() -> None:
    names = (
        "kmod-nvidia-latest-dkms",
        "nvidia-driver-cuda",
        "nvidia-driver-cuda-libs",
        "nvidia-persistenced",
    )
    rows = [
        {"name": name, "version": "535.261.03-1.el9", "status": "installed", "held": True}
        for name in names
    ]
    module = {
        "name": "nvidia",
        "path": "nvidia.ko.xz",
        "version": "535.261.03",
        "license": "NVIDIA",
    }
    host = gpu_host(
        "rhel-9",
        kernel={
            "installed": [
                {"version": KERNEL, "image": True, "headers": True, "modules": [module]},
                {
                    "version": "0-rescue-abc",
                    "image": True,
                    "headers": False,
                    "modules": [],
                    "initramfs_nouveau": True,
                },
            ]
        },
        driver={
            "library": "535.261.03",
            "on_disk": "535.261.03",
            "nouveau": {"loaded": False, "blacklisted": True},
        },
        packages={"manager": "rpm", "driver": rows},
    )
    declared = declaration(
        gpu_driver={"branch": "535", "source": "nvidia_repo", "module": "proprietary"},
        gpu_expect={"count": 0},
    )
    plan = {**resolve(declared, host), "host": "gpu01"}
    assert plan["problems"] == []
    [before] = changes(plan, host)
    assert before["action"] == "install"

    known = {
        **variables("defaults/main.yml"),
        **variables("vars/main.yml"),
        **variables("vars/redhat-9.yml"),
        "nvidia_driver_repository": {"uri": "https://me:secret@mirror.example/nvidia/"},
        "gpu_plan": plan,
        "gpu_changes": [before],
    }
    call = tasks("redhat")[0]["gpufleet.gpu.gpu_driver_packages"]
    reported = Templar(loader=DataLoader(), variables=known).template(
        trusted({key: call[key] for key in call if key not in ("space_mib", "patience_s")})
    )
    assert reported["repository"]["uri"] == "https://mirror.example/nvidia/"
    assert set(reported["packages"] + reported["helpers"]) <= set(names)
    # What the module enters of it (driver_dnf.py).
    host["sections"]["receipts"]["data"]["receipts"] = [
        {
            "kind": "driver",
            "id": "driver",
            "version": "535.261.03",
            "changed": [],
            "source": reported["source"],
            "branch": reported["branch"],
            "module": reported["flavour"],
            "requested": reported["packages"] + reported["helpers"],
            "repository": reported["repository"],
            "packages": {row["name"]: row["version"] for row in rows},
            "previous": None,
        }
    ]
    assert changes(plan, host) == []


def test_the_role_knows_every_system_of_which_an_offer_is_made() -> None:
    for system in facts.document("driver_offers.yml")["systems"]:
        name = system["ids"][0] if system["family"] == "debian" else "redhat"
        path = TASKS.parent / "vars" / f"{name}-{system['version']}.yml"
        assert path.is_file(), system["name"]


def test_a_runfile_needs_nothing_of_the_distribution() -> None:
    assert tasks("install")[0]["when"] == "gpu_plan.driver.source != 'runfile'"


def test_the_probe_reads_from_the_boot_unit_what_the_role_wrote(tmp_path: Path) -> None:
    layout = {"0": ["3g.40gb", "3g.40gb"], "10": ["1g.10gb+me"]}
    template = TASKS.parent / "templates" / "gpufleet-mig.service.j2"
    text = Templar(
        loader=DataLoader(), variables={"__nvidia_driver_mig": {"instances": layout}}
    ).template(trusted(template.read_text()))
    put(tmp_path, "etc/systemd/system/gpufleet-mig.service", text)
    boot = probe_tree(tmp_path)["driver"]["mig_boot"]
    assert (boot["layout"], boot["enabled"]) == (layout, False)
    put(tmp_path, "etc/systemd/system/multi-user.target.wants/gpufleet-mig.service")
    assert probe_tree(tmp_path)["driver"]["mig_boot"]["enabled"]


def test_a_mig_layout_that_is_no_longer_declared_is_not_created_at_boot() -> None:
    boot = {"unit": "gpufleet-mig.service", "enabled": True, "layout": {"0": ["7g.80gb"]}}
    host = gpu_host("debian-12", driver={"mig_boot": boot})
    plan = {**resolve(declaration(gpu_driver={"branch": "535"}), host), "host": "gpu01"}
    [fault] = driver_running.mig_boot(plan, Host(host))
    assert "no longer declared" in fault.cause
    assert fault.action == "repair"


KEEPING = {"name": "gpufleet.gpu.nvidia_docker", "tasks_from": "running.yml"}


@pytest.mark.parametrize(
    ("name", "reloading"),
    [
        ("install", "include_tasks: repository.yml"),
        ("install", "__nvidia_driver_installer"),
        ("main", "include_tasks: mig.yml"),
        ("main", "include_tasks: services.yml"),
        ("rollback", "state: previous"),
        ("remove", "ansible.builtin.systemd_service"),
    ],
)
def test_running_containers_keep_their_gpus_before_systemd_reloads(
    name: str, reloading: str
) -> None:
    """Packages and units that are enabled have it reload, and containers lose their devices."""
    found = tasks(name)
    keeping = [
        at for at, task in enumerate(found) if task.get("ansible.builtin.include_role") == KEEPING
    ]
    assert len(keeping) == 1
    assert keeping[0] < next(
        at for at, task in enumerate(found) if reloading in yaml.safe_dump(task, width=1000)
    )
    assert (TASKS.parents[1] / "nvidia_docker/tasks" / KEEPING["tasks_from"]).is_file()


@pytest.mark.parametrize(
    ("actions", "mig", "image", "reloads"),
    [
        (["install", "restart"], None, False, True),
        (["restart"], {"all": []}, False, True),
        (["restart"], None, False, False),
        ([], {"all": []}, False, False),
        (["install"], None, True, False),
    ],
)
def test_containers_are_asked_only_where_systemd_reloads(
    actions: list[str], mig: Any, image: bool, reloads: bool
) -> None:
    known = {
        **variables("vars/main.yml"),
        "gpu_changes": [{"what": "driver", "action": each} for each in actions],
        "gpu_plan": {"driver": {"managed": True, "mig": mig}},
        "__gpu_plan_result": {"image": image},
    }
    templar = Templar(loader=DataLoader(), variables=known)
    [task] = [task for task in tasks("main") if "ansible.builtin.include_role" in task]
    assert templar.evaluate_conditional(trusted(task["when"])) is reloads


def test_a_pending_mig_mode_is_left_to_the_reboot_after_the_boot_unit_is_written() -> None:
    found = mig_tasks("block")
    names = [task["name"] for task in found]
    at = names.index("Reset the GPUs whose MIG mode is pending")
    last = found[at]
    assert last["ansible.builtin.include_tasks"] == "mig_pending.yml"
    assert last["when"] == "__nvidia_driver_mig.pending | default([]) | length > 0"
    assert "Create the declared instances at boot" in names[:at]
    pending = tasks("mig_pending")
    assert pending[1]["ansible.builtin.include_tasks"] == "restart.yml"
    assert "__nvidia_driver_restart.action != 'wait'" in pending[-1]["when"]


def test_the_boot_unit_has_the_specification_written_after_the_instances_exist() -> None:
    template = (TASKS.parent / "templates" / "gpufleet-mig.service.j2").read_text()
    lines = [line.partition("=") for line in template.splitlines()]
    before = [name for key, _, names in lines if key == "Before" for name in names.split()]
    assert "gpufleet-containers.service" in before
    assert ("Wants", "=", "gpufleet-containers.service") in lines
    unit = TASKS.parents[1] / "nvidia_docker" / "files" / "gpufleet-containers.service"
    # A unit that remained active would not be started again.
    assert "RemainAfterExit" not in unit.read_text()


def test_changed_mig_instances_are_described_to_container_engines() -> None:
    last = mig_tasks("always")[-1]
    assert last["ansible.builtin.systemd_service"]["state"] == "restarted"
    assert last["when"] == [
        "__nvidia_driver_mig is changed or __nvidia_driver_mig_rebooted | default({}) is changed",
        "__nvidia_driver_containers.stat.exists",
    ]
    roles = TASKS.parents[1]
    unit = yaml.safe_load((roles / "nvidia_driver/vars/main.yml").read_text())
    docker = yaml.safe_load((roles / "nvidia_docker/vars/main.yml").read_text())
    assert unit["__nvidia_driver_containers_unit"] == docker["__nvidia_docker_unit"]
