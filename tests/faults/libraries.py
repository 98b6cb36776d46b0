"""Libraries and the linker: what is missing, cut short, foreign, closed, or found elsewhere.

Scripts run as root on a lab host with the default stack. What one takes away it moves to `KEPT`,
so that putting it back keeps the times that receipts tell of; `STAND_INS` are libraries that the
fixture has. Without a repair of its own a fault is repaired as its remedy says: by provisioning.
"""

from __future__ import annotations

from tests.faults.catalogue import Fault

TOOLKIT = "/usr/local/cuda-11.8"
LIB = f"{TOOLKIT}/targets/x86_64-linux/lib"
VENV = "/opt/gpufleet/stacks/tensorflow-2.13.1"
SITE = f"{VENV}/lib/python3.11/site-packages"
KEPT = "/srv/kept"
STAND_INS = "/srv/stand-ins"
PROVISION = r"\./gpufleet provision --limit lab1"

# The framework names the library that it cannot open; receipt, links and cache say it in their way.
OF_CUDA = ("toolkit.files", "linker.cache")
LINKS_OF_CUDNN = ("cudnn.files", "linker.cache")
OF_CUDNN = ("cudnn.present", "cudnn.links", *LINKS_OF_CUDNN)
# Without an import there is nothing to judge: these say so, and point at stack.matmul. The last
# only where not even the libraries were loaded.
SILENT = ("stack.build", "stack.libraries", "stack.mapped")


def aside(path: str, then: str = "true") -> str:
    """Move something away, and put something else in its place, or nothing."""
    return f"mkdir -p {KEPT}; mv {path} {KEPT}/; {then}"


def back(path: str) -> str:
    """Undo it, whatever stands there now."""
    name = path.rpartition("/")[2]
    return f"rm -rf {path}; mv {KEPT}/{name} {path}; ldconfig"


def moved(path: str, then: str = "true") -> dict[str, str]:
    """`inject` and `repair` of a fault that moves one thing away."""
    return {"inject": aside(path, then), "repair": back(path)}


def cut(path: str) -> dict[str, str]:
    """The steps that leave only the first half of a library, and restore it."""
    return moved(path, f"cp {KEPT}/{path.rpartition('/')[2]} {path}; {halved(path)}")


def halved(path: str) -> str:
    """Cut a file short where it is."""
    return f"truncate -s $(( $(stat -c %s {path}) / 2 )) {path}"


def edited(path: str, expression: str) -> dict[str, str]:
    """The steps that edit a text with sed, and restore it."""
    return moved(path, f"sed '{expression}' {KEPT}/{path.rpartition('/')[2]} >{path}")


def not_opened(library: str, reason: str) -> str:
    """A pattern of the cause that `stack.libraries` gives."""
    return rf"cannot load {library}.*{reason}"


MISSING = "No such file or directory"
PAGE = "echo '<!DOCTYPE html><title>Please log in</title><form action=login method=post>' >"

