"""Why a wish is refused: the codes, and the list in which they are gathered.

A problem names what is wrong (`code`, `message`), the place in the wishes where a person can mend
it (`where`, such as `gpu_stacks[0].cudnn`), and what to do (`remedy`). All problems of a wish are
gathered, so that one run shows them all.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import Enum


class Code(Enum):
    """Each code with the sentence that explains it."""

    meaning: str

    def __new__(cls, value: str, meaning: str) -> Code:
        member = object.__new__(cls)
        member._value_ = value
        member.meaning = meaning
        return member

    UNKNOWN_KEY = "unknown-key", "A wish has a key that nothing reads, likely a typing error."
    WRONG_TYPE = "wrong-type", "A value has another shape than documented, such as 11.8 unquoted."
    UNKNOWN_RELEASE = "unknown-release", "No such TensorFlow GPU release is known."
    TOOLKIT_UNKNOWN = "toolkit-unknown", "No such CUDA toolkit is known for this platform."
    CUDNN_UNKNOWN = "cudnn-unknown", "No such cuDNN archive is known for that CUDA toolkit."
    CUDA_MISMATCH = "cuda-mismatch", "The TensorFlow build was made for another CUDA release."
    CUDNN_MISMATCH = "cudnn-mismatch", "The TensorFlow build was made for another cuDNN."
    PIP_CUDA_UNAVAILABLE = (
        "pip-cuda-unavailable",
        "The release has no and-cuda extra, so CUDA cannot come from pip.",
    )
    PYTHON_UNAVAILABLE = (
        "python-unavailable",
        "The release has no wheel for that Python, or the host has no such Python.",
    )
    DRIVER_UNKNOWN = "driver-unknown", "No such driver branch is known."
    DRIVER_NOT_OFFERED = (
        "driver-not-offered",
        "The source has no such driver branch for the host's distribution.",
    )
    MODULE_CLASH = (
        "module-clash",
        "One GPU needs the open kernel modules, and another is older than they know.",
    )
    FABRIC_MANAGER = (
        "fabric-manager-unavailable",
        "The GPUs are behind an NVSwitch, and the source has no fabric manager.",
    )
    SECURE_BOOT = "secure-boot", "Secure Boot would keep the driver's modules from loading."
    MIG_UNSUPPORTED = "mig-unsupported", "No GPU of the host can be split into MIG instances."
    OS_UNSUPPORTED = "os-unsupported", "What drivers there are for the distribution is not known."
    DRIVER_TOO_OLD = "driver-too-old", "The driver is older than the CUDA release needs."
    GPU_UNKNOWN = "gpu-unknown", "The GPU's name does not tell its compute capability."
    GPU_TOO_OLD = (
        "gpu-too-old",
        "The GPU is older than toolkit, framework, cuDNN, driver or open module know.",
    )
    GPU_TOO_NEW = (
        "gpu-too-new",
        "The GPU is newer than toolkit, framework, driver or proprietary module know.",
    )
    EXPECT_CLASH = "expect-clash", "Two values of gpu_expect cannot both be true."
    INSTALLED_ELSEWHERE = (
        "installed-elsewhere",
        "It is installed already, in another place than is declared now.",
    )
    ARTIFACT_WITHOUT_CHECKSUM = (
        "artifact-without-checksum",
        "No checksum is known that the file could be checked against.",
    )
    ARTIFACT_MD5_ONLY = "artifact-md5-only", "The file is known by md5 only, which is not allowed."
    EULA_NOT_ACCEPTED = "eula-not-accepted", "Nobody has accepted NVIDIA's licence yet."
    GLIBC = "glibc", "The host's glibc is too old, or too new for the toolkit's compiler."
    DISK_FULL = "disk-full", "A file system has less room than the installation needs."
    NOEXEC_TMP = "noexec-tmp", "The installer's temporary directory forbids to execute files."
    FOREIGN_TREE = "foreign-tree", "Something that gpufleet did not install stands in the place."
    NOT_ADOPTABLE = "not-adoptable", "What is to be adopted is not what is planned, or not whole."
    PRUNE_UNDECLARED = "prune-undeclared", "Everything would be removed, and nothing says so."
    BAD_NAME = "bad-name", "A stack's name cannot be used as a directory's name."
    VARIABLE_UNKNOWN = "variable-unknown", "The variable is not known, or not to that release."
    VARIABLE_FORBIDDEN = (
        "variable-forbidden",
        "The variable would lead a stack to other libraries or modules than its own.",
    )
    STACK_NAME_CLASH = "stack-name-clash", "Two stacks have the same name."
    TOOLKIT_CLASH = "toolkit-clash", "Two patch releases want the same directory."
    CUDNN_CLASH = "cudnn-clash", "Two cuDNN of the same major version want the same toolkit."
    DEFAULT_NOT_DECLARED = "default-not-declared", "The default toolkit is not among the declared."
    HOST_UNSUPPORTED = "host-unsupported", "The host's architecture is not supported."


@dataclass(frozen=True)
class Problem:
    """One refusal, as it stands in a plan."""

    code: str
    message: str
    where: str
    remedy: str


@dataclass
class Problems:
    """The refusals gathered so far, in order, each once."""

    found: list[Problem] = field(default_factory=list)

    def add(self, code: Code, message: str, where: str, remedy: str) -> None:
        """Take note of one more problem; the same one twice is kept once."""
        problem = Problem(code.value, message, where, remedy)
        if problem not in self.found:
            self.found.append(problem)

    def documents(self) -> list[dict[str, str]]:
        """The problems as the plan carries them."""
        return [asdict(problem) for problem in self.found]
