"""Containers that get no GPUs, or lose them. The host has two cards, as stand-ins."""

from __future__ import annotations

from tests.faults.catalogue import Fault
from tests.faults.libraries import PROVISION

# Somebody's configuration management wrote the file without what it did not know of.
FORGET = """
import json
path = "/etc/docker/daemon.json"
kept = {key: value for key, value in json.load(open(path)).items() if key != "runtimes"}
json.dump(kept, open(path, "w"))
"""

CONFIGURATION = "/etc/nvidia-container-runtime/config.toml"

FAULTS = [
    Fault(
        "53",
        "containers lose their GPUs after `systemctl daemon-reload`: no links in /dev/char",
        "host",
        "containers.reload",
        "/dev/char/203:1 missing: with systemd before 240, or an older runc",
        PROVISION,
        "rm /dev/char/203:1",
        also=("containers.cdi",),
    ),
    Fault(
        "54",
        "`could not select device driver` with capabilities `gpu`: no runtime registered",
        "host",
        "containers.runtime",
        "daemon.json does not register the runtime nvidia",
        PROVISION,
        f"python3 -c '{FORGET}'; systemctl restart docker",
    ),
    Fault(
        "54",
        "the CDI specification is for an older driver",
        "host",
        "containers.cdi",
        "is for driver 535.261.03, and 550.163.01 is loaded",
        PROVISION,
        "sed -i s/535.261.03/550.163.01/ /srv/driver/nvidia/version",
        repair="sed -i s/550.163.01/535.261.03/ /srv/driver/nvidia/version",
    ),
    Fault(
        "54",
        "the CDI specification is missing",
        "host",
        "containers.cdi",
        "There is no CDI specification",
        PROVISION,
        "rm -f /etc/cdi/nvidia* /run/cdi/nvidia*",
    ),
    Fault(
        "x39",
        "`docker run --gpus all` is denied its GPUs, `nvidia-docker run` is not: `no-cgroups = true`",
        "host",
        "containers.gpus",
        "Started by docker run --gpus all or docker run --runtime=nvidia, a container cannot open",
        "set no-cgroups = false below",
        f"printf '[nvidia-container-cli]\\nno-cgroups = true\\n' >>{CONFIGURATION}",
        repair=f"sed -i '/nvidia-container-cli/,$d' {CONFIGURATION}",
    ),
]
