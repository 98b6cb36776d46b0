"""Sources that stop every command of apt or dnf: it cannot read them or may not trust them."""

import os
import re

from .dnf import FALSE
from .processes import run_command
from .trust import SYSTEM_PATH

APT_GET = "/usr/bin/apt-get"
DNF_CONF = "/etc/dnf/dnf.conf"
SKIPS = r"(?m)^\s*skip_if_unavailable\s*=\s*(\S+)"


def stopped(host, manager, keys, repos):
    """The reasons, in the manager's own words where it has any; None: they are not known.

    `keys`: (the file, the Signed-By) of each enabled source. `repos`: (the file, the section's
    text) of each enabled repository of dnf.
    """
    if manager == "dpkg":
        said = apt_errors(host)
        return None if said is None else said + missing_keys(host, keys)
    return unreachable(host, repos) if manager == "rpm" else []


def apt_errors(host):
    """apt's errors, once each, when it reads its sources; nothing is fetched, locked or written."""
    within = [] if host.real else ["-o", "Dir=" + host.root]
    status, _, error = run_command(
        [host.path(APT_GET), *within, "indextargets", "--format", "$(IDENTIFIER)"],
        host.inner_s / 10,
        env={"PATH": SYSTEM_PATH, "LC_ALL": "C"},
    )
    lines = list(dict.fromkeys(re.findall(r"(?m)^E: (.*\S)", error)))
    # A file that only this account may not read does not stop root's apt.
    if status is None or (os.geteuid() != 0 and "Permission denied" in error):
        return None
    if status == 0:
        return []
    # A login in an address is nobody's business.
    lines = [re.sub(r"//[^/@\s]*@", "//", line)[:400] for line in lines[:8]]
    return lines or ["apt-get indextargets ended with status %s" % status]


def missing_keys(host, keys):
    """The key files that sources name and that are not there."""
    found = []
    for path, signed in keys:
        for name in re.split(r"[\s,]+", signed or ""):
            # Others are fingerprints, or a key itself.
            if name.startswith("/") and not host.exists(name):
                text = "%s: Signed-By names %s, which is not there" % (path, name)
                found += [text] * (text not in found)
    return found


def unreachable(host, repos):
    """The repositories in files that are not there, and without an address, that dnf needs."""
    default = re.findall(SKIPS, host.text_or_none(DNF_CONF) or "")
    found = []
    for path, section in repos:
        skips = (re.findall(SKIPS, section) or default or ["0"])[-1].lower()
        name = section.partition("]")[0]
        lines = re.findall(r"(?m)^(baseurl|mirrorlist|metalink)[ \t]*=[ \t]*(\S.*)?$", section)
        where = [text for _, text in lines if text]
        local = [text[7:].strip().rstrip("/") for text in where if text.startswith("file:///")]
        missing = [
            at
            for at in local
            if "$" not in at and " " not in at and not host.exists(at + "/repodata/repomd.xml")
        ]
        if skips not in FALSE:
            continue
        if not where:
            found.append("%s: repository %s has no baseurl, mirrorlist or metalink" % (path, name))
        elif missing and len(missing) == len(where):
            found.append("%s: repository %s has no repodata in %s" % (path, name, missing[0]))
    return found
