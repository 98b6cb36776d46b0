"""NVIDIA's publications as rows: redistribution manifests and lists of md5 sums. Pure.

A manifest (`redistrib_X.json`) names components with version, and for each platform a file with its
checksums. It is of CUDA (many components), of cuDNN or of the driver. CUDA's names the driver of
its runfile until 13.3, and neither the runfile's checksums nor what the compiler accepts: these
figures are null, or taken over from the release before it with a note.
"""

from __future__ import annotations

import copy
import re
from typing import Any

from gpufleet.catalog import versions

from .errors import ContradictionError
from .tables import DRIVERS, Data, Row

DOWNLOADS = "https://developer.download.nvidia.com/compute/"
PLATFORMS = {
    "linux-x86_64": "linux_x86_64",
    "linux-sbsa": "linux_sbsa",
    "linux-ppc64le": "linux_ppc64le",
}
FIGURES = ("sha256", "md5", "size_bytes")
# Not in a manifest: the next release has them from the one before it, each with a note.
TAKEN_OVER = ("host_gcc", "compute_capability", "glibc_min")
MD5_LINE = re.compile(r"([0-9a-f]{32})\s+\*?(?:\./)?(\S+)")
REMEDY = "Correct the row in src/gpufleet/catalog/data, with its source, if the catalog is wrong."


def settle(row: Row, key: str, value: Any, where: str) -> bool:
    """Set a figure that is null or absent; refuse one that the catalog has otherwise."""
    known = row.get(key)
    if known is None and value is not None:
        row[key] = value
        return True
    if value is not None and known != value:
        raise ContradictionError(
            f"{key} is {known} in the catalog, and {value} in what is published.", where, REMEDY
        )
    return False


def add_manifest(
    data: Data, manifest: Row, name: str, today: str, via: str | None = None
) -> list[str]:
    """Add the releases of a manifest; what was done, a line for each row.

    `via`: where the file comes from.
    """
    components = {key: part for key, part in manifest.items() if isinstance(part, dict)}
    date = str(manifest.get("release_date") or "")
    text = f"{name}, NVIDIA's manifest{f' of {date}' if date else ''}{_via(via)}, read on {today}"
    if not components or not all("version" in part for part in components.values()):
        raise ContradictionError(
            "This is no redistribution manifest: it has no components with a version.",
            name,
            "Give a redistrib_X.json of NVIDIA's.",
        )
    if "cudnn" in components:
        return _cudnn(data, components["cudnn"], name, text)
    if "cuda_cudart" in components:
        version = str(manifest.get("release_label") or _label(name))
        return _toolkit(data, components, version, name, text)
    if "nvidia_driver" in components:
        return _driver(data, components["nvidia_driver"]["version"], date, text)
    raise ContradictionError(
        f"The manifest has neither CUDA, cuDNN nor the driver: {', '.join(sorted(components))}.",
        name,
        "The catalog has no rows of these.",
    )


def _via(via: str | None) -> str:
    return f" ({via})" if via else ""


def _label(name: str) -> str:
    """The release in a manifest's name, which older manifests do not repeat inside."""
    found = re.search(r"redistrib_([\d.]+)\.json", name)
    if not found:
        raise ContradictionError(
            "The manifest has no release_label.", name, "Keep its name redistrib_X.Y.Z.json."
        )
    return found[1]


def _explain(data: Data, folder: str, name: str, text: str) -> str:
    """The source key of a file in a table; its explanation is added to meta.yml."""
    key = name.removesuffix(".json").replace(" ", "_")
    data.meta(folder)["sources"].setdefault(key, text)
    return key


def _cudnn(data: Data, component: Row, name: str, text: str) -> list[str]:
    version, done = component["version"], []
    for label, platform in PLATFORMS.items():
        files = component.get(label) or {}
        if "relative_path" in files:  # an older manifest: one file, of one CUDA
            files = {re.findall(r"_(cuda\d+)-archive", files["relative_path"])[0]: files}
        for variant, file in files.items():
            cuda = variant.removeprefix("cuda")
            path = file["relative_path"]
            figures = {**file, "size_bytes": int(file["size"]) if "size" in file else None}
            row = next(
                (
                    each
                    for each in data.rows("cudnn")
                    if (each["version"], each["platform"]) == (version, platform)
                    and f"_cuda{cuda}-archive" in each["file"]
                ),
                None,
            )
            known = row is not None
            row = row or _archive(version, cuda, platform, path)
            where = f"cuDNN {version} for CUDA {cuda}, {platform}"
            settle(row, "file", path.rpartition("/")[2], where)
            changed = [key for key in FIGURES if settle(row, key, figures.get(key), where)]
            if changed:
                source = _explain(data, "cudnn", name, text)
                row["source"] |= {key: [source] for key in changed}
                if row.get("note", "").endswith("hash not seen in any source read"):
                    del row["note"]
            if not known:
                data.rows("cudnn").append(row)
            done += [f"{where}: {', '.join(changed)}"] if changed else []
    return done


def _archive(version: str, cuda: str, platform: str, path: str) -> Row:
    file = path.rpartition("/")[2]
    top, kind = re.sub(r"\.tar\.\w+$", "", file), file.rpartition("-archive.")[2]
    major = versions.major(version)
    return {
        "version": version,
        "file": file,
        "cuda": cuda,
        "platform": platform,
        "url": f"{DOWNLOADS}cudnn/redist/{path}",
        "sha256": None,
        "size_bytes": None,
        "layout": {
            "kind": kind,
            "top_dir": top,
            "include_dir": f"{top}/include",
            "lib_dir": f"{top}/lib",
            "header_with_version": "cudnn_version.h",
        },
        "soname_major": major,
        "soname": f"libcudnn.so.{major}",
        "login_required": False,
        "source": {},
    }


