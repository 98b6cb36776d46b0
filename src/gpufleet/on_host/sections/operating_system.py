"""Section `os`: distribution, architecture, interpreters; and what identifies the machine."""

import os
import platform
import re

from ..processes import NoAnswer, NoAnswerError, run_command
from ..python_start import interpreter_code
from ..serials import hardware_of
from ..text import natural
from ..trust import RefusedError

# Where interpreters usually stand, in the order of preference.
PYTHON_LOCATIONS = ("/usr/bin", "/usr/local/bin", "/opt/python/*/bin", "/opt/gpufleet/python/*/bin")

# Features without which wheels of frameworks cannot be imported: rules.yml, cpu_features.
CPU_FEATURES = ("sse4_1", "avx", "avx2")


def section_os(host):
    release = {}
    for line in (host.text_or_none("/etc/os-release") or "").splitlines():
        key, mark, value = line.partition("=")
        if mark:
            release[key] = value.strip().strip("\"'")
    try:
        glibc = os.confstr("CS_GNU_LIBC_VERSION").split()[-1]
    except (AttributeError, OSError, ValueError):
        glibc = None
    pythons = [{"path": name, "version": query_version(host, name)} for name in interpreters(host)]
    return {
        "id": release.get("ID"),
        "version_id": release.get("VERSION_ID"),
        "codename": release.get("VERSION_CODENAME"),
        "arch": platform.machine(),
        "glibc": glibc,
        "cpu_features": cpu_features(host),
        "hostname": platform.node(),
        "pythons": pythons,
        "hardware": hardware_of(host),
    }


def cpu_features(host):
    """The CPU_FEATURES that all processors have; None where no flags are listed, as on Arm."""
    text = host.text_or_none("/proc/cpuinfo") or ""
    lists = [line.split() for line in set(re.findall(r"^flags\s*:(.*)$", text, re.MULTILINE))]
    wanted = [name for name in CPU_FEATURES if all(name in flags for flags in lists)]
    return wanted if lists else None


def interpreters(host):
    """Names of the interpreters in the usual directories: the system's, then the requested ones."""
    found = []
    for location in PYTHON_LOCATIONS:
        names = [
            name
            for name in host.glob(location + "/python3.*")
            if re.match(r"python3\.\d+$", os.path.basename(name))
        ]
        found += sorted(names, key=natural)
    requested = [name for name in host["pythons"] if host.exists(name)]
    return list(dict.fromkeys(found + requested))


def query_version(host, name):
    """The version that an interpreter reports; None where it does not run.

    One that gives no answer is installed all the same: the host may be busy.
    """
    question = "import platform; print(platform.python_version())"
    path = host.path(name)
    try:
        status, out, err = run_command(
            [path, "-I", "-S", "-c", question],
            host.inner_s / 2,
            cwd="/",
            code=lambda: interpreter_code(path, site=False),
        )
    except RefusedError as error:
        host.miss(name, str(error))
        return None
    if isinstance(err, NoAnswer):
        raise NoAnswerError("%s gave %s" % (name, err))
    return out.strip() if status == 0 else None
