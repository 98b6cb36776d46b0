#!/bin/sh
# Show a lab host its stand-in GPUs (start), or hide them (stop): what a container cannot write in
# /proc and /sys is mounted over there, and the device nodes have the major number of the lab.
set -e
tree=/srv/stand-in-gpus/tree
over="proc/driver proc/modules sys/bus/pci/devices usr/bin/dmesg"
case $1 in
start)
    for name in $over; do
        # A machine whose kernel has no modules has no list of them, either.
        [ ! -e "/$name" ] || mountpoint -q "/$name" || mount --bind "$tree/$name" "/$name"
    done
    while read -r name major minor; do
        [ -e "/dev/$name" ] || mknod -m 666 "/dev/$name" c "$major" "$minor"
    done <"$tree/nodes"
    ;;
stop)
    for name in $over; do
        ! mountpoint -q "/$name" || umount "/$name"
    done
    rm -f /dev/nvidia*
    ;;
esac
