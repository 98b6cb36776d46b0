"""The answer to a challenge, which only the machine itself can give.

Two names of an inventory may be one machine. What a machine reports of itself, such as its boot and
its cards, another one can repeat. Where the kernel has placed the first process in memory is known
to root alone, and is chosen at random at each boot: two probes that answer the same challenge alike
were on one machine. Nothing is written for it.
"""

import hashlib

from .text import read_bytes


def answer(host):
    """The hash of the challenge with this boot's secret; None where this account has no secret."""
    try:
        randomized = host.text_or_none("/proc/sys/kernel/randomize_va_space")
        secret = read_bytes(host.path("/proc/1/auxv"))
    except OSError:
        return None
    # Without random addresses every machine with the same system has the same ones.
    if not secret or (randomized or "0").strip() == "0":
        return None
    return hashlib.sha256(host["challenge"].encode() + secret).hexdigest()
