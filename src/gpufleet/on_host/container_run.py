"""Start containers of our own, and see which GPUs they have and whether one computes."""

import json
import os
import re
import shutil
import sys
import time

from .container_units import containers_with_gpus
from .container_ways import ways
from .filesystems import mounts_of
from .frameworks import FRAMEWORKS
from .jit_cache import cache_variables, open_cache
from .processes import NoAnswer, NoAnswerError, run_command
from .python_start import interpreter_code
from .receipts import receipts_of_kind
from .text import first_match, last_lines, natural
from .trust import RefusedError, account_for
from .venvs import framework_of, packages_of, venvs
from .workload_run import FRAMEWORK_SILENT, parse_framework_output, write_script

# On everything that a verification makes in an engine, so that nothing of it is left behind.
OWN_LABEL = "gpufleet=verify"
OWN_NAME = "gpufleet-verify-"
# Where a container's own layer over /usr is, in a directory with the container's name.
LAYERS = "/run/"
# The label of files in containers where the policy names none.
FILE_LABEL = "system_u:object_r:container_file_t:s0"
# Inside a container: which of the cards' nodes can be opened. Those that a container lost are
# still there, and forbidden. Numbers only: nvidiactl and nvidia-uvm are no cards.
LIST_NODES = """
import errno, glob, json, os, re
found = []
for path in sorted(glob.glob("/dev/nvidia[0-9]*")):
    if re.match(r"/dev/nvidia[0-9]+$", path):
        try:
            os.close(os.open(path, os.O_RDWR))
            found.append({"node": path, "error": None, "code": None})
        except OSError as error:
            code = errno.errorcode.get(error.errno)
            found.append({"node": path, "error": error.strerror, "code": code})
print(json.dumps(found))
"""

LISTS_NODES = (sys.executable, "-I", "-S", "-c", LIST_NODES)
# Options of every container: it has no network, and is gone when it has ended.
ALONE = ("--rm", "--network", "none", "--label", OWN_LABEL)

# A container only makes products: compiling is tried outside of it.
NO_COMPILE = ("--no-compile", "a run outside of a container")


def file_label(host):
    """The SELinux label of files in containers, as engines read it from the policy."""
    policy = first_match(
        r"(?m)^\s*SELINUXTYPE\s*=\s*(\w+)", host.text_or_none("/etc/selinux/config") or ""
    )
    contexts = "/etc/selinux/%s/contexts/lxc_contexts" % (policy or "targeted")
    found = first_match(r'(?m)^\s*file\s*=\s*"?([\w:.,-]+)', host.text_or_none(contexts) or "")
    return found or FILE_LABEL


