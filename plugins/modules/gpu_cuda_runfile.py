#!/usr/bin/python
# Apache-2.0, see LICENSE
"""Install a CUDA toolkit from NVIDIA's runfile, completely or not at all."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_cuda_runfile
short_description: Install a CUDA toolkit from NVIDIA's runfile
description:
  - Runs the runfile with C(--silent --toolkit --toolkitpath --override) in its own temporary
    directory, with C(LANG=C), and checks the result by the installer's log and by the files,
    because the exit status of NVIDIA's installers is not documented.
  - Writes a receipt with a manifest of the installed files. Does not change a toolkit whose files
    match the receipt; reinstalls one whose files differ, or that an interrupted run left
    incomplete; refuses a tree that it did not install.
  - Applies the toolkit's patches, which are runfiles as well, in the given order.
  - Removes the installer's own registration with the dynamic linker
    (C(/etc/ld.so.conf.d/*cuda*.conf)); M(gpufleet.gpu.gpu_linker_cache) registers toolkits.
options:
  version:
    description: The toolkit's full version, such as V(11.8.0).
    type: str
    required: true
  short:
    description: The toolkit's short version, such as V(11.8); the receipt's id.
    type: str
    required: true
  path:
    description: The path of the toolkit, such as V(/usr/local/cuda-11.8).
    type: path
    required: true
  runfile:
    description: The runfile on the host.
    type: path
    required: true
  checksum:
    description: The runfile's checksum as V(ALGORITHM:HEX).
    type: str
    required: true
  generation:
    description: Which of NVIDIA's installers the runfile contains.
    type: str
    choices: [perl, cuda-installer]
    default: cuda-installer
  patches:
    description: The patches' runfiles, each C({file, checksum}), in the directory of O(runfile).
    type: list
    elements: dict
    default: []
  cudnn:
    description: >-
      Archives of cuDNN in the directory of O(runfile), each C({file, checksum, include_dir,
      lib_dir}), that are unpacked while the installer runs, where there is room for it on the
      toolkit's file system; M(gpufleet.gpu.gpu_cudnn_archive) installs them.
    type: list
    elements: dict
    default: []
  tmpdir:
    description: Where to unpack; needs about the toolkit's size, and must not be mounted noexec.
    type: path
    default: /tmp
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
- name: Install CUDA 11.8
  gpufleet.gpu.gpu_cuda_runfile:
    version: 11.8.0
    short: "11.8"
    path: /usr/local/cuda-11.8
    runfile: /var/cache/gpufleet/artifacts/cuda_11.8.0_520.61.05_linux.run
    checksum: sha256:9223c4af3aebe4a7bbed9abd9b163b03a1b34b855fbc2b4a0d1b706ac09a5a16
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
import stat
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.gpu.plugins.module_utils import cudnn_archive
from ansible_collections.gpufleet.gpu.plugins.module_utils.module import (
    ABSENT,
    HALF_DONE,
    carry_out,
    check_artifact,
    restore_labels,
    state_of,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.manifest import manifest_of
from ansible_collections.gpufleet.gpu.plugins.module_utils.owned import refuse_foreign
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    Installation,
    StateError,
    remove_tree,
    walk,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.recreation import (
    OPTION,
    RECREATE,
    Recreation,
    clear_places,
    set_aside,
)

LOG = "/var/log/cuda-installer.log"
STALE_LOG = "/tmp/cuda-installer.log"
LD_SO_CONF = "/etc/ld.so.conf.d"

# Known messages of the installers with their remedies. The first that matches is reported.
COMPLAINTS = (
    (
        r"Extraction failed|Not enough space|Unable to decompress|No space left",
        "The runfile could not be unpacked in {tmpdir}: too little space there, or the file is "
        "damaged. Free space or set gpu_tmpdir to a larger directory.",
    ),
    (
        r"Unexpected archive size|Error in (MD5|SHA)|checksum",
        "The runfile is damaged. Remove it from the cache and run again.",
    ),
    (
        r"Can't locate InstallUtils\.pm",
        "The installer's perl module was not found: this perl no longer looks in the current "
        "directory, and PERL5LIB had no effect.",
    ),
    (
        r"libxml2\.so\.2",
        "The installer needs libxml2.so.2, which this host does not have. Install libxml2.",
    ),
    (
        r"Permission denied",
        "Something could not be executed or written. Is {tmpdir} mounted noexec? "
        "Set gpu_tmpdir to another directory.",
    ),
)


def linker_files():
    """Files by which CUDA packages and installers register libraries."""
    return set(glob.glob(os.path.join(LD_SO_CONF, "*cuda*.conf")))


def own_tmpdir(module):
    """An empty directory below ``tmpdir`` from which programs may run; cleared of older runs."""
    parent = module.params["tmpdir"]
    folder = os.path.join(parent, "gpufleet-cuda-" + module.params["short"])
    if os.path.isdir(parent):
        status = os.stat(parent)
        if status.st_uid not in (0, os.geteuid()) or (
            status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX
        ):
            raise StateError(
                "Other accounts can replace what is in {0}, and the installer would run it as root."
                " Set gpu_tmpdir to a directory of root, or repair this one: chown root {0}; chmod "
                "1777 {0}".format(parent)
            )
    remove_tree(folder)
    # Fails where somebody has made it again: nobody else's directory is used.
    os.makedirs(folder, mode=0o700)
    trial = os.path.join(folder, "trial")
    with open(trial, "w") as stream:
        stream.write("#!/bin/sh\nexit 0\n")
    os.chmod(trial, 0o700)
    try:
        status = module.run_command([trial], handle_exceptions=False)[0]
    except OSError:
        status = 126
    if status:
        shutil.rmtree(folder)
        raise StateError(
            "Programs cannot be run from {0}: it is mounted noexec. Set gpu_tmpdir to a directory "
            "that is not, or remount it: mount -o remount,exec {0}".format(module.params["tmpdir"])
        )
    return folder


def commands(module, tmpdir):
    """The words that install the toolkit, then those that apply each of its patches."""
    params = module.params
    perl = params["generation"] == "perl"
    toolkit = ["--silent", "--toolkit", "--toolkitpath=" + params["path"], "--override"]
    toolkit.append("--tmpdir=" + tmpdir)
    if not perl:
        # Manual pages would go to /usr/share/man, where two toolkits overwrite each other's.
        toolkit.append("--no-man-page")
    # The patches of 10.2 carry the same installer as the toolkits since then.
    patch = ["--silent", "--accept-eula", "--installdir=" + params["path"]]
    return [["sh", params["runfile"], *toolkit]] + [
        ["sh", beside(params, each), *(patch if perl else toolkit)] for each in params["patches"]
    ]


def beside(params, patch):
    """The path of a patch's runfile."""
    return os.path.join(os.path.dirname(params["runfile"]), patch["file"])


