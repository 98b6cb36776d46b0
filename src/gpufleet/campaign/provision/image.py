"""`provision --chroot`: a host of the inventory whose connection leads into an image's directory.

An inventory of one host, beside the selected ones, replaces that host's connection for everything
that reads inventories: the probe, and ansible-playbook. Writes that inventory into a temporary
directory.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from gpufleet.errors import ConfigurationError
from gpufleet.fleet.inventory import HostSelector, inventory_hosts
from gpufleet.fleet.inventory.image import CONNECTION, launcher

WHERE = "--chroot"
# Files of a system's root directory that commands in it need.
NEEDED = ("etc", "dev", "proc", "run", "bin/sh", "usr/bin/python3")


@contextmanager
def in_image(selector: HostSelector, directory: Path) -> Iterator[HostSelector]:
    """The selector of the one host that it selects, as the image in a directory.

    Raises `ConfigurationError` for several hosts, and where the directory is no image.
    """
    place = checked(directory)
    hosts = inventory_hosts(selector)
    if len(hosts) > 1:
        raise ConfigurationError(
            f"An image is provisioned as one host, but {len(hosts)} hosts are selected.",
            ", ".join(host.name for host in hosts[:5]),
            "Select the host whose declaration the image gets: --limit HOST.",
        )
    name = hosts[0].name
    if "/" in name:
        raise ConfigurationError(
            "The host's name has a slash.", name, "Give it another name in the inventory."
        )
    with tempfile.TemporaryDirectory(prefix="gpufleet-image-") as folder:
        # Its own variables count more than those of a host_vars directory beside another inventory.
        own = Path(folder, "host_vars", name)
        own.mkdir(parents=True)
        (own / "image.json").write_text(
            json.dumps(
                {
                    "ansible_connection": CONNECTION,
                    "ansible_host": str(place),
                    "ansible_become": False,
                }
            ),
            encoding="utf-8",
        )
        Path(folder, "hosts.yml").write_text(
            json.dumps({"all": {"hosts": {name: {}}}}), encoding="utf-8"
        )
        image = replace(selector, inventories=[*sources(selector), folder], limit=name)
        # Variables of the command line count more than any inventory.
        if inventory_hosts(image)[0].connection.launcher != launcher(place):
            raise ConfigurationError(
                f"The variables of the command line connect {name} to another place than the"
                " image.",
                "-e",
                "Leave out ansible_connection and ansible_host: --chroot sets them.",
            )
        yield image


def checked(directory: Path) -> Path:
    """The image's directory, without links; raises `ConfigurationError` where it is none."""
    place = Path(os.path.realpath(directory))
    if place == Path("/"):
        raise ConfigurationError(
            "/ is the system that runs.", WHERE, "Provision it by an inventory, without --chroot."
        )
    # Links of the image lead within the image: only that they are there is asked.
    missing = [name for name in NEEDED if not os.path.lexists(place / name)]
    if missing:
        raise ConfigurationError(
            f"{directory} is not the root directory of a system: it has no {missing[0]}.",
            WHERE,
            "Unpack or mount the image there; python3 has to be installed in it.",
        )
    if os.geteuid() != 0:
        raise ConfigurationError(
            "Only root can run commands in an image.", WHERE, "Run the same command with sudo."
        )
    if not shutil.which("unshare"):
        raise ConfigurationError(
            "The program unshare was not found.", WHERE, "Install the package util-linux."
        )
    return place


def sources(selector: HostSelector) -> list[str]:
    """The inventories of a selector; Ansible's own setting where it names none."""
    from ansible import constants  # noqa: PLC0415 (as inventories are read)

    return list(selector.inventories) or list(constants.DEFAULT_HOST_LIST)
