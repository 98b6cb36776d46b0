"""The judge of cuDNN: links as an administrator, or a hostile host, makes them."""

from __future__ import annotations

from typing import Any, cast

from gpufleet.components.base.fault import causes
from gpufleet.components.cuda.cudnn import faults
from gpufleet.documents.plan import PlannedCudnn
from gpufleet.documents.sections.cuda import CudnnTree
from tests.support.host_documents import cudnn_library, cudnn_tree

ROOT = "/usr/local/cuda-11.8"
FILE = f"{ROOT}/lib64/libcudnn.so.8.6.0"
PLANNED = {
    "toolkit": "11.8",
    "toolkit_path": ROOT,
    "major": 8,
    "short": "8.6.0",
    "soname": "libcudnn.so.8",
    "default": False,
}


def found(**parts: Any) -> list[str]:
    loaded = {"soname": "libcudnn.so.8", "path": FILE, "version": "8.6.0", "error": None}
    tree = cudnn_tree(ROOT, loaded=[loaded], **parts)
    return causes(faults([cast(PlannedCudnn, PLANNED)], [cast(CudnnTree, tree)]))


def test_a_link_through_another_directory_reaches_the_library() -> None:
    """The check stopped with an error, because the target has a slash."""
    link = {"path": f"{ROOT}/lib64/libcudnn.so.8", "exists": True}
    through = {**link, "target": "../lib64/libcudnn.so.8.6.0"}
    assert found(libraries=[cudnn_library(FILE)], links=[through]) == []
    outside = {**link, "target": "../../cuda-11.7/lib64/libcudnn.so.8.5.0"}
    (cause,) = found(libraries=[cudnn_library(FILE)], links=[outside])
    assert cause.endswith(
        "points outside its directory, to ../../cuda-11.7/lib64/libcudnn.so.8.5.0"
    )


def test_a_soname_that_is_a_path_is_a_fault() -> None:
    library = {**cudnn_library(FILE), "soname": "../libcudnn.so.8"}
    (cause,) = found(libraries=[library])
    assert cause.startswith(f"{ROOT}/libcudnn.so.8 is missing: no symlink of that name")
