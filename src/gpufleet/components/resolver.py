"""From a spec and the catalog to a plan. Pure functions over documents; nothing is read.

`resolve` plans one host by its variables, `resolve_declaration` by what was parsed of them.
`release` lists what a release of a framework needs.
"""

from gpufleet.catalog.facts import build_versions as releases
from gpufleet.documents.problems import Code

from .plan import resolve, resolve_declaration
from .release import release
from .stacks.locks import with_locks

__all__ = ["Code", "release", "releases", "resolve", "resolve_declaration", "with_locks"]
