"""The records of the catalog: typed views of its YAML rows, for the resolver. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpufleet.documents.plan import CudaSource
from gpufleet.documents.types import Row
from gpufleet.frameworks import FRAMEWORKS, Framework, FrameworkId

from . import versions

DRIVER_SONAME = "libcuda.so.1"  # belongs to the driver, never to a toolkit


@dataclass(frozen=True)
class DriverMinimum:
    """The oldest sufficient driver, and the reason."""

    version: str
    because: str


@dataclass(frozen=True, eq=False)
class Toolkit:
    """One CUDA toolkit release for one platform."""

    row: Row
    platform: str

    @property
    def version(self) -> str:
        return str(self.row["version"])

    @property
    def short(self) -> str:
        return versions.short(self.version)

    @property
    def installer(self) -> Row | None:
        """The runfile's row (file, url, checksums, size_bytes); None if there is no runfile."""
        found: Row | None = self.row["installers"].get(self.platform)
        return found

    @property
    def driver_exact(self) -> str | None:
        """The oldest driver for this release in NVIDIA's table."""
        figure: str | None = self.row["driver"]["minimum"]
        return figure

    @property
    def driver_minor(self) -> str | None:
        """The oldest driver by minor-version compatibility; None before CUDA 11."""
        figure: str | None = self.row["driver"]["minimum_minor_compat"]
        return figure

    @property
    def capability_min(self) -> str:
        """The oldest compute capability that this release compiles for."""
        return str(self.row["compute_capability"]["min"])

    @property
    def capabilities(self) -> list[str]:
        """The compute capabilities with native code, as `8.6`."""
        targets = self.row["compute_capability"]["sm_targets"]
        return [f"{target // 10}.{target % 10}" for target in targets if isinstance(target, int)]

    @property
    def source_keys(self) -> list[str]:
        """The source keys of all facts that the plan takes from this row."""
        found: list[str] = []
        for keys in (self.installer or {}).get("source", {}).values():
            found += keys
        found += self.row["driver"]["source"] + self.row["compute_capability"]["source"]
        return list(dict.fromkeys(found))


@dataclass(frozen=True, eq=False)
class Archive:
    """One cuDNN archive."""

    row: Row

    @property
    def version(self) -> str:
        return str(self.row["version"])

    @property
    def major(self) -> int:
        return int(self.row["soname_major"])

    def supports(self, cuda: str) -> bool:
        """Return whether the archive was built for toolkit X.Y.

        From 8.5 on the file name has `_cuda11-archive`, for a CUDA major; before that, the release
        it was built with. `cuda10` was built with 10.2 only (cudnn/meta.yml, cuda_variant_ranges).
        """
        family = re.search(r"_cuda(\d+)-archive", self.row["file"])
        if family:
            return cuda == "10.2" if family[1] == "10" else versions.major(cuda) == int(family[1])
        return bool(self.row["cuda"] == cuda)

    @property
    def source_keys(self) -> list[str]:
        found: list[str] = []
        for keys in self.row["source"].values():
            found += keys
        return list(dict.fromkeys(found))


