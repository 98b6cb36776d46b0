"""Section `containers`: engine, NVIDIA's container toolkit, and a container of our own."""
import json
import os
import re
import shutil
import stat

from ..container_run import run_trial
from ..processes import run_command
from ..text import first_match, last_lines

CDI_LOCATIONS = ("/etc/cdi/*", "/run/cdi/*")
DEVICE_NODES = ("/dev/nvidia*", "/dev/nvidia-caps/*")
ENGINE_LOCATIONS = ("/usr/bin/", "/usr/local/bin/")
DAEMON_FILE = "/etc/docker/daemon.json"
TOOLKIT_PACKAGE = "nvidia-container-toolkit"


def section_containers(host):
    wanted = host["containers"]
    engine = probe_engine(host, wanted["engine"]) if wanted else None
    if engine and os.geteuid() != 0 and "permission denied" in (engine["error"] or "").lower():
        raise PermissionError("%s: %s" % (engine["name"], engine["error"]))
    found = {"engine": engine, "daemon": read_daemon_file(host), "toolkit": container_toolkit(host),
             "cdi": [cdi_spec(host, name) for path in CDI_LOCATIONS for name in host.glob(path)
                     if name.endswith((".yaml", ".yml", ".json"))],
             "dev_char": {"missing": missing_links(host)},
             "wrapper": find_engine_program(host, "nvidia-docker"), "run": None}
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
    found = {"name": name, "path": path, "version": None, "runtimes": [], "live_restore": None,
             "cgroup_driver": None, "storage": None, "error": None}
    form = "{{json .}}" if name == "docker" else "json"
    status, out, err = run_command([host.path(path), "info", "--format", form], host.inner_s / 2)
    try:
        document = json.loads(out)
        if name == "docker":
            found.update(version=document.get("ServerVersion") or None,
                         runtimes=sorted(document.get("Runtimes") or {}),
                         live_restore=document.get("LiveRestoreEnabled"),
                         cgroup_driver=document.get("CgroupDriver"), storage=document.get("Driver"))
            errors = document.get("ServerErrors") or []
        else:
            found.update(version=document["version"]["Version"],
                         runtimes=[document["host"]["ociRuntime"]["name"]],
                         cgroup_driver=document["host"].get("cgroupManager"),
                         storage=document["store"].get("graphDriverName"))
            errors = []
        found["error"] = "; ".join(errors) or (
            None if found["version"] else "it reported no version")
    except (ValueError, KeyError, TypeError):
        found["error"] = last_lines(err or out, 300) or "ended with status %s" % status
    return found


def read_daemon_file(host):
    """Docker's configuration file, as far as it concerns GPUs."""
    found = {"path": DAEMON_FILE, "exists": False, "error": None, "runtimes": {},
             "live_restore": None, "cdi": None, "data_root": None}
    text = host.text_or_none(DAEMON_FILE)
    if text is None:
        return found
    found["exists"] = True
    try:
        document = json.loads(text) if text.strip() else {}
        runtimes = document.get("runtimes") or {}
        found.update(runtimes={name: entry.get("path") for name, entry in runtimes.items()},
                     live_restore=document.get("live-restore"), data_root=document.get("data-root"),
                     cdi=(document.get("features") or {}).get("cdi"))
    except (ValueError, AttributeError) as error:
        found["error"] = "not the JSON that Docker reads: %s" % error
    return found


def container_toolkit(host):
    """{"version", "held"} of the toolkit's package; None where it is not installed."""
    status = host.text_or_none("/var/lib/dpkg/status")
    for entry in (status or "").split("\n\n"):
        if re.match(r"Package: %s$" % TOOLKIT_PACKAGE, entry, re.MULTILINE):
            state = (first_match(r"^Status: (.+)$", entry) or "").split()
            if state[-1:] == ["installed"]:
                return {"version": first_match(r"^Version: (.+)$", entry),
                        "held": state[0] == "hold"}
    if status is None and host.real and shutil.which("rpm"):
        code, out, _ = run_command(["rpm", "-q", "--qf", "%{VERSION}-%{RELEASE}", TOOLKIT_PACKAGE],
                                   host.inner_s / 10)
        locks = "".join(host.text_or_none(path) or "" for path in (
            "/etc/dnf/plugins/versionlock.list", "/etc/dnf/versionlock.toml"))
        if code == 0:
            return {"version": out.strip(), "held": TOOLKIT_PACKAGE in locks}
    return None


def cdi_spec(host, name):
    """A specification of NVIDIA's GPUs, of whichever driver; None where it is of something else.

    Read by its lines: they are what `nvidia-ctk` writes, and there is no YAML in Python itself.
    """
    found = {"path": name, "driver_version": None, "devices": [], "error": None}
    try:
        text = host.text(name)
    except OSError as error:
        return dict(found, error=error.strerror)
    if not re.search(r'"?kind"?:\s*"?nvidia\.com/', text):
        return None
    found["driver_version"] = first_match(r"libcuda\.so\.(\d+\.[\d.]*\d)", text)
    found["devices"] = re.findall(r'^\s*(?:- *|\{ *)?"?name"?: *"?([^",\s]+)', text, re.MULTILINE)
    return found


def missing_links(host):
    """Links of /dev/char that systemd needs to give a card back to a container, and lacks."""
    links = ["/dev/char/%d:%d" % numbers for numbers in device_numbers(host)]
    return [link for link in links if not os.path.lexists(host.path(link))]


def device_numbers(host):
    """(major, minor) of each node of NVIDIA's."""
    states = [os.stat(host.path(name)) for path in DEVICE_NODES for name in host.glob(path)]
    return sorted({(os.major(state.st_rdev), os.minor(state.st_rdev)) for state in states
                   if stat.S_ISCHR(state.st_mode)})
