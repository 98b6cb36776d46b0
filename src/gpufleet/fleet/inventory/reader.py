"""The hosts of an inventory: their variables and how to reach them, as Ansible reads them.

Ansible's own classes read the inventory, decrypt vaults, merge group variables and evaluate
templates. The option tables of its ssh and sudo plugins turn variables, environment and ansible.cfg
into connection settings, so verification reaches a host exactly as the playbooks do.

Reads inventories and vault password files. Starts no process.
"""

from __future__ import annotations

import difflib
import functools
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible import constants, context
from ansible.cli import CLI
from ansible.errors import AnsibleError
from ansible.inventory.manager import InventoryManager
from ansible.module_utils.common.collections import ImmutableDict
from ansible.parsing.dataloader import DataLoader
from ansible.parsing.vault import VaultSecretsContext
from ansible.plugins.loader import become_loader, connection_loader, init_plugin_loader
from ansible.template import Templar, trust_as_template
from ansible.utils.vars import load_extra_vars
from ansible.vars.manager import VariableManager

from gpufleet.documents.spec import declares
from gpufleet.errors import ConfigurationError
from gpufleet.paths import ROOT

from . import image, typed
from .hosts import Become, Connection, HostSelector, InventoryHost, locks_in
from .origins import origin_of_error, origins_of

INVENTORY_SUFFIXES = {".yml", ".yaml", ".json", ".ini", ".toml"}
# Files without a suffix that may be beside an inventory; so may README and the like.
NO_INVENTORIES = {"Makefile", "Dockerfile", "Vagrantfile"}
# Variables of ours that are read beside the spec, which types all others.
OWN_TEXTS = {
    "gpu_artifacts_source",
    "gpu_pip_index_url",
    "gpu_pair_address",
    "gpu_nccl_dir",
    "gpu_node_name",
    "gpu_scheduler_host",
}


def read(selector: HostSelector) -> list[InventoryHost]:
    """Every host that the selector matches. Raises `ConfigurationError` if there is none."""
    sources = list(selector.inventories) or list(constants.DEFAULT_HOST_LIST)
    for source in sources:
        if "," not in source and not Path(source).exists():
            raise ConfigurationError(
                "The inventory does not exist.", source, "Give a file, a directory, or 'host,'."
            )
    try:
        return _read(sources, selector)
    except AnsibleError as error:
        where = origin_of_error(error) or ", ".join(sources)
        raise ConfigurationError(str(error.message).strip(), where, "Fix the inventory.") from error


@functools.cache
def start_ansible() -> None:
    """Load Ansible's plugins, once; afterwards collections are found by their names."""
    init_plugin_loader()
    VaultSecretsContext.initialize(VaultSecretsContext([]))
    # Ansible knows the options of a plugin once it has loaded it.
    connection_loader.get("ssh", class_only=True)
    become_loader.get("sudo", class_only=True)


class _Inventory(InventoryManager):  # type: ignore[misc]
    """Ansible's inventory, but a source that cannot be parsed is an error.

    Ansible skips it with a warning, and its hosts would silently not be checked.
    """

    def parse_source(self, source: str, cache: bool = False) -> bool:
        """Called by Ansible for each source, and for each entry of a directory."""
        parsed = bool(super().parse_source(source, cache=cache))
        path = Path(source)
        # A directory also holds other files; their names tell them apart.
        named = (
            source in self._sources
            or path.suffix in INVENTORY_SUFFIXES
            or os.access(path, os.X_OK)
            # Such as `hosts`, not README and LICENSE.
            or not (path.suffix or path.name.isupper() or path.name in NO_INVENTORIES)
        )
        if not parsed and path.is_file() and named and path.stat().st_size:
            raise ConfigurationError(
                "The file cannot be parsed as an inventory; see Ansible's warning above.",
                source,
                "Fix it, or move it out of the inventory.",
            )
        return parsed


