# Apache-2.0, see LICENSE
"""Run apt and dpkg, and parse their output.

One transaction is one `Apt`: all its calls share preferences in a temporary directory. So the
host's own pins and holds stay in force until the transaction has succeeded, and a killed one leaves
no preferences behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import re
import shutil
import time

from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.host import Host
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.sections.packages import (
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
# Messages of apt and gpgv about a repository with an invalid signature.
_UNSIGNED = re.compile(
    r"NO_PUBKEY|EXPKEYSIG|KEYEXPIRED|BADSIG|REVKEYSIG|is not signed|"
    r"signatures? (?:couldn't|could not|were) |Sub-process .*sqv returned"
)


def parse_simulation(text):
    """Parse the output of `apt-get -s`: ({name: {"old", "version", "origin"}}, [removed names])."""
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
    """Return a version without epoch and distribution's part: 1:535.261.03-1 -> 535.261.03."""
    return re.match(r"(?:\d+:)?([\d.]*\d)", version or "0").group(1)


def complaints(text):
    """Return the errors in apt's output without their prefix; its last lines where it has none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line[2:].strip() for line in lines if line.startswith("E:")]
    return "; ".join(errors or lines[-3:])


def unsigned(text):
    """Return the lines of apt's output about invalid signatures."""
    return [line.strip() for line in text.splitlines() if _UNSIGNED.search(line)]


def holders(path):
    """Return the other processes that have a file open, such as `apt-get (pid 4711)`."""
    found = []
    for link in glob.glob("/proc/[0-9]*/fd/*"):
        pid = link.split("/")[2]
        with contextlib.suppress(OSError):  # the process has ended meanwhile
            if os.readlink(link) == path and int(pid) != os.getpid():
                with open("/proc/{}/comm".format(pid)) as stream:
                    found.append("{} (pid {})".format(stream.read().strip(), pid))
    return sorted(set(found))


def wait_for_locks(patience_s, paths=LOCKS):
    """Wait until no other process installs packages; raises `StateError` that names it."""
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
                            "{} has been held for more than {} s by {}. Wait until it ends, or "
                            "stop it, and run again.".format(
                                path, patience_s, ", ".join(holders(path)) or "an unknown process"
                            )
                        ) from None
            # lockf has no timeout: poll.
            time.sleep(0.2)


class Apt:
    """apt and dpkg on this host, for one transaction with preferences of its own.

    `own`: gpufleet's file among the host's preferences, which the transaction ignores.
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

    def run(self, *command):
        """Run a command; returns (status, output)."""
        status, out, err = self.module.run_command(
            list(command), environ_update=self.environment, errors="surrogate_then_replace"
        )
        return status, out + err

    @staticmethod
    def query():
        """Return dpkg's packages: {name: {"version", "status", "held"}}."""
        return {row["name"]: row for row in dpkg_packages(Host({}))}

    def prefer(self, text):
        """Replace gpufleet's own preferences with this text, for the transaction only."""
        remove_tree(self.folder)
        make_folder(self.folder)
        for path in glob.glob(os.path.join(PREFERENCES, "*")):
            if path != self.own and os.path.isfile(path):
                shutil.copy(path, self.folder)
        with open(os.path.join(self.folder, "gpufleet-driver"), "w") as stream:
            stream.write(text)

    def get(self, *arguments):
        """Run apt-get with the options of the transaction; returns (status, output)."""
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
            *arguments,
        )

    def simulate(self, *arguments):
        """Return (installs, removes) of a simulation in which no package of the driver is held.

        apt replaces a held package only where it is an argument. Raises `StateError` where it finds
        no solution.
        """
        with open("/var/lib/dpkg/status", errors="surrogateescape") as stream:
            stanzas = stream.read().split("\n\n")
        with open(self.status, "w", errors="surrogateescape") as stream:
            stream.write("\n\n".join(unheld(stanza) for stanza in stanzas))
        status, text = self.get("--simulate", "-oDir::State::status=" + self.status, *arguments)
        if status:
            raise StateError("apt finds no solution: {}.".format(unmet(text)))
        return parse_simulation(text)


def unheld(stanza):
    """Return a package's stanza of dpkg's status, without a hold if it is the driver's."""
    name = re.match(r"\s*Package: (\S+)", stanza)
    if not name or not DRIVER_PACKAGE.match(name.group(1)):
        return stanza
    return re.sub(r"^Status: hold ", "Status: install ", stanza, flags=re.MULTILINE)


def unmet(text):
    """Return why apt finds no solution: the unmet dependencies, and its errors."""
    lines = [line.strip() for line in text.splitlines()]
    needs = [line for line in lines if re.search(r" : (Depends|PreDepends|Conflicts|Breaks)", line)]
    return "; ".join([*needs[:4], complaints(text)]).rstrip(".")
