"""The probe's look at containers, over planted trees and a planted engine."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpufleet.on_host import container_units
from gpufleet.on_host.host import Host
from gpufleet.on_host.sections import containers
from gpufleet.on_host.sections.containers import section_containers
from tests.support.planted_host import put

SPEC = """---
cdiVersion: 0.5.0
containerEdits:
  mounts:
  - containerPath: /usr/lib/x86_64-linux-gnu/libcuda.so.535.261.03
    hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.535.261.03
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: "0"
- name: all
kind: nvidia.com/gpu
"""
INFO = {"ServerVersion": "26.1.5", "Runtimes": {"runc": {}, "nvidia": {}}, "Driver": "overlay2",
        "LiveRestoreEnabled": True, "CgroupDriver": "systemd",
        "SecurityOptions": ["name=apparmor", "name=seccomp,profile=builtin"]}  # fmt: skip
STATUS = """Package: nvidia-container-toolkit-base
Status: install ok installed
Version: 9

Package: nvidia-container-toolkit
Status: hold ok installed
Version: 1.17.8-1
"""
# Writes down each call, and answers as Docker would; $1 is its command.
ENGINE = r"""#!/bin/sh
echo "$*" | head -1 >>"$(dirname "$0")/calls"
case $1 in
    info) cat "$(dirname "$0")/info" ;;
    import) echo sha256:1234 ;;
    exec) case $* in
        *matmul.py*) echo 'gpufleet-framework: {"state": "ok", "error": null}' ;;
        *) cat "$(dirname "$0")/look" ;;
    esac ;;
    image) exit 1 ;;
    images) echo sha256:1234 ;;
esac
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    put(tmp_path, "usr/bin/docker", ENGINE, 0o755)
    put(tmp_path, "usr/bin/info", json.dumps(INFO))
    put(tmp_path, "usr/bin/look", "[]")
    put(
        tmp_path,
        "etc/docker/daemon.json",
        '{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}, "live-restore": true}',
    )
    put(tmp_path, "var/lib/dpkg/status", STATUS)
    put(tmp_path, "run/cdi/nvidia.yaml", SPEC)
    (tmp_path / "tmp").mkdir()
    return tmp_path


def probe_tree(root: Path, **config: Any) -> dict[str, Any]:
    """The section's data."""
    wanted = {"engine": "docker", "image": None}
    host = Host({"root": str(root), "containers": wanted, **config}, 10)
    found: dict[str, Any] = section_containers(host)
    return found


def calls(root: Path) -> list[str]:
    return (root / "usr/bin/calls").read_text().splitlines()


def test_what_stands_there_is_read(root: Path) -> None:
    put(root, "usr/local/bin/nvidia-docker", "", 0o755)
    assert probe_tree(root) == {
        "engine": {"name": "docker", "path": "/usr/bin/docker", "version": "26.1.5",
                   "runtimes": ["nvidia", "runc"], "live_restore": True,
                   "cgroup_driver": "systemd", "storage": "overlay2",
                   "security": ["apparmor", "seccomp"], "error": None},
        "daemon": {"path": "/etc/docker/daemon.json", "exists": True, "error": None,
                   "runtimes": {"nvidia": "nvidia-container-runtime"}, "live_restore": True,
                   "cdi": None, "data_root": None},
        "toolkit": {"version": "1.17.8-1", "held": True, "candidate": None},
        "configuration": None,
        "cdi": [{"path": "/run/cdi/nvidia.yaml", "driver_version": "535.261.03",
                 "devices": ["0", "all"], "mig_nodes": [], "error": None}],
        "mig_capabilities": None,
        "dev_char": {"missing": []},
        "wrapper": "/usr/local/bin/nvidia-docker",
        "run": None,
        "running": None,
        "majors": {},
        "rootless": [],
    }  # fmt: skip


def test_an_empty_host(tmp_path: Path) -> None:
    found = probe_tree(tmp_path)
    assert (found["engine"], found["toolkit"], found["cdi"], found["wrapper"]) == (
        None,
        None,
        [],
        None,
    )
    assert not found["daemon"]["exists"]


