# Apache-2.0, see LICENSE
"""The common part of the installing modules: states of an installation, and a module's run.

Reads the host; only `carry_out` changes it, through the function that a module passes.
"""

from __future__ import annotations

import os
import re

from ansible_collections.gpufleet.gpu.plugins.module_utils.file_errors import fail
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.manifest import compare_manifest
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.session import end_with_session
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    StateError,
    digest_of,
    host_lock,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.recreation import RECREATE, REINSTALL

ABSENT, FOREIGN, HALF_DONE, CHANGED, INSTALLED = (
    "absent",
    "foreign",
    "half-installed",
    "changed",
    "installed",
)


CUDNN_LIBRARY = re.compile(r"libcudnn\w*\.so\.(\d+)")
CUDNN_DEFAULTS = re.compile(r"(libcudnn\w*\.(so|a)|cudnn\w*\.h)$")


def of_cudnn(name, major=None, default=True):
    """Return whether a file in a toolkit's tree belongs to cuDNN: of a major version, or any.

    ``default``: whether headers, unversioned links and static libraries count.
    """
    base = os.path.basename(name)
    library = CUDNN_LIBRARY.match(base)
    if library:
        return major is None or int(library.group(1)) == major
    return default and bool(CUDNN_DEFAULTS.match(base))


def state_of(installation, exists, checksum=None, repair=None, **declared):
    """Return an installation's state, and the reason.

    ``exists``: whether something exists at its path. ``checksum``: the source's declared one as
    ``ALGORITHM:HEX``, or ``None`` when the source does not matter. ``repair``: the step of a
    repair, see `recreation`. ``declared``: further fields that the receipt must have. Raises
    ``StateError`` when it is installed at another path.
    """
    receipt = installation.receipt
    if installation.half_done:
        started = installation.journal.get("path", installation.path)
        if started != installation.path:
            raise StateError(
                "{} {} was started in {}, but is declared in {}. Remove it there first (./gpufleet "
                "remove), or declare the path where it was started.".format(
                    installation.kind, installation.ident, started, installation.path
                )
            )
        return HALF_DONE, "an earlier run was interrupted"
    if receipt is None and exists and (installation.damaged or repair):
        return CHANGED, "its receipt {}".format(
            "cannot be used: " + installation.damaged if installation.damaged else "is lost"
        )
    if receipt is None:
        return (FOREIGN, "not installed by gpufleet") if exists else (ABSENT, "not installed")
    if receipt["path"] != installation.path:
        raise StateError(
            "{} {} is installed in {}, but declared in {}. Remove it there first "
            "(./gpufleet remove), or declare the path where it is installed.".format(
                installation.kind, installation.ident, receipt["path"], installation.path
            )
        )
    for name, value in declared.items():
        if receipt.get(name) != value:
            return CHANGED, "{} is {}, declared is {}".format(name, receipt.get(name), value)
    if receipt["version"] != installation.version:
        return CHANGED, "version {} is installed, {} is declared".format(
            receipt["version"], installation.version
        )
    algorithm, _, declared = (checksum or "").partition(":")
    recorded = receipt["source"].get(algorithm)
    if recorded and recorded != declared:
        return CHANGED, "installed from another artifact ({} {})".format(algorithm, recorded)
    changed = compare_manifest(receipt["path"], receipt["manifest"], deep=bool(repair))
    if changed:
        return CHANGED, changes_message(changed)
    if repair in (REINSTALL, RECREATE):
        return CHANGED, "a check that depends on it fails: step '{}' of its repair".format(repair)
    return INSTALLED, "matches its receipt"


def changes_message(changed):
    """Return a message about changed files; names the first few."""
    shown = ", ".join("{path}: {what}".format(**entry) for entry in changed[:5])
    more = " and {} more".format(len(changed) - 5) if len(changed) > 5 else ""
    return "files changed since they were installed: {}{}".format(shown, more)


def difference(installation, state, why):
    """Return the module's ``diff``: what is installed, and what is declared."""
    what = "{} {}".format(installation.kind, installation.ident)
    before = "" if state == ABSENT else "{}: {} ({})\n".format(what, state, why)
    return {
        "before": before,
        "after": "{}: {} in {}\n".format(what, installation.version, installation.path),
        "before_header": installation.path,
        "after_header": installation.path,
    }


def source_of(path, checksum):
    """Return the receipt's ``source`` for an artifact. ``checksum``: ``ALGORITHM:HEX``."""
    algorithm, _, declared = checksum.partition(":")
    return {"file": os.path.basename(path), algorithm: declared}


def check_artifact(path, checksum):
    """Return the receipt's ``source`` for an artifact; raises where its checksum is wrong.

    ``checksum``: ``ALGORITHM:HEX``.
    """
    if not os.path.isfile(path):
        raise StateError("{} is not on this host. The role 'artifacts' fetches it.".format(path))
    algorithm, _, declared = checksum.partition(":")
    found = digest_of(path, algorithm)
    if found != declared:
        raise StateError(
            "{} has {} {}, but {} is declared. The file is truncated or was replaced: remove it "
            "and run again.".format(path, algorithm, found, declared)
        )
    return source_of(path, checksum)


def carry_out(module, found, install, foreign):
    """Run an installing module: determine the state, then refuse, do nothing, or install.

    ``found()`` returns the installation, its state and the reason. ``install(installation, state,
    lock)`` returns further results. ``foreign`` is the error for a tree of unknown origin.
    """
    try:
        installation, state, why = found()
        answer = {"state": state, "because": why, "changed": state != INSTALLED}
        if state == FOREIGN:
            raise StateError(foreign)
        if state == INSTALLED:
            module.exit_json(**answer)
        answer["diff"] = difference(installation, state, why)
        if module.check_mode:
            module.exit_json(**answer)
        end_with_session()
        with host_lock(module.params["state_dir"]) as lock:
            # Another run may have installed it while this one waited for the lock.
            installation, state, why = found()
            if state not in (INSTALLED, FOREIGN):
                answer.update(install(installation, state, lock))
        module.exit_json(**answer)
    except (StateError, OSError) as error:
        fail(module, error)


def restore_labels(module, tree):
    """Give a tree the labels of SELinux's policy, where SELinux is enabled.

    An installer keeps the labels of its temporary files, which confined services may not load.
    """
    if not module.selinux_enabled():
        return
    command = [module.get_bin_path("restorecon", True, ["/sbin", "/usr/sbin"]), "-R", tree]
    status, out, err = module.run_command(command)
    if status:
        raise StateError("{} failed: {}".format(" ".join(command), (err or out).strip()))
