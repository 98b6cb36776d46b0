"""Virtual machines under software emulation, for tests that load kernel modules.

Slow (half a minute to boot), so they serve the few tests that need a kernel of their own. They are
made of the same packages as a lab host, with a kernel of Debian: its cloud kernel, and in it the
stand-ins for NVIDIA's kernel modules, which are built where building is fast; or its generic
kernel, which has the modules of RDMA. Several machines share a network of their own. With Secure
Boot a machine boots as servers do: UEFI firmware with Microsoft's keys, shim, GRUB, the kernel.
"""

from __future__ import annotations

import hashlib
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab import secure_boot
from lab.command import mmdebstrap, run
from lab.errors import LabError
from lab.files import lock, scratch
from lab.images import HERE, Recipe
from lab.progress import Progress
from lab.settings import USER, Lab

GUEST = Path(__file__).parent / "guest"
SUITE = "bookworm"
VERSIONS = ("535.261.03", "550.163.01")


@dataclass(frozen=True)
class Kind:
    """A virtual machine's parts beside a lab host's packages; `versions`: of stand-in drivers."""

    name: str
    packages: tuple[str, ...]
    versions: tuple[str, ...] = VERSIONS
    kernel_options: str = ""
    processors: int = 2
    memory_mib: int = 1024
    secure_boot: bool = False


PLAIN = Kind(
    "vm",
    (
        *("initramfs-tools", "linux-headers-cloud-amd64", "linux-image-cloud-amd64"),
        *("make", "udev"),
    ),
)
# A machine on which SELinux enforces Debian's policy.
SELINUX = Kind(
    "selinux-vm",
    (
        *PLAIN.packages,
        *("policycoreutils", "selinux-basics", "selinux-policy-default", "selinux-utils"),
    ),
    kernel_options="security=selinux selinux=1 enforcing=1",
)
# A machine with RDMA devices that need no hardware (rdma_rxe), and with programs that use them.
RDMA = Kind(
    "rdma-vm",
    ("initramfs-tools", "linux-image-amd64", "perftest", "rdma-core", "udev"),
    versions=(),
    processors=1,
    memory_mib=768,
)
# A machine with Secure Boot on, which refuses modules without a signature that it knows.
SECURE_BOOT = Kind(
    "secure-boot-vm",
    (*PLAIN.packages, "grub-efi-amd64-signed", "mokutil", "openssl", "shim-signed"),
    secure_boot=True,
)
# A machine with Docker, of root and rootless: in a container no engine may mount /proc.
DOCKER = Kind(
    "docker-vm",
    (
        *(*PLAIN.packages, "apparmor", "busybox-static", "dbus-user-session", "docker.io"),
        *("rootlesskit", "slirp4netns", "uidmap"),
    ),
)
# Docker that labels its containers, with a stand-in for the policy that confines them.
SELINUX_DOCKER = Kind(
    "selinux-docker-vm",
    (*SELINUX.packages, "docker.io"),
    kernel_options=SELINUX.kernel_options,
)
CONTEXTS = "etc/selinux/default/contexts/files/file_contexts"
# Programs that this module needs beside the lab's own: {program or file: Debian package}.
PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "mke2fs": "e2fsprogs",
    "mkfs.vfat": "dosfstools",
    "mcopy": "mtools",
    str(secure_boot.FIRMWARE): "ovmf",
}
ALIAS = "gpufleet-vm"
OPTIONS = "root=/dev/vda rw quiet console=ttyS0"
DISK_MIB = 3072
# The interface that a machine has on the network of machines that run together.
LINK = "enp0s16"
# An emulated processor is slow, and slower beside other work.
BOOT_LIMIT_S, COMMAND_LIMIT_S = 900.0, 600.0


def missing() -> list[str]:
    """The Debian packages that this machine lacks."""
    return [
        package
        for program, package in PROGRAMS.items()
        if not (shutil.which(program) or Path(program).exists())
    ]


