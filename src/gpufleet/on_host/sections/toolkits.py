"""Section `toolkits`: CUDA toolkits under the prefix, and the default link."""

import json
import os

from ..processes import NoAnswer, run_command
from ..receipts import receipts_of_kind
from ..text import first_match, last_lines, natural
from ..trees import (
    foreign_parts,
    libraries,
    library_directory,
    toolkit_trees,
    unfit_libraries,
    unreadable_by_others,
)
from ..trust import RefusedError


def section_toolkits(host):
    received = {receipt["path"] for receipt in receipts_of_kind(host, "toolkit")}
    trees = []
    for tree in toolkit_trees(host):
        version, source = toolkit_version(host, tree)
        nvcc, nvcc_error, nvcc_hung = query_nvcc(host, tree)
        cudart = [
            first_match(r"libcudart\.so\.(\d+\.\d+\.\d+)$", name)
            for name in libraries(host, library_directory(host, tree), "cudart")
        ]
        trees.append(
            {
                "path": tree,
                "short": first_match(r"cuda-(\d+\.\d+)", tree)
                or (".".join(version.split(".")[:2]) if version else None),
                "version": version,
                "version_source": source,
                "nvcc": nvcc,
                "nvcc_error": nvcc_error,
                "nvcc_hung": nvcc_hung,
                "cudart": [v for v in cudart if v],
                "receipt": tree in received,
                "exposed": foreign_parts(host, tree, tree in received),
                "headers": toolkit_headers(host, tree),
                "unfit": unfit_libraries(
                    host, toolkit_libraries(host, library_directory(host, tree))
                ),
                "realpath": host.realpath(tree),
                "closed": unreadable_by_others(
                    host,
                    [
                        name
                        for name in (
                            tree,
                            tree + "/bin",
                            tree + "/include",
                            *toolkit_libraries(host, library_directory(host, tree)),
                        )
                        if host.exists(name)
                    ],
                ),
            }
        )
    return {
        "trees": trees,
        "default": default_link(host),
        "occupied": sorted(host.glob(host["prefix"] + "/cuda-[0-9]*"), key=natural),
    }


def toolkit_headers(host, tree):
    """The headers (path, version) that tell programs the version that they are compiled for."""
    found = []
    for name, macro in (("cuda.h", "CUDA_VERSION"), ("cuda_runtime_api.h", "CUDART_VERSION")):
        path = tree + "/include/" + name
        text = host.text_or_none(path)
        if text is not None:
            number = first_match(r"^\s*#\s*define\s+%s\s+(\d+)" % macro, text)
            found.append(
                {
                    "path": path,
                    "version": number and "%d.%d" % (int(number) // 1000, int(number) % 1000 // 10),
                }
            )
    return found


def toolkit_libraries(host, directory):
    """A toolkit's directory of libraries and all in it, but for cuDNN's."""
    return (
        [
            directory,
            *(
                name
                for name in libraries(host, directory, "")
                if not os.path.basename(name).startswith("libcudnn")
            ),
        ]
        if directory
        else []
    )


def toolkit_version(host, tree):
    text = host.text_or_none(tree + "/version.json")
    if text is not None:
        try:
            return json.loads(text)["cuda"]["version"], "version.json"
        except (ValueError, KeyError, TypeError):
            return None, "version.json"
    text = host.text_or_none(tree + "/version.txt")
    if text is not None:
        return first_match(r"CUDA Version\s+([\d.]+)", text), "version.txt"
    return None, None


def query_nvcc(host, tree):
    nvcc = host.path(tree + "/bin/nvcc")
    if not os.path.lexists(nvcc):
        return None, None, False
    profile = nvcc + ".profile"
    try:
        status, out, err = run_command(
            [nvcc, "--version"],
            host.inner_s / 4,
            env={"PATH": "/usr/bin:/bin", "LANG": "C"},
            code=[profile] if os.path.exists(profile) else [],
        )
    except RefusedError as error:
        return None, str(error), False
    version = first_match(r"release [\d.]+, V([\d.]+)", out)
    if version:
        return version, None, False
    reason = last_lines(err or out, 300) or "it printed nothing (status %s)" % status
    return None, reason, isinstance(err, NoAnswer)


def default_link(host):
    name = host["prefix"] + "/cuda"
    path = host.path(name)
    if os.path.islink(path):
        state = "link"
    elif os.path.isdir(path):
        state = "directory"
    else:
        state = "file" if os.path.lexists(path) else "missing"
    link = state == "link"
    return {
        "path": name,
        "state": state,
        "target": os.readlink(path) if link else None,
        "realpath": host.realpath(name) if link and host.exists(name) else None,
    }
