"""Sign files by `ssh-keygen -Y sign`, which anybody who has ssh can verify.

Runs ssh-keygen. A key with a passphrase is used through an agent: its public half is named then.
"""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
from contextlib import suppress
from pathlib import Path

from gpufleet import stopping
from gpufleet.errors import ConfigurationError

from .records import SIGNATURE

CERTIFICATE, REFUSAL = "gpufleet-certificate", "gpufleet-refusal"
# How the bytes of a signature begin, by OpenSSH's PROTOCOL.sshsig: then come a version, and the
# public key after its length.
MAGIC, VERSION_BYTES, LENGTH_BYTES = b"SSHSIG", 4, 4
# A key on a token may want to be touched.
DEADLINE_S = 60


def check_key(key: Path) -> str:
    """Try a key before anything is run; its fingerprint. Raises `ConfigurationError`."""
    with stopping.temporary_directory() as folder:
        probe = Path(folder, "probe")
        probe.write_text("gpufleet\n", encoding="utf-8")
        return signer(sign(probe, key, CERTIFICATE))


def signer(signature: Path) -> str:
    """The fingerprint of the key that made a signature, as ssh-keygen -l has it; empty: unknown.

    A signature contains the public key. The file of a key says less: it may hold another key now.
    """
    with suppress(OSError, ValueError):
        armored = signature.read_text(encoding="ascii").splitlines()
        raw = base64.b64decode("".join(line for line in armored if not line.startswith("-----")))
        start = len(MAGIC) + VERSION_BYTES + LENGTH_BYTES
        length = int.from_bytes(raw[start - LENGTH_BYTES : start], "big")
        public = raw[start : start + length]
        if raw.startswith(MAGIC) and 0 < length == len(public):
            found = base64.b64encode(hashlib.sha256(public).digest()).decode()
            return f"SHA256:{found.rstrip('=')}"
    return ""


def sign(path: Path, key: Path, namespace: str) -> Path:
    """Sign a file; the file of its signature. Raises `ConfigurationError`."""
    signature = path.with_name(path.name + SIGNATURE)
    # ssh-keygen asks before it overwrites one.
    signature.unlink(missing_ok=True)
    command = ["ssh-keygen", "-Y", "sign", "-f", str(key), "-n", namespace, str(path)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=DEADLINE_S,
            # Nobody may be there to type a passphrase.
            env={**os.environ, "SSH_ASKPASS_REQUIRE": "never"},
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _refused(key, str(error)) from error
    if done.returncode or not signature.is_file():
        raise _refused(key, " ".join(done.stderr.decode("utf-8", "replace").split())[-300:])
    return signature


def _refused(key: Path, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"ssh-keygen does not sign with this key: {why}.",
        str(key),
        "Name a private key without a passphrase, or the public half of one that an agent has"
        " (ssh-add).",
    )
