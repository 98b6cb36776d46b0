"""Files that set environment variables: PAM's, systemd's and cron's."""

import errno
import os
import re
import shlex
from functools import partial

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
USER_SERVICE_LOCATIONS = (("/etc/environment.d/", "/usr/lib/environment.d/"), ("*.conf",))
MANAGER_LOCATIONS = (
    (("/etc/systemd/",), ("system.conf", "system.conf.d/*.conf")),
    (("/etc/systemd/",), ("user.conf", "user.conf.d/*.conf")),
)
# A drop-in of `service.d` is every service's; any other file of units is of one job. A file hides
# those of its name in the directories after its own.
UNITS = ("*.service", "*.service.d/*.conf", "service.d/*.conf")
UNIT_LOCATIONS = (
    (
        (
            "/etc/systemd/system/",
            "/run/systemd/system/",
            "/usr/local/lib/systemd/system/",
            "/usr/lib/systemd/system/",
            "/lib/systemd/system/",
        ),
        UNITS,
    ),
    (("/etc/systemd/user/",), UNITS),
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
    """Rows of files of PAM, systemd and cron with the variables that they set at the next start.

    `job` where it is for one job alone, whose author may have meant it. Files that cannot be read
    are added to `unread`.
    """

    def text_of(name, job=False):
        try:
            return host.text_or_none(name) or ""
        except OSError as error:
            # A user's own may be too large as well, which leaves what others set as it is.
            if not job and not isinstance(error, PermissionError):
                raise
            unread.append(name)
            return ""

    rows = []
    for patterns, reader, job in (
        (PAM_LOCATIONS, pam_settings, False),
        (pam_env_files(host), pam_assignments, False),
        (ZSH_LOCATIONS, shell_settings, False),
        (CSH_LOCATIONS, shell_settings, False),
        (FISH_LOCATIONS, shell_settings, False),
        (SSHD_LOCATIONS, sshd_settings, False),
        (CRON_LOCATIONS, cron_settings, False),
        (CRON_JOB_LOCATIONS, cron_settings, True),
    ):
        for name in files_of(host, patterns):
            if job and not is_crontab(host, name):
                continue
            rows.append((name, job, reader(text_of(name, job))))
    names = [name for _, name in sorted(visible(host, *USER_SERVICE_LOCATIONS).items())]
    # Which variables it names are set is not known: it counts as if none were.
    pairs = [
        (name, environment_file(re.sub(r"\$\{\w+:-([^{}]*)\}", r"\1", text_of(name))))
        for name in regular(host, names)
    ]
    rows += [(name, False, left) for name, left in last_of(pairs)]
    for names, job in units(host):
        read = partial(text_of, job=job)
        rows += [(name, job, left) for name, left in unit_settings(host, names, read)]
    found = []
    for name, job, pairs in rows:
        variables = {
            key: value
            for key, value in dict(pairs).items()
            if key in STEERING_VARIABLES and value is not None
        }
        if variables:
            found.append({"where": name, "variables": variables, "job": job})
    return found


def files_of(host, patterns):
    """Regular files of these patterns, each real one once (/lib may be /usr/lib)."""
    return regular(host, [name for pattern in patterns for name in host.glob(pattern)])


def regular(host, names):
    """The names that lead to regular files, the first of each file."""
    found = {}
    for name in names:
        path = host.path(host.realpath(name))
        if os.path.isfile(path):
            found.setdefault(path, name)
    return list(found.values())


def visible(host, directories, patterns):
    """The paths by path below their directory, without files that an earlier directory's hide."""
    found = {}
    for directory in directories:
        for name in [name for pattern in patterns for name in host.glob(directory + pattern)]:
            found.setdefault(name[len(directory) :], name)
    return found


def last_of(rows):
    """The assignments that no later file overrides, by file: [(file, [(name, value)])]."""
    last = {key: (name, value) for name, pairs in rows for key, value in pairs}
    found = {}
    for key, (name, value) in last.items():
        found.setdefault(name, []).append((key, value))
    return list(found.items())


def pam_lines(text):
    """Lines as pam_env has them: up to a #, and one that ends in a backslash goes on."""
    joined = ""
    for line in text.split("\n"):
        content, mark, _ = line.partition("#")
        if not content.strip():
            continue
        if content.rstrip().endswith("\\") and not mark:
            joined += content.rstrip()[:-1]
        else:
            yield (joined + content).strip()
            joined = ""


def pam_assignments(text):
    """Pairs of name and value in pam_env's environment files, such as /etc/environment.

    A name alone takes the variable away.
    """
    found = re.findall(r"^(?:export )?(\w+)(=?)(.*)$", "\n".join(pam_lines(text)), re.MULTILINE)
    return [
        (key, unquoted(value) if mark else None) for key, mark, value in found if mark or not value
    ]


def unquoted(value):
    """A value without the quotes around it: the last sign, where the first is one."""
    value = value.strip()
    if value[:1] not in ("'", '"'):
        return value
    return value[1:-1] if value[1:] and value[-1] in "\"'" else value[1:]


def pam_settings(text):
    """Pairs of name and value in pam_env.conf.

    The value of an override that names other variables is not known: then the default counts.
    """
    found = []
    for line in pam_lines(text):
        values = dict(re.findall(r"\s(DEFAULT|OVERRIDE)=(\"[^\"]*\"|\S*)", line))
        override, default = values.get("OVERRIDE", ""), values.get("DEFAULT")
        if override.strip('"') and not re.search(r"[$@]\{", override):
            default = override
        found.append((line.split()[0], default.strip('"') if default else None))
    return found


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


def shell_settings(text):
    """Pairs of name and value in lines such as `export A=b`, `setenv A b` and `set -gx A b`.

    `unsetenv A`, `unset A` and `set -e A` count where nothing stands before them: others may be
    conditional.
    """
    found = []
    for line in text.splitlines():
        unset = re.match(r"(?:unsetenv|unset|set\s+-\w*e\w*)\s+([^;#]*)", line)
        match = re.match(r"\s*(?:(?:export\s+)?(\w+)=|(?:setenv|set\s+-\w+)\s+(\w+)\s)(.*)", line)
        if unset:
            found += [(name, None) for name in unset.group(1).split()]
            continue
        try:
            args = shlex.split(match.group(3), comments=True)[:1] if match else []
        except ValueError:
            args = [match.group(3)]
        found += [
            (match.group(1) or match.group(2), word.rstrip(";"))
            for word in args or ([""] if match else [])
        ]
    return found


def sshd_settings(text):
    """Pairs that sshd sets for every session; a Match block is of some sessions only."""
    common = re.split(r"^[ \t]*match\b", text, maxsplit=1, flags=re.IGNORECASE | re.MULTILINE)[0]
    lines = re.findall(r"^[ \t]*setenv[ \t=]+(.*)$", common, re.IGNORECASE | re.MULTILINE)
    return [pair for line in lines for pair in parse_pairs(line)]


def is_crontab(host, name):
    """Return whether cron reads a file of this name: Debian's permits few signs in /etc/cron.d."""
    base = os.path.basename(name)
    if name.startswith("/etc/cron.d/") and host.exists("/etc/debian_version"):
        return bool(re.match(r"[A-Za-z0-9_-]+\Z", base))
    return not re.search(r"^#|(~|\.rpm(save|orig|new))\Z", base)


def cron_settings(text):
    """Pairs of name and value in a crontab's lines, in which both may be quoted."""
    return [
        (key, unquoted(value))
        for _, key, value in re.findall(
            r"^[ \t]*([\"']?)([A-Za-z_]\w*)\1[ \t]*=(.*)$", text, re.MULTILINE
        )
    ]


def units(host):
    """Each unit's files as systemd reads them, drop-ins last, and whether they are of one job."""
    for locations, job in ((UNIT_LOCATIONS, True), (MANAGER_LOCATIONS, False)):
        for directories, patterns in locations:
            found = {}
            for below, name in visible(host, directories, patterns).items():
                unit, _, drop_in = below.partition("/")
                real = host.realpath(name)
                if drop_in:
                    unit = unit[:-2]
                elif real.startswith(directories):
                    # A link is another name of the unit that it leads to.
                    unit = os.path.basename(real)
                found.setdefault(unit, []).append((drop_in, name))
            for unit, rows in found.items():
                names = [name for _, name in sorted(rows)]
                # One that is masked is never started.
                if ("", "/dev/null") not in [(part, host.realpath(name)) for part, name in rows]:
                    yield names, job and unit != "service"


def unit_settings(host, names, text_of):
    """The pairs in each file of a unit, and in files that it names: [(file, [(name, value)])]."""
    found = {"EnvironmentFile": [], "UnsetEnvironment": [], "Environment": []}
    for name in regular(host, names):
        for kind, value in re.findall(
            r"^(?:Default|Manager)?(Environment|EnvironmentFile|UnsetEnvironment)[ \t]*=(.*)$",
            unit_text(text_of(name)),
            re.MULTILINE,
        ):
            # An empty value takes back what was listed before.
            found[kind] = found[kind] + [(name, value.strip())] if value.strip() else []
    rows = [(name, parse_pairs(value)) for name, value in found["Environment"]]
    for name, value in found["EnvironmentFile"]:
        pattern = value.lstrip("-")
        for path in files_of(host, [pattern]) if pattern[:1] == "/" else []:
            rows.append((name, environment_file(text_of(path))))
    gone = [word for _, value in found["UnsetEnvironment"] for word in value.split()]
    return [
        (name, [pair for pair in pairs if pair[0] not in gone and "=".join(pair) not in gone])
        for name, pairs in last_of(rows)
    ]


def unit_text(text):
    """systemd's lines: one that ends in a backslash goes on in the next that is no comment."""
    lines = [line.lstrip() for line in text.split("\n")]
    text = "\n".join(line for line in lines if line[:1] not in ("#", ";"))
    return re.sub(r"(?<!\\)((?:\\\\)*)\\\n", r"\1 ", text)


QUOTED = r"""'([^']*)'|"((?:\\.|[^"\\])*)\""""
ENVIRONMENT_LINE = re.compile(
    r"^[ \t]*([^\s=#;][^=\n]*?)[ \t]*=((?:[ \t]*(?:%s))*)[ \t]*((?:\\.|[^\\\n])*)" % QUOTED,
    re.MULTILINE | re.DOTALL,
)


def environment_file(text):
    """Pairs in systemd's environment files, whose values may go on in the next line."""
    found = []
    for match in ENVIRONMENT_LINE.finditer(text):
        value = "".join(
            single or re.sub(r"\\(?:\n|([\"\\`$]))", r"\1", double)
            for single, double in re.findall(QUOTED, match.group(2), re.DOTALL)
        )
        rest = re.sub(r"\\(?:\n|(.))", r"\1", match.group(5))
        found.append((match.group(1), value + rest.rstrip()))
    return found


def parse_pairs(line):
    """Pairs of name and value in `A=1 "B=2 3"`."""
    try:
        args = shlex.split(line)
    except ValueError:
        args = line.split()
    return [tuple(word.split("=", 1)) for word in args if "=" in word]


def mentioned(name, directories="", lines=""):
    """The existing files that a file's lines name, where they match `lines`.

    A line that also matches `directories` may name directories too.
    """
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
