"""The probe over planted trees: packages, their repositories, and what keeps the driver's."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from gpufleet.on_host.sections.packages import DRIVER_PACKAGE
from tests.support.planted_host import probe_tree, put


def stanza(name: str, version: str, status: str, arch: str = "amd64") -> str:
    return (
        f"Package: {name}\nStatus: {status}\nArchitecture: {arch}\nVersion: {version}\n"
        f"Description: x\n Status: in the text\n"
    )


def test_packages_are_read_from_dpkgs_own_database(tmp_path: Path) -> None:
    put(
        tmp_path,
        "var/lib/dpkg/status",
        "\n".join(
            [
                stanza("dpkg", "1.21", "install ok installed"),
                stanza("libcuda1", "535.261.03-1", "hold ok installed"),
                stanza("libcuda1", "535.261.03-1", "install ok installed", "i386"),
                stanza("nvidia-kernel-dkms", "535.261.03-1", "install ok half-configured"),
                stanza("nvidia-smi", "525.1-1", "deinstall ok config-files"),
                stanza("nvidia-cuda-toolkit", "11.8.0", "install ok installed"),
                stanza("curl", "7.88", "install reinstreq installed"),
                stanza("unattended-upgrades", "2.9", "install ok installed", "all"),
            ]
        ),
    )
    found = probe_tree(tmp_path)["packages"]
    row = {"name": "libcuda1", "version": "535.261.03-1", "status": "installed", "held": True}
    assert found["manager"] == "dpkg"
    assert found["driver"] == [
        row,
        {**row, "name": "libcuda1:i386", "held": False},
        {**row, "name": "nvidia-kernel-dkms", "status": "half-configured", "held": False},
    ]
    assert found["broken"] == [
        {"name": "curl", "status": "reinstreq"},
        {"name": "nvidia-kernel-dkms", "status": "half-configured"},
    ]
    assert found["unattended"] == {"installed": True, "excluded": None}


@pytest.mark.parametrize(
    ("name", "driver"),
    [
        ("libcuda1", True),
        ("nvidia-tesla-470-kernel-dkms", True),
        ("nvidia-open-kernel-dkms", True),
        ("libnvidia-compute-535-server", True),
        ("linux-modules-nvidia-535-server-generic", True),
        ("nvidia-headless-535-server", True),
        ("nvidia-fabricmanager-535", True),
        ("kmod-nvidia-latest-dkms", True),
        ("nvidia-driver-cuda-libs", True),
        ("cuda-drivers", True),
        ("nvidia-cuda-mps", True),
        ("firmware-nvidia-gsp", True),
        ("libgl1-nvidia-glvnd-glx", True),
        ("nvidia-persistenced", True),
        ("libnvidia-cfg1-535-server", True),
        ("nvidia-cuda-toolkit", False),
        ("nvidia-container-toolkit", False),
        ("nvidia-cudnn", False),
        ("libnvidia-container1", False),
        ("libcudart11.0", False),
        ("libnvidia-ml-dev", False),
        ("nvidia-docker2", False),
        ("cuda-toolkit-12-4", False),
        ("libnvidia-egl-wayland1", False),
    ],
)
def test_which_packages_are_the_drivers(name: str, driver: bool) -> None:
    assert bool(DRIVER_PACKAGE.match(name)) is driver


UPGRADER = stanza("unattended-upgrades", "2.9", "install ok installed")
EXCLUSIONS = 'Unattended-Upgrade::Package-Blacklist {\n  "libcuda1";\n  "nvidia-";\n};\n'


def debian(root: Path, files: dict[str, str]) -> Any:
    """The packages that unattended-upgrades excludes with these settings, as apt reads them."""
    program = shutil.which("apt-config")
    if program is None:
        pytest.skip("no apt here")
    names = ("libcuda1", "nvidia-smi", "unattended-upgrades")
    stanzas = (stanza(name, "535.261.03-1", "install ok installed") for name in names)
    put(root, "var/lib/dpkg/status", "\n".join(stanzas))
    here = put(root, "apt.conf", f'Dir "{root}";\n')
    command = f'#!/bin/sh\nAPT_CONFIG={here} exec {program} "$@"\n'
    put(root, "usr/bin/apt-config", command, 0o755)
    for name, text in files.items():
        put(root, f"etc/apt/{name}", text)
    found = probe_tree(root)["packages"]["unattended"]
    assert found["installed"] is True
    return found["excluded"]


@pytest.mark.parametrize(
    ("text", "excluded"),
    [
        (EXCLUSIONS, True),
        (EXCLUSIONS.lower(), True),
        ('Unattended-Upgrade { Package-Blacklist { "libcuda"; "nvidia"; }; };\n', True),
        ('Unattended-Upgrade::Package-Blacklist:: ".*";\n', True),
        (EXCLUSIONS.replace('"libcuda1"', '"vim-.{1,3}"; "libcuda1"'), True),
        (EXCLUSIONS.replace('"libcuda1"', '"vim"; // "libcuda1"'), False),
        (EXCLUSIONS.replace('  "libcuda1"', '// "libcuda1"'), False),
        ('Unattended-Upgrade::Package-Blacklist { "("; "nvidia"; };\n', False),
        ('Unattended-Upgrade::Package-Blacklist ".*";\n', False),
        ('Unattended-Upgrade::Package-Blacklist { old { ".*"; }; };\n', False),
        (f"/*\n{EXCLUSIONS}*/\n", False),
        (EXCLUSIONS + "#clear Unattended-Upgrade::Package-Blacklist;\n", False),
        ("", False),
        (EXCLUSIONS.replace('1";', "1;"), None),
    ],
)
def test_upgrades_at_night_leave_alone_what_apt_reads(
    tmp_path: Path, text: str, excluded: bool | None
) -> None:
    assert debian(tmp_path, {"apt.conf.d/52gpufleet-driver": text}) is excluded


@pytest.mark.parametrize(
    ("name", "excluded"),
    [
        ("apt.conf", True),
        ("apt.conf.d/50unattended-upgrades.conf", True),
        ("apt.conf.d/50unattended-upgrades.ucf-old", False),
        ("apt.conf.d/50unattended-upgrades.bak", False),
    ],
)
def test_apt_decides_which_files_it_reads(tmp_path: Path, name: str, excluded: bool) -> None:
    assert debian(tmp_path, {name: EXCLUSIONS}) is excluded


def test_what_apt_may_not_read_is_unknown(tmp_path: Path) -> None:
    warning = "W: Unable to read /etc/apt/apt.conf.d/50x - open (13: Permission denied)"
    put(tmp_path, "var/lib/dpkg/status", UPGRADER)
    put(tmp_path, "usr/bin/apt-config", f"#!/bin/sh\necho '{warning}' >&2\n", 0o755)
    assert probe_tree(tmp_path)["packages"]["unattended"]["excluded"] is None


def test_what_apt_does_not_tell_is_unknown(tmp_path: Path) -> None:
    put(tmp_path, "var/lib/dpkg/status", UPGRADER)
    found = probe_tree(tmp_path)["packages"]["unattended"]
    assert found == {"installed": True, "excluded": None}


def test_pins_that_name_the_driver_are_shown(tmp_path: Path) -> None:
    put(tmp_path, "var/lib/dpkg/status", stanza("libcuda1", "535.261.03-1", "install ok installed"))
    put(
        tmp_path,
        "etc/apt/preferences.d/gpufleet-driver",
        "# libcuda1\npackage: libz*\n libcuda*\nPin: version 535.261.03-1\nPin-Priority: 1001\n\n"
        "Package: *\nPin: release a=stable\nPin-Priority: 500\n",
    )
    put(
        tmp_path,
        "etc/apt/preferences.d/cuda-600",
        "Package: *\nPin: release l=NVIDIA CUDA\nPin-Priority: 600\n",
    )
    put(tmp_path, "etc/apt/preferences.d/other.bak", "Package: libcuda1\nPin: version 1\n")
    assert probe_tree(tmp_path)["packages"]["pins"] == [
        {
            "path": "/etc/apt/preferences.d/cuda-600",
            "packages": ["*"],
            "pin": "release l=NVIDIA CUDA",
            "priority": 600,
        },
        {
            "path": "/etc/apt/preferences.d/gpufleet-driver",
            "packages": ["libcuda*"],
            "pin": "version 535.261.03-1",
            "priority": 1001,
        },
    ]


def test_repositories_of_nvidia_and_docker_are_shown(tmp_path: Path) -> None:
    put(tmp_path, "etc/apt/sources.list", "deb http://deb.debian.org/debian bookworm main\n")
    put(
        tmp_path,
        "etc/apt/sources.list.d/cuda.list",
        "# deb https://nvidia.example/old /\n"
        "deb [arch=amd64 signed-by=/usr/share/keyrings/cuda.gpg]"
        " https://me:secret@nvidia.example/repo /\n",
    )
    put(
        tmp_path,
        "etc/apt/sources.list.d/gpufleet-nvidia.sources",
        "Types: deb\nURIs: http://mirror.example/repo\nSuites: /\n"
        "Signed-By: /etc/apt/keyrings/gpufleet-nvidia.asc\n\n"
        "Types: deb\nEnabled: no\nURIs: http://mirror.example/off\nSuites: /\n",
    )
    put(
        tmp_path,
        "etc/yum.repos.d/docker-ce.repo",
        "[stable]\nname=x\nbaseurl=https://docker.example/9\ngpgkey=https://docker.example/gpg\n"
        "\n[test]\nbaseurl=https://docker.example/t\nenabled=0\n",
    )
    rows = probe_tree(tmp_path)["packages"]["sources"]
    assert [(row["uris"], row["suites"], row["signed_by"], row["format"]) for row in rows] == [
        (["https://nvidia.example/repo"], ["/"], "/usr/share/keyrings/cuda.gpg", "list"),
        (["http://mirror.example/repo"], ["/"], "/etc/apt/keyrings/gpufleet-nvidia.asc", "deb822"),
        (["https://docker.example/9"], ["stable"], "https://docker.example/gpg", "repo"),
    ]


@pytest.mark.parametrize(
    ("name", "text", "source_only"),
    [
        ("a.list", "deb https://nvidia.example/r /", False),
        ("a.list", " deb https://nvidia.example/r /", False),
        ("a.list", '\tdeb\t[ signed-by="/k.gpg" ]\thttps://nvidia.example/r /', False),
        ("a.list", "deb-src https://nvidia.example/r /", True),
        ("a.list", " # deb https://nvidia.example/r /", None),
        ("a.sources", "Types: deb", False),
        ("a.sources", "Types: deb deb-src", False),
        ("a.sources", "Types: deb-src", True),
        ("a.sources", "Types: deb\n# Enabled: no", False),
        ("a.sources", "Types: deb\nEnabled: yes", False),
        ("a.sources", "Types: deb\nEnabled: disabled", False),
        *(
            ("a.sources", f"Types: deb\nEnabled: {word}", None)
            for word in ("no", "No", "false", "off", "0", "without", "disable")
        ),
        *(
            ("a.repo", f"enabled={word}", False)
            for word in ("1", "true", "yes", "True", "on", "0 # kept for later")
        ),
        *(("a.repo", f"enabled = {word}", None) for word in ("0", "False", "no", "off")),
        ("a.repo", "gpgcheck=0", False),
    ],
)
def test_a_repository_counts_as_apt_and_dnf_enable_it(
    tmp_path: Path, name: str, text: str, source_only: bool | None
) -> None:
    place, text = {
        "list": ("apt/sources.list.d", text),
        "sources": ("apt/sources.list.d", f"{text}\nURIs: https://nvidia.example/r\nSuites: /"),
        "repo": ("yum.repos.d", f"[cuda]\n{text}\nbaseurl=https://nvidia.example/r"),
    }[name.partition(".")[2]]
    put(tmp_path, f"etc/{place}/{name}", text + "\n")
    rows = probe_tree(tmp_path)["packages"]["sources"]
    assert [(row["uris"], row["source_only"]) for row in rows] == (
        [] if source_only is None else [(["https://nvidia.example/r"], source_only)]
    )
    assert {row["signed_by"] for row in rows} <= {None, "/k.gpg"}


# What rpm prints of a host with the driver: name, epoch, and version with release.
RPM = """\
nvidia-driver-cuda\t3\t535.261.03-1.el9
kernel\t0\t5.14.0-1
kernel\t0\t5.14.0-2
python3-dnf-plugin-versionlock\t0\t4.3.0-1.el9
"""
LOCKED = "# a comment\n\nnvidia-driver-cuda-3:535.261.03-1.el9.*\n!kernel-0:5.14.0-1.*\n"


def redhat(root: Path, rpm: str = RPM, **settings: str) -> dict[str, Any]:
    """The section's data of a host of Red Hat's family."""
    put(root, "var/lib/rpm/rpmdb.sqlite")
    put(root, "usr/bin/rpm", f"#!/bin/sh\ncat <<END\n{rpm}END\n", 0o755)
    for name, text in settings.items():
        put(root, f"etc/dnf/{name.replace('__', '/').replace('_', '.')}", text)
    found: dict[str, Any] = probe_tree(root)["packages"]
    return found


def test_what_rpm_knows_is_held_by_dnfs_version_locks(tmp_path: Path) -> None:
    found = redhat(tmp_path, RPM + "dnf-automatic\t0\t4.14\n", plugins__versionlock_list=LOCKED)
    assert found["driver"] == [
        {
            "name": "nvidia-driver-cuda",
            "version": "535.261.03-1.el9",
            "status": "installed",
            "held": True,
        }
    ]
    assert found["locking"] == {"plugin": True, "switched_off": []}
    assert found["unattended"] == {"installed": True, "excluded": True}


@pytest.mark.parametrize(
    ("settings", "off"),
    [
        ({"plugins__versionlock_conf": "[main]\nenabled = 0\n"}, "enabled"),
        ({"plugins__versionlock_conf": "[main]\nenabled = 1\n"}, ""),
        ({"dnf_conf": "[main]\nplugins=False\n"}, "plugins"),
        ({"dnf_conf": "[main]\ngpgcheck=0\n"}, ""),
    ],
)
def test_locks_that_dnf_ignores_hold_nothing(
    tmp_path: Path, settings: dict[str, str], off: str
) -> None:
    found = redhat(tmp_path, plugins__versionlock_list=LOCKED, **settings)
    assert found["driver"][0]["held"] is not bool(off)
    assert found["unattended"]["excluded"] is not bool(off)
    assert [each.partition(": ")[2] for each in found["locking"]["switched_off"]] == (
        [f"{off}=0"] if off else []
    )


def test_without_its_plugin_dnf_knows_no_locks(tmp_path: Path) -> None:
    rpm = "".join(line for line in RPM.splitlines(keepends=True) if "versionlock" not in line)
    found = redhat(tmp_path, rpm, plugins__versionlock_list=LOCKED)
    assert (found["locking"]["plugin"], found["driver"][0]["held"]) == (False, False)


@pytest.mark.parametrize(
    ("lock", "held"),
    [
        ("nvidia-driver-cuda-3:535.261.03-1.el9.*", True),
        ("nvidia-driver-cuda-3:535.261.03-1.el9.x86_64", True),
        ("nvidia-driver-cuda-3:535.261.03-1.el9", True),
        ("nvidia-driver-cuda-535.261.03-1.el9", True),
        ("nvidia-driver-cuda-3:535.261.03", True),
        ("nvidia-driver-cuda-3:535.261.03*", True),
        ("nvidia-driver-cuda-3:535.261.03-*", True),
        ("nvidia-*-3:535.261.03-1.el9.*", True),
        ("nvidia-driver-cuda-3:999.1.1-1.el9.*", False),
        ("nvidia-driver-cuda-3:535.261.03-2.el9.*", False),
        ("nvidia-driver-cuda-2:535.261.03-1.el9.*", False),
        ("nvidia-driver-cuda-3:535.*", False),
        ("nvidia-driver-3:535.261.03-1.el9.*", False),
        ("nvidia-driver-cuda", False),
        ("nvidia-driver-cuda.*", False),
        ("nvidia-*", False),
    ],
)
def test_a_lock_holds_what_is_installed_in_its_version(
    tmp_path: Path, lock: str, held: bool
) -> None:
    found = redhat(tmp_path, plugins__versionlock_list=lock + "\n")
    assert found["driver"][0]["held"] is held


@pytest.mark.parametrize(
    ("locks", "held"),
    [
        ("nvidia-container-toolkit-0:1.17.8-1.*\n", True),
        ("#nvidia-container-toolkit-0:1.17.8-1.*\n", False),
        ("!nvidia-container-toolkit-0:1.17.8-1.*\n", False),
        ("nvidia-container-toolkit-base-0:1.17.8-1.*\n", False),
        ("nvidia-container-toolkit-0:1.19.0-1.*\n", False),
        ("nvidia-container-toolkit\n", False),
        ("", False),
    ],
)
def test_the_container_toolkit_is_held_by_a_lock_of_its_version(
    tmp_path: Path, locks: str, held: bool
) -> None:
    rpm = RPM + "nvidia-container-toolkit\t0\t1.17.8-1\n"
    redhat(tmp_path, rpm, plugins__versionlock_list=locks)
    toolkit = probe_tree(tmp_path)["containers"]["toolkit"]
    assert toolkit == {"version": "1.17.8-1", "held": held, "candidate": None}


def test_locks_that_dnf_ignores_do_not_hold_the_container_toolkit(tmp_path: Path) -> None:
    rpm = RPM + "nvidia-container-toolkit\t0\t1.17.8-1\n"
    lock = "nvidia-container-toolkit-0:1.17.8-1.*\n"
    redhat(tmp_path, rpm, plugins__versionlock_list=lock, dnf_conf="[main]\nplugins=0\n")
    assert probe_tree(tmp_path)["containers"]["toolkit"]["held"] is False


def test_a_host_without_a_package_manager_that_is_known(tmp_path: Path) -> None:
    found = probe_tree(tmp_path)["packages"]
    assert (found["manager"], found["driver"], found["broken"]) == (None, [], [])
