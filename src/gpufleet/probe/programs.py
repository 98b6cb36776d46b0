"""Find the system's programs."""

import shutil


def find_tool(name):
    """The path of an administrator's command, also where PATH has users' directories only."""
    return shutil.which(name, path="/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/bin") or name


SYSTEM_LOCATIONS = ("/usr/bin/", "/bin/", "/usr/sbin/", "/sbin/", "/usr/local/bin/")


def nvidia_smi(host):
    """The path of nvidia-smi, in the usual directories or on PATH; None without nvidia-smi."""
    return find_program(host, "nvidia-smi") or (shutil.which("nvidia-smi") if host.real else None)


def find_program(host, name):
    return next((d + name for d in SYSTEM_LOCATIONS if host.exists(d + name)), None)
