#!/bin/sh
# redhat.sh ROOT OVERLAY: makes a Debian a host of Red Hat's family: dnf, rpm and an rpm database, the
# distribution's repositories with stand-in packages, and the files that name it. Debian's own package
# manager goes at the first boot: until then the image is made with it.
set -eu
root=$1 overlay=$2

# An upgrade of Debian's base-files writes its file beside, not over the overlay's.
chroot "$root" dpkg-divert --quiet --local --rename --add \
  --divert /usr/lib/os-release.debian /usr/lib/os-release
# Ansible and others take a host with this file for Debian.
chroot "$root" dpkg-divert --quiet --local --rename --add \
  --divert /usr/share/base-files/debian_version /etc/debian_version

mkdir -p "$root/etc/rpm" "$root/usr/libexec" "$root/usr/lib64"
cp -R "$overlay/." "$root/"
# The places and settings of RHEL's rpm and dnf. The linker reads lib64 as there.
case "$(chroot "$root" sh -c '. /etc/os-release && echo "${VERSION_ID%%.*}"')" in
  10) database=/usr/lib/sysimage/rpm ;;
  *) database=/var/lib/rpm ;;
esac
rm -rf "$root/var/lib/rpm"
echo "%_dbpath $database" >"$root/etc/rpm/macros"
echo /usr/lib64 >"$root/etc/ld.so.conf.d/lib64.conf"
cat >"$root/etc/dnf/dnf.conf" <<END
[main]
gpgcheck=1
installonly_limit=3
clean_requirements_on_remove=True
best=True
skip_if_unavailable=False
END
# dnf runs under an interpreter of its own, which stays when python3 becomes another one.
cp "$root/usr/bin/python3.11" "$root/usr/libexec/platform-python"
sed -i '1s,.*,#!/usr/libexec/platform-python,' "$root/usr/bin/dnf-3"
rm -f "$root/usr/bin/dnf" "$root/etc/dnf/protected.d"/*
ln -s dnf-3 "$root/usr/bin/dnf"
# Debian has these on by themselves, and RHEL has them not at all.
for plugin in local copr debug changelog leaves show_leaves post-transaction-actions; do
  rm -f "$root/usr/lib/python3/dist-packages/dnf-plugins/$plugin.py" "$root/etc/dnf/plugins/$plugin.conf"
done
# What no script of a package may find: the machine's own kernel has neither modules nor headers here.
find "$root/lib/modules" -mindepth 1 -delete 2>/dev/null || :
rm -rf "$root/boot"/*

mount --bind /dev "$root/dev"
trap 'umount "$root/dev"' EXIT
chroot "$root" /usr/libexec/platform-python /usr/lib/stand-in/redhat.py base

cat >"$root/etc/systemd/system/stand-in.service" <<END
[Unit]
Description=Take Debian's own package manager away
ConditionPathExists=/var/lib/dpkg
DefaultDependencies=no
Before=sysinit.target
[Service]
Type=oneshot
ExecStart=sh -c 'rm -rf /usr/bin/apt* /usr/bin/dpkg* /var/lib/dpkg /var/lib/apt /etc/apt'
[Install]
WantedBy=sysinit.target
END
chroot "$root" systemctl --quiet enable stand-in.service