ONE_STACK = [
    Fault(
        "1",
        "`libcudnn.so.8: cannot open shared object file`: the library was removed",
        "host",
        "stack.libraries",
        not_opened("libcudnn.so.8", MISSING),
        PROVISION,
        f"rm {LIB}/libcudnn.so.8.6.0",
        also=OF_CUDNN,
    ),
    Fault(
        "1",
        "`libcublas.so.11: cannot open shared object file`: file and links were removed",
        "host",
        "stack.libraries",
        not_opened("libcublas.so.11", MISSING),
        PROVISION,
        **moved(f"{LIB}/libcublas.so*", "ldconfig")
        | {"repair": f"mv {KEPT}/libcublas.so* {LIB}/; ldconfig"},
        also=(*OF_CUDA, "cudnn.present"),
    ),
    Fault(
        "1",
        "a part of cuDNN is missing that its shim opens only when it is used",
        "host",
        "cudnn.files",
        r"libcudnn_ops_infer.so.8.6.0 \(missing\)",
        PROVISION,
        **moved(f"{LIB}/libcudnn_ops_infer.so.8.6.0"),
        also=(*OF_CUDNN, "stack.libraries"),
    ),
    Fault(
        "2",
        "`ldconfig -p` lists a library that no longer exists",
        "host",
        "linker.cache",
        r"lists libcufft.so.10 as .*, which does not exist",
        "provision|ldconfig",
        **moved(f"{LIB}/libcufft.so.10.9.0.58"),
        also=(*OF_CUDA, "stack.libraries"),
    ),
    Fault(
        "3",
        "only `libcudnn.so.8.6.0` was copied: the symlink with its SONAME is missing",
        "host",
        "cudnn.links",
        "libcudnn.so.8 is missing: no symlink of that name",
        PROVISION,
        **moved(f"{LIB}/libcudnn.so.8"),
        also=(*LINKS_OF_CUDNN, "stack.libraries"),
    ),
    Fault(
        "3",
        "the symlink `libcublas.so.11` is missing",
        "host",
        "toolkit.files",
        r"libcublas.so.11 \(missing\)",
        PROVISION,
        **moved(f"{LIB}/libcublas.so.11"),
        also=(*OF_CUDA, "stack.libraries", "cudnn.present"),
    ),
    Fault(
        "3",
        '`ldconfig` never ran (`sudo ldconfig /usr/local/cuda/lib64` "fixes" it)',
        "host",
        "linker.cache",
        "cache does not list libcu",
        r"on the host: ldconfig",
        "mkdir -p /srv/empty; ldconfig -f /dev/null",
        repair="ldconfig",
    ),
    Fault(
        "3",
        "the linker's cache is missing",
        "host",
        "linker.cache",
        "cache does not list libcu",
        "ldconfig",
        "rm /etc/ld.so.cache",
        repair="ldconfig",
    ),
    Fault(
        "3",
        "the toolkit was removed from the linker's configuration",
        "host",
        "linker.registered",
        "gpufleet-cuda.conf is missing",
        PROVISION,
        "rm /etc/ld.so.conf.d/gpufleet-cuda.conf; ldconfig",
        also=("linker.cache",),
    ),
    Fault(
        "5",
        "the symlink `libcudnn.so.8` is dangling",
        "host",
        "cudnn.links",
        "libcudnn.so.8 is a dangling symlink to libcudnn.so.8.6.9",
        PROVISION,
        **moved(f"{LIB}/libcudnn.so.8", f"ln -s libcudnn.so.8.6.9 {LIB}/libcudnn.so.8"),
        also=(*LINKS_OF_CUDNN, "stack.libraries"),
    ),
    Fault(
        "5",
        "the symlink `libcusparse.so.11` is dangling",
        "host",
        "toolkit.files",
        r"libcusparse.so.11 \(target\)",
        PROVISION,
        **moved(f"{LIB}/libcusparse.so.11", f"ln -s /nowhere {LIB}/libcusparse.so.11"),
        also=(*OF_CUDA, "stack.libraries"),
    ),
    Fault(
        "7",
        "`cannot read file data`: a library of the toolkit is truncated",
        "host",
        "toolkit.files",
        r"libcusolver.so.11.4.1.48 \(size\)",
        PROVISION,
        halved(f"{LIB}/libcusolver.so.11.4.1.48"),
        also=("stack.matmul", *SILENT),
    ),
    Fault(
        "7",
        "cuDNN's library is truncated",
        "host",
        "cudnn.present",
        "libcudnn_cnn_infer.so.8.6.0 is not a valid library: truncated",
        PROVISION,
        **cut(f"{LIB}/libcudnn_cnn_infer.so.8.6.0"),
        also=("cudnn.files", "stack.matmul", *SILENT),
    ),
    Fault(
        "7",
        "TensorFlow's own library is truncated",
        "host",
        "stack.files",
        r"libtensorflow_framework.so.2 \(size\)",
        PROVISION,
        **cut(f"{SITE}/tensorflow/libtensorflow_framework.so.2"),
        also=(*SILENT, "stack.matmul"),
    ),
    Fault(
        "8",
        "`invalid ELF header`: a login page was saved as a library",
        "host",
        "stack.libraries",
        not_opened("libcurand.so.10", "invalid ELF header"),
        PROVISION,
        **moved(f"{LIB}/libcurand.so.10.3.0.86", f"{PAGE}{LIB}/libcurand.so.10.3.0.86"),
        also=("toolkit.files",),
    ),
    Fault(
        "8",
        "a login page was saved as cuDNN",
        "host",
        "cudnn.present",
        "libcudnn.so.8.6.0 is not a valid library: .*looks like a web page",
        PROVISION,
        **moved(f"{LIB}/libcudnn.so.8.6.0", f"{PAGE}{LIB}/libcudnn.so.8.6.0"),
        also=("cudnn.files", "cudnn.links", "stack.libraries"),
    ),
    Fault(
        "10",
        "`undefined symbol`: another library has the right name",
        "host",
        "stack.libraries",
        not_opened("libcublas.so.11", "undefined symbol"),
        PROVISION,
        **moved(
            f"{LIB}/libcublasLt.so.11.11.3.6",
            f"cp {STAND_INS}/libcublasLt.so.11 {LIB}/libcublasLt.so.11.11.3.6",
        ),
        also=("toolkit.files", "cudnn.present"),
    ),
    Fault(
        "13",
        "`Loaded runtime CuDNN library: 8.5.0 but source was compiled with: 8.6.0`",
        "host",
        "cudnn.present",
        "reports cuDNN 8.5.0, declared is 8.6.0",
        PROVISION,
        **moved(
            f"{LIB}/libcudnn.so.8.6.0", f"cp {STAND_INS}/libcudnn.so.8.5.0 {LIB}/libcudnn.so.8.6.0"
        ),
        also=("cudnn.files",),
    ),
    Fault(
        "13",
        "the symlink points to an older cuDNN beside the declared one",
        "host",
        "cudnn.present",
        "reports cuDNN 8.5.0, declared is 8.6.0",
        PROVISION,
        **moved(
            f"{LIB}/libcudnn.so.8",
            f"cp {STAND_INS}/libcudnn.so.8.5.0 {LIB}/; ln -s libcudnn.so.8.5.0 {LIB}/libcudnn.so.8",
        )
        | {"repair": f"rm {LIB}/libcudnn.so.8.5.0; " + back(f"{LIB}/libcudnn.so.8")},
        also=("cudnn.files", "stack.mapped"),
    ),
    Fault(
        "15",
        "cuDNN's header is of another version than its library",
        "host",
        "cudnn.present",
        r"cudnn_version.h reports 8.5.0, declared is 8.6.0",
        PROVISION,
        **edited(f"{TOOLKIT}/include/cudnn_version.h", "s/CUDNN_MINOR 6/CUDNN_MINOR 5/"),
        also=("cudnn.files",),
    ),
    Fault(
        "16",
        "`/usr/local/cuda` is dangling",
        "host",
        "toolkit.default-link",
        "is a dangling symlink to cuda-11.2",
        PROVISION,
        "ln -sfn cuda-11.2 /usr/local/cuda",
        repair="ln -sfn cuda-11.8 /usr/local/cuda",
    ),
    Fault(
        "16",
        "`/usr/local/cuda` points to something else",
        "host",
        "toolkit.default-link",
        "points to /srv/other, declared is /usr/local/cuda-11.8",
        PROVISION,
        "mkdir -p /srv/other; ln -sfn /srv/other /usr/local/cuda",
    ),
    Fault(
        "16",
        "`/usr/local/cuda` is a directory",
        "host",
        "toolkit.default-link",
        "/usr/local/cuda is a directory, not a symlink",
        rf"mv /usr/local/cuda /usr/local/cuda.old; then {PROVISION}",
        "rm /usr/local/cuda; mkdir -p /usr/local/cuda/lib64",
        also=("host.plan",),
        repair="mv /usr/local/cuda /usr/local/cuda.old; ln -s cuda-11.8 /usr/local/cuda",
    ),
    Fault(
        "16",
        "`/usr/local/cuda` is missing",
        "host",
        "toolkit.default-link",
        "/usr/local/cuda is missing",
        PROVISION,
        "rm /usr/local/cuda",
        repair="ln -s cuda-11.8 /usr/local/cuda",
    ),
    Fault(
        "16",
        "`version.json` names another release",
        "host",
        "toolkit.present",
        "its version.json reports 11.2",
        PROVISION,
        **edited(f"{TOOLKIT}/version.json", "s/11\\.8/11.2/"),
        also=("toolkit.files",),
    ),
    Fault(
        "16",
        "`nvcc` is of another release",
        "host",
        "toolkit.present",
        "its nvcc reports 12.3.107",
        PROVISION,
        **moved(
            f"{TOOLKIT}/bin/nvcc",
            f"printf '%s\\n' '#!/bin/sh'"
            " 'echo Cuda compilation tools, release 12.3, V12.3.107'"
            f" >{TOOLKIT}/bin/nvcc; chmod 755 {TOOLKIT}/bin/nvcc",
        ),
        also=("toolkit.files",),
    ),
    Fault(
        "17",
        "`Cannot dlopen some GPU libraries`, and silent work on the CPU",
        "host",
        "stack.libraries",
        not_opened("libcusolver.so.11", MISSING),
        PROVISION,
        **moved(f"{LIB}/libcusolver.so.11.4.1.48"),
        also=OF_CUDA,
    ),
    Fault(
        "17",
        "the framework's library is opened, but from under another name",
        "host",
        "stack.mapped",
        "libcufft.so.10, but maps no file of that name",
        PROVISION,
        **moved(
            f"{LIB}/libcufft.so.10",
            f"cp {STAND_INS}/libcufft.so.10 {LIB}/other.so; ln -s other.so {LIB}/libcufft.so.10",
        )
        | {"repair": f"rm {LIB}/other.so; " + back(f"{LIB}/libcufft.so.10")},
        also=("toolkit.files",),
    ),
    Fault(
        "59",
        "`chmod a+r` was forgotten: users cannot read the toolkit's library",
        "host",
        "toolkit.readable",
        r"libcublasLt.so.11.11.3.6 \(mode 0600\)",
        r"chmod a\+r the files",
        f"chmod 600 {LIB}/libcublasLt.so.11.11.3.6",
        also=("toolkit.files", "stack.readable"),
        repair=f"chmod 755 {LIB}/libcublasLt.so.11.11.3.6",
    ),
    Fault(
        "59",
        "users cannot read cuDNN",
        "host",
        "cudnn.readable",
        r"libcudnn.so.8.6.0 \(mode 0600\)",
        r"chmod a\+r the files",
        f"chmod 600 {LIB}/libcudnn.so.8.6.0",
        also=("cudnn.files", "stack.readable"),
        repair=f"chmod 755 {LIB}/libcudnn.so.8.6.0",
    ),
    Fault(
        "59",
        "users cannot enter the toolkit",
        "host",
        "toolkit.readable",
        rf"{TOOLKIT} \(mode 0700\)",
        r"chmod a\+r",
        f"chmod 700 {TOOLKIT}",
        repair=f"chmod 755 {TOOLKIT}",
        also=("cudnn.readable", "stack.readable"),
    ),
    Fault(
        "59",
        "users cannot read the stack's packages",
        "host",
        "stack.readable",
        r"tensorflow \(mode 0700\)",
        r"chmod a\+r",
        f"chmod 700 {SITE}/tensorflow",
        repair=f"chmod 755 {SITE}/tensorflow",
    ),
    Fault(
        "11",
        "a toolkit's file system is mounted noexec: no library there can be mapped",
        "host",
        "toolkit.readable",
        "/usr/local is mounted noexec",
        "mount -o remount,exec /usr/local",
        "mount --bind /usr/local /usr/local; mount -o remount,bind,noexec /usr/local",
        repair="umount /usr/local",
        also=(
            "toolkit.present",
            "cudnn.present",
            "stack.libraries",
            "stack.mapped",
            "toolkit.nvrtc",
        ),
    ),
    Fault(
        "11",
        "a stack's file system is mounted noexec",
        "host",
        "stack.readable",
        "/opt/gpufleet/stacks is mounted noexec",
        "mount -o remount,exec /opt/gpufleet/stacks",
        "cd /opt/gpufleet; mount --bind stacks stacks; mount -o remount,bind,noexec stacks",
        repair="umount /opt/gpufleet/stacks",
        also=("stack.matmul", *SILENT[:2]),
    ),
]

