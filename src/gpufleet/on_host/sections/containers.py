"""Section `containers`: engine, NVIDIA's container toolkit, and a container of our own."""

import json
import os
import re
import shutil
import stat

from ..accounts import name_of
from ..container_run import OWN_NAME, run_trial
from ..container_units import character_majors, containers_with_gpus
from ..mig import capabilities_of
from ..processes import run_command
from ..settings_files import mentioned
from ..text import first_match, last_lines
from ..trust import CACHE, SYSTEM_PATH, account_for
from .packages import RPM, rpm_packages

CDI_LOCATIONS = ("/etc/cdi/*", "/run/cdi/*")
DEVICE_NODES = ("/dev/nvidia*", "/dev/nvidia-caps/nvidia-cap*")
# Those that nvidia-ctk links in /dev/char: not those of NVSwitch, NVLink and GPUDirect Storage.
LINKED_NODE = re.compile(r"/nvidia(\d+|ctl|-uvm|-uvm-tools|-modeset|-cap\d+)$")
GPU_KIND = "nvidia.com/gpu"
# A node by which a container uses a MIG instance.
CAPABILITY_NODE = re.compile(r"/dev/nvidia-caps/nvidia-cap(\d+)\b")
ENGINE_LOCATIONS = ("/usr/bin/", "/usr/local/bin/")
DAEMON_FILE = "/etc/docker/daemon.json"
TOOLKIT_PACKAGE = "nvidia-container-toolkit"
TOOLKIT_FILE = "/etc/nvidia-container-runtime/config.toml"
# Podman's reports on its security, with Docker's names for them.
PODMAN_SECURITY = (
    ("apparmorEnabled", "apparmor"),
    ("selinuxEnabled", "selinux"),
    ("rootless", "rootless"),
)
# Files that rootless engines leave for as long as their account's session lasts.
ROOTLESS = (
    ("docker", "/run/user/*/docker.sock"),
    ("podman", "/run/user/*/libpod/tmp/pause.pid"),
)


# Places of programs that engines run as root, and files that name such programs.
PLUGIN_LOCATIONS = tuple(
    place + "/cli-plugins"
    for place in (
        "/usr/local/lib/docker",
        "/usr/local/libexec/docker",
        "/usr/lib/docker",
        "/usr/libexec/docker",
        "/root/.docker",
    )
)
CONFIGURATIONS = (
    DAEMON_FILE,
    "/etc/containers/*.conf",
    "/usr/share/containers/*.conf",
    *CDI_LOCATIONS,
    TOOLKIT_FILE,
    "/etc/containers/oci/hooks.d/*",
    "/usr/share/containers/oci/hooks.d/*",
)


def judge_engine(host):
    """Raise RefusedError where an engine would run, as root, what others could have written."""
    code = [name for name in PLUGIN_LOCATIONS if os.path.isdir(name)]
    for pattern in CONFIGURATIONS:
        for name in host.glob(pattern):
            code += [
                path
                for path in mentioned(name)
                if os.path.isfile(path) and (os.stat(path).st_mode & 0o111 or ".so" in path)
            ]
    account_for([*dict.fromkeys(code), CACHE], as_owner=False)


def section_containers(host):
    wanted = host["containers"]
    if wanted and host.real:
        judge_engine(host)
    engine = probe_engine(host, wanted["engine"]) if wanted else None
    if engine and os.geteuid() != 0 and "permission denied" in (engine["error"] or "").lower():
        raise PermissionError("%s: %s" % (engine["name"], engine["error"]))
    found = {
        "engine": engine,
        "daemon": read_daemon_file(host),
        "toolkit": container_toolkit(host),
        "configuration": toolkit_configuration(host),
        "cdi": [
            cdi_spec(host, name)
            for path in CDI_LOCATIONS
            for name in host.glob(path)
            if name.endswith((".yaml", ".yml", ".json"))
        ],
        "mig_capabilities": capabilities_of(host),
        "dev_char": {"missing": missing_links(host)},
        "wrapper": find_engine_program(host, "nvidia-docker"),
        "run": None,
        "running": running_containers(host, engine) if wanted else None,
        "majors": character_majors(host),
        "rootless": rootless_engines(host),
    }
    found["cdi"] = [spec for spec in found["cdi"] if spec]
    if host["mode"] == "full" and engine and not engine["error"]:
        found["run"] = run_trial(host, wanted, found)
    return found


