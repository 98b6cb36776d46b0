"""The gathered facts of TensorFlow, PyTorch and JAX as builds of one shape. Pure.

A build is a row with what the resolver reads of any framework:

- `requirements`: what pip installs, by where CUDA comes from: `toolkit`, `pip` (nvidia-* wheels) or
  `bundled` (inside of the framework's own wheel); the first is the default. Of a release that the
  package index has no GPU wheel of it is empty, and `unavailable` says why;
- `cuda_version`, `cudnn_version`, `cudnn_major`, `sonames_required`, `sonames_optional`;
- `cuda_pins`: what the release asks for of nvidia-* wheels;
- `min_driver`: `exact` and `minor_compat` as plain versions;
- `ceilings_needed_today`: bounds that its metadata lacks, by Python;
- `variants`: the same release for another CUDA; what a variant does not say is as in the row.

Everything else stays as it was gathered.
"""

from __future__ import annotations

import re
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

from .import_values import clean, floor

Row = dict[str, Any]
Plugins = dict[tuple[str, str], Row]  # by package and version

CURAND_NOTE = (
    "the wheel's version macros name libcurand.so.10, but TensorFlow's own loader does not look "
    "for it from 2.14 on: optional (python -m gpufleet measure: its function to open it is gone)"
)
# The index of a PyTorch variant: previous-versions page of pytorch.org, --extra-index-url.
PYTORCH_INDEX = "https://download.pytorch.org/whl/"
# Read in the wheels 2.0.0 to 3.6.0: runtime/build.py, common/build.py, compiler.py.
TRITON_FIRST_WITHOUT_SETUPTOOLS = Version("3.3")
FIRST_NVJITLINK = 12  # the first CUDA whose cuSPARSE and cuSOLVER ask for nvJitLink
# The first PyTorch with nvidia-* wheels (`nvidia_pins`): every build before has its CUDA inside.
PYTORCH_FIRST_PIP = Version("1.13.0")
# The first whose variants ask for nvidia-* wheels as well: pytorch/pytorch pull requests 114281 and
# 114620 (2023-11, for 2.2.0) build all wheels without CUDA inside.
PYTORCH_FIRST_VARIANT_PIP = Version("2.2.0")
PYTORCH_VARIANT_NOTE = (
    "the wheel of this variant was not read: bound are those of CUDA's libraries that come with it"
)
# The first PyTorch whose variants have a local version (1.2.0+cu92).
PYTORCH_FIRST_LOCAL = Version("1.2.0")
GOOGLE_STORAGE = "https://storage.googleapis.com/jax-releases/jax_cuda_releases.html"
JAX_TABLES = ("jax", "plugins", "jaxlib", "google_storage_jaxlibs")
JAX_FIRST_LOCAL = Version("0.4.30")  # before, the -local extras mean the jaxlib on Google's storage
JAX_FIRST_PLUGIN = {"cuda12": Version("0.4.23"), "cuda13": Version("0.7.2")}
# cuDNN from 9.11 on has no device code for older GPUs (rules.yml, cudnn_needs): where it floats, a
# plugin with code for them keeps to what runs on them.
CUDNN_9_11_LEAST = Version("7.5")
# CUPTI 13.2.86 kills a JAX process without a driver (isolation test J9). cuptiGetVersion, called
# without a driver on 2026-11-23: 13.0.85 and 13.1.115 answer, 13.2.86 dies, 13.3 to 13.5 fail.
JAX_CUPTI = "nvidia-cuda-cupti<13.2"
# The libraries of an nvidia-* wheel, as its RPATH and the plugins' preload lists name them; a
# library is loaded after those that it needs.
LIBRARIES = {
    12: {
        "cuda-runtime": ("libcudart.so.12",), "nvjitlink": ("libnvJitLink.so.12",),
        "cuda-nvrtc": ("libnvrtc.so.12",), "cublas": ("libcublasLt.so.12", "libcublas.so.12"),
        "cufft": ("libcufft.so.11",), "cusparse": ("libcusparse.so.12",),
        "cusolver": ("libcusolver.so.11",), "cudnn": ("libcudnn.so.{cudnn}",),
        "cuda-cupti": ("libcupti.so.12",), "nccl": ("libnccl.so.2",),
        "nvshmem": ("libnvshmem_host.so.3",),
    },
    13: {
        "cuda-runtime": ("libcudart.so.13",), "nvjitlink": ("libnvJitLink.so.13",),
        "cuda-nvrtc": ("libnvrtc.so.13",), "cublas": ("libcublasLt.so.13", "libcublas.so.13"),
        "cufft": ("libcufft.so.12",), "cusparse": ("libcusparse.so.12",),
        "cusolver": ("libcusolver.so.12",), "cudnn": ("libcudnn.so.{cudnn}",),
        "cuda-cupti": ("libcupti.so.13",), "nccl": ("libnccl.so.2",),
        "nvshmem": ("libnvshmem_host.so.3",),
    },
}
ORDER = ("libcudart", "libnvJitLink", "libnvrtc", "libcublasLt", "libcublas", "libcufft",
         "libcurand", "libcusparse", "libcusolver", "libcudnn")
