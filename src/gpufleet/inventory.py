"""What the inventory wants of each host and how the host is reached, read by Ansible itself.

Ansible's own classes read the inventory, decrypt vaults, merge group variables and template, and
its own plugins' option tables turn variables, environment and ansible.cfg into ssh and sudo
settings: so this suite reaches a host exactly as the playbooks do.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible import constants, context
from ansible.cli import CLI
from ansible.errors import AnsibleError
from ansible.inventory.manager import InventoryManager
from ansible.module_utils.common.collections import ImmutableDict
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.parsing.dataloader import DataLoader
from ansible.parsing.vault import VaultSecretsContext
from ansible.plugins.loader import become_loader, connection_loader, init_plugin_loader
from ansible.template import Templar
from ansible.utils.vars import load_extra_vars
from ansible.vars.manager import VariableManager

from gpufleet.errors import ConfigurationError
from gpufleet.paths import ROOT

GROUP = "gpu_hosts"
INVENTORY_SUFFIXES = {".yml", ".yaml", ".json", ".ini", ".toml"}
# Set by roles while they run; no wishes.
NOT_WISHES = {"gpu_plan", "gpu_changes"}
SETTINGS = ("ansible_", "gpu_")


@dataclass(frozen=True)
class Become:
    """Become another user by sudo. `wanted` None: if it goes without a password, else not."""

    wanted: bool | None = None
    user: str = "root"
    # Kept out of every repr: logs and tracebacks show those.
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Connection:
    """One host as Ansible's settings describe it."""

    name: str
    kind: str = "ssh"
    address: str = ""
    user: str | None = None
    port: int | None = None
    key: str | None = None
    ssh_arguments: tuple[str, ...] = ()
    connect_timeout_s: int = 10
    ssh_executable: str = "ssh"
    python: str = "python3"
    become: Become = Become()
    # What carries the command on from where it arrives: srun and its options.
    launcher: tuple[str, ...] = ()


@dataclass(frozen=True)
class InventoryHost:
    """One host of the inventory; `locks` are the stacks' locks beside it, {file name: sha256}.

    `locks_dir` is where they lie, there or not. `keeps_artifacts`: what was installed from stays
    on the host (artifacts_keep). `domain` is what the question's `domain` is here.
    """

    name: str
    variables: dict[str, Any]
    connection: Connection
    locks: dict[str, str] = field(default_factory=dict)
    locks_dir: Path = ROOT / "stacks"
    keeps_artifacts: bool = False
    domain: str | None = None


@dataclass(frozen=True)
class HostSelector:
    """Which hosts, by which inventories, with which variables on top.

    `domain` names what fails as one: a variable (`rack: r1`) or the groups of a name (`rack_r1`).
    """

    inventories: Sequence[str] = ()
    limit: str | None = None
    extra_vars: Sequence[str] = ()
    vault_password_files: Sequence[str] = ()
    group: str = GROUP
    domain: str | None = None


def inventory_hosts(question: HostSelector) -> list[InventoryHost]:
    """Every host that the question names, or a `ConfigurationError`."""
    sources = list(question.inventories) or list(constants.DEFAULT_HOST_LIST)
    for source in sources:
        if "," not in source and not Path(source).exists():
            raise ConfigurationError(
                "There is no such inventory.", source, "Name a file, a directory or 'host,'.")
    try:
        return _read(sources, question)
    except AnsibleError as error:
        raise ConfigurationError(
            str(error.message).strip(), ", ".join(sources), "Correct the inventory.") from error


@functools.cache
def start_ansible() -> None:
    """Load Ansible's plugins, once: collections are found by their names from then on."""
    init_plugin_loader()
    VaultSecretsContext.initialize(VaultSecretsContext([]))


class _Inventory(InventoryManager):  # type: ignore[misc]
    """Ansible's, but a source that cannot be read is refused.

    Skipped with a warning, as Ansible does it, it would be a fleet half checked.
    """

    def parse_source(self, source: str, cache: bool = False) -> bool:
        """Ansible's hook: for each source, and each entry of a directory."""
        parsed = bool(super().parse_source(source, cache=cache))
        path = Path(source)
        # In a directory stand other things too, told by their names.
        named = source in self._sources or path.suffix in INVENTORY_SUFFIXES or (
            os.access(path, os.X_OK))
        if not parsed and path.is_file() and named and path.stat().st_size:
            raise ConfigurationError(
                "It cannot be read as an inventory; Ansible's own words stand above.", source,
                "Correct it, or move it out of the inventory.")
        return parsed


