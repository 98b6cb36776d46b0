"""The probe over planted trees: kernels, the driver's modules and packages, what boots next."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pytest

from gpufleet.on_host import mig
from gpufleet.on_host.accounts import account_name
from gpufleet.on_host.elf import elf_modinfo
from gpufleet.on_host.holders import unit_of
from gpufleet.on_host.host import Host
from gpufleet.on_host.mig import mig_of
from gpufleet.on_host.sections import kernel as kernel_section
from gpufleet.on_host.sections.kernel import nouveau_in_initramfs, nouveau_listed
from tests.support.elf_file import kernel_module
from tests.support.planted_host import probe_tree, put

OLD, NEW = "6.1.0-9-amd64", "6.1.0-50-amd64"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A Debian with two kernels, and Debian's driver built for the older one, which runs."""
    put(tmp_path, "proc/sys/kernel/osrelease", OLD + "\n")
    for kernel in (OLD, NEW):
        put(tmp_path, f"boot/vmlinuz-{kernel}")
        put(tmp_path, f"boot/initrd.img-{kernel}")
        (tmp_path / f"lib/modules/{kernel}/kernel").mkdir(parents=True)
    put(tmp_path, f"usr/src/linux-headers-{OLD}/Makefile")
    (tmp_path / f"lib/modules/{OLD}/build").symlink_to(f"/usr/src/linux-headers-{OLD}")
    for name, output in (("", "NVIDIA"), ("-uvm", "Dual MIT/GPL")):
        kernel_module(
            tmp_path / f"lib/modules/{OLD}/updates/dkms/nvidia-current{name}.ko",
            license=output,
            version="535.261.03",
            srcversion="AB",
        )
    (tmp_path / "tmp").mkdir()
    return tmp_path


def kernels(root: Path) -> dict[str, Any]:
    return {row["version"]: row for row in probe_tree(root)["kernel"]["installed"]}


# -- kernels and modules --------------------------------------------------------------------------


def test_a_kernel_without_module_and_headers_shows_before_it_boots(root: Path) -> None:
    found = kernels(root)
    assert list(found) == [OLD, NEW]
    assert found[OLD] == {
        "version": OLD,
        "image": True,
        "headers": True,
        "initramfs": f"/boot/initrd.img-{OLD}",
        "initramfs_nouveau": None,
        "modules": [
            {
                "name": name,
                "path": f"/lib/modules/{OLD}/updates/dkms/{file}.ko",
                "version": "535.261.03",
                "license": output,
                "error": None,
            }
            for name, file, output in (
                ("nvidia", "nvidia-current", "NVIDIA"),
                ("nvidia-uvm", "nvidia-current-uvm", "Dual MIT/GPL"),
            )
        ],
    }
    assert (found[NEW]["image"], found[NEW]["headers"], found[NEW]["modules"]) == (True, False, [])
    assert probe_tree(root)["driver"]["on_disk"] == "535.261.03"


def test_headers_are_there_only_where_they_have_a_makefile(root: Path) -> None:
    (root / f"lib/modules/{NEW}/build").symlink_to("/usr/src/gone")
    assert kernels(root)[NEW]["headers"] is False


@pytest.mark.parametrize(
    "name",
    [
        "kernel/drivers/video/fbdev/nvidia/nvidiafb.ko",
        "kernel/drivers/platform/x86/nvidia-wmi-ec-backlight.ko",
        "kernel/drivers/video/nvidia-wmi-ec-backlight.ko",
        "updates/dkms/nvidia-fs.ko",
    ],
)
def test_modules_of_the_kernel_itself_are_no_driver(root: Path, name: str) -> None:
    kernel_module(root / f"lib/modules/{NEW}/{name}", license="GPL")
    assert kernels(root)[NEW]["modules"] == []