DRIVER_SONAME = "libcuda.so.1"


def tensorflow(facts: Row) -> list[Row]:
    """TensorFlow's releases: optional sonames separate."""
    return [_tensorflow(row) for row in facts["builds"]]


def _tensorflow(row: Row) -> Row:
    row = clean(row)
    driver = row["min_driver"]
    compat = driver.pop("minor_version_compat")
    row["min_driver"] = {
        "exact": floor(driver.pop("exact_for_toolkit")),
        "minor_compat": floor(compat),
        **driver,
    }
    if " in " in compat:
        row["min_driver"]["minor_compat_note"] = compat
    row["sonames_optional"] = []
    if Version(row["version"]) >= Version("2.14.0"):
        optional = [name for name in row["sonames_required"] if name.startswith("libcurand.")]
        row["sonames_required"] = [n for n in row["sonames_required"] if n not in optional]
        row["sonames_optional"] = optional
        row["sonames_optional_note"] = CURAND_NOTE
    if "and_cuda_pins" in row:
        row["cuda_pins"] = row.pop("and_cuda_pins")
    row["requirements"] = {"toolkit": [f"{row['distribution']}=={row['version']}"]}
    if extra := row.get("distribution_with_cuda_wheels"):
        row["requirements"]["pip"] = [f"{extra}=={row['version']}"]
    return row


def pytorch(facts: Row) -> list[Row]:
    """PyTorch's releases: the wheel on PyPI, and its variants for another CUDA."""
    rows = facts["builds"]
    return [_pytorch(row, rows) for row in rows]


def _linked(row: Row, rows: list[Row]) -> Row:
    """The row itself, or, where its GPU library was not read, the nearest release like it: of the
    same CUDA and cuDNN, and with as many of the same nvidia-* packages as there are."""
    if row["sonames_complete"]:
        return row
    own = _projects(row["nvidia_pins"])
    like = [each for each in rows if each["sonames_complete"]
            and (each["cuda_version"], each["cudnn_major"])
            == (row["cuda_version"], row["cudnn_major"])]
    return min(like, key=lambda each: (
        len(own ^ _projects(each["nvidia_pins"])), abs(rows.index(each) - rows.index(row))))


def _projects(pins: list[str]) -> set[str]:
    return {Requirement(pin).name for pin in pins}


