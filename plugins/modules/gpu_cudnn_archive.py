#!/usr/bin/python
# Apache-2.0, see LICENSE
"""Install cuDNN from NVIDIA's archive into a toolkit's tree, completely or not at all."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_cudnn_archive
short_description: Install cuDNN from NVIDIA's archive into a toolkit
description:
  - Unpacks the archive beside its destination with path checks, renames each library and header
    into the toolkit's tree, readable by everybody, and creates the links from each library's
    SONAME. Links are never followed into copies.
  - A toolkit may contain several major versions of cuDNN. Headers and unversioned links belong to
    the declared default.
  - Writes a receipt. Repairs files that differ from the receipt, finishes an interrupted run,
    replaces another version of the same major, and refuses files that it did not install.
options:
  version:
    description: The full version, such as V(8.6.0.163).
    type: str
    required: true
  major:
    description: The major version, as in the SONAME, such as V(8).
    type: int
    required: true
  toolkit:
    description: The toolkit's short version, such as V(11.8).
    type: str
    required: true
  path:
    description: The toolkit's tree.
    type: path
    required: true
  archive:
    description: The archive on the host.
    type: path
    required: true
  checksum:
    description: The archive's checksum as V(ALGORITHM:HEX).
    type: str
    required: true
  include_dir:
    description: The archive's directory of headers.
    type: str
    required: true
  lib_dir:
    description: The archive's directory of libraries.
    type: str
    required: true
  default:
    description: Whether headers and unversioned links belong to this version.
    type: bool
    default: true
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
- name: Install cuDNN 8.6 into CUDA 11.8
  gpufleet.gpu.gpu_cudnn_archive:
    version: 8.6.0.163
    major: 8
    toolkit: "11.8"
    path: /usr/local/cuda-11.8
    archive: /var/cache/gpufleet/artifacts/cudnn-linux-x86_64-8.6.0.163_cuda11-archive.tar.xz
    checksum: sha256:bbc396df47294c657edc09c600674d608cb1bfc80b82dcf4547060c21711159e
    include_dir: cudnn-linux-x86_64-8.6.0.163_cuda11-archive/include
    lib_dir: cudnn-linux-x86_64-8.6.0.163_cuda11-archive/lib
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
files:
  description: The number of files and links in the receipt.
  type: int
  returned: when installed
"""

