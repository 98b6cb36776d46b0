"""Sign files by `ssh-keygen -Y sign`, which anybody who has ssh can verify.

Runs ssh-keygen. A key with a passphrase is used through an agent: its public half is named then.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from gpufleet.errors import ConfigurationError

from .records import SIGNATURE

CERTIFICATE, REFUSAL = "gpufleet-certificate", "gpufleet-refusal"
# A key on a token may want to be touched.
DEADLINE_S = 60


def check_key(key: Path) -> None:
    """Try a key before anything is run. Raises `ConfigurationError`."""
    with tempfile.TemporaryDirectory(prefix="gpufleet-") as folder:
        probe = Path(folder, "probe")
        probe.write_text("gpufleet\n", encoding="utf-8")
        sign(probe, key, CERTIFICATE)


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