@pytest.mark.parametrize(
    "name",
    [
        "extra/nvidia.ko",
        "weak-updates/nvidia/nvidia.ko",
        "updates/nvidia.ko",
        "kernel/nvidia-535srv/nvidia.ko",
        "kernel/drivers/video/nvidia.ko",
    ],
)
def test_modules_are_found_where_each_distribution_puts_them(root: Path, name: str) -> None:
    kernel_module(root / f"lib/modules/{NEW}/{name}", license="Dual MIT/GPL", version="580.95.05")
    assert kernels(root)[NEW]["modules"] == [
        {
            "name": "nvidia",
            "path": f"/lib/modules/{NEW}/{name}",
            "version": "580.95.05",
            "license": "Dual MIT/GPL",
            "error": None,
        }
    ]


def test_of_two_drivers_the_one_comes_first_that_modprobe_would_load(root: Path) -> None:
    place = root / f"lib/modules/{NEW}/updates/dkms"
    for file, version in (("nvidia-current", "535.261.03"), ("nvidia-tesla-470", "470.256.02")):
        kernel_module(place / f"{file}.ko", version=version)
    put(root, "etc/alternatives/modprobe.conf", "install nvidia modprobe -i nvidia-tesla-470 $X\n")
    (root / "etc/modprobe.d").mkdir(parents=True)
    (root / "etc/modprobe.d/nvidia.conf").symlink_to("/etc/alternatives/modprobe.conf")
    assert [row["version"] for row in kernels(root)[NEW]["modules"]] == ["470.256.02", "535.261.03"]
    put(root, "etc/alternatives/modprobe.conf", "install nvidia modprobe -i nvidia-current $X\n")
    assert kernels(root)[NEW]["modules"][0]["version"] == "535.261.03"


OWN, BUILT = "kernel/nvidia-580srv/nvidia.ko", "updates/dkms/nvidia.ko"


@pytest.mark.parametrize(
    ("listed", "first"),
    [(None, BUILT), (f"{BUILT}:\n", BUILT), (f"kernel/x.ko: {OWN}\n{OWN}: kernel/x.ko\n", OWN)],
)
def test_beside_the_distributions_own_module_the_one_comes_first_that_depmod_chose(
    root: Path, listed: str | None, first: str
) -> None:
    """linux-modules-nvidia-*-generic beside DKMS: DKMS's was taken for the other one."""
    for name in (OWN, BUILT):
        kernel_module(root / f"lib/modules/{NEW}/{name}", version="580.126.20", license="NVIDIA")
    if listed:
        put(root, f"lib/modules/{NEW}/modules.dep", listed)
    found = [row["path"] for row in kernels(root)[NEW]["modules"]]
    assert found[0] == f"/lib/modules/{NEW}/{first}"
    assert len(found) == 2


def test_a_module_cut_anywhere_is_damaged(tmp_path: Path) -> None:
    whole = kernel_module(tmp_path / "x.ko", version="1").read_bytes()
    for length in range(len(whole)):
        (tmp_path / "cut.ko").write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"not a kernel module|truncated"):
            elf_modinfo(tmp_path / "cut.ko")


def test_a_packed_module_is_not_unpacked_in_a_planted_tree(root: Path) -> None:
    whole = kernel_module(root / "x.ko", version="1").read_bytes()
    path = root / f"lib/modules/{NEW}/extra/nvidia.ko.gz"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(whole))
    assert kernels(root)[NEW]["modules"][0] == {
        "name": "nvidia",
        "path": f"/lib/modules/{NEW}/extra/nvidia.ko.gz",
        "version": None,
        "license": None,
        "error": None,
    }


# -- what boots next ------------------------------------------------------------------------------

GRUB = f"""
if [ "${{next_entry}}" ] ; then
   set default="${{next_entry}}"
else
   set default="DEFAULT"
fi
function gfxmode {{
        set gfxpayload="${{1}}"
}}
menuentry 'Debian GNU/Linux' --class debian $menuentry_id_option 'gnulinux-simple-abc' {{
        linux   /boot/vmlinuz-{NEW} root=UUID=abc ro quiet
        initrd  /boot/initrd.img-{NEW}
}}
submenu 'Advanced options' $menuentry_id_option 'gnulinux-advanced-abc' {{
        menuentry 'Debian, {NEW}' --class debian $menuentry_id_option 'new' {{
                linux   /boot/vmlinuz-{NEW} root=UUID=abc ro quiet
        }}
        menuentry 'Debian, {OLD}' --class debian $menuentry_id_option 'old' {{
                linux   /boot/vmlinuz-{OLD} root=UUID=abc ro quiet
        }}
}}
"""


