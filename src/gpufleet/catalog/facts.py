"""The catalog: releases and their requirements, loaded from `catalog/data/` on demand.

Each figure there has its source beside it; `None` means that no source states it. Tests check the
data, and no function here reads a user's input: a malformed file raises KeyError or OSError.
"""

from __future__ import annotations

from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from gpufleet.documents.types import Row
from gpufleet.frameworks import FrameworkId

from . import versions
from .records import Architecture, Archive, Branch, Build, Toolkit

DATA = Path(__file__).parent / "data"
X86_64 = "x86_64"  # the architecture of the catalog's own rows, and of hosts that tell none
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# The figures of a build that differ between the wheels of several architectures.
_OF_WHEEL = (
    "python",
    "wheel_platform_tag",
    "sass_archs",
    "ptx_archs",
    "min_compute_capability",
    "cc_native",
    "cc_via_ptx_jit",
    "ptx_language",
)


@cache
def document(name: str) -> Row:
    """One file of the catalog, such as `toolkits/11.yml`."""
    # Through the package, which also works in a zip archive.
    text = files(__package__).joinpath("data", name).read_text(encoding="utf-8")
    loaded: Row = yaml.load(text, Loader=LOADER)
    return loaded


@cache
def listed(folder: str) -> dict[str, str]:
    """Every version of `toolkits`, `cudnn` or a framework, oldest first, with its file's stem."""
    parts = document(f"{folder}/meta.yml")["parts"]
    return {version: str(part) for part, members in parts.items() for version in members}


def _rows(folder: str, key: str, part: str) -> list[Row]:
    rows: list[Row] = document(f"{folder}/{part}.yml")[key]
    return rows


def build_versions(framework: FrameworkId) -> list[str]:
    """Every release of a framework with a GPU build, oldest first."""
    return list(listed(framework))


@cache
def build(framework: FrameworkId, version: str, arch: str = X86_64) -> Build | None:
    """One GPU build of a framework; None if there is no such release."""
    part = listed(framework).get(version)
    if part is None:
        return None
    rows = _rows(framework, "builds", part)
    row = _measured(framework, next(row for row in rows if row["version"] == version))
    compiled_with = _compiled_with(framework, version)
    return Build(framework, _on(framework, row, row, arch), compiled_with, arch=arch)


@cache
def variants(framework: FrameworkId, version: str, arch: str = X86_64) -> tuple[Build, ...]:
    """The builds of one release, its own first; empty if there is no such release."""
    own, plain = build(framework, version, arch), build(framework, version)
    if own is None or plain is None:
        return ()
    others = (
        Build(
            framework,
            _on(framework, {**plain.row, **row}, row, arch),
            variant=row["name"],
            arch=arch,
        )
        for row in plain.row.get("variants", ())
    )
    return (own, *others)


def build_for(
    framework: FrameworkId, version: str, cuda: str | None, arch: str = X86_64
) -> Build | None:
    """The build of a release for a declared CUDA, else its own; None: no such release."""
    known = variants(framework, version, arch)
    found = (each for each in known if cuda and not cuda.isalpha() and each.is_for(cuda))
    return next(found, known[0] if known else None)


def _on(framework: FrameworkId, row: Row, own: Row, arch: str) -> Row:
    """A build's row for an architecture, with the figures of that one's wheel over those of x86_64.

    `own`: what the catalog has of this build alone, without what a variant takes from its release.
    Where no wheel with CUDA is known, `unavailable` says why.
    """
    if arch == X86_64 or "unavailable" in row:
        return row
    for rule in rules("no_gpu_wheels"):
        if rule["framework"] == framework and rule["arch"] == arch:
            return {**row, "unavailable": rule["because"]}
    found = own.get(arch)
    if found is None:
        return {**row, "unavailable": f"no source tells what its wheel for {arch} has"}
    if not found["gpu"]:
        listed_there = found.get("on_pypi") or found.get("plugin_on_pypi")
        why = "has no CUDA" if listed_there else "was not published"
        return {**row, "unavailable": f"its wheel for {arch} {why}"}
    # The newest glibc that its libraries ask for was read in the other wheel.
    figures = {key: found[key] for key in _OF_WHEEL if key in found}
    tags = ", ".join(found.get("wheel_platform_tag", []))
    # The rest is taken from the other wheel, whose sources follow.
    source = [*found.get("source", [f"the wheel for {tags}"]), *row["source"]]
    return {**row, "glibc_symbols_max": None, **figures, "source": source}


def _measured(framework: FrameworkId, row: Row) -> Row:
    """A build with the measured figures of its wheel, if a rule has them."""
    for rule in rules("builds_measured_otherwise"):
        if rule["framework"] == framework and row["version"] in rule["versions"]:
            explained = document("rules.yml")["sources"]
            added = [explained[key] for key in rule["source"]]
            return {**row, **rule["figures"], "source": [*row["source"], *added]}
    return row


def _compiled_with(framework: FrameworkId, version: str) -> str | None:
    """The cuDNN that a build was compiled with, if a rule is more precise than the docs."""
    for rule in rules("cudnn_compiled_with"):
        if rule["framework"] == framework and versions.within(version, rule):
            return str(rule["cudnn"])
    return None


@cache
def builds(framework: FrameworkId, arch: str = X86_64) -> tuple[Build, ...]:
    """Each release's own GPU build that pip can install, oldest first: reads all of their files."""
    found = (build(framework, version, arch) for version in build_versions(framework))
    return tuple(each for each in found if each is not None and not each.unavailable)