def test_where_none_is_declared_no_engine_is_asked(root: Path) -> None:
    assert probe_tree(root, containers=None)["engine"] is None
    assert not (root / "usr/bin/calls").exists()


@pytest.mark.parametrize("text", ['{"a": 1,}', "[]", '{"runtimes": {"nvidia": "x"}}'])
def test_a_daemon_json_that_docker_would_not_read(root: Path, text: str) -> None:
    put(root, "etc/docker/daemon.json", text)
    assert "not the JSON that Docker reads" in probe_tree(root)["daemon"]["error"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_is_no_damage_to_daemon_json(root: Path, encoding: str) -> None:
    """Docker reads such a file."""
    path = root / "etc/docker/daemon.json"
    path.write_bytes(path.read_text().encode(encoding))
    found = probe_tree(root)["daemon"]
    assert (found["error"], found["live_restore"]) == (None, True)


@pytest.mark.parametrize(
    ("text", "mode", "no_cgroups"),
    [
        ("", None, None),
        ('[nvidia-container-runtime]\nmode = "cdi"\n', "cdi", None),
        ("[nvidia-container-cli]\n  no-cgroups=true # rootless\n", None, True),
        ("[nvidia-container-cli]\n#no-cgroups = true\nno-cgroups = false\n", None, False),
        ("nvidia-container-cli.no-cgroups = true\n", None, True),
        ("[ nvidia-container-runtime ]\nmode = 'auto'\n[other]\nmode = \"x\"\n", "auto", None),
        ("[nvidia-container-runtime.modes.cdi]\nmode = 1\nno-cgroups = true\n", None, None),
    ],
)
def test_settings_of_the_toolkit_that_decide_about_gpus_are_read(
    root: Path, text: str, mode: str | None, no_cgroups: bool | None
) -> None:
    name = "/etc/nvidia-container-runtime/config.toml"
    put(root, name[1:], text)
    assert probe_tree(root)["configuration"] == {
        "path": name,
        "mode": mode,
        "no_cgroups": no_cgroups,
    }


def test_engines_of_accounts_are_named_and_not_asked(root: Path) -> None:
    put(root, "etc/passwd", "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\n")
    for name in (
        "1000/docker.sock",
        "1000/libpod/tmp/pause.pid",
        "1001/docker.sock",
        "0/docker.sock",
    ):
        put(root, f"run/user/{name}", "")
    assert probe_tree(root)["rootless"] == [
        {"engine": "docker", "account": "ann"},
        {"engine": "docker", "account": "1001"},
        {"engine": "podman", "account": "ann"},
    ]
    assert calls(root) == ["info --format {{json .}}"]


def test_a_daemon_that_does_not_run(root: Path) -> None:
    put(root, "usr/bin/info", json.dumps({"ServerErrors": ["Cannot connect to the daemon"]}))
    assert probe_tree(root)["engine"]["error"] == "Cannot connect to the daemon"


def test_podman_describes_itself_otherwise(root: Path) -> None:
    reported = {"version": {"Version": "4.3.1"}, "store": {"graphDriverName": "overlay"},
            "host": {"cgroupManager": "systemd", "ociRuntime": {"name": "crun"},
                     "security": {"apparmorEnabled": False, "selinuxEnabled": True}}}  # fmt: skip
    put(root, "usr/bin/podman", ENGINE, 0o755)
    put(root, "usr/bin/info", json.dumps(reported))
    engine = probe_tree(root, containers={"engine": "podman", "image": None})["engine"]
    assert (engine["version"], engine["storage"], engine["error"]) == ("4.3.1", "overlay", None)
    assert engine["security"] == ["selinux"]


def test_a_toolkit_that_is_half_there_is_not_there(root: Path) -> None:
    put(root, "var/lib/dpkg/status", STATUS.replace("hold ok installed", "install ok unpacked"))
    assert probe_tree(root)["toolkit"] is None


def test_specifications_of_others_are_none_of_ours(root: Path) -> None:
    put(root, "etc/cdi/other.yaml", "kind: vendor.com/net\n")
    # As `nvidia-ctk cdi generate --format=json` writes it, in one line.
    put(
        root,
        "etc/cdi/old.json",
        '{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[{"name":"0","containerEdits":{}},'
        '{"name":"GPU-1","containerEdits":{}}],"containerEdits":{"mounts":[{"hostPath":'
        '"/usr/lib/libcuda.so.470.1"}]}}',
    )
    assert [
        (spec["path"], spec["driver_version"], spec["devices"]) for spec in probe_tree(root)["cdi"]
    ] == [
        ("/etc/cdi/old.json", "470.1", ["0", "GPU-1"]),
        ("/run/cdi/nvidia.yaml", "535.261.03", ["0", "all"]),
    ]


@pytest.mark.parametrize("kind", ["nvswitch", "gds", "imex-channel", "mofed", "gpu-of-theirs"])
@pytest.mark.parametrize(
    "form",
    [
        "kind: nvidia.com/%s\n",
        '---\nkind: "nvidia.com/%s"\n',
        '{"kind": "nvidia.com/%s", "devices": []}',
    ],
)
def test_other_devices_of_nvidias_have_no_driver_version_to_match(
    root: Path, kind: str, form: str
) -> None:
    put(root, f"run/cdi/{kind}.yaml", form % kind)
    assert [spec["path"] for spec in probe_tree(root)["cdi"]] == ["/run/cdi/nvidia.yaml"]


@pytest.mark.parametrize(
    "text",
    [
        '{"kind": "nvidia.com/gpu", "devices": [',
        '{"kind": "nvidia.com/gpu", "devices": [{"nome": "0"}]}',
    ],
)
def test_a_json_specification_that_cannot_be_read_is_damaged_not_empty(
    root: Path, text: str
) -> None:
    put(root, "run/cdi/nvidia.json", text)
    assert "not the JSON that engines read" in probe_tree(root)["cdi"][0]["error"]


SPLIT_SPECS = {
    "yaml": "devices:\n- containerEdits:\n    deviceNodes:\n    - path: {0}21\n    - path: {0}120\n"
    "    - path: {0}21\n  name: '0:0'\nkind: nvidia.com/gpu\n",
    "json": '{{"kind": "nvidia.com/gpu", "devices": [{{"name": "0:0", "containerEdits":'
    ' {{"deviceNodes": [{{"path": "{0}120"}}, {{"path": "{0}21"}}]}}}}]}}',
}


@pytest.mark.parametrize("kind", ["yaml", "json"])
@pytest.mark.parametrize("slash", ["/", "\\/"])
def test_the_nodes_of_mig_instances_are_read(root: Path, kind: str, slash: str) -> None:
    (root / "run/cdi/nvidia.yaml").unlink()
    text = SPLIT_SPECS[kind].format("/dev/nvidia-caps/nvidia-cap".replace("/", slash))
    put(root, f"run/cdi/nvidia.{kind}", text)
    top = "proc/driver/nvidia/capabilities"
    for name, number in (("mig/config", 1), ("gpu0/mig/gi2/access", 21),
                         ("gpu0/mig/gi2/ci0/access", 22), ("fabric-imex-mgmt", 3)):  # fmt: skip
        put(root, f"{top}/{name}", f"DeviceFileMinor: {number}\nDeviceFileMode: 256\n")
    found = probe_tree(root)
    assert [spec["mig_nodes"] for spec in found["cdi"]] == [[21, 120]]
    assert found["mig_capabilities"] == {
        "mig/config": 1, "gpu0/mig/gi2/access": 21, "gpu0/mig/gi2/ci0/access": 22}  # fmt: skip


def test_links_are_required_of_no_node_that_nvidia_ctk_never_links(root: Path) -> None:
    """NVSwitch, NVLink and GPUDirect Storage: no run of nvidia-ctk makes links for them."""
    (root / "dev/nvidia-caps").mkdir(parents=True)
    linked = (
        "nvidia0",
        "nvidia12",
        "nvidiactl",
        "nvidia-uvm",
        "nvidia-uvm-tools",
        "nvidia-modeset",
        "nvidia-caps/nvidia-cap2",
    )
    never = (
        "nvidia-nvswitch0",
        "nvidia-nvswitchctl",
        "nvidia-nvlink",
        "nvidia-fs0",
        "nvidia-caps-imex-channels",
    )
    for name in never:
        (root / "dev" / name).symlink_to("/dev/null")
    assert probe_tree(root)["dev_char"]["missing"] == []
    for name in linked:
        (root / "dev" / name).symlink_to("/dev/null")
        assert probe_tree(root)["dev_char"]["missing"] == ["/dev/char/1:3"], name
        (root / "dev" / name).unlink()


def test_missing_links_are_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "device_numbers", lambda host: [(195, 0), (195, 255)])
    (root / "dev/char").mkdir(parents=True)
    (root / "dev/char/195:0").symlink_to("../nvidia0")
    assert probe_tree(root)["dev_char"]["missing"] == ["/dev/char/195:255"]


