#!/usr/bin/python3
# Apache-2.0, see LICENSE
"""Apply the PCI settings that gpu_network declares, and print what was done with each device.

Installed by gpufleet, and started at boot by gpufleet-network.service: a boot or a reset gives a
device the firmware's settings again. It writes two registers of PCI configuration space, by the
kernel's `config` files: MaxReadReq of network adapters, and the access control (ACS) of the PCI
ports above GPUs and these adapters. A setting that is right already is not written, and a device
that is not there is named and passed over. Exit status 1: a setting could not be applied.

Standard library only, Python 3.6 and later.
"""

import argparse
import os
import re
import struct
import subprocess
import sys

DEVICES = "sys/bus/pci/devices"
ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]$")
NVIDIA, DISPLAY, NETWORK = "0x10de", "0x03", "0x02"
# Registers of PCI configuration space, by their names in the PCI Express base specification:
# Status, Capabilities Pointer, the capability of PCI Express and its Device Control, in whose bits
# 12 to 14 MaxReadReq is; the extended capability Access Control Services and its control word.
STATUS, HAS_CAPABILITIES, FIRST_CAPABILITY = 0x06, 0x10, 0x34
EXPRESS, DEVICE_CONTROL = 0x10, 0x08
SIZE_BITS, SIZE_SHIFT, LEAST_SIZE = 0x7000, 12, 128
EXTENDED, ACCESS_CONTROL, CONTROL_WORD = 0x100, 0x000D, 0x06
MOST_CAPABILITIES = 64


class NotAppliedError(Exception):
    """A setting could not be applied; the text says why."""


class Device:
    """A PCI device below `root`, by its address."""

    def __init__(self, root, address):
        self.address = address
        self.path = os.path.join(root, DEVICES, address)

    def text(self, name):
        """The text of one of its files; empty where there is none."""
        try:
            with open(os.path.join(self.path, name)) as stream:
                return stream.read().strip()
        except OSError:
            return ""

    def ports_above(self):
        """The addresses of the PCI ports above it, the root port first."""
        parts = os.path.realpath(self.path).split(os.sep)[:-1]
        return [part for part in parts if ADDRESS.match(part)]

    def read(self, offset, size):
        """Bytes of its configuration space."""
        try:
            with open(os.path.join(self.path, "config"), "rb", buffering=0) as stream:
                stream.seek(offset)
                data = stream.read(size)
        except OSError as error:
            raise NotAppliedError(
                "its configuration cannot be read: %s" % error.strerror
            ) from error
        if len(data) < size:
            raise NotAppliedError("its configuration cannot be read as a whole (root is needed)")
        return data

    def word(self, offset):
        return struct.unpack("<H", self.read(offset, 2))[0]

    def write_word(self, offset, value):
        """Write a register, and read it back."""
        try:
            with open(os.path.join(self.path, "config"), "r+b", buffering=0) as stream:
                stream.seek(offset)
                stream.write(struct.pack("<H", value))
        except OSError as error:
            raise NotAppliedError(
                "its configuration cannot be written: %s" % error.strerror
            ) from error
        if self.word(offset) != value:
            raise NotAppliedError(
                "it keeps 0x%04x, 0x%04x was written" % (self.word(offset), value)
            )

    def express(self):
        """Where its PCI Express capability begins."""
        head = self.read(0, 64)
        if head[:4] == b"\xff\xff\xff\xff":
            raise NotAppliedError("it does not answer")
        at = head[FIRST_CAPABILITY] & 0xFC if head[STATUS] & HAS_CAPABILITIES else 0
        for _ in range(MOST_CAPABILITIES):
            if at < 0x40:
                break
            kind, following = self.read(at, 2)
            if kind == EXPRESS:
                return at
            at = following & 0xFC
        raise NotAppliedError("it has no PCI Express capability")

    def access_control(self):
        """Where its access control capability begins; None where it has none."""
        at = EXTENDED
        for _ in range(MOST_CAPABILITIES):
            if at < EXTENDED:
                break
            header = struct.unpack("<I", self.read(at, 4))[0]
            if header == 0xFFFFFFFF:
                raise NotAppliedError("it does not answer")
            if header & 0xFFFF == ACCESS_CONTROL:
                return at
            at = header >> 20 & 0xFFC
        return None