@dataclass(frozen=True)
class Machine:
    """A running virtual machine, as ssh and Ansible reach it."""

    port: int
    image: Path
    # The socket of its serial console.
    console: Path

    @property
    def variables(self) -> dict[str, str | int]:
        """Its inventory variables."""
        return {
            "ansible_host": "127.0.0.1",
            "ansible_port": self.port,
            "ansible_user": USER,
            "ansible_ssh_private_key_file": str(self.image / "id_ed25519"),
            "ansible_ssh_common_args": f"-o HostKeyAlias={ALIAS} -o StrictHostKeyChecking=yes"
            f" -o UserKnownHostsFile={self.image / 'known_hosts'}",
        }

    def on(
        self, command: str, check: bool = True, stdin: str | None = None, answer_s: int = 60
    ) -> str:
        """Run a shell command as root; returns its output."""
        options = shlex.split(str(self.variables["ansible_ssh_common_args"]))
        login = [*options, "-p", str(self.port), "-i", str(self.image / "id_ed25519")]
        limit = f"ConnectTimeout={answer_s}"
        words = ["-o", "BatchMode=yes", "-o", limit, *login, f"{USER}@127.0.0.1"]
        words.append(shlex.join(["sudo", "sh", "-c", command]))
        return run("ssh", *words, stdin=stdin, check=check, timeout=COMMAND_LIMIT_S).stdout


def image(lab: Lab, progress: Progress, kind: Kind) -> Path:
    """The directory with disk, kernel, initrd and keys, in the cache; made if it is not there."""
    recipe = Recipe(SUITE)
    texts = [path.read_bytes() for path in sorted(GUEST.iterdir())]
    parts = [
        recipe.digest.encode(),
        repr((kind.packages, kind.versions, DISK_MIB)).encode(),
        *texts,
    ]
    digest = hashlib.sha256(b"".join(parts)).hexdigest()[:12]
    place = lab.images / f"{kind.name}-{digest}"
    with lock(lab.locks, "image-vm", progress.say):
        if not place.exists():
            lab.images.mkdir(mode=0o700, parents=True, exist_ok=True)
            with (
                progress.step("Building a virtual machine from packages"),
                scratch(lab.cache, "image-vm") as work,
            ):
                work.chmod(0o711)
                _build(recipe, kind, work)
                partial = lab.images / f".{kind.name}-{digest}.partial"
                shutil.rmtree(partial, ignore_errors=True)
                shutil.move(work / "made", partial)
                for older in lab.images.glob(f"{kind.name}-*"):
                    shutil.rmtree(older)
                partial.rename(place)
    return place


def _build(recipe: Recipe, kind: Kind, work: Path) -> None:
    root, overlay, made = work / "root", work / "overlay", work / "made"
    overlay.mkdir()
    made.mkdir(mode=0o700)
    recipe.network.write(overlay)
    hooks = [(HERE / "customize.sh", overlay), (GUEST / "customize.sh", GUEST, *kind.versions)]
    reported = [" ".join(shlex.quote(str(word)) for word in words[1:]) for words in hooks]
    mmdebstrap(
        "--format=directory",
        "--variant=minbase",
        f"--components={','.join(recipe.components)}",
        f"--include={','.join([*recipe.packages, *kind.packages])}",
        *(
            f'--customize-hook=sh {shlex.quote(str(words[0]))} "$1" {more}'
            for words, more in zip(hooks, reported, strict=True)
        ),
        recipe.suite,
        root,
        recipe.mirror,
        timeout=1800,
        work=work,
    )
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", ALIAS, "-f", made / "id_ed25519")
    keys = root / "home" / USER / ".ssh" / "authorized_keys"
    shutil.copy(made / "id_ed25519.pub", keys)
    owner = keys.parent.stat()
    shutil.chown(keys, owner.st_uid, owner.st_gid)
    keys.chmod(0o600)
    own = sorted(root.glob("etc/ssh/ssh_host_*_key.pub"))
    lines = [f"{ALIAS} {' '.join(path.read_text().split()[:2])}\n" for path in own]
    (made / "known_hosts").write_text("".join(lines))
    for name in ("vmlinuz", "initrd.img"):
        (found,) = root.glob(f"boot/{name}-*")
        shutil.copy(found, made / name)
    if kind.secure_boot:
        secure_boot.system_partition(root, made, OPTIONS)
    if (root / CONTEXTS).exists():
        # Labels are extended attributes, which any kernel can write, so that no boot relabels.
        # setfiles needs /proc; mmdebstrap and the lines above write files after the hooks.
        label = f'mount -t proc proc "$0/proc" && chroot "$0" setfiles -F /{CONTEXTS} /'
        run("unshare", "--mount", "sh", "-c", label, root, timeout=600)
    disk = made / "disk.img"
    with disk.open("wb") as stream:
        stream.truncate(DISK_MIB << 20)
    run("mke2fs", "-q", "-t", "ext4", "-d", root, disk, timeout=600)


