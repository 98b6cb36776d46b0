"""The command that runs another one in the directory of an image that is being built.

Each command has a mount namespace of its own, which ends with its last process, however that ends:
nothing of the image is ever mounted where others see it, and nothing is left to unmount. The image
sees neither the builder's devices nor its drivers: no /sys, no loaded kernel module, and in /dev
the nodes that every system has.
"""

from __future__ import annotations

from pathlib import Path

from gpufleet.on_host.constants import IMAGE

CONNECTION = "gpufleet.gpu.chroot"

_ENTER = f"""
set -e
root=$0
mount -t proc proc "$root/proc"
[ ! -d "$root/proc/driver" ] || mount -t tmpfs -o ro,mode=555 tmpfs "$root/proc/driver"
[ ! -e "$root/proc/modules" ] || mount --bind /dev/null "$root/proc/modules"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for node in full null random tty urandom zero; do
  : >"$root/dev/$node"
  mount --bind "/dev/$node" "$root/dev/$node"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=666,mode=620 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
for number in 0:stdin 1:stdout 2:stderr; do
  ln -s "/proc/self/fd/${{number%:*}}" "$root/dev/${{number#*:}}"
done
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mkdir -p "$root/run/lock" "$root/run/systemd"
echo {IMAGE} >"$root/run/systemd/container"
# Names are resolved as on the builder. A link is followed as the image itself follows it, since
# its target may be a file of the builder; in /run nothing is of the image.
target=$(chroot "$root" readlink -m /etc/resolv.conf || :)
case $target in
/run/*)
  mkdir -p "$root${{target%/*}}"
  cat /etc/resolv.conf >"$root$target"
  ;;
/*)
  if [ -d "$root${{target%/*}}" ]; then
    [ -e "$root$target" ] || : >"$root$target"
    mount --bind /etc/resolv.conf "$root$target"
  fi
  ;;
esac
exec chroot "$root" "$@"
"""


def launcher(directory: Path) -> tuple[str, ...]:
    """The command, as root, that runs the words after it in the image of a directory."""
    return ("unshare", "--mount", "/bin/sh", "-c", _ENTER, str(directory))
