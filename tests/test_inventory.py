"""The inventory as Ansible reads it, and errors that name the location."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpufleet.errors import ConfigurationError
from gpufleet.fleet.inventory import HostSelector, inventory_hosts
from gpufleet.fleet.inventory.reader import refuse_misspelt
from gpufleet.fleet.judging import plan_of

INVENTORY = """
gpu_hosts:
  hosts:
    gpu01:
      ansible_host: 10.0.0.1
    gpu02:
      ansible_connection: local
      ansible_become: false
  vars:
    site: ber
    ansible_user: deploy
    ansible_port: 2222
    ansible_ssh_private_key_file: ~/keys/id
    ansible_ssh_common_args: -o ProxyJump=bastion.{{ site }}
    ansible_become_password: "{{ secret }}"
    secret: very
    release: 2.13.1
    gpu_stacks: [{tensorflow: "{{ release }}"}]
    gpu_expect: {count: 0}
other:
  hosts:
    web01:
"""


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    path = tmp_path / "hosts.yml"
    path.write_text(INVENTORY)
    return path


def test_variables_are_templated_and_plain(inventory: Path) -> None:
    hosts = {host.name: host for host in inventory_hosts(HostSelector([str(inventory)]))}
    assert list(hosts) == ["gpu01", "gpu02"]
    assert hosts["gpu01"].variables == {
        "gpu_stacks": [{"tensorflow": "2.13.1"}],
        "gpu_expect": {"count": 0},
    }
    assert type(hosts["gpu01"].variables["gpu_stacks"][0]["tensorflow"]) is str


def test_a_host_is_reached_as_by_ansible(inventory: Path) -> None:
    found = {host.name: host.connection for host in inventory_hosts(HostSelector([str(inventory)]))}
    ssh = found["gpu01"]
    assert (ssh.kind, ssh.address, ssh.user, ssh.port) == ("ssh", "10.0.0.1", "deploy", 2222)
    assert ssh.ssh_arguments[-2:] == ("-o", "ProxyJump=bastion.ber")
    assert (ssh.become.enabled, ssh.become.user, ssh.become.password) == (None, "root", "very")
    assert (found["gpu02"].kind, found["gpu02"].become.enabled) == ("local", False)


def test_secrets_are_not_among_the_variables(inventory: Path) -> None:
    for host in inventory_hosts(HostSelector([str(inventory)])):
        assert "very" not in repr(host)


def test_extra_vars_are_templated_as_ansible_does_for_a_playbook(inventory: Path) -> None:
    given = '{"gpu_pair_address": "{{ inventory_hostname }}.example.org"}'
    found = inventory_hosts(HostSelector([str(inventory)], extra_vars=[given]))
    assert {host.variables["gpu_pair_address"] for host in found} == {
        f"{host.name}.example.org" for host in found
    }


def test_limit_and_extra_vars(inventory: Path) -> None:
    hosts = inventory_hosts(HostSelector([str(inventory)], "gpu02", ["release=2.17.1"]))
    assert [host.name for host in hosts] == ["gpu02"]
    assert hosts[0].variables["gpu_stacks"] == [{"tensorflow": "2.17.1"}]


def test_without_the_group_every_host_counts() -> None:
    assert [host.name for host in inventory_hosts(HostSelector(["a,b"]))] == ["a", "b"]


def test_several_inventories_are_one(inventory: Path) -> None:
    inventories = [str(inventory), "extra,"]
    assert "gpu01" in [host.name for host in inventory_hosts(HostSelector(inventories))]


@pytest.mark.parametrize(
    ("text", "limit", "message"),
    [
        (INVENTORY, "gpu09", "No host matches --limit gpu09"),
        ("gpu_hosts: {hosts: {}}", None, "The inventory has no hosts"),
        ("gpu_hosts: [what", None, "hosts.yml"),
        (INVENTORY.replace("{{ release }}", "{{ unknown }}"), None, "gpu01: gpu_stacks"),
        (INVENTORY.replace("connection: local", "connection: winrm"), None, "winrm"),
    ],
)
def test_errors_name_the_location(
    inventory: Path, text: str, limit: str | None, message: str
) -> None:
    inventory.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        inventory_hosts(HostSelector([str(inventory)], limit))
    assert message in str(caught.value)


MISTAKES: list[tuple[str, Any, str]] = [
    ("ansible_become", "maybe", "true or false"),
    ("ansible_become", [1], "true or false"),
    ("ansible_ssh_common_args", "-o ProxyCommand='nc", "no closing quotation"),
    ("ansible_ssh_args", "-o 'x", "a command line"),
    ("ansible_ssh_extra_args", "\n", "one line"),
    ("ansible_port", "many", ""),
    ("ansible_port", 0, "1 to 65535"),
    ("ansible_port", 1e9, ""),
    ("ansible_port", [22], ""),
    ("ansible_ssh_timeout", "soon", ""),
    ("ansible_ssh_timeout", -1, "seconds"),
    ("ansible_host", "-oProxyCommand=id", "no dash first"),
    ("ansible_host", "a b", "blanks"),
    ("ansible_host", "$(id)", "shell"),
    ("ansible_host", ["a"], ""),
    ("ansible_host", "", "address"),
    ("ansible_host", "x" * 260, "..."),
    ("ansible_user", "-l", "account"),
    ("ansible_user", "a;b", "account"),
    ("ansible_user", {"a": 1}, ""),
    ("ansible_become_user", "-s", "account"),
    ("ansible_become_user", ["root"], ""),
    ("ansible_become_method", 7, "Use sudo"),
    ("ansible_become_method", ["sudo", "su"], "Use sudo"),
    ("ansible_connection", {"ssh": 1}, "Use ssh, local or"),
    ("ansible_python_interpreter", 3, "text"),
    ("ansible_python_interpreter", "a\x1bb", "text"),
    ("ansible_ssh_private_key_file", ["k"], ""),
    ("ansible_ssh_executable", {"a": 1}, ""),
    ("gpu_locks_dir", 5, "one line"),
    ("gpu_locks_dir", ["a"], "one line"),
    ("gpu_locks_dir", "~nobody-of-that-name/x", "account that exists"),
    ("gpu_artifacts_source", 5, "text"),
    ("gpu_pip_index_url", ["a"], "text"),
    ("gpu_pair_address", 5, "text"),
    ("gpu_nccl_dir", 5, "text"),
    ("gpu_node_name", {"a": 1}, "text"),
    ("artifacts_keep", "sometimes", "true or false"),
]


@pytest.mark.parametrize(("variable", "value", "wanted"), MISTAKES)
def test_a_value_of_a_wrong_type_is_refused_with_its_place(
    tmp_path: Path, variable: str, value: Any, wanted: str
) -> None:
    path = tmp_path / "hosts.json"
    path.write_text(json.dumps({"gpu_hosts": {"hosts": {"gpu01": {variable: value}}}}))
    with pytest.raises(ConfigurationError) as caught:
        inventory_hosts(HostSelector([str(path)]))
    assert caught.value.where.startswith(
        "gpu01: ansible_*"
        if not wanted and "ansible_" in variable and "ansible_*" in caught.value.where
        else f"gpu01: {variable}"
    )
    assert wanted in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "name", ["x" * 260, "a\x1bb", "a\nb", "..", ".", "-oProxyCommand=id", "\u202eabc", "\x00", " "]
)
def test_a_name_that_no_host_can_have_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "hosts.json"
    path.write_text(json.dumps({"gpu_hosts": {"hosts": {name: {"ansible_host": "gpu01"}}}}))
    with pytest.raises(ConfigurationError) as caught:
        inventory_hosts(HostSelector([str(path)]))
    assert "host name" in str(caught.value)
    assert str(caught.value).isprintable() or "\n" not in str(caught.value.message)


def test_a_password_of_a_wrong_type_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "hosts.json"
    for value in ("hunter2\nid", ["hunter2"], {"a": "hunter2"}):
        path.write_text(
            json.dumps({"gpu_hosts": {"hosts": {"gpu01": {"ansible_become_password": value}}}})
        )
        with pytest.raises(ConfigurationError) as caught:
            inventory_hosts(HostSelector([str(path)]))
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ansible_become", "yes"),
        ("ansible_become", 0),
        ("ansible_port", "2222"),
        ("ansible_host", "fe80::1%eth0"),
        ("ansible_host", "10.0.0.1"),
        ("ansible_user", "a.b@EXAMPLE"),
        ("ansible_become_password", 12345),
        ("ansible_ssh_timeout", "30"),
        ("ansible_ssh_common_args", ""),
        ("gpu_locks_dir", "~/locks"),
        ("artifacts_keep", "no"),
    ],
)
def test_usual_ways_to_write_a_value_are_accepted(
    tmp_path: Path, variable: str, value: Any
) -> None:
    path = tmp_path / "hosts.json"
    path.write_text(json.dumps({"gpu_hosts": {"hosts": {"gpu01": {variable: value}}}}))
    assert inventory_hosts(HostSelector([str(path)]))


def test_a_missing_inventory_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="inventory does not exist"):
        inventory_hosts(HostSelector(["/nowhere/inventory"]))


def test_vaulted_values_are_decrypted_by_the_password_file(inventory: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("open sesame\n")
    vault = tmp_path / "group_vars" / "gpu_hosts.yml"
    vault.parent.mkdir()
    vault.write_text("secret: from the vault\n")
    subprocess.run(
        [
            str(Path(sys.executable).parent / "ansible-vault"),
            "encrypt",
            "--vault-password-file",
            str(key),
            str(vault),
        ],
        check=True,
        capture_output=True,
    )
    hosts = inventory_hosts(HostSelector([str(inventory)], vault_password_files=[str(key)]))
    assert hosts[0].connection.become.password == "from the vault"
    with pytest.raises(ConfigurationError, match="vault"):
        inventory_hosts(HostSelector([str(inventory)]))


def test_a_source_that_cannot_be_parsed_is_refused_also_in_a_directory(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    (fleet / "stacks").mkdir(parents=True)
    (fleet / "stacks" / "x.lock").write_text("tensorflow==2.13.1\n")
    (fleet / "hosts.yml").write_text(INVENTORY.replace("{{ secret }}", "x"))
    assert len(inventory_hosts(HostSelector([str(fleet)]))) == 2
    broken = tmp_path / "broken.yml"
    broken.write_text("gpu_hosts: {hosts: [")
    with pytest.raises(ConfigurationError, match=r"cannot be parsed|parse"):
        inventory_hosts(HostSelector([str(fleet), str(broken)]))
    broken.rename(fleet / "more.yml")
    with pytest.raises(ConfigurationError, match=r"cannot be parsed|parse") as refused:
        inventory_hosts(HostSelector([str(fleet)]))
    assert "more.yml" in str(refused.value)


def test_a_file_without_a_suffix_in_a_directory_is_one_of_its_sources(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    fleet.mkdir()
    (fleet / "a.yml").write_text("gpu_hosts: {hosts: {gpu01: }}")
    (fleet / "README").write_text("[gpu_hosts\nis a group\n")
    (fleet / "Makefile").write_text("[gpu_hosts\n\tls\n")
    assert [host.name for host in inventory_hosts(HostSelector([str(fleet)]))] == ["gpu01"]
    (fleet / "hosts").write_text("[gpu_hosts\ngpu02\n")
    with pytest.raises(ConfigurationError, match="cannot be parsed") as refused:
        inventory_hosts(HostSelector([str(fleet)]))
    assert "fleet/hosts" in str(refused.value)


def test_a_refused_value_has_its_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yml"
    path.write_text(
        """gpu_hosts:
  hosts:
    gpu01:
  vars:
    gpu_stacks:
      - tensorflow: "2.13.1"
      - tensorflow: "9.9"
    gpu_expct: {count: 0}
