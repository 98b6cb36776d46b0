"""Section `kernel`: running, installed and next kernel, container, Secure Boot."""

import os
import re
import shutil

from ..kernel_modules import driver_modules
from ..modprobe import blacklisted, modprobe_files
from ..processes import Child, await_all, run_command
from ..programs import find_tool
from ..text import first_match, is_number, natural, read_bytes

# ruff: noqa: B905 (zip has no `strict` before Python 3.10)


def section_kernel(host):
    uptime = host.text_or_none("/proc/uptime")
    boot_id = host.text_or_none("/proc/sys/kernel/random/boot_id")
    container = container_of(host)
    installed = installed_kernels(host)
    version, source = next_boot(host, [k["version"] for k in installed if k["image"]])
    return {
        "running": running_kernel(host),
        "boot_id": boot_id.strip() if boot_id else None,
        "uptime_s": int(float(uptime.split()[0])) if uptime else None,
        "container": container,
        "next_boot": version,
        "next_boot_source": source,
        "installed": installed,
        "secure_boot": secure_boot(host, container),
        "frequency": frequencies(host),
        "provisioned_as_image": provisioned_as_image(host),
    }


def provisioned_as_image(host):
    """When this system was provisioned before its first boot; None where it was not."""
    text = host.text_or_none(host["state_dir"] + "/image.json")
    return first_match(r'"provisioned": "([^"]+)"', text)


CPUS = "/sys/devices/system/cpu"


def frequencies(host):
    """The settings of each CPU's frequency; [] where none is set, None where no CPU is listed."""
    cpus = [name for name in host.glob(CPUS + "/cpu[0-9]*") if is_number(name[len(CPUS) + 4 :])]
    return (
        [
            {
                "cpu": int(name[len(CPUS) + 4 :]),
                "governor": one_word(host, name + "/cpufreq/scaling_governor"),
                "driver": one_word(host, name + "/cpufreq/scaling_driver"),
            }
            for name in sorted(cpus, key=natural)
            # A virtual machine has none, nor has a CPU that is offline.
            if host.exists(name + "/cpufreq")
        ]
        if cpus
        else None
    )


def one_word(host, name):
    """The content of a file of sysfs; None where it cannot be read."""
    try:
        return host.text(name).strip() or None
    except PermissionError:
        host.miss(name)
    except OSError:
        # A CPU that goes offline meanwhile.
        pass
    return None


def running_kernel(host):
    running = host.text_or_none("/proc/sys/kernel/osrelease")
    return running.strip() if running else os.uname().release


def container_of(host):
    """The output of systemd-detect-virt --container; None outside a container."""
    text = host.text_or_none("/run/systemd/container")
    if text is None:
        try:
            text = first_match(r"(?:^|\0)container=([^\0]+)", host.text_or_none("/proc/1/environ"))
        except PermissionError:
            host.miss("/proc/1/environ")
    for name, kind in (("/run/.containerenv", "podman"), ("/.dockerenv", "docker")):
        text = text or (kind if host.exists(name) and not is_machine(host) else None)
    return text.strip() if text else None


# The machine's own name space of processes: 0xEFFFFFFC in Linux, include/linux/proc_ns.h.
FIRST_PROCESSES = "pid:[4026531836]"


def is_machine(host):
    """Return whether these are the machine's own processes and mounts, not a container's.

    A virtual machine that is booted from a container's image has that container's marks.
    """
    # Each mount's number is of one name space of mounts. Unlike the link `ns/mnt` it can be read of
    # a first process that refuses to be traced.
    names = ("/proc/self/mountinfo", "/proc/1/mountinfo")
    try:
        processes = os.readlink(host.path("/proc/self/ns/pid"))
        own, first = [set(host.text(name).splitlines()) for name in names]
    except OSError:
        return False
    return processes == FIRST_PROCESSES and bool(own & first)


