# Apache-2.0, see LICENSE
"""The driver's packages on this host, compared with what is declared. Reads only."""

from __future__ import annotations

import re

from ansible_collections.gpufleet.gpu.plugins.module_utils.apt import Apt
from ansible_collections.gpufleet.gpu.plugins.module_utils.driver_files import (
    PINS,
    differs,
    host_files,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.driver_rules import (
    KERNEL_META,
    other_branch,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.host import Host
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.manifest import compare_manifest
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.sections.kernel import (
    installed_kernels,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.sections.packages import (
    DRIVER_PACKAGE,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import Installation


class DriverPackages:
    """The driver's packages on this host, and how they differ from the declared ones."""

    def __init__(self, module):
        self.module, self.params = module, module.params
        self.state_dir = self.params["state_dir"]
        self.apt = Apt(module, PINS, self.params["patience_s"])
        self.installation = Installation("driver", "driver", "/", None, self.state_dir)
        self.receipt = self.installation.receipt
        self.note = ""  # apt's errors from refreshing its lists, appended to later errors
        self.giving_way = []  # packages that apt removes because new ones conflict
        self.after = self.installed()  # {name: version} after this run; predicted in check mode

    def rows(self):
        """Return every package: {name: {"version", "status", "held"}}."""
        return self.apt.query()

    def installed(self, rows=None):
        """Return {name: version} of the driver's packages that dpkg knows, in any state."""
        rows = self.rows() if rows is None else rows
        return {name: row["version"] for name, row in rows.items() if DRIVER_PACKAGE.match(name)}

    def missing_headers(self, rows):
        """Return the header packages that installed kernels and kernel metapackages lack."""
        kernels = [
            row for row in installed_kernels(Host({})) if row["image"] and not row["headers"]
        ]
        wanted = ["linux-headers-" + row["version"] for row in kernels]
        metas = [KERNEL_META.match(name) for name in rows if rows[name]["status"] == "installed"]
        wanted += ["linux-headers-" + found.group(1) for found in metas if found]
        absent = [name for name in wanted if rows.get(name, {}).get("status") != "installed"]
        # gpu_driver_modules reports headers that no repository has.
        return [name for name in sorted(set(absent)) if self.is_available(name)]

    def is_available(self, name):
        """Return whether apt has a version of a package to install."""
        output = self.apt.run("apt-cache", "policy", name)[1]
        return "Candidate:" in output and "Candidate: (none)" not in output

    def differences(self, rows):
        """Return one message per difference between the declared driver and this host."""
        off, receipt = [], self.receipt
        if self.installation.half_done:
            off.append("an earlier run was interrupted")
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
        off += ["{} is not installed".format(name) for name in self.missing_headers(rows)]
        off += [
            "{} of another branch is installed beside it".format(name)
            for name in other_branch(self.installed(rows), self.params["branch"])
        ]
        off += [
            "/{path} has changed ({what})".format(**row)
            for row in compare_manifest("/", receipt["manifest"])
        ]
        return off + self.hold_differences(rows)

    def hold_differences(self, rows):
        """Return one message per package that is not held, and per file of ours that differs."""
        packages = self.installed(rows)
        off = ["{} is not held".format(name) for name in sorted(packages) if not rows[name]["held"]]
        for path, text in host_files(packages).items():
            if differs(path, text):
                off.append("{} differs".format(path))
        return off

    def unfinished(self):
        """Return dpkg's rows of the packages that are not fully installed."""
        return {n: row for n, row in self.apt.query().items() if row["status"] != "installed"}

    def listed(self):
        """Return whether apt has package lists, those of the declared repository included."""
        address = (self.params["repository"] or {}).get("uri", "").rstrip("/")
        text = self.apt.run("apt-get", "indextargets", "--format", "$(REPO_URI)")[1]
        known = {re.sub("//[^/@]*@", "//", each).rstrip("/") for each in text.split()}
        return address in known if address else bool(known)