"""
    )
    (host,) = inventory_hosts(HostSelector([str(path)]))
    assert host.origin("gpu_stacks[1].tensorflow") == f"{path}:7"
    assert host.origin("gpu_stacks[1].cudnn") == f"{path}:7"
    assert host.origin("gpu_expct") == f"{path}:8"
    assert host.origin("gpu_accept_nvidia_eula") is None
    files = {problem["where"]: problem.get("file") for problem in plan_of(host, None)["problems"]}
    assert files["gpu_stacks[1].tensorflow"] == f"{path}:7"
    assert files["gpu_accept_nvidia_eula"] is None


def test_group_variables_that_are_no_yaml_are_refused_with_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text("gpu_hosts: {hosts: {gpu01: }}")
    broken = tmp_path / "group_vars" / "gpu_hosts.yml"
    broken.parent.mkdir()
    broken.write_text("gpu_toolkits: []\ngpu_stacks: [\n  - x: }\n")
    with pytest.raises(ConfigurationError) as caught:
        inventory_hosts(HostSelector([str(tmp_path)]))
    assert caught.value.where == f"{broken}:3"


@pytest.mark.parametrize(
    ("groups", "refused"),
    [
        (["gpu_host"], True),
        (["gpuhosts"], True),
        (["gpu-hosts"], True),
        (["gpus_hosts"], True),
        (["gpu_hosts", "gpu_host"], False),
        (["gpu_hosts2", "gpu_hosts_a100"], False),
        (["workers", "h100", "gpu"], False),
    ],
)
def test_a_group_that_is_nearly_that_of_the_hosts_is_refused(
    groups: list[str], refused: bool
) -> None:
    """Without the group all hosts of an inventory are selected, the web servers too."""
    if not refused:
        refuse_misspelt("gpu_hosts", groups)
        return
    with pytest.raises(ConfigurationError, match=f"there is '{groups[0]}'"):
        refuse_misspelt("gpu_hosts", groups)