# Toolkits 12.3 and 12.5 offer the same sonames; TensorFlow 2.18.1 is bound to 12.5.
BOUND = "/opt/gpufleet/stacks/tensorflow-2.18.1/lib/python3.11/site-packages/_gpufleet_binding.pth"
FIRST = "/etc/ld.so.conf.d/000-site.conf"
ELSEWHERE = "loads libcudart.so.12 from /usr/local/cuda-12.3/.*, not from /usr/local/cuda-12.5"
SIDE_BY_SIDE = [
    Fault(
        "58",
        "two toolkits share a soname, and the linker takes the other's",
        "host",
        "linker.cache",
        ELSEWHERE,
        r"remove that directory from /etc/ld.so.conf.d, run ldconfig",
        f"echo /usr/local/cuda-12.3/lib64 >{FIRST}; ldconfig",
        repair=f"rm {FIRST}; ldconfig",
        also=("linker.providers",),
    ),
    Fault(
        "58",
        "the same, from the next `ldconfig` on",
        "host",
        "linker.cache",
        "the next ldconfig makes the linker load those",
        "from /etc/ld.so.conf.d",
        f"echo /usr/local/cuda-12.3/lib64 >{FIRST}",
        repair=f"rm {FIRST}",
        also=("linker.providers",),
    ),
    Fault(
        "58",
        "our own file names the toolkits in another order",
        "host",
        "linker.registered",
        "lists /usr/local/cuda-12.3/lib64, .* instead of",
        PROVISION,
        "sed -i '2i /usr/local/cuda-12.3/lib64' /etc/ld.so.conf.d/gpufleet-cuda.conf; ldconfig",
        also=("linker.cache", "linker.providers"),
    ),
    Fault(
        "58",
        "the framework of one toolkit maps the other's libraries",
        "host",
        "stack.mapped",
        "maps libraries from outside /usr/local/cuda-12.5: /usr/local/cuda-12.3/",
        rf"{PROVISION} \(it binds the stack to its toolkit again\)",
        f"mv {BOUND} /srv/; echo /usr/local/cuda-12.3/lib64 >{FIRST}; ldconfig",
        repair=f"mv /srv/_gpufleet_binding.pth {BOUND}; rm {FIRST}; ldconfig",
        also=("stack.files", "stack.libraries", "linker.cache", "linker.providers"),
    ),
    Fault(
        "16",
        "`/usr/local/cuda` points to another toolkit than declared",
        "host",
        "toolkit.default-link",
        "points to /usr/local/cuda-12.3, declared is /usr/local/cuda-12.5",
        PROVISION,
        "ln -sfn cuda-12.3 /usr/local/cuda",
    ),
]

FAULTS = [*ONE_STACK, *SIDE_BY_SIDE]
