"""Section `machine`: SMBIOS tables, health logs of drives, and the files of /proc, /sys and /etc."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from gpufleet.on_host import nvme
from gpufleet.on_host.dmi import memory_modules
from gpufleet.on_host.host import Host
from gpufleet.on_host.sections import machine
from tests.support.planted_host import put
from tests.support.smbios import smbios_module, structure

DRIVE = "sys/class/nvme/nvme0"
LOG = nvme.log_values(bytes(512))


def test_memory_modules_are_read_from_the_table() -> None:
    table = (
        structure(0, bytes(20), "BIOS")
        + smbios_module(0x7FFF, speed=5600, configured=4800, large=65536)
        + smbios_module(0)
        + smbios_module(16384, speed=3200)
        + smbios_module(0xFFFF)
        + smbios_module(0x8000 | 4096)
        + structure(127, b"")
        + smbios_module(1)
    )
    found = memory_modules(table)
    assert [(row["mib"], row["mt_s"]) for row in found] == [
        (65536, 4800),
        (0, None),
        (16384, 3200),
        (None, None),
        (4, None),
    ]
    assert found[0] == {
        "slot": "DIMM_A1",
        "bank": "BANK 0",
        "mib": 65536,
        "mt_s": 4800,
        "part": "PART-1",
        "maker": "Maker",
    }


def test_a_speed_beyond_16_bits_is_in_a_field_of_its_own() -> None:
    (found,) = memory_modules(smbios_module(1024, configured=0xFFFF, large=70000))
    assert found["mt_s"] == 70000


def test_an_old_table_has_shorter_structures() -> None:
    (found,) = memory_modules(structure(17, struct.pack("<8xH7xBB", 2048, 0, 0)[:0x11]))
    assert (found["mib"], found["mt_s"], found["slot"]) == (2048, None, None)


@pytest.mark.parametrize("length", [0, 1, 4, 20, 0x5C, 0x60])
def test_a_damaged_table_gives_no_module(length: int) -> None:
    assert memory_modules(smbios_module(1024)[:length]) == []
    assert memory_modules(bytes([17, 2, 0, 0]) * 9) == []


def test_a_health_log_is_read_by_its_places() -> None:
    log = bytearray(512)
    log[0], log[3], log[4], log[5] = 0b100, 90, 10, 104
    for at, value in ((32, 7), (48, 8), (64, 9), (80, 10), (112, 19), (128, 6315), (160, 3)):
        log[at : at + 16] = value.to_bytes(16, "little")
    assert nvme.log_values(bytes(log)) == {
        "critical_warning": 4,
        "spare_percent": 90,
        "spare_threshold_percent": 10,
        "used_percent": 104,
        "units_read": 7,
        "units_written": 8,
        "reads": 9,
        "writes": 10,
        "power_cycles": 19,
        "power_on_hours": 6315,
        "media_errors": 3,
    }
    log[160:176] = b"\xff" * 16
    assert nvme.log_values(bytes(log))["media_errors"] == (1 << 63) - 1


def test_smartctl_gives_the_same_values() -> None:
    log = {name: number for number, (name, _, _) in enumerate(nvme.VALUES.values())}
    text = json.dumps({"nvme_smart_health_information_log": log})
    found = nvme.smartctl_values(text)
    assert found is not None
    assert list(found.values()) == list(range(len(nvme.VALUES)))
    assert found.keys() == LOG.keys()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"nvme_smart_health_information_log": {}}'])
def test_an_output_of_smartctl_without_the_log_has_no_values(text: str) -> None:
    assert nvme.smartctl_values(text) is None


def health(monkeypatch: pytest.MonkeyPatch, error: OSError, program: str | None) -> Any:
    def refused(node: str) -> bytes:
        raise error

    monkeypatch.setattr(nvme, "read_log", refused)
    monkeypatch.setattr(nvme, "find_program", lambda host, name: program)
    log = {name: 1 for name, _, _ in nvme.VALUES.values()}
    text = json.dumps({"nvme_smart_health_information_log": log})
    monkeypatch.setattr(nvme, "run_command", lambda argv, seconds: (0, text, ""))
    return nvme.health(Host({}), "nvme0")


def test_smartctl_is_used_only_where_the_kernel_refuses_the_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = OSError(25, "Inappropriate ioctl for device")
    values, error, status = health(monkeypatch, refused, "/usr/sbin/smartctl")
    assert (values["media_errors"], error, status) == (1, None, None)
    assert health(monkeypatch, refused, None) == (None, "Inappropriate ioctl for device", None)
    denied = PermissionError(13, "Permission denied")
    found = health(monkeypatch, denied, "/usr/sbin/smartctl")
    assert found == (None, "this account cannot ask it", None)
    absent = FileNotFoundError(2, "No such file or directory")
    found = health(monkeypatch, absent, "/usr/sbin/smartctl")
    assert found == (None, "No such file or directory", None)


def test_a_drive_that_refuses_its_log_has_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvme, "read_log", lambda node: (0x4002, bytes(512)))
    refusal = (None, "it refuses its health log (status 0x4002)", 0x4002)
    assert nvme.health(Host({}), "nvme0") == refusal
    monkeypatch.setattr(nvme, "read_log", lambda node: (0, bytes(512)))
    assert nvme.health(Host({}), "nvme0") == (LOG, None, None)


def test_the_request_is_the_kernel_s() -> None:
    assert nvme.COMMAND.size == 72


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A machine with one drive, one management controller and two CPUs."""
    put(tmp_path, "sys/class/dmi/id/bios_version", "2.4\n")
    put(tmp_path, "sys/devices/platform/ipmi_bmc.0/firmware_revision", "1.74\n")
    put(tmp_path, "sys/devices/platform/ipmi_bmc.0/aux_firmware_revision", "0x00 0x0b\n")
    put(tmp_path, "sys/firmware/dmi/tables/DMI", "")
    (tmp_path / "sys/firmware/dmi/tables/DMI").write_bytes(smbios_module(4096, configured=4800))
    for cpu in range(2):
        place = f"sys/devices/system/cpu/cpu{cpu}/topology"
        put(tmp_path, f"{place}/physical_package_id", f"{cpu}\n")
        put(tmp_path, f"{place}/core_id", "0\n")
    block = "processor\t: {}\nmodel name\t: CPU 9 @ 2GHz\nmicrocode\t: 0xa1\nflags\t\t: a b\n\n"
    put(tmp_path, "proc/cpuinfo", block.format(0) + block.format(1))
    put(tmp_path, "sys/devices/system/node/node0/cpulist", "0-1\n")
    put(tmp_path, "sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:  2097152 kB\n")
    put(tmp_path, "sys/devices/system/node/node1/cpulist", "\n")
    put(tmp_path, "sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:  0 kB\n")
    put(tmp_path, f"{DRIVE}/model", "SSD 9  \n")
    put(tmp_path, f"{DRIVE}/firmware_rev", "F1\n")
    put(tmp_path, f"{DRIVE}/state", "live\n")
    put(tmp_path, f"{DRIVE}/nvme0n1/size", "7501476528\n")
    for address, code, speed, width in (
        ("0000:41:00.0", "0x010802", "16.0 GT/s PCIe", "4"),
        ("0000:01:00.0", "0x030200", "2.5 GT/s PCIe", "16"),
        ("0000:61:00.0", "0x020700", "16 GT/s", "16"),
        ("0000:61:00.2", "0x020700", "16 GT/s", "16"),
        ("0000:00:17.0", "0x010601", "Unknown", "0"),
    ):
        place = f"sys/devices/pci0/{address}"
        put(tmp_path, f"{place}/class", f"{code}\n")
        put(tmp_path, f"{place}/vendor", "0x15b3\n")
        put(tmp_path, f"{place}/device", "0x1021\n")
        put(tmp_path, f"{place}/current_link_speed", f"{speed}\n")
        put(tmp_path, f"{place}/current_link_width", f"{width}\n")
        put(tmp_path, f"sys/bus/pci/devices/{address}/x").unlink()
        (tmp_path / f"sys/bus/pci/devices/{address}").rmdir()
        (tmp_path / f"sys/bus/pci/devices/{address}").symlink_to(f"../../../devices/pci0/{address}")
    (tmp_path / "sys/devices/pci0/0000:61:00.2/physfn").symlink_to("../0000:61:00.0")
    (tmp_path / DRIVE / "device").symlink_to("../../../devices/pci0/0000:41:00.0")
    put(tmp_path, "sys/class/nvme/nvme1/transport", "tcp\n")
    put(tmp_path, "proc/cmdline", "BOOT_IMAGE=/boot/vmlinuz-6.1 root=UUID=1 ro iommu=pt\n")
    put(tmp_path, "proc/self/mountinfo", "")
    put(tmp_path, "proc/77/stat", "77 (sshd) S 1 77 77 0")
    put(tmp_path, "proc/77/limits", LIMITS)
    put(tmp_path, "proc/78/stat", "78 (sshd) S 1 78 78 0")
    put(tmp_path, "proc/90/stat", "90 (slurmd) S 77 90 90 0")
    put(tmp_path, "proc/91/stat", "91 (chronyd) S 1 91 91 0")
    put(tmp_path, "etc/security/limits.conf", "# * soft nofile 1\n*  soft   memlock unlimited\n")
    put(tmp_path, "etc/security/limits.d/90.conf", "* hard maxlogins 3\n* - nofile 65536\n")
    put(tmp_path, "etc/systemd/system.conf", "[Manager]\n#DefaultLimitSTACK=1\n")
    put(tmp_path, "etc/systemd/system.conf.d/l.conf", "[Manager]\nDefaultLimitMEMLOCK=infinity\n")
    gpu = "proc/driver/nvidia/gpus/0000:01:00.0/information"
    put(tmp_path, gpu, "Model: \t\t NVIDIA H100\nIRQ:   \t 9\nVideo BIOS: \t 96.00.4D.00.01\n")
    put(tmp_path, gpu.replace("01", "02"), "Model: NVIDIA H100\nVideo BIOS: ??.??.??.??.??\n")
    return Host({"root": str(tmp_path)})


