# Apache-2.0, see LICENSE
"""Which packages an installation of a driver takes, found by simulations; refusals included.

Only `finish_unfinished` and `refresh` change the host, before a simulation: they configure packages
that dpkg left unconfigured, remove what a killed `dkms add` left, and refresh apt's lists.
"""

from __future__ import annotations

import os

from ansible_collections.gpufleet.gpu.plugins.module_utils.apt import complaints, unsigned, upstream
from ansible_collections.gpufleet.gpu.plugins.module_utils.dkms import (
    free_mib,
    nearest,
    remove_half_added,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.driver_files import transaction_pins
from ansible_collections.gpufleet.gpu.plugins.module_utils.driver_packages import DriverPackages
from ansible_collections.gpufleet.gpu.plugins.module_utils.driver_rules import (
    OtherBranchError,
    branch_of,
    other_branch,
    refuse_harm,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.sections.packages import (
    DRIVER_PACKAGE,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import StateError


class DriverSelection(DriverPackages):
    """The packages that apt would install for the declared driver, or why that is refused."""

    def finish_unfinished(self):
        """Configure unfinished packages of the driver; raises where another package is broken."""
        remove_half_added()
        # A kernel's package stays unconfigured where the driver's module failed to build for it.
        ours = [n for n in self.unfinished() if DRIVER_PACKAGE.match(n) or n.startswith("linux-")]
        if ours:
            # The transaction repairs or reports what still fails here.
            self.apt.run("dpkg", "--configure", *sorted(ours))
        foreign = sorted(set(self.unfinished()) - set(ours))
        if foreign:
            raise StateError(
                "The package {} is {} and does not belong to the driver: dpkg installs nothing "
                "until it is repaired. Run 'dpkg --configure -a' and 'apt-get --fix-broken "
                "install' on the host, resolve their errors, and run again.".format(
                    foreign[0], self.unfinished()[foreign[0]]["status"]
                )
            )
        if os.listdir("/var/lib/dpkg/updates"):
            self.apt.run("dpkg", "--configure", "-a")

    def refresh(self):
        """Refresh apt's lists; raises where the declared repository's signature is invalid."""
        status, text = self.apt.get("update")
        repository = self.params["repository"] or {}
        address = repository.get("uri", "").rstrip("/")
        wrong = [line for line in unsigned(text) if address and address in line]
        if wrong:
            raise StateError(
                "The repository {} is not signed by the key in {} ({}). Its owner replaced the "
                "key, or another server answers for it: compare the fingerprint with the one that "
                "the owner publishes, then declare it in nvidia_driver_repository. Nothing was "
                "installed from it.".format(address, repository.get("keyring"), wrong[0])
            )
        if status or unsigned(text):
            self.note = " apt reported while refreshing its lists: {}".format(
                "; ".join(unsigned(text)) or complaints(text)
            )
            self.module.warn(self.note.strip())

    def install_arguments(self, rows):
        """Return the packages to install as arguments of apt-get."""
        exact = self.params["version"]
        return [
            *(
                "{}={}".format(n, self.exact_version(n)) if exact else n
                for n in self.params["packages"]
            ),
            *self.params["helpers"],
            *self.missing_headers(rows),
        ]

    def exact_version(self, name):
        """Return the package version of the declared driver version; raises where none exists."""
        exact = self.params["version"]
        text = self.apt.run("apt-cache", "madison", name)[1]
        known = [line.split("|")[1].strip() for line in text.splitlines() if line.count("|") == 2]
        fitting = [version for version in known if upstream(version) == exact]
        if not fitting:
            raise StateError(
                "No repository of this host has {} {}; available: {}. Declare one of these in "
                "gpu_driver, or add a repository that has it.{}".format(
                    name, exact, ", ".join(sorted(set(known))) or "none", self.note
                )
            )
        return fitting[0]

    def validated(self, arguments):
        """Return what apt would install, {name: row}; raises where that would do harm."""
        installs, removes = self.simulated(arguments)
        packages = self.installed()
        versions = dict(packages, **{name: row["version"] for name, row in installs.items()})
        self.refuse_other_branch(versions, installs)
        obsolete = sorted(set(self.obsolete(packages)) - set(installs) - set(removes))
        if obsolete:
            installs, removes = self.simulated([*arguments, *(name + "-" for name in obsolete)])
        refuse_harm(installs, removes)
        self.refuse_other_repository(installs)
        self.giving_way = [n for n in removes if n not in obsolete]
        self.after = {
            name: version
            for name, version in versions.items()
            if DRIVER_PACKAGE.match(name) and name not in removes
        }
        return installs

    def simulated(self, arguments):
        """Return what apt would install and remove; raises where it finds no solution."""
        try:
            return self.apt.simulate("install", *arguments)
        except StateError as error:
            raise StateError(
                "The driver's packages cannot be installed; nothing was changed. {} Check that "
                "the repository's components are enabled (Debian needs contrib and non-free) and "
                "that no other package is held (apt-mark showhold).{}".format(error, self.note)
            ) from None

    def refuse_other_branch(self, versions, installs):
        """Raise where a package of another branch than the declared one would be installed."""
        planned = {n: versions[n] for n in [*installs, *self.params["packages"]] if n in versions}
        wrong = other_branch(
            {n: v for n, v in planned.items() if DRIVER_PACKAGE.match(n)}, self.params["branch"]
        )
        if wrong:
            raise OtherBranchError(
                "Branch {} is declared, but the repository has {} {}: it does not provide the "
                "declared branch. Nothing was changed. Declare branch {}, or another source in "
                "gpu_driver.".format(
                    self.params["branch"], wrong[0], planned[wrong[0]], branch_of(planned[wrong[0]])
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
            path = nearest(directory)
            disk = need.setdefault(os.stat(path).st_dev, [path, 0])
            disk[1] += int(mib)
        for path, mib in need.values():
            free = free_mib(path)
            if free < mib:
                raise StateError(
                    "{} MiB are free at {}; the driver and its build need {} MiB there. "
                    "Nothing was changed: free some space, and run again.".format(free, path, mib)
                )

    def obsolete(self, packages):
        """Return the packages to remove after the installation: those of another branch, and
        those that only an earlier declaration requested."""
        requested = set((self.receipt or {}).get("requested", [])) - set(self.params["packages"])
        names = requested - set(self.params["helpers"])
        names |= set(other_branch(packages, self.params["branch"]))
        return sorted(names & set(packages))

    def select(self, arguments):
        """Return what to install from the declared repository, {name: row}: its default version
        where that is of the declared branch, else the newest of the branch."""
        pin, exact = self.params["pin"], self.params["version"]
        self.apt.prefer(transaction_pins(pin, exact))
        try:
            return self.validated(arguments)
        except OtherBranchError:
            self.apt.prefer(transaction_pins(pin, exact or self.params["branch"] + "."))
            return self.validated(arguments)
