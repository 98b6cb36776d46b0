"""`gpufleet test`: the tests in three tiers. Options that it does not know are pytest's."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

from gpufleet import stopping
from gpufleet.campaign.provision.playbook import log
from gpufleet.campaign.provision.playbook import run as run_command
from gpufleet.cli.developer import BIN
from gpufleet.cli.parser import Parser
from gpufleet.cli.system_packages import LAB, require
from gpufleet.errors import ConfigurationError
from gpufleet.paths import ROOT

from . import shards

# {program or file: the Debian package that provides it}
# The tests compile stand-ins for NVIDIA's libraries.
COMPILER = {"gcc": "gcc", "/usr/include/stdlib.h": "libc6-dev"}
# The tests of the HTML page run in a browser.
BROWSER = {"chromium": "chromium", "chromedriver": "chromium-driver"}
# The tests of the alert rules run promtool.
ALERTS = {"promtool": "prometheus"}
# The slow tests alone start virtual machines, and hosts with another processor.
VM = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "mkfs.vfat": "dosfstools",
    "mcopy": "mtools",
    "/usr/share/OVMF/OVMF_CODE_4M.ms.fd": "ovmf",
    "/usr/libexec/qemu-binfmt/aarch64-binfmt-P": "qemu-user-static",
    "update-binfmts": "binfmt-support",
    "arch-test": "arch-test",
}

IF_STOPPED = "What its tests have made on this machine is removed."
# The tests of one file share hosts and depend on each other; those of two files do not.
PARALLEL = ("--numprocesses=2", "--dist=loadfile", "--no-loadscope-reorder")

# pytest-testmon, also with an expression of markers; tests/support/changed.py adds its rules.
CHANGED = ("--testmon", "--testmon-forceselect")


@dataclass(frozen=True)
class Tier:
    """A part of the tests: pytest's marker expression, and what it leaves out."""

    markers: str
    left_out: str = ""


TIERS = {
    "default": Tier(
        "not slow and not exhaustive and not costly and (not lab or newcomer)",
        "Left out: most tests on lab hosts, those of thousands of cases, and those of browsers and"
        " builds (./gpufleet test --hosts), and those that take minutes (./gpufleet test --all runs"
        " every test).",
    ),
    "hosts": Tier(
        "(lab or exhaustive or costly) and not slow and not newcomer",
        "Left out: the other tests without hosts (./gpufleet test), and those that take minutes"
        " (./gpufleet test --all runs every test).",
    ),
    "all": Tier(""),
}


def parser() -> Parser:
    """The options."""
    verb = Parser(
        "test",
        ("test", "test --hosts -k rollout"),
        passes_to="pytest",
        exit_status="Exit status: pytest's: 0 all passed, 1 a test failed.",
    )
    group = verb.add_argument_group("Tier").add_mutually_exclusive_group()
    group.add_argument(
        "--hosts",
        dest="tier",
        action="store_const",
        const="hosts",
        default="default",
        help="Run the tests that need lab hosts, those of"
        " thousands of cases, and those of browsers and builds (default: the newcomer's tests,"
        " which include a sample of these)",
    )
    group.add_argument(
        "--all",
        dest="tier",
        action="store_const",
        const="all",
        default="default",
        help="Run every test, those that take minutes included (default: see --hosts)",
    )
    verb.add_argument_group("Selection").add_argument(
        "--changed",
        action="store_true",
        help="Run only the tests of the tier that the changes since the last run with this option"
        " can affect; all of them the first time, and after a change of a file that is no Python"
        " (default: all)",
    )
    shard = verb.add_argument_group("Shards of --all")
    shard.add_argument(
        "--shard",
        metavar="NUMBER/COUNT",
        help="Run this part of all test files, unless it has passed on the same commit",
    )
    shard.add_argument(
        "--shards",
        action="store_true",
        help="Print which shards passed on this commit, and the last full pass",
    )
    return verb


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Run a tier or a shard, then print what was left out; returns pytest's exit status."""
    if options.shards:
        complete, lines = shards.status()
        print("\n".join(lines))
        return 0 if complete else 1
    if options.shard and options.tier != "all":
        raise ConfigurationError(
            "Only all tests are divided into shards.", "--shard", "Add --all to the command."
        )
    for name in rest:
        # pytest's workers would only say that no tests ran.
        if name.startswith(("tests/", "./tests/")) and not (ROOT / name.split("::")[0]).exists():
            raise ConfigurationError("There is no such file.", name, "See ls tests.")
    part = shards.parse(options.shard) if options.shard else None
    commit = shards.clean_commit() if part and not rest else ""
    if part and commit and (record := shards.record_file(commit, *part)).exists():
        log(f"Shard {options.shard} has passed on this commit. To run it again, remove {record}")
        return 0
    require({**LAB, **COMPILER, **ALERTS, **(VM if options.tier == "all" else {})})
    if options.tier != "default":
        require_browser()
    # Tests start Python thousands of times: without its cache each start compiles the package.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if options.tier == "all":
        os.environ["GPUFLEET_WHOLE_PROBES"] = "1"
    if part:
        return run_shard(part, commit, rest)
    tier = TIERS[options.tier]
    words = ["-m", tier.markers] if tier.markers else []
    if options.changed:
        words += CHANGED
    status = run_command([str(BIN / "pytest"), *PARALLEL, *words, *rest], cwd=ROOT)
    if tier.left_out:
        log(tier.left_out)
    return status


def require_browser() -> None:
    """Chromium for the tests of the page, which are skipped without it, except in CI."""
    try:
        require(BROWSER)
    except ConfigurationError as error:
        if os.environ.get("CI"):
            raise
        log(f"The tests of the HTML page are skipped. {error.message} {error.remedy}")


def run_shard(part: tuple[int, int], commit: str, rest: list[str]) -> int:
    """Run the files of a shard, and record it where it passed; returns pytest's exit status."""
    with stopping.temporary_directory() as name:
        junit = Path(name, "junit.xml")
        command = [str(BIN / "pytest"), *PARALLEL, f"--junit-xml={junit}", *rest]
        status = run_command([*command, *shards.files(*part)], cwd=ROOT)
        if status == 0 and commit and commit == shards.clean_commit():
            shards.save(commit, *part, junit)
        elif status == 0:
            log("No record is written: the checkout has changes, or pytest has further options.")
    return status