@pytest.mark.parametrize(
    ("default", "kept", "kernel"),
    [
        ("0", "", NEW),
        ("1>1", "", OLD),
        ("gnulinux-advanced-abc>old", "", OLD),
        (f"Advanced options>Debian, {OLD}", "", OLD),
        ("${saved_entry}", "saved_entry=gnulinux-advanced-abc>old\n", OLD),
        ("${saved_entry}", "", NEW),
        ("0", "next_entry=1>1\n", OLD),
    ],
)
def test_grub_tells_what_boots_next(root: Path, default: str, kept: str, kernel: str) -> None:
    put(root, "boot/grub/grub.cfg", GRUB.replace("DEFAULT", default))
    put(root, "boot/grub/grubenv", f"# GRUB Environment Block\n{kept}####")
    found = probe_tree(root)["kernel"]
    assert (found["next_boot"], found["next_boot_source"]) == (kernel, "/boot/grub/grub.cfg")


def test_loader_entries_tell_what_boots_next(root: Path) -> None:
    for kernel in (OLD, NEW):
        put(
            root,
            f"boot/loader/entries/abc-{kernel}.conf",
            f"title Rocky\nversion {kernel}\nlinux /vmlinuz-{kernel}\n",
        )
    put(root, "boot/grub2/grub.cfg", "blscfg\n")
    put(root, "boot/grub2/grubenv", f"saved_entry=abc-{OLD}\n")
    found = probe_tree(root)["kernel"]
    assert (found["next_boot"], found["next_boot_source"]) == (OLD, "/boot/loader/entries")
    put(root, "boot/grub2/grubenv", "")
    assert probe_tree(root)["kernel"]["next_boot_source"] == "the newest in /boot"


def test_without_a_boot_loader_the_link_tells_else_the_newest(root: Path) -> None:
    put(root, "boot/vmlinuz-0-rescue-abc")
    found = probe_tree(root)["kernel"]
    assert (found["next_boot"], found["next_boot_source"]) == (NEW, "the newest in /boot")
    (root / "vmlinuz").symlink_to(f"boot/vmlinuz-{OLD}")
    found = probe_tree(root)["kernel"]
    assert (found["next_boot"], found["next_boot_source"]) == (OLD, "/vmlinuz")
    for image in (root / "boot").glob("vmlinuz-*"):
        image.unlink()
    found = probe_tree(root)["kernel"]
    assert (found["next_boot"], found["next_boot_source"]) == (None, None)


def test_a_boot_loader_that_only_root_may_read_hides_no_kernel(
    monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    read = Host.text

    def refuse(host: Any, name: str) -> Any:
        if name.endswith("grub.cfg"):
            raise PermissionError(name)
        return read(host, name)

    put(root, "boot/grub/grub.cfg", GRUB.replace("DEFAULT", "1>1"))
    monkeypatch.setattr(Host, "text", refuse)
    found = probe_tree(root)["kernel"]
    assert (found["next_boot"], found["next_boot_source"]) == (NEW, "the newest in /boot")


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("run/systemd/container", "podman\n", "podman"),
        ("proc/1/environ", "PATH=/bin\0container=lxc\0HOME=/\0", "lxc"),
        (".dockerenv", "", "docker"),
        ("proc/1/environ", "PATH=/bin\0", None),
    ],
)
def test_a_container_says_that_it_is_one(
    root: Path, name: str, text: str, kind: str | None
) -> None:
    put(root, name, text)
    assert probe_tree(root)["kernel"]["container"] == kind


# As an H100's virtual machine has it, whose first process refused to be traced.
MOUNT = "{number} 27 0:21 / /proc rw,relatime - proc proc rw\n"