# -- running containers, as systemd knows them ----------------------------------------------------

NODES = [
    {"node": "/dev/nvidia0", "numbers": "195:0"},
    {"node": "/dev/nvidia-caps/nvidia-cap3", "numbers": "237:3"},
    {"node": "/dev/nvidia-caps-imex-channels/channel0", "numbers": "238:0"},
]
THEIRS, OURS = "1a" * 32, "2b" * 32
UNITS = (
    "\n".join(
        f"ControlGroup=/system.slice/docker-{name}.scope\nDevicePolicy=strict\n"
        f"DeviceAllow=/dev/char/1:3 rwm\nDeviceAllow=char-* m\nId=docker-{name}.scope\n"
        "LoadState=loaded\n"
        for name in (THEIRS, OURS, "3c" * 32)
    )
    + "\nLoadState=not-found\n"
)


@pytest.fixture
def device_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Character devices in planted trees: files whose text is the numbers, such as 195:0."""

    def node_state(name: str, directory: int) -> os.stat_result:
        state = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if not stat.S_ISREG(state.st_mode):
            return state
        major, minor = map(int, Path(f"/proc/self/fd/{directory}/{name}").read_text().split(":"))
        return cast(
            os.stat_result,
            SimpleNamespace(st_mode=stat.S_IFCHR | 0o666, st_rdev=os.makedev(major, minor)),
        )

    monkeypatch.setattr(container_units, "node_state", node_state)


@pytest.fixture
def running(root: Path, monkeypatch: pytest.MonkeyPatch, device_files: None) -> Path:
    """Containers of somebody's, of an earlier verification, and one without a GPU."""
    for pid, name in ((7, THEIRS), (8, OURS), (9, "3c" * 32)):
        # With control groups of its own a container has its processes below.
        put(root, f"sys/fs/cgroup/system.slice/docker-{name}.scope/cgroup.procs", "")
        put(root, f"sys/fs/cgroup/system.slice/docker-{name}.scope/init/cgroup.procs", f"{pid}\n")
        (root / f"proc/{pid}/root/dev").mkdir(parents=True)
        if pid != 9:
            put(root, f"proc/{pid}/root/dev/nvidia0", "195:0")
            put(root, f"proc/{pid}/root/dev/nvidia-caps/nvidia-cap3", "237:3")
            put(root, f"proc/{pid}/root/dev/nvidia-caps-imex-channels/channel0", "238:0")
            put(root, f"proc/{pid}/root/dev/fuse", "10:229")
    put(
        root,
        "usr/bin/docker",
        ENGINE.replace(
            "exec)", f"ps) echo {THEIRS} train; echo {OURS} gpufleet-verify-12 ;;\nexec)", 1
        ),
        0o755,
    )
    monkeypatch.setattr(container_units, "show_units", lambda host, patterns: UNITS)
    return root