@cache
def releases(framework: FrameworkId, arch: str = X86_64) -> tuple[Build, ...]:
    """The builds that a remedy may name: no pre-release is among them."""
    known = builds(framework, arch)
    return tuple(each for each in known if not versions.key(each.version).is_prerelease)


@cache
def wheel_bytes(framework: FrameworkId, version: str) -> int | None:
    """The size of a release's wheel in bytes, or of the wheel its facts were inferred from."""
    found = build(framework, version)
    if found is None:
        return None
    if found.wheels:
        return sum(int(row["size_bytes"]) for row in found.wheels)
    for row in _rows(framework, "builds", listed(framework)[version]):
        if row.get("wheel", {}).get("file") == found.row.get("inferred_from"):
            return int(row["wheel"]["size_bytes"])
    return None


def toolkit_versions() -> list[str]:
    """Every CUDA toolkit release, oldest first."""
    return list(listed("toolkits"))


@cache
def machines() -> tuple[str, ...]:
    """The machine architectures that gpufleet installs on, as `uname -m` prints them."""
    return tuple(document("platforms.yml")["platforms"])


def files_of(arch: str) -> str:
    """The key of an architecture's files in the tables of toolkits and cuDNN."""
    return str(document("platforms.yml")["platforms"][arch]["files"])


@cache
def toolkit(version: str, arch: str = X86_64) -> Toolkit | None:
    """One CUDA toolkit release, with the runfile of an architecture; None: no such release."""
    part = listed("toolkits").get(version)
    if part is None:
        return None
    rows = _rows("toolkits", "toolkits", part)
    return next(Toolkit(row, files_of(arch)) for row in rows if row["version"] == version)


def toolkits(arch: str = X86_64) -> list[Toolkit]:
    """Every CUDA toolkit release, oldest first: reads all of their files."""
    known = (toolkit(version, arch) for version in listed("toolkits"))
    return [found for found in known if found is not None]


def toolkits_matching(prefix: str, arch: str = X86_64) -> list[Toolkit]:
    """The toolkits whose version has the prefix (`11.8`, `11.8.0`), oldest first."""
    known = (toolkit(version, arch) for version in _matching(prefix))
    return [found for found in known if found is not None]


@lru_cache(maxsize=1024)
def _matching(prefix: str) -> tuple[str, ...]:
    return tuple(each for each in listed("toolkits") if versions.has_prefix(each, prefix))


@cache
def archives(major: int, arch: str = X86_64) -> tuple[Archive, ...]:
    """The cuDNN archives of one major version for an architecture, oldest first."""
    if str(major) not in listed("cudnn").values():
        return ()
    rows = _rows("cudnn", "archives", str(major))
    return tuple(Archive(row) for row in rows if row["platform"] == files_of(arch))


@cache
def archives_for(major: int, cuda: str, arch: str = X86_64) -> tuple[Archive, ...]:
    """The archives of a major release of cuDNN that were built for toolkit X.Y."""
    return tuple(each for each in archives(major, arch) if each.supports(cuda))


@cache
def branches() -> dict[str, Branch]:
    """The driver branches by number, oldest first."""
    return {row["branch"]: Branch(row) for row in document("drivers.yml")["branches"]}


@cache
def architectures() -> tuple[Architecture, ...]:
    """The GPU architectures, oldest first."""
    return tuple(Architecture(**row) for row in document("drivers.yml")["architectures"])


def rules(name: str) -> Any:
    """One section of the hand-written rules."""
    return document("rules.yml")[name]


def linked_to_driver(framework: FrameworkId, release: str) -> bool:
    """Return whether importing a framework's build requires the driver's library."""
    return any(
        rule["framework"] == framework and versions.within(release, rule)
        for rule in rules("driver_library_linked")
    )


def cudnn_least(framework: FrameworkId, release: str, cuda: str) -> str | None:
    """The least cuDNN that a framework accepts on toolkit X.Y, where a rule has one."""
    for rule in rules("cudnn_least"):
        if (
            rule["framework"] == framework
            and versions.within(release, rule)
            and versions.key(cuda) >= versions.key(rule["cuda"])
        ):
            return str(rule["cudnn"])
    return None


def cudnn_instead(framework: FrameworkId, release: str, cudnn: str) -> str | None:
    """The first cuDNN after one that a framework refuses; None: it does not refuse this one."""
    for rule in rules("cudnn_refused"):
        if (
            rule["framework"] == framework
            and versions.within(release, rule)
            and versions.has_prefix(cudnn, rule["cudnn"])
        ):
            return str(rule["instead"])
    return None


def cuda_of_ptx(language: str | None) -> str | None:
    """The first CUDA whose driver compiles a version of the PTX language; None: not known."""
    found: str | None = rules("ptx_languages")["versions"].get(language)
    return found


def cpu_features(framework: FrameworkId, version: str) -> list[str]:
    """The processor's features that a release's x86-64 wheels use without asking."""
    return [
        name
        for rule in rules("cpu_features")
        if rule["framework"] == framework and versions.within(version, rule)
        for name in rule["needs"]
    ]


def toolkit_sonames(cuda: str) -> tuple[str, ...]:
    """The sonames of the libraries of toolkit X.Y; empty if no rule covers it."""
    for rule in rules("toolkit_sonames"):
        if versions.within(cuda, rule):
            return tuple(name.format(short=cuda) for name in rule["names"])
    return ()


def sources(folder: str, keys: list[str]) -> list[str]:
    """Source keys with their explanation, each `key: explanation`; unexplained keys unchanged."""
    explained = document(f"{folder}/meta.yml")["meta"].get("sources", {})
    return [f"{each}: {explained[each]}" if each in explained else each for each in keys]