def set_read_request(device, size):
    """Set MaxReadReq in bytes; what was done, as text."""
    place = device.express() + DEVICE_CONTROL
    control = device.word(place)
    before = LEAST_SIZE << ((control & SIZE_BITS) >> SIZE_SHIFT)
    if before == size:
        return "MaxReadReq is %d bytes already" % size
    bits = (size // LEAST_SIZE).bit_length() - 1
    device.write_word(place, control & ~SIZE_BITS | bits << SIZE_SHIFT)
    return "MaxReadReq was %d bytes, is %d" % (before, size)


def switch_access_control_off(device):
    """Clear the control word of a PCI port; what was done, as text."""
    at = device.access_control()
    if at is None:
        return "has no access control (ACS)"
    before = device.word(at + CONTROL_WORD)
    if before == 0:
        return "access control (ACS) is off already"
    device.write_word(at + CONTROL_WORD, 0)
    return "access control (ACS) was 0x%04x, is 0x0000 (off)" % before


def ports_to_switch(root, adapters):
    """The PCI ports above GPUs and above these adapters."""
    found = [each for each in adapters if each.text("class").startswith(NETWORK)]
    try:
        names = sorted(os.listdir(os.path.join(root, DEVICES)))
    except OSError:
        names = []
    for device in (Device(root, name) for name in names):
        if device.text("class").startswith(DISPLAY) and device.text("vendor") == NVIDIA:
            found.append(device)
    return sorted({port for device in found for port in device.ports_above()})


def virtual_machine():
    """The kind of virtual machine that this host is; empty on bare metal."""
    try:
        ended = subprocess.run(
            ["systemd-detect-virt", "--vm"],
            stdout=subprocess.PIPE,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotAppliedError(
            "whether this is a virtual machine is not known: %s" % error
        ) from error
    kind = ended.stdout.decode("utf-8", "replace").strip()
    return "" if kind == "none" else kind or "unknown"


def apply(options):
    """Apply the settings one after another; how many could not be applied."""
    failed = 0
    adapters = [Device(options.root, address) for address in options.adapter]
    there = []
    for device in adapters:
        if not os.path.isdir(device.path):
            print("%s: not there, nothing is set" % device.address)
        elif not device.text("class").startswith(NETWORK):
            print("%s: no network adapter any longer, nothing is set" % device.address)
        else:
            there.append(device)
    work = []
    if options.max_read_request:
        size = options.max_read_request
        work = [(device, lambda each: set_read_request(each, size)) for device in there]
    if options.acs_off:
        try:
            kind = virtual_machine()
            if kind:
                raise NotAppliedError(
                    "this is a virtual machine (%s), which needs access control" % kind
                )
            ports = [Device(options.root, name) for name in ports_to_switch(options.root, there)]
            work += [(port, switch_access_control_off) for port in ports]
            if not ports:
                print("access control (ACS): no PCI port is above a GPU or an adapter")
        except NotAppliedError as error:
            failed += 1
            print("access control (ACS) stays as it is: %s" % error)
    for device, act in work:
        try:
            print("%s: %s" % (device.address, act(device)))
        except NotAppliedError as error:
            failed += 1
            print("%s: not set: %s" % (device.address, error))
    return failed


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--max-read-request", type=int, choices=[LEAST_SIZE << bits for bits in range(6)]
    )
    parser.add_argument("--acs-off", action="store_true")
    parser.add_argument("--adapter", action="append", default=[], metavar="PCI_ADDRESS")
    parser.add_argument("--root", default="/", help="another directory in place of /")
    return 1 if apply(parser.parse_args(arguments)) else 0


if __name__ == "__main__":
    sys.exit(main())