LIMITS = (
    "Limit                     Soft Limit           Hard Limit           Units     \n"
    "Max locked memory         8388608              unlimited            bytes     \n"
    "Max open files            1024                 524288               files     \n"
)


def test_a_machine_is_read_without_tools(host: Host) -> None:
    found = machine.section_machine(host)
    assert found["firmware"]["bios_version"] == "2.4"
    assert found["firmware"]["board_name"] is None
    assert found["bmc"] == ["1.74 0x00 0x0b"]
    assert [(row["slot"], row["mib"], row["mt_s"]) for row in found["memory"]] == [
        ("DIMM_A1", 4096, 4800)
    ]
    assert found["cpus"] == {
        "models": {"CPU 9 @ 2GHz": 2},
        "microcode": {"0xa1": 2},
        "packages": 2,
        "cores": 2,
    }
    assert found["numa"] == [{"node": 0, "cpus": "0-1", "mib": 2048}]
    (drive,) = found["drives"]
    assert (drive["name"], drive["model"], drive["firmware"], drive["gb"]) == (
        "nvme0",
        "SSD 9",
        "F1",
        3841,
    )
    assert drive["address"] == "0000:41:00.0"
    assert found["pci"]["kinds"] == {
        "0x010601 0x15b3:0x1021": 1,
        "0x010802 0x15b3:0x1021": 1,
        "0x020700 0x15b3:0x1021": 1,
        "0x030200 0x15b3:0x1021": 1,
    }
    assert found["pci"]["links"] == [
        {"address": "0000:41:00.0", "class": "0x010802", "speed": "16.0 GT/s PCIe", "width": "4"},
        {"address": "0000:61:00.0", "class": "0x020700", "speed": "16 GT/s", "width": "16"},
    ]
    assert drive["health"] is None
    assert found["gpus"] == [
        {"model": "NVIDIA H100", "vbios": "96.00.4d.00.01"},
        {"model": "NVIDIA H100", "vbios": None},
    ]
    assert found["command_line"] == "ro iommu=pt"
    assert found["clock"]["services"] == ["chronyd"]
    assert found["limits"] == {
        "logins": ["* soft memlock unlimited", "* - nofile 65536"],
        "services": ["DefaultLimitMEMLOCK=infinity"],
    }
    # A process with another parent than the first is no service of this host, but maybe of a container.
    assert found["inherited"] == {"sshd": {"nofile": "1024:524288", "memlock": "8388608:unlimited"}}
    assert found["unread"] == {}