@contextmanager
def together(lab: Lab, progress: Progress, kind: Kind, count: int) -> Iterator[list[Machine]]:
    """Machines that have booted; two have the interface LINK on a network of their own."""
    made = image(lab, progress, kind)
    with (
        lock(lab.locks, "vm", progress.say),
        scratch(lab.cache, "vm") as work,
        ExitStack() as emulators,
    ):
        machines, started = [], []
        for number in range(1, count + 1):
            machine = Machine(_free_port(), made, work / f"console{number}.socket")
            disk = work / f"disk{number}.qcow2"
            run("qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", made / "disk.img",
                disk)  # fmt: skip
            link = _link(work, number) if count > 1 else []
            console = work / f"console{number}"
            emulator = emulators.enter_context(
                subprocess.Popen(_command(machine, kind, disk, console, link))
            )
            emulators.callback(emulator.kill)
            machines.append(machine)
            started.append((machine, emulator, console))
        with progress.step(f"Booting {count} virtual machine{'s' if count > 1 else ''}"):
            for each in started:
                _wait(*each)
        yield machines


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def _link(work: Path, number: int) -> list[str]:
    """The second interface of one of two machines: a socket of each carries its packets."""
    own, other = (work / f"link{each}" for each in (number, 3 - number))
    sides = (
        f"{side}.type=unix,{side}.path={path}" for side, path in (("local", own), ("remote", other))
    )
    card = f"virtio-net-pci,netdev=link,addr=0x10,mac=52:54:00:00:00:{number:02x}"
    return ["-netdev", ",".join(("dgram,id=link", *sides)), "-device", card]


def _command(
    machine: Machine, kind: Kind, disk: Path, console: Path, link: list[str]
) -> list[str | Path]:
    kernel: list[str | Path] = ["-kernel", machine.image / "vmlinuz"]
    kernel += ["-initrd", machine.image / "initrd.img"]
    kernel += ["-append", f"{OPTIONS} {kind.kernel_options}"]
    return [
        # Not even a test that is killed leaves it behind.
        *("setpriv", "--pdeathsig", "KILL"),
        *("qemu-system-x86_64", "-machine", "q35,accel=tcg", "-smp", str(kind.processors)),
        *("-m", str(kind.memory_mib)),
        *("-drive", f"file={disk},if=virtio,format=qcow2,cache=unsafe"),
        *(secure_boot.options(machine.image, disk.parent) if kind.secure_boot else kernel),
        *("-netdev", f"user,id=net,hostfwd=tcp:127.0.0.1:{machine.port}-:22"),
        *("-device", "virtio-net-pci,netdev=net", "-device", "virtio-rng-pci"),
        *link,
        *("-display", "none", "-monitor", "none", "-serial", "chardev:console", "-chardev"),
        f"socket,id=console,path={machine.console},server=on,wait=off,logfile={console}",
    ]


def _wait(machine: Machine, emulator: subprocess.Popen[bytes], console: Path) -> None:
    if not settled(machine, lambda: emulator.poll() is None):
        output = console.read_text(errors="replace")[-800:] if console.exists() else "nothing"
        raise LabError(
            f"the virtual machine did not boot within {BOOT_LIMIT_S:.0f} s",
            f"Its console: {output}",
        )


def settled(machine: Machine, runs: Callable[[], bool] = lambda: True) -> bool:
    """Return whether a booting machine has started all its services, while its emulator `runs`."""
    deadline = time.monotonic() + BOOT_LIMIT_S
    while runs() and time.monotonic() < deadline:
        # qemu takes the connection before anybody answers, so that only a login tells.
        state = machine.on("systemctl is-system-running --wait", check=False, answer_s=10).strip()
        if state in ("running", "degraded"):
            return True
        time.sleep(0.5)
    return False
