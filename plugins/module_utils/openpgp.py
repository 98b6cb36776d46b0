# Apache-2.0, see LICENSE
"""Read one OpenPGP public key in ASCII armour, strictly, and write it again from what was read.

Package managers read key files leniently: several blocks, text around them, base64 with other
characters in it. What is judged here is therefore not handed on as it came: ``read`` refuses what
it does not understand completely, and ``armoured`` writes exactly the packets that were judged.
Works on text alone; reads and writes no file.
"""

from __future__ import annotations

import base64
import hashlib
import re

BEGIN, END = "-----BEGIN PGP PUBLIC KEY BLOCK-----", "-----END PGP PUBLIC KEY BLOCK-----"
SIGNATURE, PUBLIC_KEY, USER_ID, PUBLIC_SUBKEY = 2, 6, 13, 14
PACKETS = {SIGNATURE, PUBLIC_KEY, USER_ID, PUBLIC_SUBKEY}
# RFC 9580: version -> (hash, first byte of what is hashed, bytes of the length, digits).
FINGERPRINTS = {4: ("sha1", b"\x99", 2, 40), 6: ("sha256", b"\x9b", 4, 64)}
DIGITS = {row[3] for row in FINGERPRINTS.values()}
CUT_OFF = "an OpenPGP key that is cut off"
NO_ARMOUR = "no OpenPGP key in ASCII armour"
LINE = 64


def crc24(content):
    """The checksum of an armour (RFC 9580, section 6.1.1), three bytes."""
    crc = 0xB704CE
    for byte in bytearray(content):
        crc ^= byte << 16
        for _ in range(8):
            crc <<= 1
            if crc & 0x1000000:
                crc ^= 0x1864CFB
    return crc.to_bytes(3, "big")


def decoded(text):
    """The bytes of canonical base64; raises ``ValueError``."""
    content = base64.b64decode(text.encode("ascii"), validate=True)
    if base64.b64encode(content).decode("ascii") != text:
        raise ValueError("an OpenPGP key with wrong base64")
    return content


def dearmoured(text):
    """The bytes in the only armour of a text, with nothing around it; raises ``ValueError``."""
    lines = [line.rstrip(" \t\r") for line in text.strip().split("\n")]
    if BEGIN not in lines or END not in lines:
        raise ValueError(NO_ARMOUR)
    armour_lines = [line for line in lines if line.lstrip().startswith("-----")]
    if armour_lines != [BEGIN, END] or [lines[0], lines[-1]] != armour_lines:
        raise ValueError("an OpenPGP key with text or other keys around it")
    lines = lines[1:-1]
    # Headers such as "Version: 1" end with an empty line; they are not handed on.
    head = lines.index("") if "" in lines else len(lines)
    if not all(re.match(r"[A-Za-z]+: ", line) for line in lines[:head]):
        raise ValueError("an OpenPGP key with other text than headers before its empty line")
    body = lines[head + 1 :]
    checksum = body.pop()[1:] if body and body[-1].startswith("=") else None
    if not body or "" in body:
        raise ValueError(CUT_OFF)
    try:
        content = decoded("".join(body))
        if checksum is not None and decoded(checksum) != crc24(content):
            raise ValueError("an OpenPGP key with a wrong checksum")
    except UnicodeEncodeError:
        raise ValueError("an OpenPGP key with wrong base64") from None
    return content


def packets(content):
    """Tag and body of each packet (RFC 9580, section 4.2). Raises ``ValueError``."""
    position = 0
    while position < len(content):
        head = content[position]
        if not head & 0x80:
            raise ValueError("not an OpenPGP key")
        rest = content[position + 1 : position + 6]
        if head & 0x40:
            tag, first = head & 0x3F, rest[0] if rest else 0
            if 224 <= first < 255:
                raise ValueError("an OpenPGP key with a packet of unknown length")
            size = 1 if first < 192 else 2 if first < 224 else 5
            length = (
                first
                if size == 1
                else ((first - 192) << 8) + (rest + b"\0")[1] + 192
                if size == 2
                else int.from_bytes(rest[1:5], "big")
            )
        else:
            tag, size = (head >> 2) & 0xF, 1 << (head & 3)
            if size == 8:
                raise ValueError("an OpenPGP key with a packet of unknown length")
            length = int.from_bytes(rest[:size], "big")
        start = position + 1 + size
        position = start + length
        if length < 1 or position > len(content):
            raise ValueError(CUT_OFF)
        yield tag, content[start:position]


def fingerprint(body):
    """The fingerprint of a key packet of version 4 or 6; raises ``ValueError``."""
    if body[0] not in FINGERPRINTS:
        raise ValueError("no OpenPGP key of version 4 or 6")
    algorithm, first, size, _ = FINGERPRINTS[body[0]]
    if len(body) >= 1 << 8 * size:
        raise ValueError(CUT_OFF)
    content = first + len(body).to_bytes(size, "big") + body
    return hashlib.new(algorithm, content).hexdigest().upper()


def read(text):
    """The packets of a key file, and its primary keys' fingerprints; raises ``ValueError``."""
    found = list(packets(dearmoured(text)))
    if found[0][0] != PUBLIC_KEY or any(tag not in PACKETS for tag, _ in found):
        raise ValueError("an OpenPGP key with packets that do not belong to a public key")
    for tag, body in found:
        if tag == PUBLIC_SUBKEY:
            fingerprint(body)
    return found, [fingerprint(body) for tag, body in found if tag == PUBLIC_KEY]


def packet(tag, body):
    """A packet with its header: the old format, which every implementation reads."""
    size = 1 if len(body) < 1 << 8 else 2 if len(body) < 1 << 16 else 4
    head = 0x80 | tag << 2 | {1: 0, 2: 1, 4: 2}[size]
    return bytes(bytearray([head])) + len(body).to_bytes(size, "big") + body


def armoured(found):
    """The key file that holds exactly these packets."""
    content = b"".join(packet(tag, body) for tag, body in found)
    text = base64.b64encode(content).decode("ascii")
    lines = [text[at : at + LINE] for at in range(0, len(text), LINE)]
    checksum = "=" + base64.b64encode(crc24(content)).decode("ascii")
    return "\n".join([BEGIN, "", *lines, checksum, END, ""])
