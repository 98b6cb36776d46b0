#!/usr/bin/python
# Apache-2.0, see LICENSE
"""Install a framework's release into a virtual environment bound to its own CUDA."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_stack
short_description: Install a framework into its own virtual environment
description:
  - Creates the virtual environment, installs exactly what its lock lists (by version and hash),
    and binds it to its CUDA libraries, those of its toolkit or of its own packages, so that
    C(venv/bin/python) loads only these, whatever the environment variables are.
  - Writes a receipt. Repairs a stack whose packages or binding differ from the receipt, reinstalls
    one that an interrupted run left incomplete, and refuses an environment that it did not create.
options:
  name:
    description: The stack's name; the receipt's id.
    type: str
    required: true
  framework:
    description: The framework; importing it loads the bound libraries.
    type: str
    choices: [tensorflow, pytorch, jax]
    default: tensorflow
  distribution:
    description: The Python package that carries the release.
    type: str
    required: true
  version:
    description: The framework's release. A build of it, such as V(2.1.2+cu118), may be in the lock.
    type: str
    required: true
  venv:
    description: The path of the virtual environment.
    type: path
    required: true
  python:
    description: The interpreter's version, such as V(3.11).
    type: str
    required: true
  interpreter:
    description: The interpreter; by default the one of that version on the path.
    type: path
  python_dir:
    description: >-
      A directory for interpreters. Where it is set, uv installs a build of that version there, from
      the source that uv is configured for.
    type: path
  installer:
    description: V(uv), or V(pip) for interpreters that uv does not support.
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
  index:
    description: An extra package index of this stack. A package is taken from it if it is there.
    type: str
  wheelhouse:
    description: A directory of wheels on the host, or the address of a page that lists them, to
      install from without an index.
    type: str
    default: ""
  libraries:
    description: SONAMEs to bind.
    type: list
    elements: str
    default: []
  libraries_optional:
    description: SONAMEs to bind where the library exists.
    type: list
    elements: str
    default: []
  library_dir:
    description: >-
      The toolkit's directory of the libraries to bind; by default those of the environment's own
      packages, of which a framework would not find all before the system's.
    type: path
  binding:
    description: Source of the binding's Python module; required with O(libraries).
    type: str
    default: ""
  activation:
    description: A file of shell variables that C(bin/activate) reads where it exists, and that
      C(deactivate) restores.
    type: path
    required: true
  cache:
    description:
      - Where downloads are kept during the installation. They stay where they are on the file
        system of O(venv), whose files are links to them;
        M(gpufleet.gpu.gpu_artifact_cleanup) removes them.
    type: path
    default: /var/cache/gpufleet/gpufleet-python
attributes:
  check_mode: {support: full}
  diff_mode: {support: full}
extends_documentation_fragment:
  - gpufleet.gpu.attributes
  - gpufleet.gpu.repair
  - gpufleet.gpu.state_dir
author: ["The gpufleet developers (!UNKNOWN)"]
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
  description: The state before the run (absent, foreign, half-installed, changed, installed).
  type: str
  returned: always
because:
  description: The reason for that state.
  type: str
  returned: always
packages:
  description: What is installed.
  type: dict
  returned: when installed
"""

