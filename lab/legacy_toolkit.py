"""Makes stand-ins for toolkits, patches and cuDNN archives of the years before 2019.

NVIDIA published no wheels then, so their libraries are stubs; names, layout and the installers'
manners are those of that time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lab import cudnn, runfile, stubs
from lab.toolkit import NVCC, TARGET
from lab.wheels import Wheel

LIBRARIES = TARGET / "lib"
# Libraries that are not in the toolkit's library directory.
_ELSEWHERE = {"libcupti": Path("extras/CUPTI/lib64")}

HOST_CONFIG = """\
#if __GNUC__ > {gcc_max}
#error -- unsupported GNU version! gcc versions later than {gcc_max} are not supported!
#endif
"""
CUDNN_H = """\
#define CUDNN_MAJOR      {0}
#define CUDNN_MINOR      {1}
#define CUDNN_PATCHLEVEL {2}
#define CUDNN_VERSION    (CUDNN_MAJOR * 1000 + CUDNN_MINOR * 100 + CUDNN_PATCHLEVEL)
"""
# An archive of no members, which is what `ar` calls an empty library.
EMPTY_ARCHIVE = b"!<arch>\n"


def make(artifact: dict[str, Any], wheels: list[tuple[Wheel, Path]], work: Path) -> Path:
    """The runfile of a whole toolkit."""
    del wheels
    lay_out(artifact, work / "tree")
    return runfile.pack(artifact, work / "tree", work, runfile.PERL, stubs.README)


def make_patch(artifact: dict[str, Any], wheels: list[tuple[Wheel, Path]], work: Path) -> Path:
    """The runfile of a patch: the libraries that it replaces, and the note that it was here."""
    del wheels
    _place(artifact, work / "tree")
    return runfile.pack(artifact, work / "tree", work, runfile.PATCH, stubs.README)


def make_cudnn(artifact: dict[str, Any], wheels: list[tuple[Wheel, Path]], work: Path) -> Path:
    del wheels
    version = artifact["version"]
    tree = work / "cuda"
    numbers = {"cuda": _number(artifact), "cudnn": stubs.number(version, 1000, 100, 1)}
    soname = f"libcudnn.so.{version.partition('.')[0]}"
    stubs.place(tree / "lib64", soname, version, artifact["functions_of"], numbers)
    (tree / "lib64/libcudnn_static.a").write_bytes(EMPTY_ARCHIVE)
    _write(tree / "include/cudnn.h", CUDNN_H.format(*version.split(".")))
    _write(tree / "README-STAND-IN.txt", stubs.README.format(what=f"cuDNN {version}"))
    return cudnn.pack(tree, work / artifact["file"])


def lay_out(artifact: dict[str, Any], tree: Path) -> None:
    cuda = artifact["cuda"]
    _place(artifact, tree)
    numbers = {"cuda": _number(artifact)}
    # To link against where no driver is installed, hence the driver's SONAME.
    driver = tree / LIBRARIES / "stubs/libcuda.so"
    functions = stubs.functions("libcuda", artifact["functions_of"], numbers)
    stubs.library.write(driver, "libcuda.so.1", functions)
    (tree / "lib64").symlink_to(LIBRARIES)
    (tree / "include").symlink_to(TARGET / "include")
    _write(tree / TARGET / "include/cuda.h", f"#define CUDA_VERSION {_number(artifact)}\n")
    _write(tree / TARGET / "include/host_config.h", HOST_CONFIG.format(**artifact))
    _write(tree / "version.txt", f"CUDA Version {artifact['version']}\n")
    _write(tree / "bin/nvcc", NVCC.format(release=cuda, version=artifact["nvcc"]), 0o755)
    _write(tree / "README-STAND-IN.txt", stubs.README.format(what=f"CUDA {cuda}"))


def _place(artifact: dict[str, Any], tree: Path) -> None:
    for stem, version in artifact["libraries"].items():
        directory = tree / _ELSEWHERE.get(stem, LIBRARIES)
        soname = f"{stem}.so.{artifact['cuda']}"
        numbers = {"cuda": _number(artifact), "cuda_major": _number(artifact) // 1000}
        stubs.place(directory, soname, version, artifact["functions_of"], numbers)


def _number(artifact: dict[str, Any]) -> int:
    return stubs.number(artifact["cuda"], 1000, 10)


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
