"""Makes a CUDA runfile: a makeself archive that treats options and failures as NVIDIA's does.

makeself's own header takes every option for itself and explains failures in its own words. Ours
is made from the installed one by a few replacements; each must fit, so that another makeself
release is noticed here and not on a host.
"""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Any

from lab.command import run
from lab.errors import LabError

HEADER = Path("/usr/share/makeself/makeself-header.sh")
INSTALLERS = Path(__file__).parent / "installer"
# The programs in a package; the first of them is the one that is started.
INSTALLER = ("cuda-installer",)
PERL = ("cuda-installer.pl", "InstallUtils.pm")
PATCH = ("install_patch.pl", "InstallUtils.pm")
# The same input makes the same file, byte for byte, whenever and wherever it is made.
DATE = "2022-10-03T00:00:00Z"
TAR_OPTIONS = (
    "--sparse",
    "--sort=name",
    f"--mtime={DATE}",
    "--owner=0",
    "--group=0",
    "--numeric-owner",
    "--mode=u+rwX,go+rX,go-w",
)

# The fields of an artifact that its installer knows.
_SETTINGS = ("cuda", "version", "gcc_max", "driver")

_FAILED = (
    'echo "Extraction failed." >&2; echo "Ensure there is enough space in \\$TMPROOT'
    ' and that the installation package is not corrupt" >&2'
)
# Pairs of a text of makeself and the text of NVIDIA's runfile in its place.
_REPLACEMENTS = (
    # The installer's options reach the installer, --help among them.
    (
        '    -*)\n\techo Unrecognized flag : "\\$1" >&2\n\tMS_Help\n\texit 1\n\t;;\n',
        "    -*)\n\tbreak ;;\n",
    ),
    ("    -h | --help)\n\tMS_Help\n\texit 0\n\t;;\n", "    -h | --help)\n\tbreak ;;\n"),
    (
        "TMPROOT=\\${TMPDIR:=/tmp}\n",
        "TMPROOT=\\${TMPDIR:=/tmp}\n"
        'for a in "\\$@"; do case "\\$a" in --tmpdir=*) TMPROOT="\\${a#--tmpdir=}" ;; esac; done\n',
    ),
    ('quiet="n"\n', 'quiet="y"\n'),
    ("{ echo Extraction failed. >&2; kill", f"{{ {_FAILED}; kill"),
    # No room, or a place where nothing may be executed.
    (
        "            echo \"Use --nodiskspace option to skip this check and proceed anyway\" >&2\n",
        f"            {_FAILED}\n",
    ),
    (
        'cd "\\$tmpdir"\nres=0\n',
        'cd "\\$tmpdir"\nres=0\n'
        'if test x"\\$script" != x && test ! -x "\\$script"; then\n'
        f'    {_FAILED}\n    cd "\\$TMPROOT"; rm -rf "\\$tmpdir"; eval \\$finish; exit 1\nfi\n',
    ),
)  # fmt: skip


def header(stock: str) -> str:
    for old, new in _REPLACEMENTS:
        if stock.count(old) != 1:
            raise LabError(
                f"this makeself's header is not one the lab knows (no single {old.strip()!r})",
                "Use makeself 2.4.5 to 2.7, or adapt lab/runfile.py to this release.",
            )
        stock = stock.replace(old, new)
    return stock


def pack(
    artifact: dict[str, Any], tree: Path, work: Path, programs: tuple[str, ...], readme: str
) -> Path:
    """Make a runfile below `work` of a laid-out toolkit, which is moved into the package."""
    package = work / "pkg"
    package.mkdir()
    tree.rename(package / "payload")
    for name in programs:
        shutil.copyfile(INSTALLERS / name, package / name)
        (package / name).chmod(0o755)
    settings = {key: artifact[key] for key in _SETTINGS if key in artifact}
    lines = [f"{name.upper()}={shlex.quote(str(value))}\n" for name, value in settings.items()]
    (package / "stand-in.conf").write_text("".join(lines), encoding="ascii")
    what = f"CUDA {artifact['cuda']}"
    (package / "README-STAND-IN.txt").write_text(readme.format(what=what), encoding="utf-8")
    own = work / "header.sh"
    own.write_text(header(HEADER.read_text(encoding="utf-8")), encoding="utf-8")
    # Relative names: the command line is written into the file.
    run(
        *("sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", work),
        *("makeself", "--quiet", "--tar-quietly", "--nox11", "--noprogress", "--keep-umask"),
        # gzip, as in NVIDIA's: a bare server has nothing else for certain.
        *(artifact.get("compression") or ("--gzip", "--complevel", "1")),
        *("--tar-format", "gnu"),
        *("--tar-extra", " ".join(TAR_OPTIONS), "--packaging-date", DATE),
        *("--header", f"./{own.name}", package.name, "made.run"),
        *(f"{what} (stand-in of the gpufleet lab)", f"./{programs[0]}"),
        timeout=1800,
        # -n: no time stamp in gzip's header.
        extra={"TMPDIR": str(work), "GZIP": "-n"},
    )
    return work / "made.run"
