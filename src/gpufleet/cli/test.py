"""`gpufleet test`: the tests in three tiers. Options that it does not know are pytest's."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from gpufleet.paths import ROOT
from gpufleet.provision.playbook import log
from gpufleet.provision.playbook import run as run_command

from .developer import BIN, require_checkout
from .parser import Parser
from .system_packages import ALERTS, BROWSER, COMPILER, LAB, VM, require

# The tests of one file share hosts and depend on each other; those of two files do not.
PARALLEL = ("--numprocesses=2", "--dist=loadfile", "--no-loadscope-reorder")


@dataclass(frozen=True)
class Tier:
    """A part of the tests: pytest's marker expression, and what it leaves out."""

    markers: str
    left_out: str = ""


TIERS = {
    "default": Tier(
        "not slow and not exhaustive and (not lab or newcomer)",
        "Left out: most tests on lab hosts and those of thousands of cases (./gpufleet test"
        " --hosts), and those that take minutes (./gpufleet test --all runs every test)."),
    "hosts": Tier(
        "(lab or exhaustive) and not slow and not newcomer",
        "Left out: the other tests without hosts (./gpufleet test), and those that take minutes"
        " (./gpufleet test --all runs every test)."),
    "all": Tier(""),
}


def parser() -> Parser:
    """The options."""
    verb = Parser("test", ("test", "test --hosts -k rollout"), passes_to="pytest",
                  exit_status="Exit status: pytest's: 0 all passed, 1 a test failed.")
    group = verb.add_argument_group("Tier").add_mutually_exclusive_group()
    group.add_argument("--hosts", dest="tier", action="store_const", const="hosts",
                       default="default", help="Run the tests that need lab hosts, and those of"
                       " thousands of cases (default: the newcomer's tests, which include a sample"
                       " of these)")
    group.add_argument("--all", dest="tier", action="store_const", const="all",
                       default="default", help="Run every test, those that take minutes included"
                       " (default: see --hosts)")
    return verb


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Run a tier, then print what it leaves out; returns pytest's exit status."""
    require_checkout("test")
    require({**LAB, **COMPILER, **BROWSER, **ALERTS, **(VM if options.tier == "all" else {})})
    tier = TIERS[options.tier]
    markers = ["-m", tier.markers] if tier.markers else []
    status = run_command([str(BIN / "pytest"), *PARALLEL, *markers, *rest], cwd=ROOT)
    if tier.left_out:
        log(tier.left_out)
    return status