import glob
import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.gpu.plugins.module_utils.file_errors import fail
from ansible_collections.gpufleet.gpu.plugins.module_utils.module import (
    ABSENT,
    CHANGED,
    HALF_DONE,
    INSTALLED,
    carry_out,
    changes_message,
    state_of,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.manifest import (
    compare_manifest,
    is_record,
    manifest_of,
    records_of,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.python_environment import (
    check_wheelhouse,
    install_packages,
    own_files,
    run,
    site_packages,
    uninstall_packages,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.python_packages import (
    altered_packages,
    differences,
    locked_packages,
    same_python,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    Installation,
    StateError,
    remove_tree,
    same_filesystem,
    wait_for_downloads,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.recreation import (
    OPTION,
    RECREATE,
    REINSTALL,
    Recreation,
    set_aside,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.stack_binding import (
    BINDING,
    MODULES,
    bind,
    hook_activation,
    library_folders,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.stack_contents import (
    compiled_code,
    has_own_python,
    is_compiled,
    own_names,
    sites,
    unrecorded_code,
)


def install(module, installation, state, lock):
    """Install, bind, and write the receipt; returns the packages by name."""
    params = module.params
    check_wheelhouse(params["wheelhouse"])
    recreation = Recreation(params["venv"])
    interrupted = state == HALF_DONE
    if interrupted and installation.journal["fresh"]:
        remove_tree(params["venv"])
    packages = locked_packages(params["lock"])
    if packages.get(params["distribution"], "").partition("+")[0] != params["version"]:
        raise StateError(
            "{distribution} {version} is not in {lock}. Remove the lock beside the inventory, so "
            "that it is resolved again.".format(**params)
        )
    receipt = installation.receipt or {"manifest": [], "packages": {}, "python": None}
    recreated = recreation.started or must_be_recreated(params, installation, state, packages)
    # An installer that was killed leaves packages that look whole by their metadata.
    damaged = (
        interrupted
        or params["repair"] == REINSTALL
        or bool(compare_manifest(params["venv"], receipt["manifest"]))
        or bool(altered_packages(params["venv"], receipt, deep=bool(params["repair"])))
    )
    if receipt["python"] and not same_python(receipt["python"], params["python"]):
        remove_tree(params["venv"])
    installation.begin(fresh=state == ABSENT)
    if recreated:
        recreation.start()
    elif params["repair"]:
        clean(installation, receipt)
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
    if recreation.started:
        # Files that people added may have broken it: they are kept, but not in the environment.
        known = dict(receipt, packages={**receipt["packages"], **packages})
        ours = own_names(recreation.old, known)
        left = [name for name in recreation.left(ours) if not is_compiled(name)]
        set_aside(installation, recreation.old, left)
        recreation.finish()
    installation.finish(
        {"file": os.path.basename(params["lock"]), "sha256": params["lock_sha256"]},
        manifest_of(
            params["venv"],
            [
                *(
                    os.path.relpath(path, params["venv"])
                    for path in [*files, *records_of(params["venv"], packages)]
                    if os.path.exists(path)
                ),
                *own_files(
                    params["venv"],
                    site,
                    receipt["manifest"],
                    recreated or installation.journal["fresh"] or installation.receipt is None,
                ),
            ],
        ),
        packages=packages,
        lock_sha256=params["lock_sha256"],
        activation=params["activation"],
        python=version,
        binding=libraries,
    )
    # Only now: until the receipt stands, the next run may need the downloads. Where the environment
    # shares its files with the cache, they cost nothing, and the next stack may need them.
    if not same_filesystem(params["venv"], params["cache"]):
        remove_tree(params["cache"])
    return packages


def must_be_recreated(params, installation, state, packages):
    """Return whether no file of the environment can be used, or executed, any more."""
    venv, receipt = params["venv"], installation.receipt
    if params["repair"] == RECREATE or (state == HALF_DONE and os.path.lexists(venv)):
        return True
    if state == ABSENT or not os.path.lexists(venv):
        return False
    if receipt:
        return not has_own_python(venv, receipt["manifest"])
    # Without a receipt: only what is the lock's, file by file, is kept.
    return (
        bool(differences(venv, packages))
        or bool(altered_packages(venv, {"packages": packages}, deep=True))
        or not has_own_python(venv, [])
    )


def clean(installation, receipt):
    """Set aside code that nobody recorded, and remove what Python compiled."""
    venv = installation.path
    set_aside(installation, venv, unrecorded_code(venv, receipt["manifest"] + binding_files(venv)))
    for name in compiled_code(venv):
        remove_tree(os.path.join(venv, name))


def binding_files(venv):
    """The binding's files, which a lost receipt does not list."""
    pattern = os.path.join(glob.escape(venv), "lib", "python3*", "site-packages", BINDING + ".*")
    return [{"path": os.path.relpath(path, venv)} for path in glob.glob(pattern)]


def found(params):
    """The installation, its state and why."""
    installation = Installation(
        "stack", params["name"], params["venv"], params["version"], params["state_dir"]
    )
    state, why = state_of(
        installation,
        os.path.lexists(params["venv"]),
        "sha256:" + params["lock_sha256"],
        params["repair"],
        activation=params["activation"],
    )
    filled = installation.is_filled(params["lock_sha256"])
    if state == HALF_DONE and filled and not params["repair"]:
        # By gpu_stack_download, in this run or in one that ended since.
        return installation, ABSENT, "not installed"
    if state != INSTALLED:
        return installation, state, why
    differing = differences(params["venv"], installation.receipt["packages"])
    if differing:
        return installation, CHANGED, "packages are not those of the lock: " + differing
    # The receipt's own files were compared above.
    changed = altered_packages(params["venv"], installation.receipt, deep=bool(params["repair"]))
    if changed:
        return installation, CHANGED, changes_message(changed)
    if params["repair"]:
        added = unrecorded_code(params["venv"], installation.receipt["manifest"])
        compiled = compiled_code(params["venv"])
        if added:
            return installation, CHANGED, "nothing that is installed contains " + ", ".join(added)
        if compiled:
            count = "{} files".format(len(compiled))
            return installation, CHANGED, count + " of compiled Python may not be of their sources"
        if not any(is_record(entry["path"]) for entry in installation.receipt["manifest"]):
            # All files are as the records say: now the records themselves can be recorded.
            return installation, CHANGED, "its receipt does not list its packages' records"
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
    folders = {
        folder
        for site in sites(params["venv"])
        for folder in library_folders(site, params["library_dir"])
    }
    binding = installation.receipt["binding"]
    bound = [path for path in binding if os.path.dirname(path) in folders]
    missing = set(params["libraries"]) - {os.path.basename(path) for path in bound}
    if missing or len(bound) < len(binding):
        return installation, CHANGED, "bound to other libraries than declared"
    return installation, state, why


def main():
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "framework": {"type": "str", "choices": sorted(MODULES), "default": "tensorflow"},
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
            "index": {"type": "str", "no_log": True},
            "wheelhouse": {"type": "str", "default": ""},
            "libraries": {"type": "list", "elements": "str", "default": []},
            "libraries_optional": {"type": "list", "elements": "str", "default": []},
            "library_dir": {"type": "path"},
            "binding": {"type": "str", "default": ""},
            "activation": {"type": "path", "required": True},
            "cache": {"type": "path", "default": "/var/cache/gpufleet/gpufleet-python"},
            "repair": OPTION,
            "state_dir": {"type": "path", "default": "/var/lib/gpufleet"},
        },
        required_if=[("installer", "uv", ["uv"])],
        supports_check_mode=True,
    )
    params = module.params
    if not module.check_mode:
        try:
            wait_for_downloads(params["state_dir"])
        except StateError as error:
            fail(module, error)
    carry_out(
        module,
        lambda: found(params),
        lambda *at: {"packages": install(module, *at)},
        "{0} already exists and was not created by gpufleet, so it is not changed. Move it away "
        "(mv {0} {0}.old) and run again.".format(params["venv"]),
    )


if __name__ == "__main__":
    main()
