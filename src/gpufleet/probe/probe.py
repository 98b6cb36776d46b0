"""Look at one host and print what is there, as one JSON document: the snapshot.

Standard library only, Python 3.6 and later, a single file: it is fed to ``python3 -I -S -`` on
standard input (the driver puts ``CONFIG = '<json>'`` in front), started by hand
(``python3 probe.py mode=full prefix=/usr/local``), or imported for its functions. It changes
nothing on the host and judges nothing: raw values, units in the names, ``null`` for what could
not be read. The shape of the document is in docs/documents.md.

Whatever can hang (a dead NFS mount, a driver in a D state, a profile that waits for input) runs
in a process of its own session that writes to a file. When its deadline passes it is killed and
*abandoned*: waiting for a process in a D state would hang the probe with it.
"""
import base64
import concurrent.futures.thread
import csv
import ctypes
import errno
import fnmatch
import glob
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import time

# ruff: noqa: B905 (zip has no `strict` before Python 3.10)
SCHEMA = 1
DEFAULTS = {
    "host": None, "mode": "facts", "prefix": "/usr/local", "stack_root": "/opt/gpufleet/stacks",
    "state_dir": "/var/lib/gpufleet", "tmpdir": "/tmp", "root": "/", "expect_gpus": None,
    "matmul": None, "deadline_s": 120, "deep": False, "pythons": [],
    "mig": False,
    # Of a GPU's memory, for a product beside other people's jobs; how long --deep loads it.
    "budget_mib": 1024, "sustained_s": 120,
    # {"engine": "docker" | "podman", "image": NAME | None}, where containers are declared.
    "containers": None,
    # The account that must be able to open the cards; an ordinary one where none is named.
    "service_user": None,
}
# What a section may take when no framework runs in it. A healthy one needs milliseconds.
SECTION_DEADLINE_S = 20

NVIDIA_VENDOR = "0x10de"
# libcudadebugger, libcuda and friends are the driver's and are told apart by the driver section.
CUDA_FILE = re.compile(
    r"^lib(cudart|cublas|cublasLt|cufft|cufftw|curand|cusolver|cusolverMg|cusparse|cudnn\w*|nvrtc"
    r"|nvrtc-builtins|nvJitLink|cupti|nccl|npp\w+|nvjpeg|nvblas|cufile)\.so(\.|$)")
DRIVER_FILE = re.compile(r"^lib(cuda|nvidia-ml|nvidia-ptxjitcompiler)\.so(\.|$)")
# The driver's packages of all distributions; CUDA's, cuDNN's and the container toolkit's are none.
DRIVER_PACKAGE = re.compile(
    r"^(libcuda(debugger)?1|cuda-drivers(-.+)?|kmod-nvidia.*|firmware-nvidia.*"
    r"|linux-(modules|objects|signatures)-nvidia.*|xserver-xorg-video-nvidia.*"
    r"|lib(egl|gles|glx|gl)\d?-nvidia.*"
    r"|libnvidia-(?!container|egl-|ml-dev).+"
    r"|nvidia-(?!cuda-(?!mps)|cudnn|container|docker|cg-|openjdk|opencl-dev|profiler|visual|fs-"
    r"|vaapi|prime|primus|gds).+)$")
# Kernel modules of the driver, by the names that distributions give them (nvidia-current-uvm.ko).
DRIVER_MODULE = re.compile(r"^(nvidia(?![-_](?:wmi|fs)\b)(?:[-_][\w-]+)?)\.ko(?:\.(?:xz|zst|gz))?$")
BESIDE_MODULE = re.compile(r"[-_](uvm|drm|modeset|peermem)$")
# Where in /lib/modules/VERSION they are put; to walk through all of it takes ten times as long.
MODULE_PLACES = ("updates", "extra", "weak-updates", "misc", "kernel/nvidia*", "kernel/extra",
                 "kernel/drivers/video", "kernel/drivers/char")
MODPROBE_PLACES = ("/etc/modprobe.d", "/run/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d")
# Where interpreters usually stand, in the order of preference.
PYTHON_PLACES = ("/usr/bin", "/usr/local/bin", "/opt/python/*/bin", "/opt/gpufleet/python/*/bin")
STEERING_VARIABLES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "CUDA_VISIBLE_DEVICES", "CUDA_HOME",
                      "PYTHONPATH", "PYTHONHOME")
# Where variables are set: for sessions, for all services, for one, for cron's jobs.
PROFILE_PLACES = ("/etc/environment", "/etc/profile", "/etc/profile.d/*.sh", "/etc/bash.bashrc",
                  "/etc/bashrc", "~/.profile", "~/.bash_profile", "~/.bash_login", "~/.bashrc")
PAM_PLACES = ("/etc/security/pam_env.conf",)
USER_SERVICE_PLACES = ("/etc/environment.d/*.conf", "/usr/lib/environment.d/*.conf")
MANAGER_PLACES = ("/etc/systemd/system.conf", "/etc/systemd/system.conf.d/*.conf",
                  "/etc/systemd/user.conf", "/etc/systemd/user.conf.d/*.conf")
# A drop-in of `service.d` is every service's; any other file of units is of one job.
UNIT_PLACES = tuple(place + name for place in (
    "/etc/systemd/system/", "/etc/systemd/user/", "/run/systemd/system/",
    "/usr/local/lib/systemd/system/", "/usr/lib/systemd/system/", "/lib/systemd/system/")
    for name in ("*.service", "*.service.d/*.conf", "service.d/*.conf"))
CRON_PLACES = ("/etc/crontab", "/etc/anacrontab")
CRON_JOB_PLACES = ("/etc/cron.d/*", "/var/spool/cron/crontabs/*", "/var/spool/cron/*")
# Where modulefiles, variables, profiles and kernels go (compat/environment.py).
TEXT_PLACES = ("/opt/gpufleet/modulefiles/*/*", "/opt/gpufleet/modulefiles/*/.version",
               "/opt/gpufleet/environment/*.sh", "/etc/profile.d/*gpufleet*.sh",
               "/usr/local/share/jupyter/kernels/*/kernel.json")


# -- processes that may hang ---------------------------------------------------------------------

def scratch_file():
    """A file with no name: in memory where the kernel can, so that a full disk is no obstacle."""
    if hasattr(os, "memfd_create"):
        try:
            return os.fdopen(os.memfd_create("gpufleet"), "w+b")
        except OSError:
            pass
    for directory in ("/dev/shm", "/tmp", "/var/tmp", "/run"):
        try:
            return tempfile.TemporaryFile(dir=directory)
        except OSError:
            continue
    raise OSError(errno.ENOSPC, "no directory to write a temporary file in")


def kill_session(pid):
    """Kill a process and its session's group; it is not waited for (it may be in a D state)."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except OSError:
            pass


def death(number):
    """`killed by SIGSEGV`, with what it means where it means one thing."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = "signal %d" % number
    hint = " (a file that it maps is cut short)" if name == "SIGBUS" else ""
    return "killed by %s%s" % (name, hint)


class NoAnswerError(Exception):
    """Something that was asked gave no answer in its time: the section hung with it."""


class Child:
    """`function(*arguments)` in a forked process of its own session, its result in a file."""

    def __init__(self, function, arguments, deadline_s):
        self.started = time.monotonic()
        self.deadline = self.started + deadline_s
        self.deadline_s = deadline_s
        self.outcome = None
        self.output = scratch_file()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._run(function, arguments)

    def _run(self, function, arguments):
        status = 1
        try:
            os.setsid()
            # An abandoned child must not hold the ssh session's pipes open.
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(null, descriptor)
            try:
                answer = ["ok", function(*arguments), None]
            except PermissionError as error:
                answer = ["denied", None, str(error)]
            except NoAnswerError as error:
                answer = ["hung", None, str(error)]
            except Exception as error:
                # A RuntimeError is this file's own, and says it in plain words.
                kind = "" if type(error) is RuntimeError else type(error).__name__ + ": "
                answer = ["error", None, kind + str(error)]
            self.output.write(json.dumps(answer).encode("utf-8", "surrogatepass"))
            self.output.flush()
            status = 0
        finally:
            os._exit(status)

    def poll(self):
        """True when there is an outcome: (state, data, error, seconds)."""
        if self.outcome:
            return True
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        seconds = round(time.monotonic() - self.started, 3)
        if pid:
            self.outcome = (*self._read(status), seconds)
            # What it started and left behind goes with it.
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except OSError:
                pass
        elif time.monotonic() > self.deadline:
            kill_session(self.pid)
            self.outcome = ("hung", None, "no answer within %g s" % self.deadline_s, seconds)
        if self.outcome:
            self.output.close()
        return bool(self.outcome)

    def _read(self, status):
        if os.WIFSIGNALED(status):
            return "error", None, death(os.WTERMSIG(status))
        self.output.seek(0)
        try:
            state, data, error = json.loads(self.output.read().decode("utf-8"))
        except ValueError:
            return "error", None, "ended without an answer (status %d)" % os.WEXITSTATUS(status)
        return state, data, error


class After:
    """A child that is started once another has come to its end, or was given up."""

    def __init__(self, other, start):
        self.other, self.start, self.child = other, start, None

    def poll(self):
        if self.child is None and self.other.poll():
            self.child = self.start()
        return self.child is not None and self.child.poll()

    @property
    def outcome(self):
        return self.child.outcome


def await_all(children):
    # A list, so that each is polled each time: the first that hangs must not hide the others' end.
    while not all([child.poll() for child in children]):  # noqa: C419
        time.sleep(0.003)
    return [child.outcome for child in children]


def in_child(function, arguments, deadline_s):
    """(state, value, error) of a call that may crash or hang."""
    return await_all([Child(function, arguments, deadline_s)])[0][:3]


def run_command(argv, deadline_s, env=None, cwd=None, partial=False):
    """(status, stdout, stderr); status None when it could not be started or did not end.

    What it said before it hung is kept if `partial`; stderr then is the plain reason.
    """
    out, err = scratch_file(), scratch_file()
    try:
        with open(os.devnull) as null:
            process = subprocess.Popen(argv, stdin=null, stdout=out, stderr=err, env=env, cwd=cwd,
                                       start_new_session=True)
    except OSError as error:
        return None, "", "%s: %s" % (argv[0], error.strerror)
    deadline = time.monotonic() + deadline_s
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.003)
    hung = process.returncode is None
    if hung:
        kill_session(process.pid)
    texts = []
    for stream in (out, err):
        stream.seek(0)
        texts.append(stream.read().decode("utf-8", "replace"))
        stream.close()
    if hung:
        return None, texts[0] if partial else "", "no answer within %g s" % deadline_s
    return process.returncode, texts[0], texts[1]


# -- small readers -------------------------------------------------------------------------------

class Host:
    """Where to look: the configuration, and paths below `root` (tests plant a tree there)."""

    def __init__(self, config, deadline_s=SECTION_DEADLINE_S):
        self.config = dict(DEFAULTS, **{k: v for k, v in config.items() if v is not None})
        self.root = self.config["root"]
        self.real = os.path.realpath(self.root) == "/"
        # What this account may not see, and root may: [{"what", "because"}].
        self.unseen = []
        # Inner processes end before the section does, so that none is left behind.
        self.inner_s = deadline_s * 0.8

    def __getitem__(self, key):
        return self.config[key]

    def miss(self, what, because="this account may not see it"):
        if {"what": what, "because": because} not in self.unseen:
            self.unseen.append({"what": what, "because": because})

    def path(self, name):
        return name if self.real else self.root.rstrip("/") + name

    def name(self, path):
        """The reverse: a path as the host itself calls it."""
        if self.real or not path.startswith(self.root.rstrip("/") + "/"):
            return path
        return path[len(self.root.rstrip("/")):]

    def realpath(self, name):
        """Follow links as the host would, absolute ones included, below `root`."""
        path, budget = self.path(os.path.normpath(name)), 40
        if self.real:
            return os.path.realpath(path)
        parts, done = [p for p in os.path.normpath(name).split("/") if p], ""
        while parts:
            part = parts.pop(0)
            if part == "..":
                done = os.path.dirname(done)
                continue
            here = self.path(done + "/" + part)
            if os.path.islink(here) and budget:
                budget -= 1
                target = os.readlink(here)
                parts = [p for p in target.split("/") if p and p != "."] + parts
                done = "" if target.startswith("/") else done
            else:
                done += "/" + part
        return done or "/"

    def exists(self, name):
        try:
            os.stat(self.path(self.realpath(name)))
        except PermissionError:
            self.miss(name)
            return False
        except (OSError, ValueError):
            return False
        return True

    def glob(self, pattern):
        # A directory that may not be listed looks like an empty one.
        place = os.path.dirname(re.split(r"[*?[]", pattern)[0])
        if os.path.isdir(self.path(place)) and not os.access(self.path(place), os.R_OK | os.X_OK):
            self.miss(place, "this account may not list it")
        return sorted(self.name(p) for p in glob.glob(self.path(pattern)))

    def text(self, name):
        with open(self.path(name), encoding="utf-8", errors="replace") as stream:
            return stream.read()

    def text_or_none(self, name):
        try:
            return self.text(name)
        except (FileNotFoundError, NotADirectoryError):
            return None


def last_lines(text, most):
    """The end of what a command said, from the beginning of a line; the most in characters."""
    text = text.strip()
    if len(text) <= most:
        return text
    _, _, rest = text[-most:].partition("\n")
    return rest or text[-most:]


def first_match(pattern, text):
    match = re.search(pattern, text or "", re.MULTILINE)
    return match.group(1) if match else None


