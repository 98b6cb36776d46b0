"""A release of a framework as a row: what its wheel says, in the shape of the release before it.

A wheel names its CUDA and cuDNN, the libraries that it opens, its code for GPUs and its
requirements. How a framework loads CUDA, and what no wheel says, is as in the release before; the
row's `taken_over` lists these keys. A release for a new major version of CUDA is refused: its first
row needs a person.
"""

from __future__ import annotations

import copy
import re
import zipfile
from email.parser import HeaderParser
from typing import Any

from packaging.requirements import Requirement

from gpufleet.catalog import device_code, versions
from gpufleet.frameworks import DEFAULT, FRAMEWORKS, Framework, FrameworkId

from . import compare, index, measurement, other_wheels, remote
from .errors import ContradictionError, MeasureError
from .tables import Data, Row

# Keys that a release has from the one before it.
TAKEN_OVER = (
    "distribution",
    "distribution_with_cuda_wheels",
    "linkage",
    "cuda_driver_soname",
    "sonames_optional",
    "sonames_optional_note",
    "name",
)
REMEDY = "Write its row in src/gpufleet/catalog/data, with sources."


def add_release(data: Data, requirement: str, address: str, today: str) -> list[str]:
    """Add a release on the index, given as `tensorflow==2.22.0`; what was done."""
    wanted = Requirement(requirement)
    version = str(wanted.specifier).removeprefix("==")
    about = _framework(wanted.name, requirement)
    framework = about.id
    rows = data.rows(framework)
    known = next((row for row in rows if row["version"] == version), None)
    if known is not None:
        done = _compare(framework, version, address)
        return [*done, *_other_machines(data, about, known, address=address, today=today)]
    older = [
        row
        for row in rows
        if not row.get("unavailable") and versions.key(row["version"]) < versions.key(version)
    ]
    if not older:
        raise ContradictionError("The catalog has no older release of it.", requirement, REMEDY)
    before = max(older, key=lambda row: versions.key(row["version"]))
    row = _row(data, framework, version, before=before, address=address, today=today)
    row["variants"] = [
        _row(
            data,
            framework,
            version,
            before={**before, **variant},
            address=address,
            today=today,
        )
        for variant in before.get("variants", ())
        if about.cuda_plugin
    ]
    if not about.several_builds:
        del row["variants"]
    elsewhere = _other_machines(data, about, row, address=address, today=today)
    for variant in row.get("variants", ()):
        del variant["version"], variant["distribution"]
    rows.append(row)
    title = about.title
    done = [f"{title} {version}: new; as {before['version']}: {', '.join(row['taken_over'])}"]
    if about.own_index:
        done.append(f"{title} {version}: variants for another CUDA are not on the index: none")
    return [*done, *elsewhere, f"try it: gpufleet catalog locks --{framework} {version}"]


def _other_machines(
    data: Data, about: Framework, row: Row, *, address: str, today: str
) -> list[str]:
    """Add to a row, and to each of its plugins, what other machines have; a line for each."""
    done: list[str] = []
    if row.get("unavailable"):
        return done
    for own in (row, *(row.get("variants", ()) if about.cuda_plugin else ())):
        whole = {**row, **own}
        where = " ".join([about.title, row["version"], *([] if own is row else [own["name"]])])
        for arch in other_wheels.missing(about, own):
            try:
                toolkit = _toolkit(data, whole["cuda_version"], where)
                known = _known(whole, toolkit)
                found = other_wheels.part(
                    about, whole, arch, known=known, address=address, today=today
                )
            except MeasureError as error:
                done.append(f"{where} for {arch}: nothing added: {error}")
                continue
            own[arch] = found
            done.append(f"{where} for {arch}: {other_wheels.described(found)}")
    return done


def _framework(distribution: str, requirement: str) -> Framework:
    for framework in FRAMEWORKS.values():
        if distribution in framework.distributions:
            return framework
    packages = (each.distributions[0] for each in FRAMEWORKS.values())
    raise ContradictionError(
        f"{distribution} is no package of a framework of the catalog.",
        requirement,
        f"Give one such as {DEFAULT.requirement}; the packages are {', '.join(packages)}.",
    )


def _compare(framework: FrameworkId, version: str, address: str) -> list[str]:
    found = measurement.measure(framework, version, address)
    if "absent" in found:
        raise MeasureError(found["absent"])
    if differences := compare.differences(compare.expected(framework, version), found):
        raise ContradictionError(
            "; ".join(differences) + ".",
            f"{FRAMEWORKS[framework].title} {version}",
            "Correct the row in src/gpufleet/catalog/data, with the wheel as its source.",
        )
    return []


