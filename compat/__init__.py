"""What goes with what: facts with their sources, and the resolver from wishes to plans.

Pure functions over documents (docs/documents.md); nothing is read but this package's own YAML.
"""

from .changes import changes
from .facts import build_versions as releases
from .intake import gpus_shown, places
from .locks import with_locks
from .plan import resolve
from .problems import Code
from .release import release

__all__ = ["Code", "changes", "gpus_shown", "places", "release", "releases", "resolve",
           "with_locks"]
