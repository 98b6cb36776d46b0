"""Section `packages`: the driver's packages, package sources, pins and automatic upgrades."""

import fnmatch
import os
import re

from ..dnf import FALSE, VERSIONLOCK, is_locked, switched_off_locks, version_locks
from ..processes import run_command
from ..repositories import stopped
from ..text import first_match
from ..trust import SYSTEM_PATH

# ruff: noqa: B905 (zip has no `strict` before Python 3.10)

# The driver's packages of all distributions; CUDA's, cuDNN's and the container toolkit's are none.
DRIVER_PACKAGE = re.compile(
    r"^(libcuda(debugger)?1|cuda-drivers(-.+)?|kmod-nvidia.*|firmware-nvidia.*"
    r"|linux-(modules|objects|signatures)-nvidia.*|xserver-xorg-video-nvidia.*"
    r"|lib(egl|gles|glx|gl)\d?-nvidia.*"
    r"|libnvidia-(?!container|egl-|ml-dev).+"
    r"|nvidia-(?!cuda-(?!mps)|cudnn|container|docker|cg-|openjdk|opencl-dev|profiler|visual|fs-"
    r"|vaapi|prime|primus|gds).+)$"
)
# The packages of network adapters' drivers, of distributions and of DOCA.
NETWORK_PACKAGE = re.compile(
    r"^(rdma-core|ibverbs-providers|libibverbs1?|infiniband-diags|doca-ofed.*|doca-all"
    r"|doca-networking|mlnx-ofed-kernel.*|mlnx-ofa_kernel.*|kmod-mlnx-ofa_kernel)$"
)
RPM = "/usr/bin/rpm"
APT_CONFIG = "/usr/bin/apt-config"
EXCLUDED = "Unattended-Upgrade::Package-Blacklist"
# Words that apt reads as false, in small letters; any other word leaves a source enabled.
APT_FALSE = (*FALSE, "without", "disable")
# Not (or no longer) installed, as dpkg reports it.
GONE = ("not-installed", "config-files")


def section_packages(host):
    packages, manager = installed_packages(host)
    sources = package_sources(host)
    driver = [row for row in packages if DRIVER_PACKAGE.match(row["name"].partition(":")[0])]
    return {
        "manager": manager,
        "driver": driver,
        "network": {
            row["name"]: row["version"]
            for row in packages
            if NETWORK_PACKAGE.match(row["name"]) and row["status"] == "installed"
        },
        "broken": [
            {"name": row["name"], "status": row["status"]}
            for row in packages
            if row["status"] != "installed"
        ],
        "locking": locking(host, packages) if manager == "rpm" else None,
        "pins": driver_pins(host, driver),
        "sources": [
            dict(zip(("path", "uris", "suites", "signed_by", "format", "source_only"), row))
            for row in sources
            if re.search("nvidia|docker", " ".join([row[0], *row[1]]), re.IGNORECASE)
        ],
        "stopped": stopped(
            host,
            manager,
            [(row[0], row[3]) for row in sources if row[4] != "repo"],
            [(path, text) for path, text, _ in dnf_repositories(host)],
        ),
        "unattended": unattended(host, manager, packages, driver),
    }


def installed_packages(host):
    """The packages (name, version, status, held), and their manager: dpkg, rpm or None."""
    if host.exists("/var/lib/dpkg/status"):
        return dpkg_packages(host), "dpkg"
    if host.exists("/usr/lib/sysimage/rpm") or host.exists("/var/lib/rpm"):
        return rpm_packages(host), "rpm"
    return [], None


def dpkg_packages(host):
    """The packages (name, version, status, held) in dpkg's own database."""
    found, native = [], None
    for stanza in host.text("/var/lib/dpkg/status").split("\n\n"):
        fields = dict(
            re.findall(r"^(Package|Status|Version|Architecture): (.*)$", stanza, re.MULTILINE)
        )
        if len(fields) < 3:
            continue
        wanted, error, status = fields["Status"].split()
        if status in GONE:
            continue
        name, arch = fields["Package"], fields.get("Architecture")
        native = arch if name == "dpkg" else native
        found.append(
            (
                arch,
                {
                    "name": name,
                    "version": fields.get("Version"),
                    "status": status if error == "ok" else error,
                    "held": wanted == "hold",
                },
            )
        )
    for arch, row in found:
        if arch not in ("all", native, None) and native:
            row["name"] += ":" + arch
    return sorted((row for _, row in found), key=lambda row: row["name"])


def rpm_packages(host, *names):
    """The installed packages, or those of some names, from rpm, which knows nothing half-installed;
    held by dnf's version locks."""
    if not (host.real or host.exists(RPM)):
        return []
    wanted = [VERSIONLOCK, *names] if names else []
    form = "%{NAME}\t%{EPOCHNUM}\t%{VERSION}-%{RELEASE}\n"
    status, out, error = run_command(
        [host.path(RPM), "-qa", "--qf", form, *wanted], host.inner_s * (0.1 if names else 0.8)
    )
    if status != 0:
        raise RuntimeError("rpm -qa: " + (error.strip() or "status %s" % status))
    return parse_rpm(out, [] if switched_off_locks(host) else version_locks(host))


def parse_rpm(out, locks):
    """From `NAME<tab>EPOCH<tab>VERSION` lines, and locks such as nvidia-driver-3:535.261.03-1.*."""
    rows = [line.split("\t") for line in sorted(set(out.splitlines())) if line.count("\t") == 2]
    plugin = any(name == VERSIONLOCK for name, _, _ in rows)
    return [
        {
            "name": name,
            "version": version,
            "status": "installed",
            "held": plugin and any(is_locked(lock, name, epoch, version) for lock in locks),
        }
        for name, epoch, version in rows
    ]


