"""Start, list and remove lab hosts. podman's labels are authoritative; files only repeat them."""

from __future__ import annotations

import ipaddress
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from lab import archives, dead, files, images, runs, state
from lab.command import podman, run
from lab.errors import LabError
from lab.progress import Progress
from lab.settings import (
    CACHE_LABEL,
    HOST_LABEL,
    LABEL,
    RUN_LABEL,
    SUITE_LABEL,
    USER,
    Lab,
    host_number,
)
from lab.state import Host

INIT = Path(__file__).parent / "host" / "init.sh"
BOOT_LIMIT_S, LOGIN_LIMIT_S = 90.0, 30.0
T = TypeVar("T")
# Enough for a compiler and a parallel build; a fork bomb stays inside.
PROCESSES = 8192
# The nodes that stand for GPUs in tests have this major number (cpuid): they can be opened, and
# unlike those of /dev/null and its like no container may open them by default.
STAND_IN_MAJOR = 203


def listed(lab: Lab) -> list[Host]:
    """Every host of this lab that podman knows, running or not."""
    dead.restore_namespaces()
    # A container that somebody made of the lab's image has the image's label, and is no host.
    filters = (f"--filter=label={label}" for label in (lab.label, HOST_LABEL))
    found = json.loads(podman("ps", "--all", *filters, "--format", "json") or "[]")
    names = [entry["Names"][0] for entry in found]
    if not names:
        return []
    hosts = []
    for entry in json.loads(podman("container", "inspect", *names)):
        labels = entry["Config"]["Labels"]
        networks = entry["NetworkSettings"]["Networks"] or {}
        hosts.append(
            Host(
                name=labels[HOST_LABEL],
                address=next((net["IPAddress"] for net in networks.values()), ""),
                suite=labels[SUITE_LABEL],
                container=entry["Name"],
                state=dead.STATE if dead.is_dead(entry) else entry["State"]["Status"],
            )
        )
    return sorted(hosts, key=lambda host: host_number(host.name))


def labs() -> list[Lab]:
    """Every lab on this machine. The network is the first thing of a lab, and the last."""
    found = podman("network", "ls", "--filter", f"label={LABEL}", "--format", "json")
    networks = [network["labels"] for network in json.loads(found or "[]")]
    return [
        Lab(labels[LABEL], Path(labels.get(CACHE_LABEL, "")), run=labels.get(RUN_LABEL, ""))
        for labels in networks
    ]


def all_hosts() -> list[tuple[Lab, Host]]:
    """The hosts of every lab, and one without a name for a lab that has none."""
    none = Host("", "", "", "", "no hosts")
    return [(lab, host) for lab in labs() for host in listed(lab) or [none]]


def up(lab: Lab, names: list[str], suite: str, progress: Progress) -> list[Host]:
    """Have these hosts running and answering; hosts that are there already are left alone."""
    numbers = {name: host_number(name) for name in names}
    sweep(lab, progress)
    with files.lock(lab.locks, f"lab-{lab.instance}", progress.say):
        present = {host.name: host for host in listed(lab)}
        for name in numbers.keys() & present.keys():
            if present[name].suite != suite:
                raise LabError(
                    f"{name} runs {present[name].suite}, not {suite}",
                    f"Choose another name, or run `python -m lab down` first (or --suite"
                    f" {present[name].suite}).",
                )
        if absent := [name for name in names if name not in present]:
            # Made first, and removed last: whatever is left of a lab is found by its network.
            network = _network(lab)
            image = images.ensure(lab, suite, progress)
            with progress.step(f"Starting {', '.join(absent)}"):
                _each(
                    lambda name: _create(lab, name, suite, image, network[numbers[name] + 10]),
                    absent,
                )
        lab.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lab.sockets.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make_key(lab)
        # A host that was up before is left alone, also if somebody broke it on purpose since.
        settled = {
            host.name
            for host in state.load(lab)
            if host.name in present and present[host.name].state == "running"
        }
        hosts = listed(lab)
        if waited := [name for name in names if name not in settled]:
            with progress.step(f"Waiting for {', '.join(waited)} to answer over ssh"):
                _each(lambda host: _boot(lab, host), (h for h in hosts if h.name in waited))
                hosts = listed(lab)  # again, because a host that stood still has no address
                _trust(lab, hosts)
                _each(lambda host: _reach(lab, host), (h for h in hosts if h.name in waited))
                archives.give(lab, (h for h in hosts if h.name in absent), progress)
        reached = settled.union(waited)
        state.save(lab, [host for host in hosts if host.name in reached])
    return hosts


