"""The driver's packages: complete, of one version, the planned one, and held."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from gpufleet.catalog import versions
from gpufleet.components.base.driver_state import (
    PACKAGED,
    RECEIPT,
    Fault,
    core,
    installed,
    listed,
    package_rows,
    part,
    provision,
    texts,
    upstream,
)
from gpufleet.components.base.host import Host, mapping, mappings
from gpufleet.documents.plan import Plan
from gpufleet.documents.text import quoted
from gpufleet.documents.types import Row

PIN = "/etc/apt/preferences.d/gpufleet-driver"

# Packages whose scripts build the driver's modules, and stay half-configured where that fails.
_BUILDERS = re.compile(r"(dkms|linux-(image|headers|modules)-.*|kernel(-core|-devel)?)$")
# A version's priority from which apt keeps it whatever a repository has.
_ABOVE_ALL = 1000
# Definitions of repositories: gpufleet's, and those that a run removes (vars/main.yml).
_OWN = re.compile(r"/gpufleet-[^/]*$")
_NVIDIA = re.compile(r"/compute/cuda/repos/")
# The repositories of NVIDIA that have drivers: not the container toolkit's, nor another tool's.
_OTHER_REPOSITORY = re.compile(r"container|docker|devtools|nsight", re.IGNORECASE)


def packages(plan: Plan, host: Host) -> Iterator[Fault]:
    """The driver's packages are installed completely, in one version, the planned one."""
    driver, there, have = mapping(plan["driver"]), core(host), installed(plan, host)
    again, manager = provision(plan), part(host, "packages").get("manager")
    for row in mappings(part(host, "packages").get("broken")):
        name, status = str(row.get("name")), row.get("status")
        if name in package_rows(host) or _BUILDERS.match(name):
            yield Fault(
                f"package {name} is {status}: {manager} did not finish installing it",
                f"{again} (on the host: dpkg --configure -a shows the reason)",
            )
    if driver["source"] not in PACKAGED:
        if there:
            yield Fault(
                f"packages of a driver ({listed(there)}) are installed beside the runfile's: each"
                " overwrites the other's files",
                "on the host: remove them (apt-get purge, dnf remove), or set gpu_driver: {source:"
                " distro}",
                "refuse",
            )
    elif not there and part(host, "driver").get("of_container"):
        yield Fault(
            "the driver is a container's, below /run/nvidia/driver: packages would be a second one",
            "set gpu_driver: {source: preinstalled}; or take the container away first",
            "refuse",
        )
        return
    elif not there and host.driver_library:
        yield Fault(
            f"driver {host.driver_library} (libcuda.so) belongs to no package: a"
            " runfile installed it, and packages would mix with it",
            "on the host: nvidia-uninstall, or set gpu_driver: {source: preinstalled}",
            "refuse",
        )
        return
    elif not there:
        yield Fault("no package of the driver is installed", again, "install")
        return
    if len(set(there.values())) > 1:
        yield Fault(f"the driver's packages are of several versions: {_by_version(there)}", again)
    if have is None or host.driver_library is None:
        what = "the driver" if have is None else "its user-space library, libcuda.so,"
        yield Fault(f"{what} is not installed", again, "install" if have is None else "repair")
    receipt = host.receipt(*RECEIPT) or {}
    if have is not None:
        yield from _other_version(plan, receipt, have)
    ours = {name: own for name, own in mapping(receipt.get("packages")).items() if upstream(own)}
    now = {name: _without_epoch(row.get("version")) for name, row in package_rows(host).items()}
    if gone := set(ours) - set(now):
        yield Fault(f"packages installed with the driver are missing: {listed(gone)}", again)
    changed = {
        f"{name} {now[name]} (was {own})"
        for name, own in ours.items()
        if now.get(name) not in {None, _without_epoch(own)}
    }
    if changed:
        yield Fault(f"packages were changed by somebody else: {listed(changed, 2)}", again)
    yield from _repositories(plan, host)


