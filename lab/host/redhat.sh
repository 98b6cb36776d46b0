#!/bin/sh
# redhat.sh ROOT OVERLAY: makes way on a Debian for the files that say it is of Red Hat's family.
set -eu
root=$1

# An upgrade of Debian's base-files writes its file beside, not over the overlay's.
chroot "$root" dpkg-divert --quiet --local --rename --add \
  --divert /usr/lib/os-release.debian /usr/lib/os-release
# Ansible and others take a host with this file for Debian.
chroot "$root" dpkg-divert --quiet --local --rename --add \
  --divert /usr/share/base-files/debian_version /etc/debian_version
