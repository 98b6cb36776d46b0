"""Read the receipts and journal entries that gpufleet keeps on the host."""

import json
import os

from .host import SCHEMA
from .text import open_regular

# The keys that a record must have to be of use: {kind: {key: type}}.
REQUIRED_KEYS = {
    "receipts": {"kind": str, "id": str, "path": str, "version": str, "manifest": list},
    "journal": {"kind": str, "id": str, "path": str, "state": str},
}

# Kinds whose receipt lists the files of a tree.
TREES = ("toolkit", "cudnn", "stack")


def why_unusable(kind, document):
    """Why a receipt or journal entry cannot be used, if it cannot."""
    if not isinstance(document, dict):
        return "it is not a JSON object"
    if document.get("schema") != SCHEMA:
        return "its schema is %s, known is %d" % (document.get("schema"), SCHEMA)
    for key, shape in sorted(REQUIRED_KEYS[kind].items()):
        if not isinstance(document.get(key), shape):
            return "it has no %s" % key
    for entry in document.get("manifest", []):
        if (
            not isinstance(entry, dict)
            or not isinstance(entry.get("path"), str)
            or entry.get("type") not in ("file", "link")
        ):
            return "its manifest is damaged"
    # It would vouch for nothing by listing nothing.
    if kind == "receipts" and document["kind"] in TREES and not document["manifest"]:
        return "its manifest is empty"
    return None


def read_receipts(state_dir):
    """The records "receipts", "journal" and "unreadable" (path, error), as they stand."""
    found = {"receipts": [], "journal": [], "unreadable": []}
    for kind in ("receipts", "journal"):
        directory = os.path.join(state_dir, kind)
        try:
            names = sorted(os.listdir(directory))
        except FileNotFoundError:
            continue
        except NotADirectoryError as error:
            found["unreadable"].append({"path": directory, "error": error.strerror})
            continue
        for name in names:
            path = os.path.join(directory, name)
            # Others are partial files on their way to be renamed.
            if not name.endswith(".json") or name.startswith("."):
                continue
            try:
                with open_regular(path) as stream:
                    document = json.loads(stream.read().decode("utf-8"))
                reason = why_unusable(kind, document)
                if not reason and name != "{kind}-{id}.json".format(**document):
                    reason = "it is of {kind} {id}".format(**document)
                if reason:
                    raise ValueError(reason)
                found[kind].append(document)
            except (OSError, ValueError, RecursionError) as error:
                reason = getattr(error, "strerror", None) or str(error)
                found["unreadable"].append({"path": path, "error": reason})
    return found


def receipts_of_kind(host, kind):
    return [r for r in read_receipts(host.path(host["state_dir"]))["receipts"] if r["kind"] == kind]
