"""Files that set environment variables: PAM's, systemd's and cron's."""

import errno
import os
import re
import shlex

from .frameworks import each_of
from .text import read_bounded

STEERING_VARIABLES = (
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_HOME",
    "PYTHONPATH",
    "PYTHONHOME",
    *each_of("variables"),
)
PAM_LOCATIONS = ("/etc/security/pam_env.conf",)
USER_SERVICE_LOCATIONS = ("/etc/environment.d/*.conf", "/usr/lib/environment.d/*.conf")
MANAGER_LOCATIONS = (
    "/etc/systemd/system.conf",
    "/etc/systemd/system.conf.d/*.conf",
    "/etc/systemd/user.conf",
    "/etc/systemd/user.conf.d/*.conf",
)
# A drop-in of `service.d` is every service's; any other file of units is of one job.
UNIT_LOCATIONS = tuple(
    pattern + name
    for pattern in (
        "/etc/systemd/system/",
        "/etc/systemd/user/",
        "/run/systemd/system/",
        "/usr/local/lib/systemd/system/",
        "/usr/lib/systemd/system/",
        "/lib/systemd/system/",
    )
    for name in ("*.service", "*.service.d/*.conf", "service.d/*.conf")
)
CRON_LOCATIONS = ("/etc/crontab", "/etc/anacrontab")
# Shells other than the one whose login is run, by how they assign variables.
ZSH_LOCATIONS = tuple(
    directory + "/z" + name
    for directory in ("/etc", "/etc/zsh")
    for name in ("shenv", "profile", "shrc", "login")
)
CSH_LOCATIONS = ("/etc/csh.cshrc", "/etc/csh.login", "/etc/csh/*", "/etc/profile.d/*.csh")
FISH_LOCATIONS = ("/etc/fish/config.fish", "/etc/fish/conf.d/*.fish")
SSHD_LOCATIONS = ("/etc/ssh/sshd_config", "/etc/ssh/sshd_config.d/*.conf")
CRON_JOB_LOCATIONS = ("/etc/cron.d/*", "/var/spool/cron/crontabs/*", "/var/spool/cron/*")


def settings_of_files(host, unread):
    """What PAM's, systemd's and cron's files set, from the next start on: those that set any.

    `job` where it is for one job alone, whose author may have meant it. Files that cannot be read
    are added to `unread`.
    """
    found = []
    for patterns, reader, job in (
        (PAM_LOCATIONS, pam_settings, False),
        (USER_SERVICE_LOCATIONS, assignments, False),
        (pam_env_files(host), assignments, False),
        (ZSH_LOCATIONS, shell_settings, False),
        (CSH_LOCATIONS, shell_settings, False),
        (FISH_LOCATIONS, shell_settings, False),
        (SSHD_LOCATIONS, sshd_settings, False),
        (MANAGER_LOCATIONS, manager_settings, False),
        (UNIT_LOCATIONS, unit_settings, True),
        (CRON_LOCATIONS, assignments, False),
        (CRON_JOB_LOCATIONS, assignments, True),
    ):
        for name in files_of(host, patterns):
            variables = {}
            try:
                pairs = reader(host, host.text_or_none(name) or "")
            except OSError as error:
                # A user's own may be too large as well, which leaves what others set as it is.
                if not job and not isinstance(error, PermissionError):
                    raise
                unread.append(name)
                continue
            for key, value in pairs:
                if key in STEERING_VARIABLES:
                    variables[key] = value
            if variables:
                found.append(
                    {
                        "where": name,
                        "variables": variables,
                        "job": job and "/service.d/" not in name,
                    }
                )
    return found


def files_of(host, patterns):
    """Regular files of these patterns, each real one once (/lib may be /usr/lib)."""
    found = {}
    for pattern in patterns:
        for name in host.glob(pattern):
            path = host.path(host.realpath(name))
            if os.path.isfile(path):
                found.setdefault(path, name)
    return list(found.values())