def test_what_is_not_there_is_empty_and_what_cannot_be_read_says_why(host: Host) -> None:
    table = Path(host.path("/sys/firmware/dmi/tables/DMI"))
    table.unlink()
    assert machine.section_machine(host)["memory"] == []
    table.mkdir()
    Path(host.path("/proc/self/mountinfo")).unlink()
    found = machine.section_machine(host)
    assert (found["memory"], found["mounts"]) == (None, None)
    assert set(found["unread"]) == {"memory", "mounts"}
    assert "regular file" in found["unread"]["memory"]


def test_the_command_line_has_nothing_of_this_host_alone(host: Host) -> None:
    own = (
        "BOOT_IMAGE=(hd0,gpt2)/vmlinuz-6.1",
        "root=/dev/mapper/vg-root",
        "resume=UUID=0b3233d7-a511-4351-8094-a2709db98e31",
        "rd.lvm.lv=vg/root",
        "rd.luks.uuid=1",
        "ip=10.1.2.3::10.1.2.1:255.255.255.0:gpu01:eth0:none",
        "BOOTIF=01-aa-bb-cc-dd-ee-ff",
        "systemd.hostname=gpu01",
        "x=aa:bb:cc:dd:ee:ff",
        "url=http://10.0.0.1/image",
        "admin_password=a",
        "disk.key=b",
        "netconsole=@10.0.0.2/eth0,@10.0.0.3/",
    )
    common = "ro quiet iommu=pt pci=realloc mitigations=off hugepagesz=1G rootflags=noatime ipv6.disable=1"
    put(Path(host.root), "proc/cmdline", " ".join((*own, common)))
    assert machine.command_line(host) == common