class TrialContainer:
    """One container of our own, without a network and with this host's programs read-only in it.

    With GPUs it has a layer of its own over /usr, in memory: NVIDIA's hooks put the driver's files
    there, or links to them. It ends by itself, should nobody be left to end it, and is gone then.
    Beside it, short ones are started in the ways in which people start theirs (`try_ways`).
    """

    def __init__(self, host, wanted, found, home):
        self.host, self.home = host, home
        self.engine = host.path(found["engine"]["path"])
        self.engine_name = wanted["engine"]
        self.label = file_label(host) if "selinux" in found["engine"]["security"] else None
        self.ends = time.monotonic() + host.inner_s
        self.name = OWN_NAME + str(os.getpid())
        # A node alone proves no driver: programs of the driver's create it without one.
        self.with_gpus = host["expect_gpus"] != 0 and host.exists("/proc/driver/nvidia/version")
        self.ways = ways(host, found) if self.with_gpus else []
        # The cache of the code that the driver compiled for the stack outside.
        self.stack, name, self.runs = newest_stack(host)
        self.cache = open_cache(host, name) if name and self.with_gpus else None

    def call(self, *args, **more):
        """The output of the engine, or of a `program` for it. Raises RuntimeError if it failed."""
        # A slow host that was given a long deadline may use it.
        most_s = more.get("most_s", max(60, self.host.inner_s * 0.25))
        share_s = max(1, min(most_s, self.ends - time.monotonic()))
        program = more.get("program", self.engine)
        status, out, err = run_command([program, *args], share_s, partial=True)
        if more.get("checked", True) and status != 0:
            if isinstance(err, NoAnswer):
                raise NoAnswerError("%s %s: %s" % (self.engine_name, args[0], err))
            raise RuntimeError(
                "%s %s: %s"
                % (self.engine_name, args[0], last_lines(err or out, 500) or "status %s" % status)
            )
        return status, out, err

    def image(self):
        """An image of a few small files: everything else is this host's own."""
        import tarfile

        path = os.path.join(self.home, "image.tar")
        with tarfile.open(path, "w") as archive:
            # Not mounted, since the toolkit's hooks write a cache of their own there.
            # By /etc/debian_version they tell where an image has its libraries.
            for name in (
                "etc/ld.so.cache",
                "etc/ld.so.conf",
                "etc/ld.so.conf.d",
                "etc/debian_version",
            ):
                if os.path.exists("/" + name):
                    archive.add("/" + name, name)
        return self.call("import", "--change", "LABEL " + OWN_LABEL, path)[1].split()[-1]

    def mounts(self):
        """Directories of programs, libraries and stacks, none inside another."""
        directories = [
            "/usr",
            "/bin",
            "/sbin",
            "/lib",
            "/lib32",
            "/lib64",
            "/libx32",
            "/opt",
            self.host["stack_root"],
            self.host["prefix"],
            os.path.dirname(os.path.dirname(os.path.realpath(sys.executable))),
        ]
        kept = []
        for directory in directories:
            if os.path.isdir(directory) and not any(
                directory.startswith(k + "/") or directory == k for k in kept
            ):
                kept.append(directory)
        return kept

    def run(self, image, *args, **more):
        """Start a container with the host's own directories, whatever their SELinux labels are.

        With GPUs it is started by nvidia-docker where that is installed.
        """
        options = ["--security-opt", "label=disable", "-v", self.home + ":/gpufleet:ro"]
        options += more.pop("options", ())
        return self.call(
            "run",
            *(self.ways[0].options if self.ways else ()),
            *ALONE,
            *options,
            image,
            *args,
            program=self.ways[0].program if self.ways else self.engine,
            **more,
        )

    def try_ways(self):
        """Start a container in each way in which people do, with labels, and list its GPUs.

        The first one that hangs is the last one: the others would hang as well.
        """
        starts = []
        for number, way in enumerate(self.ways, 1):
            start = {"by": way.name, "state": "ok", "error": None, "gpus": []}
            starts.append(start)
            name = "%s.%d" % (self.name, number)
            try:
                _, out, _ = self.call(
                    "run",
                    *way.options,
                    *ALONE,
                    "--name",
                    name,
                    *self.directories(name),
                    self.image_id,
                    *LISTS_NODES,
                    program=way.program,
                    most_s=max(20, self.host.inner_s * 0.25),
                )
                start["gpus"] = json.loads(out)
            except NoAnswerError as error:
                start.update(state="hung", error=str(error))
                break
            except (RuntimeError, ValueError, OSError) as error:
                start.update(state="failed", error=str(error))
        return starts

    def layered(self, directory, name):
        """Options for a directory of this host's with the container's own layer over it."""
        layer = self.host.path(LAYERS + name)
        upper, work = layer + "/upper", layer + "/work"
        for path in (upper, work):
            os.makedirs(path)
            # A container of mapped accounts has none that a closed directory is open to.
            os.chmod(path, 0o755)
        if self.engine_name == "podman":
            options = ["-v", "{0}:{0}:O,upperdir={1},workdir={2}".format(directory, upper, work)]
        else:
            # Docker gives each file of a volume the container's label, and would copy all of them
            # into the layer for that. It leaves a file system alone that is mounted with a label.
            label = ",context=" + self.label if self.label else ""
            options = [
                "--mount",
                "type=volume,dst=%s,volume-driver=local,volume-opt=type=overlay,"
                'volume-opt=device=overlay,"volume-opt=o=lowerdir=%s,upperdir=%s,workdir=%s%s"'
                % (directory, directory, upper, work, label),
            ]
        # A layer does not show what is mounted below the directory.
        for path in mounted_below(self.host, directory):
            options += ["-v", "{0}:{0}:ro".format(path)]
        return options

    def directories(self, name):
        """Options for the host's own directories in a container of this name."""
        options = []
        for directory in self.mounts():
            if self.with_gpus and directory == "/usr":
                options += self.layered(directory, name)
            else:
                options += ["-v", "{0}:{0}:ro".format(directory)]
        return options

    def start(self):
        options = ["-d", "--name", self.name, "--tmpfs", "/tmp", *self.directories(self.name)]
        if self.cache:
            options += ["-v", "%s:%s" % (self.cache, self.cache)]
        seconds = int(self.host.inner_s) + 60
        self.image_id = self.image()
        out = self.run(
            self.image_id,
            sys.executable,
            "-I",
            "-S",
            "-c",
            "import time; time.sleep(%d)" % seconds,
            options=options,
        )[1]
        self.id = (out.split() or [""])[-1]

    def unit(self):
        """The nodes of this container in systemd; None where it has no unit for it."""
        prefix = "libpod" if self.engine_name == "podman" else "docker"
        return next(
            iter(containers_with_gpus(self.host, ["%s-%s.scope" % (prefix, self.id)]) or []), None
        )

    def nodes(self):
        """The nodes of the cards, from inside."""
        out = self.call("exec", self.name, *LISTS_NODES)[1]
        return json.loads(out)

    def framework(self, venv):
        try:
            python = self.host.path(venv + "/bin/python")
            account_for(lambda: interpreter_code(python), as_owner=False)
        except RefusedError as error:
            return dict(FRAMEWORK_SILENT, framework=self.runs, state="failed", error=str(error))
        expect = "any" if self.host["expect_gpus"] is None else str(self.host["expect_gpus"])
        variables = ["%s=%s" % item for item in cache_variables(self.host, self.cache).items()]
        return parse_framework_output(
            *self.call(
                "exec",
                self.name,
                "/usr/bin/env",
                "-i",
                "PATH=/usr/bin:/bin",
                "HOME=/tmp",
                *variables,
                venv + "/bin/python",
                "/gpufleet/matmul.py",
                "--framework",
                self.runs,
                "--expect-gpus",
                expect,
                *NO_COMPILE,
                checked=False,
                most_s=self.host.inner_s * 0.5,
            ),
            self.runs,
        )

    def in_image(self, name):
        """Run the products in a declared image, with its own python3 and framework. No image is
        ever pulled."""
        if self.call("image", "inspect", name, checked=False)[0] != 0:
            return {"name": name, "present": False, "framework": None}
        expect = "any" if self.host["expect_gpus"] is None else str(self.host["expect_gpus"])
        ended = self.run(
            name,
            "/gpufleet/matmul.py",
            "--framework",
            "any",
            "--expect-gpus",
            expect,
            *NO_COMPILE,
            checked=False,
            options=["--entrypoint", "python3"],
            most_s=self.host.inner_s * 0.5,
        )
        return {"name": name, "present": True, "framework": parse_framework_output(*ended)}

    def clean(self):
        """Remove what this verification made, and what one left that was killed."""
        self.ends = time.monotonic() + self.host.inner_s * 0.2
        names = self.call(
            "ps", "-a", "--filter", "label=" + OWN_LABEL, "--format", "{{.Names}}", checked=False
        )[1].split()
        layers = [os.path.basename(path) for path in self.host.glob(LAYERS + OWN_NAME + "*")]
        for name in dict.fromkeys([self.name, *names, *layers]):
            if name.partition(".")[0] == self.name or is_left_over(name):
                # With its volume, which is the layer's mount.
                self.call("rm", "-f", "-v", name, checked=False)
                shutil.rmtree(self.host.path(LAYERS + name), ignore_errors=True)
        images = self.call(
            "images", "-q", "--no-trunc", "--filter", "label=" + OWN_LABEL, checked=False
        )[1].split()
        if images:
            self.call("rmi", *dict.fromkeys(images), checked=False)


