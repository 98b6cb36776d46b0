"""What the resolver works on: the spec, the host, and the problems and notes found so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpufleet.catalog.gpus import Gpu
from gpufleet.host_state.host import Host
from gpufleet.model.problems import Code, Problems
from gpufleet.model.spec import Spec


@dataclass
class ResolveContext:
    """Passed through the resolver's steps; each adds its problems and notes."""

    spec: Spec
    host: Host
    problems: Problems
    gpus: list[Gpu] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def refuse(self, code: Code, message: str, where: str, remedy: str) -> None:
        self.problems.add(code, message, where, remedy)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
