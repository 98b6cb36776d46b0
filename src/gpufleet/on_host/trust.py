"""Judge which accounts could have written what root is about to execute or load.

Root runs what root alone could have written: the file, each directory and link on the way to it,
the interpreter of a script, the libraries that the linker finds for it. What one other account
could have written too runs as that account; what several could have written does not run, and
neither does what cannot be judged. A group counts by its members, but root's. A directory with the
sticky bit keeps what is in it; where names are searched, whoever can add a file to it counts.

Each start is judged by a `Judgement` of its own, immediately before it: nothing that was seen of
owners, modes and names is kept for the next one.
"""

import errno
import os
import re
import shutil
import stat
import struct
from collections import namedtuple

from .constants import DRIVER_FILE, REFUSED, UNJUDGED, is_cuda_file
from .elf import elf_dynamic
from .linker_cache import parse_linker_cache
from .text import is_number, open_regular, read_bounded

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CACHE, PRELOAD = "/etc/ld.so.cache", "/etc/ld.so.preload"
LINKER_DEFAULTS = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")
# Where the dynamic linker also searches below each of a library's directories.
CAPABILITIES = ("glibc-hwcaps", "tls", "x86_64", "haswell", "avx512_1", "xeon_phi")
# The values of $LIB and $PLATFORM in the linker, on the known distributions and processors.
LIB_NAMES = ("lib64", "lib", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu")
PLATFORM_NAMES = ("x86_64", "haswell", "xeon_phi", "aarch64")
# Among the keys of the accounts: every account, and what nobody can tell.
ANYONE, UNKNOWN = -1, -2
# The errors by which a file is not there. Every other error leaves open what there is.
ABSENT = (errno.ENOENT, errno.ENOTDIR)
# Sources, which wheels mark as executable like their programs: they load nothing.
SOURCES = (".h", ".hpp", ".cuh", ".inc", ".inl", ".py", ".pyi", ".proto")
# The word for files that may be added to a directory in which any name is searched.
ANY_FILES = "files"
MOST_ENTRIES, MOST_LINKS = 400000, 400
# {(path, state of the file): its headers}: what changes is read again.
HEADERS = {}

Account = namedtuple("Account", "name uid gid groups")
# It owns no files and is in no group.
ORDINARY = Account("an ordinary account", 65534, 65534, [])


class RefusedError(RuntimeError):
    """Root would execute or load what others could have written."""


def account_for(paths, as_owner):
    """The account as which this code runs; None: as the one that this process has.

    `paths`: programs and libraries, directories with all that is in them, and the linker's cache
    for what is loaded by name alone; a mapping of them has what names each. Or a function that
    returns them, which root alone calls. Raises RefusedError.
    """
    if os.geteuid() != 0:
        return None
    judgement, paths = Judgement(), paths() if callable(paths) else paths
    for path in paths:
        judgement.code(path, paths[path] if isinstance(paths, dict) else "")
    found = judgement.found
    if not found:
        return None
    if as_owner and len(found) == 1 and min(found) > 0:
        import pwd

        try:
            name, _, uid, gid = pwd.getpwuid(*found)[:4]
            return Account(name, uid, gid, os.getgrouplist(name, gid))
        except (KeyError, OverflowError):  # no account has that number
            pass
    raise RefusedError("%s: %s" % ("; ".join(list(found.values())[:2]), REFUSED))


def account_called(number):
    import pwd

    try:
        return "%s (%d)" % (pwd.getpwuid(number).pw_name, number)
    except (KeyError, OverflowError):
        return "user %d" % number


class Judgement:
    """The accounts beside root that could have written files which one start executes or loads.

    `found`: {account: the first reason}; a reason names the path, and what leads to it (`context`).
    """

    def __init__(self):
        self.found, self.context = {}, ""
        self.steps, self.groups, self.real = {}, {}, {}
        self.directories, self.places, self.loaded = set(), set(), set()
        self.entries, self.cached = 0, None

    def note(self, account, reason):
        self.found.setdefault(account, reason + self.context)

    def code(self, path, named_by=""):
        """A file or a directory among those that a start executes or loads."""
        self.context = " (%s names it)" % named_by if named_by else ""
        if path == CACHE:
            self.linker_cache()
        elif os.path.isdir(path):
            self.tree(path)
        else:
            self.load(path)

    def unknown(self, path, error):
        """A path of which something else is the matter than that it is not there."""
        if error.errno not in ABSENT:
            self.note(UNKNOWN, "%s %s: %s" % (path, UNJUDGED, error.strerror))

    def step(self, path):
        """The status of one file or directory, its writers noted; None where there is none."""
        if path not in self.steps:
            self.steps[path] = None
            try:
                self.steps[path] = info = os.lstat(path)
            except OSError as error:
                self.unknown(path, error)
            else:
                self.writers(path, info)
        return self.steps[path]

    def writers(self, path, info, added=None):
        """Note who can change a file, or what is in a directory. One with the sticky bit keeps its
        files; whoever can add one to it counts where one is searched: its path, or ANY_FILES."""
        mode = info.st_mode
        link, sticky = stat.S_ISLNK(mode), stat.S_ISDIR(mode) and mode & stat.S_ISVTX
        if info.st_uid:
            reason = "%s%s belongs to %s"
            reason %= ("the link " if link else "", path, account_called(info.st_uid))
            self.note(info.st_uid, reason)
        if link or (sticky and not added):
            return
        verb = "write " + path
        if sticky:
            verb = "add files to " + path if added == ANY_FILES else "create " + added
        can = "%s can %s"
        if mode & 0o002:
            self.note(ANYONE, can % ("every account", verb))
        if mode & 0o020:
            for account in self.group_writers(path, info.st_gid):
                name = (
                    "members of group %d" % info.st_gid
                    if account == ANYONE
                    else account_called(account)
                )
                self.note(account, can % (name, verb))

    def group_writers(self, path, gid):
        """The accounts by which the group's bits of a mode count: with an access list they stand
        for all that it names."""
        listed = writers_of_list(path)
        if listed is None:
            return self.members(gid)
        found = {number for tag, number in listed if tag == 2}
        for tag, number in listed:
            if tag != 2:
                found |= self.members(gid if tag == 4 else number)
        return found - {0}

    def members(self, gid):
        if gid not in self.groups:
            self.groups[gid] = members(gid) if gid else set()
        return self.groups[gid]

    def adders(self, directory, name=ANY_FILES):
        """Note who can add a file to a directory in which names are searched, or that one."""
        info = self.step(directory)
        if info and stat.S_ISDIR(info.st_mode):
            self.writers(directory, info, name)

    def way(self, path, searched=False):
        """Note who can change what leads to a path, as the kernel follows it; the real path."""
        path, links = path if path[:1] == "/" else os.path.abspath(path), MOST_LINKS
        above, _, name = path.rpartition("/")
        if above in self.real and name not in ("", ".", ".."):
            at, parts = self.real[above].rstrip("/"), [name]
        else:
            at, parts = "", path.split("/")[::-1]
            self.step("/")
        while parts:
            part = parts.pop()
            if part in ("", ".", ".."):
                at = os.path.dirname(at).rstrip("/") if part == ".." else at
                continue
            above, at = at or "/", at + "/" + part
            info = self.step(at)
            if info is None:
                # Not there yet: whoever may create it.
                self.adders(above, at)
                return at
            if stat.S_ISLNK(info.st_mode):
                links -= 1
                if not links:
                    # A loop. The kernel follows 40 links: nobody can read or start such a file, so
                    # there is nothing to trust, and what needs the file reports that it is
                    # unusable.
                    return at
                try:
                    target = os.readlink(at)
                except OSError as error:
                    self.unknown(at, error)
                    return at
                at = "" if target.startswith("/") else os.path.dirname(at).rstrip("/")
                parts += target.split("/")[::-1]
        if searched:
            self.adders(at or "/")
        self.real[path] = at or "/"
        return self.real[path]

    def tree(self, top):
        """Note who can change a directory and all in it; links to directories elsewhere included,
        and what the libraries and programs in it load."""
        real = self.way(top)
        left, libraries = [real], []
        while left and len(self.found) < 2 and self.entries <= MOST_ENTRIES:
            directory = left.pop()
            if directory in self.directories:
                continue
            self.directories.add(directory)
            self.real[directory] = directory
            self.adders(directory)
            for entry, own in self.listed(directory):
                kind, mode, name = stat.S_IFMT(own), own, entry.name
                if kind == stat.S_IFDIR:
                    left.append(entry.path)
                    continue
                if kind == stat.S_IFLNK:
                    target = self.way(entry.path)
                    status = self.step(target)
                    if not status:
                        continue
                    mode = status.st_mode
                    if stat.S_ISDIR(mode):
                        if not (real + "/").startswith(target.rstrip("/") + "/"):
                            left.append(target)
                        continue
                if ".so" in name or (mode & 0o111 and not name.endswith(SOURCES)):
                    libraries.append(entry.path)
        if self.entries > MOST_ENTRIES:
            self.note(ANYONE, "%s has more than %d files" % (top, MOST_ENTRIES))
        for path in libraries:
            self.load(path, script=False)

    def listed(self, directory):
        """Entry and mode of all files in a directory, its writers noted."""
        try:
            entries = list(os.scandir(directory))
        except OSError as error:
            self.unknown(directory, error)
            return []
        self.entries += len(entries)
        found = []
        for entry in entries:
            try:
                info = entry.stat(follow_symlinks=False)
            except OSError as error:  # it is gone
                self.unknown(entry.path, error)
                continue
            mode = info.st_mode
            if entry.name == ".lock" and stat.S_ISREG(mode):
                continue  # uv's, in each environment; everybody can write it, and nothing reads it
            if info.st_uid or mode & 0o022:
                self.writers(entry.path, info)
            found.append((entry, mode))
        return found

    def load(self, path, script=True):
        """Note who can change a program or library, and all that is loaded with it by its own
        headers. Without `script` it is none that is started: its first line is not followed."""
        left = [path]
        if PRELOAD not in self.loaded:
            self.loaded.add(PRELOAD)
            self.way(PRELOAD)
            try:
                left += re.split(r"[\s:]+", read_bounded(PRELOAD).strip())
            except OSError as error:
                self.unknown(PRELOAD, error)
        while left and len(self.found) < 2:
            path = left.pop()
            if not path or path in self.loaded:
                continue
            self.loaded.add(path)
            real = self.way(path)
            info = self.step(real)
            if not info or not stat.S_ISREG(info.st_mode):
                continue  # what cannot be loaded is not
            try:
                content = headers_of(real, info)
            except OSError as error:
                self.unknown(real, error)
                continue
            if isinstance(content, dict):
                left += self.linked(path, real, content)
            elif script:
                left += content[:1]
                if content and os.path.basename(content[0]) == "env":
                    left += [shutil.which(word, path=SYSTEM_PATH) for word in content[1:]]

    def linked(self, path, real, headers):
        """The files that are loaded with an ELF file; who can add one where it searches is noted.

        Others are opened by their names while it runs: all in its own directories count.
        """
        found, places = [headers["interpreter"]], []
        for place in headers["runpath"]:
            places += expanded(place, path, real)
        places += os.environ.get("LD_LIBRARY_PATH", "").split(":")
        places = [place for place in dict.fromkeys(places) if place[:1] == "/"]
        context, self.context = self.context, " (%s searches there)" % real
        for place in places:
            found += self.place(place)
        self.context = context
        for name in headers["needed"] + headers["filters"]:
            if "/" in name:
                found += expanded(name, path, real)
            else:
                found.append(self.library(name, places))
        return found

    def place(self, directory):
        """The libraries in a directory of a library's headers, if it is not the linker's own."""
        real = self.way(directory, searched=True)
        if real in self.places:
            return []
        self.places.add(real)
        system = [os.path.realpath(place) for place in LINKER_DEFAULTS]
        if os.path.basename(real).endswith("-linux-gnu"):
            system.append(real if os.path.dirname(real) in system else "")
        if real in system or not os.path.isdir(real):
            return []
        found = []
        for name in self.names(real):
            path = real + "/" + name
            if name in CAPABILITIES:
                for below in [path, *(path + "/" + name for name in self.names(path))]:
                    found += self.place(below)
            elif ".so" in name and not os.path.isdir(path):
                found.append(path)
        return found

    def names(self, directory):
        try:
            return os.listdir(directory)
        except OSError as error:
            self.unknown(directory, error)
            return []

    def library(self, name, places):
        if self.cached is None:
            self.cached = cached_libraries()
        return library_file(name, places, self.cached)

    def linker_cache(self):
        """Note who can change what the linker finds by name alone, whatever is loaded."""
        self.way(CACHE)
        for soname, paths in cached_libraries().items():
            for at, name in enumerate(paths):
                self.way(name)
                if is_cuda_file(soname) or DRIVER_FILE.match(soname):
                    # Frameworks open these by name alone, with what they need.
                    self.load(name, script=False)
                # The linker takes the first file that the processor can use.
                if "hwcaps" not in name or at > 8:
                    break


def walk(path):
    """The reasons by account for all that leads to a path, links followed, and the real path."""
    judgement = Judgement()
    real = judgement.way(path)
    return judgement.found, real


def code_writers(path):
    """The reasons by account for a file or directory that is executed or loaded."""
    judgement = Judgement()
    judgement.code(path)
    return judgement.found


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
    return [row for row in rows if len(row) > 3 and is_number(row[2])]


def writers_of_list(path):
    """Pairs of tag and number of the users and groups in an access list that may write.

    Tag 2 is a user, 4 the file's own group, 8 a group; None without a list. root's number, 0, is
    among them too.
    """
    try:
        acl = os.getxattr(path, "system.posix_acl_access")
    except OSError:
        return None
    return {
        (tag, number)
        for tag, allowed, number in struct.iter_unpack("<HHI", acl[4:])
        if allowed & 2 and tag in (2, 4, 8)
    }


def headers_of(path, info):
    """The headers of an ELF file, or the words of a script's first line; an empty list of what is
    neither."""
    key = (path, info.st_dev, info.st_ino, info.st_size, info.st_ctime_ns)
    if key not in HEADERS:
        HEADERS[key] = _read_headers(path)
    return HEADERS[key]


def _read_headers(path):
    with open_regular(path) as stream:
        head = stream.read(256)
    if head[:2] == b"#!":
        return head[2:].split(b"\n")[0].decode("utf-8", "surrogateescape").split()
    try:
        return elf_dynamic(path, whole=False)
    except (ValueError, LookupError, struct.error):
        return []  # what cannot be loaded is not


def expanded(name, path, real):
    """The names that the dynamic linker reads in a name of a library's headers. One that does not
    begin with a slash is below the working directory, which is `/` for all that root starts."""
    found = [name]
    for word, values in (
        # A library's own directory is that of the name by which it is opened.
        ("ORIGIN", (os.path.dirname(path), os.path.dirname(real))),
        ("LIB", LIB_NAMES),
        ("PLATFORM", PLATFORM_NAMES),
    ):
        pattern = re.compile(r"\$(?:%s(?!\w)|\{%s\})" % (word, word))
        found = [
            value.join(pattern.split(text))
            for text in found
            for value in (values if pattern.search(text) else ("",))
        ]
    return ["/" + text.lstrip("/") for text in dict.fromkeys(found)]


def library_file(name, places=None, cached=None):
    """The file that the linker finds for a name; None without one."""
    if places is None:
        places = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    candidates = [place + "/" + name for place in places if place[:1] == "/"]
    candidates += (cached_libraries() if cached is None else cached).get(name, [])
    candidates += [place + "/" + name for place in LINKER_DEFAULTS]
    return next((path for path in candidates if os.path.exists(path)), None)


def cached_libraries():
    """The paths of each library in the dynamic linker's cache, in the order of the search."""
    found = {}
    try:
        with open_regular(CACHE) as stream:
            for name, path in parse_linker_cache(stream.read()):
                found.setdefault(name, []).append(path)
    except (OSError, ValueError, struct.error):
        pass
    return found


def compiler_code(python):
    """The files that a C compiler runs and reads when a Python program starts it.

    They are the compiler, with the target of its link, and the headers beside the system's own.
    """
    found = [shutil.which(name, path="/usr/bin:/bin") for name in ("gcc", "clang")]
    found, real = [path for path in found if path], walk(python)[1]
    places = ["/usr/local/include", os.path.dirname(os.path.dirname(real)) + "/include"]
    return found + [place for place in places if os.path.isdir(place)]