def installed_kernels(host):
    """Every kernel that has modules or an image, by version."""
    images = [os.path.basename(name)[len("vmlinuz-") :] for name in host.glob("/boot/vmlinuz-*")]
    modules = [os.path.basename(name) for name in host.glob("/lib/modules/*")]
    kernels = []
    for version in sorted(set(images + modules), key=natural):
        initramfs = [
            name
            for name in ("/boot/initrd.img-" + version, "/boot/initramfs-%s.img" % version)
            if host.exists(name)
        ]
        headers = host.realpath("/lib/modules/%s/build" % version) + "/Makefile"
        kernels.append(
            {
                "version": version,
                "image": version in images,
                "headers": host.exists(headers),
                "modules": driver_modules(host, version),
                "initramfs": initramfs[0] if initramfs else None,
                "initramfs_nouveau": None,
            }
        )
    for kernel, inside in zip(
        kernels,
        await_all(
            [Child(nouveau_in_initramfs, (host, kernel), host.inner_s) for kernel in kernels]
        ),
    ):
        kernel["initramfs_nouveau"] = inside[1]
    return kernels


def nouveau_in_initramfs(host, kernel):
    """Return whether an initramfs would load nouveau; None if it was not read.

    Its contents are read in mode full (a second each), and where it is older than what
    forbids nouveau, which it then may not have.
    """
    forbidding = [file[0] for file in modprobe_files(host) if blacklisted([file], "nouveau")]
    if not kernel["initramfs"] or not kernel["image"] or not host.real:
        return None
    built_at = os.stat(kernel["initramfs"]).st_mtime
    if host["mode"] != "full" and all(os.lstat(p).st_mtime <= built_at for p in forbidding):
        return None
    lister = "lsinitramfs" if shutil.which("lsinitramfs") else "lsinitrd"
    status, out, _ = run_command([find_tool(lister), kernel["initramfs"]], host.inner_s * 0.8)
    return nouveau_listed(out, forbidding) if status == 0 else None


def nouveau_listed(listing, forbidding):
    """Return whether an initramfs has nouveau, and no file that forbids it."""
    if not re.search(r"/nouveau\.ko", listing):
        return False
    return not any(path.lstrip("/") in listing for path in forbidding)


def next_boot(host, images):
    """The kernel of the next boot, and the source of that."""
    for name, environment in (
        ("/boot/grub/grub.cfg", "/boot/grub/grubenv"),
        ("/boot/grub2/grub.cfg", "/boot/grub2/grubenv"),
    ):
        try:
            text = host.text_or_none(name)
            lines = (host.text_or_none(environment) or "").splitlines()
        except PermissionError:
            # Debian's is root's own to read.
            host.miss(name)
            continue
        if text is None:
            continue
        saved = dict(line.split("=", 1) for line in lines if "=" in line and line[:1] != "#")
        entries = loader_entries(host)
        version = (
            entries.get(saved.get("next_entry") or saved.get("saved_entry"))
            if entries
            else grub_choice(text, saved)
        )
        if version:
            return version, "/boot/loader/entries" if entries else name
    for name in ("/vmlinuz", "/boot/vmlinuz"):
        if os.path.islink(host.path(name)):
            version = first_match(r"/vmlinuz-(.+)$", host.realpath(name))
            if version in images:
                return version, name
    plain = [version for version in images if "rescue" not in version]
    return (max(plain, key=natural), "the newest in /boot") if plain else (None, None)


def loader_entries(host):
    """The kernels of the boot loader specification's files, by entry, as in the RHEL family."""
    found = {}
    for name in host.glob("/boot/loader/entries/*.conf"):
        version = first_match(r"^linux\s+\S*/vmlinuz-(\S+)", host.text(name))
        if version:
            found[os.path.basename(name)[: -len(".conf")]] = version
    return found