def down(lab: Lab, progress: Progress) -> None:
    """Leave nothing of this lab but what can be used again: built images and artifacts."""
    with files.lock(lab.locks, f"lab-{lab.instance}", progress.say):
        remove(lab, progress)
        files.clear_scratch(lab.cache, lab.locks)


def remove(lab: Lab, progress: Progress) -> None:
    """Remove what podman has of a lab, and its files; the caller holds the lab's lock."""
    with progress.step(f"Removing the lab {lab.instance!r}"):
        _hang_up(lab)
        for place in (lab.sockets, lab.directory):
            shutil.rmtree(place, ignore_errors=True)
        if shutil.which("podman"):
            for host in listed(lab):
                if host.state == dead.STATE:
                    dead.settle(host.container)
            _remove(lab, "ps", ["rm", "--force", "--volumes", "--time", "0"])
            _remove(lab, "images", ["image", "rm", "--force"])
            _remove(lab, "network ls", ["network", "rm", "--force"])


def sweep(own: Lab, progress: Progress) -> None:
    """Remove the labs of test runs that have ended, and say which could not be removed."""
    files.clear_scratch(own.cache, own.locks)
    for lab in labs():
        if not runs.has_ended(lab.run):
            continue
        try:
            with files.lock(lab.locks, f"lab-{lab.instance}", progress.say):
                # Another run may have removed it meanwhile, and made its own.
                if lab in labs():
                    progress.say(f"The lab {lab.instance!r} is left by tests that have ended.")
                    remove(lab, progress)
        except LabError as error:
            progress.say(f"It could not be removed: {error.message}\n{error.remedy}")


def command(lab: Lab, name: str, words: list[str], interactive: bool) -> list[str]:
    """The native command that runs `words` as root on a host."""
    terminal = ["--tty"] if interactive else []
    return [
        *("podman", "exec", "--interactive", *terminal, "--workdir", "/root"),
        *(lab.container(name), *words),
    ]


def _each(work: Callable[[T], object], items: Iterable[T]) -> None:
    """All at once; the first failure is raised after the others have come to their end."""
    with ThreadPoolExecutor(max_workers=8) as pool:
        for task in [pool.submit(work, item) for item in items]:
            task.result()


def _make_key(lab: Lab) -> None:
    if lab.key.exists():
        return
    partial = lab.key.with_name(".key.partial")
    for leftover in (partial, partial.with_name(".key.partial.pub")):
        leftover.unlink(missing_ok=True)
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", lab.network, "-f", partial)
    partial.with_name(".key.partial.pub").replace(lab.key.with_name("id_ed25519.pub"))
    partial.replace(lab.key)


def _network(lab: Lab) -> ipaddress.IPv4Network:
    """The lab's own network; podman chooses a range that this machine does not use."""
    if run("podman", "network", "exists", lab.network, check=False).returncode != 0:
        podman("network", "create", *lab.labels, lab.network)
    found = json.loads(podman("network", "inspect", lab.network))
    return ipaddress.IPv4Network(found[0]["subnets"][0]["subnet"])


