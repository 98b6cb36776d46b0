# Apache-2.0, see LICENSE
"""The states of a driver of NVIDIA's rpm packages: present, previous, absent.

`DnfDriver` is what the module gpu_driver_packages carries out on Red Hat's family. It changes
packages, dnf's list of version locks, the receipt of the driver, and the packages that are kept
below the state directory.
"""

from __future__ import annotations

import glob
import os
import re
import shutil

from ansible_collections.gpufleet.gpu.plugins.module_utils import pending
from ansible_collections.gpufleet.gpu.plugins.module_utils.apt import upstream
from ansible_collections.gpufleet.gpu.plugins.module_utils.dkms import remove_half_added
from ansible_collections.gpufleet.gpu.plugins.module_utils.dnf import (
    Dnf,
    is_driver_lock,
    problems,
    read_locks,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.driver_rules import (
    REDHAT_HEADERS,
    package_of,
    refuse_without_headers,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.driver_transaction import (
    DriverTransaction,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.addresses import public_addresses
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.dnf import (
    LOCKS,
    SWITCHES,
    VERSIONLOCK,
    switched_off,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.host import Host
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.sections.kernel import (
    installed_kernels,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.sections.packages import (
    DRIVER_PACKAGE,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.text import natural
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    StateError,
    make_folder,
    remove_tree,
    write_atomically,
)

# Packages that no installation of a driver may touch; headers are none of them.
KERNEL = re.compile(r"kernel(-(?!.*(devel|headers|tools|abi)).+)?$")
# Drivers of other repositories, which exclude NVIDIA's.
FOREIGN = re.compile(r"(akmod-nvidia|dkms-nvidia|xorg-x11-drv-nvidia|nvidia-x11-drv)")
CACHE = "/var/cache/dnf/*/packages/*.rpm"
EPEL = "https://dl.fedoraproject.org/pub/epel/epel-release-latest-{}.noarch.rpm"


class DnfDriver(DriverTransaction):
    """One method per state of the module; with ``check`` it changes nothing."""

    # The list of version locks is the administrator's as well: its lines are compared one by one.
    held_files = ("/etc/modprobe.d/gpufleet-nouveau.conf",)

    def __init__(self, module):
        self.dnf = Dnf(module, module.params["patience_s"])
        super().__init__(module)

    def rows(self):
        """Return rpm's packages: {name: {"version", "nevr", "status", "held"}}."""
        held = {line.strip() for line in read_locks()}
        return {
            name: {
                "version": version.partition(":")[2],
                "nevr": "{}-{}".format(name, version),
                "status": "installed",
                "held": "{}-{}.*".format(name, version) in held,
            }
            for name, version, _ in self.dnf.installed()
        }

    def installed(self, rows=None):
        """Return {name: version-release} of the driver's packages."""
        rows = self.rows() if rows is None else rows
        return {name: row["version"] for name, row in rows.items() if DRIVER_PACKAGE.match(name)}

    def lacking_headers(self):
        """Return the names and versions of header packages that installed kernels lack."""
        return [
            package_of(row["version"], REDHAT_HEADERS[0])
            for row in installed_kernels(Host({}))
            if row["image"] and not row["headers"] and "rescue" not in row["version"]
        ]

    def missing_headers(self, rows):
        """Return the header packages that installed kernels lack and a repository has."""
        names = self.lacking_headers()
        return among(names, self.dnf.available(*names) if names else [])

    def hold_differences(self, rows):
        """Return one message per package that is not held."""
        packages = sorted(self.installed(rows))
        return [name + " is not held" for name in packages if not rows[name]["held"]]

    def present(self, check):
        """Install the declared driver; returns its version, None where check mode cannot know."""
        self.dnf.unlock()
        self.refuse_foreign()
        self.require_locks_apply()
        try:
            arguments, version = self.install_arguments(self.rows())
            installs = self.validated(arguments)
            # A package that others require in any version, such as nvidia-modprobe, has the
            # driver's version as well, be it installed now or left by a driver before.
            mixed = [name for name, each in self.after.items() if upstream(each) != version]
            if mixed:
                rows = self.dnf.available(*mixed)
                arguments += ["-".join(row) for row in rows if upstream(row[1]) == version]
                installs = self.validated(arguments)
        except StateError:
            # Check mode has no repository yet.
            if check and not os.path.exists("/etc/yum.repos.d/gpufleet-nvidia.repo"):
                return None
            raise
        refuse_without_headers(
            installed_kernels(Host({})), self.missing_headers(self.rows()), version, REDHAT_HEADERS
        )
        if installs:
            self.check_space()
        if not check:
            self.install_packages(arguments, installs, dict(self.target(), version=version))
        return version

    def previous(self, check):
        """Roll back to the previous driver of the receipt; returns its version."""
        former = self.former()
        files = self.stored_files(former["packages"])
        lost = sorted(set(former["packages"]) - set(files))
        if lost:
            raise StateError(
                "{} of {} is not kept in {}: declare the former version (gpu_driver: {{branch: "
                '"{}"}}) and provision.'.format(
                    lost[0], former["version"], self.store_dir(former["version"]), former["version"]
                )
            )
        self.dnf.unlock()
        self.params.update(branch=former["branch"], packages=former["requested"], helpers=[])
        arguments = ["--disablerepo=*", *sorted(files.values())]
        installs = self.validated(arguments)
        if not check:
            self.install_packages(arguments, installs, former)
        return former["version"]

    def absent(self, check):
        """Remove every package that gpufleet installed; returns None: no version is installed."""
        self.dnf.unlock()
        packages, journal = self.installed(), self.installation.journal or {}
        ours = set(packages) & set((self.receipt or {}).get("packages", packages))
        ours -= set() if self.receipt else set(journal.get("before", {}))
        if ours:
            self.refuse_harm(*self.simulate_removal(ours))
        self.after = {name: version for name, version in packages.items() if name not in ours}
        if check:
            return
        self.installation.begin_removal()
        self.remove_packages(ours)
        brought = set((self.receipt or {}).get("brought", [])) & set(self.rows())
        # A package that others need by now stays.
        if brought and brought.issuperset(self.simulate_removal(brought)[1]):
            self.remove_packages(brought)
        self.hold()
        remove_tree(os.path.join(self.state_dir, "driver"))
        self.installation.finish_removal()

    def refuse_foreign(self):
        """Raise where a driver of another repository is installed."""
        found = sorted(name for name in self.rows() if FOREIGN.match(name))
        if found:
            raise StateError(
                "A driver of another repository is installed ({}; RPM Fusion, negativo17 and "
                "ELRepo have such), and two drivers exclude each other. Nothing was changed. "
                "Remove it (dnf remove {}), and run again; or declare gpu_driver: {{source: "
                "preinstalled}}.".format(", ".join(found), " ".join(found))
            )

    def require_locks_apply(self):
        """Raise where dnf ignores version locks: an upgrade would replace the driver."""
        for path, setting in SWITCHES:
            text = ""
            if os.path.exists(path):
                with open(path) as stream:
                    text = stream.read()
            if switched_off(text, setting):
                raise StateError(
                    "{} has {}=0, so dnf ignores version locks and would replace the driver in its "
                    "next upgrade. Nothing was changed. Remove that line, and run again.".format(
                        path, setting
                    )
                )

    def install_arguments(self, rows):
        """Return what dnf is to install, and the driver's version."""
        wanted = self.params["packages"] + self.params["helpers"]
        tools = [name for name in ("dkms", VERSIONLOCK) if name not in rows]
        headers = self.lacking_headers()
        # dkms requires it in any version: without this one, dnf would bring the newest kernel.
        matched = [name.replace("-devel-", "-devel-matched-", 1) for name in headers]
        found = self.dnf.available(*wanted, *tools, *headers, *matched)
        known = {}
        for name, version in found:
            known.setdefault(name, []).append(version)
        if "dkms" in tools and "dkms" not in known:
            major = self.system("VERSION_ID").partition(".")[0]
            raise StateError(
                "No enabled repository has dkms, which builds the kernel modules: EPEL has it. "
                "Nothing was changed. Enable EPEL (dnf install epel-release on Rocky Linux and "
                "AlmaLinux, dnf install {} on RHEL), and run again.{}".format(
                    EPEL.format(major), self.unregistered()
                )
            )
        version = self.select_version(known)
        arguments = []
        for name in wanted:
            fitting = [each for each in known.get(name, []) if upstream(each) == version]
            if not fitting:
                raise StateError(
                    "The repository has no {} {}; available: {}. Nothing was changed. Declare a "
                    "version that all of {} have.{}".format(
                        name,
                        version,
                        ", ".join(sorted({upstream(x) for x in known.get(name, [])})) or "none",
                        ", ".join(wanted),
                        self.excluded(name),
                    )
                )
            arguments.append("{}-{}".format(name, max(fitting, key=natural)))
        return arguments + tools + among(headers, found) + among(matched, found)[-1:], version

    def select_version(self, known):
        """Return the newest version of the declared branch, or the declared version."""
        exact, branch = self.params["version"], self.params["branch"]
        main = self.params["packages"][0]
        versions = {upstream(each) for each in known.get(main, [])}
        fitting = [v for v in versions if v == exact or (not exact and v.startswith(branch + "."))]
        if not fitting:
            raise StateError(
                "No repository of this host has {} {}; available: {}. Nothing was changed. Declare "
                "one of these in gpu_driver, or add a repository that has it.{}".format(
                    main,
                    exact or "of branch " + branch,
                    ", ".join(sorted(versions, key=natural)) or "none",
                    self.excluded(main),
                )
            )
        return max(fitting, key=natural)

    def excluded(self, name):
        """Return a sentence where an `excludepkgs` setting hides a package; else no text."""
        if self.dnf.available(name, options=("--disableexcludes=all",)) == self.dnf.available(name):
            return ""
        return (
            " An exclude= or excludepkgs= line in /etc/dnf/dnf.conf or /etc/yum.repos.d hides it: "
            "remove that line."
        )

    @staticmethod
    def system(key):
        """Return a value of os-release, such as 9.6 for VERSION_ID."""
        with open("/etc/os-release") as stream:
            found = re.search(r'(?m)^{}="?([\w.]+)'.format(key), stream.read())
        return found.group(1) if found else ""

    def unregistered(self):
        """Return a sentence where this is RHEL without a subscription; clouds have none either."""
        cloud = glob.glob("/etc/yum.repos.d/*rhui*")
        if (
            self.system("ID") == "rhel"
            and not cloud
            and not glob.glob("/etc/pki/entitlement/*.pem")
        ):
            return (
                " This system is not registered with Red Hat, so it has no repositories of RHEL: "
                "run subscription-manager register first."
            )
        return ""

    def validated(self, arguments):
        """Return what dnf would install, {name: row}; raises where that would do harm."""
        try:
            installs, removes = self.dnf.simulate("install", "--allowerasing", *arguments)
        except StateError as error:
            raise StateError(
                "The driver's packages cannot be installed; nothing was changed. {}{}".format(
                    error, self.unregistered()
                )
            ) from None
        self.refuse_harm(installs, removes)
        versions = dict(
            self.installed(),
            **{name: row["version"].rpartition(":")[2] for name, row in installs.items()},
        )
        self.after = {
            name: version
            for name, version in versions.items()
            if DRIVER_PACKAGE.match(name) and (name not in removes or name in installs)
        }
        return installs

    @staticmethod
    def refuse_harm(installs, removes):
        """Raise where a transaction changes a kernel, or removes what is not the driver's."""
        kernels = sorted(name for name in [*installs, *removes] if KERNEL.match(name))
        if kernels:
            raise StateError(
                "This would install, change or remove a kernel ({}), and a driver installation "
                "must not do that: dkms needs the kernel-devel-matched of an installed kernel, "
                "and no repository has it any more. Nothing was changed: update the kernel "
                "(dnf upgrade 'kernel*'), reboot, and run again.".format(", ".join(kernels))
            )
        foreign = sorted(
            name
            for name in set(removes) - set(installs)
            if not DRIVER_PACKAGE.match(name) and not name.startswith("kernel-devel")
        )
        if foreign:
            raise StateError(
                "This would remove packages that are not the driver's: {}. Nothing was changed: "
                "remove them yourself if nobody needs them, or keep the driver that they depend "
                "on.".format(", ".join(foreign))
            )

    def install_packages(self, arguments, installs, target):
        """Install, hold and keep the packages; restore the former ones on failure.

        `installs`: the simulation's result. `target`: fields of the receipt, `version` included.
        """
        self.installation.version = target["version"]
        before = self.installed()
        self.installation.begin(
            fresh=not before and not self.receipt, before=before, source=target["source"]
        )
        # The journal of a killed run has the packages from before that run.
        before = self.installation.journal.get("before", before)
        marker = pending.read(self.state_dir)
        present, cached = set(self.rows()), set(glob.glob(CACHE))
        try:
            if any(DRIVER_PACKAGE.match(name) for name in installs):
                pending.require(
                    "driver {} is being installed".format(target["version"]), self.state_dir
                )
            remove_half_added()
            self.remove_doubles(target["version"])
            status, text = self.dnf.dnf("--assumeyes", "install", "--allowerasing", *arguments)
            if status:
                raise StateError("dnf says: {}.".format(problems(text).rstrip(".")))
            self.remove_packages(set(self.obsolete(self.installed())))
            off = [n for n in target["requested"] if n not in self.installed()]
            if off:
                raise StateError("dnf did not install {}.".format(", ".join(off)))
        except StateError as error:
            outcome = self.restore(before, marker)
            self.hold()
            raise StateError(
                "The driver {} could not be installed: {} {}".format(
                    target["version"], error, outcome
                )
            ) from None
        packages = self.hold()
        self.store_packages(packages, target["version"])
        for path in set(glob.glob(CACHE)) - cached:
            remove_tree(path)
        rows = {name: {"old": name in present or None} for name in set(self.rows()) | set(installs)}
        self.installation.finish(packages=packages, **self.receipt_fields(target, rows))
        self.prune_store()

    def remove_doubles(self, version):
        """Remove what a killed transaction left: packages of the driver in two versions."""
        rows = [row for row in self.dnf.installed() if DRIVER_PACKAGE.match(row[0])]
        names = [name for name, _, _ in rows]
        for name, full, arch in rows:
            if names.count(name) > 1 and upstream(full) != version:
                self.dnf.run("rpm", "-e", "--nodeps", "{}-{}.{}".format(name, full, arch))

    def simulate_removal(self, names):
        """Return (installs, removes) of a removal."""
        return self.dnf.simulate("remove", "--noautoremove", *sorted(names))

    def remove_packages(self, names):
        """Remove packages, and nothing else; raises where dnf fails."""
        if not names:
            return
        removes = self.simulate_removal(names)[1]
        self.refuse_harm({}, [name for name in removes if name not in names])
        status, text = self.dnf.dnf("--assumeyes", "remove", "--noautoremove", *sorted(names))
        if status:
            raise StateError(
                "{} could not be removed: {}.".format(", ".join(sorted(names)), problems(text))
            )

    def restore(self, before, marker):
        """Restore the packages from before, {name: version}; returns the outcome as a sentence."""
        packages, files = self.installed(), self.stored_files(before)
        added = sorted(name for name in packages if name not in before)
        lost = sorted(name for name in before if packages.get(name) != before[name])
        status, text = 0, ""
        if added:
            status, text = self.dnf.run("rpm", "-e", "--nodeps", *added)
        if lost and not status:
            wanted = [files.get(name, "{}-{}".format(name, before[name])) for name in lost]
            status, text = self.dnf.dnf("--assumeyes", "install", "--allowerasing", *wanted)
        if status or self.installed() != before:
            return (
                "The former packages could not be restored either: {}. Repair dnf on the host, and "
                "run again.".format(problems(text))
            )
        # The receipt, if any, is valid again, and the failed driver needs no restart.
        remove_tree(self.installation.journal_file)
        pending.write(marker, self.state_dir)
        if before:
            return "{} is installed as before.".format(
                (self.receipt or {}).get("version") or "The former driver"
            )
        return "None of its packages is installed."

    def stored_files(self, packages):
        """Return {name: file} of the packages, {name: version}, that are kept on this host."""
        found = {}
        for name, version in packages.items():
            pattern = "{}-{}.*.rpm".format(glob.escape(name), glob.escape(version))
            for path in glob.glob(os.path.join(self.state_dir, "driver", "*", pattern)):
                found[name] = path
        return found

    def hold(self):
        """Lock the installed packages' versions; returns them, {name: version}."""
        rows = self.rows()
        packages = self.installed(rows)
        kept = [line for line in read_locks() if not is_driver_lock(line)]
        lines = kept + [rows[name]["nevr"] + ".*" for name in sorted(packages)]
        if lines != read_locks():
            write_atomically(LOCKS, "".join(line + "\n" for line in lines))
        return packages

    def store_packages(self, packages, version):
        """Keep a version's packages in its store, and no other files there."""
        folder, stored, rows = self.store_dir(version), self.stored_files(packages), self.rows()
        make_folder(folder)
        for name in sorted(set(packages) - set(stored)):
            pattern = "{}-{}.*.rpm".format(glob.escape(name), glob.escape(packages[name]))
            for path in glob.glob(os.path.join(os.path.dirname(CACHE), pattern)):
                shutil.copy2(path, folder)
        lost = sorted(set(packages) - set(self.stored_files(packages)))
        if lost:
            names = [rows[name]["nevr"] for name in lost]
            status, text = self.dnf.dnf("download", "--destdir", folder, *names)
            if status:
                self.module.warn(
                    "{} could not be kept for a rollback: {}".format(
                        ", ".join(lost), public_addresses(problems(text))
                    )
                )
        self.keep_only(packages, folder)


def among(names, known):
    """Return the names with version and architecture that are among [(name, version)]."""
    there = ["{}-{}.".format(name, version.partition(":")[2]) for name, version in known]
    return [name for name in names if name.startswith(tuple(there))]