def natural(text):
    """A sort key by which 10 follows 9."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", text)]


# -- ELF -----------------------------------------------------------------------------------------

def elf_dynamic(path):
    """{"soname", "needed"} of a shared library; ValueError with the plain reason if it is none."""
    with open(path, "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        head = stream.read(64)
        if head[:4] != b"\x7fELF":
            raise ValueError(_not_elf(head, size))
        if len(head) < (64 if head[4:5] == b"\x02" else 52):
            raise ValueError("truncated: %d bytes, the ELF header is longer" % size)
        wide, order = head[4] == 2, "<" if head[5] == 1 else ">"
        offsets = struct.unpack_from(order + ("QQ" if wide else "II"), head, 32 if wide else 28)
        counts = struct.unpack_from(order + "HHHH", head, 54 if wide else 42)
        if offsets[0] + counts[0] * counts[1] > size:
            raise ValueError("truncated: %d bytes, its program headers end later" % size)
        stream.seek(offsets[0])
        segments = [_segment(stream.read(counts[0]), order, wide) for _ in range(counts[1])]
        # A copy that was cut off usually ends inside a segment, or before the section table,
        # which stands at the end of the file. Holes count as content.
        end = offsets[1] + counts[2] * counts[3]
        for kind, offset, _address, length in segments:
            end = max(end, offset + length if kind != 6 else 0)
        if end > size:
            raise ValueError("truncated: %d bytes, its headers speak of %d" % (size, end))
        dynamic = [s for s in segments if s[0] == 2]
        if not dynamic:
            raise ValueError("not a shared library: no dynamic section")
        stream.seek(dynamic[0][1])
        raw = stream.read(dynamic[0][3])
        pair = struct.Struct(order + ("qQ" if wide else "iI"))
        entries = list(pair.iter_unpack(raw[:len(raw) // pair.size * pair.size]))
        values = dict(reversed(entries))
        if 5 not in values or 10 not in values:
            return {"soname": None, "needed": []}
        stream.seek(_file_offset(segments, values[5]))
        strings = stream.read(values[10])

    def string(offset):
        return strings[offset:strings.index(b"\0", offset)].decode("utf-8", "replace")
    try:
        needed = [string(value) for tag, value in entries if tag == 1]
        return {"soname": string(values[14]) if 14 in values else None, "needed": needed}
    except ValueError:
        raise ValueError("damaged: its string table does not end") from None


def _not_elf(head, size):
    if not size:
        return "empty file"
    if head.lstrip()[:1] == b"<":
        return "not a library: text that looks like a web page"
    if all(32 <= byte < 127 or byte in b"\t\r\n" for byte in head):
        return "not a library: a text file"
    return "not a library: invalid ELF header"


def _segment(raw, order, wide):
    """(type, offset in the file, address, length in the file) of one program header."""
    fields = struct.unpack_from(order + ("IIQQQQ" if wide else "IIIII"), raw)
    return (fields[0], fields[2], fields[3], fields[5]) if wide else \
        (fields[0], fields[1], fields[2], fields[4])


def _file_offset(segments, address):
    for kind, offset, start, length in segments:
        if kind == 1 and start <= address < start + length:
            return offset + address - start
    raise ValueError("damaged: its string table is in no segment")


def elf_modinfo(path):
    """{key: value} of what a kernel module says of itself; ValueError where it says nothing."""
    with open(path, "rb") as stream:
        head = stream.read(64)
        if head[:6] != b"\x7fELF\x02\x01" or len(head) < 64:
            raise ValueError("not a kernel module of this machine")
        start, = struct.unpack_from("<Q", head, 40)
        size, count, names = struct.unpack_from("<HHH", head, 58)
        stream.seek(start)
        table = stream.read(size * count)
        if not count or len(table) < size * count:
            raise ValueError("truncated: its section table is not there")
        # Of each: name, type, flags, address, offset, length.
        rows = [struct.unpack_from("<IIQQQQ", table, at * size) for at in range(count)]
        stream.seek(rows[names][4])
        strings = stream.read(rows[names][5])
        for row in rows:
            if strings[row[0]:].startswith(b".modinfo\0"):
                stream.seek(row[4])
                pairs = [item.partition(b"=") for item in stream.read(row[5]).split(b"\0")]
                return {key.decode(): value.decode("utf-8", "replace")
                        for key, mark, value in reversed(pairs) if mark}
    raise ValueError("it has no .modinfo")


# -- manifests and receipts ----------------------------------------------------------------------

def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def mode_of(info):
    return "%04o" % stat.S_IMODE(info.st_mode)


def is_library(path):
    return ".so." in os.path.basename(path) or path.endswith(".so")


def manifest_of(root, paths):
    """Entries for files and links below `root`; directories are walked, linked parents resolved."""
    top = os.path.realpath(root)
    entries = {}
    for path in paths:
        full = os.path.join(top, path)
        if os.path.isdir(full) and not os.path.islink(full):
            found = [os.path.join(d, f) for d, subs, files in os.walk(full)
                     for f in files + [s for s in subs if os.path.islink(os.path.join(d, s))]]
        else:
            found = [full]
        for name in found:
            place = os.path.join(os.path.realpath(os.path.dirname(name)), os.path.basename(name))
            relative = os.path.relpath(place, top)
            if relative.startswith(".."):
                raise ValueError("%s leads out of %s" % (path, root))
            entries[relative] = _entry(relative, place)
    return [entries[key] for key in sorted(entries)]


def _entry(relative, place):
    info = os.lstat(place)
    if stat.S_ISLNK(info.st_mode):
        return {"path": relative, "type": "link", "target": os.readlink(place)}
    return {"path": relative, "type": "file", "size": info.st_size, "mtime": int(info.st_mtime),
            "mode": mode_of(info),
            "sha256": sha256_of(place) if is_library(place) else None}


def compare_manifest(root, manifest, deep=False):
    """What no longer is as the manifest says: [{"path", "what"}]; contents only when `deep`."""
    changed = []
    for entry in manifest:
        path = os.path.join(root, entry["path"])
        what = _difference(path, entry, deep)
        if what:
            changed.append({"path": entry["path"], "what": what})
    return changed


def _difference(path, entry, deep):
    try:
        info = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return "missing"
    if stat.S_ISLNK(info.st_mode) != (entry["type"] == "link"):
        return "type"
    if entry["type"] == "link":
        return None if os.readlink(path) == entry["target"] else "target"
    if not stat.S_ISREG(info.st_mode):
        return "type"
    for what, there in (("size", info.st_size), ("mode", mode_of(info)),
                        ("mtime", int(info.st_mtime))):
        if entry.get(what) is not None and entry[what] != there:
            return what
    if deep and entry.get("sha256") and sha256_of(path) != entry["sha256"]:
        return "sha256"
    return None


def recorded_files(venv, packages):
    """[(path, digest, size)] of what the installed packages' own records list, below `venv`.

    Only of `packages` ({name: version}): what people put beside them is theirs.
    """
    files = []
    pattern = os.path.join(glob.escape(venv), "lib", "python3*", "site-packages", "*.dist-info")
    for directory in sorted(glob.glob(pattern)):
        name = os.path.basename(directory)[:-len(".dist-info")].rpartition("-")[0]
        if normal_name(name) not in packages:
            continue
        site = os.path.dirname(directory)
        site = os.path.relpath(site, venv)
        files += [(os.path.normpath(os.path.join(site, path)), digest, int(size))
                  for path, digest, size in _record(os.path.join(directory, "RECORD"))]
    return files


def compare_records(venv, files, deep=False, infos=None):
    """What is not as `recorded_files` says: [{"path", "what"}]; contents only when `deep`.

    `infos` takes each file's state by its path: with 15,000 files nobody looks twice.
    """
    changed = []
    for path, digest, size in files:
        what = _record_difference(venv + "/" + path, digest if deep else "", size, infos)
        if what:
            changed.append({"path": path, "what": what})
    return changed


def normal_name(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def _record(path, sized=True):
    try:
        with open(path, encoding="utf-8", errors="replace", newline="") as stream:
            return [row for row in csv.reader(stream)
                    if len(row) == 3 and (row[2].isdigit() or not sized)]
    except OSError:
        # A package without a record says nothing about itself; that it is gone, others see.
        return []


def _record_difference(path, digest, size, infos):
    try:
        info = os.stat(path)
    except OSError:
        return "missing"
    if infos is not None:
        infos[path] = info
    if info.st_size != size:
        return "size"
    algorithm, mark, expected = digest.partition("=")
    if mark and algorithm == "sha256":
        found = base64.urlsafe_b64encode(bytes.fromhex(sha256_of(path))).decode().rstrip("=")
        return None if found == expected else "sha256"
    return None


# What a record must hold for anything to be concluded from it: {kind: {key: type}}.
RECORD_SHAPES = {
    "receipts": {"kind": str, "id": str, "path": str, "version": str, "manifest": list},
    "journal": {"kind": str, "id": str, "path": str, "state": str},
}


def _misshapen(kind, document):
    """Why a receipt or journal entry cannot be used, if it cannot."""
    if not isinstance(document, dict):
        return "it is no JSON object"
    if document.get("schema") != SCHEMA:
        return "its schema is %s, known is %d" % (document.get("schema"), SCHEMA)
    for key, shape in sorted(RECORD_SHAPES[kind].items()):
        if not isinstance(document.get(key), shape):
            return "it has no %s" % key
    for entry in document.get("manifest", []):
        if not isinstance(entry, dict) or not isinstance(entry.get("path"), str) \
                or entry.get("type") not in ("file", "link"):
            return "its manifest is damaged"
    return None


def read_receipts(state_dir):
    """{"receipts": [...], "journal": [...], "unreadable": [{"path", "error"}]}, as they stand."""
    found = {"receipts": [], "journal": [], "unreadable": []}
    for kind in ("receipts", "journal"):
        directory = os.path.join(state_dir, kind)
        try:
            names = sorted(os.listdir(directory))
        except (FileNotFoundError, NotADirectoryError):
            continue
        for name in names:
            path = os.path.join(directory, name)
            # Others are partial files on their way to be renamed.
            if not name.endswith(".json") or name.startswith("."):
                continue
            try:
                # A pipe of that name would be waited for.
                if not os.path.isfile(path):
                    raise ValueError("it is no file")
                with open(path, encoding="utf-8") as stream:
                    document = json.load(stream)
                reason = _misshapen(kind, document)
                if not reason and name != "{kind}-{id}.json".format(**document):
                    reason = "it is of {kind} {id}".format(**document)
                if reason:
                    raise ValueError(reason)
                found[kind].append(document)
            except (OSError, ValueError) as error:
                found["unreadable"].append({"path": path, "error": str(error)})
    return found


# -- the linker ----------------------------------------------------------------------------------

def linker_cache(root="/"):
    """CUDA's and cuDNN's entries of /etc/ld.so.cache in the order in which they are searched."""
    host = Host({"root": root})
    try:
        with open(host.path("/etc/ld.so.cache"), "rb") as stream:
            raw = stream.read()
    except FileNotFoundError:
        return []
    return [{"soname": soname, "path": path, "exists": host.exists(path),
             "realpath": host.realpath(path)}
            for soname, path in parse_linker_cache(raw) if CUDA_FILE.match(soname)]


def parse_linker_cache(raw):
    """[(soname, path)] for this machine's word size, from the cache's own format."""
    start = raw.find(b"glibc-ld.so.cache1.1")
    if start < 0:
        raise ValueError("/etc/ld.so.cache is of an unknown format")
    cache = raw[start:]
    count, = struct.unpack_from("=I", cache, 20)
    entries = []
    for index in range(count):
        flags, key, value = struct.unpack_from("=iII", cache, 48 + 24 * index)
        # 0x0000 is i386 and 0x0800 is x32: libraries that no 64-bit process can open.
        if struct.calcsize("P") == 8 and flags & 0xff00 in (0x0000, 0x0800):
            continue
        entries.append(tuple(cache[at:cache.index(b"\0", at)].decode("utf-8", "surrogateescape")
                             for at in (key, value)))
    return entries


def linker_files(host, name="/etc/ld.so.conf", seen=None):
    """Each file of the linker's configuration with the directories it names."""
    seen = set() if seen is None else seen
    text = None if name in seen else host.text_or_none(name)
    if text is None:
        return []
    seen.add(name)
    here, files = {"path": name, "directories": []}, []
    for line in text.splitlines():
        words = line.split("#")[0].replace(",", " ").replace(":", " ").split()
        if words and words[0] == "include":
            for pattern in words[1:]:
                for found in host.glob(os.path.join(os.path.dirname(name), pattern)):
                    files += linker_files(host, found, seen)
        elif words and words[0] != "hwcap":
            here["directories"] += [word.split("=")[0] for word in words]
    return [here, *files]


# -- sections ------------------------------------------------------------------------------------

def section_os(host):
    release = {}
    for line in (host.text_or_none("/etc/os-release") or "").splitlines():
        key, mark, value = line.partition("=")
        if mark:
            release[key] = value.strip().strip("\"'")
    try:
        glibc = os.confstr("CS_GNU_LIBC_VERSION").split()[-1]
    except (AttributeError, OSError, ValueError):
        glibc = None
    pythons = [{"path": name, "version": ask_python(host, name)} for name in interpreters(host)]
    return {"id": release.get("ID"), "version_id": release.get("VERSION_ID"),
            "codename": release.get("VERSION_CODENAME"), "arch": platform.machine(), "glibc": glibc,
            "hostname": platform.node(), "pythons": pythons}


def interpreters(host):
    """Names of the interpreters in the usual places, the system's first, then those asked for."""
    found = []
    for place in PYTHON_PLACES:
        names = [name for name in host.glob(place + "/python3.*")
                 if re.match(r"python3\.\d+$", os.path.basename(name))]
        found += sorted(names, key=natural)
    asked = [name for name in host["pythons"] if host.exists(name)]
    return list(dict.fromkeys(found + asked))


def ask_python(host, name):
    """An interpreter's own word about its version; None where it does not run.

    One that gives no answer is not one that is not there: a busy host has it all the same.
    """
    question = "import platform; print(platform.python_version())"
    status, out, err = run_command([host.path(name), "-I", "-S", "-c", question], host.inner_s / 2)
    if status is None and err.startswith("no answer"):
        raise NoAnswerError("%s gave %s" % (name, err))
    return out.strip() if status == 0 else None


def section_kernel(host):
    uptime = host.text_or_none("/proc/uptime")
    boot_id = host.text_or_none("/proc/sys/kernel/random/boot_id")
    container = container_of(host)
    installed = installed_kernels(host)
    version, source = next_boot(host, [k["version"] for k in installed if k["image"]])
    return {"running": running_kernel(host), "boot_id": boot_id.strip() if boot_id else None,
            "uptime_s": int(float(uptime.split()[0])) if uptime else None, "container": container,
            "next_boot": version, "next_boot_source": source, "installed": installed,
            "secure_boot": secure_boot(host, container)}


def running_kernel(host):
    running = host.text_or_none("/proc/sys/kernel/osrelease")
    return running.strip() if running else os.uname().release


def container_of(host):
    """What systemd-detect-virt --container says; None on a machine of its own."""
    text = host.text_or_none("/run/systemd/container")
    if text is None:
        try:
            text = first_match(r"(?:^|\0)container=([^\0]+)", host.text_or_none("/proc/1/environ"))
        except PermissionError:
            host.miss("/proc/1/environ")
    for name, kind in (("/run/.containerenv", "podman"), ("/.dockerenv", "docker")):
        text = text or (kind if host.exists(name) else None)
    return text.strip() if text else None


def installed_kernels(host):
    """Every kernel that has modules or an image, by version."""
    images = [os.path.basename(name)[len("vmlinuz-"):] for name in host.glob("/boot/vmlinuz-*")]
    modules = [os.path.basename(name) for name in host.glob("/lib/modules/*")]
    kernels = []
    for version in sorted(set(images + modules), key=natural):
        initramfs = [name for name in ("/boot/initrd.img-" + version,
                                       "/boot/initramfs-%s.img" % version) if host.exists(name)]
        headers = host.realpath("/lib/modules/%s/build" % version) + "/Makefile"
        kernels.append({
            "version": version, "image": version in images, "headers": host.exists(headers),
            "modules": driver_modules(host, version),
            "initramfs": initramfs[0] if initramfs else None, "initramfs_nouveau": None})
    for kernel, inside in zip(kernels, await_all([
            Child(nouveau_in_initramfs, (host, kernel), host.inner_s) for kernel in kernels])):
        kernel["initramfs_nouveau"] = inside[1]
    return kernels


def driver_modules(host, kernel):
    """NVIDIA's modules for a kernel; of several drivers the one first that would be loaded."""
    found = []
    for place in MODULE_PLACES:
        for top in host.glob("/lib/modules/%s/%s" % (glob.escape(kernel), place)):
            for directory, _, files in os.walk(host.path(top)):
                found += [host.name(os.path.join(directory, f)) for f in files
                          if DRIVER_MODULE.match(f)]
    chosen, modules = loaded_by_name(host), []
    for path in found:
        stem = DRIVER_MODULE.match(os.path.basename(path)).group(1)
        beside = BESIDE_MODULE.search(stem)
        told = module_told(host, path, "" if beside else stem)
        driver = stem[:beside.start()] if beside else stem
        name = "nvidia-" + beside.group(1) if beside else "nvidia"
        modules.append((driver != chosen, name, path, {
            "name": name, "path": path, "version": told.get("version"),
            "license": told.get("license")}))
    return [entry[-1] for entry in sorted(modules, key=lambda entry: entry[:3])]


def loaded_by_name(host):
    """The file's name of what `modprobe nvidia` loads: nvidia-current, where Debian says so."""
    for _, text in modprobe_files(host):
        named = first_match(r"^\s*(?:install\s+nvidia\s.*?|alias\s+nvidia\s+)(nvidia-[\w-]+)", text)
        if named:
            return named
    return "nvidia"


def modprobe_files(host):
    """[(path, text)] of modprobe's configuration, links followed as the host would."""
    found = {}
    for place in MODPROBE_PLACES:
        for name in host.glob(place + "/*.conf"):
            # The first directory that has a file of that name wins.
            if os.path.basename(name) not in found:
                found[os.path.basename(name)] = (name, host.text_or_none(host.realpath(name)) or "")
    return list(found.values())


def module_told(host, path, stem):
    """`version` and `license` of a module file; nothing where they cannot be read.

    To unpack the driver itself, `stem`, takes a second. Of packed ones it alone is told, and from
    the small module beside it, which the same build made.
    """
    try:
        if path.endswith(".ko"):
            return elf_modinfo(host.path(host.realpath(path)))
    except (OSError, ValueError, struct.error):
        return {}
    if not stem or not host.real:
        return {}
    small = path.replace(stem + ".ko", stem + "-modeset.ko")
    status, out, _ = run_command([tool("modinfo"), small if host.exists(small) else path],
                                 host.inner_s / 4)
    told = [line.partition(":") for line in out.splitlines()] if status == 0 else []
    return {key.strip(): value.strip() for key, mark, value in told if mark}


def tool(name):
    """A system administrator's command, also where the path leads to a user's only."""
    return shutil.which(name, path="/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/bin") or name


def nouveau_in_initramfs(host, kernel):
    """Whether an initramfs would load nouveau; None where nobody looked.

    Its contents are looked at in mode full (a second each), and where it is older than what
    forbids nouveau, which it then may not have.
    """
    forbidding = [path for path, text in modprobe_files(host) if forbids_nouveau(text)]
    if not kernel["initramfs"] or not kernel["image"] or not host.real:
        return None
    made = os.stat(kernel["initramfs"]).st_mtime
    if host["mode"] != "full" and all(os.lstat(p).st_mtime <= made for p in forbidding):
        return None
    lister = "lsinitramfs" if shutil.which("lsinitramfs") else "lsinitrd"
    status, out, _ = run_command([tool(lister), kernel["initramfs"]], host.inner_s * 0.8)
    return nouveau_listed(out, forbidding) if status == 0 else None