def _other_version(plan: Plan, receipt: Row, have: str) -> Iterator[Fault]:
    driver, again = mapping(plan["driver"]), provision(plan)
    if (wanted := driver.get("version")) and have != wanted:
        yield Fault(f"driver {have} is installed, {wanted} is planned", again, "upgrade")
    elif driver.get("branch") and not versions.has_prefix(have, str(driver["branch"])):
        cause = f"driver {have} is installed, branch {driver['branch']} is planned"
        yield Fault(cause, again, "upgrade")
    elif driver["source"] not in PACKAGED and str(receipt.get("version") or have) != have:
        yield Fault(
            f"driver {receipt['version']} was installed by gpufleet, and {have} is installed now:"
            " somebody else changed it",
            again,
        )
    for key in ("source", "branch", "module"):
        wanted = str(driver.get(key))
        if driver.get(key) and str(receipt.get(key) or wanted) != wanted:
            yield Fault(
                f"the driver was installed with {key} {receipt[key]}, planned is {wanted}",
                again,
                "upgrade",
            )


def _without_epoch(version: Any) -> str:
    """Some tools print a package's epoch, some do not."""
    return re.sub(r"^\d+:", "", str(version))


def _repositories(plan: Plan, host: Host) -> Iterator[Fault]:
    """Two definitions of one repository with two keys stop apt; two repositories mix drivers."""
    sources = [
        row
        for row in mappings(part(host, "packages").get("sources"))
        if not _OTHER_REPOSITORY.search(f"{row.get('path')} {row.get('uris')}")
    ]
    repositories = _by_repository(sources)
    for repository, rows in repositories.items():
        if _keys_differ(rows):
            cause = f"the repository {repository} is defined with different keys, in {_paths(rows)}"
            yield _unwanted(plan, rows, f"{cause}: the package manager refuses to read either")
    installable = {
        name: packaged
        for name, rows in repositories.items()
        if (packaged := [row for row in rows if not row.get("source_only")])
    }
    if len(installable) > 1 and mapping(plan["driver"])["source"] == "nvidia_repo":
        packaged = [row for rows in installable.values() for row in rows]
        cause = f"drivers come from several repositories, of {_paths(packaged)}"
        yield _unwanted(plan, packaged, f"{cause}: packages of both would be mixed")


def _by_repository(sources: list[Row]) -> dict[str, list[Row]]:
    """The definitions of each repository: apt wants one key, be it one of packages or sources."""
    found: dict[str, list[Row]] = {}
    for row in sources:
        for uri in texts(row.get("uris")):
            suites = " ".join(texts(row.get("suites")))
            found.setdefault(f"{uri.rstrip('/')} {suites}", []).append(row)
    return found


def _keys_differ(rows: list[Row]) -> bool:
    return len({str(row.get("signed_by")) for row in rows}) > 1


def repository_conflicts(host: Host) -> dict[str, list[Row]]:
    """The repositories that apt refuses to read, as they have several keys, whoever's they are."""
    rows = mappings(part(host, "packages").get("sources"))
    apt = [row for row in rows if row.get("format") != "repo"]
    return {name: found for name, found in _by_repository(apt).items() if _keys_differ(found)}


def removed_by_run(plan: Plan, rows: list[Row]) -> bool:
    """Return whether the driver's role removes others' entries of a repository, before apt."""
    driver = mapping(plan["driver"])
    theirs = [row for row in rows if not _OWN.search(str(row.get("path")))]
    return (
        bool(driver.get("managed"))
        and driver.get("source") == "nvidia_repo"
        and bool(theirs)
        and all(_NVIDIA.search(uri) for row in theirs for uri in texts(row.get("uris")))
    )


def _paths(sources: list[Row]) -> str:
    return listed({str(row.get("path")) for row in sources})


