"""Give up what would let a program of the driver change the host: device nodes, kernel modules.

Run as root, libcuda, NVML and nvidia-smi create missing nodes in /dev and load the driver's
modules (nvidia-modprobe does it for them). Where the driver is not loaded, a probe must leave it
so: a node in /dev without a driver behind it misleads whoever looks next.
"""

import ctypes
import struct

CAP_SYS_MODULE, CAP_MKNOD = 16, 27
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38
CAPABILITY_VERSION = 0x20080522
# Looked up here: after a fork of several threads nothing should be.
LIBC = ctypes.CDLL(None)
prctl = LIBC.prctl


def forbid_driver_changes():
    """Take both capabilities from this process and all that it starts, setuid programs included.

    Best effort: an account that may not give them up does not have them.
    """
    dropped = [prctl(PR_CAPBSET_DROP, number, 0, 0, 0) for number in (CAP_SYS_MODULE, CAP_MKNOD)]
    if any(dropped):
        # Not root: a setuid program would be given the whole set again.
        forbid_new_privileges()
    header = ctypes.create_string_buffer(struct.pack("=Ii", CAPABILITY_VERSION, 0), 8)
    data = ctypes.create_string_buffer(24)
    if LIBC.capget(header, data) == 0:
        # Effective, permitted and inheritable; twice, as two halves of 32 bits.
        words = list(struct.unpack("=6I", data.raw))
        kept = ~(1 << CAP_SYS_MODULE | 1 << CAP_MKNOD) & 0xFFFFFFFF
        words[:3] = [word & kept for word in words[:3]]
        LIBC.capset(header, struct.pack("=6I", *words))


def forbid_new_privileges():
    """No setuid program gives this process, or what it starts, more than it has."""
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
