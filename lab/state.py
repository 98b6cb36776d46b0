"""Record the running hosts for the inventory script: addresses, and how to connect by ssh."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass

from lab import files
from lab.settings import USER, Lab

SCHEMA = 1


@dataclass(frozen=True)
class Host:
    name: str
    address: str
    suite: str
    container: str
    state: str = "running"


def save(lab: Lab, hosts: list[Host]) -> None:
    document = {
        "schema": SCHEMA,
        "instance": lab.instance,
        "ssh": {
            "user": USER,
            "key": str(lab.key),
            "common_args": shlex.join(lab.ssh_options()),
        },
        "hosts": [asdict(host) for host in hosts],
    }
    files.write(lab.state, json.dumps(document, indent=2) + "\n", mode=0o600)


def load(lab: Lab) -> list[Host]:
    """The hosts that answered when they were written down; none where nothing readable is."""
    try:
        return [Host(**row) for row in json.loads(lab.state.read_text(encoding="utf-8"))["hosts"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []
