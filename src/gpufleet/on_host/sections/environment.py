"""Section `environment`: variables that steer which libraries programs load."""

import glob
import os
import re
import shutil

from ..constants import CUDA_FILE, DRIVER_FILE, MOST_VALUE
from ..elf import soname_of
from ..login import connected_account, foreign_profile, login_as, profiles, variables_by_reading
from ..processes import Child, NoAnswerError, await_all, run_command
from ..settings_files import STEERING_VARIABLES, pam_assignments, settings_of_files

# ruff: noqa: B905 (zip has no `strict` before Python 3.10)


def section_environment(host):
    found = dict.fromkeys(STEERING_VARIABLES)
    # pam_env reads this one before any shell starts.
    for key, value in pam_assignments(host.text_or_none("/etc/environment") or ""):
        if key in found:
            found[key] = value
    refused = foreign_profile(host, found)
    accounts = [] if refused else [None]
    if host.real and connected_account():
        accounts.append(connected_account())
    # Beside each other: a slow home directory is slow for each.
    outcomes = await_all(
        [Child(login_as, (host, found), host.inner_s * 0.85, account) for account in accounts]
    )
    for state, _, error, _ in outcomes:
        if state == "hung":
            raise NoAnswerError(error)
        if state != "ok":
            raise RuntimeError(error)
    unread = []
    login = variables_by_reading(host, found) if refused else outcomes[0][1]
    others = [
        {"where": "A login of %s" % account.name, "variables": outcome[1], "job": False}
        for account, outcome in zip(accounts, outcomes)
        if account
    ]
    others.append(
        {"where": "systemd, for its services,", "variables": service_variables(host), "job": False}
    )
    # Not a variable, but the same in its effect, and for every program.
    preload = " ".join((host.text_or_none("/etc/ld.so.preload") or "").split()) or None
    others.append(
        {"where": "/etc/ld.so.preload", "variables": {"LD_PRELOAD": preload}, "job": False}
    )
    others += settings_of_files(host, unread)
    login = bounded(login)
    others = [dict(other, variables=bounded(other["variables"])) for other in others]
    environments = [login, *(other["variables"] for other in others)]
    return {
        "login": login,
        "others": others,
        "mentions": files_that_mention(host, unread),
        "unread": unread,
        "refused": refused,
        "offers": offered_by_variables(host, environments),
    }


def bounded(variables):
    """Variables as a process would get them: up to a zero byte, and of a length that is taken."""
    return {
        key: value and value.partition("\0")[0][:MOST_VALUE] for key, value in variables.items()
    }


def files_that_mention(host, unread):
    """The files that mention the variables that a session sets, by variable."""
    found = {}
    for name in profiles(host):
        try:
            text = re.sub(r"^\s*#.*$", "", host.text_or_none(name) or "", flags=re.MULTILINE)
        except PermissionError:
            unread.append(name)
            continue
        for key in STEERING_VARIABLES:
            if re.search(r"\b%s\b" % key, text):
                found.setdefault(key, []).append(name)
    return found


def service_variables(host):
    """The variables that systemd gives to each service that it starts."""
    found = dict.fromkeys(STEERING_VARIABLES)
    if host.real and shutil.which("systemctl"):
        _status, out, _err = run_command(["systemctl", "show-environment"], host.inner_s / 10)
        for line in out.splitlines():
            key, mark, value = line.partition("=")
            if mark and key in found:
                found[key] = value
    return found


def offered_by_variables(host, environments):
    """Libraries of CUDA, cuDNN and the driver in directories that variables name, by directory."""
    found = {}
    for values in environments:
        for directory in (values.get("LD_LIBRARY_PATH") or "").split(":"):
            names = host.glob(glob.escape(directory) + "/lib*.so*") if directory[:1] == "/" else []
            found[directory] = [
                os.path.basename(name)
                for name in names
                if is_cuda_or_driver_file(os.path.basename(name))
            ]
        for library in re.split(r"[:\s]+", values.get("LD_PRELOAD") or ""):
            names = [os.path.basename(library), soname_of(host, library) or ""]
            found[library] = [name for name in names if is_cuda_or_driver_file(name)]
    return {location: names for location, names in found.items() if names}


def is_cuda_or_driver_file(name):
    return bool(CUDA_FILE.match(name) or DRIVER_FILE.match(name))
