"""Section `receipts`: what gpufleet installed, compared with what is on disk."""

import calendar
import glob
import os
import stat
import time

from ..constants import CUDA_FILE, is_cuda_file
from ..contents import scrub
from ..filesystems import mounts_of
from ..manifest import (
    compare_manifest,
    compare_records,
    hex_digest,
    is_record,
    mode_of,
    normal_name,
    read_record,
    recorded_files,
    records_of,
    sha256_of,
)
from ..obstacles import obstacles
from ..processes import in_child
from ..receipts import read_receipts
from ..trees import behind_links, library_directory
from ..trust import writers_of_list

# Where modulefiles, variables, profiles and kernels go (compat/environment.py).
TEXT_LOCATIONS = (
    "/opt/gpufleet/modulefiles/*/*",
    "/opt/gpufleet/modulefiles/*/.version",
    "/opt/gpufleet/environment/*.sh",
    "/etc/profile.d/*gpufleet*.sh",
    "/usr/local/share/jupyter/kernels/*/kernel.json",
)


def section_receipts(host):
    found = read_receipts(host.path(host["state_dir"]))
    receipts, components, mounts = [], [], mounted(host)
    listed = {"toolkit": set(), "cudnn": set()}
    for receipt in found["receipts"]:
        listed.setdefault(receipt["kind"], set()).update(
            os.path.join(receipt["path"], entry["path"]) for entry in receipt["manifest"]
        )
    for receipt in found["receipts"]:
        manifest = receipt.pop("manifest")
        root = host.path(receipt["path"])
        receipt["changed"] = compare_manifest(root, manifest)
        paths, infos = [entry["path"] for entry in manifest], {}
        contents = {
            entry["path"]: (entry["sha256"], entry["size"])
            for entry in manifest
            if entry["type"] == "file" and entry.get("sha256") and "size" in entry
        }
        if receipt["kind"] == "stack" and isinstance(receipt.get("packages"), dict):
            known = set(paths)
            receipt["recorded"] = any(map(is_record, paths))
            files = [
                entry
                for entry in recorded_files(root, receipt["packages"])
                if entry[0] not in known
            ]
            paths += [path for path, _, _ in files]
            receipt["changed"] += compare_records(
                root, files, infos=infos, since=moment(receipt.get("installed"))
            )
            contents.update(
                (path, (hex_digest(digest), size))
                for path, digest, size in files
                if hex_digest(digest)
            )
        receipt["files"] = len(paths)
        receipt["libraries"] = [
            host.realpath(receipt["path"]) + "/" + path
            for path in paths
            if is_cuda_file(os.path.basename(path)) and not os.path.islink(root + "/" + path)
        ]
        receipt["unlisted"] = unlisted(host, receipt, listed)
        receipt["exposed"] = writable_by_others(host, receipt, paths, mounts, infos)
        receipts.append(receipt)
        if contents:
            components.append(
                {
                    "component": receipt["kind"] + "-" + receipt["id"],
                    "root": root,
                    "installed": str(receipt.get("installed")),
                    "files": contents,
                }
            )
    contents = compare_contents(host, components, receipts, mounts)
    for entry in found["unreadable"]:
        entry["path"] = host.name(entry["path"])
    return dict(
        found,
        receipts=receipts,
        texts=text_digests(host),
        caches=leftover_caches(host),
        obstacles=obstacles(host, receipts),
        **contents,
    )