def test_what_systemd_knows_of_running_containers_is_read(running: Path) -> None:
    put(running, "proc/devices", "Character devices:\n  1 mem\n195 nvidia\n\nBlock devices:\n")
    found = probe_tree(running)
    assert found["majors"] == {"nvidia": 195}
    assert found["running"] == [
        {
            "unit": f"docker-{THEIRS}.scope",
            "name": "train",
            "policy": "strict",
            "allow": ["/dev/char/1:3 rwm", "char-* m"],
            "nodes": NODES,
        }
    ]


def test_every_character_device_of_a_container_is_found(tmp_path: Path, device_files: None) -> None:
    dev = {
        "nvidia-modeset": "195:254",
        "fuse": "10:229",
        "net/tun": "10:200",
        "null": "1:3",
        "nvidia-caps/nvidia-cap12": "237:12",
        "console": "136:7",
        "tty": "5:0",
        "nvidia-caps-imex-channels/channel0": "238:0",
        "a/b/c/d": "240:1",
    }
    for name, numbers in dev.items():
        put(tmp_path, f"proc/7/root/dev/{name}", numbers)
    found = container_units.nodes_in_container(Host({"root": str(tmp_path)}, 20), "7")
    assert {node["node"]: node["numbers"] for node in found} == {
        f"/dev/{name}": numbers
        for name, numbers in dev.items()
        if name not in {"null", "console", "tty"}
    }


