"""The locked memory that a login may have: RDMA registers the memory of queues and buffers."""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.components.base.ports import COMPUTE, INFINIBAND, UNUSED
from gpufleet.components.base.registry import Evidence, Finding
from gpufleet.components.base.sections import Sections
from gpufleet.documents.verdict import Verdict

from .reading import Ports, have

# The kernel's default before 5.16: less than one program's queues need (ibv_create_cq fails).
TOO_LITTLE = 64 << 10
ROOT = 0


def locked_memory(found: Ports, observed: Sections) -> Iterator[Finding | Evidence]:
    """A limit with which no program of an ssh login can use the host's RDMA ports.

    Root may lock as much as it likes, and `*` in the files of limits is not about it: its own
    limit says nothing of others. Neither does another login's where some account has more.
    """
    machine = observed.read_elsewhere().get("machine")
    login = machine.get("login") if machine else None
    ports = [
        port
        for port in found.all
        if port.device
        and port.active
        and port.role != UNUSED
        and (port.layer == INFINIBAND or port.role == COMPUTE)
    ]
    if not machine or not login or login["account"] in {None, ROOT} or not ports:
        return
    soft = (login["memlock"] or "").partition(":")[0]
    if not soft.isdigit():
        return
    lines = [line.split() for line in (machine["limits"] or {"logins": []})["logins"]]
    # In these files the unit is KiB.
    others = [
        words
        for words in lines
        if words[2:3] == ["memlock"]
        and words[0] not in {"*", "root"}
        and not (words[-1].isdigit() and int(words[-1]) << 10 <= TOO_LITTLE)
    ]
    if int(soft) <= TOO_LITTLE and not others:
        yield Finding(
            f"An ssh login may lock {int(soft) >> 10} KiB of memory (memlock), and"
            f" {have(ports, 'needs', 'need')} it for RDMA",
            "on the host: write '* - memlock unlimited' into /etc/security/limits.d/rdma.conf, and"
            " log in again; of a program that a service starts: LimitMEMLOCK=infinity in its unit",
            f"account {login['account']}: memlock {login['memlock']} (soft:hard, in bytes)",
            Verdict.INCONCLUSIVE,
        )
    else:
        yield Evidence(f"locked memory of an ssh login: {soft} bytes")
