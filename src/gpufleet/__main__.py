"""`python -m gpufleet VERB ...`: each verb is a module of `cli` with `main(args) -> status`."""

from __future__ import annotations

import importlib
import sys

VERBS = {
    "artifacts": "artifacts",
    "catalogue": "verify",
    "history": "history",
    "measure": "measure",
    "nightly": "nightly",
    "pack": "pack",
    "pack-pull": "pack_pull",
    "plan": "verify",
    "provision": "provision",
    "resolve": "resolve",
    "rollout": "rollout",
    "verify": "verify",
}


def main(words: list[str] | None = None) -> int:
    """Run a verb; its exit status."""
    words = sys.argv[1:] if words is None else words
    if not words or words[0] not in VERBS:
        sys.stderr.write(f"usage: gpufleet {{{'|'.join(VERBS)}}} ...\n")
        return 4
    if words[0] in {"catalogue", "plan"}:
        return int(importlib.import_module("gpufleet.cli.verify").main(words))
    return int(importlib.import_module(f"gpufleet.cli.{VERBS[words[0]]}").main(words[1:]))


if __name__ == "__main__":
    sys.exit(main())