@pytest.mark.parametrize(
    ("processes", "mount", "kind"),
    [
        # A machine that is booted from a container's image; containers: one has the machine's
        # processes (`--pid=host`), one its own.
        ("pid:[4026531836]", "22", None),
        ("pid:[4026531836]", "44", "docker"),
        ("pid:[4026532001]", "22", "docker"),
        ("pid:[4026531836]", None, "docker"),
    ],
)
def test_a_machine_may_have_the_marks_of_a_container(
    root: Path, processes: str, mount: str | None, kind: str | None
) -> None:
    """Also where the first process refuses to be traced, so that its name spaces are unknown."""
    put(root, ".dockerenv", "")
    link = root / "proc/self/ns/pid"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(processes)
    put(root, "proc/1/mountinfo", MOUNT.format(number="22"))
    if mount is not None:
        put(root, "proc/self/mountinfo", MOUNT.format(number=mount))
    assert probe_tree(root)["kernel"]["container"] == kind


EFIVARS = "sys/firmware/efi/efivars"
SHIM, FIRMWARE = "605dab50-e046-4300-abb6-3dd810dd8b23", "8be4df61-93ca-11d2-aa0d-00e098032b8c"
DATABASE = "d719b2cb-3d3a-4596-a3bc-dad00e67656f"
DKMS_KEY, UBUNTU_KEY = "var/lib/dkms/mok.pub", "var/lib/shim-signed/mok/MOK.der"
UNKNOWN = {"enabled": None, "refuses": None, "key": None, "enrolled": None, "pending": None}


def variable(root: Path, name: str, data: bytes) -> None:
    """A variable as efivarfs shows it: four bytes of attributes before it."""
    write(root, f"{EFIVARS}/{name}", b"\6\0\0\0" + data)


def write(root: Path, name: str, data: bytes) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(data)


def secure_boot(root: Path) -> dict[str, Any]:
    return dict(probe_tree(root)["kernel"]["secure_boot"])


def test_secure_boot_is_read_from_the_firmware(root: Path) -> None:
    assert secure_boot(root) == {**UNKNOWN, "enabled": False}
    (root / EFIVARS).mkdir(parents=True)
    assert secure_boot(root)["enabled"] is None
    for state in (0, 1):
        variable(root, f"SecureBoot-{FIRMWARE}", bytes([state]))
        assert secure_boot(root)["enabled"] is bool(state)
    put(root, "run/systemd/container", "podman\n")
    assert secure_boot(root) == UNKNOWN


@pytest.mark.parametrize(
    ("enforced", "lockdown", "refuses"),
    [
        ("Y\n", "none [integrity] confidentiality\n", True),
        ("N\n", "none integrity [confidentiality]\n", True),
        ("Y\n", "[none] integrity confidentiality\n", True),
        ("N\n", "[none] integrity confidentiality\n", False),
        # Secure Boot whose checks somebody switched off in shim.
        ("N\n", None, None),
        (None, "[none] integrity confidentiality\n", None),
    ],
)
def test_the_kernel_tells_whether_it_refuses_unsigned_modules(
    root: Path, enforced: str | None, lockdown: str | None, refuses: bool | None
) -> None:
    for name, text in (
        ("sys/module/module/parameters/sig_enforce", enforced),
        ("sys/kernel/security/lockdown", lockdown),
    ):
        if text:
            put(root, name, text)
    assert secure_boot(root)["refuses"] is refuses


def key_states(root: Path) -> tuple[Any, ...]:
    found = secure_boot(root)
    return found["key"], found["enrolled"], found["pending"]


def test_a_key_is_enrolled_where_a_list_of_the_firmware_has_its_certificate(root: Path) -> None:
    own, other = b"0\x82\3\1own certificate", b"0\x82\3\1certificate of somebody"
    variable(root, f"MokListRT-{SHIM}", b"head" + other)
    assert key_states(root) == (None, None, None)
    write(root, DKMS_KEY, own)
    assert key_states(root) == (f"/{DKMS_KEY}", False, False)
    variable(root, f"MokNew-{SHIM}", b"head" + own)
    assert key_states(root) == (f"/{DKMS_KEY}", False, True)
    for name in (f"MokListRT1-{SHIM}", f"db-{DATABASE}"):
        variable(root, name, b"head" + own + b"tail")
        assert key_states(root) == (f"/{DKMS_KEY}", True, True)
        (root / EFIVARS / name).unlink()
    write(root, "sys/firmware/efi/mok-variables/MokListRT", other + own)
    assert key_states(root)[:2] == (f"/{DKMS_KEY}", True)