def refuse_misspelt(group: str, groups: Iterable[str]) -> None:
    """Refuse a group that is probably meant to be the one of the hosts: all would be selected."""
    others = [name for name in groups if not name.startswith(group)]
    near = difflib.get_close_matches(group, others, 1, 0.85)
    if near and group not in groups:
        raise ConfigurationError(
            f"There is no group '{group}', so that all hosts of the inventory would be selected;"
            f" there is '{near[0]}'.",
            "",
            f"Rename it to '{group}', or to what is less like it.",
        )


def _read(sources: list[str], selector: HostSelector) -> list[InventoryHost]:
    start_ansible()
    context.CLIARGS = ImmutableDict(extra_vars=tuple(map(trust_as_template, selector.extra_vars)))
    # Ansible caches the extra variables for the life of the process.
    load_extra_vars.extra_vars = None
    loader = DataLoader()
    secrets = CLI.setup_vault_secrets(
        loader,
        list(constants.DEFAULT_VAULT_IDENTITY_LIST),
        auto_prompt=False,
        vault_password_files=list(selector.vault_password_files),
        initialize_context=False,
    )
    loader.set_vault_secrets(secrets)
    # One context per process, and it can be created only once.
    VaultSecretsContext.current().secrets = secrets
    inventory = _Inventory(loader=loader, sources=sources)
    variables = VariableManager(loader=loader, inventory=inventory)
    if selector.limit:
        inventory.subset(selector.limit)
    refuse_misspelt(selector.group, inventory.groups)
    hosts = inventory.get_hosts(selector.group if selector.group in inventory.groups else "all")
    if not hosts:
        raise ConfigurationError(
            f"No host matches --limit {selector.limit}."
            if selector.limit
            else "The inventory has no hosts.",
            ", ".join(sources),
            f"Add hosts to the group '{selector.group}', or correct the limit.",
        )
    return [
        _inventory_host(host, variables.get_vars(host=host), loader, selector.domain)
        for host in hosts
    ]


def _inventory_host(
    host: Any, variables: dict[str, Any], loader: Any, domain: str | None = None
) -> InventoryHost:
    templar = Templar(loader=loader, variables=variables)
    values = {
        name: _templated(templar, host.name, name, variables[name])
        for name in sorted(variables)
        if (name.startswith("ansible_") or declares(name))
        # Ansible's facts about itself.
        and not name.startswith(("ansible_version", "ansible_playbook_python", "ansible_config"))
    }
    declared = {name: value for name, value in values.items() if declares(name)}
    typed.host_name(host.name)
    locks_dir = typed.directory(
        declared.get("gpu_locks_dir") or f"{variables.get('inventory_dir') or ROOT}/stacks",
        f"{host.name}: gpu_locks_dir",
    )
    for name in OWN_TEXTS & set(declared):
        typed.text(declared[name], f"{host.name}: {name}")
    keeps = _templated(templar, host.name, "artifacts_keep", variables.get("artifacts_keep", False))
    return InventoryHost(
        host.name,
        declared,
        connection_of(host.name, values),
        locks_in(locks_dir),
        locks_dir,
        typed.flag(keeps, f"{host.name}: artifacts_keep"),
        _domain(templar, host, variables, domain) if domain else None,
        dict(place for name in declared for place in origins_of(name, variables[name])),
    )


def _domain(templar: Any, host: Any, variables: dict[str, Any], domain: str) -> str | None:
    if domain in variables:
        value = _templated(templar, host.name, domain, variables[domain])
        if not isinstance(value, str | int | float):
            raise typed.refused(f"{host.name}: {domain}", value, "text or a number")
        return str(value)
    names = sorted(group.name for group in host.get_groups())
    return next((name for name in names if name.startswith(f"{domain}_")), None)


def _templated(templar: Any, host: str, name: str, value: Any) -> Any:
    try:
        # JSON removes Ansible's tags and evaluates templates that are nested in the value.
        return json.loads(json.dumps(templar.template(value), default=str))
    except (AnsibleError, TypeError, ValueError) as error:
        message = getattr(error, "message", None) or str(error)
        raise ConfigurationError(
            f"The value cannot be evaluated: {str(message).strip()}",
            f"{host}: {name}",
            "Fix it in the inventory.",
        ) from error


