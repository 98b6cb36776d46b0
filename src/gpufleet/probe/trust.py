"""Judge which accounts could have written what root is about to execute or load.

Root runs what root alone could have written: the file, each directory and link on the way to it,
the interpreter of a script, the libraries that the linker finds for it. What one other account
could have written too runs as that account; what several could have written does not run.
A group counts by its members, but root's; a directory with the sticky bit by what is in it.
"""
import errno
import functools
import os
import re
import shutil
import stat
import struct
from collections import namedtuple

from .constants import REFUSED
from .elf import elf_dynamic
from .linker_cache import parse_linker_cache
from .text import first_match, open_regular, read_bounded

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CACHE, PRELOAD = "/etc/ld.so.cache", "/etc/ld.so.preload"
LINKER_DEFAULTS = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")
# Among the keys of the accounts: every account.
ANYONE = -1
MOST_ENTRIES, MOST_LINKS = 400000, 40


Account = namedtuple("Account", "name uid gid groups")
# One that owns nothing and is in no group.
ORDINARY = Account("an ordinary account", 65534, 65534, [])


class RefusedError(RuntimeError):
    """Root would execute or load what others could have written."""


def account_for(paths, as_owner):
    """The account as which this code runs; None: as the one that this process has.

    `paths`: programs and libraries, directories with all that is in them, and the linker's cache
    for what is loaded by name alone. Raises RefusedError.
    """
    if os.geteuid() != 0:
        return None
    found = {}
    for path in paths:
        judge = linker_cache_writers if path == CACHE else tree if os.path.isdir(path) else program
        for account, why in judge(path).items():
            found.setdefault(account, why)
    if not found:
        return None
    if as_owner and len(found) == 1 and ANYONE not in found:
        import pwd
        try:
            name, _, uid, gid = pwd.getpwuid(*found)[:4]
            return Account(name, uid, gid, os.getgrouplist(name, gid))
        except KeyError:  # no account has that number
            pass
    raise RefusedError("%s: %s" % ("; ".join(list(found.values())[:2]), REFUSED))


def account_called(number):
    import pwd
    try:
        return "%s (%d)" % (pwd.getpwuid(number).pw_name, number)
    except KeyError:
        return "user %d" % number


@functools.lru_cache(maxsize=None)
def members(gid):
    """The numbers of a group's members; ANYONE for those that the host's own files do not name."""
    accounts, found = {}, set()
    for row in _rows("/etc/passwd"):
        accounts[row[0]] = int(row[2])
        if row[3] == str(gid):
            found.add(int(row[2]))
    groups = [row for row in _rows("/etc/group") if row[2] == str(gid)]
    if not groups:
        found.add(ANYONE)
    for row in groups:
        found.update(accounts.get(name, ANYONE) for name in row[3].split(",") if name)
    return found - {0}


def _rows(name):
    with open(name, encoding="utf-8", errors="replace") as stream:
        rows = [line.strip().split(":") for line in stream]
    return [row for row in rows if len(row) > 3 and row[2].isdigit()]


def writers(path, info):
    """{account: reason} of those beside root who can change a file, or what is in a directory."""
    found, mode = {}, info.st_mode
    if info.st_uid:
        found[info.st_uid] = "%s belongs to %s" % (path, account_called(info.st_uid))
    if stat.S_ISLNK(mode) or (stat.S_ISDIR(mode) and mode & stat.S_ISVTX):
        return found
    if mode & 0o002:
        found[ANYONE] = "every account can write %s" % path
    if mode & 0o020:
        for account in _group_writers(path, info.st_gid):
            found.setdefault(account, "%s can write %s" % (
                "members of group %d" % info.st_gid if account == ANYONE
                else account_called(account), path))
    return found


def _group_writers(path, gid):
    listed = writers_of_list(path)
    found = {number for tag, number in listed or () if tag == 2}
    groups = {gid if tag == 4 else number for tag, number in listed if tag != 2} \
        if listed is not None else {gid}
    for group in groups - {0}:
        found |= members(group)
    return found - {0}