def compare_contents(host, components, receipts, mounts):
    """Add what differs in content to the receipts; {"scrub": how far it was read}, each night."""
    settings, error = host["scrub"], None
    if host["deep"] or host["contents"]:
        found = scrub(components, settings or {"components": []}, True)
    elif settings:
        # In a process of its own: a disk that gives no answer must not take the section with it.
        most_s = min(settings["seconds"], host.inner_s / 2)
        given = dict(settings, seconds=most_s * 0.8)
        found, error = in_child(scrub, (components, given), most_s)[1:]
        # Without an answer, what is known of earlier nights stands.
        found = found or scrub(components, dict(given, seconds=-1))
    else:
        return {}
    states, wrong = found
    for receipt in receipts:
        known = {entry["path"] for entry in receipt["changed"]}
        for entry in wrong.get(receipt["kind"] + "-" + receipt["id"], ()):
            if entry["what"] == "unreadable":
                name = host.realpath(receipt["path"] + "/" + entry["path"])
                entry["disk"] = (
                    max(
                        (len(point), "%s at %s" % (source, point))
                        for point, source in mounts.items()
                        if point == "/" or (name + "/").startswith(point + "/")
                    )[1]
                    if mounts
                    else None
                )
            if entry["path"] not in known:
                receipt["changed"].append(entry)
    return (
        {
            "scrub": {
                "days": settings["days"],
                "seconds": settings["seconds"],
                "at": int(time.time()),
                "error": error,
                "components": states,
            }
        }
        if settings
        else {}
    )


def moment(text):
    """The seconds since the epoch of a receipt's time; 0 where it has none."""
    try:
        return calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ"))
    except (TypeError, ValueError):
        return 0


def leftover_caches(host):
    """Caches that only an installation in progress needs, and that were left behind.

    The last one is of releases before 1.1.
    """
    return [
        path
        for location in ("artifacts/*", "gpufleet-python", "python")
        for path in host.glob("/var/cache/gpufleet/" + location)
    ]


def mounted(host):
    """The source that is mounted at each mount point, as the kernel lists them."""
    mounts = mounts_of(host)
    return {mount["path"]: mount["source"] for mount in mounts}


def writable_by_others(host, receipt, paths, mounts, infos):
    """The paths of an installation that are not root's alone, or lie under a mount (path, what).

    Its files, its receipt, and each directory on the way to them: who owns one can exchange what
    is in it. Directories above its own are the system's: a group may write in some of those.
    """
    top, found = host.realpath(receipt["path"]).rstrip("/"), {}
    root = 0 if host.real else os.stat(host.root).st_uid
    record = "%s/receipts/%s-%s.json" % (host["state_dir"], receipt["kind"], receipt["id"])
    files = [record, *(top + "/" + path for path in paths)]
    folders = {name.rpartition("/")[0] for name in files}
    for folder in list(folders):
        steps = folder.split("/")
        folders.update("/".join(steps[:depth]) for depth in range(1, len(steps)))
    for name in [*files, *(folder or "/" for folder in folders)]:
        try:
            info = infos.get(name) or os.lstat(host.path(name))
        except OSError:
            continue
        if info.st_uid != root:
            found[name] = "belongs to user %d" % info.st_uid
        elif info.st_mode & 0o022 and not stat.S_ISLNK(info.st_mode):
            folder = name in folders or name == "/"
            own = not folder or (top and (name + "/").startswith(top + "/"))
            # In a directory with the sticky bit no account can replace another account's files.
            others = 0o002 if not folder or not info.st_mode & stat.S_ISVTX else 0
            if info.st_mode & (others | (0o020 if own and info.st_gid else 0)):
                found[name] = "mode %s, others can write" % mode_of(info)
            # With an access list the group's bits are what it allows at most.
            elif own and info.st_mode & 0o020 and writers_of_list(host.path(name)):
                found[name] = "mode %s, its access list (getfacl) lets others write" % (
                    mode_of(info)
                )
    files = set(files)
    for point in mounts:
        if point in files or (point in folders and top and point.startswith(top + "/")):
            found[point] = "something is mounted over it"
    return behind_links(
        host, receipt["path"], [{"path": path, "what": found[path]} for path in sorted(found)]
    )