MOUNTS = """\
22 1 8:2 / / rw,relatime shared:1 - ext4 /dev/sda2 rw,errors=remount-ro
23 22 0:21 / /proc rw,nosuid - proc proc rw
24 22 0:22 / /run rw,nosuid - tmpfs tmpfs rw,size=9k
25 22 259:3 / /data rw,noatime - xfs /dev/nvme1n1 ro,attr2,inode64
26 22 0:40 / /scratch\\040one rw,relatime - nfs4 nas1:/s rw,vers=4.2,rsize=1048576,hard,addr=10.0.0.1
27 22 0:41 / /home rw - autofs auto.home rw
28 27 0:42 / /home/alice rw - nfs4 nas1:/home/alice rw,vers=4.2
29 22 0:43 / /var/lib/docker/overlay2/x/merged rw - overlay overlay rw
30 22 7:1 / /snap/core/1 ro - squashfs /dev/loop1 ro
31 22 0:44 / /var/lib/kubelet/pods/x rw - nfs4 nas1:/x rw
32 22 0:45 / /mnt/sftp rw - fuse.sshfs u@h: rw
33 22 0:46 / /lustre rw,relatime - lustre 10.0.0.2@o2ib:/fs rw,flock
"""


def test_file_systems_of_disks_and_servers_are_listed(host: Host) -> None:
    put(Path(host.root), "proc/self/mountinfo", MOUNTS)
    assert machine.mounts(host) == [
        {"path": "/", "type": "ext4", "options": ["relatime", "rw"]},
        {"path": "/data", "type": "xfs", "options": ["noatime", "ro"]},
        {
            "path": "/scratch one",
            "type": "nfs4",
            "options": ["hard", "relatime", "rsize=1048576", "rw", "vers=4.2"],
        },
        {"path": "/lustre", "type": "lustre", "options": ["flock", "relatime", "rw"]},
    ]


def test_arm_cpus_have_their_numbers_as_models(host: Host) -> None:
    block = "processor\t: {}\nCPU implementer\t: 0x41\nCPU variant\t: 0x0\nCPU part\t: {}\n\n"
    blocks = [block.format(cpu, part) for cpu, part in enumerate(("0xd85", "0xd87", "0xd87"))]
    put(Path(host.root), "proc/cpuinfo", "".join(blocks))
    assert machine.cpus(host)["models"] == {"0x41 0xd85 0x0": 1, "0x41 0xd87 0x0": 2}
    assert machine.cpus(host)["microcode"] == {}


def test_the_clock_of_this_machine_is_read() -> None:
    found = machine.clock(Host({}))
    assert found["unsynchronised"] in (True, False)
    assert 0 <= found["max_error_us"] <= 16_000_000


@pytest.mark.parametrize(
    ("chain", "found"),
    [
        # An ssh login that became root by sudo: what sshd started counts.
        (
            [("python3", 0), ("sudo", 0), ("sh", 1000), ("sshd", 1000), ("sshd", 0)],
            {"account": 1000, "memlock": "3:3"},
        ),
        ([("python3", 1000), ("sshd-session", 1000)], {"account": 1000, "memlock": "1:1"}),
        ([("python3", 0), ("sh (a) b", 0), ("sshd", 0)], {"account": 0, "memlock": "2:2"}),
        # A timer, Slurm and a console.
        ([("python3", 0), ("systemd", 0)], None),
        ([("python3", 1000), ("slurmstepd", 0), ("slurmd", 0)], None),
        ([("python3", 0), ("bash", 0), ("login", 0)], None),
        ([], None),
    ],
)
def test_the_limits_of_a_login_are_those_of_what_sshd_started(
    tmp_path: Path, chain: list[tuple[str, int]], found: object
) -> None:
    for at, (name, account) in enumerate(chain, 1):
        above = 11 + at if at < len(chain) else 1
        put(tmp_path, f"proc/{10 + at}/stat", f"{10 + at} ({name}) S {above} 1 1\n")
        put(tmp_path, f"proc/{10 + at}/status", f"Name:\tx\nUid:\t{account}\t0\t0\t0\n")
        put(
            tmp_path,
            f"proc/{10 + at}/limits",
            f"Max locked memory         {at}                    {at}                    bytes\n",
        )
    assert machine.login_limits(Host({"root": str(tmp_path)}), 11) == found
