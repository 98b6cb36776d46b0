# Apache-2.0, see LICENSE
"""The states of a driver of Debian's packages: present, previous, absent.

`AptDriver` is what the module gpu_driver_packages carries out. The layers below it, each a file:
driver_packages (what is installed), driver_selection (what apt would install, refusals),
driver_transaction (changes), driver_files and driver_rules (pure functions).
"""

from __future__ import annotations

import os

from ansible_collections.gpufleet.gpu.plugins.module_utils.apt import upstream, wait_for_locks
from ansible_collections.gpufleet.gpu.plugins.module_utils.driver_files import PINS, UNATTENDED
from ansible_collections.gpufleet.gpu.plugins.module_utils.driver_rules import (
    DEBIAN_HEADERS,
    refuse_harm,
    refuse_without_headers,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.driver_transaction import (
    DriverTransaction,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.host import Host
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.sections.kernel import (
    installed_kernels,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import remove_tree


class AptDriver(DriverTransaction):
    """One method per state of the module; with ``check`` it changes nothing."""

    def present(self, check):
        """Install the declared driver; returns its version, None where check mode cannot know."""
        self.apt.prefer("")
        if not check:
            wait_for_locks(self.params["patience_s"])
            self.finish_unfinished()
            self.refresh()
        elif not self.listed():
            return None  # check mode must not fetch any lists
        rows = self.apt.query()
        arguments = self.install_arguments(rows)
        installs = self.select(arguments)
        if installs:
            self.check_space()
        main = self.params["packages"][0]
        version = upstream((installs.get(main) or rows[main])["version"])
        refuse_without_headers(
            installed_kernels(Host({})), self.missing_headers(rows), version, DEBIAN_HEADERS
        )
        if not check:
            self.install(arguments, installs, dict(self.target(), version=version))
        return version

    def previous(self, check):
        """Roll back to the previous driver of the receipt; returns its version."""
        former = self.former()
        self.params.update(
            branch=former["branch"], packages=former["requested"], helpers=[], label=""
        )
        self.apt.prefer("")
        if not check:
            wait_for_locks(self.params["patience_s"])
            self.finish_unfinished()
        files, wanted = self.stored_files(former["packages"]), former["packages"]
        arguments = [files.get(name, "{}={}".format(name, wanted[name])) for name in sorted(wanted)]
        arguments += self.missing_headers(self.apt.query())
        installs = self.validated(arguments)
        if not check:
            self.install(arguments, installs, former)
        return former["version"]

    def absent(self, check):
        """Remove every package that gpufleet installed; returns None: no version is installed."""
        self.apt.prefer("")
        packages, journal = self.installed(), self.installation.journal or {}
        ours = set(packages) & set((self.receipt or {}).get("packages", packages))
        ours -= set() if self.receipt else set(journal.get("before", {}))
        if not check:
            wait_for_locks(self.params["patience_s"])
            self.finish_unfinished()
        if ours:
            refuse_harm(*self.apt.simulate("purge", *sorted(ours)))
        self.after = {name: version for name, version in packages.items() if name not in ours}
        if check:
            return
        self.installation.begin_removal()
        self.purge(ours)
        dependencies = set((self.receipt or {}).get("brought", [])) & set(self.apt.query())
        self.mark_auto(dependencies)
        self.purge(self.unneeded() & dependencies)
        # apt never counts the newest kernel's headers as unneeded.
        headers = [
            n for n in self.apt.query() if n in dependencies and n.startswith("linux-headers-")
        ]
        if headers and dependencies.issuperset(self.apt.simulate("purge", *headers)[1]):
            self.purge(set(headers))
        for path in (PINS, UNATTENDED, os.path.join(self.state_dir, "driver")):
            remove_tree(path)
        self.installation.finish_removal()


def final_flavour(driver, state):
    """Return the kind of kernel modules after this run: open, proprietary, or None."""
    receipt = driver.receipt or {}
    if state == "previous":
        receipt = receipt.get("previous") or {}
    return driver.params["flavour"] if state == "present" else receipt.get("module")


def reasons(driver, state):
    """Return one message per reason to act; an empty list where nothing has to change."""
    if state == "present":
        return driver.differences(driver.rows())
    if state == "previous":
        return ["a rollback to the previous driver is requested"]
    known = driver.receipt or driver.installation.journal or {"source": "runfile"}
    # gpu_driver_runfile removes what a runfile installed.
    if known.get("source") == "runfile":
        return []
    return ["a driver that gpufleet installed is present"]
