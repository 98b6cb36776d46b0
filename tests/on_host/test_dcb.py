"""The lossless class of an interface: netlink's answers, and the files of ECN.

The answers are made up by the layout of linux/dcbnl.h.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from gpufleet.on_host import dcb
from gpufleet.on_host.host import Host
from tests.support.rdma_tree import Tree

NESTED = 0x8000


def attribute(kind: int, content: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(content), kind) + content + b"\0" * (-len(content) % 4)


def answer(*parts: bytes, kind: int = 78) -> bytes:
    """An answer about `ens0np0` with these attributes of IEEE 802.1Qaz."""
    body = struct.pack("=BBH", 0, 21, 0) + attribute(1, b"ens0np0\0")
    body += attribute(13 | NESTED, b"".join(parts))
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 1, 0) + body


def flow_control(enabled: int) -> bytes:
    """The capability of 8 classes, the enabled ones, and sixteen counters of pause frames."""
    return attribute(2, struct.pack("=BBBxHxx16Q", 8, enabled, 0, 0, *range(16)))


def applications(*selectors: int) -> bytes:
    rows = [attribute(1, struct.pack("=BBH", each, 3, 26)) for each in selectors]
    return attribute(3 | NESTED, b"".join(rows))


TRANSMISSION = attribute(1, bytes(91))


@pytest.mark.parametrize(
    ("received", "pfc", "trust"),
    [
        (answer(TRANSMISSION, flow_control(0x08), applications(5, 5, 1)), 0x08, "dscp"),
        (answer(TRANSMISSION, flow_control(0x30), applications(1, 2)), 0x30, "pcp"),
        (answer(flow_control(0)), 0, "pcp"),
        # A driver without flow control.
        (answer(TRANSMISSION), None, None),
        # An error, such as that of an interface without such settings.
        (struct.pack("=IHHIIi", 20, 2, 0, 1, 0, -95), None, None),
        (answer(flow_control(8))[:30], None, None),
        (b"", None, None),
    ],
)
def test_an_answer_is_read(received: bytes, pfc: int | None, trust: str | None) -> None:
    assert dcb.settings(received) == {"pfc": pfc, "trust": trust}


@pytest.mark.parametrize("length", range(0, 200, 7))
def test_an_answer_that_breaks_off_ends(length: int) -> None:
    found = dcb.settings(answer(TRANSMISSION, flow_control(8), applications(5))[:length])
    assert found["pfc"] in (None, 8)


def test_an_attribute_of_no_length_ends_the_list() -> None:
    assert list(dcb.attributes(b"\0" * 64)) == []


def test_an_interface_of_this_machine_is_asked() -> None:
    """The loopback interface has no such settings, and the kernel answers that at once."""
    assert dcb.settings(dcb.ask("lo")) == {"pfc": None, "trust": None}


def test_the_files_of_ecn_are_masks(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    for part, enabled in (("roce_np", {3}), ("roce_rp", {3, 5})):
        for priority in range(8):
            tree.put(
                f"sys/class/net/ens0np0/ecn/{part}/enable/{priority}",
                str(int(priority in enabled)),
            )
    host = Host({"root": str(tmp_path)}, 20)
    whole = {
        **{"pfc": None, "trust": None, "traffic_class": None},
        **{"notify": 1 << 3, "react": 1 << 3 | 1 << 5},
    }
    assert dcb.lossless(host, "ens0np0") == whole
    (tmp_path / "sys/class/net/ens0np0/ecn/roce_np/enable/6").unlink()
    assert dcb.lossless(host, "ens0np0")["notify"] is None
    assert dcb.lossless(host, "ens1np0") == dict.fromkeys(whole)


@pytest.mark.parametrize(("text", "read"), [("Global tclass=106\n", 106), ("", -1)])
def test_the_traffic_class_is_that_of_the_interfaces_device(
    tmp_path: Path, text: str, read: int
) -> None:
    tree = Tree(tmp_path)
    place = tree.mlx("mlx5_0", 0, "01", link_layer="Ethernet", address=7)
    tree.interface("ens0np0", place)
    tree.put(f"{place}/infiniband/mlx5_0/tc/1/traffic_class", text.encode())
    assert dcb.lossless(Host({"root": str(tmp_path)}, 20), "ens0np0")["traffic_class"] == read
