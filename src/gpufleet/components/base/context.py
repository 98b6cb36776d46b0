"""The resolver's context: the spec, the host, and the problems and notes found so far."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from gpufleet.catalog import facts
from gpufleet.catalog.gpus import Gpu
from gpufleet.components.base.host import Host
from gpufleet.documents.problems import Code, Problems
from gpufleet.documents.spec import Spec, StackSpec


@dataclass
class ResolveContext:
    """Passed through the resolver's steps; each adds its problems and notes."""

    spec: Spec
    host: Host
    problems: Problems
    gpus: list[Gpu] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    locks: Collection[str] | None = None  # the names of the user's locks; None: not known
    trial: bool = False  # only whether there are problems counts
    # A function: True if a changed stack loses this problem and gains no other one.
    accepts: Callable[[StackSpec, Code], bool] = lambda *_: True

    @property
    def arch(self) -> str:
        """The host's architecture: as probed, else as declared."""
        return self.host.arch or self.spec.arch or facts.X86_64

    def refuse(self, code: Code, message: str, where: str, remedy: str | Callable[[], str]) -> None:
        """Add a problem; a remedy that takes a search is looked for where someone reads it."""
        if callable(remedy):
            remedy = "" if self.trial else remedy()
        if code == Code.GPU_TOO_OLD and len(self.gpus) > 1 and not self.spec.gpus:
            # Servers have old cards for their display.
            remedy += ", or declare gpu_expect.model: other cards in the host then do not count"
        self.problems.add(code, message, where, remedy)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