def is_left_over(name):
    """Return whether a container is of a verification that has ended."""
    pid = name[len(OWN_NAME) :].partition(".")[0] if name.startswith(OWN_NAME) else ""
    return pid.isdigit() and not os.path.exists("/proc/" + pid)


def mounted_below(host, directory):
    """Mount points below a directory, none inside another."""
    kept = []
    for path in sorted(mount["path"] for mount in mounts_of(host)):
        # Names with blanks, colons or commas, which no option could carry, are left out.
        if (
            path.startswith(directory + "/")
            and not re.search(r"[\s\\:,]", path)
            and not any(path == k or path.startswith(k + "/") for k in kept)
        ):
            kept.append(path)
    return kept


def run_trial(host, wanted, found):
    """The GPUs that a container of our own can open, and would keep when systemd reloads."""
    run = {
        "state": "ok",
        "error": None,
        "gpus": [],
        "reload": None,
        "unit": None,
        "starts": [],
        "stack": None,
        "framework": None,
        "image": None,
    }
    try:
        home, script = write_script(host)
        # Root in a container of mapped accounts is another account on the host.
        os.chmod(home, 0o755)
        os.chmod(script, 0o644)
    except (OSError, TypeError) as error:
        return dict(
            run, state="failed", error="cannot write the script for a container: %s" % error
        )
    trial = TrialContainer(host, wanted, found, home)
    try:
        trial.start()
        run["gpus"] = trial.nodes()
        if trial.with_gpus:
            run["unit"] = trial.unit()
        run["starts"] = trial.try_ways()
        run["stack"] = trial.stack
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
    """Environment, name and framework of the newest release: one proves that a container computes.

    Of the first framework, if there is one, else of the next, in the order of the table.
    """
    found, names = [], {r["path"]: r["id"] for r in receipts_of_kind(host, "stack")}
    for venv in venvs(host, names):
        packages = packages_of(host, venv)
        framework = framework_of(host, venv, packages)
        version = next(filter(None, map(packages.get, FRAMEWORKS[framework].distributions)), None)
        if version:
            found.append(
                (
                    -list(FRAMEWORKS).index(framework),
                    natural(version),
                    venv,
                    names.get(venv, os.path.basename(venv)),
                    framework,
                )
            )
    return max(found)[2:] if found else (None, None, None)
