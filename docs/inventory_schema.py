# Apache-2.0, see LICENSE
"""The JSON Schema of the inventory's variables, by which an editor completes and checks them.

Names, types, defaults and descriptions come from the roles' argument specifications, words from the
parser, releases from the catalog. One schema serves variable files and `hosts.yml`: whatever is not
a variable of ours may be a group.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from gpufleet.catalog import container_toolkit
from gpufleet.catalog.network import read_requests
from gpufleet.components import resolver
from gpufleet.components.base import expected_network as network
from gpufleet.components.base.expectation import (
    CHOICES,
    GPUDIRECT_MODULES,
    MOST_CLIQUES,
    MOST_GPUS,
    RACK,
)
from gpufleet.components.driver.declare import CONTAINER_SOURCES, SOURCES
from gpufleet.components.network import declare as parse_network
from gpufleet.documents import manifest
from gpufleet.documents.json_schema import DRAFT
from gpufleet.documents.spec import KEYS, LOCAL, MODULES, PIP
from gpufleet.frameworks import FRAMEWORKS

Schema = dict[str, Any]
VERSION = {"type": "string", "pattern": r"^\s*[0-9]+(\.[0-9]+)*\s*$"}
PATH = {"type": "string", "pattern": r"^/[A-Za-z0-9._+-](?!.*/\.\.(/|$))[A-Za-z0-9._+/-]*$"}
TEXT = {"type": "string", "minLength": 1}
MANIFEST_VALUE = {**TEXT, "maxLength": manifest.MOST_TEXT}
LOCATION = {"type": "string", "pattern": r"^(|(~?/|https?://[^\s/@]+(/|$))[^\s@]*)$"}
FLAG = {
    "anyOf": [
        {"type": "boolean"},
        {"type": "string", "pattern": "^([Tt]rue|[Yy]es|[Oo]n|[Ff]alse|[Nn]o|[Oo]ff)$"},
    ]
}
VARIABLES = {
    "type": "object",
    "additionalProperties": {"type": ["string", "boolean", "integer", "null"]},
}
PROFILES = {
    "type": "array",
    "items": {"type": "string", "pattern": r"^[1-9][0-9]*g\.[0-9]+gb([+-](me|gfx|me\.all))?$"},
}
# A value that is not set, and one that Ansible computes.
UNSET = {"$ref": "#/$defs/unset"}
# By type of the argument specification, where `SHAPES` has no other.
TYPES: dict[str, Schema] = {
    "str": TEXT,
    "path": PATH,
    "bool": FLAG,
    "int": {"type": "integer", "minimum": 0},
    "float": {"type": "number", "exclusiveMinimum": 0},
    "list": {"type": "array", "items": TEXT},
    "dict": {"type": "object"},
    "raw": {},
}


def digest(length: int) -> Schema:
    """A checksum of `length` hexadecimal digits."""
    return {"type": "string", "pattern": f"^[0-9a-fA-F]{{{length}}}$"}


def mapping(**keys: Schema) -> Schema:
    """A mapping with these keys only."""
    return {"type": "object", "properties": keys, "additionalProperties": False}


def completed(values: Iterable[str], free: Schema) -> Schema:
    """Text of its own form, with the values that an editor suggests."""
    return {"anyOf": [{"enum": list(values)}, free]}


PORTS: Schema = {"type": "string", "pattern": f"^{network.PATTERN}$"}

# The forms and the words of values, which the argument specifications do not have.
SHAPES: dict[str, Schema] = {
    **{
        f"gpu_stacks.{each.id}": completed(resolver.releases(each.id), TEXT)
        for each in FRAMEWORKS.values()
    },
    "gpu_stacks.cuda": {"anyOf": [VERSION, {"enum": [PIP, LOCAL]}]},
    "gpu_stacks.cudnn": VERSION,
    "gpu_stacks.python": {"anyOf": [VERSION, PATH]},
    "gpu_stacks.name": {"type": "string", "pattern": "^[a-z0-9][a-z0-9._+-]*$"},
    "gpu_stacks.index": {"type": "string", "pattern": r"^https://[^\s/@]+(/[^\s@]*)?$"},
    "gpu_stacks.environment": VARIABLES,
    "gpu_stack_environment": VARIABLES,
    "gpu_toolkits": {
        "type": "array",
        "items": {
            "anyOf": [
                VERSION,
                {
                    **mapping(
                        cuda=VERSION,
                        cudnn={"anyOf": [VERSION, {"type": "array", "items": VERSION}]},
                    ),
                    "required": ["cuda"],
                },
            ]
        },
    },
    "gpu_cuda_default": VERSION,
    "gpu_driver.branch": {
        "anyOf": [
            {"type": "string", "pattern": r"^R?[0-9]+(\.[0-9]+)*$"},
            {"type": "integer"},
        ]
    },
    "gpu_driver.source": {"enum": list(SOURCES)},
    "gpu_driver.module": {"enum": list(MODULES)},
    "gpu_mig": {
        "anyOf": [
            PROFILES,
            mapping(all=PROFILES),
            {
                "type": "object",
                "patternProperties": {"^[0-9]{1,3}$": PROFILES},
                "additionalProperties": False,
            },
        ]
    },
    "gpu_network.driver": {"enum": list(parse_network.DRIVERS)},
    "gpu_network.max_read_request_bytes": {"enum": read_requests()},
    "gpu_network.acs": {"enum": ["off", False]},
    **{
        f"gpu_network.repository.{key}": {"type": "string", "pattern": rf"^\s*{pattern}\s*$"}
        for key, pattern in parse_network.PATTERNS.items()
    },
    "gpu_network.repository.fingerprints": {
        "type": "array",
        "minItems": 1,
        "items": {"type": "string", "pattern": r"^(\s*[0-9a-fA-F]){40}(\s*[0-9a-fA-F]){0,24}\s*$"},
    },
    "gpu_containers.engine": {"enum": ["docker", "podman"]},
    "gpu_containers.source": {"enum": list(CONTAINER_SOURCES)},
    "gpu_containers.toolkit": VERSION,
    "gpu_containers.image": {"type": "string", "pattern": r"^[A-Za-z0-9][\w.:/@-]*$"},
    "gpu_containers.data_root": PATH,
    "gpu_containers.accept_cves": {
        "type": "array",
        "items": {"enum": [each.cve for each in container_toolkit.known()]},
    },
    "gpu_expect.count": {"type": "integer", "minimum": 0, "maximum": MOST_GPUS},
    "gpu_expect.ecc": {"anyOf": [{"enum": ["on", "off"]}, {"type": "boolean"}]},
    **{f"gpu_expect.{key}": {"enum": list(values)} for key, values in CHOICES.items()},
    **{
        f"gpu_expect.{link}.{key}": {"enum": list(values)}
        for link in ("pcie", "network.pcie")
        for key, values in network.PCIE.items()
    },
    "gpu_expect.fabric.rack": {"type": "string", "pattern": f"^{RACK}$"},
    "gpu_expect.fabric.clique": {"type": "integer", "minimum": 0, "maximum": MOST_CLIQUES},
    "gpu_expect.modules": {"type": "array", "items": {"enum": list(GPUDIRECT_MODULES)}},
    "gpu_expect.network.lossless_priority": {
        "type": "integer",
        "minimum": 0,
        "maximum": network.LAST_PRIORITY,
    },
    "gpu_expect.network.ports": {
        "anyOf": [PORTS, {"type": "array", "minItems": 1, "items": PORTS}]
    },
    "gpu_expect.network.count": {
        "type": "integer",
        "minimum": 0,
        "maximum": network.MOST_PORTS,
    },
    "gpu_expect.network.gid_index": {
        "type": "integer",
        "minimum": 0,
        "maximum": network.MOST_GIDS,
    },
    **{
        f"gpu_expect.network.{key}": {"enum": list(values)}
        for key, values in network.CHOICES.items()
    },
    "gpu_manifest": {
        "type": "object",
        "propertyNames": {
            "anyOf": [{"enum": list(manifest.NAMES)}, {"pattern": f"^{manifest.MOUNT}/"}]
        },
        "additionalProperties": {
            "anyOf": [
                MANIFEST_VALUE,
                {"type": "array", "items": MANIFEST_VALUE},
                {"type": "null"},
            ]
        },
    },
    "gpu_artifacts": {
        "type": "object",
        "additionalProperties": mapping(
            sha256=digest(64),
            sha512=digest(128),
            md5=digest(32),
            size_bytes=TYPES["int"],
            url={"type": "string", "minLength": 1, "not": {"pattern": r"//[^/\s]*@"}},
            file={"type": "string", "pattern": "^[^./][^/]*$"},
        ),
    },
    "gpu_artifacts_source": LOCATION,
    "gpu_wheelhouse": LOCATION,
    # These are evaluated by Ansible, and may be anything that its roles accept.
    "gpu_pip_index_url": {"type": "string"},
    "gpu_artifacts_cache": {"type": "string"},
    "gpu_locks_dir": {"type": "string"},
}


# The keys that a mapping needs; an entry of gpu_stacks needs its framework.
REQUIRED: dict[str, Schema] = {
    "gpu_expect.network": {"required": ["ports"]},
    "gpu_network.repository": {"required": ["uri", "key", "fingerprints"]},
}


def text(specifications: Iterable[dict[str, Any]], plain: Callable[[str], str]) -> str:
    """The schema, of all roles' argument specifications; `plain` makes Markdown of their texts."""
    variables: dict[str, Schema] = {}
    for specification in specifications:
        for described in specification["argument_specs"].values():
            for name, option in described["options"].items():
                if name.startswith("gpu_") or name in KEYS:
                    variables.setdefault(name, _variable(name, option, plain))
    return json.dumps(_whole(dict(sorted(variables.items()))), ensure_ascii=False) + "\n"


