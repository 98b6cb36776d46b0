"""Why a spec is refused: the codes, and the list of problems.

A problem names what is wrong (`code`, `message`), the variable that can fix it
(`where`, such as `gpu_stacks[0].cudnn`), and what to do (`remedy`). One run shows all
problems of a spec.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from gpufleet.on_host.addresses import public_addresses

from .plan import ProblemEntry


class Code(Enum):
    """Each code with the sentence that explains it."""

    meaning: str

    def __new__(cls, value: str, meaning: str) -> Code:
        member = object.__new__(cls)
        member._value_ = value
        member.meaning = meaning
        return member

    UNKNOWN_KEY = "unknown-key", "A key is not known, likely a typing error."
    WRONG_TYPE = "wrong-type", "A value has another type than documented, such as 11.8 unquoted."
    UNKNOWN_RELEASE = "unknown-release", "No such GPU release of the framework is known."
    TOOLKIT_UNKNOWN = "toolkit-unknown", "No such CUDA toolkit is known for this platform."
    CUDNN_UNKNOWN = "cudnn-unknown", "No such cuDNN archive is known for that CUDA toolkit."
    CUDA_MISMATCH = "cuda-mismatch", "The framework's build needs another CUDA release."
    CUDNN_MISMATCH = "cudnn-mismatch", "The framework's build needs another cuDNN."
    PIP_CUDA_UNAVAILABLE = (
        "pip-cuda-unavailable",
        "The release has no nvidia-* wheels, so CUDA cannot come from pip.",
    )
    SEVERAL_FRAMEWORKS = "several-frameworks", "A stack names more than one framework."
    LOCAL_CUDA_UNAVAILABLE = (
        "local-cuda-unavailable",
        "The release cannot use an installed toolkit.",
    )
    WHEEL_UNAVAILABLE = (
        "wheel-unavailable",
        "The GPU wheel is not on the package index, or only on another one.",
    )
    PYTHON_UNAVAILABLE = (
        "python-unavailable",
        "The release has no wheel for that Python, or the host has no such Python.",
    )
    LOCK_UNAVAILABLE = (
        "lock-unavailable",
        "The lock of the release for that Python cannot be made, and the user has none.",
    )
    DRIVER_UNKNOWN = "driver-unknown", "No such driver branch is known."
    DRIVER_NOT_OFFERED = (
        "driver-not-offered",
        "The source has no such driver branch for the host's distribution.",
    )
    MODULE_CLASH = (
        "module-clash",
        "One GPU needs the open kernel modules, which do not support another.",
    )
    FABRIC_MANAGER = (
        "fabric-manager-unavailable",
        "The GPUs are behind an NVSwitch, and the source has no fabric manager.",
    )
    SECURE_BOOT = "secure-boot", "Secure Boot keeps the driver's modules from loading."
    MIG_UNSUPPORTED = "mig-unsupported", "No GPU of the host can be split into MIG instances."
    OS_UNSUPPORTED = "os-unsupported", "The drivers for the distribution are not known."
    DRIVER_TOO_OLD = "driver-too-old", "The driver is older than the CUDA release needs."
    GPU_UNKNOWN = "gpu-unknown", "The compute capability of the GPU's name is not known."
    GPU_TOO_OLD = (
        "gpu-too-old",
        "The GPU is too old for toolkit, framework, cuDNN, driver or open module.",
    )
    GPU_TOO_NEW = (
        "gpu-too-new",
        "The GPU is too new for toolkit, framework, driver or proprietary module.",
    )
    EXPECT_CLASH = "expect-clash", "Two values of gpu_expect cannot both be true."
    INSTALLED_ELSEWHERE = (
        "installed-elsewhere",
        "It is already installed, at another path than declared.",
    )
    ARTIFACT_WITHOUT_CHECKSUM = (
        "artifact-without-checksum",
        "No checksum of the file is known.",
    )
    ARTIFACT_MD5_ONLY = "artifact-md5-only", "Only an md5 of the file is known: not allowed."
    EULA_NOT_ACCEPTED = "eula-not-accepted", "NVIDIA's licence is not accepted."
    GLIBC = "glibc", "The host's glibc is too old, or too new for the toolkit's compiler."
    DISK_FULL = "disk-full", "A file system has less space than the installation needs."
    RECORDS_HIDDEN = (
        "records-hidden",
        "A file system is mounted over the records of what gpufleet installed.",
    )
    NOEXEC_TMP = "noexec-tmp", "The installer's temporary directory is mounted noexec."
    FOREIGN_TREE = "foreign-tree", "Something that gpufleet did not install is at the path."
    NOT_ADOPTABLE = "not-adoptable", "What should be adopted is incomplete or not as planned."
    PRUNE_UNDECLARED = "prune-undeclared", "Everything would be removed, and nothing declares that."
    BAD_NAME = "bad-name", "A stack's name cannot be used as a directory's name."
    VARIABLE_UNKNOWN = "variable-unknown", "The variable is not known, or the release ignores it."
    VARIABLE_FORBIDDEN = (
        "variable-forbidden",
        "The variable makes a stack load other libraries or modules than its own.",
    )
    STACK_NAME_CLASH = "stack-name-clash", "Two stacks have the same name."
    TOOLKIT_CLASH = "toolkit-clash", "Two patch releases need the same directory."
    CUDNN_CLASH = "cudnn-clash", "Two cuDNN of the same major version are declared for one toolkit."
    DEFAULT_NOT_DECLARED = "default-not-declared", "The default toolkit is not declared."
    NETWORK_DRIVER = (
        "network-driver",
        "The declared network driver is not there, or another one is.",
    )
    NETWORK_SETTING = (
        "network-setting",
        "A setting of the network adapters does not fit the host.",
    )
    CONTAINER_TOOLKIT_VULNERABLE = (
        "container-toolkit-vulnerable",
        "The container toolkit has known vulnerabilities that nobody accepted.",
    )
    CPU_FEATURE = "cpu-feature", "The processor lacks instructions that a wheel needs."
    HOST_UNSUPPORTED = (
        "host-unsupported",
        "Nothing is installed on the host's architecture; what is there is judged.",
    )
    PACKAGES_STOPPED = (
        "packages-stopped",
        "A package repository stops every command of apt or dnf.",
    )
    ARCH_MISMATCH = "arch-mismatch", "Another architecture is declared than the host has."


# Problems that keep gpufleet from installing, and not from judging the host as it is.
INSTALLATION_ONLY = frozenset({Code.HOST_UNSUPPORTED.value, Code.OS_UNSUPPORTED.value})


@dataclass(frozen=True)
class Problem:
    """One refusal, as a plan has it."""

    code: str
    message: str
    where: str
    remedy: str


@dataclass
class Problems:
    """The refusals found so far, in order, each once."""

    found: list[Problem] = field(default_factory=list)

    def add(self, code: Code, message: str, where: str, remedy: str) -> None:
        """Add a problem, unless it is already there; it repeats no secret of an address."""
        problem = Problem(code.value, *map(public_addresses, (message, where, remedy)))
        if problem not in self.found:
            self.found.append(problem)

    def documents(self) -> list[ProblemEntry]:
        """The problems as a plan has them."""
        return [
            ProblemEntry(
                code=problem.code,
                message=problem.message,
                where=problem.where,
                remedy=problem.remedy,
            )
            for problem in self.found
        ]