def writers_of_list(path):
    """{(tag, number)} of an access list's users (2) and groups (4: the file's own, 8) that may
    write; None without a list. root's number, 0, is among them too."""
    try:
        acl = os.getxattr(path, "system.posix_acl_access")
    except OSError:
        return None
    return {(tag, number) for tag, allowed, number in struct.iter_unpack("<HHI", acl[4:])
            if allowed & 2 and tag in (2, 4, 8)}


@functools.lru_cache(maxsize=None)
def _step(path):
    try:
        info = os.lstat(path)
    except OSError:
        return None, {}
    return info, writers(path, info)


def walk(path):
    """({account: reason}, real path) of all that leads to a path, links followed."""
    found, at, links = dict(_step("/")[1]), "", MOST_LINKS
    parts = os.path.abspath(path).split("/")[::-1]
    while parts:
        part = parts.pop()
        if part in ("", ".", ".."):
            at = os.path.dirname(at).rstrip("/") if part == ".." else at
            continue
        above, at = at or "/", at + "/" + part
        info, own = _step(at)
        for account, why in own.items():
            found.setdefault(account, why)
        if info is None:
            # Not there yet: whoever may create it.
            info = _step(above)[0]
            if info and info.st_mode & stat.S_ISVTX and info.st_mode & 0o022:
                found[ANYONE] = "every account can create %s" % at
            break
        if stat.S_ISLNK(info.st_mode):
            links -= 1
            if not links:
                raise RefusedError("%s: too many links: %s" % (path, REFUSED))
            target = os.readlink(at)
            at = "" if target.startswith("/") else os.path.dirname(at).rstrip("/")
            parts += target.split("/")[::-1]
    return found, at or "/"


@functools.lru_cache(maxsize=None)
def tree(top):
    """{account: reason} of a directory and all in it; links to directories elsewhere included."""
    found, real = walk(top)
    left, done, entries = [real], set(), 0
    while left and len(found) < 2:
        directory = left.pop()
        done.add(directory)
        try:
            names = list(os.scandir(directory))
        except OSError:
            continue
        for entry in names:
            entries += 1
            try:
                info = entry.stat(follow_symlinks=False)
            except OSError:  # it is gone
                continue
            if entry.name == ".lock" and stat.S_ISREG(info.st_mode):
                continue  # uv's, in each environment; everybody can write it, and nothing reads it
            if info.st_uid or (info.st_mode & 0o022 and not entry.is_symlink()):
                found.update(writers(entry.path, info))
            target = entry.path
            if entry.is_symlink():
                more, target = walk(entry.path)
                found.update(more)
            if os.path.isdir(target) and target not in done and not (
                    real + "/").startswith(target.rstrip("/") + "/"):
                left.append(target)
        if entries > MOST_ENTRIES:
            found[ANYONE] = "%s has more than %d files" % (top, MOST_ENTRIES)
    return found


@functools.lru_cache(maxsize=None)
def program(path):
    """The same of a program or library, and of all that is loaded with it by its own headers."""
    found, left, done = {}, [path], set()
    try:
        left += re.split(r"[\s:]+", read_bounded(PRELOAD).strip())
    except OSError:
        pass
    while left:
        path = left.pop()
        if not path or path in done:
            continue
        done.add(path)
        more, real = walk(path)
        found.update(more)
        try:
            with open_regular(real) as stream:
                head = stream.read(256)
            if head[:2] == b"#!":
                command = head[2:].split(b"\n")[0].decode("utf-8", "replace").split()
                left.append(command[0])
                if os.path.basename(command[0]) == "env":
                    left += [shutil.which(word, path=SYSTEM_PATH) for word in command[1:]]
                continue
            headers = elf_dynamic(real)
        except (OSError, ValueError, LookupError, struct.error):
            continue  # what cannot be loaded is not
        places = [place.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", os.path.dirname(real))
                  for place in headers["runpath"]]
        places += os.environ.get("LD_LIBRARY_PATH", "").split(":")
        for place in places:
            if place[:1] == "/":
                found.update(walk(place)[0])
        left.append(headers["interpreter"])
        left += [name if "/" in name else library_file(name, tuple(places))
                 for name in headers["needed"]]
    return found


