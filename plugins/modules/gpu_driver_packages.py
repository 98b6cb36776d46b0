#!/usr/bin/python
# Apache-2.0, see LICENSE
"""Install, hold, roll back or remove the packages of a driver, in one transaction."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_driver_packages
short_description: Install the packages of a driver, and hold them
description:
  - On Debian and its family. Installs the packages, with the headers of every installed kernel, and
    holds and pins exactly what stands then. They are excluded from unattended upgrades as well.
  - The transaction is simulated first, and refused if it would install, change or remove a kernel,
    remove what is not of the driver, bring another branch, or mix two repositories.
  - When the installation fails, what stood before is restored. A run that was killed is finished by
    the next one.
  - The packages of the installed and of the previous version are kept under
    C(/var/lib/gpufleet/driver), so that going back needs no repository.
options:
  state:
    description: V(previous) goes back to what was installed before, V(absent) removes it all.
    type: str
    choices: [present, previous, absent]
    default: present
  packages:
    description: Packages of the driver's own version. The first one brings the kernel modules.
    type: list
    elements: str
    default: []
  helpers:
    description: Packages beside them that have versions of their own.
    type: list
    elements: str
    default: []
  branch:
    description: The branch that they must be of, such as V(535).
    type: str
  version:
    description: The exact version that they must be of; without it, what the repository has.
    type: str
  flavour:
    description: Whether the kernel modules are the open or the proprietary ones.
    type: str
    choices: [open, proprietary]
  source:
    description: Where they come from, for the receipt.
    type: str
  repository:
    description: What else the receipt is to say of the repository.
    type: dict
  pin:
    description: The repository that wins over all others, as in apt's preferences.
    type: str
  label:
    description: How the labels of that repository begin. A package of the driver from any other is
      refused. Empty takes any.
    type: str
    default: ""
  space_mib:
    description: How much must be free before anything is installed, in MiB, by directory.
    type: dict
    default: {}
  patience_s:
    description: How long to wait for another package manager, in seconds.
    type: int
    default: 300
  state_dir:
    description: Where receipts, journal and packages are kept.
    type: path
    default: /var/lib/gpufleet
attributes:
  check_mode: {support: full}
  diff_mode: {support: full}
author: [The gpufleet developers]
"""

EXAMPLES = r"""
- name: Install branch 535
  gpufleet.gpu.gpu_driver_packages:
    packages: [nvidia-kernel-dkms, libcuda1, nvidia-smi]
    helpers: [nvidia-persistenced]
    branch: "535"
    flavour: proprietary
    source: distro
    pin: release o=Debian
    label: Debian

- name: Go back to the version before
  gpufleet.gpu.gpu_driver_packages:
    state: previous
"""

RETURN = r"""
version:
  description: The version that is installed then; null where none is, or in check mode is unknown.
  type: str
  returned: success
flavour:
  description: The kind of its kernel modules; null where there is no version.
  type: str
  returned: success
because:
  description: What was not as it should be.
  type: list
  elements: str
  returned: success
"""

