# Apache-2.0, see LICENSE
"""Install and remove the packages of a driver, and restore what was installed if that fails.

Changes packages, apt's marks and our small files, the receipt of the driver, and the packages that
are kept below the state directory.
"""

from __future__ import annotations

import glob
import os
import shutil

from ansible_collections.gpufleet.gpu.plugins.module_utils import pending
from ansible_collections.gpufleet.gpu.plugins.module_utils.apt import complaints
from ansible_collections.gpufleet.gpu.plugins.module_utils.dkms import end_of_log
from ansible_collections.gpufleet.gpu.plugins.module_utils.driver_files import (
    PINS,
    UNATTENDED,
    differs,
    host_files,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.driver_rules import (
    other_firmware,
    refuse_harm,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.driver_selection import DriverSelection
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.addresses import public_addresses
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.manifest import manifest_of
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.sections.packages import (
    DRIVER_PACKAGE,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    StateError,
    make_folder,
    remove_tree,
    write_atomically,
)


class DriverTransaction(DriverSelection):
    """One change of the driver's packages, with its journal and receipt."""

    held_files = (PINS, UNATTENDED)

    def store_dir(self, version):
        """Return the directory that keeps the packages of a version."""
        return os.path.join(self.state_dir, "driver", version)

    def install(self, arguments, installs, target):
        """Download, install, remove the old driver, hold; restore the old packages on failure.

        `arguments`: what apt-get installs. `installs`: the simulation's result. `target`: fields of
        the receipt, `version` included.
        """
        self.installation.version = target["version"]
        before = self.installed()
        fresh = not before and not self.receipt
        self.installation.begin(fresh=fresh, before=before, source=target["source"])
        # The journal of a killed run has the packages from before that run.
        before = self.installation.journal.get("before", before)
        marker = pending.read(self.state_dir)
        try:
            # Each by name: apt replaces or removes a held package only where it is an argument.
            ours = [name for name in installs if DRIVER_PACKAGE.match(name)]
            local = any(os.path.isabs(argument) for argument in arguments)
            arguments = arguments + (
                [] if local else ["{}={}".format(n, installs[n]["version"]) for n in ours]
            )
            arguments = arguments + ["{}-".format(name) for name in self.held(self.giving_way)]
            self.fetch(arguments, target["version"])
            if ours:
                pending.require(
                    "driver {} is being installed".format(target["version"]), self.state_dir
                )
            status, text = self.get_from_store("install", target["version"], *arguments)
            if status:
                raise StateError(failure_reason(text))
            self.mark_auto(set(ours) - set(target["requested"]))
            self.purge(self.obsolete(self.installed()))
            self.purge(self.unneeded_firmware(target["version"]))
            self.require_complete()
        except StateError as error:
            outcome = self.restore(before, marker)
            self.hold()
            raise StateError(
                "The driver {} could not be installed: {} {}{}".format(
                    target["version"], error, outcome, self.note
                )
            ) from None
        packages = self.hold()
        self.store_packages(packages, target["version"])
        self.installation.finish(packages=packages, **self.receipt_fields(target, installs))
        self.prune_store()

    def held(self, names):
        """Return those of these packages that are held."""
        rows = self.rows()
        return sorted(name for name in names if rows.get(name, {}).get("held"))

    def get_from_store(self, verb, version, *arguments):
        """Run apt-get with a version's store as its archive directory."""
        return self.apt.get("-oDir::Cache::archives=" + self.store_dir(version), verb, *arguments)

    def fetch(self, arguments, version):
        """Download every package before the first is unpacked."""
        make_folder(self.store_dir(version))
        status, text = self.get_from_store("install", version, "--download-only", *arguments)
        if status:
            raise StateError("a package could not be downloaded: {}.".format(complaints(text)))

    def mark_auto(self, names):
        """Mark packages as installed automatically."""
        if names:
            self.apt.run("apt-mark", "auto", *sorted(names))

    def unneeded_firmware(self, version):
        """Return the packages with another version's firmware that no other package needs."""
        names = other_firmware(self.installed(), version)
        alone = names and set(names).issuperset(self.apt.simulate("purge", *names)[1])
        return names if alone else []

    def unneeded(self):
        """Return the packages that were installed automatically and that nothing depends on."""
        settings = [
            "-oAPT::AutoRemove::{}Important=false".format(w) for w in ("Recommends", "Suggests")
        ]
        return set(self.apt.simulate("autoremove", *settings)[1])

    def purge(self, names):
        """Purge packages; raises where apt would remove others with them."""
        if not names:
            return
        refuse_harm(*self.apt.simulate("purge", *sorted(names)), removable=names)
        status, text = self.apt.get("purge", *sorted(names))
        if status:
            raise StateError(
                "{} could not be removed: {}".format(", ".join(sorted(names)), failure_reason(text))
            )

    def require_complete(self):
        """Raise where a package of the driver is not fully installed."""
        off = [n for n in self.unfinished() if DRIVER_PACKAGE.match(n)]
        if off:
            raise StateError("dpkg did not finish installing {}.".format(", ".join(off)))

    def restore(self, before, marker):
        """Restore the packages from before, {name: version}, and the marker of a pending restart.

        Returns the outcome as a sentence.
        """
        packages, unfinished = self.installed(), self.unfinished()
        files = self.stored_files(before)
        added = sorted(name for name in packages if name not in before)
        lost = sorted(n for n in before if packages.get(n) != before[n] or n in unfinished)
        status, text = 0, ""
        if added:
            status, text = self.apt.run("dpkg", "--purge", "--force-remove-reinstreq", *added)
        if lost and all(name in files for name in lost):
            # With dpkg: apt does not reinstall a half-installed package from a file.
            archives = [files[name] for name in lost]
            status, text = self.apt.run("dpkg", "--install", "--force-confold", *archives)
        elif lost:
            wanted = ["{}={}".format(name, before[name]) for name in lost]
            status, text = self.apt.get("install", "--reinstall", *wanted)
        if status or [n for n in self.unfinished() if DRIVER_PACKAGE.match(n)]:
            return (
                "The former packages could not be restored either: {}. Repair dpkg on the host "
                "(dpkg --configure -a), and run again.".format(complaints(text))
            )
        # The receipt, if any, is valid again, and the failed driver needs no restart.
        remove_tree(self.installation.journal_file)
        pending.write(marker, self.state_dir)
        if before:
            return "{} was restored, and works as before.".format(
                (self.receipt or {}).get("version") or "The former driver"
            )
        return "Its packages were removed again."

    def stored_files(self, packages):
        """Return {name: file} of the packages, {name: version}, that are kept on this host."""
        found = {}
        for path in glob.glob(os.path.join(self.state_dir, "driver", "*", "*.deb")):
            name, version, _ = os.path.basename(path).split("_")
            if packages.get(name) == version.replace("%3a", ":"):
                found[name] = path
        return found

    def hold(self):
        """Hold, pin and exclude the installed packages; returns them, {name: version}."""
        packages = self.installed()
        if packages:
            self.apt.run("apt-mark", "hold", *sorted(packages))
        for path, text in host_files(packages).items():
            if text and differs(path, text):
                write_atomically(path, text)
            elif not text:
                remove_tree(path)
        return packages

    def store_packages(self, packages, version):
        """Keep a version's packages in its store, and no other files there."""
        folder, stored = self.store_dir(version), self.stored_files(packages)
        make_folder(folder)
        missing = [name for name in sorted(packages) if name not in stored]
        for name in missing:
            package = "{}={}".format(name, packages[name])
            status, _, err = self.module.run_command(
                ["apt-get", "--quiet", "download", package], cwd=folder
            )
            if status:
                self.module.warn(
                    "{} could not be kept for a rollback: {}".format(
                        package, public_addresses(complaints(err))
                    )
                )
        self.keep_only(packages, folder)

    def keep_only(self, packages, folder):
        """Have a store hold these packages, and no other files."""
        ours = set(self.stored_files(packages).values())
        for path in glob.glob(os.path.join(folder, "*")):
            if path not in ours:
                remove_tree(path)
        # A package whose version did not change may be in the store of the previous version.
        for path in ours:
            if os.path.dirname(path) != folder:
                shutil.copy2(path, folder)

    def target(self):
        """Return the receipt's fields for the declared driver, its version apart."""
        return {
            "source": self.params["source"],
            "branch": self.params["branch"],
            "module": self.params["flavour"],
            "requested": self.params["packages"] + self.params["helpers"],
        }

    def former(self):
        """Return the previous driver of the receipt; raises where there is none."""
        former = (self.receipt or {}).get("previous")
        if not self.receipt:
            raise StateError("gpufleet installed no driver on this host: none can be rolled back.")
        if not former:
            raise StateError(
                "There is no previous driver to roll back to: {} is the first that gpufleet "
                "installed here.".format(self.receipt["version"])
            )
        return former

    def receipt_fields(self, target, installs):
        """Return the receipt's fields beside the packages."""
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
            "manifest": manifest_of("/", [os.path.relpath(path, "/") for path in self.held_files]),
            # Dependencies that were installed with it: compiler tools and headers.
            "brought": sorted(brought | set((receipt or {}).get("brought", []))),
            "branch": target["branch"],
            "module": target["module"],
            "requested": target["requested"],
            "repository": self.params["repository"],
            "previous": previous,
        }

    def prune_store(self):
        """Remove every store but those of the installed and the previous version."""
        receipt = self.installation.receipt
        versions = {receipt["version"], (receipt["previous"] or {}).get("version")}
        for path in glob.glob(os.path.join(self.state_dir, "driver", "*")):
            if os.path.basename(path) not in versions:
                remove_tree(path)


def failure_reason(text):
    """Return why an installation failed: apt's errors, and the end of the module build's log."""
    return "{} {}".format(complaints(text), end_of_log(text)).strip()
