"""Find the system's programs."""
import shutil


def tool(name):
    """A system administrator's command, also where the path leads to a user's only."""
    return shutil.which(name, path="/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/bin") or name

SYSTEM_PLACES = ("/usr/bin/", "/bin/", "/usr/sbin/", "/sbin/", "/usr/local/bin/")


def nvidia_smi(host):
    """Where nvidia-smi stands, in the usual places or on the path; None where it is not."""
    found = next((d + "nvidia-smi" for d in SYSTEM_PLACES if host.exists(d + "nvidia-smi")), None)
    return found or (shutil.which("nvidia-smi") if host.real else None)


def system_program(host, name):
    return next((d + name for d in SYSTEM_PLACES if host.exists(d + name)), None)