def _toolkit(data: Data, components: Row, version: str, name: str, text: str) -> list[str]:
    driver = components.get("nvidia_driver", {}).get("version")
    where = f"CUDA {version}"
    known = next((row for row in data.rows("toolkits") if row["version"] == version), None)
    if known:
        if not settle(known["driver"], "bundled", driver, where):
            return []
        source = _explain(data, "toolkits", name, text)
        known["driver"]["source"].append(source)
        return [f"{where}: driver {driver}"]
    older = [
        row
        for row in data.rows("toolkits")
        if versions.major(row["version"]) == versions.major(version)
        and versions.key(row["version"]) < versions.key(version)
    ]
    if not older:
        raise ContradictionError(
            f"No older release of CUDA {versions.major(version)} is in the catalog, and a manifest"
            " does not give the compilers and GPUs of a new major version.",
            where,
            "Write its first row in src/gpufleet/catalog/data/toolkits, with sources.",
        )
    before = max(older, key=lambda row: versions.key(row["version"]))
    source = _explain(data, "toolkits", name, text)
    row = _toolkit_row(before, version, driver, source)
    row["installers"] = {
        platform: _installer(version, driver, label, source)
        for label, platform in PLATFORMS.items()
        if label in components["cuda_cudart"]
    }
    data.rows("toolkits").append(row)
    taken = [key for key in (*TAKEN_OVER, "driver") if key in row]
    return [
        f"{where}: new; from {before['version']}, to be confirmed: {', '.join(taken)}",
        f"{where}: its runfiles have no checksums but those of an md5sum.txt that is added too",
    ]


def _toolkit_row(before: Row, version: str, driver: str | None, source: str) -> Row:
    note = f"as {before['version']}; not in the manifest"
    row: Row = {
        "version": version,
        "marketing_name": None,
        "channel": "ga",
        "installer_generation": before["installer_generation"],
        "driver": {
            "bundled": driver,
            "minimum": None,
            "minimum_minor_compat": before["driver"]["minimum_minor_compat"],
            "note": f"minor-version compatibility {note}",
            "source": [source],
        },
        "patches": [],
    }
    for key in TAKEN_OVER:
        if key in before:
            row[key] = {**copy.deepcopy(before[key]), "note": note}
    return row


def _installer(version: str, driver: str | None, label: str, source: str) -> Row:
    middle = f"{version}_{driver}" if driver else version
    end = {"linux-x86_64": "linux"}.get(label, label.replace("-", "_"))
    file = f"cuda_{middle}_{end}.run"
    return {
        "file": file,
        "url": f"{DOWNLOADS}cuda/{version}/local_installers/{file}",
        "sha256": None,
        "size_bytes": None,
        "source": {"release": [source]},
    }


def _driver(data: Data, version: str, date: str, text: str) -> list[str]:
    number, document = str(versions.major(version)), data.document(DRIVERS)
    sources, branches = document["meta"]["sources"], document["branches"]
    key = f"redistrib_{version}"
    row = next((each for each in branches if each["branch"] == number), None)
    if row is None:
        before = max(branches, key=lambda each: int(each["branch"]))
        row = {
            "branch": number,
            "type": None,
            "latest_linux": None,
            "latest_date": None,
            "first_date": date or None,
            "eol": None,
            "status_2026_11_20": "supported",
            "cuda_max_native": None,
            "cuda_max_source": [],
            "bundled_by_toolkits": [],
            "architectures_dropped_here": [],
            "open_kernel_modules": {
                **copy.deepcopy(before["open_kernel_modules"]),
                "note": f"as branch {before['branch']}; not in the manifest",
            },
            "source": [],
            "note": "type, end of life and the newest CUDA are not in the manifest",
        }
        branches.append(row)
    latest = row["latest_linux"]
    if latest and versions.key(latest) >= versions.key(version):
        return []
    row |= {"latest_linux": version, "latest_date": date or None}
    row["source"].append(key)
    sources[key] = text
    return [f"driver {version}: the newest of branch {number} (before: {latest})"]


def add_md5_sums(
    data: Data, content: str, name: str, today: str, via: str | None = None
) -> list[str]:
    """Add the md5 sums of runfiles that a `md5sum.txt` lists; what was done."""
    listed = {file: digest for digest, file in MD5_LINE.findall(content)}
    if not listed:
        raise ContradictionError(
            "This is no list of md5 sums.", name, "Each line has 32 hexadecimal digits and a file."
        )
    done, known = [], False
    for row in data.rows("toolkits"):
        for platform, installer in row["installers"].items():
            digest = listed.get(installer["file"])
            known = known or digest is not None
            where = f"CUDA {row['version']}, {platform}"
            if settle(installer, "md5", digest, where):
                text = f"{name}, NVIDIA's list of md5 sums{_via(via)}, read on {today}"
                source = _explain(data, "toolkits", f"md5sum_{row['version']}", text)
                installer["source"]["md5"] = [source]
                done.append(f"{where}: md5")
    if not known:
        raise ContradictionError(
            f"No file of it is one of the catalog's runfiles: {sorted(listed)[0]}, for instance.",
            name,
            "Add the release's manifest first, or correct the file's name in its row of toolkits.",
        )
    return done
