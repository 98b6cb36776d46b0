#!/bin/sh
# customize.sh ROOT OVERLAY: the last step of making an image; mmdebstrap runs it.
set -eu
root=$1 overlay=$2

cp -R --preserve=mode "$overlay/." "$root/"
chroot "$root" update-ca-certificates >/dev/null

chroot "$root" useradd --create-home --shell /bin/bash deploy
install -d -m 700 "$root/home/deploy/.ssh"
chroot "$root" chown -R deploy:deploy /home/deploy/.ssh
echo 'deploy ALL=(ALL) NOPASSWD: ALL' >"$root/etc/sudoers.d/deploy"
chmod 440 "$root/etc/sudoers.d/deploy"

# Each host makes its own keys and machine id at its first boot.
rm -f "$root"/etc/ssh/ssh_host_*
: >"$root/etc/machine-id"