def nouveau_listed(listing, forbidding):
    """Whether the contents of an initramfs have nouveau, and no file that forbids it."""
    if not re.search(r"/nouveau\.ko", listing):
        return False
    return not any(path.lstrip("/") in listing for path in forbidding)


def forbids_nouveau(text):
    return bool(re.search(r"^\s*(blacklist\s+nouveau\s*$|install\s+nouveau\s+\S*/(true|false)\b)",
                          text, re.MULTILINE))


def next_boot(host, images):
    """(the kernel of the next boot, what says so)."""
    for name, environment in (("/boot/grub/grub.cfg", "/boot/grub/grubenv"),
                              ("/boot/grub2/grub.cfg", "/boot/grub2/grubenv")):
        try:
            text = host.text_or_none(name)
            lines = (host.text_or_none(environment) or "").splitlines()
        except PermissionError:
            # Debian's is root's own to read.
            host.miss(name)
            continue
        if text is None:
            continue
        kept = dict(line.split("=", 1) for line in lines if "=" in line and line[:1] != "#")
        entries = loader_entries(host)
        version = entries.get(kept.get("next_entry") or kept.get("saved_entry")) if entries else \
            grub_choice(text, kept)
        if version:
            return version, "/boot/loader/entries" if entries else name
    for name in ("/vmlinuz", "/boot/vmlinuz"):
        if os.path.islink(host.path(name)):
            version = first_match(r"/vmlinuz-(.+)$", host.realpath(name))
            if version in images:
                return version, name
    plain = [version for version in images if "rescue" not in version]
    return (max(plain, key=natural), "the newest in /boot") if plain else (None, None)


def loader_entries(host):
    """{entry: kernel} of the boot loader specification's files, as the RHEL family has them."""
    found = {}
    for name in host.glob("/boot/loader/entries/*.conf"):
        version = first_match(r"^linux\s+\S*/vmlinuz-(\S+)", host.text(name))
        if version:
            found[os.path.basename(name)[:-len(".conf")]] = version
    return found


def grub_choice(text, kept):
    """The kernel that GRUB's own configuration leads to, None where that cannot be told."""
    wanted = [value for value in re.findall(r'^\s*set default="?([^"\n]*)"?', text, re.MULTILINE)
              if value != "${next_entry}"]
    choice = wanted[-1] if wanted else "0"
    if choice == "${saved_entry}":
        choice = kept.get("saved_entry") or "0"
    choice = kept.get("next_entry") or choice
    # Entries and submenus as they stand: [title, id, kernel, what is inside].
    menu, open_ = [], []
    for line in text.splitlines():
        head = re.match(r"\s*(menuentry|submenu) (['\"])(.*?)\2(.*)\{\s*$", line)
        if head:
            entry = [head.group(3), first_match(r"menuentry_id_option '([^']+)'", head.group(4)),
                     None, []]
            (open_[-1][3] if open_ else menu).append(entry)
            open_.append(entry)
        elif open_ and line.strip() == "}":
            open_.pop()
        elif open_ and re.match(r"\s*linux\S*\s", line):
            open_[-1][2] = first_match(r"/vmlinuz-(\S+)", line)
    entry = [None, None, None, menu]
    for step in choice.split(">"):
        named = [each for at, each in enumerate(entry[3]) if step in (str(at), each[0], each[1])]
        if not named:
            return None
        entry = named[0]
    return entry[2]


def secure_boot(host, container):
    """{"enabled", "enrolled"}: whether unsigned modules are refused, and whether our key is known.

    In a container both are the machine's, and not known.
    """
    found = {"enabled": None, "enrolled": None}
    if container:
        return found
    if not host.exists("/sys/firmware/efi"):
        return dict(found, enabled=False)
    for name in host.glob("/sys/firmware/efi/efivars/SecureBoot-8be4df61-*"):
        with open(host.path(name), "rb") as stream:
            found["enabled"] = stream.read(5)[4:] == b"\1"
    keys = [name for name in ("/var/lib/dkms/mok.pub", "/var/lib/shim-signed/mok/MOK.der")
            if host.exists(name)]
    if found["enabled"] and keys and host.real and shutil.which("mokutil"):
        outputs = [run_command(["mokutil", "--test-key", key], host.inner_s / 4) for key in keys]
        found["enrolled"] = any("already enrolled" in out for _, out, _ in outputs)
    return found


def section_disks(host):
    data = {"free_mib": {}, "free_files": {}, "filesystem": {}, "noexec": [], "readonly": []}
    wanted = [host[key] for key in ("tmpdir", "prefix", "stack_root", "state_dir")]
    for name in ["/", "/tmp", *wanted]:
        if name in data["free_mib"]:
            continue
        place = name
        while not os.path.isdir(host.path(place)) and place != "/":
            place = os.path.dirname(place)
        space = os.statvfs(host.path(place))
        data["free_mib"][name] = space.f_bavail * space.f_frsize // (1 << 20)
        # Some file systems make inodes as they need them, and say 0 of 0.
        data["free_files"][name] = space.f_favail if space.f_files else None
        data["filesystem"][name] = str(os.stat(host.path(place)).st_dev)
        for key, flag in (("noexec", getattr(os, "ST_NOEXEC", 8)), ("readonly", os.ST_RDONLY)):
            if space.f_flag & flag:
                data[key].append(name)
    return data


def section_gpus(host):
    cards, switches = [], []
    for directory in host.glob("/sys/bus/pci/devices/*"):
        values = {}
        for key in ("vendor", "device", "class"):
            values[key] = (host.text_or_none(directory + "/" + key) or "").strip()
        if values["vendor"] != NVIDIA_VENDOR:
            continue
        values["address"] = os.path.basename(directory)
        if values["class"].startswith("0x0680"):
            switches.append(values["address"])
        if not values["class"].startswith("0x03"):
            continue
        driver = host.path(directory + "/driver")
        values["driver"] = os.path.basename(os.readlink(driver)) if os.path.islink(driver) else None
        cards.append(values)
    # A container sees all cards of the machine on the bus, and here those that it was given.
    given = [os.path.basename(name) for name in host.glob("/proc/driver/nvidia/gpus/*")]
    if given and container_of(host):
        cards = [card for card in cards if card["address"] in given]
    nodes = sorted(host.glob("/dev/nvidia*"), key=natural)
    return {"pci": cards, "nvswitches": switches, "mig": mig_of(host), "nodes": nodes,
            "node_access": node_access(host, nodes)}


# The device files that every CUDA program opens, and that a driver's own tools do not.
COMPUTE_NODE = re.compile(r"^/dev/nvidia(\d+|ctl|-uvm)$")


def node_access(host, nodes):
    """[{"path", "mode", "uid", "gid", "major", "tried", "error"}] of the nodes that CUDA opens.

    `error` says why the account that uses them could not. Only root can try that for another one.
    """
    found = []
    for name in nodes:
        if COMPUTE_NODE.match(name):
            info = os.stat(host.path(name))
            major = os.major(info.st_rdev) if stat.S_ISCHR(info.st_mode) else None
            found.append({"path": name, "mode": mode_of(info), "uid": info.st_uid,
                          "gid": info.st_gid, "major": major, "tried": False, "error": None})
    if not found:
        return []
    names = [row["path"] for row in found]
    # A directory service that gives no answer must not take the section with it.
    state, errors, reason = in_child(tried_as, (host, host["service_user"], names),
                                     host.inner_s / 8)
    if state in ("denied", "hung"):
        return found
    for row in found:
        row["tried"] = True
        row["error"] = errors[row["path"]] if state == "ok" else reason
    return found


def tried_as(host, user, names):
    """{path: why it cannot be read and written, or None} for an account. Nothing is opened."""
    if os.geteuid() == 0:
        # Without a name: an account that owns nothing and is in no group.
        number, group, groups = account(host, user) if user else (65534, 65534, [])
        if not host.real:
            os.chroot(host.root)
        os.setgroups(groups)
        os.setgid(group)
        os.setuid(number)
        names = {name: name for name in names}
    elif user in (None, account_name(os.geteuid())):
        names = {name: host.path(name) for name in names}
    else:
        raise PermissionError("only root can try what %s may" % user)
    return {name: None if os.access(path, os.R_OK | os.W_OK) else "permission denied"
            for name, path in names.items()}


def account(host, name):
    """(number, group, all groups) of an account, of the planted files where there are such."""
    if host.real:
        import pwd
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            raise RuntimeError("there is no account %s" % name) from None
        return entry.pw_uid, entry.pw_gid, os.getgrouplist(name, entry.pw_gid)
    users, groups = [[line.split(":") for line in (host.text_or_none(f) or "").splitlines()]
                     for f in ("/etc/passwd", "/etc/group")]
    own = [row for row in users if row[0] == name]
    if not own:
        raise RuntimeError("there is no account %s" % name)
    group = int(own[0][3])
    return int(own[0][2]), group, [group] + [int(row[2]) for row in groups
                                             if name in row[3].split(",")]


def mig_of(host):
    """[{"gpu", "mode", "instances"}] by index; None where no loaded driver could be asked.

    Not asked unless somebody wants to know: without the persistence daemon it takes seconds.
    """
    if not host["mig"] or not host.exists("/proc/driver/nvidia/version"):
        return None
    place = nvidia_smi(host)
    smi = host.path(place) if place else "nvidia-smi"
    status, modes, _ = run_command(
        [smi, "--query-gpu=index,mig.mode.current", "--format=csv,noheader"], host.inner_s / 2)
    if status != 0:
        return None
    listing = ""
    if "Enabled" in modes:
        status, listing, _ = run_command([smi, "-L"], host.inner_s / 3)
        if status != 0:
            return None
    return parse_mig(modes, listing)


def parse_mig(modes, listing):
    """From `0, Enabled` and the lines `MIG 3g.40gb Device 0:` under each `GPU 0:`."""
    cards = {}
    for line in modes.splitlines():
        index, _, mode = [part.strip() for part in line.partition(",")]
        cards[index] = {"gpu": int(index), "mode": {"Enabled": "on", "Disabled": "off"}.get(mode),
                        "instances": []}
    index = None
    for line in listing.splitlines():
        index = first_match(r"^GPU (\d+):", line) or index
        name = first_match(r"^\s+MIG (\S+)\s+Device", line)
        if name and index in cards:
            cards[index]["instances"].append(name)
    return list(cards.values())


# Where the driver's user-space libraries are.
LIBRARY_PLACES = ("/usr/lib/*-linux-gnu", "/usr/lib/*-linux-gnu/nvidia/current", "/usr/lib64",
                  "/usr/lib")


def driver_library(host, soname):
    """What to open: the name alone, as programs do; in a planted tree the file that stands there,
    or stood there: a name alone would lead out of the tree."""
    if host.real:
        return soname
    found = [name for place in LIBRARY_PLACES for name in host.glob(place + "/" + soname)]
    return host.path(host.realpath(found[0]) if found else LIBRARY_PLACES[-1] + "/" + soname)


def section_driver(host):
    loaded = first_match(r"Kernel Module[^\n]*?\s(\d+\.\d+(?:\.\d+)?)\s",
                         host.text_or_none("/proc/driver/nvidia/version"))
    modules = [line.split()[0] for line in (host.text_or_none("/proc/modules") or "").splitlines()]
    library = None
    for directory in LIBRARY_PLACES:
        for name in host.glob(directory + "/libcuda.so.*"):
            library = first_match(r"libcuda\.so\.(\d+\.\d+(?:\.\d+)?)$",
                                  os.path.basename(host.realpath(name))) or library
    version = status = None
    if library:
        state, answer, error = in_child(ask_driver, (driver_library(host, "libcuda.so.1"),),
                                        host.inner_s)
        if state == "hung":
            raise NoAnswerError("libcuda.so.1 gave no answer: %s" % error)
        version, status = answer if state == "ok" else (None, None)
    own = [row["version"] for row in driver_modules(host, running_kernel(host))
           if row["name"] == "nvidia"]
    texts = [text for _, text in modprobe_files(host)] + [host.text_or_none("/proc/cmdline") or ""]
    fabric = unit_of(host, "nvidia-fabricmanager.service")
    fabric["version"] = None
    if fabric["unit"] and host.real:
        _, out, _ = run_command(["nv-fabricmanager", "--version"], host.inner_s / 8)
        fabric["version"] = first_match(r"(\d+\.\d+(?:\.\d+)?)", out)
    return {"loaded": loaded, "library": library, "cuda_version": version, "cuinit": status,
            "modules": [m for m in modules if m == "nouveau" or m.startswith("nvidia")],
            "on_disk": own[0] if own else None, "dkms": dkms_of(host),
            "nouveau": {"loaded": "nouveau" in modules, "blacklisted": any(
                forbids_nouveau(text) or re.search(r"modprobe\.blacklist=\S*\bnouveau\b", text)
                for text in texts)},
            "persistence": unit_of(host, "nvidia-persistenced.service"), "fabric": fabric,
            "holders": holders_of(host), "reboot_pending": pending_reboot(host)}


def unit_of(host, name):
    """{"unit", "enabled", "active"} of a service; whether it is active only systemd can say."""
    there = [place for place in ("/etc/systemd/system/", "/usr/lib/systemd/system/",
                                 "/lib/systemd/system/") if host.exists(place + name)]
    if not there:
        return {"unit": None, "enabled": None, "active": None}
    found = {"unit": name, "active": None,
             "enabled": bool(host.glob("/etc/systemd/system/*/" + name))}
    if host.real:
        status, out, _ = run_command(["systemctl", "show", "-p", "UnitFileState,ActiveState", name],
                                     host.inner_s / 8)
        if status == 0:
            told = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
            # A static one is started by others, such as the rules for devices.
            found["enabled"] = told.get("UnitFileState") in ("enabled", "enabled-runtime", "static")
            found["active"] = told.get("ActiveState") == "active"
    return found


def dkms_of(host):
    """[{"module", "version", "kernel", "state"}], from the files that dkms itself goes by."""
    found = []
    for source in host.glob("/var/lib/dkms/nvidia*/*/source"):
        tree = os.path.dirname(source)
        entry = {"module": tree.split("/")[-2], "version": tree.split("/")[-1]}
        built = [place for place in host.glob(tree + "/*/*/module") if "/build/" not in place]
        if not built:
            found.append(dict(entry, kernel=None, state="added"))
        for place in built:
            kernel, arch = place.split("/")[-3:-1]
            link = host.path("%s/kernel-%s-%s" % (os.path.dirname(tree), kernel, arch))
            installed = os.path.islink(link) and os.path.normpath(os.readlink(link)).endswith(
                "%s/%s/%s" % (entry["version"], kernel, arch))
            found.append(dict(entry, kernel=kernel, state="installed" if installed else "built"))
    return found


# The probe's own, as they are started: they hold a GPU for as long as they prove it.
OWN_RUN = re.compile(r"/gpufleet[^/\0]*/matmul\.py\0")


def holders_of(host):
    """[{"pid", "user", "command", "nodes"}] of processes with a device file of the driver open.

    None for anybody but root, who cannot see what others have open.
    """
    if not host.glob("/dev/nvidia*"):
        return []
    if host.real and os.geteuid() != 0:
        host.miss("holders", "only root sees which files others have open")
        return None
    held = {}
    for name in host.glob("/proc/[0-9]*/fd/*"):
        try:
            target = os.readlink(host.path(name))
        except OSError:
            continue
        if target.startswith("/dev/nvidia"):
            held.setdefault(name.split("/")[2], set()).add(target)
    found = []
    for pid in sorted(held, key=int):
        try:
            owner = os.stat(host.path("/proc/" + pid)).st_uid
            command = host.text("/proc/%s/comm" % pid).strip()
            if OWN_RUN.search(host.text_or_none("/proc/%s/cmdline" % pid) or ""):
                continue
        except OSError:
            continue
        # A directory service that gives no answer must not hide who it is.
        state, user, _ = in_child(account_name, (owner,), 2)
        found.append({"pid": int(pid), "user": user if state == "ok" else str(owner),
                      "command": command, "nodes": sorted(held[pid], key=natural)})
    return found


def account_name(number):
    import pwd
    return pwd.getpwuid(number).pw_name


def pending_reboot(host):
    """What a run left to say that the host is to be rebooted; None where none did."""
    try:
        return json.loads(host.text_or_none(host["state_dir"] + "/reboot-pending.json") or "null")
    except ValueError:
        return {"because": "its marker cannot be read"}


