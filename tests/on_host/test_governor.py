"""Section `kernel`: what sets the frequency of each CPU."""

from __future__ import annotations

from pathlib import Path

from gpufleet.components.host.governor import named_cpus
from tests.support.planted_host import probe_tree, put

CPUS = "sys/devices/system/cpu"


def test_the_governor_of_each_cpu_is_read_through_its_policy(root: Path) -> None:
    put(root, f"{CPUS}/cpufreq/policy0/scaling_governor", "performance\n")
    put(root, f"{CPUS}/cpufreq/policy0/scaling_driver", "intel_pstate\n")
    for cpu in (0, 2, 10):
        (root / CPUS / f"cpu{cpu}").mkdir()
        (root / CPUS / f"cpu{cpu}/cpufreq").symlink_to("../cpufreq/policy0")
    (root / CPUS / "cpu3").mkdir()
    assert probe_tree(root)["kernel"]["frequency"] == [
        {"cpu": cpu, "governor": "performance", "driver": "intel_pstate"} for cpu in (0, 2, 10)
    ]


def test_a_governor_that_cannot_be_read_is_null(root: Path) -> None:
    (root / CPUS / "cpu0/cpufreq/scaling_governor").mkdir(parents=True)
    assert probe_tree(root)["kernel"]["frequency"] == [{"cpu": 0, "governor": None, "driver": None}]


def test_a_virtual_machine_sets_no_frequency_and_a_tree_without_sys_is_not_read(root: Path) -> None:
    assert probe_tree(root)["kernel"]["frequency"] is None
    (root / CPUS / "cpu0").mkdir(parents=True)
    assert probe_tree(root)["kernel"]["frequency"] == []


def test_cpus_are_named_as_ranges() -> None:
    assert named_cpus([8, 0, 1, 2]) == "CPUs 0-2, 8"
