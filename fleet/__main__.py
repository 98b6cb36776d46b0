"""`python -m fleet VERB ...`: each verb is a module with `main(words) -> exit status`."""

from __future__ import annotations

import importlib
import sys

VERBS = {
    "history": "fleet.history_cli",
    "nightly": "fleet.nightly",
    "pack": "fleet.pack",
    "provision": "fleet.provision",
    "rollout": "fleet.rollout",
}


def main(words: list[str]) -> int:
    """Run a verb; its exit status."""
    if not words or words[0] not in VERBS:
        sys.stderr.write(f"usage: python -m fleet {{{'|'.join(VERBS)}}} ...\n")
        return 4
    return int(importlib.import_module(VERBS[words[0]]).main(words[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