@pytest.mark.parametrize("link", ["dev", "dev/sub", "dev/nvidia0"])
def test_no_link_of_a_container_is_followed(tmp_path: Path, device_files: None, link: str) -> None:
    """A link of a container points to devices of the host."""
    put(tmp_path, "host/nvidia0", "195:0")
    (tmp_path / "proc/7/root").mkdir(parents=True)
    path = tmp_path / "proc/7/root" / link
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(tmp_path / ("host/nvidia0" if link.endswith("0") else "host"))
    assert container_units.nodes_in_container(Host({"root": str(tmp_path)}, 20), "7") == []


@pytest.mark.parametrize("shape", ["wide", "deep"])
def test_a_dev_without_end_is_read_to_a_limit_and_reported(
    tmp_path: Path, device_files: None, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_units, "MOST_ENTRIES", 50)
    put(tmp_path, "proc/7/root/dev/0-first", "195:0")
    for at in range(60):
        name = f"n{at}" if shape == "wide" else "d/" * at + "n"
        put(tmp_path, f"proc/7/root/dev/{name}", f"240:{at}")
    found = container_units.nodes_in_container(Host({"root": str(tmp_path)}, 20), "7")
    assert found[0]["node"] == "/dev/0-first"
    assert found.count(container_units.UNREAD) == 1
    assert len(found) <= 51