def _create(lab: Lab, name: str, suite: str, image: str, address: ipaddress.IPv4Address) -> None:
    podman(
        "run",
        "--detach",
        f"--name={lab.container(name)}",
        f"--hostname={name}",
        *lab.labels,
        f"--label={HOST_LABEL}={name}",
        f"--label={SUITE_LABEL}={suite}",
        f"--network={lab.network}",
        f"--network-alias={name}",
        f"--ip={address}",  # fixed, so that a host keeps it when it restarts
        # Not --privileged: that would show this machine's disks and devices in the host.
        "--cap-add=ALL",
        f"--device-cgroup-rule=c {STAND_IN_MAJOR}:* rwm",
        "--security-opt=seccomp=unconfined",
        "--security-opt=apparmor=unconfined",
        "--security-opt=unmask=ALL",
        "--systemd=always",
        "--cgroupns=private",
        "--stop-signal=SIGRTMIN+3",
        f"--pids-limit={PROCESSES}",
        "--restart=always",  # `reboot` inside starts it again
        image,
        *("sh", "-c", INIT.read_text(encoding="utf-8")),
    )


def _boot(lab: Lab, host: Host) -> None:
    """Wait until systemd has started everything, and let our key in."""
    if host.state == dead.STATE:
        dead.settle(host.container)
    if host.state != "running":
        podman("start", host.container)
    limit_s = BOOT_LIMIT_S * images.Recipe(host.suite).slower
    deadline = time.monotonic() + limit_s
    status = ""
    while time.monotonic() < deadline:
        # `--wait` needs the bus, which is not there in the first moments.
        status = podman(
            *("exec", host.container, "systemctl", "is-system-running", "--wait"),
            timeout=limit_s,
            check=False,
        )
        if status in ("running", "degraded"):
            break
        time.sleep(0.2)
    else:
        raise LabError(
            f"{host.name} did not finish booting within {limit_s:.0f} s"
            f" (systemd says {status or 'nothing'})",
            f"See `podman logs {host.container}`; `python -m lab down`, then `up`, starts again.",
        )
    run(
        *("podman", "exec", "--interactive", "--user", USER, host.container),
        *("sh", "-c", "umask 077 && cat >~/.ssh/.new && mv ~/.ssh/.new ~/.ssh/authorized_keys"),
        stdin=lab.key.with_name("id_ed25519.pub").read_text(encoding="ascii"),
    )


def _trust(lab: Lab, hosts: list[Host]) -> None:
    """Note the hosts' own keys. They come through podman and not over the network, so that
    checking them proves something."""
    lines = []
    for host in hosts:
        if host.state == "running":
            keys = podman("exec", host.container, "sh", "-c", "cat /etc/ssh/ssh_host_*_key.pub")
            for key in keys.splitlines():
                lines.append(f"{host.address} {' '.join(key.split()[:2])}")
    files.write(lab.known_hosts, "\n".join(lines) + "\n", mode=0o600)


def _reach(lab: Lab, host: Host) -> None:
    """Really log in and become root, as Ansible will."""
    output = ""
    deadline = time.monotonic() + LOGIN_LIMIT_S * images.Recipe(host.suite).slower
    while time.monotonic() < deadline:
        done = run(
            *("ssh", *lab.ssh_options(), "-o", "BatchMode=yes", "-o", "ConnectTimeout=5"),
            *("-o", "ControlMaster=no", "-i", lab.key, f"{USER}@{host.address}"),
            "sudo -n true",
            check=False,
        )
        if done.returncode == 0:
            return
        output = done.stderr.strip()
        time.sleep(0.3)
    raise LabError(
        f"{host.name} at {host.address} does not answer over ssh: {output}",
        "Check whether a firewall of this machine blocks the containers' traffic;"
        f" `python -m lab exec {host.name} -- journalctl -u ssh` shows the host's log.",
    )


def _hang_up(lab: Lab) -> None:
    """End shared ssh connections, which would outlive their hosts."""
    for socket in lab.sockets.glob("*") if lab.sockets.is_dir() else ():
        subprocess.run(
            ["ssh", "-o", f"ControlPath={socket}", "-O", "exit", "lab"],
            capture_output=True,
            check=False,
        )


def _remove(lab: Lab, listing: str, removal: list[str]) -> None:
    every = ["--all"] if listing != "network ls" else []
    found = podman(*listing.split(), *every, "--quiet", "--filter", f"label={lab.label}").split()
    if found:
        podman(*removal, *dict.fromkeys(found), timeout=300)