def run_installer(module, command, tmpdir, lock):
    """Run a runfile; returns (exit status, what it said on its outputs and in its log)."""
    for log in (STALE_LOG, LOG):
        # Some installers crash on a log that another user left behind.
        remove_tree(log)
    refuse_foreign([command[1], tmpdir])
    environment = {"LANG": "C", "LC_ALL": "C", "TMPDIR": tmpdir, "PERL5LIB": "."}
    for name in ("DISPLAY", "SUDO_USER"):
        os.environ.pop(name, None)
    status, out, err = module.run_command(
        command, environ_update=environment, cwd=tmpdir, umask=0o022, pass_fds=[lock]
    )
    said = out + err
    logs = re.findall(r"Logfile is (\S+)", said) + [LOG]
    for log in logs:
        if os.path.isfile(log):
            with open(log, errors="replace") as stream:
                said += "\n" + stream.read()
            break
    return status, said


def complaint(said, tmpdir):
    """The installer's own words for its failure, and what helps."""
    errors = re.findall(r"^.*(?:\[ERROR\]:|Error:|Failed to|Installation Failed).*$", said, re.M)
    words = " | ".join(line.strip() for line in errors[-3:]) or " ".join(said.split()[-40:])
    for pattern, remedy in COMPLAINTS:
        if re.search(pattern, said):
            return "{} {}".format(words, remedy.format(tmpdir=tmpdir))
    return words


def missing_files(path):
    """The files that every toolkit has and this tree lacks."""
    wanted = {
        "version.json or version.txt": ["version.json", "version.txt", "include/cuda.h"],
        "lib64/libcudart.so.*": ["lib64/libcudart.so.*"],
    }
    return [
        name
        for name, patterns in wanted.items()
        if not any(glob.glob(os.path.join(path, pattern)) for pattern in patterns)
    ]


def applied(params):
    """The patches as the receipt lists them."""
    return [{key: each[key] for key in ("file", "checksum")} for each in params["patches"]]