def test_nothing_tells_systemd_to_reload(
    running: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon-reload takes the GPUs from the running containers of other people."""
    put(tmp_path, "bin/systemctl", f'#!/bin/sh\necho "$*" >>{tmp_path}/asked\n', 0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    put(running, "proc/driver/nvidia/version")
    put(running, "usr/bin/look", '[{"node": "/dev/nvidia0", "error": null}]')
    run = full(running, expect_gpus=1)
    assert run["reload"] is None
    assert run["unit"]["nodes"] == NODES
    assert not (tmp_path / "asked").exists()


# -- a container of our own -----------------------------------------------------------------------


def full(root: Path, **config: Any) -> dict[str, Any]:
    found = probe_tree(root, mode="full", matmul="", **config)
    run: dict[str, Any] = found["run"]
    return run


def test_a_container_without_cards_is_started_asked_and_removed(root: Path) -> None:
    run = full(root, expect_gpus=0)
    assert (run["state"], run["gpus"], run["reload"]) == ("ok", [], None)
    output = calls(root)
    assert [line.split()[0] for line in output] == [
        "info",
        "import",
        "run",
        "exec",
        "ps",
        "rm",
        "images",
        "rmi",
    ]
    assert "--gpus" not in output[2]
    assert "--network none" in output[2]
    assert "/usr:/usr:ro" in output[2]
    assert run["starts"] == []
    assert f"--name gpufleet-verify-{os.getpid()}" in output[2]
    assert output[5] == f"rm -f -v gpufleet-verify-{os.getpid()}"
    assert list((root / "tmp").iterdir()) == []


def test_nvidias_hooks_find_a_usr_that_they_can_write_in(root: Path) -> None:
    """They put the driver's files there, or links to them, and by which family of distribution the
    image tells them: on a read-only one no container with GPUs starts."""
    put(root, "proc/driver/nvidia/version")
    put(
        root,
        "proc/self/mountinfo",
        "".join(
            f"{at} 1 0:1 / {path} rw - ext4 none rw\n"
            for at, path in enumerate(("/", "/usr", "/usr/local", "/usr/local/share", "/usrs"))
        ),
    )
    put(
        root,
        "usr/bin/docker",
        ENGINE.replace(
            "import)",
            f"""import)
        tar -tf "$4" >{root}/image; """,
            1,
        ),
        0o755,
    )
    full(root, expect_gpus=1)
    line, *others = [line for line in calls(root) if line.startswith("run")]
    layer = f"{root}/run/gpufleet-verify-{os.getpid()}"
    assert all(f"upperdir={layer}.{at}/upper" in other for at, other in enumerate(others, 1))
    assert (
        f'volume-opt=device=overlay,"volume-opt=o=lowerdir=/usr,upperdir={layer}/upper,'
        f'workdir={layer}/work" -v /usr/local:/usr/local:ro'
    ) in line
    assert "/usr:/usr:ro" not in line
    assert "/usr/local/share:" not in line
    assert not [*Path(root / "run").glob("gpufleet-*")]
    in_image = (root / "image").read_text().split()
    assert ("etc/debian_version" in in_image) == Path("/etc/debian_version").exists()


POLICY = {
    "etc/selinux/config": "SELINUX=enforcing\nSELINUXTYPE=site\n",
    "etc/selinux/site/contexts/lxc_contexts": 'process = "a:b:c_t:s0"\nfile = "a:b:own_t:s0"\n',
}


@pytest.mark.parametrize(
    ("files", "label"),
    [
        (POLICY, "a:b:own_t:s0"),
        ({"etc/selinux/config": "SELINUX=enforcing\n"}, "system_u:object_r:container_file_t:s0"),
    ],
)
def test_docker_has_no_file_of_the_layer_to_label(
    root: Path, files: dict[str, str], label: str
) -> None:
    """It would copy all of /usr into the layer, which is in memory."""
    put(root, "proc/driver/nvidia/version")
    put(root, "usr/bin/info", json.dumps({**INFO, "SecurityOptions": ["name=selinux"]}))
    for name, text in files.items():
        put(root, name, text)
    full(root, expect_gpus=1)
    runs = [line for line in calls(root) if "upperdir=" in line]
    assert runs
    assert all(f'/work,context={label}"' in line for line in runs)


def test_mapped_accounts_can_read_what_the_trial_gives_its_container(root: Path) -> None:
    """Root in such a container is another account on the host."""
    put(root, "proc/driver/nvidia/version")
    given = """run)
        for word; do case $word in
            *:/gpufleet:ro) (cd "${word%%:*}" && stat -c '%a %n' . matmul.py) ;;
            *upperdir=*) layer=${word#*upperdir=}; stat -c '%a upper' "${layer%%,*}" ;;
        esac; done >>"$(dirname "$0")/given" ;;
    import)"""
    put(root, "usr/bin/docker", ENGINE.replace("import)", given, 1), 0o755)
    before = os.umask(0o077)
    try:
        full(root, expect_gpus=1)
    finally:
        os.umask(before)
    seen = (root / "usr/bin/given").read_text().splitlines()
    assert {*seen} == {"755 .", "644 matmul.py", "755 upper"}


def test_podman_gets_the_same_layer_in_its_own_terms(root: Path) -> None:
    put(root, "usr/bin/podman", ENGINE, 0o755)
    put(
        root,
        "usr/bin/info",
        json.dumps(
            {
                "version": {"Version": "4.3.1"},
                "store": {"graphDriverName": "overlay"},
                "host": {"cgroupManager": "systemd", "ociRuntime": {"name": "crun"}},
            }
        ),
    )
    put(root, "proc/driver/nvidia/version")
    full(root, expect_gpus=1, containers={"engine": "podman", "image": None})
    line, _ = [line for line in calls(root) if line.startswith("run")]
    layer = f"{root}/run/gpufleet-verify-{os.getpid()}"
    assert f"-v /usr:/usr:O,upperdir={layer}/upper,workdir={layer}/work" in line


def test_what_a_killed_verification_left_is_removed_by_the_next(root: Path) -> None:
    gone, running = "gpufleet-verify-4194999", f"gpufleet-verify-{os.getppid()}"
    for name in (gone, "gpufleet-verify-4194998.2", running, "gpufleet-verify-notes"):
        put(root, f"run/{name}/upper/lib/libcuda.so")
    put(
        root,
        "usr/bin/docker",
        ENGINE.replace("exec)", f"ps) echo {gone}; echo {running} ;;\nexec)", 1),
        0o755,
    )
    full(root, expect_gpus=0)
    removed = [line.split()[-1] for line in calls(root) if line.startswith("rm ")]
    assert removed == [f"gpufleet-verify-{os.getpid()}", gone, "gpufleet-verify-4194998.2"]
    left = sorted(path.name for path in (root / "run").glob("gpufleet-*"))
    assert left == sorted([running, "gpufleet-verify-notes"])


def test_the_newest_stack_computes_in_it(root: Path) -> None:
    for version in ("2.9.3", "2.13.1", "1.15.0"):
        site = f"opt/gpufleet/stacks/{version}/lib/python3.11/site-packages"
        put(root, f"opt/gpufleet/stacks/{version}/pyvenv.cfg", "version = 3.11.2\n")
        put(
            root, f"{site}/tensorflow.dist-info/METADATA", f"Name: tensorflow\nVersion: {version}\n"
        )
    run = full(root, expect_gpus=0)
    assert run["stack"] == "/opt/gpufleet/stacks/2.13.1"
    assert run["framework"]["state"] == "ok"


def test_cards_are_probed_through_the_command_that_people_use(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_units, "show_units", lambda host, patterns: UNITS)
    put(root, "proc/driver/nvidia/version")
    put(root, "usr/bin/look", '[{"node": "/dev/nvidia0", "error": null}]')
    put(
        root,
        "usr/local/bin/nvidia-docker",
        f'#!/bin/sh\necho nvidia-docker >>{root}/usr/bin/calls; exec {root}/usr/bin/docker "$@"\n',
        0o755,
    )
    run = full(root, expect_gpus=1)
    assert run["gpus"] == [{"node": "/dev/nvidia0", "error": None}]
    assert calls(root).index("nvidia-docker") < next(
        at for at, line in enumerate(calls(root)) if line.startswith("run ")
    )


WAYS = {
    "docker run --gpus all": "run --gpus all",
    "docker run --runtime=nvidia": "run --runtime=nvidia --env NVIDIA_VISIBLE_DEVICES=all",
    "docker run --device nvidia.com/gpu=all": "run --device nvidia.com/gpu=all",
    "nvidia-docker run": "run --rm",
}


@pytest.mark.parametrize("cdi", [True, False])
@pytest.mark.parametrize("version", ["26.1.5", "20.10.24+dfsg1"])
@pytest.mark.parametrize("runtimes", [["nvidia", "runc"], ["runc"]])
def test_each_way_that_works_on_the_host_is_tried_with_labels_and_without_named_devices(
    root: Path, cdi: bool, version: str, runtimes: list[str]
) -> None:
    """A container that was given the devices by name hides that --gpus alone gives none."""
    put(root, "proc/driver/nvidia/version")
    put(
        root,
        "usr/bin/info",
        json.dumps({**INFO, "ServerVersion": version, "Runtimes": {name: {} for name in runtimes}}),
    )
    put(root, "etc/docker/daemon.json", json.dumps({"features": {"cdi": cdi}}))
    put(root, "usr/local/bin/nvidia-docker", f'#!/bin/sh\nexec {root}/usr/bin/docker "$@"\n', 0o755)
    put(
        root,
        "usr/bin/docker",
        ENGINE.replace("images)", """run) case $* in *" -d "*) echo 1a ;; *) echo '[]' ;; esac ;;
    images)"""),
        0o755,
    )  # fmt: skip
    run = full(root, expect_gpus=2)
    ways = [start["by"] for start in run["starts"]]
    assert ways == [
        "nvidia-docker run",
        "docker run --gpus all",
        *["docker run --runtime=nvidia"] * ("nvidia" in runtimes),
        *["docker run --device nvidia.com/gpu=all"] * (cdi and version.startswith("26")),
    ]
    assert all((start["state"], start["gpus"]) == ("ok", []) for start in run["starts"])
    first, *lines = [line for line in calls(root) if line.startswith("run ")]
    assert "label=disable" in first
    for way, line in zip(ways, lines, strict=True):
        assert line.startswith(WAYS[way])
        assert "label=" not in line
        assert "/dev/nvidia" not in line


def test_a_way_that_starts_no_container_is_reported_beside_those_that_do(root: Path) -> None:
    put(root, "proc/driver/nvidia/version")
    put(
        root,
        "usr/bin/docker",
        ENGINE.replace("images)", """run) case $* in
        *--runtime=nvidia*) echo no such program >&2; exit 125 ;;
        *" -d "*) echo 1a ;;
        *) echo '[{"node": "/dev/nvidia0", "error": null}]' ;;
    esac ;;
    images)"""),
        0o755,
    )  # fmt: skip
    run = full(root, expect_gpus=1)
    assert run["state"] == "ok"
    assert [(start["by"], start["state"], start["error"]) for start in run["starts"]] == [
        ("docker run --gpus all", "ok", None),
        ("docker run --runtime=nvidia", "failed", "docker run: no such program"),
    ]


def test_after_a_way_that_hangs_no_other_is_tried(root: Path) -> None:
    put(root, "proc/driver/nvidia/version")
    put(
        root,
        "usr/bin/docker",
        ENGINE.replace("images)", """run) case $* in *" -d "*) echo 1a ;; *) sleep 60 ;; esac ;;
    images)"""),
        0o755,
    )  # fmt: skip
    host = Host({"root": str(root), "mode": "full", "matmul": "", "expect_gpus": 1,
                       "containers": {"engine": "docker", "image": None}}, 3)  # fmt: skip
    starts = section_containers(host)["run"]["starts"]
    assert [start["state"] for start in starts] == ["hung"]


def test_without_that_command_the_engine_is_asked_for_all(root: Path) -> None:
    put(root, "proc/driver/nvidia/version")
    full(root, expect_gpus=None)
    assert "run --gpus all" in calls(root)[2]


def test_a_node_alone_gives_a_container_no_gpus(root: Path) -> None:
    """Programs of the driver's, run as root, create /dev/nvidiactl where no driver is loaded."""
    put(root, "dev/nvidiactl")
    full(root, expect_gpus=2)
    assert "--gpus" not in calls(root)[2]


