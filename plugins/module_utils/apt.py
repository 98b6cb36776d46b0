# Apache-2.0, see LICENSE
"""What apt and dpkg say, read without changing anything; and how they are called.

One transaction is one `Apt`: all its calls share the preferences that the transaction wants, in a
directory of its own. So the host's own pins and holds stay in force until the transaction has ended
well, and a killed one leaves nothing half-set.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import re
import shutil
import time

from ansible_collections.gpufleet.gpu.plugins.module_utils.probe.host import Host
from ansible_collections.gpufleet.gpu.plugins.module_utils.probe.sections.packages import (
    DRIVER_PACKAGE,
    dpkg_packages,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    StateError,
    make_folder,
    remove_tree,
)

LOCKS = (
    "/var/lib/dpkg/lock-frontend",
    "/var/lib/dpkg/lock",
    "/var/lib/apt/lists/lock",
    "/var/cache/apt/archives/lock",
)
PREFERENCES = "/etc/apt/preferences.d"

# "Inst libcuda1 [470.256.02-2] (535.261.03-1 Debian:12.11/oldstable [amd64])"
_INSTALLED = re.compile(r"^Inst (\S+?)(?::\w+)?(?: \[([^\]]*)\])? \((\S+) (.*?)(?: ?\[[^\]]*\])?\)")
_REMOVED = re.compile(r"^(?:Remv|Purg) (\S+?)(?::\w+)?(?: |$)")
# What apt and gpgv say of a repository whose signature does not hold.
_UNSIGNED = re.compile(
    r"NO_PUBKEY|EXPKEYSIG|KEYEXPIRED|BADSIG|REVKEYSIG|is not signed|"
    r"signatures? (?:couldn't|could not|were) |Sub-process .*sqv returned"
)


def parse_simulation(text):
    """What `apt-get -s` would do: ({name: {"old", "version", "origin"}}, [removed names])."""
    installs, removes = {}, []
    for line in text.splitlines():
        found = _INSTALLED.match(line)
        if found:
            name, old, version, origin = found.groups()
            installs[name] = {"old": old, "version": version, "origin": origin}
            continue
        found = _REMOVED.match(line)
        if found and found.group(1) not in removes:
            removes.append(found.group(1))
    return installs, removes


def upstream(version):
    """A package's version without epoch and distribution's part: 1:535.261.03-1 -> 535.261.03."""
    return re.match(r"(?:\d+:)?([\d.]*\d)", version or "0").group(1)


def complaints(text):
    """apt's own errors among its output, without their mark; the last lines where there is none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line[2:].strip() for line in lines if line.startswith("E:")]
    return "; ".join(errors or lines[-3:])


def unsigned(text):
    """Lines about a repository whose signature is not one of its key."""
    return [line.strip() for line in text.splitlines() if _UNSIGNED.search(line)]


def holders(path):
    """Who else has a file open, such as `apt-get (pid 4711)`."""
    found = []
    for link in glob.glob("/proc/[0-9]*/fd/*"):
        pid = link.split("/")[2]
        with contextlib.suppress(OSError):  # the process has ended meanwhile
            if os.readlink(link) == path and int(pid) != os.getpid():
                with open("/proc/{}/comm".format(pid)) as stream:
                    found.append("{} (pid {})".format(stream.read().strip(), pid))
    return sorted(set(found))


def wait_for_locks(patience_s, paths=LOCKS):
    """Wait until nobody installs packages; raises `StateError` naming who still does."""
    deadline = time.monotonic() + patience_s
    for path in paths:
        while os.path.exists(path):
            with open(path, "r+") as stream:
                try:
                    fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        raise StateError(
                            "{} has been held for more than {} s by {}. Let it finish, or see why "
                            "it does not end, and run again.".format(
                                path, patience_s, ", ".join(holders(path)) or "an unknown process"
                            )
                        ) from None
            # A lock of this kind cannot be waited for with a limit: look again shortly.
            time.sleep(0.2)


class Apt:
    """apt and dpkg on this host, for one transaction with preferences of its own.

    `own`: the file of ours among the host's preferences, which the transaction does without.
    """

    def __init__(self, module, own, patience_s):
        self.module, self.own, self.patience_s = module, own, patience_s
        self.folder = os.path.join(module.tmpdir, "preferences.d")
        self.status = os.path.join(module.tmpdir, "status")
        self.environment = {
            "DEBIAN_FRONTEND": "noninteractive",
            "LC_ALL": "C.UTF-8",
            # needrestart and apt-listchanges would ask.
            "NEEDRESTART_MODE": "l",
            "APT_LISTCHANGES_FRONTEND": "none",
        }

    def run(self, *words):
        """Run a command; (status, its whole output)."""
        status, out, err = self.module.run_command(
            list(words), environ_update=self.environment, errors="surrogate_then_replace"
        )
        return status, out + err

    @staticmethod
    def query():
        """The packages that dpkg has, in whatever state: {name: {"version", "status", "held"}}."""
        return {row["name"]: row for row in dpkg_packages(Host({}))}

    def prefer(self, text):
        """Let the transaction see the host's preferences without ours, and this text instead."""
        remove_tree(self.folder)
        make_folder(self.folder)
        for path in glob.glob(os.path.join(PREFERENCES, "*")):
            if path != self.own and os.path.isfile(path):
                shutil.copy(path, self.folder)
        with open(os.path.join(self.folder, "gpufleet-driver"), "w") as stream:
            stream.write(text)

    def get(self, *words):
        """`apt-get` with what every call of the transaction has in common."""
        return self.run(
            "apt-get",
            "--yes",
            "--quiet",
            "--no-install-recommends",
            "--allow-change-held-packages",
            "--allow-downgrades",
            "-oDPkg::Lock::Timeout={}".format(int(self.patience_s)),
            "-oDir::Etc::preferencesparts={}".format(self.folder),
            "-oDpkg::Options::=--force-confdef",
            "-oDpkg::Options::=--force-confold",
            "-oDpkg::Use-Pty=0",
            *words,
        )

    def simulate(self, *words):
        """(installs, removes) as if nothing of the driver were held.

        apt exchanges nothing that is held but what it is asked for by name. Raises `StateError`
        when it finds no way.
        """
        with open("/var/lib/dpkg/status", errors="surrogateescape") as stream:
            stanzas = stream.read().split("\n\n")
        with open(self.status, "w", errors="surrogateescape") as stream:
            stream.write("\n\n".join(unheld(stanza) for stanza in stanzas))
        status, text = self.get("--simulate", "-oDir::State::status=" + self.status, *words)
        if status:
            raise StateError("apt cannot do it: {}.".format(unmet(text)))
        return parse_simulation(text)


def unheld(stanza):
    """A package's entry in dpkg's list, without the hold if it is the driver's."""
    name = re.match(r"\s*Package: (\S+)", stanza)
    if not name or not DRIVER_PACKAGE.match(name.group(1)):
        return stanza
    return re.sub(r"^Status: hold ", "Status: install ", stanza, flags=re.MULTILINE)


def unmet(text):
    """Why apt finds no way: its explanation of dependencies that cannot be met, or its errors."""
    lines = [line.strip() for line in text.splitlines()]
    needs = [line for line in lines if re.search(r" : (Depends|PreDepends|Conflicts|Breaks)", line)]
    return "; ".join([*needs[:4], complaints(text)]).rstrip(".")
