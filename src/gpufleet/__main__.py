"""Run the command line: `gpufleet VERB ...` and `python -m gpufleet VERB ...`.

The verb finds proper surroundings, or a sentence names what is wrong with them: exit status 4.
"""

from __future__ import annotations

import errno
import io
import locale
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

USAGE = 4
# Every system has it.
UTF_8 = "C.UTF-8"


def main() -> int:
    """Prepare this process and its subprocesses, then run the verb; its exit status."""
    _open_closed_files()
    _use_utf_8()
    try:
        Path.cwd()
    except OSError as error:
        return _refused(
            f"The current directory cannot be used: {error.strerror}. It was removed, or this"
            " account may not enter it. Change to another one: cd /"
        )
    # Not before: a module may ask for the current directory as it is imported.
    from gpufleet.cli.main import grace_s  # noqa: PLC0415
    from gpufleet.cli.main import main as run  # noqa: PLC0415
    from gpufleet.stopping import guarded  # noqa: PLC0415

    _prepare_environment()
    try:
        status = guarded(run, grace_s(sys.argv[1:]))
        # Buffered output is written here, where its error can be reported.
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of a pipe has seen enough, as `head` has: ended like by the signal.
        _forget_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        _forget_output()
        where = f"{error.filename}: " if error.filename else ""
        return _refused(
            f"{where}{error.strerror or error}."
            + ("" if where else " Check where standard output and standard error are written to.")
        )
    return status


def _prepare_environment() -> None:
    """Set what this process and all that it starts find in their environment."""
    from gpufleet.paths import ROOT  # noqa: PLC0415

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


def _use_utf_8() -> None:
    """Start again in a locale of UTF-8, where this one is another or unknown: Ansible needs it."""
    encoding = ""
    with suppress(locale.Error):
        locale.setlocale(locale.LC_ALL, "")
        encoding = locale.nl_langinfo(locale.CODESET)
    if encoding != "UTF-8" and os.environ.get("LC_ALL") != UTF_8:
        os.environ["LC_ALL"] = UTF_8
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _open_closed_files() -> None:
    """Open standard files that the caller has closed.

    Otherwise the next file that is opened, such as the report, would receive what is printed.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            # The lowest number that is free is this one: those below it are open.
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w"))


def _forget_output() -> None:
    """Send what is left of standard output nowhere: Python would fail again as it ends."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)


def _refused(message: str) -> int:
    with suppress(OSError):
        sys.stderr.write(f"gpufleet: {message}\n")
        sys.stderr.flush()
    return USAGE


if __name__ == "__main__":
    sys.exit(main())
