"""The facts about one framework: its names, and its differences from the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .hosts import FRAMEWORKS

FrameworkId = Literal["tensorflow", "pytorch", "jax"]


# Parts that a run may report beside its products, by the key in the run's document.
Part = Literal["small", "numpy", "convolution", "routines", "loader", "workers", "compile"]


@dataclass(frozen=True, kw_only=True)
class Distributed:
    """The programs that a framework can run between two hosts."""

    parameter_servers: bool = False
    # How it reduces without NCCL. Its own ring reduces between GPUs too, Gloo between CPUs only.
    communication: Literal["RING", "GLOO"] = "GLOO"
    # The name of that reduction in messages, and the first releases that have it between CPUs and
    # between GPUs; empty: all releases.
    reduction: str = "all-reduce between CPUs of two hosts"
    cpus_from: tuple[int, ...] = ()
    gpus_from: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Framework:
    """One framework: its key in the inventory, what others call it, and how it gets its CUDA."""

    id: FrameworkId
    title: str
    example: str  # a release, for help and messages
    example_options: str = ""  # the options of `resolve` that the help shows with that release
    image: str | None = None  # an image of a container that has it, for messages
    variable: str | None = None  # a variable that is the short form of one more stack

    # The address that its builds for other CUDA releases have below them; None: it has no index.
    own_index: str | None = None
    # True if its CUDA is a plugin: a package of its own, for one major version of CUDA, which takes
    # newer releases of that.
    cuda_plugin: bool = False
    # The declaration that stacks of it use instead of `cuda: local`; None where they accept that.
    instead_of_local: str | None = None
    # True if a build comes with the cuDNN that it was built with, not with one in a range.
    exact_cudnn: bool = False
    # True if the requirements of its wheels keep cuDNN to one with code for every GPU.
    bounds_cudnn: bool = False
    # True if its modulefiles exclude those of every framework, not its own alone.
    excludes_all: bool = True

    # Parts that the framework's run reports before and after its products, in order of the stages.
    parts_before_products: tuple[Part, ...] = ()
    parts_after_products: tuple[Part, ...] = ()
    # The phrases by which it reports that it has no code for a GPU, as regular expressions.
    ignored_gpu: tuple[str, ...] = ()
    # True if its environment has CUDA libraries of its own, also beside a toolkit.
    own_libraries: bool = True
    # True if its build lists, where it runs, all GPUs that it has code for.
    lists_own_code: bool = False
    # The compiler of a function, and the first release that takes arrays of numpy 2.
    compiler: str | None = None
    numpy_2_from: str | None = None
    distributed: Distributed = Distributed()

    @property
    def module(self) -> str:
        """The name of the module that Python imports."""
        return str(FRAMEWORKS[self.id].module)

    @property
    def distributions(self) -> tuple[str, ...]:
        """The Python packages that carry its releases."""
        return tuple(FRAMEWORKS[self.id].distributions)

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables by which users keep it from GPUs."""
        return tuple(FRAMEWORKS[self.id].variables)

    @property
    def requirement(self) -> str:
        """The requirement of its example release, for help and messages."""
        return f"{self.distributions[0]}=={self.example}"

    @property
    def stack(self) -> str:
        """The name of a stack with its example release, for help and messages."""
        return f"{self.id}-{self.example}"

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts that the framework's run reports beside its products."""
        return self.parts_before_products + self.parts_after_products

    @property
    def several_builds(self) -> bool:
        """True if a release has builds for several CUDA releases."""
        return self.cuda_plugin or self.own_index is not None

    @property
    def can_be_local(self) -> bool:
        """True if a stack can declare `cuda: local`."""
        return self.instead_of_local is None