@dataclass(frozen=True, eq=False)
class Build:
    """One GPU build of a framework: of a release, for one CUDA."""

    framework: FrameworkId
    row: Row
    compiled_with: str | None = None  # the measured cuDNN, more precise than the docs' table
    variant: str | None = None  # such as cu118 or cuda13; None: the release's own build
    arch: str = "x86_64"  # the machine architecture that its wheels are for

    @property
    def version(self) -> str:
        return str(self.row["version"])

    @property
    def about(self) -> Framework:
        """The framework's descriptor."""
        return FRAMEWORKS[self.framework]

    @property
    def title(self) -> str:
        """The framework's name in messages."""
        return self.about.title

    @property
    def name(self) -> str:
        """The framework and its release, in messages."""
        return f"{self.title} {self.version}"

    @property
    def distribution(self) -> str:
        return str(self.row["distribution"])

    @property
    def pythons(self) -> list[str]:
        """The Python versions it has wheels for, oldest first."""
        return sorted(self.row["python"], key=versions.key)

    @property
    def cuda(self) -> str:
        """The CUDA release it was built with, `11.8` or `12.5.1`."""
        return str(self.row["cuda_version"])

    @property
    def cudnn_major(self) -> int:
        return int(self.row["cudnn_major"])

    @property
    def cudnn(self) -> str:
        """The cuDNN it was built with: `8.6`, or only the major version if no more is known."""
        return str(
            self.compiled_with
            or self.row.get("cudnn_version")
            or self.row["cudnn_docs"]
            or self.row["cudnn_major"]
        )

    @property
    def cudnn_in_wheels(self) -> str | None:
        """The cuDNN that comes with it from wheels; None where they float, or none is known."""
        exact: str | None = self.row.get("cudnn_version")
        if self.about.exact_cudnn:
            return exact
        match = re.search(r"==([\d.]+)", str(self.row.get("cudnn_pip_pin", "")))
        return match.group(1) if match else None

    @property
    def cudnn_floor(self) -> str | None:
        """The oldest cuDNN that it asks for of the wheels; None where it asks for one version."""
        pins = [pin for pin in self.cuda_pins if pin.startswith("nvidia-cudnn")]
        match = re.search(r">=([\d.]+)", pins[0]) if pins else None
        return match.group(1) if match else None

    @property
    def unavailable(self) -> str | None:
        """Why pip cannot install the build; None: it can."""
        reason: str | None = self.row.get("unavailable")
        return reason

    @property
    def index(self) -> str | None:
        """The package index that has the build; None: the one that pip is set to."""
        address: str | None = self.row.get("index")
        return address

    @property
    def cuda_sources(self) -> list[CudaSource]:
        """Where its CUDA can come from, the default first; empty where pip cannot install it."""
        return list(self.row["requirements"])

    def requirements(self, source: CudaSource) -> list[str]:
        """The requirements that pip installs for CUDA from there."""
        return list(self.row["requirements"][source])

    def serves(self, cuda: str) -> bool:
        """Return whether the build runs on a toolkit of that version, X.Y or X.Y.Z.

        A plugin for CUDA opens its libraries by the names of a major version, and so takes newer
        ones of it; any other build takes the X.Y that it was built with.
        """
        if self.about.cuda_plugin:
            return versions.major(cuda) == versions.major(self.cuda) and versions.key(
                cuda
            ) >= versions.key(versions.short(self.cuda))
        same = versions.short(cuda) == versions.short(self.cuda)
        return same and (cuda.count(".") < 2 or versions.key(cuda) >= versions.key(self.cuda))

    def is_for(self, cuda: str) -> bool:
        """Return whether this is the build for a declared CUDA: X.Y, or X for a plugin."""
        if self.about.cuda_plugin and cuda.isdecimal():
            return versions.major(self.cuda) == int(cuda)
        return self.serves(cuda)

    @property
    def sonames(self) -> list[str]:
        """The libraries it links or opens at run time to use a GPU, without the driver's."""
        names = [*self.row["sonames_required"], *self.row.get("sonames_dlopened", [])]
        return [name for name in dict.fromkeys(names) if name != DRIVER_SONAME]

    @property
    def wheels(self) -> list[Row]:
        """Its wheels: file, size_bytes, sha256; a plugin for CUDA comes first."""
        found = self.row.get("wheel") or {}
        return [found] if "file" in found else list(found.values())

    @property
    def sonames_optional(self) -> list[str]:
        return list(self.row["sonames_optional"])

    @property
    def has_cuda_wheels(self) -> bool:
        """True if the build's CUDA can come from nvidia-* wheels."""
        return "pip" in self.cuda_sources

    @property
    def cuda_pins(self) -> list[str]:
        """The nvidia-* wheels that the release requires, with their versions."""
        return list(self.row.get("cuda_pins") or [])

    @property
    def wheels_pinned(self) -> bool:
        """True if the CUDA of the wheels is of one exact version, not of a range."""
        runtime = [
            pin for pin in self.cuda_pins if pin.startswith(("nvidia-cuda-runtime", "cuda-toolkit"))
        ]
        return all("==" in pin for pin in runtime)

    @property
    def capability_min(self) -> str:
        return str(self.row["min_compute_capability"])

    @property
    def native(self) -> list[str]:
        """Compute capabilities with machine code in every kernel of the build."""
        return list(self.row["cc_native"])

    @property
    def jit(self) -> list[str]:
        """Compute capabilities supported through JIT compilation of its PTX (an upper bound)."""
        return list(self.row["cc_via_ptx_jit"])

    @property
    def ptx_language(self) -> str | None:
        """The newest version of the PTX language in the build, where it was read."""
        figure: str | None = self.row.get("ptx_language")
        return figure

    @property
    def compiler_ptx(self) -> str | None:
        """The newest version of the PTX language that the compiler inside it writes, if known."""
        figure: str | None = self.row.get("compiler_ptx")
        return figure

    @property
    def glibc_used(self) -> str | None:
        """The newest glibc that its libraries ask for, where that was measured."""
        figure: str | None = self.row.get("glibc_symbols_max")
        return figure

    @property
    def driver_exact(self) -> str | None:
        """The oldest driver for its CUDA in NVIDIA's table."""
        figure: str | None = self.row["min_driver"]["exact"]
        return figure

    @property
    def driver_minor(self) -> str | None:
        """The oldest driver by minor-version compatibility; None before CUDA 11."""
        figure: str | None = self.row["min_driver"]["minor_compat"]
        return figure

    @property
    def platform_tags(self) -> list[str]:
        """The platform tags of its wheels, split at dots."""
        return [part for tag in self.row["wheel_platform_tag"] for part in tag.split(".")]

    def ceilings(self, python: str) -> list[str]:
        """The upper bounds that the release needs on a Python, and its metadata lacks."""
        return list(self.row["ceilings_needed_today"]["by_python"].get(python, ()))


