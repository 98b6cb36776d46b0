#!/bin/sh
# ubuntu.sh ROOT OVERLAY: makes way on a Debian for the files that say it is Ubuntu.
set -eu
root=$1

# An upgrade of these packages writes Debian's files beside, not over the overlay's.
for file in /usr/lib/os-release /etc/debian_version /etc/lsb-release; do
  chroot "$root" dpkg-divert --quiet --local --rename --add --divert "$file.debian" "$file"
done
# Debian's free packages stand in for Ubuntu's own behind the archive of stand-ins: dkms, gcc, Docker.
# Its driver is not among them.
sed 's/^\(deb [^ ]* [^ ]*\) .*/\1 main/' "$root/etc/apt/sources.list" \
  >"$root/etc/apt/sources.list.d/debian-base.list"