def locking(host, packages):
    """The state of dnf's plugin for version locks, and the settings with which dnf ignores them."""
    return {
        "plugin": any(row["name"] == VERSIONLOCK for row in packages),
        "switched_off": switched_off_locks(host),
    }


def driver_pins(host, driver):
    """The pins (path, packages, pin, priority) of apt's preferences that name driver packages."""
    found, names = [], [row["name"] for row in driver]
    for path in ["/etc/apt/preferences", *host.glob("/etc/apt/preferences.d/*")]:
        # apt reads files without a suffix, or with .pref.
        if "." in os.path.basename(path) and not path.endswith(".pref"):
            continue
        for fields in stanzas(host.text_or_none(path) or ""):
            wanted = fields.get("package", "").split()
            named = [
                word
                for word in wanted
                if DRIVER_PACKAGE.match(word)
                or "nvidia" in word
                or (word != "*" and any(fnmatch.fnmatch(name, word) for name in names))
            ]
            if named or (wanted and "nvidia" in fields.get("pin", "").lower()):
                found.append(
                    {
                        "path": path,
                        "packages": named or wanted,
                        "pin": fields.get("pin", ""),
                        "priority": first_match(r"^(-?\d+)", fields.get("pin-priority")),
                    }
                )
    return [dict(row, priority=int(row["priority"]) if row["priority"] else None) for row in found]


def unattended(host, manager, packages, driver):
    """The state of automatic upgrades, and whether they exclude the driver's held packages."""
    names = {row["name"] for row in packages}
    if manager != "dpkg":
        # A version lock binds dnf-automatic as well.
        return {
            "installed": "dnf-automatic" in names,
            "excluded": bool(driver) and all(row["held"] for row in driver),
        }
    installed = "unattended-upgrades" in names
    listed = excluded_patterns(host) if installed else []
    held = [row for row in driver if row["held"]] or driver
    wanted = [row["name"].partition(":")[0] for row in held] or ["nvidia-driver"]
    return {
        "installed": installed,
        "excluded": None
        if listed is None
        else all(any(matches_start(pattern, name) for pattern in listed) for name in wanted),
    }


def excluded_patterns(host):
    """The packages that unattended-upgrades leaves alone, as apt reads its settings; None: unknown.

    Only the list's own entries count, as for unattended-upgrades: neither the value of its name nor
    what lies deeper.
    """
    status, out, error = run_command(
        [host.path(APT_CONFIG), "dump", "--no-empty", "--format", "%f %v%n", EXCLUDED],
        host.inner_s / 10,
        env={"PATH": SYSTEM_PATH, "LC_ALL": "C"},
    )
    # apt only warns of a file that this account may not read.
    if status != 0 or "Permission denied" in error:
        return None
    return re.findall(r"(?im)^%s::[^:\s]* (.+)$" % EXCLUDED, out)


def matches_start(pattern, name):
    """As unattended-upgrades compares: a regular expression from the name's beginning on."""
    try:
        return bool(re.match(pattern, name))
    except re.error:
        return False


def stanzas(text):
    """The fields of each stanza of a file of apt's, by name in small letters."""
    text = re.sub(r"(?m)^#.*\n?", "", text)
    return [
        {
            key.lower(): " ".join(value.split())
            for key, value in re.findall(
                r"^([\w-]+):((?:.*\n?)(?:[ \t].*\n?)*)", stanza, re.MULTILINE
            )
        }
        for stanza in re.split(r"\n\s*\n", text)
    ]


def package_sources(host):
    """Path, addresses, suites, key, format and "sources alone" flag of each enabled source."""
    found = []
    for path in ["/etc/apt/sources.list", *host.glob("/etc/apt/sources.list.d/*.list")]:
        for line in (host.text_or_none(path) or "").splitlines():
            match = re.match(r"\s*deb(-src)?\s+(?:\[(.*?)\]\s+)?(\S+)\s+(\S+)", line)
            if match:
                kind, options, uri, suite = match.groups()
                signed = first_match(r"signed-by=\"?([^\s\"]+)", options)
                found.append((path, [uri], [suite], signed, "list", bool(kind)))
    for path in host.glob("/etc/apt/sources.list.d/*.sources"):
        for fields in stanzas(host.text_or_none(path) or ""):
            if "uris" in fields and fields.get("enabled", "yes").lower() not in APT_FALSE:
                found.append(
                    (
                        path,
                        fields["uris"].split(),
                        fields.get("suites", "").split(),
                        fields.get("signed-by", "")[:200] or None,
                        "deb822",
                        fields.get("types") == "deb-src",
                    )
                )
    for path, text, fields in dnf_repositories(host):
        key, name = fields.get("gpgkey"), text.partition("]")[0]
        found.append((path, fields.get("baseurl", "").split(), [name], key, "repo", False))
    # An address may carry a password.
    return [
        (row[0], [re.sub(r"//[^/@]*@", "//", uri) for uri in row[1]], *row[2:]) for row in found
    ]


def dnf_repositories(host):
    """Path, text after the bracket and fields of each enabled repository."""
    found = []
    for path in host.glob("/etc/yum.repos.d/*.repo"):
        for stanza in re.split(r"^\[", host.text_or_none(path) or "", flags=re.MULTILINE)[1:]:
            fields = dict(re.findall(r"^(\w+)\s*=\s*(.*)$", stanza, re.MULTILINE))
            if fields.get("enabled", "1").strip().lower() not in FALSE:
                found.append((path, stanza, fields))
    return found