def install(module, installation, state, lock):
    """Install and write the receipt; returns the manifest."""
    path = installation.path
    source = check_artifact(module.params["runfile"], module.params["checksum"])
    for patch in module.params["patches"]:
        check_artifact(beside(module.params, patch), patch["checksum"])
    tmpdir = own_tmpdir(module)
    recreation = Recreation(path)
    if state == HALF_DONE and installation.journal["fresh"]:
        remove_tree(path)
    before = installation.receipt["manifest"] if installation.receipt else []
    installation.begin(fresh=state == ABSENT, linker_files=sorted(linker_files()))
    recreated = module.params["repair"] == RECREATE or recreation.started
    if recreated:
        recreation.start()
    else:
        clear_places(installation, before)
    fresh = installation.journal["fresh"] or recreated
    others = installation.others_manifest()
    if installation.receipt and installation.receipt["version"] != installation.version:
        # The linker would prefer a left-over library of a higher version.
        for entry in before:
            if os.path.join(path, entry["path"]) not in others:
                remove_tree(os.path.join(path, entry["path"]))
    started = time.time() - 1  # a file system's clock may lag by its tick
    for command in commands(module, tmpdir):
        status, said = run_installer(module, command, tmpdir, lock)
        missing = missing_files(path)
        if status or missing or "[ERROR]" in said:
            raise StateError(
                "The installer of {} failed with status {}{}: {}".format(
                    os.path.basename(command[1]),
                    status,
                    "; missing: " + ", ".join(missing) if missing else "",
                    complaint(said, module.params["tmpdir"]),
                )
            )
    shutil.rmtree(tmpdir)
    for stray in linker_files() - set(installation.journal.get("linker_files", ())):
        # Another package may have been installed meanwhile: only what names this tree is ours.
        with open(stray, errors="replace") as stream:
            names_it = path in stream.read()
        if names_it:
            os.unlink(stray)
    # In a tree that stood before, what people added is theirs: ours is what the receipt listed
    # and what the installer wrote (a rename or a copy sets ctime).
    listed = {entry["path"] for entry in before}
    ours = [
        name
        for name in walk(path)
        if os.path.join(path, name) not in others
        and (fresh or name in listed or os.lstat(os.path.join(path, name)).st_ctime >= started)
    ]
    restore_labels(module, path)
    manifest = manifest_of(path, ours)
    # cuDNN and what people added: only what the receipt listed is replaced.
    kept = recreation.left(listed)
    set_aside(installation, recreation.old, recreation.put_back(kept))
    recreation.finish()
    installation.finish(source, manifest, patches=applied(module.params))
    return manifest


def install_while_unpacking(module, *found):
    """Install the toolkit while its cuDNN is unpacked."""
    with cudnn_archive.meanwhile(
        module.params["path"], module.params["runfile"], module.params["cudnn"]
    ):
        return install(module, *found)


def main():
    module = AnsibleModule(
        argument_spec={
            "version": {"type": "str", "required": True},
            "short": {"type": "str", "required": True},
            "path": {"type": "path", "required": True},
            "runfile": {"type": "path", "required": True},
            "checksum": {"type": "str", "required": True},
            "generation": {
                "type": "str",
                "choices": ["perl", "cuda-installer"],
                "default": "cuda-installer",
            },
            "patches": {"type": "list", "elements": "dict", "default": []},
            "cudnn": {"type": "list", "elements": "dict", "default": []},
            "tmpdir": {"type": "path", "default": "/tmp"},
            "repair": OPTION,
            "state_dir": {"type": "path", "default": "/var/lib/gpufleet"},
        },
        supports_check_mode=True,
    )
    params = module.params

    def found():
        installation = Installation(
            "toolkit", params["short"], params["path"], params["version"], params["state_dir"]
        )
        exists = os.path.lexists(params["path"])
        declared = {"patches": applied(params)}
        found = state_of(installation, exists, params["checksum"], params["repair"], **declared)
        return (installation, *found)

    carry_out(
        module,
        found,
        lambda *at: {"files": len(install_while_unpacking(module, *at))},
        "{0} already exists and was not installed by gpufleet, so it is not changed. Move it "
        "away (mv {0} {0}.old), or have it adopted (gpu_cuda_adopt: true), and run again.".format(
            params["path"]
        ),
    )


if __name__ == "__main__":
    main()
