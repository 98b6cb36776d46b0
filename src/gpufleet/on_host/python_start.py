"""List what a Python interpreter executes and loads when it starts, as Python itself decides it.

The rules are those of Python's `getpath` and `site`, from 3.6 on: `pyvenv.cfg`, the search for the
standard library, the site directories, the lines of `.pth` files. Where releases differ, what
either of them reads is listed. Nothing is run.
"""

import ast
import errno
import json
import os
import re

from .constants import REFUSED, UNJUDGED
from .text import open_regular, read_bytes
from .trust import ABSENT, CACHE, RefusedError, walk

# Modules that an editable installation imports at each start; they name the sources' directories.
EDITABLE = re.compile("editable")
# The first release, as its minor number, that passes over hidden `.pth` files in each patch.
HIDDEN_PASSED_OVER = 13


def program_code(path):
    """The files that a program loads; of an interpreter or an environment's script, all of it."""
    home = os.path.dirname(os.path.dirname(os.path.abspath(path)))
    if re.match(r"(platform-)?python", os.path.basename(path)) or text_of(home + "/pyvenv.cfg"):
        return interpreter_code(path)
    return {path: ""}


def interpreter_code(python, site=True):
    """The files and directories that an interpreter loads, by path, with the start hook or "".

    Raises RefusedError where a file that decides about it cannot be read. Without `site` it is
    started with -I and -S.
    """
    python = os.path.abspath(python)
    real = walk(python)[1]
    version = re.search(r"python(3\.\d+t?)$", real)
    version = re.escape(version.group(1)) if version else r"3\.\d+t?"
    home = os.path.dirname(os.path.dirname(python))
    settings, files = pyvenv_settings(python)
    # Releases before 3.11 follow the link first, and so find their base without these settings.
    more, others = pyvenv_settings(real)
    starts = [os.path.dirname(real)] if is_program(real) and "home" not in (more or {}) else []
    for base in (settings or {}).get("home", []) + (more or {}).get("home", []):
        start = os.path.abspath("/" + base)
        starts += [start, os.path.dirname(walk(start + "/" + os.path.basename(python))[1])]
    starts = list(dict.fromkeys(starts))
    found = [python, CACHE, *files, *others, *path_files(python, starts)]
    prefixes = []
    for start in starts:
        read, prefix = library_of(start, version)
        found += read
        prefixes += [prefix] if prefix else ["/usr", "/usr/local"]
    prefixes = list(dict.fromkeys(prefixes))
    for prefix in prefixes:
        for path in libraries(prefix, version):
            # Python prefers an archive beside it.
            found += [path, re.sub(r"3\.(\d+)t?$", r"3\1.zip", path)]
    if settings is not None:
        found.append(home)
    hooks = {}
    if site:
        sites = site_directories(home, version) if settings is not None else []
        if settings is None or uses_system_packages(settings):
            for prefix in prefixes:
                sites += site_directories(prefix, version)
            sites += user_sites(prefixes, version)
        for directory in dict.fromkeys(sites):
            found.append(directory)
            hooks.update(named_at_start(directory))
    return dict(dict.fromkeys(found, ""), **hooks)


def is_program(path):
    """Return whether a file is a program for the kernel: a script searches for no library."""
    try:
        with open_regular(path) as stream:
            return stream.read(4) == b"\x7fELF"
    except OSError as error:
        return bool(unless_absent(path, error))


def pyvenv_settings(python):
    """The values of an environment's pyvenv.cfg by key, and the files that were searched for.

    The values are None outside of an environment.
    """
    place, files = os.path.dirname(python), []
    for directory in (place, os.path.dirname(place)):
        files.append(directory + "/pyvenv.cfg")
        text = text_of(files[-1])
        if text is not None:
            found = {}
            for line in text.splitlines():
                key, mark, value = line.partition("=")
                if mark:
                    found.setdefault(key.strip().lower(), []).append(value.strip())
            return found, files
    return None, files


def uses_system_packages(settings):
    """Return whether an environment searches its base Python's packages: without a line, yes."""
    return settings.get("include-system-site-packages", ["true"])[-1].lower() == "true"


def library_of(start, version):
    """The paths that the search for the standard library reads upwards, and its prefix or None."""
    read, at = [], start
    while True:
        names = libraries(at, version)
        if any(os.path.exists(path + "/os.py") for path in names):
            return read, at
        # Whoever can create it there decides.
        at = at.rstrip("/")
        read += [*names, at + "/lib/python3/os.py", at + "/lib64/python3/os.py"]
        if not at:
            return read, None
        at = os.path.dirname(at)