def library_file(name, places=None):
    """The file that the linker finds for a name; None without one."""
    if places is None:
        places = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    candidates = [place + "/" + name for place in places if place[:1] == "/"]
    candidates += cached_libraries().get(name, [])
    candidates += [place + "/" + name for place in LINKER_DEFAULTS]
    return next((path for path in candidates if os.path.exists(path)), None)


@functools.lru_cache(maxsize=None)
def cached_libraries():
    found = {}
    try:
        with open_regular(CACHE) as stream:
            for name, path in parse_linker_cache(stream.read()):
                found.setdefault(name, []).append(path)
    except (OSError, ValueError, struct.error):
        pass
    return found


@functools.lru_cache(maxsize=None)
def linker_cache_writers(path):
    """The same of what the linker finds by name alone, whatever is loaded."""
    found = dict(walk(path)[0])
    for paths in cached_libraries().values():
        for at, name in enumerate(paths):
            found.update(walk(name)[0])
            # Of several the first is taken that the processor can use.
            if "hwcaps" not in name or at > 8:
                break
    return found


def compiler_code(python):
    """What a C compiler runs and reads that a Python program starts: the compiler, with what its
    link leads to, and the headers beside the system's own."""
    found = [shutil.which(name, path="/usr/bin:/bin") for name in ("gcc", "clang")]
    found, real = [path for path in found if path], walk(python)[1]
    places = ["/usr/local/include", os.path.dirname(os.path.dirname(real)) + "/include"]
    return found + [place for place in places if os.path.isdir(place)]


def interpreter_code(python):
    """What a Python interpreter loads: its library, its environment, what its start hooks name."""
    real = walk(python)[1]
    home = os.path.dirname(os.path.dirname(os.path.abspath(python)))
    places, found = [os.path.dirname(os.path.dirname(real))], [python, CACHE]
    try:
        settings = read_bounded(home + "/pyvenv.cfg")
        found.append(home)
        base = first_match(r"^home\s*=\s*(/\S*)", settings)
        if base:
            places.append(os.path.dirname(base.rstrip("/")))
        if re.search(r"^include-system-site-packages\s*=\s*true", settings, re.MULTILINE):
            places.append("/usr/local")
    except OSError:
        pass
    for place in dict.fromkeys(places):
        for below in ("/lib", "/lib64"):
            found += [path for path in _listed(place + below)
                      if re.match(r"python3(\.\d+)?$", os.path.basename(path))]
    for site in [path + "/site-packages" for path in _listed(home + "/lib")]:
        for name in _listed(site):
            if re.search(r"\.pth$|/__editable__|/_gpufleet_binding\.json$", name):
                # A library loads others beside it.
                found += [os.path.dirname(path) if ".so" in path else path
                          for path in mentioned(name)]
    return list(dict.fromkeys(found))


def _listed(directory):
    try:
        return sorted(directory + "/" + name for name in os.listdir(directory))
    except OSError:
        return []


def mentioned(name, lines=""):
    """The existing files that a text names, and the directories, those of matching lines alone."""
    try:
        text = read_bounded(name)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise
        return []
    found = []
    for line in text.splitlines():
        for path in re.findall(r"(?<![\w.~$})*-])/[\w.@+/-]+", line.partition(" #")[0]):
            if os.path.isfile(path) or (os.path.isdir(path) and re.search(lines, line)):
                found.append(path)
    return list(dict.fromkeys(found))
