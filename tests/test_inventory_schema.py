# Apache-2.0, see LICENSE
"""The schema by which editors complete and check an inventory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from gpufleet.cli import init
from gpufleet.cli.main import main
from gpufleet.components.resolver import resolve
from gpufleet.documents.spec import KEYS
from tests.support.rdma_host import REPOSITORY
from tests.support.wrong_variables import WRONG

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = json.loads(init.SCHEMA.read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
FILES = [
    path
    for folder in ("inventory", "src/gpufleet/cli/inventory_template")
    for path in sorted((ROOT / folder).rglob("*.yml"))
]
SNIPPETS = [
    (page.name, block)
    for page in sorted((ROOT / "docs/how-to").glob("*.md"))
    for block in re.findall(r"(?m)(?:^ {4}\S.*\n(?: {4}.*\n)*)", page.read_text())
    if re.match(r" {4}gpu_\w+:", block)
]
# In the place of a mapping: an item of a list.
ITEM = "[]"
# How the parser begins the keys of a mapping.
KNOWN = "remove it; the keys are "
# What depends on several values, which a schema of single ones does not compare.
TOGETHER = [
    {"gpu_containers": {"engine": "podman", "source": "docker_repo"}},
    {"gpu_network": {"driver": "inbox", "repository": REPOSITORY}},
]


def test_the_schema_has_every_variable_of_the_spec() -> None:
    VALIDATOR.check_schema(SCHEMA)
    assert set(KEYS) - set(SCHEMA["properties"]) == set()
    assert all(row["description"] for row in SCHEMA["properties"].values())


def mappings(schema: dict[str, Any], *place: str) -> Iterator[tuple[tuple[str, ...], set[str]]]:
    """Each mapping of fixed keys that a schema has: where it stands, and its keys."""
    for each in schema.get("anyOf", ()):
        yield from mappings(each, *place)
    if "items" in schema:
        yield from mappings(schema["items"], *place, ITEM)
    if keys := schema.get("properties"):
        yield place, set(keys)
        for key, part in keys.items():
            yield from mappings(part, *place, key)
    if isinstance(others := schema.get("additionalProperties"), dict):
        yield from mappings(others, *place, "other.run")


MAPPINGS = [
    found
    for key in KEYS
    if key != "gpu_mig"  # its keys are numbers of GPUs
    for found in mappings(SCHEMA["properties"].get(key, {}), key)
]


@pytest.mark.parametrize(("place", "keys"), MAPPINGS, ids=[".".join(row[0]) for row in MAPPINGS])
def test_a_mapping_has_the_keys_that_the_parser_reads(
    place: tuple[str, ...], keys: set[str]
) -> None:
    """A key without its option is refused by Ansible; an option that is not read, by the parser."""
    declared: Any = {"no such key": None}
    for key in reversed(place):
        # Of the network's rows the parser reads those alone that name their ports.
        declared = [{"ports": "mlx5_0", **declared}] if key == ITEM else {key: declared}
    remedies = {each["remedy"] for each in resolve(declared)["problems"]}
    (known,) = (each for each in remedies if each.startswith(KNOWN))
    assert keys == set(known.removeprefix(KNOWN).split(", "))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_an_example_inventory_is_accepted(path: Path) -> None:
    VALIDATOR.validate(yaml.safe_load(path.read_text()))


@pytest.mark.parametrize(("page", "block"), SNIPPETS)
def test_a_snippet_of_the_guides_is_accepted(page: str, block: str) -> None:
    # A guide leaves a checksum out.
    VALIDATOR.validate(yaml.safe_load(block.replace("...", "0" * 64)))


@pytest.mark.parametrize("variables", [row[0] for row in WRONG if row[0] not in TOGETHER])
def test_a_value_that_the_parser_refuses_is_marked(variables: dict[str, Any]) -> None:
    assert not VALIDATOR.is_valid(variables)
    assert not VALIDATOR.is_valid({"gpus": {"hosts": {"gpu01": variables}}})
    assert not VALIDATOR.is_valid({"gpus": {"children": {"new": {"vars": variables}}}})


@pytest.mark.parametrize(
    "variables",
    [
        {"gpu_stack": []},
        {"gpu_accept_nvidia_eual": True},
        {"gpu_stacks": [{"tensorflow": "2.13.1", "cudn": "8.6"}]},
        {"gpu_stacks": [{"tensorflow": "2.13.1", "jax": "0.5.3"}]},
        {"gpu_expect": {"pcie": {"width": 3}}},
        {"gpu_expect": {"modules": ["nvidia"]}},
        {"gpu_expect": {"fabric": {"rack": "a b"}}},
        {"gpu_expect": {"network": [{"ports": "mlx5_0", "lossless_priority": 8}]}},
    ],
)
def test_an_unknown_or_contradicting_key_is_marked(variables: dict[str, Any]) -> None:
    assert not VALIDATOR.is_valid(variables)


@pytest.mark.parametrize(
    "variables",
    [
        None,
        {"gpu_stacks": "{{ common_stacks }}", "gpu_prune": "{{ prune }}"},
        {"gpu_stacks": [{"tensorflow": "99.1.0"}], "gpu_driver": {"branch": 580}},
        {"gpu_mig": {0: ["3g.40gb"], "1": []}} | {"gpu_prune": "yes", "gpu_gpus": None},
        {"ansible_port": 2222, "ldap": {"hosts": ["a", "b"]}},
        {"gpu_control": {"hosts": {"control1": None}}, "gpu_all": {"children": {"gpu_hosts": {}}}},
    ],
)
def test_a_correct_file_is_accepted(variables: dict[str, Any] | None) -> None:
    # As the editor reads it: the keys of a JSON object are text.
    VALIDATOR.validate(json.loads(json.dumps(variables)))


def test_the_files_of_init_name_the_schema_beside_them(tmp_path: Path) -> None:
    directory = tmp_path / "fleet"
    assert main(["init", str(directory)]) == 0
    for name in ("hosts.yml", "group_vars/gpu_hosts/main.yml"):
        path = directory / name
        named = re.match(r"# yaml-language-server: \$schema=(\S+)\n", path.read_text())
        assert named
        assert json.loads((path.parent / named[1]).read_text()) == SCHEMA