def ask_driver(name):
    cuda, version = ctypes.CDLL(name), ctypes.c_int()
    known = cuda.cuDriverGetVersion(ctypes.byref(version)) == 0
    text = "%d.%d" % (version.value // 1000, version.value % 1000 // 10) if known else None
    return text, cuda.cuInit(0)


# -- nvidia-smi ----------------------------------------------------------------------------------

SYSTEM_PLACES = ("/usr/bin/", "/bin/", "/usr/sbin/", "/sbin/", "/usr/local/bin/")
# What stands for a value and is none. Above it are the largest numbers of 64 bits and their
# neighbours (9223372036854775794), which some drivers print for what a card does not count.
NO_VALUE = re.compile(r"^\[?(n/?a|none|not (supported|available|active|found)|requested"
                      r" functionality.*)\]?$", re.IGNORECASE)
NO_ANSWER = re.compile(r"unknown error|^\[?err!?\]?|is lost|requires reset|insufficient permission"
                       r"|no permission|timeout", re.IGNORECASE)
SENTINEL, SENTINEL_32 = 1 << 62, (1 << 32) - 1
REASONS = {"gpu_idle": "idle", "applications_clocks_setting": "application-clocks",
           "sw_power_cap": "sw-power-cap", "hw_slowdown": "hw-slowdown",
           "hw_thermal_slowdown": "hw-thermal", "hw_power_brake_slowdown": "hw-power-brake",
           "sync_boost": "sync-boost", "sw_thermal_slowdown": "sw-thermal",
           "display_clocks_setting": "display-clocks", "display_clock_setting": "display-clocks"}


def section_smi(host):
    """What `nvidia-smi` says of each card, and whether NVML starts. Not asked in mode facts."""
    found = {"asked": host["mode"] == "full", "program": None, "status": None, "error": None,
             "driver_version": None, "cuda_version": None,
             "nvml": {"status": None, "version": None, "count": None}, "devices": []}
    if not found["asked"]:
        return found
    # Without a loaded driver both fail at once, and say why.
    found["program"] = nvidia_smi(host)
    capabilities = []
    library = driver_library(host, "libnvidia-ml.so.1")
    if host.real or os.path.exists(library):
        state, answer, error = in_child(ask_nvml, (library,), host.inner_s / 2)
        if state == "hung":
            raise NoAnswerError("libnvidia-ml.so.1 gave no answer: %s" % error)
        if state == "ok":
            found["nvml"], capabilities = answer
    if found["program"]:
        status, out, err = run_command([host.path(found["program"]), "-q", "-x"],
                                       host.inner_s / 2)
        if status is None and err.startswith("no answer"):
            raise NoAnswerError("nvidia-smi gave %s" % err)
        found["status"] = status
        found.update(parse_smi(out))
        for device in found["devices"]:
            if device["index"] < len(capabilities):
                device["compute_capability"] = capabilities[device["index"]]
        if status != 0:
            # Its complaints stand on standard output, before or after the document or without it.
            said = re.sub(r"<\?xml.*?</nvidia_smi_log>", "", out, flags=re.DOTALL) + "\n" + err
            found["error"] = " ".join(said.split())[-300:] or "ended with status %s" % status
        elif not re.search(r"<nvidia_smi_log\b", out):
            found["error"] = "it printed no document: " + " ".join((out + err).split())[:200]
    return found


def nvidia_smi(host):
    """Where nvidia-smi stands, in the usual places or on the path; None where it is not."""
    found = next((d + "nvidia-smi" for d in SYSTEM_PLACES if host.exists(d + "nvidia-smi")), None)
    return found or (shutil.which("nvidia-smi") if host.real else None)


def ask_nvml(name):
    """({"status", "version", "count"}, the cards' compute capabilities); 18: driver and library
    differ."""
    nvml = ctypes.CDLL(name)
    found = {"status": nvml.nvmlInit_v2(), "version": None, "count": None}
    if found["status"] != 0:
        return found, []
    text, count, capabilities = ctypes.create_string_buffer(96), ctypes.c_uint(), []
    if nvml.nvmlSystemGetDriverVersion(text, 96) == 0:
        found["version"] = text.value.decode("ascii", "replace")
    if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0:
        found["count"] = count.value
    try:
        for index in range(count.value):
            card, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
            known = nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(card)) == 0 and \
                nvml.nvmlDeviceGetCudaComputeCapability(
                    card, ctypes.byref(major), ctypes.byref(minor)) == 0
            capabilities.append("%d.%d" % (major.value, minor.value) if known else None)
    except AttributeError:
        capabilities = []
    return found, capabilities


def parse_smi(out):
    """{"driver_version", "cuda_version", "devices"} of what `nvidia-smi -q -x` printed.

    Card by card, so that one at which it broke off does not hide the others.
    """
    from xml.etree import ElementTree
    devices = []
    for text in re.findall(r"<gpu id=.*?</gpu>", out, re.DOTALL):
        try:
            devices.append(Card(ElementTree.fromstring(text)).told(len(devices)))
        except ElementTree.ParseError:
            continue
    head = out.partition("<gpu id=")[0]
    return {"driver_version": first_match(r"<driver_version>\s*([\d.]+)\s*<", head),
            "cuda_version": first_match(r"<cuda_version>\s*([\d.]+)\s*<", head),
            "devices": devices}


class Card:
    """One `<gpu>` of the document. What is no value is None, and named in `raw_unknown`.

    Elements were renamed from driver to driver; the first that is there is read.
    """

    def __init__(self, element):
        self.element = element
        self.raw_unknown, self.unanswered = [], []

    def text(self, field, *paths):
        """The text of the first of these elements that is there; None if it stands for no value."""
        for path in paths:
            found = self.element.find(path)
            if found is None:
                continue
            value = (found.text or "").strip()
            if NO_ANSWER.search(value):
                self.unanswered.append("%s: %s" % (field, value))
            if not value or NO_VALUE.match(value) or NO_ANSWER.search(value):
                break
            return value
        self.raw_unknown.append(field)
        return None

    def number(self, field, *paths, **more):
        """A number without its unit: whole, unless there is a point in it and `real` is asked."""
        text = self.text(field, *paths)
        if text is None:
            return None
        match = re.match(r"-?\d+(\.\d+)?", text)
        value = float(match.group()) if match else None
        if value is None or abs(value) >= SENTINEL or value == SENTINEL_32:
            self.raw_unknown.append(field)
            return None
        return value if more.get("real") else int(value)

    def yes(self, field, *paths):
        """True for Yes, Enabled and Active, False for their contraries."""
        text = (self.text(field, *paths) or "").lower()
        if text in ("yes", "enabled", "active", "1", "pending"):
            return True
        if text in ("no", "disabled", "not active", "0"):
            return False
        if text:
            self.raw_unknown.append(field)
        return None

    def total(self, field, place):
        """Errors that could not be corrected, as each generation of drivers counts them."""
        block = self.element.find(place)
        if block is None:
            self.raw_unknown.append(field)
            return None
        if block.find("double_bit/total") is not None:
            return self.number(field, place + "/double_bit/total")
        names = [part.tag for part in block if part.tag == "dram_uncorrectable"
                 or re.match(r"sram_uncorrectable(_parity|_secded)?$", part.tag)]
        counts = [self.number(field, place + "/" + name) for name in names]
        if not names:
            self.raw_unknown.append(field)
        known = [count for count in counts if count is not None]
        return sum(known) if known else None

    def throttle(self):
        """Why the clocks are lower than they could be; None where the card does not say."""
        for name in ("clocks_event_reasons", "clocks_throttle_reasons"):
            block = self.element.find(name)
            told = [] if block is None else [
                (re.sub(r"^clocks_(event|throttle)_reasons?_", "", part.tag),
                 (part.text or "").strip()) for part in block]
            told = [(reason, text) for reason, text in told if text in ("Active", "Not Active")]
            if told:
                return sorted(REASONS.get(reason, reason.replace("_", "-"))
                              for reason, text in told if text == "Active")
        self.raw_unknown.append("throttle")
        return None

    def remap(self):
        rows = {"pending": self.yes("remap.pending", "remapped_rows/remapped_row_pending"),
                "failure": self.yes("remap.failure", "remapped_rows/remapped_row_failure"),
                "correctable": self.number("remap.correctable", "remapped_rows/remapped_row_corr"),
                "uncorrectable": self.number("remap.uncorrectable",
                                             "remapped_rows/remapped_row_unc")}
        if all(value is None for value in rows.values()):
            self.raw_unknown = [name for name in self.raw_unknown
                                if not name.startswith("remap.")] + ["remap"]
            return None
        return rows

    def processes(self):
        found = []
        for entry in self.element.findall("processes/process_info"):
            pid = (entry.findtext("pid") or "").strip()
            memory = re.match(r"\d+", (entry.findtext("used_memory") or "").strip())
            if pid.isdigit():
                found.append({"pid": int(pid),
                              "name": (entry.findtext("process_name") or "").strip() or None,
                              "memory_mib": int(memory.group()) if memory else None})
        return found

    def told(self, index):
        link = "pci/pci_gpu_link_info/"
        power = ("gpu_power_readings/", "power_readings/")
        address = re.match(r"(?:([0-9a-f]+):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])$",
                           (self.text("address", "pci/pci_bus_id") or self.element.get("id")
                            or "").strip().lower())
        ecc, pending = (self.text(field, path) for field, path in (
            ("ecc", "ecc_mode/current_ecc"), ("ecc_pending", "ecc_mode/pending_ecc")))
        states = {"Enabled": True, "Disabled": False}

        def watts(field, *names):
            return self.number(field, *[p + name for p in power for name in names], real=True)
        found = {
            "index": index,
            "address": address and "%04x:%s" % (int(address.group(1) or "0", 16),
                                                address.group(2)),
            "uuid": self.text("uuid", "uuid"), "name": self.text("name", "product_name"),
            "memory_total_mib": self.number("memory_total_mib", "fb_memory_usage/total"),
            "memory_used_mib": self.number("memory_used_mib", "fb_memory_usage/used"),
            "memory_free_mib": self.number("memory_free_mib", "fb_memory_usage/free"),
            "compute_capability": None,
            "persistence": self.yes("persistence", "persistence_mode"),
            "compute_mode": (self.text("compute_mode", "compute_mode") or "").lower() or None,
            "ecc": states.get(ecc), "ecc_pending": states.get(pending),
            "ecc_uncorrected_volatile": self.total("ecc_uncorrected_volatile",
                                                   "ecc_errors/volatile"),
            "ecc_uncorrected_aggregate": self.total("ecc_uncorrected_aggregate",
                                                    "ecc_errors/aggregate"),
            "retired_pending": self.yes("retired_pending", "retired_pages/pending_retirement",
                                        "retired_pages/pending_blacklist"),
            "remap": self.remap(),
            "power_limit_w": watts("power_limit_w", "current_power_limit", "power_limit"),
            "power_default_w": watts("power_default_w", "default_power_limit"),
            "power_max_w": watts("power_max_w", "max_power_limit"),
            "power_w": watts("power_w", "instant_power_draw", "power_draw", "average_power_draw"),
            "temperature_c": self.number("temperature_c", "temperature/gpu_temp"),
            "temperature_slowdown_c": self.number("temperature_slowdown_c",
                                                  "temperature/gpu_temp_slow_threshold"),
            "throttle": self.throttle(),
            "clock_sm_mhz": self.number("clock_sm_mhz", "clocks/sm_clock"),
            "clock_sm_max_mhz": self.number("clock_sm_max_mhz", "max_clocks/sm_clock"),
            "pcie": {
                "generation": self.number("pcie.generation", link + "pcie_gen/current_link_gen"),
                "generation_max": self.number("pcie.generation_max",
                                              link + "pcie_gen/max_link_gen"),
                "width": self.number("pcie.width", link + "link_widths/current_link_width"),
                "width_max": self.number("pcie.width_max", link + "link_widths/max_link_width")},
            "utilization_percent": self.number("utilization_percent", "utilization/gpu_util"),
            "processes": self.processes()}
        return dict(found, raw_unknown=sorted(set(self.raw_unknown)),
                    unanswered=list(dict.fromkeys(self.unanswered)))


# -- the kernel's log ----------------------------------------------------------------------------

# [(kind, pattern)]: the first that matches a line wins. `address`, `pid`, `process` and `code` are
# taken from its groups of these names.
PLACE = r"(?P<address>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9a-fA-F])?)"
EVENTS = [(kind, re.compile(pattern)) for kind, pattern in (
    ("xid", r"NVRM: Xid \((?:PCI:)?" + PLACE + r"[^)]*\): (?P<code>\d+)(?:, pid='?(?P<pid>\d+))?"
            r"(?:[^,]*, name=(?P<process>[^,]+))?"),
    ("sxid", r"SXid \((?:PCI:)?" + PLACE + r"[^)]*\): (?P<code>\d+), (?=Fatal)"),
    ("xid", r"NVRM: .*?" + PLACE + r"\D.*has fallen off the bus"),
    ("key-rejected", r"Loading of (?:unsigned module|module with \S+ \S+) is rejected"
                     r"|Key was rejected by service|Lockdown: modprobe: unsigned module loading"),
    ("api-mismatch", r"NVRM: API mismatch"),
    ("init-failed", r"NVRM: (?:GPU )?" + PLACE + r": (?:RmInitAdapter|rm_init_adapter) failed"),
    ("init-failed", r"NVRM: (?:RmInitAdapter|rm_init_adapter) failed"),
    ("init-failed", r"nvidia: probe of " + PLACE + r" failed|nvidia " + r"[0-9a-f:.]+: probe with"
                    r" driver nvidia failed|NVRM: The NVIDIA probe routine failed"
                    r"|NVRM: No NVIDIA (?:GPU|devices) (?:found|probed)"
                    r"|NVRM: .* is not supported by the NVIDIA"),
    ("pcie-error", r"(?:^|\s)" + PLACE + r": (?:PCIe Bus Error: severity=Uncorrect|AER: .*Uncorrect"
                   r"|AER: can't recover|device recovery failed)"),
    ("machine-check", r"Uncorrected hardware memory error|Machine Check Exception"
                      r"|EDAC \S+: \d+ UE |Memory failure: 0x|\[Hardware Error\]: event severity:"
                      r" (?:fatal|recoverable)"),
    ("hung-task", r"INFO: task (?P<process>.+):(?P<pid>\d+) blocked for more than"),
    ("out-of-memory", r"(?:Out of memory|Memory cgroup out of memory): Killed process"
                      r" (?P<pid>\d+) \((?P<process>[^)]+)\)"),
    ("io-error", r"(?<!Buffer )I/O error, dev (?!sr\d|fd\d|loop|ram|zram)\S+|EXT4-fs error"
                 r"|Remounting filesystem read-only|XFS \S+: .*(?:[Cc]orruption|metadata I/O error)"
                 r"|nvme\S* .*timeout, (?:aborting|reset)"),
)]
BOOT_LINE = "Linux version "
# The first that the driver says when it is loaded, before it has looked at a card.
LOAD_LINE = re.compile(r"Nvlink Core is being initialized")
# Of the driver and its cards: what was said before it was loaded anew is of the one before.
OF_THE_DRIVER = ("xid", "sxid", "key-rejected", "api-mismatch", "init-failed")


def section_kernel_log(host):
    """What the kernel said since boot that concerns cards and machine. Not asked in mode facts."""
    found = {"source": None, "error": None, "since_boot": False, "complete": False, "events": []}
    # A container without a card has no log of its own, and another's is not its business.
    if host["mode"] != "full" or (container_of(host)
                                  and not host.exists("/proc/driver/nvidia/version")):
        return found
    denied, partly = [], []
    for source, reader in (("journal", journal_lines), ("dmesg", dmesg_lines), (None, file_lines)):
        try:
            told = reader(host)
        except PermissionError as error:
            denied.append(str(error))
            continue
        if told:
            name, lines = told if source is None else (source, told)
            told = dict(found, source=name, since_boot=True, events=kernel_events(lines),
                        complete=any(BOOT_LINE in text for _, text in lines))
            if told["complete"]:
                return told
            partly.append((len(lines), told))
    # None reaches back to the boot: the one that says most.
    if partly:
        return max(partly, key=lambda pair: pair[0])[1]
    return dict(found, error="; ".join(denied) or None)


def stamped(out):
    """[(seconds since boot, or None, text)] of lines as dmesg and journalctl print them."""
    lines = []
    for line in out.splitlines():
        match = re.match(r"\[\s*(\d+\.\d+)\]\s(?:\S+ kernel: )?(.*)", line)
        if match:
            lines.append((float(match.group(1)), match.group(2)))
    return lines


