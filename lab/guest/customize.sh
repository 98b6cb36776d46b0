#!/bin/sh
# customize.sh ROOT SOURCES VERSION...: makes a virtual machine of a lab host's file tree; mmdebstrap
# runs it. Each VERSION of the stand-in driver is built for the machine's own kernel, into
# /opt/standin/VERSION; nothing of it is installed.
set -eu
root=$1 sources=$2
shift 2

printf '[Match]\nName=e*\n[Network]\nDHCP=yes\n' >"$root/etc/systemd/network/80-dhcp.network"
chroot "$root" systemctl --quiet enable systemd-networkd
echo '/dev/vda / ext4 rw 0 1' >"$root/etc/fstab"
echo gpufleet-vm >"$root/etc/hostname"
echo '127.0.0.1 localhost gpufleet-vm' >"$root/etc/hosts"
chroot "$root" ssh-keygen -q -A
# With an id of its own from the start, no boot is its first one, which takes longer.
chroot "$root" systemd-machine-id-setup

kernel=$(ls "$root/lib/modules")
for version; do
  place=/opt/standin/$version
  mkdir -p "$root$place"
  cp "$sources"/*.c "$root$place/"
  printf 'obj-m := nvidia.o nvidia-uvm.o\nccflags-y := -DSTANDIN_VERSION=\\"%s\\"\n' "$version" \
    >"$root$place/Kbuild"
  chroot "$root" make --silent -C "/lib/modules/$kernel/build" "M=$place" modules
  echo | chroot "$root" gcc -x c -shared -Wl,-soname,libcuda.so.1 - \
    -o "$place/libcuda.so.$version"
done

if [ -e "$root/etc/selinux/config" ]; then
  sed -i 's/^SELINUX=.*/SELINUX=enforcing/' "$root/etc/selinux/config"
  if [ -e "$root/usr/sbin/dockerd" ]; then
    cp "$sources/container.cil" "$root/root/"
    chroot "$root" semodule -n -i /root/container.cil
  fi
fi