def _pytorch(row: Row, rows: list[Row]) -> Row:
    version, linked = row["version"], _linked(row, rows)
    given = {key: row[key] for key in row if key not in {"other_variants", "nvidia_pins"}}
    found: Row = clean(given)
    pins = row["nvidia_pins"]
    if pins and linked is not row:
        found["sonames_inferred_from"] = linked["version"]
    names = _in_wheels(row, linked, row["cuda_version"])
    found |= {
        "cuda_pins": pins,
        "min_driver": _driver(row["min_driver"]),
        # What is inside under a name with a digest cannot be replaced; a plain name can.
        "sonames_required": _ordered(names if pins else [
            name for name in row["bundled_cuda_files"] if re.fullmatch(r"lib\w+\.so\.\d+", name)]),
        "sonames_optional": [],
        "ceilings_needed_today": _numpy(row["python"], row["numpy"]["ceiling"]),
        "requirements": {"pip" if pins else "bundled": [
            f"torch=={version}", *_floating(row.get("nvidia_pins_not_exact", [])),
            *_undeclared(row)]},
        "variants": [_pytorch_variant(row, clean(each), rows) for each in row["other_variants"]],
    }
    return found


def _in_wheels(row: Row, linked: Row, cuda: str) -> list[str]:
    """The libraries of nvidia-* wheels that a build for CUDA X.Y uses: what was read of it, and of
    one like it."""
    names = [*row["sonames_linked"], *linked["sonames_linked"]]
    major = Version(cuda).major
    if any("cupti" in pin for pin in linked["nvidia_pins"]):
        # libtorch_cpu.so, which was not read for `sonames_linked`, is linked to it (gpufleet
        # measure). Up to CUDA 11 its name has X.Y.
        names.append(f"libcupti.so.{major if major >= FIRST_NVJITLINK else cuda}")
    if major >= FIRST_NVJITLINK:
        # cuSPARSE and cuSOLVER need it (isolation test T8, pytorch#138460).
        names.append(f"libnvJitLink.so.{major}")
    return names


def _in_variant(row: Row, cuda: str, cudnn: int | None, rows: list[Row]) -> list[str]:
    """The libraries that a variant may have: those of the nearest release for the same CUDA major
    version, and NVRTC's builtins, which it opens by a name with X.Y.

    `cudnn`: its major version; None, not known: as in that release.
    """
    same = [each for each in rows if each["nvidia_pins"] and each["sonames_complete"]
            and Version(each["cuda_version"]).major == Version(cuda).major]
    if not same:
        return []
    near = min(same, key=lambda each: abs(rows.index(each) - rows.index(row)))
    names = _in_wheels(near, near, cuda)
    own = {f"libcudnn.so.{near['cudnn_major']}": f"libcudnn.so.{cudnn or near['cudnn_major']}"}
    return _ordered([*(own.get(name, name) for name in names), f"libnvrtc-builtins.so.{cuda}"])


def _undeclared(row: Row) -> list[str]:
    """What is needed, and no wheel declares.

    NumPy, to which programs hand torch's tensors; its ceiling, if there is one, names it. And
    setuptools, which Triton up to 3.2 imports when torch.compile first compiles for a GPU.
    """
    numpy = ["numpy"] if row["numpy"]["ceiling"] == "none" else []
    triton = re.match(r"triton==([\d.]+)", row["triton"])
    imports = triton and Version(triton[1]) < TRITON_FIRST_WITHOUT_SETUPTOOLS
    return [*numpy, *(["setuptools"] if imports else [])]


def _floating(pins: list[str]) -> list[str]:
    """Pins for nvidia-* wheels that float over a whole major version: to the least one's X.Y."""
    return [f"{name}=={least}.*" for name, least in (
        (match[1], ".".join(match[2].split(".")[:2])) for match in (
            re.fullmatch(r"(nvidia-[\w-]+)<\d+,>=([\d.]+)", pin) for pin in pins) if match)]


