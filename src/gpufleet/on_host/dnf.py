"""dnf's settings, and its version locks as its plugin versionlock applies them."""

import fnmatch
import re

# The package of the plugin; without it, or with one of these settings off, dnf ignores all locks.
VERSIONLOCK = "python3-dnf-plugin-versionlock"
LOCKS = "/etc/dnf/plugins/versionlock.list"
SWITCHES = (("/etc/dnf/plugins/versionlock.conf", "enabled"), ("/etc/dnf/dnf.conf", "plugins"))
# Words that dnf reads as false; any other leaves the setting's default, which is true.
FALSE = ("0", "no", "false", "off")
# dnf itself writes locks that end with `.*`.
ANY_ARCHITECTURE = re.compile(r"\.(\*|noarch|x86_64|aarch64|i686)$")


def switched_off(text, setting):
    """Return whether a configuration file of dnf's has a setting off: its last line counts."""
    values = re.findall(r"(?m)^\s*%s\s*=\s*(\S*)\s*$" % setting, text)
    return bool(values) and values[-1].lower() in FALSE


def switched_off_locks(host):
    """The settings with which dnf ignores version locks, as `PATH: SETTING=0`."""
    return [
        "%s: %s=0" % (path, setting)
        for path, setting in SWITCHES
        if switched_off(host.text_or_none(path) or "", setting)
    ]


def version_locks(host):
    """The patterns of the list of version locks, without exclusions of single versions."""
    lines = (host.text_or_none(LOCKS) or "").splitlines()
    return [line.strip() for line in lines if line.strip() and line[:1] not in ("#", "!")]


def is_locked(lock, name, epoch, version):
    """Return whether a lock keeps a package at that version with its release.

    One without a version, such as `nvidia-driver`, lets every version pass.
    """
    lock = ANY_ARCHITECTURE.sub("", lock)
    upstream = version.partition("-")[0]
    if not re.search(r"-(\d+:)?%s(-|\*?$)" % re.escape(upstream), lock):
        return False
    return any(
        fnmatch.fnmatchcase("%s-%s%s" % (name, prefix, each), lock)
        for prefix in ("", epoch + ":")
        for each in (version, upstream)
    )
