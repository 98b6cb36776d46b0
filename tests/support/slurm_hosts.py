"""A real Slurm on lab hosts, of Debian's packages: lab1 is its head, all of them are its nodes."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

from tests.support.lab_fleet import ROOT, Fleet

# No cgroups of Slurm's own: a container has them only in part.
CONFIGURE = r"""
set -e
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends slurmd slurm-client munge {packages} >/dev/null
cat >/etc/slurm/slurm.conf <<'END'
ClusterName=lab
SlurmctldHost={head}
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=1
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
NodeName={nodes} CPUs=1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=60 State=UP
{more}
END
echo CgroupPlugin=cgroup/v1 >/etc/slurm/cgroup.conf
printf munge-key-of-a-throwaway-lab-munge-key >/etc/munge/munge.key
chown munge: /etc/munge/munge.key
chmod 400 /etc/munge/munge.key
grep -q '^# slurm' /etc/hosts || printf '# slurm\n{addresses}' >>/etc/hosts
systemctl restart munge {controller} slurmd
"""
READY = "until sinfo -hN -o %T | grep -c idle | grep -qx {count}; do sleep 0.2; done"

HEARD = "timeout 60 sh -ec 'while sinfo -hN -n {host} -o %T | grep -q \\*; do sleep 0.2; done'"


def install(fleet: Fleet, hosts: tuple[str, ...], more: str = "") -> None:
    """Have Slurm on these hosts, each node idle; `more` are further lines of slurm.conf."""
    python = ROOT / ".venv" / "bin" / "python"
    listed = json.loads(fleet.run(python, "-m", "lab", "list", "--json").stdout)
    found = listed["hosts"] if isinstance(listed, dict) else listed
    addresses = "".join(f"{row['address']} {row['name']}\\n" for row in found)

    def configure(host: str) -> None:
        head = host == hosts[0]
        fleet.on(
            host,
            CONFIGURE.format(
                packages="slurmctld" if head else "",
                controller="slurmctld" if head else "",
                head=hosts[0],
                nodes=",".join(hosts),
                addresses=addresses,
                more=more,
            ),
        )

    with ThreadPoolExecutor() as pool:
        list(pool.map(configure, hosts))
    fleet.on(hosts[0], f"timeout 60 sh -c '{READY.format(count=len(hosts))}'")


def node(fleet: Fleet, host: str) -> tuple[str, str]:
    """A node's state and reason, as Slurm has them once it hears of the node (no `*`)."""
    output = fleet.on("lab1", f"{HEARD.format(host=host)}; sinfo -hN -n {host} -o '%T|%E'").strip()
    state, _, reason = output.partition("|")
    return state, reason