def find_engine_program(host, name):
    """The path of a program of the engine; None where it is not installed."""
    return next((d + name for d in ENGINE_LOCATIONS if host.exists(d + name)), None)


def probe_engine(host, name):
    """The engine as it describes itself; None where it is not installed."""
    path = find_engine_program(host, name)
    if path is None:
        return None
    found = {
        "name": name,
        "path": path,
        "version": None,
        "runtimes": [],
        "live_restore": None,
        "cgroup_driver": None,
        "storage": None,
        "security": [],
        "error": None,
    }
    form = "{{json .}}" if name == "docker" else "json"
    status, out, err = run_command([host.path(path), "info", "--format", form], host.inner_s / 2)
    try:
        document = json.loads(out)
        if name == "docker":
            found.update(
                version=document.get("ServerVersion") or None,
                runtimes=sorted(document.get("Runtimes") or {}),
                live_restore=document.get("LiveRestoreEnabled"),
                cgroup_driver=document.get("CgroupDriver"),
                storage=document.get("Driver"),
                security=re.findall(
                    r"name=([\w-]+)", " ".join(document.get("SecurityOptions") or [])
                ),
            )
            errors = document.get("ServerErrors") or []
        else:
            found.update(
                version=document["version"]["Version"],
                runtimes=[document["host"]["ociRuntime"]["name"]],
                cgroup_driver=document["host"].get("cgroupManager"),
                storage=document["store"].get("graphDriverName"),
                security=[
                    name
                    for key, name in PODMAN_SECURITY
                    if (document["host"].get("security") or {}).get(key)
                ],
            )
            errors = []
        found["error"] = "; ".join(errors) or (
            None if found["version"] else "it reported no version"
        )
    except (ValueError, KeyError, TypeError):
        found["error"] = last_lines(err or out, 300) or "ended with status %s" % status
    return found


def running_containers(host, engine):
    """The running containers that have GPUs, by the engine's names for them, without our own."""
    found = containers_with_gpus(host)
    if found and engine and not engine["error"]:
        _, out, _ = run_command(
            [host.path(engine["path"]), "ps", "--no-trunc", "--format", "{{.ID}} {{.Names}}"],
            host.inner_s / 8,
        )
        names = dict(line.split(None, 1) for line in out.splitlines() if " " in line)
        for entry in found:
            entry["name"] = names.get(first_match(r"([0-9a-f]{64})", entry["unit"]))
    return found and [entry for entry in found if not (entry["name"] or "").startswith(OWN_NAME)]


def rootless_engines(host):
    """The engines of accounts, which root's engine is not: {"engine", "account"} of each."""
    return [
        {"engine": engine, "account": name_of(host, int(number))}
        for engine, pattern in ROOTLESS
        for path in host.glob(pattern)
        for number in re.findall(r"^/run/user/([1-9]\d*)/", path)
    ]


def read_daemon_file(host):
    """Docker's configuration file, as far as it concerns GPUs."""
    found = {
        "path": DAEMON_FILE,
        "exists": False,
        "error": None,
        "runtimes": {},
        "live_restore": None,
        "cdi": None,
        "data_root": None,
    }
    text = host.text_or_none(DAEMON_FILE)
    if text is None:
        return found
    found["exists"] = True
    # Docker ignores a byte order mark.
    text = text.lstrip("\ufeff")
    try:
        document = json.loads(text) if text.strip() else {}
        runtimes = document.get("runtimes") or {}
        found.update(
            runtimes={name: entry.get("path") for name, entry in runtimes.items()},
            live_restore=document.get("live-restore"),
            data_root=document.get("data-root"),
            cdi=(document.get("features") or {}).get("cdi"),
        )
    except (ValueError, AttributeError) as error:
        found["error"] = "not the JSON that Docker reads: %s" % error
    return found


