"""The lossless class of a network interface: priority flow control, trust, and ECN of RoCE.

Flow control and trust are one question and one answer over netlink (linux/dcbnl.h), for which no
tool has to be installed. The files of ECN come with the drivers of MLNX_OFED and DOCA.
"""

import re
import socket
import struct

from .pci import number, word

GET_DCB, IEEE_GET, ERROR, REQUEST = 78, 21, 2, 1
# Attributes of the answer, and inside that of IEEE 802.1Qaz.
NAME, IEEE, FLOW_CONTROL, APPLICATIONS = 1, 13, 2, 3
# An application's selector: what the first byte of its entry says of the others.
BY_DSCP = 5
HEADER, MESSAGE, KIND = 16, 4, 0x3FFF
PRIORITIES, ANSWER_S = range(8), 1


def lossless(host, name):
    """The settings "pfc", "trust", "notify", "react" and "traffic_class" of an interface.

    Three are masks of priorities, "trust" is the field that gives a packet its priority (`dscp` or
    `pcp`), and "traffic_class" is carried by RoCE packets where programs set nothing; -1: no such
    value is set; null: not read.
    """
    found = {"pfc": None, "trust": None}
    try:
        if host.real:
            found = settings(ask(name))
    except OSError:  # an interface without such settings
        pass
    for key, part in (("notify", "roce_np"), ("react", "roce_rp")):
        place = "/sys/class/net/%s/ecn/%s/enable/" % (name, part)
        values = [number(host, place + str(each)) for each in PRIORITIES]
        known = None not in values
        found[key] = sum(1 << each for each in PRIORITIES if values[each]) if known else None
    names = host.glob("/sys/class/net/%s/device/infiniband/*/tc/1/traffic_class" % name)
    texts = [word(host, each) or "" for each in names]
    values = [re.search(r"tclass=([0-9]{1,3})", text) for text in texts]
    found["traffic_class"] = (int(values[0].group(1)) if values[0] else -1) if texts else None
    return found


def ask(name):
    """The kernel's answer about an interface. Raises `OSError`."""
    text = name.encode() + b"\0"
    body = struct.pack("=BBHHH", 0, IEEE_GET, 0, MESSAGE + len(text), NAME)
    body += text + b"\0" * (-len(text) % 4)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as link:
        link.settimeout(ANSWER_S)
        link.send(struct.pack("=IHHII", HEADER + len(body), GET_DCB, REQUEST, 1, 0) + body)
        return link.recv(1 << 16)


def settings(answer):
    """The settings "pfc" and "trust" in an answer; null where it has none."""
    found = {"pfc": None, "trust": None}
    if len(answer) < HEADER or struct.unpack_from("=H", answer, 4)[0] == ERROR:
        return found
    parts = dict(attributes(dict(attributes(answer[HEADER + MESSAGE :])).get(IEEE, b"")))
    if len(parts.get(FLOW_CONTROL, b"")) > 1:
        found["pfc"] = parts[FLOW_CONTROL][1]
        entries = [entry[0] for _, entry in attributes(parts.get(APPLICATIONS, b"")) if entry]
        found["trust"] = "dscp" if BY_DSCP in entries else "pcp"
    return found


def attributes(data):
    """The kind and the content of each netlink attribute."""
    at = 0
    while at + MESSAGE <= len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        if length < MESSAGE:
            return
        yield kind & KIND, data[at + MESSAGE : at + length]
        at += length + -length % 4