# Files that a receipt of the kind must list if they exist; else it would vouch for nothing by
# listing little.
CORE_FILES = {
    "toolkit": (
        "version.json",
        "version.txt",
        "bin/nvcc",
        "bin/nvcc.profile",
        "bin/ptxas",
        "nvvm/bin/cicc",
        "include/cuda.h",
        "include/cuda_runtime_api.h",
    ),
    "cudnn": (),
    "stack": (
        "pyvenv.cfg",
        "bin/python",
        "bin/activate",
        "lib/python3*/site-packages/_gpufleet_binding.*",
    ),
}


def unlisted(host, receipt, listed):
    """Files that a receipt should list, and neither it nor another one does.

    Of a toolkit also every library of CUDA's in its directories: whatever its origin, the linker
    and programs take it for the toolkit's. NCCL is no part of it, and often put there by hand.
    """
    kind, top = receipt["kind"], host.realpath(receipt["path"])
    names = [
        host.realpath(os.path.dirname(name)) + "/" + os.path.basename(name)
        for core in CORE_FILES.get(kind, ())
        for name in host.glob(glob.escape(top) + "/" + core)
    ]
    directory = library_directory(host, top) if kind in ("toolkit", "cudnn") else None
    if directory:
        for location, _, files in os.walk(host.path(host.realpath(directory))):
            names += [
                host.name(os.path.join(location, name))
                for name in files
                if CUDA_FILE.match(name)
                and not name.startswith("libnccl")
                and ("cudnn" in name) == (kind == "cudnn")
            ]
    known = listed[kind] if kind == "stack" else listed["toolkit"] | listed["cudnn"]
    known = {path.replace(receipt["path"], top, 1) for path in known}
    if kind == "stack" and isinstance(receipt.get("packages"), dict):
        for path in records_of(host.path(top), receipt["packages"]):
            # A receipt of this release lists the records themselves.
            if host.name(path) in known:
                continue
            if not os.path.exists(path):
                names.append(host.name(path) + " (it is not there)")
            elif os.access(path, os.R_OK) and not read_record(path, sized=False):
                names.append(host.name(path) + " (it lists no file)")
        if host["mode"] == "full":
            names += unrecorded(host, top, receipt["packages"])
    return sorted({name for name in names if name not in known})


def unrecorded(host, venv, packages):
    """Code that no package's record lists: in the directories of these packages, or beside one of
    their modules under its name, which Python would take for it."""
    found, records, own, modules = [], {}, set(), {}
    for name in host.glob(glob.escape(venv) + "/lib/python3*/site-packages/*.dist-info/RECORD"):
        site = os.path.dirname(os.path.dirname(name))
        package = os.path.basename(os.path.dirname(name))[: -len(".dist-info")].rpartition("-")[0]
        listed = [
            path
            for path, _, _ in read_record(host.path(name), sized=False)
            if not path.startswith("..")
        ]
        records.setdefault(site, set()).update(listed)
        if normal_name(package) in packages:
            own |= {site + "/" + path.partition("/")[0] for path in listed if "/" in path}
            modules.setdefault(site, set()).update(
                path.partition("/")[0].partition(".")[0]
                for path in listed
                if path.endswith((".py", ".so"))
            )
    for site, known in modules.items():
        for name in sorted(os.listdir(host.path(site))):
            path = name if name.endswith((".py", ".so")) else name + "/__init__.py"
            if (
                name.partition(".")[0] in known
                and path not in records[site]
                and site + "/" + name not in own
                and host.exists(site + "/" + path)
            ):
                found.append(site + "/" + path)
    for top in sorted(own):
        site = os.path.dirname(top)
        for location, _, files in os.walk(host.path(top)):
            below = host.name(location)[len(site) + 1 :]
            found += [
                site + "/" + below + "/" + name
                for name in files
                if name.endswith((".py", ".so")) and below + "/" + name not in records[site]
            ]
    return found


def text_digests(host):
    """The sha256 of the files at the paths of small files, whatever their origin, by path."""
    names = sorted(name for location in TEXT_LOCATIONS for name in host.glob(location))
    return {
        name: sha256_of(host.path(name)) if os.path.isfile(host.path(name)) else ""
        for name in names
    }
