#!/usr/bin/python
# Apache-2.0, see LICENSE
"""Install a TensorFlow release into a virtual environment that is bound to its toolkit."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_stack
short_description: Install a TensorFlow stack into a virtual environment of its own
description:
  - Makes the virtual environment, installs exactly what its lock lists (by version and hash), and
    binds it to its toolkit, so that C(venv/bin/python) loads that toolkit's libraries and nobody
    else's, whatever its environment says.
  - Writes a receipt; repairs a stack whose packages or binding no longer are what the receipt says;
    tears down and installs again what a killed run left; refuses an environment that it did not
    make.
options:
  name:
    description: The stack's name; the receipt's id.
    type: str
    required: true
  distribution:
    description: The Python package that carries the release.
    type: str
    required: true
  version:
    description: The TensorFlow release.
    type: str
    required: true
  venv:
    description: Where the virtual environment goes.
    type: path
    required: true
  python:
    description: The interpreter's version, such as V(3.11).
    type: str
    required: true
  interpreter:
    description: The interpreter; the one of that version on the path where this is not given.
    type: path
  python_dir:
    description: >-
      A directory for interpreters. Where it is given, uv brings a build of that version there, from
      wherever it is set to.
    type: path
  installer:
    description: V(uv), or V(pip) for interpreters that uv does not know.
    type: str
    choices: [uv, pip]
    default: uv
  uv:
    description: The uv program on the host.
    type: path
  lock:
    description: The lock on the host, a requirements file with exact versions and hashes.
    type: path
    required: true
  lock_sha256:
    description: The lock's checksum.
    type: str
    required: true
  index_url:
    description: The Python package index; the host's own setting where this is empty.
    type: str
    default: ""
  wheelhouse:
    description: A directory of wheels on the host, or the address of a page that lists them, to
      install from with no index.
    type: str
    default: ""
  libraries:
    description: SONAMEs to bind.
    type: list
    elements: str
    default: []
  library_dir:
    description: >-
      The directory that they are bound from; the environment's own NVIDIA wheels where this is not
      given, whose libraries TensorFlow would not all find before the system's.
    type: path
  binding:
    description: Source of the binding's Python module; required with O(libraries).
    type: str
    default: ""
  activation:
    description: A file of shell variables that C(bin/activate) reads if it is there, and that
      C(deactivate) puts back.
    type: path
    required: true
  cache:
    description: Where downloads are kept while the installation lasts.
    type: path
    default: /var/cache/gpufleet/python
  state_dir:
    description: Where receipts and journal are kept.
    type: path
    default: /var/lib/gpufleet
attributes:
  check_mode: {support: full}
  diff_mode: {support: full}
author: [The gpufleet developers]
"""

EXAMPLES = r"""
- name: Install TensorFlow 2.13.1
  gpufleet.gpu.gpu_stack:
    name: tensorflow-2.13.1
    distribution: tensorflow
    version: 2.13.1
    venv: /opt/gpufleet/stacks/tensorflow-2.13.1
    python: "3.11"
    uv: /opt/gpufleet/bin/uv
    lock: /opt/gpufleet/stacks/tensorflow-2.13.1-py3.11.lock
    lock_sha256: "{{ lookup('ansible.builtin.file', lock) | hash('sha256') }}"
    activation: /opt/gpufleet/environment/tensorflow-2.13.1.sh
"""

RETURN = r"""
state:
  description: What was found (absent, foreign, half-installed, changed, installed).
  type: str
  returned: always
because:
  description: Why, in words.
  type: str
  returned: always
packages:
  description: What is installed.
  type: dict
  returned: when installed
"""