def _row(
    data: Data, framework: FrameworkId, version: str, *, before: Row, address: str, today: str
) -> Row:
    """The row of a release, or of one plugin."""
    plugin = before.get("plugin", "").partition("==")[0]
    project = plugin or before["distribution"]
    wheels = [each for each in measurement.listed(project, address) if str(each.version) == version]
    if not wheels:
        raise MeasureError(f"{project} {version} is not on the index")
    chosen = wheels[-1]
    found = measurement.read(framework, chosen, wheels)
    size, metadata = _whole(chosen)
    # A plugin does not say its CUDA.
    cuda = found["cuda"] or before["cuda_version"]
    cudnn = found["cudnn"] or before.get("cudnn_version") or str(before["cudnn_major"])
    where = f"{project} {version}"
    if versions.major(cuda) != versions.major(before["cuda_version"]):
        raise ContradictionError(
            f"It is the first for CUDA {versions.major(cuda)}: which libraries it loads is not"
            f" in the release before it ({before['version']}).",
            where,
            REMEDY,
        )
    if None in (found["sass"], found["ptx"]):
        raise MeasureError(f"{chosen.name} does not say for which GPUs it has code")
    toolkit = _toolkit(data, cuda, where)
    taken = [key for key in TAKEN_OVER if key in before]
    if found["cuda"] is None:
        taken += ["cuda_version", "cudnn_version"]
    taken.append("requirements")
    cudnn_pin = next((pin for pin in found["pins"] or [] if pin.startswith("nvidia-cudnn")), None)
    code = _containers(found)
    native, jit = device_code.split(code, _known(before, toolkit))
    wheel: Row = {"file": chosen.name, "size_bytes": size, "sha256": chosen.sha256}
    if plugin:
        wheel = {"plugin": wheel, "pjrt": _pjrt(plugin, version, address)}
    return {
        "version": version,
        **copy.deepcopy({key: before[key] for key in taken}),
        **({"plugin": f"{plugin}=={version}"} if plugin else {}),
        "python": found["python"],
        "wheel_platform_tag": found["platform"],
        "cuda_version": cuda,
        "cudnn_version": cudnn if "." in cudnn else None,
        "cudnn_docs": None,
        "cudnn_pip_pin": cudnn_pin,
        "cudnn_major": versions.major(cudnn),
        "measured": True,
        "taken_over": taken,
        "sonames_required": _sonames(found, before),
        "sonames_optional": list(before["sonames_optional"]),
        "sass_archs": found["sass"],
        "ptx_archs": found["ptx"],
        "min_compute_capability": found["sass"][0],
        "cc_native": native,
        "cc_via_ptx_jit": jit,
        "ptx_language": device_code.language(code),
        "min_driver": {
            "exact": toolkit["driver"]["minimum"],
            "minor_compat": toolkit["driver"]["minimum_minor_compat"],
            "toolkit": toolkit["version"],
        },
        "declared_requirements": _declared(metadata),
        "declared_requirements_source": "wheel METADATA",
        "cuda_pins": found["pins"] or [],
        "ceilings_needed_today": {"by_python": {}, "notes": []},
        "wheel": wheel,
        "source": [f"wheel {chosen.name} on the package index, read on {today}"],
        "requirements": {
            where: [text.replace(f"=={before['version']}", f"=={version}") for text in requirements]
            for where, requirements in before["requirements"].items()
        },
    }


def _whole(chosen: index.File) -> tuple[int, str]:
    """A wheel's size in bytes and its metadata."""
    with remote.remote(chosen.url) as stream, zipfile.ZipFile(stream) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        text = archive.read(name).decode()
        return stream.seek(0, 2), text


def _pjrt(plugin: str, version: str, address: str) -> Row:
    """The wheel with XLA that a plugin of JAX needs."""
    project = plugin.replace("plugin", "pjrt")
    for each in measurement.listed(project, address):
        if str(each.version) == version:
            return {"file": each.name, "size_bytes": _whole(each)[0], "sha256": each.sha256}
    raise MeasureError(f"{project} {version} is not on the index")


def _declared(metadata: str) -> list[str]:
    lines = HeaderParser().parsestr(metadata).get_all("Requires-Dist") or []
    return [re.sub(r"\s+", "", line) for line in lines if ";" not in line]


def _toolkit(data: Data, cuda: str, where: str) -> Row:
    """The oldest toolkit of a build's CUDA, X.Y or X.Y.Z."""
    for row in data.rows("toolkits"):
        if versions.has_prefix(row["version"], cuda):
            return row
    raise ContradictionError(
        f"It was built with CUDA {cuda}, which is not in the catalog.",
        where,
        "Add that toolkit first: gpufleet catalog add redistrib_X.Y.Z.json.",
    )


def _sonames(found: Row, before: Row) -> list[str]:
    """The libraries that the wheel names, and those of the release before that it cannot name."""
    optional = set(before["sonames_optional"])
    named = [name for name in (*found["linked"], *found["opened"]) if name not in optional]
    versioned = {name.partition(".so")[0]: name for name in named if not name.endswith(".so")}
    kept = [versioned.pop(name.partition(".so")[0], name) for name in before["sonames_required"]]
    return [*kept, *versioned.values()]


def _known(before: Row, toolkit: Row) -> list[str]:
    """Every compute capability that the release before or the toolkit knows, in order."""
    targets = toolkit["compute_capability"]["sm_targets"]
    names = {*before["cc_native"], *before["cc_via_ptx_jit"]}
    # CUDA 12's number of what is 11.0 since.
    names |= {f"{target // 10}.{target % 10}" for target in targets} - {"10.1"}
    return sorted(names, key=versions.key)


def _containers(found: Row) -> list[device_code.Container]:
    """A wheel's containers of device code; where they are not read, one with all of its code."""
    if found.get("containers"):
        return [device_code.read(each) for each in found["containers"]]
    return [device_code.Container((*found["sass"],), (*found["ptx"],), ())]


def wheel_requirement(name: str) -> Any:
    """`project==version` of a wheel's file name."""
    project, version, *_ = name.split("-")
    return f"{project.replace('_', '-')}=={version}"