def journal_lines(host):
    """The kernel's lines of this boot; none where systemd's journal is not, or is not readable."""
    place = system_program(host, "journalctl")
    if not place:
        return []
    status, out, err = run_command(
        [host.path(place), "-k", "-b", "-a", "-q", "--no-pager", "-o", "short-monotonic"],
        host.inner_s / 3)
    if status != 0 and "insufficient permissions" in err.lower():
        raise PermissionError("journalctl: insufficient permissions")
    return stamped(out) if status == 0 else []


def dmesg_lines(host):
    place = system_program(host, "dmesg")
    if not place:
        return []
    status, out, err = run_command([host.path(place)], host.inner_s / 3)
    if status != 0 and "not permitted" in err:
        raise PermissionError("dmesg: not permitted")
    return stamped(out) if status == 0 else []


def system_program(host, name):
    return next((d + name for d in SYSTEM_PLACES if host.exists(d + name)), None)


def file_lines(host):
    """(file, [(None or seconds, text)]) of what syslog wrote since boot; None without such a file.

    The one before the last rotation is read too, since a boot may be as long ago.
    """
    boot = first_match(r"^btime (\d+)", host.text_or_none("/proc/stat"))
    for name in ("/var/log/kern.log", "/var/log/messages"):
        if boot is None or not host.exists(name):
            continue
        text = (host.text_or_none(name + ".1") or "") + host.text(name)
        lines = []
        for line in text.splitlines():
            match = re.match(r"(\w{3} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\S+) \S+ kernel:"
                             r" (?:\[\s*(\d+\.\d+)\] )?(.*)", line)
            if not match:
                continue
            said = syslog_time(match.group(1), time.time())
            # The clock is often set a little after the kernel began to speak.
            if said is not None and said < int(boot) - 120:
                continue
            if BOOT_LINE in match.group(3):
                lines = []
            lines.append((float(match.group(2)) if match.group(2) else None, match.group(3)))
        return "file:" + name, lines
    return None


def syslog_time(text, now):
    """Seconds since the epoch of syslog's time; where it has no year, the last that is past."""
    if text[:4].isdigit():
        match = re.match(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:?\d\d)?", text)
        if not match:
            return None
        zone = (match.group(2) or "Z").replace(":", "")
        offset = 0 if zone == "Z" else int(zone[0] + "1") * (
            int(zone[1:3]) * 3600 + int(zone[3:5]) * 60)
        import calendar
        return calendar.timegm(time.strptime(match.group(1), "%Y-%m-%dT%H:%M:%S")) - offset
    this = time.localtime(now).tm_year
    for year in range(this, this - 5, -1):
        try:
            said = time.mktime(time.strptime("%d %s" % (year, text), "%Y %b %d %H:%M:%S"))
        except ValueError:
            # The 29th of February is of a leap year.
            continue
        if said <= now + 86400:
            return said
    return None


def kernel_events(lines):
    """One entry per kind, code and place, with how often it was and the last that was said."""
    found = {}
    for seconds, text in lines:
        if LOAD_LINE.search(text):
            found = {key: event for key, event in found.items() if key[0] not in OF_THE_DRIVER}
            continue
        for kind, pattern in EVENTS:
            match = pattern.search(text)
            if not match:
                continue
            named = match.groupdict()
            address = named.get("address") and full_address(named["address"])
            code = int(named["code"]) if named.get("code") else None
            if kind == "xid" and code is None:
                code = 79
            key = (kind, code, address)
            count = found[key]["count"] + 1 if key in found else 1
            found[key] = {"kind": kind, "code": code, "address": address,
                          "pid": int(named["pid"]) if named.get("pid") else None,
                          "process": named.get("process"), "uptime_s": seconds, "count": count,
                          "text": text[:300]}
            break
    return list(found.values())


def full_address(text):
    """`PCI:0000:3B:00` as sysfs writes it: 0000:3b:00.0."""
    domain, _, rest = text.lower().partition(":")
    return "%04x:%s" % (int(domain, 16), rest if "." in rest else rest + ".0")



# -- packages ------------------------------------------------------------------------------------

# Not (or no longer) there, as dpkg says it.
GONE = ("not-installed", "config-files")


def section_packages(host):
    if host.exists("/var/lib/dpkg/status"):
        packages, manager = dpkg_packages(host), "dpkg"
    elif host.exists("/usr/lib/sysimage/rpm") or host.exists("/var/lib/rpm"):
        packages, manager = rpm_packages(host), "rpm"
    else:
        packages, manager = [], None
    driver = [row for row in packages if DRIVER_PACKAGE.match(row["name"].partition(":")[0])]
    return {"manager": manager, "driver": driver,
            "broken": [{"name": row["name"], "status": row["status"]} for row in packages
                       if row["status"] != "installed"],
            "pins": driver_pins(host, driver), "sources": package_sources(host),
            "unattended": unattended(host, manager, packages, driver)}


def dpkg_packages(host):
    """[{"name", "version", "status", "held"}] of what is there, from dpkg's own database."""
    found, native = [], None
    for stanza in host.text("/var/lib/dpkg/status").split("\n\n"):
        fields = dict(re.findall(r"^(Package|Status|Version|Architecture): (.*)$", stanza,
                                 re.MULTILINE))
        if len(fields) < 3:
            continue
        wanted, error, status = fields["Status"].split()
        if status in GONE:
            continue
        name, arch = fields["Package"], fields.get("Architecture")
        native = arch if name == "dpkg" else native
        found.append((arch, {"name": name, "version": fields.get("Version"),
                             "status": status if error == "ok" else error,
                             "held": wanted == "hold"}))
    for arch, row in found:
        if arch not in ("all", native, None) and native:
            row["name"] += ":" + arch
    return sorted((row for _, row in found), key=lambda row: row["name"])


def rpm_packages(host):
    """The same from rpm, which knows nothing half-installed; held by dnf's versionlock."""
    if not host.real:
        return []
    status, out, error = run_command(["rpm", "-qa", "--qf", "%{NAME}\t%{VERSION}-%{RELEASE}\n"],
                                     host.inner_s * 0.8)
    if status != 0:
        raise RuntimeError("rpm -qa: " + (error.strip() or "status %s" % status))
    locks = [line.strip() for line in
             (host.text_or_none("/etc/dnf/plugins/versionlock.list") or "").splitlines()]
    return parse_rpm(out, locks)


def parse_rpm(out, locks):
    """From `NAME<tab>VERSION` lines, and patterns such as nvidia-driver-3:535.261.03-1.el9.*."""
    names = [re.sub(r"-(\d+:)?[\d*][^-]*-[^-]+$", "", lock) for lock in locks]
    rows = [line.split("\t") for line in sorted(set(out.splitlines())) if "\t" in line]
    return [{"name": name, "version": version, "status": "installed",
             "held": any(fnmatch.fnmatch(name, pattern) for pattern in names
                         if pattern[:1] not in ("#", "!", ""))} for name, version in rows]


def driver_pins(host, driver):
    """[{"path", "packages", "pin", "priority"}] of apt's preferences that name driver packages."""
    found, names = [], [row["name"] for row in driver]
    for path in ["/etc/apt/preferences", *host.glob("/etc/apt/preferences.d/*")]:
        # apt reads files without a suffix, or with .pref.
        if "." in os.path.basename(path) and not path.endswith(".pref"):
            continue
        for stanza in re.split(r"\n\s*\n", host.text_or_none(path) or ""):
            fields = dict(re.findall(r"^(Package|Pin|Pin-Priority):\s*(.*)$", stanza, re.MULTILINE))
            words = fields.get("Package", "").split()
            named = [word for word in words if DRIVER_PACKAGE.match(word) or "nvidia" in word
                     or (word != "*" and any(fnmatch.fnmatch(name, word) for name in names))]
            if named or (words and "nvidia" in fields.get("Pin", "").lower()):
                found.append({"path": path, "packages": named or words,
                              "pin": fields.get("Pin", ""),
                              "priority": first_match(r"^(-?\d+)", fields.get("Pin-Priority"))})
    return [dict(row, priority=int(row["priority"]) if row["priority"] else None) for row in found]


def unattended(host, manager, packages, driver):
    """Whether upgrades happen by themselves, and whether they leave alone what is held of it."""
    names = {row["name"] for row in packages}
    if manager != "dpkg":
        # A version lock binds dnf-automatic as well.
        return {"installed": "dnf-automatic" in names,
                "excluded": bool(driver) and all(row["held"] for row in driver)}
    listed = []
    for path in host.glob("/etc/apt/apt.conf.d/*"):
        text = re.sub(r"^\s*(//|#).*$", "", host.text_or_none(path) or "", flags=re.MULTILINE)
        for block in re.findall(r"Package-Blacklist\s*\{([^}]*)\}", text):
            listed += re.findall(r'"([^"]+)"', block)
        listed += re.findall(r'Package-Blacklist::\s*"([^"]+)"', text)
    held = [row for row in driver if row["held"]] or driver
    wanted = [row["name"].partition(":")[0] for row in held] or ["nvidia-driver"]
    return {"installed": "unattended-upgrades" in names,
            "excluded": all(any(begins(pattern, name) for pattern in listed) for name in wanted)}


def begins(pattern, name):
    """As unattended-upgrades compares: a regular expression from the name's beginning on."""
    try:
        return bool(re.match(pattern, name))
    except re.error:
        return False


def package_sources(host):
    """[{"path", "uris", "suites", "signed_by", "format"}] of NVIDIA's and Docker's repositories."""
    found = []
    for path in ["/etc/apt/sources.list", *host.glob("/etc/apt/sources.list.d/*.list")]:
        for line in (host.text_or_none(path) or "").splitlines():
            match = re.match(r"deb\s+(?:\[(.*?)\]\s+)?(\S+)\s+(\S+)", line)
            if match:
                signed = first_match(r"signed-by=(\S+)", match.group(1))
                found.append((path, [match.group(2)], [match.group(3)], signed, "list"))
    for path in host.glob("/etc/apt/sources.list.d/*.sources"):
        for stanza in re.split(r"\n\s*\n", host.text_or_none(path) or ""):
            # A key that stands in the file itself begins on the line after.
            fields = {key.lower(): " ".join(value.split()) for key, value in re.findall(
                r"^([\w-]+):((?:.*\n?)(?:[ \t].*\n?)*)", stanza, re.MULTILINE)}
            if "uris" in fields and fields.get("enabled", "yes").lower() != "no":
                found.append((path, fields["uris"].split(), fields.get("suites", "").split(),
                              fields.get("signed-by", "")[:200] or None, "deb822"))
    for path in host.glob("/etc/yum.repos.d/*.repo"):
        for stanza in re.split(r"^\[", host.text_or_none(path) or "", flags=re.MULTILINE)[1:]:
            fields = dict(re.findall(r"^(\w+)\s*=\s*(.*)$", stanza, re.MULTILINE))
            if fields.get("enabled", "1").strip() == "1":
                found.append((path, fields.get("baseurl", "").split(), [stanza.partition("]")[0]],
                              fields.get("gpgkey"), "repo"))
    # An address may carry a password.
    found = [(row[0], [re.sub(r"//[^/@]*@", "//", uri) for uri in row[1]], *row[2:])
             for row in found]
    return [dict(zip(("path", "uris", "suites", "signed_by", "format"), row)) for row in found
            if re.search("nvidia|docker", " ".join([row[0], *row[1]]), re.IGNORECASE)]


def section_receipts(host):
    found = read_receipts(host.path(host["state_dir"]))
    receipts, mounts = [], mount_points(host)
    listed = {"toolkit": set(), "cudnn": set()}
    for receipt in found["receipts"]:
        listed.setdefault(receipt["kind"], set()).update(
            os.path.join(receipt["path"], entry["path"]) for entry in receipt["manifest"])
    for receipt in found["receipts"]:
        manifest = receipt.pop("manifest")
        root = host.path(receipt["path"])
        receipt["changed"] = compare_manifest(root, manifest, host["deep"])
        paths, infos = [entry["path"] for entry in manifest], {}
        if receipt["kind"] == "stack" and isinstance(receipt.get("packages"), dict):
            known = set(paths)
            files = [entry for entry in recorded_files(root, receipt["packages"])
                     if entry[0] not in known]
            paths += [path for path, _, _ in files]
            receipt["changed"] += compare_records(root, files, host["deep"], infos)
        receipt["files"] = len(paths)
        receipt["libraries"] = [
            host.realpath(receipt["path"]) + "/" + path for path in paths
            if CUDA_FILE.match(os.path.basename(path)) and not os.path.islink(root + "/" + path)]
        receipt["unlisted"] = unlisted(host, receipt, listed)
        receipt["exposed"] = exposed(host, receipt, paths, mounts, infos)
        receipts.append(receipt)
    for entry in found["unreadable"]:
        entry["path"] = host.name(entry["path"])
    return dict(found, receipts=receipts, texts=texts_of(host), caches=caches_of(host))


def caches_of(host):
    """What is only needed while something is being installed, and was left behind."""
    return [path for place in ("artifacts/*", "python")
            for path in host.glob("/var/cache/gpufleet/" + place)]


def mount_points(host):
    """Where file systems are mounted, as the kernel lists them."""
    lines = (host.text_or_none("/proc/self/mountinfo") or "").splitlines()
    return [re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), line.split()[4])
            for line in lines if len(line.split()) > 4]


def exposed(host, receipt, paths, mounts, infos):
    """[{"path", "what"}]: what of an installation is not root's alone, or lies under a mount.

    Its files, its receipt, and each directory on the way to them: who owns one can exchange what
    is in it. Directories above its own are the system's: a group may write in some of those.
    """
    top, found = host.realpath(receipt["path"]).rstrip("/"), {}
    root = 0 if host.real else os.stat(host.root).st_uid
    record = "%s/receipts/%s-%s.json" % (host["state_dir"], receipt["kind"], receipt["id"])
    files = [record, *(top + "/" + path for path in paths)]
    folders = {name.rpartition("/")[0] for name in files}
    for folder in list(folders):
        steps = folder.split("/")
        folders.update("/".join(steps[:depth]) for depth in range(1, len(steps)))
    for name in [*files, *(folder or "/" for folder in folders)]:
        try:
            info = infos.get(name) or os.lstat(host.path(name))
        except OSError:
            continue
        if info.st_uid != root:
            found[name] = "belongs to user %d" % info.st_uid
        elif info.st_mode & 0o022 and not stat.S_ISLNK(info.st_mode):
            folder = name in folders or name == "/"
            own = not folder or (top and (name + "/").startswith(top + "/"))
            # In a directory with the sticky bit nobody can exchange what is another's.
            others = 0o002 if not folder or not info.st_mode & stat.S_ISVTX else 0
            if info.st_mode & (others | (0o020 if own and info.st_gid else 0)):
                found[name] = "mode %s, others can write" % mode_of(info)
    files = set(files)
    for point in mounts:
        if point in files or (point in folders and top and point.startswith(top + "/")):
            found[point] = "something is mounted over it"
    return [{"path": path, "what": found[path]} for path in sorted(found)]


# What a receipt of its kind must list where it is there; else it would vouch for nothing by
# listing little.
CORE_FILES = {
    "toolkit": ("version.json", "version.txt", "bin/nvcc", "bin/nvcc.profile", "bin/ptxas",
                "nvvm/bin/cicc", "include/cuda.h", "include/cuda_runtime_api.h"),
    "cudnn": (),
    "stack": ("pyvenv.cfg", "bin/python", "bin/activate",
              "lib/python3*/site-packages/_gpufleet_binding.*"),
}


def unlisted(host, receipt, listed):
    """Files that a receipt should list, and neither it nor another one does.

    Of a toolkit also every library of CUDA's in its directories: whoever put it there, the linker
    and programs take it for the toolkit's. NCCL is no part of it, and often put there by hand.
    """
    kind, top = receipt["kind"], host.realpath(receipt["path"])
    names = [host.realpath(os.path.dirname(name)) + "/" + os.path.basename(name)
             for core in CORE_FILES.get(kind, ()) for name in host.glob(
                 glob.escape(top) + "/" + core)]
    directory = library_directory(host, top) if kind in ("toolkit", "cudnn") else None
    if directory:
        for place, _, files in os.walk(host.path(host.realpath(directory))):
            names += [host.name(os.path.join(place, name)) for name in files
                      if CUDA_FILE.match(name) and not name.startswith("libnccl")
                      and ("cudnn" in name) == (kind == "cudnn")]
    known = listed[kind] if kind == "stack" else listed["toolkit"] | listed["cudnn"]
    if kind == "stack" and isinstance(receipt.get("packages"), dict):
        for name in host.glob(glob.escape(top) + "/lib/python3*/site-packages/*.dist-info"):
            package = os.path.basename(name)[:-len(".dist-info")].rpartition("-")[0]
            if normal_name(package) in receipt["packages"] and not host.exists(name + "/RECORD"):
                names.append(name + "/RECORD (it is not there)")
        if host["mode"] == "full":
            names += unrecorded(host, top, receipt["packages"])
    known = {path.replace(receipt["path"], top, 1) for path in known}
    return sorted({name for name in names if name not in known})