def test_of_two_keys_the_enrolled_one_counts(root: Path) -> None:
    variable(root, f"MokListRT-{SHIM}", b"head" + b"certificate of Ubuntu")
    write(root, DKMS_KEY, b"certificate of DKMS")
    write(root, UBUNTU_KEY, b"certificate of Ubuntu")
    assert key_states(root) == (f"/{UBUNTU_KEY}", True, False)


def test_an_empty_certificate_or_no_list_leaves_it_unknown(root: Path) -> None:
    write(root, DKMS_KEY, b"")
    variable(root, f"MokListRT-{SHIM}", b"head")
    assert key_states(root) == (f"/{DKMS_KEY}", None, None)
    write(root, DKMS_KEY, b"certificate")
    (root / EFIVARS / f"MokListRT-{SHIM}").unlink()
    assert key_states(root) == (f"/{DKMS_KEY}", None, False)


# -- nouveau, services, holders, DKMS -------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "blacklisted"),
    [
        ("etc/modprobe.d/x.conf", "# blacklist nouveau\n", False),
        ("etc/modprobe.d/x.conf", "blacklist nouveau\n", True),
        ("usr/lib/modprobe.d/x.conf", "install nouveau /bin/false\n", True),
        ("etc/modprobe.d/x.txt", "blacklist nouveau\n", False),
        ("etc/modprobe.d/x.conf", "blacklist nouveau # NVIDIA's own\n", True),
        ("etc/modprobe.d/x.conf", "blacklist \\\nnouveau\n", True),
        ("etc/modprobe.d/x.conf", "# what follows is off: \\\nblacklist nouveau\n", False),
        ("etc/modprobe.d/x.conf", "# use modprobe.blacklist=nouveau\n", False),
        ("etc/modprobe.d/x.conf", "blacklist nouveau_other\n", False),
        ("etc/modprobe.d/x.conf", "install nouveau /bin/false # never\n", True),
        ("etc/modprobe.d/x.conf", "install nouveau true\n", True),
        ("etc/modprobe.d/x.conf", "install nou* /bin/true\n", True),
        ("etc/modprobe.d/x.conf", "install nouveau /bin/true; modprobe -i nouveau\n", False),
        ("etc/modprobe.d/x.conf", "install nouveau modprobe -i nouveau\n", False),
        ("proc/cmdline", "ro modprobe.blacklist=nouveau quiet\n", True),
        ("proc/cmdline", "ro modprobe.blacklist=nvidiafb,nouveau\n", True),
        ("proc/cmdline", "ro module_blacklist=nouveau quiet\n", True),
        ("proc/cmdline", "ro module_blacklist=nouveau-other\n", False),
        ("proc/cmdline", "ro rd.driver.blacklist=nouveau\n", False),
    ],
)
def test_what_forbids_nouveau(root: Path, name: str, text: str, blacklisted: bool) -> None:
    put(root, name, text)
    assert probe_tree(root)["driver"]["nouveau"] == {"loaded": False, "blacklisted": blacklisted}


def test_a_file_of_etc_hides_the_one_of_usr(root: Path) -> None:
    put(root, "usr/lib/modprobe.d/x.conf", "blacklist nouveau\n")
    put(root, "etc/modprobe.d/x.conf", "")
    assert probe_tree(root)["driver"]["nouveau"]["blacklisted"] is False
    (root / "etc/modprobe.d/x.conf").unlink()
    (root / "etc/modprobe.d/x.conf").symlink_to("/dev/null")
    assert probe_tree(root)["driver"]["nouveau"]["blacklisted"] is False


