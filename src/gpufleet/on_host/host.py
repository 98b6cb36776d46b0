"""The host that is probed: the configuration, and its files below a root."""

import errno
import glob
import os
import re
import stat

from .text import read_bounded

SCHEMA = 1
DEFAULTS = {
    "host": None,
    "mode": "facts",
    "prefix": "/usr/local",
    "stack_root": "/opt/gpufleet/stacks",
    "state_dir": "/var/lib/gpufleet",
    "tmpdir": "/tmp",
    "root": "/",
    "expect_gpus": None,
    "matmul": None,
    "deadline_s": 120,
    "deep": False,
    "contents": False,
    "pythons": [],
    "mig": False,
    # How much memory of a GPU a product may use beside other jobs; how long --deep loads a GPU.
    "budget_mib": 1024,
    "sustained_s": 120,
    # How many toolkits are declared, and what a deep probe reserves for the newest one's load and
    # for all of them, which the schedule decides.
    "toolkits": 0,
    "reserved": {"load_s": 0, "toolkits_s": 0},
    # The directory whose disk is loaded together with the GPUs; whether all links are.
    "disk_load": None,
    "fabric_load": False,
    # {"engine": "docker" | "podman", "image": NAME | None}, where containers are declared.
    "containers": None,
    # {"days", "seconds", "components": states}, where a share of all contents is read each night.
    "scrub": None,
    # {venv: {"native": capabilities that it has machine code for, "seconds": what it has to compile
    # the rest}}, and the cards' own capabilities, once the driver was asked.
    "compiles": {},
    "capabilities": None,
    # {venv: framework} of the declared stacks.
    "frameworks": {},
    # The account that must be able to open the cards; an ordinary one where none is named.
    "service_user": None,
    # A word of the control machine's, to be answered by `challenge`.
    "challenge": None,
}
# The seconds that a section without a framework may take. A healthy one needs milliseconds.
SECTION_DEADLINE_S = 20
# The part of a section's time that its inner processes have.
INNER_SHARE = 0.8


class Host:
    """The host to probe: its configuration, and its files below `root` (a tree in tests)."""

    def __init__(self, config, deadline_s=SECTION_DEADLINE_S):
        self.config = dict(DEFAULTS, **{k: v for k, v in config.items() if v is not None})
        self.root = self.config["root"]
        self.real = os.path.realpath(self.root) == "/"
        # Parts that root may see and this account may not: [{"what", "because"}].
        self.unseen = []
        # Inner processes end before the section does, so that none is left behind.
        self.inner_s = deadline_s * INNER_SHARE

    def __getitem__(self, key):
        return self.config[key]

    def miss(self, what, because="this account cannot read it"):
        if {"what": what, "because": because} not in self.unseen:
            self.unseen.append({"what": what, "because": because})

    def path(self, name):
        return name if self.real else self.root.rstrip("/") + name

    def name(self, path):
        """The reverse: a path as the host itself calls it."""
        if self.real or not path.startswith(self.root.rstrip("/") + "/"):
            return path
        return path[len(self.root.rstrip("/")) :]

    def realpath(self, name):
        """Follow links as the host would, absolute ones included, below `root`."""
        path, budget = self.path(os.path.normpath(name)), 40
        if self.real:
            return os.path.realpath(path)
        parts, done = [p for p in os.path.normpath(name).split("/") if p], ""
        while parts:
            part = parts.pop(0)
            if part == "..":
                done = os.path.dirname(done).rstrip("/")
                continue
            current = self.path(done + "/" + part)
            if os.path.islink(current) and budget:
                budget -= 1
                target = os.readlink(current)
                parts = [p for p in target.split("/") if p and p != "."] + parts
                done = "" if target.startswith("/") else done
            else:
                done += "/" + part
        return done or "/"

    def exists(self, name):
        try:
            os.stat(self.path(self.realpath(name)))
        except PermissionError:
            self.miss(name)
            return False
        except (OSError, ValueError):
            return False
        return True

    def glob(self, pattern):
        # A directory that may not be listed looks like an empty one.
        directory = os.path.dirname(re.split(r"[*?[]", pattern)[0])
        path = self.path(directory)
        if os.path.isdir(path) and not os.access(path, os.R_OK | os.X_OK):
            self.miss(directory, "this account cannot list it")
        return sorted(self.name(p) for p in glob.glob(self.path(pattern)))

    def text(self, name):
        self.refuse_foreign_links(name)
        return read_bounded(self.path(name))

    def refuse_foreign_links(self, name):
        """Raise PermissionError where another account's link leads root to what is not its own."""
        if os.geteuid() or name.startswith(("/proc/", "/sys/")):
            return
        path, owners = "", set()
        # The target of root's own link is judged as a path of its own.
        for part in self.path(name).split("/")[1:]:
            path += "/" + part
            try:
                info = os.lstat(path)
            except OSError:
                return
            if stat.S_ISLNK(info.st_mode) and info.st_uid:
                owners.add(info.st_uid)
        if owners and {os.stat(path).st_uid} != owners:
            raise PermissionError(errno.EACCES, "a link of another account leads there", name)

    def text_or_none(self, name):
        try:
            return self.text(name)
        # The last is what a process that ends meanwhile leaves of its files in /proc.
        except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
            return None