def connection_of(name: str, values: Mapping[str, Any]) -> Connection:
    """The connection settings that Ansible would use for a host with these variables."""
    kind = str(values.get("ansible_connection") or constants.DEFAULT_TRANSPORT)
    if name == "localhost" and "ansible_connection" not in values:
        kind = "local"
    if kind == image.CONNECTION:
        return _connection_of_image(name, values)
    kind = {"smart": "ssh"}.get(kind, kind).rpartition(".")[2]
    if kind not in {"ssh", "local"}:
        raise ConfigurationError(
            f"The connection plugin '{kind}' is not supported.",
            f"{name}: ansible_connection",
            f"Use ssh, local or {image.CONNECTION}.",
        )
    ssh = _plugin_options("connection", "ssh", name, values)
    arguments = [
        argument
        for option in ("ssh_args", "ssh_common_args", "ssh_extra_args")
        for argument in typed.arguments(ssh[option], f"{name}: ansible_{option}")
    ]
    has_address = "ansible_host" in values or "ansible_ssh_host" in values
    address = ssh["host"] if has_address else name
    return Connection(
        name=name,
        kind=kind,
        address=typed.address(address, f"{name}: ansible_host") if kind == "ssh" else name,
        user=typed.account(ssh["remote_user"], f"{name}: ansible_user"),
        port=typed.port(ssh["port"], f"{name}: ansible_port"),
        key=typed.text(ssh["private_key_file"], f"{name}: ansible_ssh_private_key_file"),
        ssh_arguments=tuple(arguments),
        connect_timeout_s=typed.seconds(ssh["timeout"], f"{name}: ansible_ssh_timeout"),
        ssh_executable=typed.text(ssh["ssh_executable"], f"{name}: ansible_ssh_executable")
        or "ssh",
        python=_python(name, values),
        become=_become(name, values),
    )


def _connection_of_image(name: str, values: Mapping[str, Any]) -> Connection:
    """The connection to an image that is being built, in which every command is root's."""
    place = typed.directory(values.get("ansible_host") or name, f"{name}: ansible_host")
    return Connection(
        name=name,
        kind="local",
        address=name,
        python=_python(name, values),
        become=Become(enabled=False),
        launcher=image.launcher(place),
    )


def _python(name: str, values: Mapping[str, Any]) -> str:
    python = typed.text(
        values.get("ansible_python_interpreter"), f"{name}: ansible_python_interpreter"
    )
    return python if python and not python.startswith("auto") else "python3"


def _plugin_options(kind: str, plugin: str, host: str, values: Mapping[str, Any]) -> dict[str, Any]:
    try:
        options: dict[str, Any] = constants.config.get_plugin_options(
            kind, plugin, variables=dict(values)
        )
    except (AnsibleError, TypeError, ValueError) as error:
        message = str(getattr(error, "message", None) or error).strip()
        raise ConfigurationError(
            f"A variable of the {plugin} plugin cannot be used: {message}",
            f"{host}: ansible_*",
            "Correct it in the inventory.",
        ) from error
    return options


def _become(name: str, values: Mapping[str, Any]) -> Become:
    method = str(values.get("ansible_become_method") or constants.DEFAULT_BECOME_METHOD)
    if method.rpartition(".")[2] != "sudo":
        raise ConfigurationError(
            f"The become method '{method}' is not supported.",
            f"{name}: ansible_become_method",
            "Use sudo.",
        )
    sudo = _plugin_options("become", "sudo", name, values)
    become = values.get("ansible_become")
    return Become(
        None if become is None else typed.flag(become, f"{name}: ansible_become"),
        typed.account(sudo["become_user"] or "root", f"{name}: ansible_become_user") or "root",
        typed.secret(sudo["become_pass"], f"{name}: ansible_become_password"),
    )