@dataclass(frozen=True, eq=False)
class Branch:
    """One driver branch."""

    row: Row

    @property
    def number(self) -> str:
        return str(self.row["branch"])

    @property
    def latest(self) -> str | None:
        """The newest known version."""
        figure: str | None = self.row["latest_linux"]
        return figure

    @property
    def cuda_native(self) -> str | None:
        """The newest CUDA of its release."""
        figure: str | None = self.row["cuda_max_native"]
        return figure

    @property
    def supported(self) -> bool:
        """True if NVIDIA still maintains the branch."""
        return bool(self.row["status_2026_11_20"] == "supported")

    @property
    def eol(self) -> str | None:
        """The end of NVIDIA's maintenance, past or future."""
        figure: str | None = self.row["eol"]
        return figure

    @property
    def lasting(self) -> bool:
        """True if this is a production or long-term branch, not a new feature branch."""
        return self.row["type"] in {"PB", "LTS"}

    @property
    def prefers_open(self) -> bool:
        """True if NVIDIA's installer selects the open kernel modules where both are possible."""
        return str(self.row["open_kernel_modules"]["default_flavor"]).startswith("open")

    @property
    def has_open_module(self) -> bool:
        return bool(self.row["open_kernel_modules"]["available"])


@dataclass(frozen=True)
class Architecture:
    """One GPU architecture, or a part of one: the CUDA releases and branches that support it."""

    name: str
    compute_capability: str  # "8.6", or "5.x" for every 5.something
    first_cuda: str | None
    last_cuda: str | None
    first_branch: str | None
    last_branch: str | None
    oldest_code: str | None = None  # the oldest machine code that runs on it; None: of its major
    note: str | None = None