def _pytorch_variant(row: Row, variant: Row, rows: list[Row]) -> Row:
    version, local = row["version"], variant.pop("local_version")
    found: Row = {
        "name": local,
        "cuda_version": variant.pop("cuda"),
        "index": PYTORCH_INDEX + local,
        "cudnn_version": variant.pop("cudnn_docs", None),
        "cudnn_major": None,
        "cuda_pins": [],
        **_capabilities(variant.get("archs_docs")),
        "min_driver": _variant_driver(variant.pop("min_driver_minor_compat")),
        **variant,
    }
    if found["cudnn_version"]:
        found["cudnn_major"] = int(found["cudnn_version"].split(".")[0])
    if Version(version) < PYTORCH_FIRST_LOCAL:
        return found | {"requirements": {}, "unavailable": "its wheel has no local version there, "
                        "so that pip cannot tell it from PyPI's"}
    if not found.get("cc_native"):
        return found | {"requirements": {}, "unavailable": "no source gives its GPU architectures"}
    if Version(version) >= PYTORCH_FIRST_PIP:
        found["notes"] = [PYTORCH_VARIANT_NOTE]
    own = [f"torch=={version}+{local}", *_undeclared(row)]
    where = "pip" if Version(version) >= PYTORCH_FIRST_VARIANT_PIP else "bundled"
    return found | {
        "requirements": {where: own}, "sonames_required": [],
        "sonames_optional": _in_variant(
            row, found["cuda_version"], found["cudnn_major"], rows)}


def _variant_driver(text: str) -> Row:
    return {"exact": floor(text) if "exact" in text else None,
            "minor_compat": None if "exact" in text else floor(text)}


def _capabilities(text: str | None) -> Row:
    """Architectures by a build script's list, `3.7;5.0;8.0+PTX`; empty without one."""
    if not text:
        return {}
    listed = text.split(";")
    plain = [each.removesuffix("+PTX") for each in listed]
    native = [known for known in KNOWN_CAPABILITIES
              if any(known.split(".")[0] == each.split(".")[0]
                     and Version(known) >= Version(each) for each in plain)]
    ptx = [each.removesuffix("+PTX") for each in listed if each.endswith("+PTX")]
    reached = [known for known in KNOWN_CAPABILITIES if known not in native
               and any(Version(known) >= Version(each) for each in ptx)]
    return {"sass_archs": plain, "ptx_archs": ptx, "min_compute_capability": plain[0],
            "cc_native": native, "cc_via_ptx_jit": reached}


