"""The dynamic linker: directories are registered, the cache is right, no other libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpufleet.components.base import subjects
from gpufleet.components.base.registry import INSPECT, Evidence, Finding, check, shortened
from gpufleet.components.base.remedies import (
    Component,
    cudnn_in,
    person,
    provision,
    then,
    toolkit_at,
)
from gpufleet.components.base.sections import Sections
from gpufleet.documents.plan import Plan
from gpufleet.documents.sections.cuda import CachedLibrary, Library
from gpufleet.documents.text import quoted
from gpufleet.frameworks import is_in_no_toolkit


def nothing_registered(plan: Plan) -> str | None:
    """The skip reason where no planned toolkit is registered with the linker."""
    return (
        None
        if plan["linker"]["directories"]
        else ("gpu_toolkits and gpu_stacks: no toolkit is registered with the linker")
    )


def _linker(plan: Plan) -> Component:
    return Component("linker", plan["linker"]["file"])


def _owners(plan: Plan, path: str) -> tuple[Component, ...]:
    """The toolkit in whose directory a path is, and its cuDNN."""
    homes = [row["path"] for row in plan["toolkits"] if path.startswith(f"{row['path']}/")]
    return tuple(
        part for home in homes for part in (*cudnn_in(plan, home), *toolkit_at(plan, home))
    )


@check("linker.registered", reads=("linker",), skip_reason=nothing_registered)
def registered(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """gpufleet's file in ld.so.conf.d lists the planned directories, in order."""
    wanted = plan["linker"]
    files = {entry["path"]: entry["directories"] for entry in observed.data["linker"]["files"]}
    if wanted["file"] not in files:
        yield Finding(
            f"{wanted['file']} is missing, or /etc/ld.so.conf does not include it",
            provision(plan, _linker(plan)),
        )
    elif files[wanted["file"]] != wanted["directories"]:
        yield Finding(
            f"{wanted['file']} lists {', '.join(files[wanted['file']]) or 'nothing'} instead of"
            f" {', '.join(wanted['directories'])}",
            provision(plan, _linker(plan)),
        )


def expected(plan: Plan, observed: Sections) -> dict[str, str]:
    """The path of the toolkit that must provide a library, by SONAME; registered toolkits only."""
    paths = {toolkit["path"] for toolkit in plan["toolkits"] if toolkit["registered"]}
    wanted = {
        soname: stack["toolkit_path"]
        for stack in plan["stacks"]
        if stack["cuda_source"] == "toolkit" and stack["toolkit_path"] in paths
        for soname in stack["sonames"]
        if not is_in_no_toolkit(soname)
    }
    for tree in observed.data["cudnn"]["trees"]:
        if tree["toolkit"] in paths:
            wanted.update(
                {
                    library["soname"]: tree["toolkit"]
                    for library in tree["libraries"]
                    if library["soname"]
                }
            )
    wanted.update(
        {
            entry["soname"]: entry["toolkit_path"]
            for entry in plan["cudnn"]
            if entry["toolkit_path"] in paths
        }
    )
    return wanted


def _after_next_ldconfig(
    offered: list[Library],
    wanted: dict[str, str],
    now: dict[str, CachedLibrary],
    is_foreign: Callable[[str, str], bool],
) -> Iterator[Finding]:
    """Libraries that the next ldconfig resolves elsewhere, although the cache is still right."""
    found: dict[tuple[str, str], list[str]] = {}
    for entry in offered:
        toolkit = wanted.get(entry["soname"])
        here = now.get(entry["soname"])
        if (
            toolkit
            and here
            and is_foreign(entry["realpath"], toolkit)
            and not is_foreign(here["realpath"], toolkit)
        ):
            directory = entry["path"].rpartition("/")[0]
            found.setdefault((directory, toolkit), []).append(entry["soname"])
    for (directory, toolkit), sonames in found.items():
        yield Finding(
            f"{directory} also holds {shortened(sonames)}, and is registered before {toolkit}: the"
            " next ldconfig makes the linker load those",
            f"on the host: remove {quoted(directory)} from /etc/ld.so.conf.d, run ldconfig",
        )