def toolkit_configuration(host):
    """The "path", "mode" and "no_cgroups" of the toolkit's configuration; None if there is none.

    TOML is read by its lines: there is no reader for it in Python before 3.11.
    """
    text = host.text_or_none(TOOLKIT_FILE)
    if text is None:
        return None
    values, table = {}, ""
    for line in text.splitlines():
        header = re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line)
        value = re.match(r"\s*([\w.-]+)\s*=\s*(\"[^\"]*\"|'[^']*'|[^#\s]+)", line)
        if header:
            table = header.group(1) + "."
        elif value:
            values[table + value.group(1)] = value.group(2).strip("\"'")
    switch = values.get("nvidia-container-cli.no-cgroups")
    return {
        "path": TOOLKIT_FILE,
        "mode": values.get("nvidia-container-runtime.mode"),
        "no_cgroups": None if switch is None else switch == "true",
    }


def container_toolkit(host):
    """The "version", "held" and "candidate" of the toolkit's package; None: not installed."""
    status = host.text_or_none("/var/lib/dpkg/status")
    for entry in (status or "").split("\n\n"):
        if re.match(r"Package: %s$" % TOOLKIT_PACKAGE, entry, re.MULTILINE):
            state = (first_match(r"^Status: (.+)$", entry) or "").split()
            if state[-1:] == ["installed"]:
                return {
                    "version": first_match(r"^Version: (.+)$", entry),
                    "held": state[0] == "hold",
                    "candidate": apt_candidate(host),
                }
    if status is None and host.exists(RPM):
        for row in rpm_packages(host, TOOLKIT_PACKAGE):
            if row["name"] == TOOLKIT_PACKAGE:
                return {"version": row["version"], "held": row["held"], "candidate": None}
    return None


def apt_candidate(host):
    """The newest version of the toolkit in apt's lists; None where that is not known."""
    if not (host.real and shutil.which("apt-cache")):
        return None
    status, out, _ = run_command(
        ["apt-cache", "policy", TOOLKIT_PACKAGE],
        host.inner_s / 10,
        env={"PATH": SYSTEM_PATH, "LC_ALL": "C"},
        ordinary=True,
    )
    found = first_match(r"^  Candidate: (\S+)$", out) if status == 0 else None
    return None if found == "(none)" else found


def cdi_spec(host, name):
    """A specification of NVIDIA's GPUs, of whichever driver; None where it is of something else,
    such as NVIDIA's own for NVSwitch, GPUDirect Storage and IMEX.

    YAML is read by its lines: they are what `nvidia-ctk` writes, and there is no YAML in Python.
    """
    found = {
        "path": name,
        "driver_version": None,
        "devices": [],
        "mig_nodes": [],
        "error": None,
    }
    try:
        text = host.text(name)
    except OSError as error:
        return dict(found, error=error.strerror)
    # JSON may have its slashes escaped.
    numbers = CAPABILITY_NODE.findall(text.replace("\\/", "/"))
    found["mig_nodes"] = sorted({int(number) for number in numbers})
    found["driver_version"] = first_match(r"libcuda\.so\.(\d+\.[\d.]*\d)", text)
    if text.lstrip().startswith("{"):
        try:
            document = json.loads(text)
            kind = document.get("kind")
            found["devices"] = [str(entry["name"]) for entry in document.get("devices") or []]
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            kind = GPU_KIND if '"%s"' % GPU_KIND in text else None
            found["error"] = "not the JSON that engines read: %s" % error
    else:
        kind = first_match(r"^kind: *[\"']?([^\"'\s]+)", text)
        found["devices"] = re.findall(r"^\s*(?:- *)?name: *[\"']?([^\"'\s]+)", text, re.MULTILINE)
    return found if kind == GPU_KIND else None


def missing_links(host):
    """Links of /dev/char that an older systemd needs to give a card back to a container."""
    links = ["/dev/char/%d:%d" % numbers for numbers in device_numbers(host)]
    return [link for link in links if not os.path.lexists(host.path(link))]


def device_numbers(host):
    """Major and minor number of each node of NVIDIA's that is linked."""
    states = [
        os.stat(host.path(name))
        for path in DEVICE_NODES
        for name in host.glob(path)
        if LINKED_NODE.search(name)
    ]
    return sorted(
        {
            (os.major(state.st_rdev), os.minor(state.st_rdev))
            for state in states
            if stat.S_ISCHR(state.st_mode)
        }
    )
