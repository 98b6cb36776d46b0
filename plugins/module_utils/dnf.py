# Apache-2.0, see LICENSE
"""Run dnf and rpm, and parse their output.

Only the commands, no Python bindings: those exist for the distribution's own Python alone, which on
RHEL 8 is too old for Ansible. One transaction is one `Dnf`: all its calls share a copy of dnf's
plugin settings in which no package of the driver is locked, so that the host's own locks stay in
force until the transaction has succeeded.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import time

from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.dnf import LOCKS
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.sections.packages import (
    DRIVER_PACKAGE,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    StateError,
    make_folder,
    remove_tree,
)

PLUGINS = "/etc/dnf/plugins"
# dnf's status where another process holds its lock, with exit_on_lock.
LOCKED = 200

_SECTION = re.compile(
    r"^(Installing|Upgrading|Downgrading|Reinstalling|Removing)"
    r"( dependencies| weak dependencies| dependent packages| unused dependencies| group.*)?:$"
)
_ARCH = {"x86_64", "noarch", "i686", "aarch64", "ppc64le"}
_LOCKED_NAME = re.compile(r"^!?(.+)-(?:\d+:)?[\d*][^-]*-[^-]+$")


def parse_transaction(text):
    """Parse dnf's table of a transaction: ({name: {"version", "repo"}} to install, [removed])."""
    installs, removes, section, words = {}, [], None, []

    def close():
        rows = [i for i, word in enumerate(words) if word in _ARCH and i]
        for i in rows:
            name = words[i - 1]
            if section == "Removing":
                removes.append(name)
            elif i + 2 < len(words):
                installs[name] = {"version": words[i + 1], "repo": words[i + 2]}

    for line in text.splitlines():
        found = _SECTION.match(line.strip())
        # A long name has a line of its own; "replacing" tells what an obsoleting package removes.
        if found or not line.startswith(" "):
            close()
            section, words = found.group(1) if found else None, []
        elif section and line.split()[:1] == ["replacing"]:
            removes.append(line.split()[1].rpartition(".")[0])
        elif section:
            words += line.split()
    close()
    return installs, removes


def problems(text):
    """Return dnf's reasons why it finds no solution; its last lines where it tells none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reasons = [line for line in lines if re.match(r"- |Problem|Error: (?!$)|No match|Unable", line)]
    wordless = ("- conflicting requests",)
    return "; ".join(
        [line.lstrip("- ") for line in reasons if line not in wordless][:6] or lines[-3:]
    )


def locked_name(line):
    """Return the name of the package that a line of the list of version locks is about."""
    found = _LOCKED_NAME.match(line.strip())
    return found.group(1) if found else line.strip()


def is_driver_lock(line):
    """Return whether a line of the list of version locks is about a package of the driver."""
    return bool(line.strip()) and line[:1] != "#" and bool(DRIVER_PACKAGE.match(locked_name(line)))


def read_locks():
    """Return the lines of the list of version locks."""
    if not os.path.exists(LOCKS):
        return []
    with open(LOCKS, errors="surrogateescape") as stream:
        return stream.read().splitlines()


class Dnf:
    """dnf and rpm on this host, for one transaction with plugin settings of its own."""

    def __init__(self, module, patience_s):
        self.module, self.patience_s = module, patience_s
        self.folder = os.path.join(module.tmpdir, "dnf-plugins")
        self.environment = {"LC_ALL": "C.UTF-8", "LANGUAGE": "C"}

    def run(self, *command):
        """Run a command; returns (status, output)."""
        status, out, err = self.module.run_command(
            list(command), environ_update=self.environment, errors="surrogate_then_replace"
        )
        return status, out + err

    def unlock(self):
        """Write the plugin settings of the transaction, without the driver's locks."""
        remove_tree(self.folder)
        make_folder(self.folder)
        for path in glob.glob(os.path.join(PLUGINS, "*.conf")):
            shutil.copy(path, self.folder)
        own = os.path.join(self.folder, "versionlock.list")
        with open(own, "w", errors="surrogateescape") as stream:
            stream.write("".join(x + "\n" for x in read_locks() if not is_driver_lock(x)))
        conf = os.path.join(self.folder, "versionlock.conf")
        if os.path.exists(conf):
            with open(conf) as stream:
                text = stream.read()
            with open(conf, "w") as stream:
                stream.write(re.sub(r"(?m)^\s*locklist\s*=.*$", "locklist = " + own, text))

    def dnf(self, *arguments):
        """Run dnf with the options of the transaction; returns (status, output)."""
        deadline = time.monotonic() + self.patience_s
        while True:
            status, text = self.run(
                "dnf",
                "--setopt=pluginconfpath=" + self.folder,
                "--setopt=exit_on_lock=True",
                "--setopt=install_weak_deps=False",
                "--setopt=keepcache=True",
                *arguments,
            )
            if status != LOCKED:
                return status, text
            if time.monotonic() > deadline:
                raise StateError(
                    "dnf has been locked for more than {} s ({}). Wait until the other process "
                    "ends, or stop it, and run again.".format(self.patience_s, problems(text))
                )
            # dnf's lock has no timeout: poll.
            time.sleep(0.5)

    def simulate(self, verb, *arguments):
        """Return (installs, removes) of a transaction that is not run; raises `StateError` where
        dnf finds no solution."""
        status, text = self.dnf("--assumeno", verb, *arguments)
        # It also ends with 1 where it only was not allowed to go on.
        if status and "Operation aborted" not in text:
            raise StateError("dnf finds no solution: {}.".format(problems(text).rstrip(".")))
        return parse_transaction(text)

    def available(self, *names, options=()):
        """Return [(name, "epoch:version-release")] of the packages that repositories have."""
        form = "%{name}|%{epoch}:%{version}-%{release}\\n"
        status, text = self.dnf(
            *("--quiet", *options, "repoquery", "--available", "--showduplicates", "--qf", form),
            *names,
        )
        if status:
            raise StateError("dnf cannot read its repositories: {}.".format(problems(text)))
        rows = [line.split("|") for line in text.splitlines() if line.count("|") == 1]
        return sorted({(name, version) for name, version in rows})

    def installed(self):
        """Return [(name, epoch:version-release, architecture)] of rpm's database."""
        form = "%{NAME}|%{EPOCHNUM}:%{VERSION}-%{RELEASE}|%{ARCH}\\n"
        status, text = self.run("rpm", "-qa", "--qf", form)
        if status:
            raise StateError("rpm cannot read its database: {}".format(text.strip()))
        return sorted(tuple(line.split("|")) for line in text.splitlines() if line.count("|") == 2)