def _variable(path: str, option: dict[str, Any], plain: Callable[[str], str]) -> Schema:
    shape = SHAPES.get(path) or TYPES[option.get("type", "str")]
    if "choices" in option:
        shape = {"enum": option["choices"]}
    if "options" in option:
        keys = option["options"].items()
        shape = mapping(**{key: _variable(f"{path}.{key}", each, plain) for key, each in keys})
        if option["type"] == "dict":
            shape |= REQUIRED.get(path, {})
        else:
            needed = REQUIRED.get(path) or {"oneOf": [{"required": [each]} for each in FRAMEWORKS]}
            shape = {"type": "array", "items": {**shape, **needed}}
    described: Schema = {"description": plain(option["description"])}
    # A default that Ansible computes is none to suggest.
    if "default" in option and re.fullmatch(r"auto|true|false|/[a-z/]*", _word(option["default"])):
        described["default"] = option["default"]
    if examples := re.findall(r"V\(([^)]*\d[^)]*)\)", option["description"]):
        described["examples"] = [each.strip('"') for each in examples]
    return {**described, "anyOf": [*shape.get("anyOf", [shape]), UNSET]}


def _word(value: object) -> str:
    return str(value).lower()


def _whole(variables: dict[str, Schema]) -> Schema:
    names = "|".join(name.removeprefix("gpu_") for name in variables if name.startswith("gpu_"))
    group = {
        "properties": {
            "hosts": {"additionalProperties": {"$ref": "#"}},
            "children": {"additionalProperties": {"$ref": "#/$defs/group"}},
            "vars": {"$ref": "#"},
        }
    }
    return {
        "$schema": DRAFT,
        "title": "Inventory of gpufleet",
        "description": "Variables of a group or a host, or the groups of hosts.yml.",
        "type": ["object", "null"],
        "properties": variables,
        "patternProperties": {
            f"^gpu_(?!({names})$)": {
                "description": "gpufleet has no variable of this name. A group may have it.",
                "$ref": "#/$defs/group",
                "type": "object",
                "propertyNames": {"enum": list(group["properties"])},
            }
        },
        "additionalProperties": {"$ref": "#/$defs/group"},
        "$defs": {
            "group": group,
            "unset": {"anyOf": [{"type": "null"}, {"type": "string", "pattern": r"\{\{"}]},
        },
    }
