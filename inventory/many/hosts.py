#!/usr/bin/env python3
"""The stand-in for a fleet as an Ansible inventory: each port of lab1 is a host.

`./gpufleet lab many --hosts 100` starts it.
"""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

sys.dont_write_bytecode = True  # an inventory's directory is no place for it
# The lab's own inventory, beside this one.
spec = spec_from_file_location("lab_hosts", Path(__file__).resolve().parents[1] / "lab/hosts.py")
lab = module_from_spec(spec)
spec.loader.exec_module(lab)


def inventory():
    document = lab.inventory()
    many = lab.read(lab.directory() / "many.json") or {"host": "lab1", "first_port": 1, "count": 1}
    reached = document["_meta"]["hostvars"][many["host"]]
    width = len(str(many["count"]))
    hostvars = {
        f"host{number:0{width}}": {"ansible_port": many["first_port"] + number - 1}
        for number in range(1, many["count"] + 1)
    }
    # One host key for all ports: that of the host behind them.
    reached["ansible_ssh_common_args"] = " ".join(
        filter(
            None,
            [reached.get("ansible_ssh_common_args"), f"-o HostKeyAlias={reached['ansible_host']}"],
        )
    )
    document["_meta"]["hostvars"] = hostvars
    document["gpu_hosts"] = {"hosts": list(hostvars), "vars": reached}
    return document


if __name__ == "__main__":
    lab.main(inventory)