def _unwanted(plan: Plan, sources: list[Row], cause: str) -> Fault:
    """The fault of a second definition; a run removes it where it is of the same drivers."""
    theirs = [row for row in sources if not _OWN.search(str(row.get("path")))]
    ours = [row for row in sources if row not in theirs]
    own = {uri.rstrip("/") for row in ours for uri in texts(row.get("uris"))}
    left = [
        row
        for row in theirs
        if not any(_NVIDIA.search(uri) or uri.rstrip("/") in own for uri in texts(row.get("uris")))
    ]
    if mapping(plan["driver"])["source"] == "nvidia_repo" and not left:
        return Fault(cause, f"{provision(plan)} (it removes what is not gpufleet's)")
    paths = listed({quoted(str(row.get("path"))) for row in theirs})
    return Fault(cause, f"on the host: remove what does not belong there, of {paths}", "")


def holds(plan: Plan, host: Host) -> Iterator[Fault]:
    """Nothing upgrades the driver by itself: packages are held, pinned, excluded from upgrades."""
    there, again = core(host), provision(plan)
    if mapping(plan["driver"])["source"] not in PACKAGED or not there:
        return
    locking = mapping(part(host, "packages").get("locking"))
    if off := texts(locking.get("switched_off")):
        yield Fault(
            f"dnf ignores version locks, and its next upgrade exchanges the driver: {listed(off)}",
            "on the host: remove that line",
            "refuse",
        )
        return
    if locking.get("plugin") is False:
        yield Fault("no package is held: dnf has no plugin that applies version locks", again)
        return
    recorded = mapping((host.receipt(*RECEIPT) or {}).get("packages"))
    ours = recorded or there
    rows = package_rows(host)
    if loose := [name for name in ours if name in rows and not rows[name].get("held")]:
        yield Fault(
            f"packages are not held, and can be upgraded under the running driver: {listed(loose)}",
            again,
        )
    if part(host, "packages").get("manager") == "dpkg":
        versions = {n: str(recorded.get(n) or rows[n].get("version")) for n in ours if n in rows}
        yield from _pins(plan, host, versions)
    unattended = mapping(part(host, "packages").get("unattended"))
    if unattended.get("installed") and unattended.get("excluded") is False:
        yield Fault("unattended upgrades do not exclude the driver's packages", again)


def _pins(plan: Plan, host: Host, wanted: Mapping[str, str]) -> Iterator[Fault]:
    """apt prefers the versions that were installed together, {package: version}, to all others."""
    pins = mappings(part(host, "packages").get("pins"))
    if PIN not in {str(row.get("path")) for row in pins}:
        yield Fault(f"no pin of the driver's version is in {PIN}", provision(plan))
        return
    loose: dict[str, list[str]] = {}
    for name, version in wanted.items():
        row = _deciding_pin(pins, name, version) or {"path": PIN}
        priority = row.get("priority")
        if not isinstance(priority, int) or priority < _ABOVE_ALL:
            loose.setdefault(str(row.get("path")), []).append(name)
    for path, names in loose.items():
        cause = f"{path} does not keep the installed version of {listed(names)}"
        if path == PIN:
            yield Fault(cause, provision(plan))
        else:
            cause += f", and apt reads it before {PIN}"
            yield Fault(cause, f"on the host: remove that entry of {quoted(path)}", "")


def _deciding_pin(pins: list[Row], name: str, version: str) -> Row | None:
    """The first entry that names a package and its version: apt takes its priority."""
    for row in pins:
        word, _, pattern = str(row.get("pin")).partition(" ")
        # An entry of all packages counts after those that name some.
        named = any(each != "*" and fnmatchcase(name, each) for each in texts(row.get("packages")))
        if named and word == "version" and fnmatchcase(version, pattern):
            return row
    return None


def _by_version(there: Mapping[str, str]) -> str:
    found = sorted(set(there.values()))
    return "; ".join(
        f"{version} ({listed([name for name, own in there.items() if own == version], 2)})"
        for version in found
    )
