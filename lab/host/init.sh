# The first process of a lab host, given to `sh -c`; it makes a container look like a server to
# systemd and to Ansible, and then becomes systemd.

# A pure cgroup v2 tree, whatever the machine has: systemd 258 and later refuse version 1.
umount -R /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup || exit 1
umask 022
# A boot id for each boot. The kernel's is the machine's and never changes, so neither journald
# nor Ansible's reboot module could tell that the host was restarted.
cat /proc/sys/kernel/random/uuid >/dev/.boot_id
mount --bind /dev/.boot_id /proc/sys/kernel/random/boot_id
# podman puts memory file systems here; a server keeps both on its disk, and decides itself.
umount /tmp /var/log/journal 2>/dev/null
# Plain files in place of podman's bind mounts, over which nothing can be renamed.
for file in hosts hostname resolv.conf; do
  cp "/etc/$file" "/dev/.$file" && umount "/etc/$file"
  [ -e /var/lib/.booted-once ] || cat "/dev/.$file" >"/etc/$file"
done
# The image carries no host keys, so that no two hosts share one.
[ -e /var/lib/.booted-once ] || ssh-keygen -q -A
touch /var/lib/.booted-once
exec /sbin/init