def libraries(prefix, version):
    """The directories of the standard library below a prefix."""
    return [
        path
        for below in ("/lib", "/lib64")
        for path in listed(prefix.rstrip("/") + below)
        if re.match("python%s$" % version, os.path.basename(path))
    ]


def path_files(python, starts):
    """The files beside an interpreter that replace its search, if they exist or are created: the
    `._pth` of Python 3.11 and later, `pybuilddir.txt` and `Modules/Setup.local` of a build."""
    name = os.path.join("/", python.rpartition(".")[0] + "._pth")
    found = [name]
    for line in (text_of(name) or "").splitlines():
        found.append(os.path.abspath(os.path.join(os.path.dirname(python), line.strip())))
    for start in starts:
        found += [start + "/pybuilddir.txt", start + "/Modules/Setup.local"]
    return found


def site_directories(prefix, version):
    """The site directories below a prefix: CPython's, Debian's and Red Hat's, there or not."""
    names = sorted({os.path.basename(path) for path in libraries(prefix, version)})
    found = [
        "%s/%s/%s/%s-packages" % (prefix, below, name, kind)
        for below in ("lib", "lib64", "local/lib", "local/lib64")
        for name in names
        for kind in ("site", "dist")
    ]
    return [*found, prefix + "/lib/python3/dist-packages"]


def user_sites(prefixes, version):
    """The site directories of root's own, where its programs are started with one of two homes."""
    import pwd

    return [
        "%s/.local/lib/%s/site-packages" % (home.rstrip("/"), os.path.basename(path))
        for home in ("/", pwd.getpwuid(0).pw_dir)
        for prefix in prefixes
        for path in libraries(prefix, version)
    ]


def named_at_start(site):
    """The paths that a site directory's start hooks name, each with its hook.

    Hooks are lines of `.pth` files, editable installations, the libraries of this project's
    binding.
    """
    hooks = {}
    version = re.search(r"/python3\.(\d+)/", site)
    passes_over = version and int(version.group(1)) >= HIDDEN_PASSED_OVER
    for path in listed(site):
        name, found = os.path.basename(path), []
        if name.endswith(".pth") and not (passes_over and name.startswith(".")):
            for line in path_lines(text_of(path) or ""):
                if line.startswith(("import ", "import\t")):
                    found += literals(line, ("/", site))
                else:
                    found.append(os.path.abspath(os.path.join(site, line.rstrip())))
        elif EDITABLE.search(name) and name.endswith(".py"):
            for named in literals(text_of(path) or "", ("/",)):
                # A module's file stands for its package's directory, its name for its file.
                found += [named, named + ".py", re.sub(r"/__init__\.py$", "", named)]
        elif name == "_gpufleet_binding.json":
            # A library loads others beside it.
            found += [os.path.dirname(library) for library in bound_libraries(text_of(path))]
        hooks.update((named, path) for named in found if named != "/")
    return hooks


def path_lines(text):
    """The lines of a `.pth` file that Python reads: releases differ in what ends a line and in
    what they make of a byte order mark."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    lines = dict.fromkeys(text.split("\n") + text.lstrip("\ufeff").splitlines())
    return [line for line in lines if line.strip() and line[0] != "#" and "\0" not in line]


def literals(code, tops):
    """The paths that the texts of a Python program name. One that is not absolute may be below each
    of `tops`, and counts where it has a slash."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):
        texts = re.findall(r"[\"']([^\"']*)[\"']", code)
    else:
        texts = [getattr(node, "value", getattr(node, "s", None)) for node in ast.walk(tree)]
    found = []
    for text in texts:
        if isinstance(text, str) and "/" in text and "\0" not in text and "\n" not in text:
            path = os.path.expanduser(text)
            found += [os.path.abspath(os.path.join(top, path)) for top in tops]
    return found


def bound_libraries(text):
    """The libraries that an environment is bound to."""
    try:
        return [path for path in json.loads(text)["libraries"] if path[:1] == "/"]
    except (ValueError, LookupError, TypeError):
        return []


def text_of(path):
    """The text of a file, its bytes kept; None where there is none. Raises RefusedError."""
    try:
        return read_bytes(path).decode("utf-8", "surrogateescape")
    except OSError as error:
        return unless_absent(path, error)


def listed(directory):
    """The sorted paths in a directory. Raises RefusedError."""
    try:
        return sorted(directory + "/" + name for name in os.listdir(directory))
    except OSError as error:
        return unless_absent(directory, error) or []


def unless_absent(path, error):
    """None for what Python reads no more than this probe: what is not there, is a loop of links or
    no file. Raises RefusedError for every other error."""
    if error.errno not in (*ABSENT, errno.EINVAL, errno.ELOOP):
        reason = "%s %s: %s: %s" % (path, UNJUDGED, error.strerror, REFUSED)
        raise RefusedError(reason) from None
