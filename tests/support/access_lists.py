"""Access lists, as `setfacl` writes them."""

from __future__ import annotations

import os
import struct
from pathlib import Path

NOBODY_ELSE = 0xFFFFFFFF


def may_write(path: Path, uid: int) -> bool:
    """As by `setfacl -m u:UID:rwx`: the mode shows it as a group that may write. False where the
    file system has no access lists."""
    rows = (
        (1, 7, NOBODY_ELSE),
        (2, 7, uid),
        (4, 5, NOBODY_ELSE),
        (16, 7, NOBODY_ELSE),
        (32, 5, NOBODY_ELSE),
    )
    text = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *row) for row in rows)
    try:
        os.setxattr(path, "system.posix_acl_access", text)
    except OSError:
        return False
    return True