import contextlib
import glob
import os
import re
import shutil

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.gpu.plugins.module_utils import pending
from ansible_collections.gpufleet.gpu.plugins.module_utils.apt import (
    Apt,
    complaints,
    unsigned,
    upstream,
    wait_for_locks,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.dkms import end_of_log, free_mib, nearest
from ansible_collections.gpufleet.gpu.plugins.module_utils.probe import (
    DRIVER_PACKAGE,
    Host,
    compare_manifest,
    installed_kernels,
    manifest_of,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    Installation,
    StateError,
    host_lock,
    make_folder,
    remove_tree,
    write_atomically,
)

PINS = "/etc/apt/preferences.d/gpufleet-driver"
UNATTENDED = "/etc/apt/apt.conf.d/52gpufleet-driver"

# Packages that no installation of a driver may touch, and those that only exist for one.
KERNEL = re.compile(r"linux-(image|modules)-(?!nvidia)")
KERNEL_META = re.compile(r"linux-image-(?!.*(?:unsigned|dbg))(\D\S*)$")
# Debian's choice between several drivers, which depends on parts of this one.
CHOICE = re.compile(r"glx-(alternative|diversions)|update-glx$")
# The driver's tools with versions of their own, or with the version of a firmware in the name.
OWN_VERSION = re.compile(r"nvidia-(modprobe|persistenced|settings|xconfig|firmware-.*)")


def pins(packages):
    """The preferences that keep packages at their versions: {name: version}."""
    text = "# Written by gpufleet: the driver's packages stay at what was proven together.\n"
    for version in sorted(set(packages.values())):
        names = " ".join(sorted(name for name in packages if packages[name] == version))
        text += "\nPackage: {}\nPin: version {}\nPin-Priority: 1001\n".format(names, version)
    return text


def exclusions(packages):
    """What keeps unattended upgrades away from packages."""
    names = [re.sub(r"([.+])", r"\\\1", name) for name in sorted(packages)]
    lines = "".join('    "^{}$";\n'.format(name) for name in names)
    return (
        "// Written by gpufleet: a driver that changes at night fails in the morning.\n"
        "Unattended-Upgrade::Package-Blacklist {\n" + lines + "};\n"
    )


def transaction_pins(pin, version):
    """The preferences of a transaction: the declared version, then the declared repository."""
    ours = "Package: *nvidia* libcuda* libnv* cuda-drivers* cuda-compat*\n"
    texts = ["{}Pin: {}\nPin-Priority: 1001\n".format(ours, pin)] if pin else []
    if version:
        texts.insert(0, "{}Pin: version {}*\nPin-Priority: 1002\n".format(ours, version))
    return "\n".join(texts)


def branch_of(version):
    """535 of 535.261.03-1."""
    return upstream(version).partition(".")[0]


def other_branch(packages, branch):
    """Those of the packages that are of a driver of another branch: {name: version}."""
    number = re.compile(r"(?!{}\.)\d{{3}}\.".format(branch))
    return [
        name
        for name, version in sorted(packages.items())
        if number.match(upstream(version)) and not OWN_VERSION.match(name)
    ]


def read(path):
    """A file's text; empty where there is none."""
    if not os.path.isfile(path):
        return ""
    with open(path) as stream:
        return stream.read()


def differs(path, text):
    """Whether a small file of ours is not as we write it; empty stands for none."""
    return read(path) != text or (bool(text) and os.stat(path).st_mode & 0o777 != 0o644)


class OtherBranchError(StateError):
    """The repository's own choice is of another branch than the declared one."""


class Driver:
    """The driver's packages on this host: as they are, and as they are to be."""

    def __init__(self, module):
        self.module, self.params = module, module.params
        self.state_dir = self.params["state_dir"]
        self.apt = Apt(module, PINS, self.params["patience_s"])
        self.installation = Installation("driver", "driver", "/", None, self.state_dir)
        self.receipt = self.installation.receipt
        self.note = ""  # what apt complained about while it refreshed its lists
        self.after = self.there()  # {name: version} once this is done, or would be

    # --- Looking ----------------------------------------------------------------------------------

    def there(self, rows=None):
        """{name: version} of the driver's packages on this host, in whatever state."""
        rows = self.apt.query() if rows is None else rows
        return {name: row["version"] for name, row in rows.items() if DRIVER_PACKAGE.match(name)}

    def headers(self, rows):
        """Packages with the headers of the installed kernels, and of those that will follow."""
        kernels = [
            row for row in installed_kernels(Host({})) if row["image"] and not row["headers"]
        ]
        wanted = ["linux-headers-" + row["version"] for row in kernels]
        metas = [KERNEL_META.match(name) for name in rows if rows[name]["status"] == "installed"]
        wanted += ["linux-headers-" + found.group(1) for found in metas if found]
        absent = [name for name in wanted if rows.get(name, {}).get("status") != "installed"]
        # What no repository has any more is told where the modules are built.
        return [name for name in sorted(set(absent)) if self.offered(name)]

    def offered(self, name):
        """Whether apt knows a version of a package that it could install."""
        said = self.apt.run("apt-cache", "policy", name)[1]
        return "Candidate:" in said and "Candidate: (none)" not in said

    def lacking(self, rows):
        """What is not as it should be, in words."""
        off, receipt = [], self.receipt
        if self.installation.half_done:
            off.append("an earlier run was stopped half-way")
        if receipt is None:
            return [*off, "no driver was installed by gpufleet"]
        for name, key in (("branch", "branch"), ("module", "flavour"), ("source", "source")):
            if receipt.get(name) != self.params[key]:
                off.append(
                    "{} {} is installed, {} is declared".format(
                        name, receipt.get(name), self.params[key]
                    )
                )
        exact = self.params["version"]
        if exact and receipt["version"] != exact:
            off.append("{} is installed, {} is declared".format(receipt["version"], exact))
        for name in self.params["packages"] + self.params["helpers"]:
            if rows.get(name, {}).get("status") != "installed":
                off.append("{} is not installed".format(name))
        for name, version in sorted(receipt["packages"].items()):
            row = rows.get(name, {})
            if row.get("status") != "installed" or row["version"] != version:
                found = "{version} ({status})".format(**row) if row else "missing"
                off.append("{} is {}, not {}".format(name, found, version))
        off += ["{} is not installed".format(name) for name in self.headers(rows)]
        off += [
            "{} of another branch is installed beside it".format(name)
            for name in other_branch(self.there(rows), self.params["branch"])
        ]
        off += [
            "/{path} has changed ({what})".format(**row)
            for row in compare_manifest("/", receipt["manifest"])
        ]
        return off + self.unheld(rows)

    def unheld(self, rows):
        """What is not held, pinned or excluded as it should be, in words."""
        there = self.there(rows)
        off = ["{} is not held".format(name) for name in sorted(there) if not rows[name]["held"]]
        for path, text in self.files(there).items():
            if differs(path, text):
                off.append("{} differs".format(path))
        return off

    def files(self, packages):
        """{path: text} of our small files for packages; without any, no file either."""
        texts = {PINS: pins(packages), UNATTENDED: exclusions(packages)}
        return {path: text if packages else "" for path, text in texts.items()}

    # --- Before -----------------------------------------------------------------------------------

    def settle(self):
        """Finish what dpkg left half-way; raises where a package that is not ours is broken."""
        # A kernel's package stays half-way where the driver's module could not be built for it.
        ours = [n for n in self.pending() if DRIVER_PACKAGE.match(n) or n.startswith("linux-")]
        if ours:
            # What still fails here is dealt with by the transaction, or told by it.
            self.apt.run("dpkg", "--configure", *sorted(ours))
        foreign = sorted(set(self.pending()) - set(ours))
        if foreign:
            raise StateError(
                "The package {} is {}, and is not the driver's: nothing can be installed beside "
                "it. Run 'dpkg --configure -a' and 'apt-get --fix-broken install' on the host, see "
                "what they say, and run again.".format(
                    foreign[0], self.pending()[foreign[0]]["status"]
                )
            )
        if os.listdir("/var/lib/dpkg/updates"):
            self.apt.run("dpkg", "--configure", "-a")

    def pending(self):
        """Packages that dpkg has not brought to an end."""
        return {n: row for n, row in self.apt.query().items() if row["status"] != "installed"}

    def refresh(self):
        """Refresh the package lists; raises where the declared repository's signature fails."""
        status, text = self.apt.get("update")
        repository = self.params["repository"] or {}
        address = repository.get("uri", "").rstrip("/")
        wrong = [line for line in unsigned(text) if address and address in line]
        if wrong:
            raise StateError(
                "The repository {} is not signed by the key in {} ({}). Its owner has exchanged "
                "the key, or somebody else answers in its place: compare the fingerprint with the "
                "owner's own word, then declare it in nvidia_driver_repository. Nothing was "
                "installed from it.".format(address, repository.get("keyring"), wrong[0])
            )
        if status or unsigned(text):
            self.note = " While refreshing its lists apt said: {}".format(
                "; ".join(unsigned(text)) or complaints(text)
            )
            self.module.warn(self.note.strip())

    def listed(self):
        """Whether apt has package lists, those of the declared repository among them."""
        address = (self.params["repository"] or {}).get("uri", "").rstrip("/")
        text = self.apt.run("apt-get", "indextargets", "--format", "$(REPO_URI)")[1]
        known = {re.sub("//[^/@]*@", "//", each).rstrip("/") for each in text.split()}
        return address in known if address else bool(known)

    def words(self, rows):
        """What to install, in apt's words."""
        exact = self.params["version"]
        return [
            *(
                "{}={}".format(n, self.exact_version(n)) if exact else n
                for n in self.params["packages"]
            ),
            *self.params["helpers"],
            *self.headers(rows),
        ]

    def exact_version(self, name):
        """The version of a package that the declared one means; raises where there is none."""
        exact = self.params["version"]
        text = self.apt.run("apt-cache", "madison", name)[1]
        known = [line.split("|")[1].strip() for line in text.splitlines() if line.count("|") == 2]
        fitting = [version for version in known if upstream(version) == exact]
        if not fitting:
            raise StateError(
                "No repository of this host has {} {}; there is: {}. Declare one of these in "
                "gpu_driver, or add the repository that has it.{}".format(
                    name, exact, ", ".join(sorted(set(known))) or "none", self.note
                )
            )
        return fitting[0]

    def judged(self, words):
        """What a simulated installation brings; raises where it would do harm."""
        installs, removes = self.simulated(words)
        there = self.there()
        versions = dict(there, **{name: row["version"] for name, row in installs.items()})
        self.refuse_other_branch(versions, installs)
        going = sorted(set(self.former(there)) - set(installs) - set(removes))
        if going:
            installs, removes = self.simulated([*words, *(name + "-" for name in going)])
        refuse_harm(installs, removes)
        self.refuse_other_repository(installs)
        self.after = {
            name: version
            for name, version in versions.items()
            if DRIVER_PACKAGE.match(name) and name not in removes
        }
        return installs

    def simulated(self, words):
        """What an installation would bring and remove; raises where apt finds no way."""
        try:
            return self.apt.simulate("install", *words)
        except StateError as error:
            raise StateError(
                "The driver's packages cannot be installed; nothing was changed. {} See whether "
                "the repository's lists are whole (on Debian the components contrib and non-free "
                "are needed) and whether others are held back (apt-mark showhold).{}".format(
                    error, self.note
                )
            ) from None

    def refuse_other_branch(self, versions, installs):
        """Raise where a package of another branch than the declared one would come in."""
        coming = {n: versions[n] for n in [*installs, *self.params["packages"]] if n in versions}
        wrong = other_branch(
            {n: v for n, v in coming.items() if DRIVER_PACKAGE.match(n)}, self.params["branch"]
        )
        if wrong:
            raise OtherBranchError(
                "Branch {} is declared, and the repository brings {} {}: it does not have that "
                "branch (any more). Nothing was changed. Declare branch {}, or another source in "
                "gpu_driver.".format(
                    self.params["branch"], wrong[0], coming[wrong[0]], branch_of(coming[wrong[0]])
                )
            )

    def refuse_other_repository(self, installs):
        """Raise where a package of the driver would come from another repository."""
        label = self.params["label"]
        for name, row in sorted(installs.items()):
            known = row["origin"].startswith(label) or row["origin"] == "local-deb"
            if DRIVER_PACKAGE.match(name) and label and not known:
                raise StateError(
                    "Two repositories are in conflict: the driver comes from {}, but {} {} would "
                    "come from {}, and mixed drivers do not load. Nothing was changed. Remove that "
                    "repository, pin it below 0 for the driver's packages, or make it the declared "
                    "source.".format(label, name, row["version"], row["origin"] or "an unnamed one")
                )

    def check_space(self):
        """Raise where a disk has too little space for the packages and the build."""
        need = {}
        for directory, mib in self.params["space_mib"].items():
            place = nearest(directory)
            disk = need.setdefault(os.stat(place).st_dev, [place, 0])
            disk[1] += int(mib)
        for place, mib in need.values():
            free = free_mib(place)
            if free < mib:
                raise StateError(
                    "{} MiB are free at {}, and the driver with its build takes {} MiB there. "
                    "Nothing was changed: make room, and run again.".format(free, place, mib)
                )

    # --- The transaction --------------------------------------------------------------------------

    def store(self, version):
        """Where the packages of a version are kept."""
        return os.path.join(self.state_dir, "driver", version)

    def install(self, words, installs, target):
        """Download, install, take the old driver away, hold; restore what stood if that fails.

        `target`: what the receipt is to say, with its `version`.
        """
        self.installation.version = target["version"]
        before = self.there()
        fresh = not before and not self.receipt
        self.installation.begin(fresh=fresh, before=before, source=target["source"])
        # What a killed run found is the truth about the time before.
        before = self.installation.journal.get("before", before)
        marker = pending.read(self.state_dir)
        try:
            # By name, each of them: apt exchanges nothing that is held without being asked to.
            ours = [name for name in installs if DRIVER_PACKAGE.match(name)]
            local = any(os.path.isabs(word) for word in words)
            words = words + (
                [] if local else ["{}={}".format(n, installs[n]["version"]) for n in ours]
            )
            self.fetch(words, target["version"])
            if ours:
                pending.require(
                    "driver {} is being installed".format(target["version"]), self.state_dir
                )
            status, text = self.get_stored("install", target["version"], *words)
            if status:
                raise StateError(why(text))
            self.mark_auto(set(ours) - set(target["requested"]))
            self.purge(self.former(self.there()))
            self.complete()
        except StateError as error:
            undone = self.restore(before, marker)
            self.hold()
            raise StateError(
                "The driver {} could not be installed: {} {}{}".format(
                    target["version"], error, undone, self.note
                )
            ) from None
        packages = self.hold()
        self.keep(packages, target["version"])
        self.installation.finish(packages=packages, **self.record(target, installs))
        self.forget()

    def get_stored(self, verb, version, *words):
        """apt-get, with packages of a version's own store."""
        return self.apt.get("-oDir::Cache::archives=" + self.store(version), verb, *words)

    def fetch(self, words, version):
        """Have every package that will be installed on the disk before the first is unpacked."""
        make_folder(self.store(version))
        status, text = self.get_stored("install", version, "--download-only", *words)
        if status:
            raise StateError("a package could not be downloaded: {}.".format(complaints(text)))

    def former(self, there):
        """The packages that go once the new ones stand: those of another branch, and those that an
        earlier declaration asked for."""
        asked = set((self.receipt or {}).get("requested", [])) - set(self.params["packages"])
        gone = asked - set(self.params["helpers"])
        gone |= set(other_branch(there, self.params["branch"]))
        return sorted(gone & set(there))

    def mark_auto(self, names):
        """Say that packages are only there for others."""
        if names:
            self.apt.run("apt-mark", "auto", *sorted(names))

    def needless(self):
        """Packages that nothing installed depends on, and that nobody asked for."""
        settings = [
            "-oAPT::AutoRemove::{}Important=false".format(w) for w in ("Recommends", "Suggests")
        ]
        return set(self.apt.simulate("autoremove", *settings)[1])

    def purge(self, names):
        """Purge packages, and nothing else with them."""
        if not names:
            return
        refuse_harm(*self.apt.simulate("purge", *sorted(names)), brought=names)
        status, text = self.apt.get("purge", *sorted(names))
        if status:
            raise StateError(
                "{} could not be removed: {}".format(", ".join(sorted(names)), why(text))
            )

    def complete(self):
        """Raise where a package of the driver is not cleanly installed."""
        off = [n for n in self.pending() if DRIVER_PACKAGE.match(n)]
        if off:
            raise StateError("{} did not come to an end.".format(", ".join(off)))

    def restore(self, before, marker):
        """Bring back what stood before: {name: version}, and the marker of a pending restart.

        Returns what became of it, in words.
        """
        there, pending, files = self.there(), self.pending(), self.stored(before)
        added = sorted(name for name in there if name not in before)
        lost = sorted(n for n in before if there.get(n) != before[n] or n in pending)
        status, text = 0, ""
        if added:
            status, text = self.apt.run("dpkg", "--purge", "--force-remove-reinstreq", *added)
        if lost and all(name in files for name in lost):
            # By dpkg itself, since apt takes no half-installed package from a file.
            kept = [files[name] for name in lost]
            status, text = self.apt.run("dpkg", "--install", "--force-confold", *kept)
        elif lost:
            wanted = ["{}={}".format(name, before[name]) for name in lost]
            status, text = self.apt.get("install", "--reinstall", *wanted)
        if status or [n for n in self.pending() if DRIVER_PACKAGE.match(n)]:
            return (
                "What stood before could not be restored either: {}. Mend that on the host (dpkg "
                "--configure -a), and run again.".format(complaints(text))
            )
        # The receipt, if there is one, is true again, and no restart is needed for what failed.
        remove_tree(self.installation.journal_file)
        pending.write(marker, self.state_dir)
        if before:
            return "{} was restored, and works as before.".format(
                (self.receipt or {}).get("version") or "What stood before"
            )
        return "What had been installed of it was removed again."

    def stored(self, packages):
        """{name: file} of the packages that are kept on this host."""
        found = {}
        for path in glob.glob(os.path.join(self.state_dir, "driver", "*", "*.deb")):
            name, version, _ = os.path.basename(path).split("_")
            if packages.get(name) == version.replace("%3a", ":"):
                found[name] = path
        return found

    # --- After ------------------------------------------------------------------------------------

    def hold(self):
        """Hold, pin and exclude whatever stands; returns it."""
        packages = self.there()
        if packages:
            self.apt.run("apt-mark", "hold", *sorted(packages))
        for path, text in self.files(packages).items():
            if text and differs(path, text):
                write_atomically(path, text)
            elif not text:
                remove_tree(path)
        return packages

    def keep(self, packages, version):
        """Keep the packages of the installed and the previous version, and nothing else."""
        folder, stored = self.store(version), self.stored(packages)
        make_folder(folder)
        missing = [name for name in sorted(packages) if name not in stored]
        for name in missing:
            word = "{}={}".format(name, packages[name])
            status, _, err = self.module.run_command(
                ["apt-get", "--quiet", "download", word], cwd=folder
            )
            if status:
                self.module.warn(
                    "{} could not be kept for going back to it: {}".format(word, complaints(err))
                )
        ours = set(self.stored(packages).values())
        for path in glob.glob(os.path.join(folder, "*")):
            if path not in ours:
                remove_tree(path)
        # A package whose version did not change stays in the store of the version before.
        for path in ours:
            if os.path.dirname(path) != folder:
                shutil.copy2(path, folder)

    def record(self, target, installs):
        """What the receipt says beside the packages."""
        receipt = self.receipt
        previous = (receipt or {}).get("previous")
        if receipt and any(receipt[key] != target[key] for key in ("version", "branch", "module")):
            previous = {
                key: receipt.get(key)
                for key in ("version", "branch", "module", "source", "packages", "requested")
            }
        brought = {
            n for n, row in installs.items() if not row["old"] and not DRIVER_PACKAGE.match(n)
        }
        return {
            "source": target["source"],
            "manifest": manifest_of(
                "/", [os.path.relpath(path, "/") for path in (PINS, UNATTENDED)]
            ),
            # Packages that came along: the compiler's tools, and headers.
            "brought": sorted(brought | set((receipt or {}).get("brought", []))),
            "branch": target["branch"],
            "module": target["module"],
            "requested": target["requested"],
            "repository": self.params["repository"],
            "previous": previous,
        }

    def forget(self):
        """Remove the packages of versions before the previous one, and what was only needed now."""
        receipt = self.installation.receipt
        stays = {receipt["version"], (receipt["previous"] or {}).get("version")}
        for path in glob.glob(os.path.join(self.state_dir, "driver", "*")):
            if os.path.basename(path) not in stays:
                remove_tree(path)

    # --- Whole courses ----------------------------------------------------------------------------

    def target(self):
        """What the declared installation will be called in the receipt, but for its version."""
        return {
            "source": self.params["source"],
            "branch": self.params["branch"],
            "module": self.params["flavour"],
            "requested": self.params["packages"] + self.params["helpers"],
        }

    def present(self, check):
        """Bring what is declared; returns the version."""
        self.apt.prefer("")
        if not check:
            wait_for_locks(self.params["patience_s"])
            self.settle()
            self.refresh()
        elif not self.listed():
            return None  # check mode must not fetch any lists
        rows = self.apt.query()
        words = self.words(rows)
        installs = self.chosen(words)
        if installs:
            self.check_space()
        main = self.params["packages"][0]
        version = upstream((installs.get(main) or rows[main])["version"])
        if not check:
            self.install(words, installs, dict(self.target(), version=version))
        return version

    def chosen(self, words):
        """What to install of the declared repository: its own choice where that is of the declared
        branch, else the newest of the branch."""
        pin, exact = self.params["pin"], self.params["version"]
        self.apt.prefer(transaction_pins(pin, exact))
        try:
            return self.judged(words)
        except OtherBranchError:
            self.apt.prefer(transaction_pins(pin, exact or self.params["branch"] + "."))
            return self.judged(words)

    def previous(self, check):
        """Go back to what the receipt says was there before; returns the version."""
        former = (self.receipt or {}).get("previous")
        if not former:
            raise StateError(
                "There is no former driver to go back to: {} is the first that gpufleet installed "
                "here.".format((self.receipt or {}).get("version", "none"))
            )
        self.params.update(
            branch=former["branch"], packages=former["requested"], helpers=[], label=""
        )
        self.apt.prefer("")
        if not check:
            wait_for_locks(self.params["patience_s"])
            self.settle()
        files, wanted = self.stored(former["packages"]), former["packages"]
        words = [files.get(name, "{}={}".format(name, wanted[name])) for name in sorted(wanted)]
        words += self.headers(self.apt.query())
        installs = self.judged(words)
        if not check:
            self.install(words, installs, former)
        return former["version"]

    def absent(self, check):
        """Remove everything of ours; returns nothing, which is then the version."""
        self.apt.prefer("")
        there, journal = self.there(), self.installation.journal or {}
        ours = set(there) & set((self.receipt or {}).get("packages", there))
        ours -= set() if self.receipt else set(journal.get("before", {}))
        if not check:
            wait_for_locks(self.params["patience_s"])
            self.settle()
        if ours:
            refuse_harm(*self.apt.simulate("purge", *sorted(ours)))
        self.after = {name: version for name, version in there.items() if name not in ours}
        if check:
            return
        self.installation.begin_removal()
        self.purge(ours)
        brought = set((self.receipt or {}).get("brought", [])) & set(self.apt.query())
        self.mark_auto(brought)
        self.purge(self.needless() & brought)
        # apt itself never takes the newest kernel's headers for needless.
        headers = [n for n in self.apt.query() if n in brought and n.startswith("linux-headers-")]
        if headers and brought.issuperset(self.apt.simulate("purge", *headers)[1]):
            self.purge(set(headers))
        for path in (PINS, UNATTENDED, os.path.join(self.state_dir, "driver")):
            remove_tree(path)
        self.installation.finish_removal()
        return


def refuse_harm(installs, removes, brought=()):
    """Raise where a simulation touches a kernel, or removes what is not the driver's."""
    kernels = sorted(name for name in [*installs, *removes] if KERNEL.match(name))
    if kernels:
        raise StateError(
            "This would install, change or remove a kernel ({}), which is not the driver's "
            "business. Nothing was changed: bring it up to date first, and run again.".format(
                ", ".join(kernels)
            )
        )
    ours = [n for n in removes if DRIVER_PACKAGE.match(n) or CHOICE.match(n) or n in brought]
    foreign = sorted(set(removes) - set(ours))
    if foreign:
        raise StateError(
            "This would remove packages that are not the driver's: {}. Nothing was changed: remove "
            "them yourself if nobody needs them, or keep the driver that they go with.".format(
                ", ".join(foreign)
            )
        )


def why(text):
    """Why an installation failed, in words: the build's own complaint where there was one."""
    return "{} {}".format(complaints(text), end_of_log(text)).strip()


def lines(packages, because):
    """A driver's packages for the module's difference, and what is wrong with them."""
    told = ["{} {}".format(name, packages[name]) for name in sorted(packages)]
    return "".join(line + "\n" for line in [*told, *because])


def main():
    texts = ("branch", "version", "source", "pin")
    module = AnsibleModule(
        argument_spec={
            "state": {
                "type": "str",
                "choices": ["present", "previous", "absent"],
                "default": "present",
            },
            "packages": {"type": "list", "elements": "str", "default": []},
            "helpers": {"type": "list", "elements": "str", "default": []},
            **{name: {"type": "str"} for name in texts},
            "flavour": {"type": "str", "choices": ["open", "proprietary"]},
            "label": {"type": "str", "default": ""},
            "repository": {"type": "dict"},
            "space_mib": {"type": "dict", "default": {}},
            "patience_s": {"type": "int", "default": 300},
            "state_dir": {"type": "path", "default": "/var/lib/gpufleet"},
        },
        required_if=[("state", "present", ["packages", "branch", "flavour", "source"])],
        supports_check_mode=True,
    )
    state = module.params["state"]
    if not os.path.exists("/var/lib/dpkg/status"):
        module.fail_json(
            msg="This host has no dpkg: only packages of Debian's family can be handled so. To go "
            "back elsewhere, declare the former version (gpu_driver: {branch: ...}) and provision."
        )
    try:
        driver = Driver(module)
        before = driver.there()
        because = needed(driver, state)
        answer = {"changed": bool(because), "because": because}
        answer["version"] = (driver.receipt or {}).get("version")
        if because:
            lock = contextlib.nullcontext() if module.check_mode else host_lock(driver.state_dir)
            with lock:
                # Another run may have been at it while this one waited for the lock.
                driver = Driver(module)
                answer["version"] = getattr(driver, state)(module.check_mode)
        answer["flavour"] = flavour_then(driver, state)
        after = driver.after if module.check_mode else driver.there()
        answer["diff"] = {"before": lines(before, because), "after": lines(after, [])}
        module.exit_json(**answer)
    except (StateError, OSError) as error:
        module.fail_json(msg=str(error))


def flavour_then(driver, state):
    """Which kind of kernel modules is installed once the work is done, or would be."""
    receipt = driver.receipt or {}
    if state == "previous":
        receipt = receipt.get("previous") or {}
    return driver.params["flavour"] if state == "present" else receipt.get("module")


def needed(driver, state):
    """Why there is something to do, in words; nothing where there is not."""
    if state == "present":
        return driver.lacking(driver.apt.query())
    if state == "previous":
        return ["the former driver is asked for"]
    known = driver.receipt or driver.installation.journal or {"source": "runfile"}
    # What a runfile brought is another module's.
    return ["a driver of ours is installed"] if known.get("source") != "runfile" else []


if __name__ == "__main__":
    main()