KNOWN_CAPABILITIES = (
    "3.0", "3.5", "3.7", "5.0", "5.2", "5.3", "6.0", "6.1", "6.2", "7.0", "7.2", "7.5", "8.0",
    "8.6", "8.7", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1")


def jax(facts: Row) -> list[Row]:
    """JAX's releases: with the plugin of CUDA 12 from PyPI, and with that of CUDA 13 as a variant.

    The plugins of CUDA 11 on PyPI (0.4.22 to 0.4.25) are left out: no extra of jax names them.
    """
    plugins = {(row["package"], row["version"]): row for row in facts["plugins"]}
    libraries = {row["version"]: row for row in facts["jaxlib"]}
    stored = {row["version"]: row for row in facts["google_storage_jaxlibs"]}
    return [_jax(row, plugins, libraries, stored) for row in facts["jax"]]


def _jax(row: Row, plugins: Plugins, libraries: Row, stored: Row) -> Row:
    version = row["version"]
    base: Row = {"version": version, "distribution": "jax", **clean(
        {key: row[key] for key in row if key not in {"version", "source"}})}
    base["source"] = list(row["source"])
    known = [name for name, first in JAX_FIRST_PLUGIN.items() if Version(version) >= first]
    installed = {name: _installed(row["extras"][name], plugins) for name in known}
    yanked = any(each.get("yanked") for each in (*installed.values(), libraries.get(version, {})))
    builds = [_plugin(row, name, each, libraries) for name, each in installed.items()]
    if yanked:
        return {**base, **builds[0], "requirements": {},
                "unavailable": "its jaxlib was withdrawn from the package index (yanked)"}
    if not builds:
        least = row.get("jaxlib_of_the_extras") or version
        jaxlib = clean(stored.get(least, {}))
        return {**base, "python": jaxlib.get("python") or [], "requirements": {},
                "jaxlib_with_cuda": jaxlib,
                "unavailable": "its jaxlib with CUDA is only on Google's storage, "
                f"{GOOGLE_STORAGE}, which is not a package index"}
    first, *others = builds
    return {**base, **first, "source": [*base["source"], *first["source"]], "variants": others}


def _installed(extra: list[str], plugins: Plugins) -> Row:
    """The newest plugin that an extra allows; a release need not have one of its own version."""
    pin = next(Requirement(each) for each in extra if "-plugin" in each)
    return max((row for (package, version), row in plugins.items()
                if package == pin.name and pin.specifier.contains(version)),
               key=lambda row: (not row.get("yanked"), Version(row["version"])))


def _plugin(jax_row: Row, name: str, row: Row, libraries: Row) -> Row:
    """The build of a release with one of its plugins."""
    version, major = jax_row["version"], row["cuda_major"]
    pins = row["with_cuda_pins"] or [
        pin for pin in jax_row["extras"][name] if pin.startswith("nvidia-")]
    cudnn = row["built_with"]["cudnn"]
    cudnn_major = int(cudnn.split(".")[0])
    # XLA asks for the same major version of cuDNN and at least the minor that it was built with.
    drops = any(Version(each) < CUDNN_9_11_LEAST for each in row["cc_native"])
    below = "9.11" if cudnn_major == 9 and drops else str(cudnn_major + 1)
    own = [f"nvidia-cudnn-cu{major}>={'.'.join(cudnn.split('.')[:2])},<{below}"]
    if major == 13:
        own.append(JAX_CUPTI)
    requirements = {"pip": [f"jax[{name}]=={version}", *own]}
    if Version(version) >= JAX_FIRST_LOCAL:
        # NCCL is in no toolkit; the plugin finds the wheel's by its DT_RPATH.
        nccl = [pin.replace(" ", "") for pin in pins if pin.startswith("nvidia-nccl")]
        requirements["toolkit"] = [f"jax[{name}-local]=={version}", *nccl]
    # The jaxlib of the same release; an extra of one without its own takes its plugin's.
    library = libraries.get(version) or libraries[row["version"]]
    pythons = [each for each in row["python"] if each in library["python"]]
    given = {key: row[key] for key in row if key not in {
        "package", "version", "python", "min_driver", "with_cuda_pins", "cuda_major"}}
    names = [soname.format(cudnn=cudnn_major) for wheel, sonames in LIBRARIES[major].items()
             if any(pin.startswith(f"nvidia-{wheel}") for pin in pins) for soname in sonames]
    return {
        **clean(given),
        "name": name,
        "plugin": f"{row['package']}=={row['version']}",
        "python": pythons,
        "cuda_version": row["built_with"]["cuda"],
        "cudnn_version": cudnn,
        "cudnn_major": cudnn_major,
        "cuda_pins": pins,
        "min_driver": _driver({**row["min_driver"], "exact": row["min_driver"]["toolkit_exact"]}),
        "sonames_required": _ordered(names),
        "sonames_optional": [],
        "ceilings_needed_today": _numpy(
            pythons, "<2" if jax_row["numpy_2"].startswith("not supported") else "none"),
        "requirements": requirements,
    }


def _driver(row: Row) -> Row:
    found: Row = clean(row)
    return {**found, "exact": floor(found.get("exact")),
            "minor_compat": floor(found.get("minor_compat"))}


def _numpy(pythons: list[str], ceiling: str) -> Row:
    """numpy 2 breaks what was built with numpy 1; the metadata does not say so."""
    needed = {} if ceiling == "none" else {each: [f"numpy{ceiling}"] for each in pythons}
    return {"by_python": needed, "notes": []}


def _ordered(names: list[str]) -> list[str]:
    """Each library after those that it needs, without the driver's."""
    def rank(name: str) -> tuple[int, str]:
        stem = name.split(".", maxsplit=1)[0]
        return (ORDER.index(stem) if stem in ORDER else len(ORDER), name)

    return sorted(dict.fromkeys(each for each in names if each != DRIVER_SONAME), key=rank)