def unrecorded(host, venv, packages):
    """Code in the directories of these packages that no package's record lists."""
    found, records, own = [], {}, set()
    for name in host.glob(glob.escape(venv) + "/lib/python3*/site-packages/*.dist-info/RECORD"):
        site = os.path.dirname(os.path.dirname(name))
        package = os.path.basename(os.path.dirname(name))[:-len(".dist-info")].rpartition("-")[0]
        listed = [path for path, _, _ in _record(host.path(name), sized=False)
                  if not path.startswith("..")]
        records.setdefault(site, set()).update(listed)
        if normal_name(package) in packages:
            own |= {site + "/" + path.partition("/")[0] for path in listed if "/" in path}
    for top in sorted(own):
        site = os.path.dirname(top)
        for place, _, files in os.walk(host.path(top)):
            below = host.name(place)[len(site) + 1:]
            found += [site + "/" + below + "/" + name for name in files
                      if name.endswith((".py", ".so")) and below + "/" + name not in records[site]]
    return found


def texts_of(host):
    """{path: sha256} of what stands in the places of small files, whoever wrote it."""
    names = sorted(name for place in TEXT_PLACES for name in host.glob(place))
    return {name: sha256_of(host.path(name)) if os.path.isfile(host.path(name)) else ""
            for name in names}


def receipts_of(host, kind):
    return [r for r in read_receipts(host.path(host["state_dir"]))["receipts"] if r["kind"] == kind]


def toolkit_trees(host):
    """Trees under the prefix and wherever a receipt says; links to a tree are not trees."""
    trees = [name for name in host.glob(host["prefix"] + "/cuda-[0-9]*")
             if os.path.isdir(host.path(name)) and not os.path.islink(host.path(name))]
    for receipt in receipts_of(host, "toolkit"):
        if receipt["path"] not in trees and os.path.isdir(host.path(receipt["path"])):
            trees.append(receipt["path"])
    return sorted(trees, key=natural)


def library_directory(host, tree):
    for name in (tree + "/lib64", *host.glob(tree + "/targets/*/lib"), tree + "/lib"):
        if host.exists(name):
            return name
    return None


def libraries(host, directory, stem):
    return sorted(host.glob(host.realpath(directory) + "/lib%s*.so*" % stem), key=natural) \
        if directory else []


def closed_to_users(host, names):
    """[{"path", "mode"}] of what keeps other users than its owner from reading these files."""
    closed, seen = [], set()
    for name in names:
        steps = host.realpath(name).split("/")
        for depth in range(2, len(steps) + 1):
            place = "/".join(steps[:depth])
            if (place, depth == len(steps)) in seen:
                continue
            seen.add((place, depth == len(steps)))
            try:
                info = os.stat(host.path(place))
            except OSError:
                break
            # To pass through a directory is enough on the way; the last one is listed.
            needed = (0o005 if depth == len(steps) else 0o001) if stat.S_ISDIR(info.st_mode) \
                else 0o004
            if info.st_mode & needed != needed:
                closed.append({"path": place, "mode": mode_of(info)})
                break
    return list({entry["path"]: entry for entry in closed}.values())


def section_toolkits(host):
    received = {receipt["path"] for receipt in receipts_of(host, "toolkit")}
    trees = []
    for tree in toolkit_trees(host):
        version, source = toolkit_version(host, tree)
        nvcc, nvcc_error = ask_nvcc(host, tree)
        cudart = [first_match(r"libcudart\.so\.(\d+\.\d+\.\d+)$", name)
                  for name in libraries(host, library_directory(host, tree), "cudart")]
        trees.append({
            "path": tree, "short": first_match(r"cuda-(\d+\.\d+)", tree) or
            (".".join(version.split(".")[:2]) if version else None),
            "version": version, "version_source": source, "nvcc": nvcc, "nvcc_error": nvcc_error,
            "cudart": [v for v in cudart if v], "receipt": tree in received,
            "headers": toolkit_headers(host, tree),
            "realpath": host.realpath(tree), "closed": closed_to_users(host, [
                name for name in (tree, tree + "/bin", tree + "/include", *toolkit_libraries(
                    host, library_directory(host, tree))) if host.exists(name)])})
    return {"trees": trees, "default": default_link(host),
            "occupied": sorted(host.glob(host["prefix"] + "/cuda-[0-9]*"), key=natural)}