import glob
import json
import os
import re
import shutil
from urllib.parse import urlsplit

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.gpu.plugins.module_utils.binding import libraries_in_order
from ansible_collections.gpufleet.gpu.plugins.module_utils.module import (
    ABSENT,
    CHANGED,
    INSTALLED,
    carry_out,
    look,
    told_changes,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.probe import (
    Host,
    compare_manifest,
    compare_records,
    manifest_of,
    natural,
    packages_of,
    recorded_files,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    Installation,
    StateError,
    remove_tree,
    walk,
    write_atomically,
)

BINDING = "_gpufleet_binding"

# What venv's and uv's bin/activate both begin their function with.
DEACTIVATE = "\ndeactivate () {\n"
HOOK = "    if command -v _gpufleet_leave >/dev/null 2>&1; then _gpufleet_leave; fi\n"
MARK = "\n# gpufleet: this stack's own variables\n"
READ = "if [ -r {0} ]; then . {0}; fi\n"


def run(module, lock, command, **environment):
    """Run a command as from a clean login; raises with its words when it fails."""
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


def bring_interpreter(module, lock, python):
    """Have uv bring an interpreter into the directory of interpreters; returns its path."""
    params = module.params
    command = [params["uv"], "python", "install", "--install-dir", params["python_dir"]]
    run(module, lock, [*command, "--no-bin", python], UV_CACHE_DIR=params["cache"])
    pattern = "cpython-{0}.*/bin/python{0}".format(python)
    found = sorted(glob.glob(os.path.join(params["python_dir"], pattern)), key=natural)
    if not found:
        raise StateError(
            "uv brought Python {}, and it is not in {}.".format(python, params["python_dir"])
        )
    return found[-1]


def interpreter(module, lock):
    """The interpreter's path, or an error that says which version is missing."""
    python = module.params["python"]
    if module.params["python_dir"]:
        return bring_interpreter(module, lock, python)
    path = module.params["interpreter"] or module.get_bin_path("python" + python)
    if not path or not os.path.exists(path):
        raise StateError(
            "{} is not on this host. Install it, or name another interpreter in the "
            "stack's 'python'.".format(path or "Python " + python)
        )
    return path


def wheelhouse_words(wheelhouse):
    """The installer's words to install from a wheelhouse alone; none where there is none."""
    if not wheelhouse:
        return []
    url = urlsplit(wheelhouse)
    # The lock's hashes prove the packages, so that plain HTTP will do; pip must be told.
    trusted = ["--trusted-host", url.hostname] if url.scheme == "http" else []
    return ["--no-index", "--find-links", wheelhouse] + trusted


def check_wheelhouse(wheelhouse):
    """Refuse a directory that is not there, before anything is begun."""
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
    source = wheelhouse_words(params["wheelhouse"])
    # An index's address may carry a password: it goes through the environment, not through words
    # that every process of the host can read.
    index = {}
    if params["index_url"]:
        index = {"UV_DEFAULT_INDEX": params["index_url"], "PIP_INDEX_URL": params["index_url"]}
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
        # The lock is whole: nothing is to be resolved, and nothing beside it to be brought in.
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
        command = [python, "-m", "pip", "install", "--no-deps", "--require-hashes"]
        command += ["--disable-pip-version-check", "--cache-dir", params["cache"], *source]
        # The pip that came with an old interpreter knows neither today's wheels nor their names:
        # the lock's own comes first.
        own = os.path.join(params["cache"], "pip.txt")
        write_atomically(own, pins_of("pip", params["lock"]))
        run(module, lock, [*command, "-r", own], **index)
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


def bind(module, lock, site):
    """Write the binding and try it; returns (its files, the libraries in the order of loading)."""
    params = module.params
    files = [os.path.join(site, BINDING + ending) for ending in (".py", ".json", ".pth")]
    if not params["libraries"]:
        for path in files:
            remove_tree(path)
        return [], []
    wheels = sorted(glob.glob(os.path.join(glob.escape(site), "nvidia", "*", "lib")))
    folders = [params["library_dir"]] if params["library_dir"] else wheels
    libraries = libraries_in_order(folders, params["libraries"])
    document = json.dumps({"libraries": libraries}, indent=1)
    write_atomically(files[0], params["binding"])
    write_atomically(files[1], document + "\n")
    # Last: an environment without this line is simply not bound yet.
    write_atomically(files[2], "import {}\n".format(BINDING))
    run(module, lock, [os.path.join(params["venv"], "bin", "python"), "-m", BINDING])
    return files, libraries


def hook_activation(venv, path):
    """Have ``bin/activate`` read a file of variables, and ``deactivate`` put the old ones back."""
    script = os.path.join(venv, "bin", "activate")
    with open(script) as stream:
        before = stream.read()
    made = before.partition(MARK)[0].replace(HOOK, "")
    if made.count(DEACTIVATE) != 1:
        raise StateError("{} has no function deactivate to extend".format(script))
    text = made.replace(DEACTIVATE, DEACTIVATE + HOOK) + MARK + READ.format(path)
    if text != before:
        write_atomically(script, text, os.stat(script).st_mode & 0o7777)


def install(module, installation, state, lock):
    """Install, bind, and write the receipt; returns the packages by name."""
    params = module.params
    check_wheelhouse(params["wheelhouse"])
    if installation.half_done and installation.journal["fresh"]:
        remove_tree(params["venv"])
    packages = locked_packages(params["lock"])
    if packages.get(params["distribution"]) != params["version"]:
        raise StateError(
            "{distribution} {version} is not in {lock}. Remove the lock beside the inventory, so "
            "that it is resolved anew.".format(**params)
        )
    receipt = installation.receipt or {"manifest": [], "packages": {}, "python": None}
    # An installer that was killed leaves packages that look whole by their metadata.
    damaged = (
        installation.half_done
        or bool(compare_manifest(params["venv"], receipt["manifest"]))
        or bool(altered_packages(params["venv"], receipt))
    )
    if receipt["python"] and not same_python(receipt["python"], params["python"]):
        remove_tree(params["venv"])
    installation.begin(fresh=state == ABSENT)
    uninstall_packages(module, lock, sorted(set(receipt["packages"]) - set(packages)))
    install_packages(module, lock, damaged)
    if differences(params["venv"], packages) or altered_packages(
        params["venv"], {"packages": packages}
    ):
        # The installer believed metadata that somebody had changed, or that of a package of which
        # a file went with another one.
        install_packages(module, lock, True)
    site = site_packages(module, lock)
    files, libraries = bind(module, lock, site)
    hook_activation(params["venv"], params["activation"])
    differing = differences(params["venv"], packages)
    if differing:
        raise StateError("The installer ended well, but left other packages: " + differing)
    version = run(
        module,
        lock,
        [
            os.path.join(params["venv"], "bin", "python"),
            "-I",
            "-c",
            "import platform; print(platform.python_version())",
        ],
    ).strip()
    installation.finish(
        {"file": os.path.basename(params["lock"]), "sha256": params["lock_sha256"]},
        manifest_of(
            params["venv"],
            [
                *(os.path.relpath(path, params["venv"]) for path in files),
                *own_files(
                    params["venv"], site, receipt["manifest"], installation.journal["fresh"]
                ),
            ],
        ),
        packages=packages,
        lock_sha256=params["lock_sha256"],
        activation=params["activation"],
        python=version,
        binding=libraries,
    )
    # Only now: until the receipt stands, the next run may need the downloads.
    shutil.rmtree(params["cache"], ignore_errors=True)
    return packages


def differences(venv, declared):
    """How the installed packages differ from the declared ones, in words.

    What people installed beside them is theirs, and no difference.
    """
    packages = packages_of(Host({"root": "/"}), venv)
    return ", ".join(
        "{} {} (lock: {})".format(name, packages.get(name, "missing"), version)
        for name, version in sorted(declared.items())
        if packages.get(name) != version
    )


def altered_packages(venv, receipt):
    """What no longer is as the packages' own records say: [{"path", "what"}]."""
    return compare_records(venv, recorded_files(venv, receipt["packages"]))


def same_python(installed, declared):
    """Whether 3.11.2 is the declared 3.11."""
    return (installed + ".").startswith(declared + ".")


def locked_packages(lock):
    """{name: version} of a lock, names as Python packages are compared."""
    with open(lock) as stream:
        pairs = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", stream.read(), re.M)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pairs}


def pins_of(package, lock):
    """The lines of a lock that pin one package: its version and hashes."""
    with open(lock) as stream:
        text = stream.read()
    return "".join(re.findall(r"^%s==.*(?:\n[ \t].*)*\n?" % re.escape(package), text, re.M))


def found(params):
    """The installation, its state and why."""
    installation = Installation(
        "stack", params["name"], params["venv"], params["version"], params["state_dir"]
    )
    state, why = look(
        installation,
        os.path.lexists(params["venv"]),
        "sha256:" + params["lock_sha256"],
        activation=params["activation"],
    )
    if state != INSTALLED:
        return installation, state, why
    differing = differences(params["venv"], installation.receipt["packages"])
    if differing:
        return installation, CHANGED, "packages are not those of the lock: " + differing
    # The receipt's own files were compared above.
    changed = altered_packages(params["venv"], installation.receipt)
    if changed:
        return installation, CHANGED, told_changes(changed)
    if not same_python(installation.receipt["python"], params["python"]):
        return (
            installation,
            CHANGED,
            "made with Python {python}, declared is {}".format(
                params["python"], **installation.receipt
            ),
        )
    if not os.path.exists(os.path.join(params["venv"], "bin", "python")):
        return installation, CHANGED, "its interpreter is gone"
    root = params["library_dir"] or params["venv"]
    bound = [path for path in installation.receipt["binding"] if path.startswith(root + os.sep)]
    missing = set(params["libraries"]) - {os.path.basename(path) for path in bound}
    if missing or len(bound) < len(installation.receipt["binding"]):
        return installation, CHANGED, "bound to other libraries than declared"
    return installation, state, why


def main():
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "distribution": {"type": "str", "required": True},
            "version": {"type": "str", "required": True},
            "venv": {"type": "path", "required": True},
            "python": {"type": "str", "required": True},
            "interpreter": {"type": "path"},
            "python_dir": {"type": "path"},
            "installer": {"type": "str", "choices": ["uv", "pip"], "default": "uv"},
            "uv": {"type": "path"},
            "lock": {"type": "path", "required": True},
            "lock_sha256": {"type": "str", "required": True},
            "index_url": {"type": "str", "default": "", "no_log": True},
            "wheelhouse": {"type": "str", "default": ""},
            "libraries": {"type": "list", "elements": "str", "default": []},
            "library_dir": {"type": "path"},
            "binding": {"type": "str", "default": ""},
            "activation": {"type": "path", "required": True},
            "cache": {"type": "path", "default": "/var/cache/gpufleet/python"},
            "state_dir": {"type": "path", "default": "/var/lib/gpufleet"},
        },
        required_if=[("installer", "uv", ["uv"])],
        supports_check_mode=True,
    )
    params = module.params
    carry_out(
        module,
        lambda: found(params),
        lambda *at: {"packages": install(module, *at)},
        "{0} stands here already and was not made by gpufleet, so it is left alone. Move it away "
        "(mv {0} {0}.old) and run again.".format(params["venv"]),
    )


if __name__ == "__main__":
    main()
