"""`gpufleet init DIR`: an inventory to start from. Writes into DIR, which must be empty."""

from __future__ import annotations

import argparse
import shlex
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from gpufleet.errors import ConfigurationError
from gpufleet.paths import ROOT

from .parser import Parser

TEMPLATE = resources.files(__package__) / "inventory_template"
# Stored under other names, since they have a meaning in the package itself.
NAMES = {"gitignore": ".gitignore"}
# The editor's schema; the files of the template name it where it is copied to.
SCHEMA = ROOT / "docs" / "reference" / "schemas" / "inventory.json"
SCHEMA_COPY = Path(".gpufleet", "inventory.schema.json")


def parser() -> Parser:
    """The options."""
    verb = Parser(
        "init",
        ("init fleet", "init /srv/inventories/gpus"),
        usage="DIR",
        exit_status="Exit status: 0 written, 4 the directory is not empty.",
    )
    verb.add_argument_group("Inventory").add_argument(
        "directory",
        type=Path,
        metavar="DIR",
        help="Create the inventory in this directory, which must be empty or absent",
    )
    return verb


def run(options: argparse.Namespace, _: list[str]) -> int:
    """Write the inventory, and print the next steps; the exit status."""
    directory: Path = options.directory
    try:
        if directory.exists() and any(directory.iterdir()):
            raise ConfigurationError(
                "The directory is not empty.",
                str(directory),
                "Name one that is empty or does not exist.",
            )
        copy(TEMPLATE, directory)
        (directory / SCHEMA_COPY).parent.mkdir()
        (directory / SCHEMA_COPY).write_bytes(SCHEMA.read_bytes())
    except OSError as error:
        raise ConfigurationError(
            f"It cannot be written: {error}.",
            str(directory),
            "Name a directory that you can write.",
        ) from error
    name = shlex.quote(str(directory))
    print(f"""The inventory is in {directory}. Next:
  1. Name your hosts in {directory / "hosts.yml"}.
  2. Declare their stacks in {directory / "group_vars/gpu_hosts/main.yml"}.
  3. gpufleet plan -i {name} --offline
  4. gpufleet plan -i {name}
  5. gpufleet provision -i {name} --limit HOST""")
    return 0


def copy(source: Traversable, target: Path) -> None:
    """Copy a directory of the package."""
    target.mkdir(parents=True, exist_ok=True)
    for entry in source.iterdir():
        path = target / NAMES.get(entry.name, entry.name)
        if entry.is_dir():
            copy(entry, path)
        else:
            path.write_bytes(entry.read_bytes())
