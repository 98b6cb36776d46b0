"""The types of the catalog's rows: what `gpufleet catalog check` holds every file against.

`None` means that no source gives the figure. A source is a key that the folder's meta.yml explains,
or a text that explains itself. A row has no other keys than these, except a framework's build,
which also keeps the evidence that was read in its wheel.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from gpufleet.documents.types import Text

Sources = list[Text]
NamedSources = dict[str, Sources]  # the key of a figure and its sources


class File(TypedDict):
    """A file that NVIDIA publishes, with its checksums."""

    file: Text
    url: Text
    sha256: Text | None
    md5: NotRequired[Text | None]
    sha512: NotRequired[Text]
    size_bytes: int | None
    source: NamedSources


class ToolkitDriver(TypedDict):
    """The driver in the runfile, and the oldest drivers that run the release."""

    bundled: Text | None
    minimum: Text | None
    minimum_minor_compat: Text | None
    source: Sources
    note: NotRequired[Text]
    bundled_note: NotRequired[Text]
    disagreement: NotRequired[Text]
    minor_version_compat_note: NotRequired[Text]


class HostGcc(TypedDict):
    """The gcc releases that nvcc accepts."""

    max_major: int
    min_major: int | None
    source: Sources
    note: NotRequired[Text]
    disagreement: NotRequired[Text]


class Capabilities(TypedDict):
    """The GPUs that a toolkit compiles for."""

    min: Text
    max: Text
    max_discrete: Text
    sm_targets: list[int]
    source: Sources
    note: NotRequired[Text]


class Bound(TypedDict):
    """A glibc bound."""

    value: Text
    source: Sources
    note: NotRequired[Text]


class ToolkitRow(TypedDict):
    """One CUDA toolkit: toolkits/MAJOR.yml."""

    version: Text
    marketing_name: Text | None
    channel: Text
    installer_generation: Text
    driver: ToolkitDriver
    host_gcc: HostGcc
    compute_capability: Capabilities
    patches: list[dict[str, object]]
    patches_note: NotRequired[Text]
    glibc_min: NotRequired[Bound]
    glibc_max: NotRequired[Bound]
    installers: dict[str, File]


class Layout(TypedDict):
    """The directories in an archive."""

    kind: Text
    top_dir: Text
    include_dir: Text
    lib_dir: Text
    header_with_version: Text


class ArchiveRow(File):
    """One cuDNN archive: cudnn/MAJOR.yml."""

    version: Text
    cuda: Text
    platform: Text
    layout: Layout
    soname_major: int
    soname: Text
    login_required: bool | None
    login_required_note: NotRequired[Text]
    pip_wheel: NotRequired[Text]
    url_alt: NotRequired[list[Text]]
    note: NotRequired[Text]
    disagreement: NotRequired[list[Text]]


class MinDriver(TypedDict):
    """The oldest drivers for a build's CUDA."""

    exact: Text | None
    minor_compat: Text | None


class Ceilings(TypedDict):
    """Upper bounds of requirements that a release's metadata lacks, by Python."""

    by_python: dict[str, list[Text]]
    notes: list[Text]


class ReleaseRow(TypedDict):
    """The facts of every release of a framework, also of one that pip cannot install."""

    version: Text
    distribution: Text
    python: list[Text]
    requirements: dict[str, list[Text]]
    source: Sources
    unavailable: NotRequired[Text]


class BuildRow(ReleaseRow):
    """One release of a framework that pip can install: FRAMEWORK/SERIES.yml."""

    wheel_platform_tag: list[Text]
    cuda_version: Text
    cudnn_major: int
    measured: bool
    sonames_required: list[Text]
    sonames_optional: list[Text]
    sass_archs: list[Text]
    ptx_archs: list[Text]
    min_compute_capability: Text
    cc_native: list[Text]
    cc_via_ptx_jit: list[Text]
    ptx_language: NotRequired[Text | None]  # the newest version of the PTX language in the build
    # The newest version that the compiler inside the build writes, whatever CUDA is beside it.
    compiler_ptx: NotRequired[Text]
    min_driver: MinDriver
    ceilings_needed_today: Ceilings
    wheel: NotRequired[dict[str, object]]
    cuda_pins: NotRequired[list[Text]]
    variants: NotRequired[list[dict[str, object]]]


class OpenModules(TypedDict):
    """The open kernel modules of a driver branch."""

    available: bool
    default_flavor: Text
    required_for: list[Text]
    source: Sources
    min_arch: NotRequired[Text]
    proprietary_needed_for: NotRequired[list[Text]]
    note: NotRequired[Text]


class BranchRow(TypedDict):
    """One driver branch: drivers.yml."""

    branch: Text
    type: Literal["PB", "NFB", "LTS", "LTSB"] | None
    latest_linux: Text | None
    latest_date: Text | None
    first_date: Text | None
    eol: Text | None
    status_2026_11_20: Literal["supported", "EOL"] | None
    cuda_max_native: Text | None
    cuda_max_source: Sources
    bundled_by_toolkits: list[dict[str, object]]
    architectures_dropped_here: list[Text]
    open_kernel_modules: OpenModules
    source: Sources
    note: NotRequired[Text]
    drop_note: NotRequired[Text]
    disagreement: NotRequired[Text]
    last_branch_for: NotRequired[Text]
    release_notes: NotRequired[Text]


class ArchitectureRow(TypedDict):
    """One GPU architecture: drivers.yml."""

    name: Text
    compute_capability: Text
    first_cuda: Text | None
    last_cuda: Text | None
    first_branch: Text | None
    last_branch: Text | None
    oldest_code: NotRequired[Text]
    note: NotRequired[Text]


class BandwidthRow(TypedDict):
    """The least bus bandwidth of one kind of machine in GB/s: bandwidth.yml."""

    devices: list[Text]
    names: list[Text]
    gpus: int
    gb_s: NotRequired[float | int]
    port: NotRequired[float | int]
    hosts: NotRequired[float | int]
    bridged: NotRequired[bool]
    healthy: list[float | int]
    asked: list[float | int]
    source: Sources
