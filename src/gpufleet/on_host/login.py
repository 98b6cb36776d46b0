"""The environment after a login."""

import os

from .constants import REFUSED
from .processes import NoAnswerError, run_command
from .settings_files import files_of, mentioned, shell_settings
from .text import last_lines
from .trust import Account, Judgement

# Where variables are set for sessions, and what a login shell runs.
PROFILE_LOCATIONS = (
    "/etc/environment",
    "/etc/profile",
    "/etc/profile.d/*.sh",
    "/etc/bash.bashrc",
    "/etc/bashrc",
    "~/.profile",
    "~/.bash_profile",
    "~/.bash_login",
    "~/.bashrc",
)
# A line by which a shell runs another file as its own.
SOURCED = r"(?:^|[;&|]|\b(?:then|do|else)\b)\s*(?:\.|source)\s"


def login_variables(host, found, identity):
    """The steering variables after a login: an interactive one, as people's are, if that works."""
    found = dict(found)
    shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
    mark = "\0gpufleet\0"
    report = "printf '\\0gpufleet\\0'; env -0"
    if host.real:
        calls = [[shell, "-l", "-i", "-c", report], [shell, "-l", "-c", report]]
    else:
        calls = [
            [
                shell,
                "-c",
                'for f in "$0"/etc/profile "$0"/etc/profile.d/*.sh; do '
                '[ -r "$f" ] && . "$f"; done; ' + report,
                host.root.rstrip("/"),
            ]
        ]
    env = {key: value for key, value in found.items() if value is not None}
    env.update(identity)
    for argv in calls:
        status, out, err = run_command(argv, host.inner_s * 0.4, env=env, cwd="/")
        if mark in out:
            break
    else:
        if status is None and "Permission denied" in err:
            raise RuntimeError("a login shell cannot be started by its account: " + err)
        if status is None:
            raise NoAnswerError("a login shell gave no answer: " + err)
        raise RuntimeError(
            "a login shell exited (status %d) before it ran a command: %s"
            % (status, last_lines(err or out, 300) or "it printed nothing")
        )
    for item in out.partition(mark)[2].split("\0"):
        key, equals, value = item.partition("=")
        if equals and key in found:
            found[key] = value
    return found


def connected_account():
    """The account that became root by sudo; None without sudo."""
    name = os.environ.get("SUDO_USER")
    if os.geteuid() != 0 or not name or name == "root":
        return None
    try:
        import pwd

        uid, gid = pwd.getpwnam(name)[2:4]
        return Account(name, uid, gid, os.getgrouplist(name, gid))
    except (ImportError, KeyError):
        return None


def login_as(host, found):
    """The login of this process' account."""
    return login_variables(host, found, login_identity())


def foreign_profile(host, found):
    """Why root's login shell is not run, if so: what it would run, or load, others could have
    written. `found`: the variables that it starts with."""
    if not host.real or os.geteuid() != 0:
        return None
    judgement = Judgement()
    for directory in (found["LD_LIBRARY_PATH"] or "").split(":"):
        if directory[:1] == "/":
            judgement.tree(directory)
    for library in (found["LD_PRELOAD"] or "").replace(":", " ").split():
        if library[:1] == "/":
            judgement.load(library)
    left, read = profiles(host), set()
    while left:
        name = left.pop()
        if name in read:
            continue
        read.add(name)
        judgement.way(name)
        # Directories that it sets for programs and libraries.
        for path in mentioned(name, "^(?!.*MAIL).*="):
            judgement.way(path)
        for path in mentioned(name, "PATH=", "PATH="):
            judgement.way(path, searched=True)
        left += mentioned(name, "(?!)", SOURCED)
    reasons = list(judgement.found.values())
    return "%s: %s" % (reasons[0], REFUSED) if reasons else None


def variables_by_reading(host, found):
    """The steering variables, as far as the files of a login assign them in plain words."""
    found = dict(found)
    # `found` has those of the first file, which is no shell's, already.
    for name in [name for name in profiles(host) if name != PROFILE_LOCATIONS[0]]:
        found.update(
            (key, value)
            for key, value in shell_settings(host.text_or_none(name) or "")
            if key in found
        )
    return found


def profiles(host):
    """The files in which a login of this account finds its variables."""
    home = login_identity()["HOME"].rstrip("/")
    return files_of(host, [location.replace("~", home, 1) for location in PROFILE_LOCATIONS])


def login_identity():
    try:
        import pwd

        user = pwd.getpwuid(os.geteuid())
        name, home = user.pw_name, user.pw_dir
    except (ImportError, KeyError):
        name, home = "nobody", "/"
    return {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": home,
        "USER": name,
        "LOGNAME": name,
        "TERM": "dumb",
    }