def test_an_image_that_is_not_there_is_not_pulled(root: Path) -> None:
    run = full(root, expect_gpus=0, containers={"engine": "docker", "image": "theirs:1"})
    assert run["image"] == {"name": "theirs:1", "present": False, "framework": None}
    assert not [line for line in calls(root) if line.startswith("pull")]


def test_a_container_that_does_not_start_is_printed_so_and_cleared_away(root: Path) -> None:
    put(
        root,
        "usr/bin/docker",
        ENGINE.replace("images)", "run) echo no space left >&2; exit 125 ;;\nimages)"),
        0o755,
    )
    run = full(root, expect_gpus=0)
    assert (run["state"], run["error"]) == ("failed", "docker run: no space left")
    assert [line.split()[0] for line in calls(root)][-3:] == ["rm", "images", "rmi"]


def test_an_engine_that_hangs_is_not_waited_for(root: Path) -> None:
    put(root, "usr/bin/docker", ENGINE.replace("images)", "run) sleep 60 ;;\nimages)"), 0o755)
    host = Host({"root": str(root), "mode": "full", "matmul": "", "expect_gpus": 0,
                       "containers": {"engine": "docker", "image": None}}, 2)  # fmt: skip
    run = section_containers(host)["run"]
    assert run["state"] == "hung"
    assert run["error"].startswith("docker run: no answer within")


def test_a_group_that_ends_while_it_is_read_has_no_process(tmp_path: Path) -> None:
    for name in ("ended", "running"):
        (tmp_path / f"sys/fs/cgroup/docker.scope/{name}").mkdir(parents=True)
    # Like a file of the kernel that can be listed and no longer be read.
    (tmp_path / "sys/fs/cgroup/docker.scope/cgroup.procs").symlink_to("nowhere")
    (tmp_path / "sys/fs/cgroup/docker.scope/running/cgroup.procs").write_text("4711\n")
    host = Host({"root": str(tmp_path)}, 20)
    assert container_units.first_process(host, "/docker.scope") == "4711"
