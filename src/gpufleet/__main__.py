"""Run the command line: `gpufleet VERB ...` and `python -m gpufleet VERB ...`."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

from gpufleet.cli.main import main as run
from gpufleet.paths import ROOT


def main() -> int:
    """Prepare this process and its subprocesses, then run the verb; its exit status."""
    # Ansible's programs and uv are beside this interpreter.
    programs = str(Path(sys.executable).parent)
    path = os.environ.get("PATH", os.defpath)
    if path.split(os.pathsep)[0] != programs:
        os.environ["PATH"] = f"{programs}{os.pathsep}{path}"
    os.environ.setdefault("ANSIBLE_CONFIG", str(ROOT / "ansible.cfg"))
    os.environ["PYTHONUNBUFFERED"] = "1"
    # Relative to the current directory; some subprocesses have another one.
    if cache := os.environ.get("GPUFLEET_CACHE"):
        os.environ["GPUFLEET_CACHE"] = str(Path(cache).absolute())
    # Lines of this process and of subprocesses keep their order in a pipe.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    return run()


if __name__ == "__main__":
    sys.exit(main())