def grub_choice(text, saved):
    """The kernel that GRUB's own configuration selects, None if that is unknown."""
    wanted = [
        value
        for value in re.findall(r'^\s*set default="?([^"\n]*)"?', text, re.MULTILINE)
        if value != "${next_entry}"
    ]
    choice = wanted[-1] if wanted else "0"
    if choice == "${saved_entry}":
        choice = saved.get("saved_entry") or "0"
    choice = saved.get("next_entry") or choice
    # Entries and submenus as they stand: [title, id, kernel, what is inside].
    menu, open_ = [], []
    for line in text.splitlines():
        head = re.match(r"\s*(menuentry|submenu) (['\"])(.*?)\2(.*)\{\s*$", line)
        if head:
            entry = [
                head.group(3),
                first_match(r"menuentry_id_option '([^']+)'", head.group(4)),
                None,
                [],
            ]
            (open_[-1][3] if open_ else menu).append(entry)
            open_.append(entry)
        elif open_ and line.strip() == "}":
            open_.pop()
        elif open_ and re.match(r"\s*linux\S*\s", line):
            open_[-1][2] = first_match(r"/vmlinuz-(\S+)", line)
    entry = [None, None, None, menu]
    for step in choice.split(">"):
        named = [item for at, item in enumerate(entry[3]) if step in (str(at), item[0], item[1])]
        if not named:
            return None
        entry = named[0]
    return entry[2]


# The certificates of the keys with which DKMS signs: its own, and Ubuntu's.
SIGNING_KEYS = ("/var/lib/dkms/mok.pub", "/var/lib/shim-signed/mok/MOK.der")
EFIVARS = "/sys/firmware/efi/efivars/"
# Where the kernel finds the certificates that it accepts. shim divides a long list over
# MokListRT1 and so on, and newer kernels show it whole among mok-variables.
ENROLLED = (
    EFIVARS + "MokListRT*-605dab50-*",
    "/sys/firmware/efi/mok-variables/MokListRT",
    EFIVARS + "db-d719b2cb-*",
)
REQUESTED = (EFIVARS + "MokNew-605dab50-*",)


def secure_boot(host, container):
    """Secure Boot's state: the refusal of modules, and the key that signs those of DKMS.

    In a container all of it is the machine's, and not known.
    """
    found = {"enabled": None, "refuses": None, "key": None, "enrolled": None, "pending": None}
    if container:
        return found
    found["refuses"] = refuses_unsigned(host)
    found["enabled"] = None if host.exists("/sys/firmware/efi") else False
    for data in contents(host, (EFIVARS + "SecureBoot-8be4df61-*",)) or []:
        found["enabled"] = data[4:] == b"\1"
    keys = [(name, data) for name in SIGNING_KEYS for data in contents(host, (name,)) or []]
    accepted, requested = contents(host, ENROLLED), contents(host, REQUESTED)
    for name, data in keys:
        # A list of signatures has each certificate as it is.
        enrolled = any(data in each for each in accepted) if data and accepted else None
        pending = (
            any(data in each for each in requested) if data and requested is not None else None
        )
        if found["key"] is None or enrolled or (pending and not found["enrolled"]):
            found.update(key=name, enrolled=enrolled, pending=pending)
    return found


def refuses_unsigned(host):
    """True if the running kernel refuses unsigned modules; None where it does not tell."""
    enforced = host.text_or_none("/sys/module/module/parameters/sig_enforce")
    lockdown = host.text_or_none("/sys/kernel/security/lockdown")
    if (enforced or "")[:1] == "Y" or re.search(r"\[[ic]\w+\]", lockdown or ""):
        return True
    return None if enforced is None or lockdown is None else False


def contents(host, patterns):
    """The contents of some files; None where one of them cannot be read."""
    found = []
    for name in [name for pattern in patterns for name in host.glob(pattern)]:
        try:
            found.append(read_bytes(host.path(name)))
        except PermissionError:
            host.miss(name)
            return None
    return found
