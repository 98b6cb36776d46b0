"""Settings that keep a kernel module from being loaded: modprobe's, the kernel's command line."""

import os
import re
from fnmatch import fnmatchcase

MODPROBE_LOCATIONS = (
    "/etc/modprobe.d",
    "/run/modprobe.d",
    "/usr/lib/modprobe.d",
    "/lib/modprobe.d",
)
COMMAND_LINE = "/proc/cmdline"
# A shell command in place of a module, which loads none.
LOADS_NOTHING = re.compile(r"(?:\S*/)?(?:true|false|:)(?![^\s;&|])(?!.*\b(?:modprobe|insmod)\b)")


def modprobe_files(host):
    """Path and text of modprobe's files in its order, links followed as the host would."""
    found = {}
    for location in MODPROBE_LOCATIONS:
        for name in host.glob(location + "/*.conf"):
            # The first directory that has a file of that name wins.
            if os.path.basename(name) not in found:
                found[os.path.basename(name)] = (name, configuration(host, name))
    return [found[name] for name in sorted(found)]


def configuration(host, name):
    """The text of a file; a link to /dev/null is how an administrator empties the one of /usr."""
    path = host.realpath(name)
    return "" if path == os.devnull else host.text_or_none(path) or ""


def commands(text):
    """Command, module and rest of each line of a file, as modprobe reads it.

    A comment is a line whose first word begins with its mark; what it goes on in is part of it.
    """
    found = []
    for line in text.replace("\\\n", "").splitlines():
        words = line.split(None, 2)
        if len(words) > 1:
            found.append((words[0], words[1].replace("-", "_"), "".join(words[2:])))
    return found


def blocked_by(files, module):
    """The file whose `install` command loads nothing in place of a module; None without one."""
    for path, text in files:
        for command, name, rest in commands(text):
            if command == "install" and fnmatchcase(module, name):
                # modprobe obeys the first of several commands for a module.
                return path if LOADS_NOTHING.match(rest) else None
    return None


def blacklisted(files, module):
    """Return whether modprobe loads a module for no device, or not at all."""
    return bool(blocked_by(files, module)) or any(
        row[:2] == ("blacklist", module) for _, text in files for row in commands(text)
    )


def parameter(command_line, name):
    """The modules of a parameter of the kernel's command line."""
    words = [word for word in command_line.replace('"', "").split() if word.startswith(name + "=")]
    return [module for word in words for module in word.split("=", 1)[1].split(",")]


def blocked(files, command_line, names):
    """The modules that are never loaded (module, by), with the file that prevents it."""
    found = []
    for name in names:
        by = blocked_by(files, name)
        if name in parameter(command_line, "module_blacklist"):
            by = COMMAND_LINE
        if by:
            found.append({"module": name, "by": by})
    return found


def kept_out(files, command_line, module):
    """Return whether no boot loads a module for a device."""
    named = [name.replace("-", "_") for name in parameter(command_line, "modprobe.blacklist")]
    return module in named + parameter(command_line, "module_blacklist") or blacklisted(
        files, module
    )
