# Apache-2.0, see LICENSE
"""What the installing modules share: one shape of answer for "look", "would" and "did"."""

from __future__ import annotations

import os
import re

from ansible_collections.gpufleet.gpu.plugins.module_utils.probe.manifest import compare_manifest
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    StateError,
    digest_of,
    host_lock,
)

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
    """Whether a file in a toolkit's tree is cuDNN's: that of a major version, or any.

    ``default``: whether headers, unversioned links and static libraries count.
    """
    base = os.path.basename(name)
    library = CUDNN_LIBRARY.match(base)
    if library:
        return major is None or int(library.group(1)) == major
    return default and bool(CUDNN_DEFAULTS.match(base))


def look(installation, stands, checksum=None, **declared):
    """Which state an installation is in, and why, in words.

    ``stands``: whether something stands where it would go. ``checksum``: the source's declared
    one as ``ALGORITHM:HEX``, or ``None`` when the source has no say. ``declared``: what else the
    receipt must say. Raises ``StateError`` when it is installed in another place.
    """
    receipt = installation.receipt
    if installation.half_done:
        return HALF_DONE, "an earlier run was stopped half-way"
    if receipt is None:
        return (FOREIGN, "not installed by gpufleet") if stands else (ABSENT, "not there")
    if receipt["path"] != installation.path:
        raise StateError(
            "{} {} is installed in {}, and declared in {}. Remove it there first "
            "(./gpufleet remove), or declare it where it stands.".format(
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
    changed = compare_manifest(receipt["path"], receipt["manifest"])
    if changed:
        return CHANGED, told_changes(changed)
    return INSTALLED, "as its receipt says"


def told_changes(changed):
    """Files that changed, in words; the first few by name."""
    shown = ", ".join("{path}: {what}".format(**entry) for entry in changed[:5])
    more = " and {} more".format(len(changed) - 5) if len(changed) > 5 else ""
    return "files changed since they were installed: {}{}".format(shown, more)


def difference(installation, state, why):
    """The module's ``diff``: what stands there, against what is declared."""
    what = "{} {}".format(installation.kind, installation.ident)
    before = "" if state == ABSENT else "{}: {} ({})\n".format(what, state, why)
    return {
        "before": before,
        "after": "{}: {} in {}\n".format(what, installation.version, installation.path),
        "before_header": installation.path,
        "after_header": installation.path,
    }


def check_artifact(path, checksum):
    """Refuse a file that is not, byte for byte, the declared one. Returns the receipt's ``source``.

    ``checksum``: ``ALGORITHM:HEX``.
    """
    if not os.path.isfile(path):
        raise StateError("{} is not on this host. The role 'artifacts' brings it.".format(path))
    algorithm, _, declared = checksum.partition(":")
    found = digest_of(path, algorithm)
    if found != declared:
        raise StateError(
            "{} has {} {}, declared is {}. It was cut off or exchanged on its way: remove it and "
            "run again.".format(path, algorithm, found, declared)
        )
    return {"file": os.path.basename(path), algorithm: found}


def carry_out(module, found, install, foreign):
    """The course of every installing module: look, refuse or leave alone, else install.

    ``found()`` returns the installation, its state and why. ``install(installation, state, lock)``
    returns what to add to the answer. ``foreign`` says what to do about a tree of unknown origin.
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
        with host_lock(module.params["state_dir"]) as lock:
            # Somebody may have finished the job while this run waited for the lock.
            installation, state, why = found()
            if state not in (INSTALLED, FOREIGN):
                answer.update(install(installation, state, lock))
        module.exit_json(**answer)
    except (StateError, OSError) as error:
        module.fail_json(msg=str(error))