def _drivers_of_toolkits(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Each libcuda.so.1 that belongs to a toolkit, and that a program may get for the driver's."""
    homes = {
        home
        for tree in observed.data["toolkits"]["trees"]
        for home in (tree["path"], tree["realpath"])
        if home
    } | {toolkit["path"] for toolkit in plan["toolkits"]}
    # Where GPUs are, a compatibility library may be meant: driver.cuda judges whether it works.
    wanted = bool(plan["expect"] and plan["expect"]["count"])
    inside = tuple(f"{home}/" for home in homes)
    for entry in observed.data["linker"].get("drivers") or []:
        path = entry["path"]
        directory = path.rpartition("/")[0]
        steps = {*directory.split("/"), *entry["realpath"].split("/")}
        is_stub = "stubs" in steps
        is_compat = "compat" in steps and (
            path.startswith(inside) or entry["realpath"].startswith(inside)
        )
        if not is_stub and not is_compat:
            continue
        if wanted and not is_stub:
            yield Evidence(f"{path}: a toolkit's compatibility library, judged by driver.cuda")
            continue
        what = (
            "a stub, which is no working driver"
            if is_stub
            else "a compatibility library, which no GPU here needs"
        )
        yield Finding(
            f"The linker may load {path} as the driver: it is {what}; where this host or its image"
            " gets a GPU, programs fail",
            f"on the host: remove {quoted(directory)} from /etc/ld.so.conf.d, run ldconfig",
        )


@check("linker.cache", reads=("linker", "cudnn", "toolkits"), skip_reason=nothing_registered)
def cache(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """The linker cache resolves each library of a registered toolkit to that toolkit."""
    if observed.data["linker"]["cache_error"]:
        yield Finding(
            f"{observed.data['linker']['cache_error']}: programs find no libraries through it",
            provision(plan, _linker(plan), note="or on the host, as root: ldconfig"),
        )
        return
    entries = observed.data["linker"]["cache"]
    ours = tuple(f"{path}/" for path in plan["linker"]["directories"])
    first: dict[str, CachedLibrary] = {}
    for entry in entries:
        first.setdefault(entry["soname"], entry)
        if not entry["exists"] and entry["path"].startswith(ours):
            yield Finding(
                f"The linker cache lists {entry['soname']} as {entry['path']}, which does not"
                " exist",
                provision(
                    plan,
                    _linker(plan),
                    *_owners(plan, entry["path"]),
                    note="or, once the file is back, on the host: ldconfig",
                ),
                about=tuple(
                    subjects.library(toolkit["path"], entry["soname"])
                    for toolkit in plan["toolkits"]
                    if entry["path"].startswith(f"{toolkit['path']}/")
                ),
            )
    wanted = expected(plan, observed)
    real = {tree["path"]: tree["realpath"] for tree in observed.data["toolkits"]["trees"]}

    def is_foreign(path: str, toolkit: str) -> bool:
        return not path.startswith((f"{toolkit}/", f"{real.get(toolkit, toolkit)}/"))

    yield from _after_next_ldconfig(observed.data["linker"]["offered"], wanted, first, is_foreign)
    for toolkit in dict.fromkeys(wanted.values()):
        unknown = [name for name, path in wanted.items() if path == toolkit and name not in first]
        if unknown:
            yield Finding(
                f"The linker cache does not list {shortened(unknown)} of {toolkit}",
                provision(
                    plan, _linker(plan), *toolkit_at(plan, toolkit), note="or on the host: ldconfig"
                ),
                about=tuple(subjects.library(toolkit, name) for name in unknown),
            )
    for soname, toolkit in wanted.items():
        cached = first.get(soname)
        if cached is None:
            continue
        if cached["exists"] and is_foreign(cached["realpath"], toolkit):
            yield Finding(
                f"The linker loads {soname} from {cached['path']}, not from {toolkit}",
                then(
                    person(
                        "on the host: remove that directory from /etc/ld.so.conf.d, run ldconfig"
                    ),
                    provision(plan, _linker(plan)),
                ),
            )
        elif not cached["exists"] and not cached["path"].startswith(ours):
            yield Finding(
                f"The linker cache lists {soname} first as {cached['path']}, which does not exist",
                "on the host: ldconfig",
            )
    yield from _drivers_of_toolkits(plan, observed)
    yield Evidence(f"{len(entries)} entries of CUDA and cuDNN")


@check(
    "linker.providers",
    reads=("linker", "cudnn", "toolkits"),
    repair=INSPECT,
    severity="major",
    skip_reason=nothing_registered,
)
def providers(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """No other directory that the linker searches provides a planned toolkit's libraries.

    The linker may prefer the right one now. Another order, a package or another program's
    directory can change that.
    """
    wanted = {soname for row in (*plan["toolkits"], *plan["stacks"]) for soname in row["sonames"]}
    wanted |= expected(plan, observed).keys()
    homes = [row["path"] for row in plan["toolkits"]]
    homes += [
        tree["realpath"] for tree in observed.data["toolkits"]["trees"] if tree["path"] in homes
    ]
    # The library that wins is left to linker.cache.
    first: dict[str, str] = {}
    for entry in (*observed.data["linker"]["cache"], *observed.data["linker"]["offered"]):
        first.setdefault(entry["soname"], entry["realpath"])
    winning = {
        *first.values(),
        *(entry["realpath"] for entry in observed.data["linker"]["offered"]),
    }
    others: dict[str, list[str]] = {}
    for entry in observed.data["linker"]["providers"]:
        if (
            entry["soname"] in wanted
            and entry["realpath"] not in winning
            and not entry["realpath"].startswith(tuple(f"{home}/" for home in homes))
        ):
            others.setdefault(entry["path"].rpartition("/")[0], []).append(entry["soname"])
    for directory, sonames in others.items():
        yield Finding(
            f"{directory} also provides {shortened(sorted(sonames))} of the planned toolkits",
            f"on the host: remove the package that installed it (dpkg -S, rpm -qf), move the files"
            f" away, or remove {quoted(directory)} from /etc/ld.so.conf.d; then ldconfig",
            "\n".join(sorted(sonames)),
        )
    yield Evidence(
        f"{len(observed.data['linker']['providers'])} libraries in the linker's directories"
    )