def _read(sources: list[str], question: HostSelector) -> list[InventoryHost]:

    start_ansible()
    context.CLIARGS = ImmutableDict(extra_vars=tuple(question.extra_vars))
    # Ansible keeps the first answer for the life of the process.
    load_extra_vars.extra_vars = None
    loader = DataLoader()
    secrets = CLI.setup_vault_secrets(
        loader, list(constants.DEFAULT_VAULT_IDENTITY_LIST), auto_prompt=False,
        vault_password_files=list(question.vault_password_files), initialize_context=False)
    loader.set_vault_secrets(secrets)
    # One per process, that may be made only once.
    VaultSecretsContext.current().secrets = secrets
    inventory = _Inventory(loader=loader, sources=sources)
    variables = VariableManager(loader=loader, inventory=inventory)
    if question.limit:
        inventory.subset(question.limit)
    hosts = inventory.get_hosts(question.group if question.group in inventory.groups else "all")
    if not hosts:
        asked = f"--limit {question.limit}" if question.limit else "the inventory"
        raise ConfigurationError(
            f"No host is matched by {asked}: nothing would be checked.", ", ".join(sources),
            f"Put hosts into the group '{question.group}', or correct the limit.")
    return [_declared(host, variables.get_vars(host=host), loader, question.domain)
            for host in hosts]


def _declared(
    host: Any, variables: dict[str, Any], loader: Any, domain: str | None = None
) -> InventoryHost:
    templar = Templar(loader=loader, variables=variables)
    values = {
        name: _templated(templar, host.name, name, variables[name])
        for name in sorted(variables)
        if name.startswith(SETTINGS) and name not in NOT_WISHES
        # Ansible's own, about itself.
        and not name.startswith(("ansible_version", "ansible_playbook_python", "ansible_config"))
    }
    wishes = {name: value for name, value in values.items() if name.startswith("gpu_")}
    folder = Path(
        wishes.get("gpu_locks_dir") or Path(variables.get("inventory_dir") or ROOT, "stacks")
    ).expanduser()
    keep = _templated(templar, host.name, "artifacts_keep", variables.get("artifacts_keep", False))
    return InventoryHost(
        host.name, wishes, connection_of(host.name, values), locks_in(folder), folder,
        boolean(keep, strict=False), _domain(templar, host, variables, domain) if domain else None)


def _domain(templar: Any, host: Any, variables: dict[str, Any], domain: str) -> str | None:
    if domain in variables:
        return str(_templated(templar, host.name, domain, variables[domain]))
    names = sorted(group.name for group in host.get_groups())
    return next((name for name in names if name.startswith(f"{domain}_")), None)


@functools.cache
def locks_in(folder: Path) -> dict[str, str]:
    """{file name: sha256} of the stacks' locks in a directory, as the roles find them there."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.glob("*.lock")
    }


def _templated(templar: Any, host: str, name: str, value: Any) -> Any:
    try:
        # Through JSON: Ansible's values carry tags, and template what they hold only when read.
        return json.loads(json.dumps(templar.template(value), default=str))
    except (AnsibleError, TypeError, ValueError) as error:
        message = getattr(error, "message", None) or str(error)
        raise ConfigurationError(
            f"The value cannot be used: {str(message).strip()}", f"{host}: {name}",
            "Correct it in the inventory.") from error


def connection_of(name: str, values: Mapping[str, Any]) -> Connection:
    """The settings that Ansible would use for a host with these variables."""
    kind = str(values.get("ansible_connection") or constants.DEFAULT_TRANSPORT)
    if name == "localhost" and "ansible_connection" not in values:
        kind = "local"
    kind = {"smart": "ssh"}.get(kind, kind).rpartition(".")[2]
    if kind not in {"ssh", "local"}:
        raise ConfigurationError(
            f"The connection '{kind}' is not known to the verification.",
            f"{name}: ansible_connection", "Use ssh or local.")
    connection_loader.get("ssh", class_only=True)
    ssh = constants.config.get_plugin_options("connection", "ssh", variables=dict(values))
    arguments = [word for option in ("ssh_args", "ssh_common_args", "ssh_extra_args")
                 for word in shlex.split(ssh[option] or "")]
    python = str(values.get("ansible_python_interpreter") or "auto")
    return Connection(
        name=name,
        kind=kind,
        address=ssh["host"] if "ansible_host" in values or "ansible_ssh_host" in values else name,
        user=ssh["remote_user"],
        port=ssh["port"],
        key=ssh["private_key_file"],
        ssh_arguments=tuple(arguments),
        connect_timeout_s=int(ssh["timeout"]),
        ssh_executable=ssh["ssh_executable"],
        python="python3" if python.startswith("auto") else python,
        become=_become(name, values),
    )


def _become(name: str, values: Mapping[str, Any]) -> Become:
    method = str(values.get("ansible_become_method") or constants.DEFAULT_BECOME_METHOD)
    if method.rpartition(".")[2] != "sudo":
        raise ConfigurationError(
            f"The become method '{method}' is not known to the verification.",
            f"{name}: ansible_become_method", "Use sudo.")
    become_loader.get("sudo", class_only=True)
    sudo = constants.config.get_plugin_options("become", "sudo", variables=dict(values))
    told = values.get("ansible_become")
    wanted = None if told is None else boolean(told)
    return Become(wanted, sudo["become_user"] or "root", sudo["become_pass"])
