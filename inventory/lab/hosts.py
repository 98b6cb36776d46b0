#!/usr/bin/env python3
"""The lab's hosts and artifacts as an Ansible inventory: what `python -m lab` wrote down.

Standard library only, since any python3 may run it; and it imports nothing of the lab, so that
an inventory can be read where the lab's own requirements are not installed.
"""

import argparse
import json
import os
import sys
from pathlib import Path

# ssh says at once, and by this name, why such a host cannot be reached.
NOT_UP = "lab-is-not-up.invalid"
USUAL_HOSTS = ["lab1", "lab2"]
# As lab/settings.py has it.
ARTIFACTS = {"slim": "artifacts", "whole": "artifacts-whole"}


def cache_root():
    """As lab/settings.py has it."""
    chosen = os.environ.get("GPUFLEET_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(chosen).absolute() if chosen else base / "gpufleet"


def read(path):
    """A JSON document, or None where there is none or only a damaged one."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{path} cannot be read ({error}); `python -m lab up` writes it anew\n")
        return None


def directory():
    """The directory of this lab's instance."""
    return cache_root() / "lab" / (os.environ.get("GPUFLEET_LAB") or "lab")


def inventory():
    libraries = os.environ.get("GPUFLEET_LAB_LIBRARIES") or "slim"
    if libraries not in ARTIFACTS:
        sys.exit(f"GPUFLEET_LAB_LIBRARIES={libraries!r} is unknown: set it to slim or whole")
    artifacts = cache_root() / "lab" / ARTIFACTS[libraries]
    state = read(directory() / "state.json")
    # Hosts with stand-in GPUs (`lab gpus`) declare them, and the stand-in for their Python.
    gpus = read(directory() / "gpus.json") or {"variables": {}, "hosts": {}}
    if state:
        hostvars = {
            host["name"]: {
                "ansible_host": host["address"],
                "ansible_user": state["ssh"]["user"],
                "ansible_ssh_private_key_file": state["ssh"]["key"],
                "ansible_ssh_common_args": state["ssh"]["common_args"],
                "lab_suite": host["suite"],
                **gpus["hosts"].get(host["name"], {}).get("variables", {}),
            }
            for host in state["hosts"]
        }
    else:
        hostvars = {name: {"ansible_host": NOT_UP} for name in USUAL_HOSTS}
    return {
        "_meta": {"hostvars": hostvars},
        "all": {
            "children": ["gpu_hosts"],
            "vars": {
                "gpu_artifacts_source": str(artifacts),
                "gpu_artifacts": read(artifacts / "catalogue.json") or {},
                **gpus["variables"],
            },
        },
        "gpu_hosts": {"hosts": list(hostvars)},
    }


def main(inventory=inventory):
    parser = argparse.ArgumentParser(description=__doc__)
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--list", action="store_true", help="the whole inventory")
    asked.add_argument("--host", metavar="NAME", help="one host's variables")
    arguments = parser.parse_args()
    document = inventory()
    if arguments.host:
        document = document["_meta"]["hostvars"].get(arguments.host, {})
    json.dump(document, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