def test_modprobe_obeys_the_first_command_in_the_order_of_the_files_names(root: Path) -> None:
    put(root, "etc/modprobe.d/b.conf", "install nouveau modprobe -i nouveau\n")
    put(root, "usr/lib/modprobe.d/c.conf", "install nouveau /bin/false\n")
    assert probe_tree(root)["driver"]["nouveau"]["blacklisted"] is False
    put(root, "usr/lib/modprobe.d/a.conf", "install nouveau /bin/false\n")
    assert probe_tree(root)["driver"]["nouveau"]["blacklisted"] is True


def test_an_image_does_not_boot_with_the_parameters_of_the_machine_that_builds_it(
    root: Path,
) -> None:
    put(root, "proc/cmdline", "modprobe.blacklist=nouveau\n")
    put(root, "run/systemd/container", "image\n")
    assert probe_tree(root)["driver"]["nouveau"]["blacklisted"] is False


@pytest.mark.parametrize(
    ("listing", "inside"),
    [
        ("usr/lib/modules/6.1/kernel/drivers/gpu/drm/nouveau/nouveau.ko\n", True),
        ("usr/lib/modules/6.1/x/nouveau.ko.xz\netc/modprobe.d/ours.conf\n", False),
        ("etc/modprobe.d/other.conf\n", False),
    ],
)
def test_an_initramfs_that_would_load_nouveau(listing: str, inside: bool) -> None:
    assert nouveau_listed(listing, ["/etc/modprobe.d/ours.conf"]) is inside


@pytest.mark.parametrize(
    ("mode", "older", "probed"),
    [
        ("full", False, True),
        ("facts", True, True),
        ("facts", False, False),
    ],
)
def test_an_initramfs_is_read_where_it_matters(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: str, older: bool, probed: bool
) -> None:
    """It takes a second: in facts only where what forbids nouveau is newer than it."""
    initramfs = put(tmp_path, "initrd.img")
    forbids = put(tmp_path, "nouveau.conf")
    os.utime(initramfs, (0, forbids.stat().st_mtime - (9 if older else -9)))
    monkeypatch.setattr(
        kernel_section, "modprobe_files", lambda _: [(str(forbids), "blacklist nouveau\n")]
    )
    monkeypatch.setattr(
        kernel_section, "run_command", lambda *_: (0, "drm/nouveau/nouveau.ko\n", "")
    )
    kernel = {"initramfs": str(initramfs), "image": True}
    found = nouveau_in_initramfs(Host({"mode": mode}), kernel)
    assert found is (True if probed else None)


def test_services_of_the_driver_are_found_by_their_files(root: Path) -> None:
    put(root, "usr/lib/systemd/system/nvidia-persistenced.service")
    name = "nvidia-persistenced.service"
    unit = {"unit": name, "enabled": False, "active": None, "masked": False}
    assert probe_tree(root)["driver"]["persistence"] == unit
    put(root, "etc/systemd/system/multi-user.target.wants/nvidia-persistenced.service")
    assert probe_tree(root)["driver"]["persistence"] == {**unit, "enabled": True}


def test_a_masked_service_is_one_whose_file_leads_to_nothing(root: Path) -> None:
    name = "nvidia-fabricmanager.service"
    put(root, f"usr/lib/systemd/system/{name}", "[Service]\n")
    masked = root / "etc/systemd/system" / name
    masked.parent.mkdir(parents=True, exist_ok=True)
    masked.symlink_to("/dev/null")
    assert probe_tree(root)["driver"]["fabric"]["masked"]
    masked.unlink()
    put(root, f"etc/systemd/system/{name}")
    assert probe_tree(root)["driver"]["fabric"]["masked"]
    put(root, f"etc/systemd/system/{name}", "[Service]\n")
    assert not probe_tree(root)["driver"]["fabric"]["masked"]


def test_who_holds_a_gpu_is_named(root: Path) -> None:
    put(root, "dev/nvidia0")
    for pid, target in (("41", "/dev/nvidia0"), ("41", "/dev/nvidiactl"), ("7", "/dev/null")):
        place = root / f"proc/{pid}/fd/{target.rpartition('/')[2]}"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)
    put(root, "proc/41/comm", "python3\n")
    (holder,) = probe_tree(root)["driver"]["holders"]
    assert holder.pop("user") == account_name(os.geteuid())
    nodes = ["/dev/nvidia0", "/dev/nvidiactl"]
    assert holder == {"pid": 41, "command": "python3", "nodes": nodes, "unit": None}


