# Apache-2.0, see LICENSE
"""Create a virtual environment and install into it what a lock lists, with uv or pip.

Runs the installer, as from a clean login. Writes to the environment, the directory of interpreters
and the cache.
"""

from __future__ import annotations

import glob
import os
from urllib.parse import urlsplit

from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.manifest import records_of
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.text import natural
from ansible_collections.gpufleet.gpu.plugins.module_utils.owned import refuse_foreign
from ansible_collections.gpufleet.gpu.plugins.module_utils.python_packages import (
    locked_packages,
    pins_of,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    StateError,
    remove_tree,
    walk,
    write_atomically,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.recreation import RECREATE


def run(module, lock, command, **environment):
    """Run a command as from a clean login; raises with its words when it fails."""
    refuse_foreign(command)
    status, out, err = module.run_command(
        command, environ_update=environment, cwd="/", umask=0o022, pass_fds=[lock]
    )
    if status:
        words = [line for line in (out + err).splitlines() if line.strip()][-12:]
        raise StateError(
            "{} failed with status {}: {}".format(
                " ".join(os.path.basename(word) for word in command[:3]), status, "\n".join(words)
            )
        )
    return out


def install_interpreter(module, lock, python):
    """Make uv install an interpreter into the directory of interpreters; returns its path."""
    params = module.params
    command = [params["uv"], "python", "install", "--install-dir", params["python_dir"]]
    again = ["--reinstall"] if params["repair"] == RECREATE else []
    run(module, lock, [*command, *again, "--no-bin", python], UV_CACHE_DIR=params["cache"])
    pattern = "cpython-{0}.*/bin/python{0}".format(python)
    found = sorted(glob.glob(os.path.join(params["python_dir"], pattern)), key=natural)
    if not found:
        raise StateError(
            "uv installed Python {}, but it is not in {}.".format(python, params["python_dir"])
        )
    return found[-1]


def interpreter(module, lock):
    """The interpreter's path, or an error that says which version is missing."""
    python = module.params["python"]
    if module.params["python_dir"]:
        return install_interpreter(module, lock, python)
    path = module.params["interpreter"] or module.get_bin_path("python" + python)
    if not path or not os.path.exists(path):
        raise StateError(
            "{} is not on this host. Install it, or name another interpreter in the "
            "stack's 'python'.".format(path or "Python " + python)
        )
    return path


# The certificate authorities that the system trusts: Debian's family, Red Hat's.
AUTHORITIES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")


def index_variables(default, extra):
    """Return the variables by which installers learn the package indexes; each may be empty.

    An index's address may have a password: it goes through the environment, not into arguments that
    every process of the host can read. uv takes a package from the extra index if it is there.
    """
    named = {
        "UV_DEFAULT_INDEX": default,
        "PIP_INDEX_URL": default,
        "UV_INDEX": extra,
        "PIP_EXTRA_INDEX_URL": extra,
    }
    found = {name: value for name, value in named.items() if value}
    trusted = next(filter(os.path.exists, AUTHORITIES), None)
    # An index of one's own may have an authority that the system alone knows. Both installers have
    # lists of their own; on a system without any, these are all there is.
    if found and trusted:
        found["UV_SYSTEM_CERTS"] = "true"
        found["PIP_CERT"] = os.environ.get("PIP_CERT", trusted)
    return found


# uv takes 3.6 as 3.6.0, which packages exclude (PyTorch 1.8.0 needs 3.6.2) and no supported
# distribution has: the oldest there is 3.6.8, of RHEL 8.
OLDEST_PATCH = {"3.6": "3.6.8"}


def resolved_for(python):
    """Return what uv is asked to resolve for, where a stack's Python is X.Y."""
    return OLDEST_PATCH.get(python, python)


def platform_of(arch):
    """Return what uv calls Linux on a machine architecture; both are of glibc 2.28."""
    return "{}-unknown-linux-gnu".format(arch) if arch != "x86_64" else "linux"


def has_own_authorities(module, lock, python):
    """Return whether the host's settings of pip name authorities, which variables override.

    A pip before 10 cannot say so.
    """
    try:
        listed = run(module, lock, [python, "-m", "pip", "config", "list"])
    except StateError:
        return False
    return any(line.startswith(("global.cert=", "install.cert=")) for line in listed.splitlines())


def wheelhouse_arguments(wheelhouse):
    """The installer's arguments to install from a wheelhouse only; empty without one."""
    if not wheelhouse:
        return []
    url = urlsplit(wheelhouse)
    # The lock's hashes prove the packages, so plain HTTP is sufficient; pip needs an option for it.
    trusted = ["--trusted-host", url.hostname] if url.scheme == "http" else []
    return ["--no-index", "--find-links", wheelhouse] + trusted


def check_wheelhouse(wheelhouse):
    """Refuse a directory that does not exist, before anything is started."""
    if wheelhouse and not urlsplit(wheelhouse).scheme and not os.path.isdir(wheelhouse):
        raise StateError(
            "gpu_wheelhouse is {}, and there is no such directory on this host. Mount it, or name "
            "the address of a mirror.".format(wheelhouse)
        )


def install_packages(module, lock, damaged):
    """Make the environment and put into it exactly what the lock lists.

    ``damaged``: files of installed packages changed, so that their versions prove nothing.
    """
    params = module.params
    venv, python = params["venv"], os.path.join(params["venv"], "bin", "python")
    source = wheelhouse_arguments(params["wheelhouse"])
    index = index_variables(params["index_url"], params["index"])
    if params["installer"] == "uv":
        cache = {"UV_CACHE_DIR": params["cache"], "UV_PYTHON_DOWNLOADS": "never"}
        if not os.path.exists(python):
            remove_tree(venv)
            run(
                module,
                lock,
                [params["uv"], "venv", "--no-config", "--python", interpreter(module, lock), venv],
                **cache,
            )
        # The lock is complete: nothing must be resolved, and nothing else installed.
        command = [params["uv"], "pip", "install", "--no-deps", "--require-hashes"]
        again = ["--reinstall"] if damaged else []
        into = ["--python", python, *source, "-r", params["lock"]]
        run(module, lock, [*command, *again, *into], **cache, **index)
        # uv's own lock, which everybody could write to.
        remove_tree(os.path.join(venv, ".lock"))
    else:
        if not os.path.exists(python):
            remove_tree(venv)
            run(module, lock, [interpreter(module, lock), "-m", "venv", venv])
        if "PIP_CERT" in index and has_own_authorities(module, lock, python):
            del index["PIP_CERT"]
        command = [python, "-m", "pip", "install", "--no-deps", "--require-hashes"]
        command += ["--disable-pip-version-check", "--cache-dir", params["cache"], *source]
        # The pip that came with an old interpreter knows neither today's wheels nor their names:
        # the lock's own comes first.
        own = os.path.join(params["cache"], "pip.txt")
        write_atomically(own, pins_of("pip", params["lock"]))
        run(module, lock, [*command, "-r", own], **index)
        for record in records_of(venv, locked_packages(params["lock"])):
            # pip replaces no package without a record; an empty one is sufficient.
            if damaged and not os.path.exists(record):
                write_atomically(record, "")
        again = ["--force-reinstall"] if damaged else []
        run(module, lock, [*command, *again, "-r", params["lock"]], **index)


def uninstall_packages(module, lock, names):
    """Take away what an earlier lock listed and this one does not: it is nobody's then.

    Before anything is installed: `tensorflow` and `tensorflow-gpu` have the same files.
    """
    params = module.params
    python = os.path.join(params["venv"], "bin", "python")
    if not names or not os.path.exists(python):
        return
    if params["installer"] == "uv":
        run(module, lock, [params["uv"], "pip", "uninstall", "--python", python, *names])
    else:
        run(module, lock, [python, "-m", "pip", "uninstall", "--yes", *names])


def site_packages(module, lock):
    """The environment's directory of packages, asked of its own interpreter."""
    python = os.path.join(module.params["venv"], "bin", "python")
    question = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return run(module, lock, [python, "-I", "-c", question]).strip()


def own_files(venv, site, before, fresh):
    """Paths of the environment's own files, outside of its packages.

    ``before``: what an earlier receipt listed. ``fresh``: nobody can have added anything yet.
    """
    packages = os.path.relpath(site, venv) + os.sep
    listed = {entry["path"] for entry in before}
    return [
        name
        for name in walk(venv)
        if not name.startswith(packages) and "__pycache__" not in name and (fresh or name in listed)
    ]