def assignments(host, text):
    """(name, value) of lines NAME=value, as crontabs and environment files have them."""
    return [
        (key, value.strip().strip("\"'"))
        for key, value in re.findall(
            r"^[ \t]*(?:export[ \t]+)?([A-Za-z_]\w*)[ \t]*=(.*)$", text, re.MULTILINE
        )
    ]


def pam_settings(host, text):
    """(name, value) of pam_env.conf."""
    return [
        (name, value.strip('"'))
        for name, value in re.findall(
            r"^[ \t]*(\w+)[ \t].*?(?:DEFAULT|OVERRIDE)=(\"[^\"]*\"|\S*)", text, re.MULTILINE
        )
    ]


def pam_env_files(host):
    """The files from which PAM's pam_env takes variables, besides its own two."""
    found = []
    for name in host.glob("/etc/pam.d/*"):
        found += re.findall(
            r"^[^#\n]*pam_env\.so[^#\n]*\benvfile=(/[^\s*?\[]+)",
            host.text_or_none(name) or "",
            re.MULTILINE,
        )
    return sorted(set(found) - {"/etc/environment"})


def shell_settings(host, text):
    """(name, value) of lines such as `export A=b`, `setenv A b` and `set -gx A b`."""
    found = []
    for line in text.splitlines():
        match = re.match(r"\s*(?:(?:export\s+)?(\w+)=|(?:setenv|set\s+-\w+)\s+(\w+)\s)(.*)", line)
        try:
            args = shlex.split(match.group(3), comments=True)[:1] if match else []
        except ValueError:
            args = [match.group(3)]
        found += [
            (match.group(1) or match.group(2), word.rstrip(";"))
            for word in args or ([""] if match else [])
        ]
    return found


def sshd_settings(host, text):
    """(name, value) that sshd sets for every session; a Match block is of some sessions only."""
    common = re.split(r"^[ \t]*match\b", text, maxsplit=1, flags=re.IGNORECASE | re.MULTILINE)[0]
    lines = re.findall(r"^[ \t]*setenv[ \t=]+(.*)$", common, re.IGNORECASE | re.MULTILINE)
    return [pair for line in lines for pair in parse_pairs(line)]


def manager_settings(host, text):
    """(name, value) of what systemd gives to all that it starts."""
    lines = re.findall(
        r"^[ \t]*(?:Default|Manager)Environment[ \t]*=(.*)$", join_continued(text), re.MULTILINE
    )
    return [pair for line in lines for pair in parse_pairs(line)]


def unit_settings(host, text):
    """(name, value) of a unit: its own variables, and those of the files that it names."""
    found = []
    for kind, line in re.findall(
        r"^[ \t]*(Environment|EnvironmentFile)[ \t]*=(.*)$", join_continued(text), re.MULTILINE
    ):
        name = line.strip().lstrip("-")
        if kind == "Environment":
            found += parse_pairs(line)
        elif name[:1] == "/":
            for path in files_of(host, [name]):
                found += assignments(host, host.text_or_none(path) or "")
    return found


def join_continued(text):
    """systemd's lines: one that ends in a backslash goes on in the next."""
    return re.sub(r"\\\n", " ", text)


def parse_pairs(line):
    """(name, value) of `A=1 "B=2 3"`."""
    try:
        args = shlex.split(line)
    except ValueError:
        args = line.split()
    return [tuple(word.split("=", 1)) for word in args if "=" in word]


def mentioned(name, directories="", lines=""):
    """The existing files that the matching lines of a text name, and the directories that those of
    them name that match `directories`."""
    try:
        text = read_bounded(name)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise
        return []
    found = []
    for line in (row.partition(" #")[0] for row in text.splitlines()):
        if not re.search(lines, line):
            continue
        paths = re.findall(r"(?<![\w.~$})*-])(/(?:\\.|[\w.@+/-])+)", line)
        # In quotes a path may have blanks.
        paths += [path for _, path in re.findall(r"([\"'])(/.*?)\1", line)]
        for path in (re.sub(r"\\(.)", r"\1", path) for path in paths):
            if os.path.isfile(path) or (os.path.isdir(path) and re.search(directories, line)):
                found.append(path)
    return list(dict.fromkeys(found))