def toolkit_headers(host, tree):
    """[{"path", "version"}] of the headers by which programs learn what they are compiled for."""
    found = []
    for name, macro in (("cuda.h", "CUDA_VERSION"), ("cuda_runtime_api.h", "CUDART_VERSION")):
        path = tree + "/include/" + name
        text = host.text_or_none(path)
        if text is not None:
            number = first_match(r"^\s*#\s*define\s+%s\s+(\d+)" % macro, text)
            found.append({"path": path, "version": number and "%d.%d" % (
                int(number) // 1000, int(number) % 1000 // 10)})
    return found


def toolkit_libraries(host, directory):
    """A toolkit's directory of libraries and all in it, but for cuDNN's."""
    return [directory, *(name for name in libraries(host, directory, "")
                         if not os.path.basename(name).startswith("libcudnn"))] if directory else []


def toolkit_version(host, tree):
    text = host.text_or_none(tree + "/version.json")
    if text is not None:
        try:
            return json.loads(text)["cuda"]["version"], "version.json"
        except (ValueError, KeyError, TypeError):
            return None, "version.json"
    text = host.text_or_none(tree + "/version.txt")
    if text is not None:
        return first_match(r"CUDA Version\s+([\d.]+)", text), "version.txt"
    return None, None


def ask_nvcc(host, tree):
    nvcc = host.path(tree + "/bin/nvcc")
    if not os.path.lexists(nvcc):
        return None, None
    status, out, err = run_command([nvcc, "--version"], host.inner_s / 4,
                                   env={"PATH": "/usr/bin:/bin", "LANG": "C"})
    version = first_match(r"release [\d.]+, V([\d.]+)", out)
    if version:
        return version, None
    return None, last_lines(err or out, 300) or "it said nothing (status %s)" % status


def default_link(host):
    name = host["prefix"] + "/cuda"
    path = host.path(name)
    if os.path.islink(path):
        state = "link"
    elif os.path.isdir(path):
        state = "directory"
    else:
        state = "file" if os.path.lexists(path) else "missing"
    link = state == "link"
    return {"path": name, "state": state, "target": os.readlink(path) if link else None,
            "realpath": host.realpath(name) if link and host.exists(name) else None}


def section_cudnn(host):
    trees = toolkit_trees(host)
    for receipt in receipts_of(host, "cudnn"):
        if receipt["path"] not in trees and os.path.isdir(host.path(receipt["path"])):
            trees.append(receipt["path"])
    return {"trees": [found for found in (cudnn_of(host, tree) for tree in trees)
                      if found["headers"] or found["libraries"] or found["links"]]}


def cudnn_of(host, tree):
    found = {"toolkit": tree, "headers": [], "libraries": [], "links": [], "loaded": [],
             "closed": []}
    for name in ("cudnn_version.h", "cudnn.h"):
        path = tree + "/include/" + name
        text = host.text_or_none(path)
        numbers = [first_match(r"^#define\s+CUDNN_%s\s+(\d+)" % part, text)
                   for part in ("MAJOR", "MINOR", "PATCHLEVEL")]
        # Since 8.0 cudnn.h has no numbers of its own; a cudnn_version.h without them is damaged.
        if text is not None and (all(numbers) or name == "cudnn_version.h"):
            found["headers"].append({"path": path, "mode": mode_of(os.stat(host.path(path))),
                                     "version": ".".join(numbers) if all(numbers) else None})
    directory = library_directory(host, tree)
    shims, by_soname = set(), {}
    for name in libraries(host, directory, "cudnn"):
        path = host.path(name)
        if os.path.islink(path):
            found["links"].append({"path": name, "target": os.readlink(path),
                                   "exists": host.exists(name)})
            number = first_match(r"/libcudnn\.so\.(\d+)$", name)
        else:
            info = os.lstat(path)
            soname = error = None
            try:
                if not stat.S_ISREG(info.st_mode):
                    raise ValueError("it is no file")
                soname = elf_dynamic(path)["soname"]
            except (ValueError, OSError) as problem:
                error = str(problem)
            found["libraries"].append({"path": name, "soname": soname, "size_bytes": info.st_size,
                                       "mode": mode_of(info), "error": error})
            by_soname.setdefault(soname, name)
            number = first_match(r"^libcudnn\.so\.(\d+)$", soname or "") or \
                first_match(r"/libcudnn\.so\.(\d+)", name)
        if number:
            shims.add("libcudnn.so." + number)
    found["closed"] = closed_to_users(
        host, [entry["path"] for entry in found["libraries"] + found["headers"]])
    for soname in sorted(shims, key=natural):
        path = host.realpath(directory) + "/" + soname
        # A missing link is one finding, the version of the file that it should lead to another.
        if not host.exists(path):
            path = by_soname.get(soname, path)
        words = scratch_file()
        state, version, error = in_child(ask_cudnn, (host.path(path), words), host.inner_s / 4)
        words.seek(0)
        said = words.read().decode("utf-8", "replace").strip()
        words.close()
        if state == "hung":
            error = "no answer: " + error
        # One that lacks another library says so, and aborts.
        if error and said:
            error += " (%s)" % said[-300:]
        found["loaded"].append({"soname": soname, "path": path, "version": version, "error": error})
    return found


def ask_cudnn(path, words):
    os.dup2(words.fileno(), 2)
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOW)
    except OSError as error:
        raise RuntimeError(str(error)) from None
    library.cudnnGetVersion.restype = ctypes.c_size_t
    number = library.cudnnGetVersion()
    # 8.9.7 is 8907, 9.1.0 is 90100.
    major = 1000 if number < 10000 else 10000
    return "%d.%d.%d" % (number // major, number % major // 100, number % 100)


def section_linker(host):
    files = linker_files(host)
    named = {host.realpath(directory) for entry in files for directory in entry["directories"]}
    directories = [library_directory(host, tree) for tree in toolkit_trees(host)]
    cache, cache_error = [], None
    try:
        cache = linker_cache(host.root)
    except (ValueError, struct.error):
        cache_error = "/etc/ld.so.cache is damaged, or of an unknown format"
    return {"files": files, "cache": cache, "cache_error": cache_error,
            "offered": offered(host, files), "providers": providers(host, files),
            "unregistered": [d for d in directories if d and host.realpath(d) not in named]}


# Where the linker looks by itself, and what it prefers below each directory.
LINKER_PLACES = ("/lib", "/usr/lib", "/lib64", "/usr/lib64", "/lib/*-linux-gnu",
                 "/usr/lib/*-linux-gnu")
LINKER_PREFERS = ("", "/glibc-hwcaps/*", "/tls", "/haswell", "/x86_64", "/haswell/x86_64")


def providers(host, files):
    """[{"soname", "path", "realpath"}]: every CUDA and cuDNN file that the linker may ever take."""
    places = [directory for entry in files for directory in entry["directories"]]
    places += [name for place in LINKER_PLACES for name in host.glob(place)]
    found = {}
    for directory in dict.fromkeys(host.realpath(place) for place in places):
        for below in [d for more in LINKER_PREFERS
                      for d in host.glob(glob.escape(directory) + more)]:
            try:
                names = sorted(os.listdir(host.path(below)))
            except OSError:
                continue
            for name in [n for n in names if CUDA_FILE.match(n)]:
                path = below + "/" + name
                found.setdefault(host.realpath(path), path)
    rows = [{"soname": soname_of(host, real), "path": path, "realpath": real}
            for real, path in found.items()]
    return [row for row in rows if row["soname"]]


def offered(host, files):
    """Where ldconfig would find each CUDA and cuDNN library, were it run now: the first one."""
    first = {}
    for directory in [name for entry in files for name in entry["directories"]]:
        for name in host.glob(glob.escape(directory) + "/lib*.so*"):
            if CUDA_FILE.match(os.path.basename(name)):
                soname = soname_of(host, name)
                if soname:
                    first.setdefault(soname, {"soname": soname, "path": name,
                                              "realpath": host.realpath(name)})
    return list(first.values())


def soname_of(host, name):
    """A library's SONAME; None for what is no library."""
    path = host.path(host.realpath(name))
    try:
        return elf_dynamic(path)["soname"] if os.path.isfile(path) else None
    except (ValueError, OSError, struct.error):
        return None


def section_environment(host):
    found = dict.fromkeys(STEERING_VARIABLES)
    # pam_env reads this one before any shell starts.
    for line in (host.text_or_none("/etc/environment") or "").splitlines():
        key, mark, value = line.strip().partition("=")
        key = key.replace("export ", "").strip()
        if mark and key in found:
            found[key] = value.strip().strip("\"'")
    accounts = [None]
    if host.real and connected_account():
        accounts.append(connected_account())
    # Beside each other: a slow home directory is slow for each.
    outcomes = await_all([Child(login_as, (host, found, account), host.inner_s * 0.85)
                          for account in accounts])
    for state, _, error, _ in outcomes:
        if state == "hung":
            raise NoAnswerError(error)
        if state != "ok":
            raise RuntimeError(error)
    login = outcomes[0][1]
    others = [{"where": "A login of %s" % account.pw_name, "variables": outcome[1], "job": False}
              for account, outcome in zip(accounts, outcomes) if account]
    others.append({"where": "systemd, for its services,", "variables": service_variables(host),
                   "job": False})
    # Not a variable, but the same in its effect, and for every program.
    preload = " ".join((host.text_or_none("/etc/ld.so.preload") or "").split()) or None
    others.append({"where": "/etc/ld.so.preload", "variables": {"LD_PRELOAD": preload},
                   "job": False})
    unread = []
    others += settings_of_files(host, unread)
    return {"login": login, "others": others, "mentions": mentions(host, unread), "unread": unread,
            "offers": offers(host, [login, *(other["variables"] for other in others)])}


def settings_of_files(host, unread):
    """What PAM's, systemd's and cron's files set, from the next start on: those that set any.

    `job` where it is for one job alone, whose author may have meant it. Files that only others can
    read are added to `unread`.
    """
    found = []
    for places, reader, job in (
            (PAM_PLACES, pam_settings, False), (USER_SERVICE_PLACES, assignments, False),
            (MANAGER_PLACES, manager_settings, False), (UNIT_PLACES, unit_settings, True),
            (CRON_PLACES, assignments, False), (CRON_JOB_PLACES, assignments, True)):
        for name in files_of(host, places):
            variables = {}
            try:
                pairs = reader(host, host.text_or_none(name) or "")
            except PermissionError:
                unread.append(name)
                continue
            for key, value in pairs:
                if key in STEERING_VARIABLES:
                    variables[key] = value
            if variables:
                found.append({"where": name, "variables": variables,
                              "job": job and "/service.d/" not in name})
    return found


def files_of(host, places):
    """Regular files of these patterns, each real one once (/lib may be /usr/lib)."""
    found = {}
    for place in places:
        for name in host.glob(place):
            path = host.path(host.realpath(name))
            if os.path.isfile(path):
                found.setdefault(path, name)
    return list(found.values())


def assignments(host, text):
    """(name, value) of lines NAME=value, as crontabs and environment files have them."""
    return [(key, value.strip().strip("\"'")) for key, value in re.findall(
        r"^[ \t]*(?:export[ \t]+)?([A-Za-z_]\w*)[ \t]*=(.*)$", text, re.MULTILINE)]


def pam_settings(host, text):
    """(name, value) of pam_env.conf."""
    return [(name, value.strip("\"")) for name, value in re.findall(
        r"^[ \t]*(\w+)[ \t].*?(?:DEFAULT|OVERRIDE)=(\"[^\"]*\"|\S*)", text, re.MULTILINE)]


def manager_settings(host, text):
    """(name, value) of what systemd gives to all that it starts."""
    lines = re.findall(r"^[ \t]*(?:Default|Manager)Environment[ \t]*=(.*)$", joined(text),
                       re.MULTILINE)
    return [pair for line in lines for pair in pairs_of(line)]


def unit_settings(host, text):
    """(name, value) of a unit: its own variables, and those of the files that it names."""
    found = []
    for kind, line in re.findall(r"^[ \t]*(Environment|EnvironmentFile)[ \t]*=(.*)$", joined(text),
                                 re.MULTILINE):
        name = line.strip().lstrip("-")
        if kind == "Environment":
            found += pairs_of(line)
        elif name[:1] == "/":
            for path in files_of(host, [name]):
                found += assignments(host, host.text_or_none(path) or "")
    return found


def joined(text):
    """systemd's lines: one that ends in a backslash goes on in the next."""
    return re.sub(r"\\\n", " ", text)


def pairs_of(line):
    """(name, value) of `A=1 "B=2 3"`."""
    try:
        words = shlex.split(line)
    except ValueError:
        words = line.split()
    return [tuple(word.split("=", 1)) for word in words if "=" in word]


def mentions(host, unread):
    """{variable: [files]}: where to look for what a session was found to set."""
    found = {}
    home = login_identity()["HOME"]
    places = [place.replace("~", home.rstrip("/"), 1) for place in PROFILE_PLACES]
    for name in files_of(host, places):
        try:
            text = re.sub(r"^\s*#.*$", "", host.text_or_none(name) or "", flags=re.MULTILINE)
        except PermissionError:
            unread.append(name)
            continue
        for key in STEERING_VARIABLES:
            if re.search(r"\b%s\b" % key, text):
                found.setdefault(key, []).append(name)
    return found


def login_variables(host, found, identity):
    """The steering variables after a login: an interactive one, as people's are, if that works."""
    found = dict(found)
    shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
    mark = "\0gpufleet\0"
    report = "printf '\\0gpufleet\\0'; env -0"
    if host.real:
        calls = [[shell, "-l", "-i", "-c", report], [shell, "-l", "-c", report]]
    else:
        calls = [[shell, "-c", 'for f in "$0"/etc/profile "$0"/etc/profile.d/*.sh; do '
                  '[ -r "$f" ] && . "$f"; done; ' + report, host.root.rstrip("/")]]
    env = {key: value for key, value in found.items() if value is not None}
    env.update(identity)
    for argv in calls:
        status, out, err = run_command(argv, host.inner_s * 0.4, env=env, cwd="/")
        if mark in out:
            break
    else:
        if status is None:
            raise NoAnswerError("a login shell gave no answer: " + err)
        raise RuntimeError("a login shell ended (status %d) before it came to a command: %s"
                           % (status, last_lines(err or out, 300) or "it said nothing"))
    for item in out.partition(mark)[2].split("\0"):
        key, equals, value = item.partition("=")
        if equals and key in found:
            found[key] = value
    return found


def connected_account():
    """Who came in and became root by sudo; None where nobody did."""
    name = os.environ.get("SUDO_USER")
    if os.geteuid() != 0 or not name or name == "root":
        return None
    try:
        import pwd
        return pwd.getpwnam(name)
    except (ImportError, KeyError):
        return None


def login_as(host, found, account):
    """The login of another account, or of this one where it is None."""
    if account:
        os.initgroups(account.pw_name, account.pw_gid)
        os.setgid(account.pw_gid)
        os.setuid(account.pw_uid)
    return login_variables(host, found, login_identity())


def service_variables(host):
    """What systemd gives to each service that it starts."""
    found = dict.fromkeys(STEERING_VARIABLES)
    if host.real and shutil.which("systemctl"):
        _status, out, _err = run_command(["systemctl", "show-environment"], host.inner_s / 10)
        for line in out.splitlines():
            key, mark, value = line.partition("=")
            if mark and key in found:
                found[key] = value
    return found


def offers(host, environments):
    """{place: [CUDA's, cuDNN's and the driver's library names]} of what variables lead to."""
    found = {}
    for values in environments:
        for directory in (values.get("LD_LIBRARY_PATH") or "").split(":"):
            names = host.glob(glob.escape(directory) + "/lib*.so*") if directory[:1] == "/" else []
            found[directory] = [os.path.basename(n) for n in names if steers(os.path.basename(n))]
        for library in re.split(r"[:\s]+", values.get("LD_PRELOAD") or ""):
            names = [os.path.basename(library), soname_of(host, library) or ""]
            found[library] = [name for name in names if steers(name)]
    return {place: names for place, names in found.items() if names}


def steers(name):
    return bool(CUDA_FILE.match(name) or DRIVER_FILE.match(name))


def login_identity():
    try:
        import pwd
        user = pwd.getpwuid(os.geteuid())
        name, home = user.pw_name, user.pw_dir
    except (ImportError, KeyError):
        name, home = "nobody", "/"
    return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": home,
            "USER": name, "LOGNAME": name, "TERM": "dumb"}


# -- stacks --------------------------------------------------------------------------------------

def section_stacks(host):
    received = {r["path"]: r["id"] for r in receipts_of(host, "stack")}
    stacks = []
    for venv in venvs(host, received):
        settings = host.text_or_none(venv + "/pyvenv.cfg")
        python = first_match(r"^version(?:_info)?\s*=\s*(\d+\.\d+(?:\.\d+)?)", settings)
        stacks.append({"name": received.get(venv, os.path.basename(venv)), "venv": venv,
                       "python": python, "packages": packages_of(host, venv),
                       "bound_to": bound_to(host, venv),
                       "receipt": venv in received, "framework": None, "start": None,
                       "binding": None, "hooks": hooks_of(host, venv),
                       "realpath": host.realpath(venv), "closed": closed_to_users(host, [
                           venv, venv + "/bin/python",
                           *host.glob(venv + "/lib/python3*/site-packages"),
                           *host.glob(venv + "/lib/python3*/site-packages/tensorflow*")])})
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for stack, start in zip(stacks, pool.map(
                lambda stack: started(host, stack["venv"]), stacks)):
            stack["start"] = start
    if host["mode"] == "full" and host["matmul"]:
        # Beside each other only where no GPU can be fought for.
        workers = min(4, os.cpu_count() or 1) if host["expect_gpus"] == 0 else 1
        # One that hangs may not use up the others' time.
        share_s = host.inner_s / max(1, -(-len(stacks) // workers))
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            # Newer releases take longer: begun last, they would be waited for alone.
            runs = [(stack, pool.submit(framework_of, host, stack, share_s))
                    for stack in reversed(stacks)]
            tries = [(stack, pool.submit(try_binding, host, stack)) for stack in stacks]
            for stack, run in runs:
                stack["framework"] = run.result()
            for stack, run in tries:
                stack["binding"] = run.result()
    return {"stacks": stacks,
            "occupied": sorted(host.glob(host["stack_root"] + "/*"), key=natural)}


# Where an environment's interpreter looks for modules before its own, beside its Python's.
START = """
import json, os, sys
real = os.path.realpath
own, library = real(sys.prefix) + "/", real(os.path.dirname(os.__file__))
site = [n for n, p in enumerate(sys.path) if real(p).startswith(own) and "-packages" in p]
# What comes after its own packages cannot shadow any of them.
strange = [p for p in sys.path[1:min(site or [None])] if not (real(p) + "/").startswith(own)
           and not (real(p) + "/").startswith(library + "/") and not p.endswith(".zip")]
print(json.dumps({"python": "%d.%d.%d" % sys.version_info[:3], "prefix": sys.prefix,
                  "strange": sorted(set(strange)), "error": None}))
"""


def started(host, venv):
    """What a stack's interpreter says when it is started as people start it."""
    status, out, err = run_command(
        [host.path(venv + "/bin/python"), "-c", START],
        # What computes has the time in mode full.
        host.inner_s / (10 if host["mode"] == "full" else 2),
        env={"PATH": "/usr/bin:/bin", "HOME": os.environ.get("HOME") or "/"}, cwd="/")
    try:
        told = json.loads(out.splitlines()[-1])
        return dict(told, prefix=host.name(told["prefix"]))
    except (ValueError, LookupError, TypeError):
        said = last_lines(err or out, 300) or "it ended with status %s" % status
        return {"python": None, "prefix": None, "strange": [], "error": said}


def hooks_of(host, venv):
    """Files that change what every start of an interpreter does, and that no package brought."""
    found = []
    for site in host.glob(glob.escape(venv) + "/lib/python3*/site-packages"):
        names = [name for pattern in ("*.pth", "sitecustomize.py", "usercustomize.py")
                 for name in host.glob(glob.escape(site) + "/" + pattern)]
        # Lines that are no code only add to the end of the way.
        names = [name for name in names if not name.endswith(".pth") or re.search(
            r"^import\s", host.text_or_none(name) or "", re.MULTILINE)]
        # uv's own and ours have no record; ours are in the receipt.
        names = [name for name in names if not re.match(
            r"(_virtualenv|_gpufleet_binding)\.pth$", os.path.basename(name))]
        records = names and host.glob(glob.escape(site) + "/*.dist-info/RECORD")
        known = {path for record in records for path, _, _ in _record(host.path(record), False)}
        found += [name for name in names if os.path.basename(name) not in known]
    return found


def try_binding(host, stack):
    """Why a library that a stack is bound to cannot be opened with all its symbols, if so."""
    if stack["bound_to"] is None:
        return None
    status, out, err = run_command(
        [host.path(stack["venv"] + "/bin/python"), "-m", "_gpufleet_binding"], host.inner_s / 10,
        env={"PATH": "/usr/bin:/bin", "HOME": "/"}, cwd="/")
    return {"error": None if status == 0 else last_lines(err or out, 600) or "status %s" % status}


def venvs(host, received):
    """The environments that receipts name and that are there, and those that stand beside them."""
    places = [path for path in received if os.path.isdir(host.path(path))]
    places += [os.path.dirname(name) for name in host.glob(host["stack_root"] + "/*/pyvenv.cfg")
               if os.path.dirname(name) not in received]
    return sorted(places, key=natural)


def packages_of(host, venv):
    """{name: version} from the installed metadata, nothing imported."""
    packages = {}
    for pattern in ("*.dist-info/METADATA", "*.egg-info/PKG-INFO"):
        for name in host.glob(venv + "/lib/python3*/site-packages/" + pattern):
            found = {}
            with open(host.path(name), encoding="utf-8", errors="replace") as stream:
                for line in stream:
                    key, mark, value = line.partition(":")
                    if not mark or len(found) == 2:
                        break
                    if key in ("Name", "Version"):
                        found[key] = value.strip()
            if len(found) == 2:
                packages[normal_name(found["Name"])] = found["Version"]
    return packages


def bound_to(host, venv):
    """The directory of the libraries that an environment is bound to; None where it is to none."""
    for name in host.glob(venv + "/lib/python3*/site-packages/_gpufleet_binding.json"):
        try:
            return os.path.dirname(json.loads(host.text(name))["libraries"][0])
        except (OSError, ValueError, LookupError, TypeError):
            continue
    return None


FRAMEWORK_SILENT = {"version": None, "build": None, "loader": None, "devices": [], "matmul": [],
                    "tower_sum": None, "mapped": [], "strangers": [], "seconds": None,
                    "small": None, "capabilities": []}
FRAMEWORK_MARK = "gpufleet-framework: "
# What TensorFlow says when it leaves a GPU unused, or makes its code anew for it.
TELLING = re.compile(r"^.*(?:minimum required Cuda capability|jit-compiled from PTX"
                     r"|Skipping registering GPU|CUDA_ERROR_OUT_OF_MEMORY).*$", re.MULTILINE)


def scratch_script(host):
    """A new directory and the script in it, where there is room: a full /tmp is no obstacle."""
    for directory in (host.path(host["tmpdir"]), "/dev/shm", "/run", None):
        home = None
        try:
            home = tempfile.mkdtemp(prefix="gpufleet-", dir=directory)
            script = os.path.join(home, "matmul.py")
            with open(script, "w", encoding="utf-8") as stream:
                stream.write(host["matmul"])
            return home, script
        except OSError as error:
            problem = error
            if home:
                shutil.rmtree(home, ignore_errors=True)
    raise problem


def framework_of(host, stack, deadline_s):
    """What matmul.py says in the stack's own interpreter, started with an empty environment."""
    python = host.path(stack["venv"] + "/bin/python")
    expect = "any" if host["expect_gpus"] is None else str(host["expect_gpus"])
    try:
        home, script = scratch_script(host)
    except OSError as error:
        return dict(FRAMEWORK_SILENT, state="failed",
                    error="no directory to write its script in: %s" % error)
    try:
        status, out, err = run_command([python, script, "--expect-gpus", expect], deadline_s,
                                       env={"PATH": "/usr/bin:/bin", "HOME": home}, cwd=home,
                                       partial=True)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return framework_told(status, out, err)


def framework_told(status, out, err):
    """What matmul.py said, from how it ended and what it wrote."""
    said = list(dict.fromkeys(line.strip()[:500] for line in TELLING.findall(err)))[:20]
    return told_by_script(dict(FRAMEWORK_SILENT, said=said), FRAMEWORK_MARK, status, out, err)


def told_by_script(found, mark, status, out, err):
    """`found` with what its script last reported, and why it ended if it did so early."""
    # It reports before each stage, so that what it learned outlives a crash in the next one.
    found = dict(found, state="failed", error=None)
    for line in reversed(out.splitlines()):
        if line.startswith(mark):
            try:
                found.update(json.loads(line[len(mark):]))
                break
            except ValueError:
                continue
    if found["state"] == "ok" and status == 0:
        return found
    if status is None:
        found["state"], reason = "hung" if err.startswith("no answer") else "failed", err
    else:
        found["state"] = "failed"
        reason = death(-status) if status < 0 else None
        if not found.get("error"):
            reason = "%s: %s" % (reason or "ended with status %d" % status,
                                 last_lines(err or out, 600))
    found["error"] = ", ".join(part for part in (found.get("error"), reason) if part)
    return found


# -- toolkits that compute -----------------------------------------------------------------------

COMPUTE_MARK = "gpufleet-compute: "
COMPUTE_SILENT = {"driver": {"cuinit": None, "version": None, "error": None}, "devices": [],
                  "cublas": [], "nvrtc": None, "cudnn": [], "bandwidth": None, "peer": None,
                  "sustained": None, "mapped": [], "seconds": None}


def section_compute(host):
    """What each toolkit computes by itself; one after the other, as there may be a GPU."""
    deep = bool(host["deep"]) and host["expect_gpus"] != 0
    found = {"deep": deep, "runs": []}
    if host["mode"] != "full" or not host["matmul"]:
        return found
    ends = time.monotonic() + host.inner_s
    # The minutes of load are for the newest, which comes last: they would disturb the others.
    if deep:
        ends -= 2 * host["sustained_s"]
    trees = toolkit_trees(host)
    for at, tree in enumerate(trees):
        share_s = max(1, (ends - time.monotonic()) / (len(trees) - at))
        last = deep and at == len(trees) - 1
        found["runs"].append(compute_of(
            host, tree, share_s + (2 * host["sustained_s"] if last else 0), last))
    return found


def compute_of(host, tree, deadline_s, deep):
    """What matmul.py says of one toolkit, started with an empty environment."""
    silent = dict(COMPUTE_SILENT, toolkit=tree)
    expect = "any" if host["expect_gpus"] is None else str(host["expect_gpus"])
    try:
        home, script = scratch_script(host)
    except OSError as error:
        return dict(silent, state="failed",
                    error="no directory to write its script in: %s" % error)
    words = ["--expect-gpus", expect, "--budget", str(host["budget_mib"]),
             "--deadline", str(deadline_s * 0.9), "--sustained", str(host["sustained_s"])]
    words += ["--deep"] if deep else []
    try:
        told = run_command([sys.executable, "-I", "-S", script, "--toolkit", host.path(tree),
                            *words], deadline_s, env={"PATH": "/usr/bin:/bin", "HOME": home},
                           cwd=home, partial=True)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    found = told_by_script(silent, COMPUTE_MARK, *told)
    return dict(found, toolkit=tree, mapped=[host.name(path) for path in found["mapped"]])


# -- containers ----------------------------------------------------------------------------------

CDI_PLACES = ("/etc/cdi/*", "/run/cdi/*")
DEVICE_NODES = ("/dev/nvidia*", "/dev/nvidia-caps/*")
ENGINE_PLACES = ("/usr/bin/", "/usr/local/bin/")
DAEMON_FILE = "/etc/docker/daemon.json"
TOOLKIT_PACKAGE = "nvidia-container-toolkit"
# On everything that a verification makes in an engine, so that nothing of it is left behind.
OWN_LABEL = "gpufleet=verify"
# Inside a container: which of the cards' nodes can be opened. Those that a container lost are
# still there, and forbidden. Numbers only: nvidiactl and nvidia-uvm are no cards.
LOOK = """
import glob, json, os, re
found = []
for path in sorted(glob.glob("/dev/nvidia[0-9]*")):
    if re.match(r"/dev/nvidia[0-9]+$", path):
        try:
            os.close(os.open(path, os.O_RDWR))
            found.append({"node": path, "error": None})
        except OSError as error:
            found.append({"node": path, "error": error.strerror})
print(json.dumps(found))
"""


def section_containers(host):
    wanted = host["containers"]
    engine = engine_of(host, wanted["engine"]) if wanted else None
    if engine and os.geteuid() != 0 and "permission denied" in (engine["error"] or "").lower():
        raise PermissionError("%s: %s" % (engine["name"], engine["error"]))
    found = {"engine": engine, "daemon": daemon_of(host), "toolkit": container_toolkit(host),
             "cdi": [cdi_spec(host, name) for place in CDI_PLACES for name in host.glob(place)
                     if name.endswith((".yaml", ".yml", ".json"))],
             "dev_char": {"missing": missing_links(host)},
             "wrapper": program(host, "nvidia-docker"), "run": None}
    found["cdi"] = [spec for spec in found["cdi"] if spec]
    if host["mode"] == "full" and engine and not engine["error"]:
        found["run"] = in_container(host, wanted, found)
    return found


def program(host, name):
    """Where a program stands, None where it is not."""
    return next((d + name for d in ENGINE_PLACES if host.exists(d + name)), None)


def engine_of(host, name):
    """The engine as it describes itself; None where it is not installed."""
    place = program(host, name)
    if place is None:
        return None
    found = {"name": name, "path": place, "version": None, "runtimes": [], "live_restore": None,
             "cgroup_driver": None, "storage": None, "error": None}
    form = "{{json .}}" if name == "docker" else "json"
    status, out, err = run_command([host.path(place), "info", "--format", form], host.inner_s / 2)
    try:
        told = json.loads(out)
        if name == "docker":
            found.update(version=told.get("ServerVersion") or None,
                         runtimes=sorted(told.get("Runtimes") or {}),
                         live_restore=told.get("LiveRestoreEnabled"),
                         cgroup_driver=told.get("CgroupDriver"), storage=told.get("Driver"))
            errors = told.get("ServerErrors") or []
        else:
            found.update(version=told["version"]["Version"],
                         runtimes=[told["host"]["ociRuntime"]["name"]],
                         cgroup_driver=told["host"].get("cgroupManager"),
                         storage=told["store"].get("graphDriverName"))
            errors = []
        found["error"] = "; ".join(errors) or (None if found["version"] else "it told no version")
    except (ValueError, KeyError, TypeError):
        found["error"] = last_lines(err or out, 300) or "ended with status %s" % status
    return found


def daemon_of(host):
    """Docker's configuration file, as far as it concerns GPUs."""
    found = {"path": DAEMON_FILE, "exists": False, "error": None, "runtimes": {},
             "live_restore": None, "cdi": None, "data_root": None}
    text = host.text_or_none(DAEMON_FILE)
    if text is None:
        return found
    found["exists"] = True
    try:
        told = json.loads(text) if text.strip() else {}
        runtimes = told.get("runtimes") or {}
        found.update(runtimes={name: entry.get("path") for name, entry in runtimes.items()},
                     live_restore=told.get("live-restore"), data_root=told.get("data-root"),
                     cdi=(told.get("features") or {}).get("cdi"))
    except (ValueError, AttributeError) as error:
        found["error"] = "not the JSON that Docker reads: %s" % error
    return found


def container_toolkit(host):
    """{"version", "held"} of the toolkit's package; None where it is not installed."""
    status = host.text_or_none("/var/lib/dpkg/status")
    for entry in (status or "").split("\n\n"):
        if re.match(r"Package: %s$" % TOOLKIT_PACKAGE, entry, re.MULTILINE):
            state = (first_match(r"^Status: (.+)$", entry) or "").split()
            if state[-1:] == ["installed"]:
                return {"version": first_match(r"^Version: (.+)$", entry),
                        "held": state[0] == "hold"}
    if status is None and host.real and shutil.which("rpm"):
        code, out, _ = run_command(["rpm", "-q", "--qf", "%{VERSION}-%{RELEASE}", TOOLKIT_PACKAGE],
                                   host.inner_s / 10)
        locks = "".join(host.text_or_none(place) or "" for place in (
            "/etc/dnf/plugins/versionlock.list", "/etc/dnf/versionlock.toml"))
        if code == 0:
            return {"version": out.strip(), "held": TOOLKIT_PACKAGE in locks}
    return None


def cdi_spec(host, name):
    """A specification of NVIDIA's GPUs, of whichever driver; None where it is of something else.

    Read by its lines: they are what `nvidia-ctk` writes, and there is no YAML in Python itself.
    """
    found = {"path": name, "driver_version": None, "devices": [], "error": None}
    try:
        text = host.text(name)
    except OSError as error:
        return dict(found, error=error.strerror)
    if not re.search(r'"?kind"?:\s*"?nvidia\.com/', text):
        return None
    found["driver_version"] = first_match(r"libcuda\.so\.(\d+\.[\d.]*\d)", text)
    found["devices"] = re.findall(r'^\s*(?:- *|\{ *)?"?name"?: *"?([^",\s]+)', text, re.MULTILINE)
    return found


def missing_links(host):
    """Links of /dev/char that systemd needs to give a card back to a container, and lacks."""
    links = ["/dev/char/%d:%d" % numbers for numbers in device_numbers(host)]
    return [link for link in links if not os.path.lexists(host.path(link))]


def device_numbers(host):
    """(major, minor) of each node of NVIDIA's."""
    states = [os.stat(host.path(name)) for place in DEVICE_NODES for name in host.glob(place)]
    return sorted({(os.major(state.st_rdev), os.minor(state.st_rdev)) for state in states
                   if stat.S_ISCHR(state.st_mode)})


class Trial:
    """One container of our own, without a network and with this host's programs read-only in it.

    It ends by itself, should nobody be left to end it, and is gone then.
    """

    def __init__(self, host, wanted, found, home):
        self.host, self.home = host, home
        self.engine = host.path(found["engine"]["path"])
        self.wrapper = found["wrapper"] and host.path(found["wrapper"])
        self.engine_name = wanted["engine"]
        self.ends = time.monotonic() + host.inner_s
        self.name = "gpufleet-verify-%d" % os.getpid()
        self.with_gpus = host["expect_gpus"] != 0 and host.exists("/dev/nvidiactl")

    def call(self, *words, **more):
        """What the engine said, a RuntimeError if it failed."""
        share_s = max(1, min(more.get("most_s", 60), self.ends - time.monotonic()))
        status, out, err = run_command([self.engine, *words], share_s, partial=True)
        if more.get("checked", True) and status != 0:
            if status is None and err.startswith("no answer"):
                raise NoAnswerError("%s %s: %s" % (self.engine_name, words[0], err))
            raise RuntimeError("%s %s: %s" % (self.engine_name, words[0],
                                              last_lines(err or out, 500) or "status %s" % status))
        return status, out, err

    def image(self):
        """An image of a few small files: everything else is this host's own."""
        import tarfile
        path = os.path.join(self.home, "image.tar")
        with tarfile.open(path, "w") as archive:
            # Not mounted, since the toolkit's hooks write a cache of their own there.
            for name in ("etc/ld.so.cache", "etc/ld.so.conf", "etc/ld.so.conf.d"):
                if os.path.exists("/" + name):
                    archive.add("/" + name, name)
        return self.call("import", "--change", "LABEL " + OWN_LABEL, path)[1].split()[-1]

    def mounts(self):
        """Directories of programs, libraries and stacks, none inside another."""
        places = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt",
                  self.host["stack_root"], self.host["prefix"],
                  os.path.dirname(os.path.dirname(os.path.realpath(sys.executable)))]
        kept = []
        for place in places:
            if os.path.isdir(place) and not any(place.startswith(k + "/") or place == k
                                                for k in kept):
                kept.append(place)
        return kept

    def run(self, image, *words, **more):
        """Start a container; through the nvidia-docker command, as people do, if it is to see."""
        options = ["--rm", "--network", "none", "--security-opt", "label=disable",
                   "--label", OWN_LABEL, "-v", self.home + ":/gpufleet:ro"]
        options += more.get("options", ())
        engine, gpus = self.engine, []
        if self.with_gpus and self.wrapper:
            engine = self.wrapper
        elif self.with_gpus:
            gpus = (["--gpus", "all"] if self.engine_name == "docker"
                    else ["--device", "nvidia.com/gpu=all"])
        usual, self.engine = self.engine, engine
        try:
            return self.call("run", *gpus, *options, image, *words,
                             **{k: v for k, v in more.items() if k != "options"})
        finally:
            self.engine = usual

    def start(self):
        options = ["-d", "--name", self.name, "--tmpfs", "/tmp"]
        for place in self.mounts():
            options += ["-v", "%s:%s:ro" % (place, place)]
        seconds = int(self.host.inner_s) + 60
        self.run(self.image(), sys.executable, "-I", "-S", "-c",
                 "import time; time.sleep(%d)" % seconds, options=options)

    def look(self):
        """The nodes of the cards, from inside."""
        out = self.call("exec", self.name, sys.executable, "-I", "-S", "-c", LOOK)[1]
        return json.loads(out)

    def framework(self, venv):
        expect = "any" if self.host["expect_gpus"] is None else str(self.host["expect_gpus"])
        return framework_told(*self.call(
            "exec", self.name, "/usr/bin/env", "-i", "PATH=/usr/bin:/bin", "HOME=/tmp",
            venv + "/bin/python", "/gpufleet/matmul.py", "--expect-gpus", expect,
            checked=False, most_s=self.host.inner_s * 0.5))

    def in_image(self, name):
        """The same of an image of theirs, by its own python3; none is ever pulled."""
        if self.call("image", "inspect", name, checked=False)[0] != 0:
            return {"name": name, "present": False, "framework": None}
        expect = "any" if self.host["expect_gpus"] is None else str(self.host["expect_gpus"])
        told = self.run(name, "/gpufleet/matmul.py", "--expect-gpus", expect, checked=False,
                        options=["--entrypoint", "python3"], most_s=self.host.inner_s * 0.5)
        return {"name": name, "present": True, "framework": framework_told(*told)}

    def clean(self):
        self.ends = time.monotonic() + self.host.inner_s * 0.2
        self.call("rm", "-f", self.name, checked=False)
        # Also what an earlier verification left that was killed; what is in use stays.
        images = self.call("images", "-q", "--no-trunc", "--filter", "label=" + OWN_LABEL,
                           checked=False)[1].split()
        if images:
            self.call("rmi", *dict.fromkeys(images), checked=False)


def in_container(host, wanted, found):
    """What a container of our own sees of the cards, before and after systemd reloads its units."""
    run = {"state": "ok", "error": None, "gpus": [], "reload": None, "stack": None,
           "framework": None, "image": None}
    try:
        home, _script = scratch_script(host)
    except (OSError, TypeError) as error:
        return dict(run, state="failed", error="no script to run in a container: %s" % error)
    trial = Trial(host, wanted, found, home)
    try:
        trial.start()
        run["gpus"] = trial.look()
        # With a link missing, other people's containers would lose their cards by it: told so.
        if trial.with_gpus and not found["dev_char"]["missing"] and shutil.which("systemctl"):
            status, _, err = run_command(["systemctl", "daemon-reload"], 20)
            run["reload"] = {"error": None if status == 0 else err.strip(), "gpus": trial.look()}
        run["stack"] = newest_stack(host)
        if run["stack"]:
            run["framework"] = trial.framework(run["stack"])
        if wanted["image"]:
            run["image"] = trial.in_image(wanted["image"])
    except NoAnswerError as error:
        run.update(state="hung", error=str(error))
    except (RuntimeError, ValueError, OSError) as error:
        run.update(state="failed", error=str(error))
    finally:
        trial.clean()
        shutil.rmtree(home, ignore_errors=True)
    return run


def newest_stack(host):
    """The environment with the newest TensorFlow: one proves that a container computes."""
    found = []
    for venv in venvs(host, {r["path"]: r["id"] for r in receipts_of(host, "stack")}):
        packages = packages_of(host, venv)
        version = packages.get("tensorflow") or packages.get("tensorflow-gpu")
        if version:
            found.append((natural(version), venv))
    return max(found)[1] if found else None


# -- the snapshot --------------------------------------------------------------------------------

SECTIONS = {
    "os": section_os, "kernel": section_kernel, "disks": section_disks, "gpus": section_gpus,
    "driver": section_driver, "packages": section_packages, "receipts": section_receipts,
    "toolkits": section_toolkits, "cudnn": section_cudnn, "linker": section_linker,
    "environment": section_environment, "stacks": section_stacks, "containers": section_containers,
    "smi": section_smi, "kernel_log": section_kernel_log, "compute": section_compute,
}
# Those in which programs of other people's run, in mode full, and the one that looks at each file
# of every stack: 75,000 of five, each read for its content where that is asked for.
LONG = ("stacks", "containers", "smi", "compute", "receipts")
# Those that compute. On a GPU they would slow each other down, or shut each other out of one that
# lets a single process in: one comes after the other, with this share of the time that is left.
COMPUTING = {"compute": 1 / 3, "stacks": 2 / 3, "containers": 1}


def utc_now():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def probe(config):
    """The snapshot of this host: every section in its own process, all at the same time.

    But for those that compute where there is a GPU.
    """
    settings = dict(DEFAULTS, **config)
    started = utc_now()
    children = one_by_one(settings) if in_turn(settings) else {}
    for name in SECTIONS:
        if name in children:
            continue
        deadline = float(settings["deadline_s"])
        if name not in LONG or settings["mode"] != "full":
            deadline = min(deadline, SECTION_DEADLINE_S)
        children[name] = begun(name, settings, deadline)
    sections, unseen = {}, []
    outcomes = await_all([children[name] for name in SECTIONS])
    for name, (state, told, error, seconds) in zip(SECTIONS, outcomes):
        data, missed = told or (None, [])
        sections[name] = {"state": state, "seconds": seconds, "error": error, "data": data}
        unseen += [dict(each, section=name) for each in missed]
    return legible({"schema": SCHEMA, "host": settings["host"] or platform.node(),
                    "mode": settings["mode"], "euid": os.geteuid(), "started": started,
                    "finished": utc_now(), "unseen": unseen, "sections": sections})


def begun(name, settings, deadline_s):
    """The child that looks at a section."""
    return Child(looked, (SECTIONS[name], Host(settings, deadline_s)), deadline_s)


def in_turn(settings):
    """Whether there may be a GPU to be fought for."""
    return (settings["mode"] == "full" and settings["expect_gpus"] != 0
            and Host(settings).exists("/dev/nvidiactl"))


def one_by_one(settings):
    """{section: child} of those that compute, one after the other within the one deadline."""
    ends = time.monotonic() + float(settings["deadline_s"])
    # The minutes of load, which are inner ones, come to the share of the toolkits.
    deep_s = 2.5 * float(settings["sustained_s"]) if settings["deep"] else 0

    def start(name, more_s=0):
        left_s = max(1, ends - time.monotonic() - more_s)
        return begun(name, settings, left_s * COMPUTING[name] + more_s)

    compute = start("compute", min(deep_s, float(settings["deadline_s"]) / 2))
    stacks = After(compute, lambda: start("stacks"))
    return {"compute": compute, "stacks": stacks,
            "containers": After(stacks, lambda: start("containers"))}


def looked(function, host):
    """(data of a section, what of it this account may not see)."""
    return function(host), host.unseen


def legible(document):
    """The same with `?` for each byte of a name that is no UTF-8: no reader would take it."""
    return json.loads(json.dumps(document, ensure_ascii=False).encode("utf-8", "replace").decode())


def settings_by_hand(arguments):
    """`mode=full expect_gpus=0 ...`; matmul.py is taken from beside this file."""
    settings = {}
    for argument in arguments:
        key, mark, value = argument.partition("=")
        if not mark or key not in DEFAULTS:
            sys.exit("usage: probe.py [KEY=VALUE ...] with KEY of: " + " ".join(sorted(DEFAULTS)))
        try:
            settings[key] = json.loads(value)
        except ValueError:
            settings[key] = value
    here = os.path.dirname(os.path.abspath(globals().get("__file__", ".")))
    beside = os.path.join(here, "matmul.py")
    if "matmul" not in settings and os.path.exists(beside):
        with open(beside, encoding="utf-8") as stream:
            settings["matmul"] = stream.read()
    return settings


def main():
    given = globals().get("CONFIG")
    settings = json.loads(given) if given else settings_by_hand(sys.argv[1:])
    # The document is the last line: whatever a login prints stands before it.
    text = json.dumps(probe(settings))
    sys.stdout.write("\n" + text + "\n")
    sys.stdout.flush()
    # Threads or children that hang must not keep the interpreter.
    os._exit(0)


if __name__ == "__main__":
    main()