@pytest.mark.parametrize(
    ("groups", "unit"),
    [
        ("0::/system.slice/nvidia-dcgm.service\n", "nvidia-dcgm.service"),
        ("0::/user.slice/user-1.slice/session-4.scope\n", "session-4.scope"),
        ("0::/system.slice/docker-1.scope/system.slice/nvidia-dcgm.service\n", "docker-1.scope"),
        ("4:cpu:/\n1:name=systemd:/system.slice/dcgm.service/sub\n", "dcgm.service"),
        ("0::/docker/1/nvidia-dcgm.service\n", None),
        ("0::/\n", None),
        ("", None),
    ],
)
def test_the_unit_of_a_holder_is_the_outermost(root: Path, groups: str, unit: str | None) -> None:
    put(root, "proc/41/cgroup", groups)
    assert unit_of(Host({"root": str(root)}), "41") == unit


def test_dkms_says_for_which_kernel_a_module_was_built(root: Path) -> None:
    tree = "var/lib/dkms/nvidia-current/"
    put(root, tree + "535.261.03/source/dkms.conf")
    put(root, tree + "550.163.01/source/dkms.conf")
    for kernel in (OLD, NEW):
        put(root, f"{tree}535.261.03/{kernel}/x86_64/module/nvidia-current.ko")
    (root / tree / f"kernel-{OLD}-x86_64").symlink_to(f"535.261.03/{OLD}/x86_64")
    module = {"module": "nvidia-current", "version": "535.261.03"}
    assert probe_tree(root)["driver"]["dkms"] == [
        {**module, "kernel": NEW, "state": "built"},
        {**module, "kernel": OLD, "state": "installed"},
        {**module, "version": "550.163.01", "kernel": None, "state": "added"},
    ]


def test_a_marker_of_a_pending_reboot_is_shown_as_it_stands(root: Path) -> None:
    put(root, "var/lib/gpufleet/reboot-pending.json", '{"schema": 1, "tried": false}')
    assert probe_tree(root)["driver"]["reboot_pending"] == {"schema": 1, "tried": False}
    put(root, "var/lib/gpufleet/reboot-pending.json", "{half")
    assert "cannot be read" in probe_tree(root)["driver"]["reboot_pending"]["because"]


MODES = "0, Enabled, Enabled\n1, Disabled, Enabled\n2, [N/A], [N/A]\n"
LISTING = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)
  MIG 3g.40gb     Device  0: (UUID: MIG-1)
  MIG 4g.40gb     Device  1: (UUID: MIG-2)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-2)
"""


@pytest.mark.parametrize(
    ("answers", "reported"),
    [
        (
            [(0, MODES, ""), (0, LISTING, "")],
            [
                {"gpu": 0, "mode": "on", "pending": "on", "instances": ["3g.40gb", "4g.40gb"]},
                {"gpu": 1, "mode": "off", "pending": "on", "instances": []},
                {"gpu": 2, "mode": None, "pending": None, "instances": []},
            ],
        ),
        (
            [(0, "0, Disabled, Disabled\n", "")],
            [{"gpu": 0, "mode": "off", "pending": "off", "instances": []}],
        ),
        ([(None, "", "no answer within 8 s")], None),
        ([(0, MODES, ""), (9, "", "")], None),
    ],
)
def test_mig_is_named_by_nvidia_smi_where_somebody_asks(
    monkeypatch: pytest.MonkeyPatch, root: Path, answers: list[Any], reported: object
) -> None:
    asked = iter(answers)
    monkeypatch.setattr(mig, "ask_nvidia_smi", lambda *_: next(asked))
    put(root, "usr/bin/nvidia-smi")
    put(root, "proc/driver/nvidia/version")
    assert mig_of(Host({"root": str(root)})) is None
    assert mig_of(Host({"root": str(root), "mig": True})) == reported
    assert list(asked) == []
