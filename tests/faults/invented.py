"""Faults that nobody had listed, invented to try checks that were built without them in mind.

What each check demands was written down first, from the plan and the receipts; only then were
these thought of, as somebody would who wants to fool it.
"""

from __future__ import annotations

from tests.faults.catalogue import Fault

TOOLKIT = "/usr/local/cuda-11.8"
LIB = f"{TOOLKIT}/targets/x86_64-linux/lib"
VENV = "/opt/gpufleet/stacks/tensorflow-2.13.1"
SITE = f"{VENV}/lib/python3.11/site-packages"
RECEIPTS = "/var/lib/gpufleet/receipts"
SYSTEM = "/usr/lib/x86_64-linux-gnu"
PROVISION = "gpufleet provision --limit lab1"


def kept(path: str, change: str) -> dict[str, str]:
    """A change of one file, which is put back as it was."""
    return {"inject": f"cp -a {path} /root/kept; {change}", "repair": f"mv -f /root/kept {path}"}


def host(
    number: int,
    shows: str,
    check: str,
    cause: str,
    remedy: str,
    *also: str,
    inject: str,
    repair: str,
) -> Fault:
    """A fault of a lab host."""
    return Fault(f"x{number}", shows, "host", check, cause, remedy, inject, repair, also)


FAULTS = [
    host(
        1,
        "another cuBLAS in a directory that the linker prefers on newer processors",
        "toolkit.files",
        "No receipt lists .*/glibc-hwcaps/x86-64-v2/libcublas.so.11",
        "move files away that do not belong to toolkit 11.8",
        inject=f"mkdir -p {LIB}/glibc-hwcaps/x86-64-v2; cp {LIB}/libcublas.so.11.11.3.6"
        f" {LIB}/glibc-hwcaps/x86-64-v2/libcublas.so.11; ldconfig",
        repair=f"rm -r {LIB}/glibc-hwcaps; ldconfig",
    ),
    host(
        2,
        "the same in the system's own libraries",
        "linker.cache",
        "loads libcusparse.so.11 from .*/glibc-hwcaps",
        "on the host",
        inject=f"mkdir -p {SYSTEM}/glibc-hwcaps/x86-64-v2; cp {LIB}/libcusparse.so.11.7.5.86"
        f" {SYSTEM}/glibc-hwcaps/x86-64-v2/libcusparse.so.11; ldconfig",
        repair=f"rm {SYSTEM}/glibc-hwcaps/x86-64-v2/libcusparse*; ldconfig",
    ),
    host(
        3,
        "a .pth file that puts another directory of packages first",
        "stack.python",
        "searches for modules in /srv/site-packages.*runs at every start.*/first.pth",
        "a .pth file",
        inject='mkdir -p /srv/site-packages; echo "import sys;'
        f" sys.path.insert(0, '/srv/site-packages')\" >{SITE}/first.pth",
        repair=f"rm -r {SITE}/first.pth /srv/site-packages",
    ),
    host(
        4,
        "sitecustomize.py in the stack",
        "stack.python",
        "runs at every start, though no package contains it: .*/sitecustomize.py",
        "sitecustomize.py",
        inject=f"echo 'import os' >{SITE}/sitecustomize.py",
        repair=f"rm {SITE}/sitecustomize.py",
    ),
    host(
        5,
        "another file system mounted over the toolkit's libraries",
        "install.owned",
        f"{LIB} .something is mounted over it",
        "unmount",
        inject=f"cp -al {LIB} /usr/local/.copy; mount --bind /usr/local/.copy {LIB}",
        repair=f"umount {LIB}; rm -r /usr/local/.copy",
    ),
    host(
        6,
        "nvcc belongs to an ordinary user",
        "install.owned",
        "bin/nvcc .belongs to user",
        "chown -h root:root",
        inject=f"chown deploy {TOOLKIT}/bin/nvcc",
        repair=f"chown root {TOOLKIT}/bin/nvcc",
    ),
    host(
        7,
        "the directory of the stacks is world-writable",
        "install.owned",
        "/opt/gpufleet/stacks .mode 0777",
        "chmod go-w",
        inject="chmod 777 /opt/gpufleet/stacks",
        repair="chmod 755 /opt/gpufleet/stacks",
    ),
    host(
        8,
        "conda's libstdc++ in ld.so.conf.d",
        "stack.python",
        "neither its own nor the system's: /opt/conda/lib/libstdc",
        "ld.so.conf.d",
        inject=f"mkdir -p /opt/conda/lib; cp {SYSTEM}/libstdc++.so.6 /opt/conda/lib/;"
        " echo /opt/conda/lib >/etc/ld.so.conf.d/000-conda.conf; ldconfig",
        repair="rm -r /opt/conda /etc/ld.so.conf.d/000-conda.conf; ldconfig",
    ),
    host(
        9,
        "one part of cuDNN is of another version than the others",
        "cudnn.present",
        "libcudnn_ops_infer.so.8.5.0 is of another version than cuDNN 8.6.0",
        "move it away",
        "cudnn.files",
        "stack.mapped",
        inject=f"cd {LIB}; cp libcudnn_ops_infer.so.8.6.0 libcudnn_ops_infer.so.8.5.0;"
        " ln -sfn libcudnn_ops_infer.so.8.5.0 libcudnn_ops_infer.so.8",
        repair=f"cd {LIB}; rm libcudnn_ops_infer.so.8.5.0;"
        " ln -sfn libcudnn_ops_infer.so.8.6.0 libcudnn_ops_infer.so.8",
    ),
    host(
        10,
        "a receipt is missing",
        "cudnn.files",
        "cudnn 11.8-8 has no receipt",
        PROVISION,
        "host.plan",
        inject=f"mv {RECEIPTS}/cudnn-11.8-8.json /root/",
        repair=f"mv /root/cudnn* {RECEIPTS}/",
    ),
    host(
        11,
        "a receipt that lists only half of the files, so that the others may change",
        "toolkit.files",
        "No receipt lists",
        "gpu_cuda_adopt: true",
        "stack.mapped",
        **kept(
            f"{RECEIPTS}/toolkit-11.8.json",
            f"python3 -c \"import json; p = '{RECEIPTS}/toolkit-11.8.json';"
            " d = json.load(open(p)); d['manifest'] = d['manifest'][::2];"
            " json.dump(d, open(p, 'w'))\"",
        ),
    ),
    host(
        12,
        "the receipt of one toolkit is copied for another",
        "install.complete",
        "toolkit-12.5.json cannot be read: it is of toolkit 11.8",
        "move it away",
        inject=f"cp {RECEIPTS}/toolkit-11.8.json {RECEIPTS}/toolkit-12.5.json",
        repair=f"rm {RECEIPTS}/toolkit-12.5.json",
    ),
    host(
        13,
        "a header of a later CUDA was copied into the toolkit",
        "toolkit.present",
        "cuda_runtime_api.h reports 12.5",
        PROVISION,
        "toolkit.files",
        **kept(
            f"{TOOLKIT}/include/cuda_runtime_api.h",
            f"sed -i 's/CUDART_VERSION  11080/CUDART_VERSION  12050/'"
            f" {TOOLKIT}/include/cuda_runtime_api.h",
        ),
    ),
    host(
        14,
        "/etc/ld.so.conf includes no other file",
        "linker.registered",
        "/etc/ld.so.conf does not include it",
        PROVISION,
        "linker.cache",
        **kept("/etc/ld.so.conf", "echo /usr/local/lib >/etc/ld.so.conf"),
    ),
    host(
        15,
        "/opt is mounted noexec",
        "stack.matmul",
        "failed to map segment",
        "noexec",
        "stack.build",
        "stack.libraries",
        "stack.mapped",
        "stack.readable",
        inject="mount --bind /opt /opt; mount -o remount,bind,noexec /opt",
        repair="umount /opt",
    ),
    host(
        16,
        "the metadata of a second numpy in the stack",
        "stack.release",
        "numpy 1.24.3 -> 1.26.0",
        PROVISION,
        inject=f"cd {SITE}; cp -a numpy-1.24.3.dist-info numpy-1.26.0.dist-info;"
        " sed -i 's/^Version: .*/Version: 1.26.0/' numpy-1.26.0.dist-info/METADATA",
        repair=f"rm -r {SITE}/numpy-1.26.0.dist-info",
    ),
    host(
        17,
        "a package without its record, so that its files may change",
        "stack.files",
        "numpy-1.24.3.dist-info/RECORD .missing",
        PROVISION,
        inject=f"mv {SITE}/numpy-1.24.3.dist-info/RECORD /root/",
        repair=f"mv /root/RECORD {SITE}/numpy-1.24.3.dist-info/",
    ),
    host(
        18,
        "half of a library is zeros, its size and time are as before",
        "stack.libraries",
        "bound to a library that cannot be loaded",
        PROVISION,
        "stack.build",
        "stack.mapped",
        "stack.matmul",
        **kept(
            f"{LIB}/libcusparse.so.11.7.5.86",
            f"dd if=/dev/zero of={LIB}/libcusparse.so.11.7.5.86 bs=4096 seek=1 count=200"
            f" conv=notrunc status=none; touch -r /root/kept {LIB}/libcusparse.so.11.7.5.86",
        ),
    ),
    host(
        19,
        "another program's libcudart in the system's directory",
        "linker.providers",
        f"{SYSTEM} also provides libcudart.so.11.0",
        "dpkg -S",
        inject=f"cp {LIB}/libcudart.so.11.8.89 {SYSTEM}/libcudart.so.11.4.1; ldconfig",
        repair=f"rm {SYSTEM}/libcudart*; ldconfig",
    ),
    host(
        20,
        "a limit on memory in limits.d under which TensorFlow cannot start",
        "stack.matmul",
        "does not run",
        "ulimit -a",
        "stack.build",
        "stack.libraries",
        "stack.mapped",
        inject="printf '%s - as 1500000\\n' '*' root >/etc/security/limits.d/as.conf",
        repair="rm /etc/security/limits.d/as.conf",
    ),
    host(
        21,
        "the interpreter behind the stack's is another one",
        "stack.python",
        "bin/python runs in /usr",
        PROVISION,
        "stack.build",
        "stack.libraries",
        "stack.mapped",
        "stack.matmul",
        inject="mv /usr/bin/python3.11 /usr/bin/python3.real;"
        " printf '#!/bin/sh\\nexec /usr/bin/python3.real \"$@\"\\n' >/usr/bin/python3.11;"
        " chmod 755 /usr/bin/python3.11",
        repair="mv /usr/bin/python3.real /usr/bin/python3.11",
    ),
    host(
        22,
        "a package's record lists only half of its files, so that the others may change",
        "stack.files",
        "No receipt lists .*/numpy/",
        "move",
        **kept(
            f"{SITE}/numpy-1.24.3.dist-info/RECORD",
            f"cd {SITE}/numpy-1.24.3.dist-info; awk 'NR % 2' /root/kept >RECORD",
        ),
    ),
]
