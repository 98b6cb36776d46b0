"""A site's own tests beside gpufleet's checks: copy this file, and change what it asks for.

    pytest site-tests --ansible-inventory=INVENTORY       these tests alone
    gpufleet verify -i INVENTORY site-tests               all checks, then these tests

Each test runs on each host of the inventory's group `gpu_hosts`. `host` is testinfra's, and runs
commands on the host. The other fixtures are gpufleet's: all hosts are probed once, before the first
test. docs/how-to/verify.md describes them.
"""

from __future__ import annotations

from collections.abc import Mapping

from testinfra.host import Host

from gpufleet.documents.plan import Plan
from gpufleet.documents.snapshot import Snapshot
from gpufleet.documents.verdict import CheckResult

FREE_MIB = 1024
REQUIRED = ("stack.mapped", "stack.matmul")


def test_only_the_owner_writes_to_a_toolkit(host: Host, gpu_plan: Plan) -> None:
    """Each toolkit of the plan is a directory that neither its group nor others can write to."""
    for toolkit in gpu_plan["toolkits"]:
        directory = host.file(toolkit["path"])
        assert directory.is_directory, toolkit["path"]
        assert directory.mode & 0o022 == 0, f"{toolkit['path']} has the mode {directory.mode:o}"


def test_temporary_files_have_space(gpu_snapshot: Snapshot) -> None:
    """`/tmp` has the free space that this site's jobs need."""
    disks = gpu_snapshot["sections"]["disks"]
    assert disks["state"] == "ok", disks["error"]
    assert disks["data"]["free_mib"]["/tmp"] >= FREE_MIB


def test_every_host_computes(gpu_verdicts: Mapping[str, CheckResult]) -> None:
    """This site accepts no host on which these checks do not apply: only PASS is enough."""
    for name in REQUIRED:
        check = gpu_verdicts[name]
        assert check["verdict"] == "PASS", f"{name}: {check['verdict']}: {check['cause']}"