import glob
import os
import re
import shutil

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.gpu.plugins.module_utils.cudnn_archive import (
    unpack,
    unpacked,
    wanted,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.links import make_link
from ansible_collections.gpufleet.gpu.plugins.module_utils.module import (
    ABSENT,
    carry_out,
    check_artifact,
    source_of,
    state_of,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.elf import elf_dynamic
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.manifest import manifest_of
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    UNPACKED,
    Installation,
    StateError,
    remove_tree,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.recreation import (
    OPTION,
    RECREATE,
    clear_places,
    set_aside,
)


def settle(source, target, mode):
    """Move a file to its final name in one step, with ``mode``, owned by root."""
    os.chmod(source, mode)
    os.chown(source, 0, 0)
    if os.path.isdir(target) and not os.path.islink(target):
        raise StateError("{} is a directory; a file of cuDNN's belongs there.".format(target))
    os.rename(source, target)


def place_libraries(folder, lib, default):
    """Rename libraries into ``lib`` and link each SONAME; returns the paths made."""
    made = []
    for name in sorted(os.listdir(folder)):
        source = os.path.join(folder, name)
        if os.path.islink(source):
            continue  # created again below, from the SONAME
        if ".so" not in name:
            if default:  # static libraries carry no version in their path
                settle(source, os.path.join(lib, name), 0o644)
                made.append(os.path.join(lib, name))
            continue
        try:
            soname = elf_dynamic(source)["soname"]
        except ValueError as error:
            raise StateError("The archive's {} is no library: {}".format(name, error)) from error
        settle(source, os.path.join(lib, name), 0o755)
        made.append(os.path.join(lib, name))
        links = []
        if soname and soname != name:
            links.append((name, soname))
        bare = re.sub(r"\.so\..*$", ".so", soname or name)
        if default and bare != (soname or name):
            links.append((soname or name, bare))
        for target, alias in links:
            make_link(target, os.path.join(lib, alias))
            made.append(os.path.join(lib, alias))
    return made


def place_headers(folder, include):
    """Rename headers into ``include``; returns the paths made."""
    made = []
    for name in sorted(os.listdir(folder)):
        source = os.path.join(folder, name)
        if os.path.islink(source):
            make_link(os.readlink(source), os.path.join(include, name))
        else:
            settle(source, os.path.join(include, name), 0o644)
        made.append(os.path.join(include, name))
    return made


def install(module, installation, state, _lock):
    """Install and write the receipt; returns the manifest."""
    root = installation.path
    lib = os.path.realpath(os.path.join(root, "lib64"))
    include = os.path.realpath(os.path.join(root, "include"))
    for folder in (lib, include):
        if not os.path.isdir(folder):
            raise StateError("{} is missing: the toolkit is not whole.".format(folder))
    archive = module.params["archive"]
    source = source_of(archive, module.params["checksum"])
    beforehand = unpacked(archive, module.params)
    if not beforehand:
        check_artifact(archive, module.params["checksum"])
    before = installation.receipt["manifest"] if installation.receipt else []
    attempted = (installation.journal or {}).get("version", installation.version)
    if attempted != installation.version:
        # A killed run was bringing another version: the linker would prefer a newer one.
        ending = ".so." + ".".join(attempted.split(".")[:3])
        for path in glob.glob(os.path.join(lib, "libcudnn*" + ending)):
            os.unlink(path)
    installation.begin(fresh=state == ABSENT)
    if installation.journal["fresh"]:
        # Files of a killed first run may be of another version than is declared now.
        for path in glob.glob(os.path.join(lib, "libcudnn*.so.%d*" % module.params["major"])):
            os.unlink(path)
    clear_places(installation, before)
    if module.params["repair"] == RECREATE:
        listed = {os.path.join(os.path.realpath(root), entry["path"]) for entry in before}
        for path in sorted(listed):
            remove_tree(path)
        foreign = set(glob.glob(os.path.join(lib, "libcudnn*.so.%d*" % module.params["major"])))
        foreign -= installation.others_manifest()
        names = [os.path.relpath(path, root) for path in sorted(foreign)]
        set_aside(installation, root, names)
    # In the toolkit's own tree, so that each file moves by a rename.
    place = os.path.join(root, ".gpufleet-cudnn-" + installation.ident)
    if beforehand:
        remove_tree(place)
        shutil.move(beforehand, place)
    else:
        remove_tree(archive + UNPACKED)
        unpack(archive, wanted(module.params), place)
    headers, libraries = (os.path.join(place, folder) for folder in wanted(module.params))
    made = place_libraries(libraries, lib, module.params["default"])
    if module.params["default"]:
        made += place_headers(headers, include)
    shutil.rmtree(place)
    if beforehand:
        # Where SELinux is in force, they have the label of the directory that they come from.
        for path in made:
            module.set_default_selinux_context(path, False)
    names = sorted({os.path.relpath(path, os.path.realpath(root)) for path in made})
    others = installation.others_manifest()
    for entry in before:
        gone = os.path.join(root, entry["path"])
        if entry["path"] not in names and gone not in others:
            remove_tree(gone)
    manifest = manifest_of(root, names)
    # Header and bare link may have been another major's until now.
    installation.disown({os.path.join(root, name) for name in names})
    installation.finish(source, manifest, default=module.params["default"])
    return manifest


def main():
    module = AnsibleModule(
        argument_spec={
            "version": {"type": "str", "required": True},
            "major": {"type": "int", "required": True},
            "toolkit": {"type": "str", "required": True},
            "path": {"type": "path", "required": True},
            "archive": {"type": "path", "required": True},
            "checksum": {"type": "str", "required": True},
            "include_dir": {"type": "str", "required": True},
            "lib_dir": {"type": "str", "required": True},
            "default": {"type": "bool", "default": True},
            "repair": OPTION,
            "state_dir": {"type": "path", "default": "/var/lib/gpufleet"},
        },
        supports_check_mode=True,
    )
    params = module.params
    ident = "{toolkit}-{major}".format(**params)

    def found():
        installation = Installation(
            "cudnn", ident, params["path"], params["version"], params["state_dir"]
        )
        files = glob.glob(os.path.join(params["path"], "lib64/libcudnn.so.%d*" % params["major"]))
        declared = {"default": params["default"]}
        found = state_of(
            installation, bool(files), params["checksum"], params["repair"], **declared
        )
        return (installation, *found)

    carry_out(
        module,
        found,
        lambda *at: {"files": len(install(module, *at))},
        "{0}/lib64/libcudnn.so.{1}* already exists and was not installed by gpufleet, so it is "
        "not changed. Remove those files, or have them adopted (gpu_cuda_adopt: true), and run "
        "again.".format(params["path"], params["major"]),
    )


if __name__ == "__main__":
    main()
