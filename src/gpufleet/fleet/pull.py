"""Pull mode: a host probes and judges itself, where no control machine may connect by ssh.

    python3 gpufleet-pull.pyz /etc/gpufleet/pull.json

A timer runs it (role pull_verify). It writes plan, snapshot and verdicts as one JSON document, for
`verify --pulled`, and the verdicts as metrics for node_exporter. Exit status 0: the result was
written, whatever the verdict.

On the control machine, `python -m gpufleet pack-pull FILE` builds the archive.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from gpufleet.components.base.contents import oldest_reading, scrub_of, sound_states
from gpufleet.documents import received
from gpufleet.documents.clock import utc_now
from gpufleet.documents.plan import Plan
from gpufleet.documents.sections.cuda import ContentsRead
from gpufleet.documents.snapshot import Snapshot
from gpufleet.documents.verdict import USAGE, CollectedResult, Verdict
from gpufleet.errors import bounded
from gpufleet.files import write_file
from gpufleet.judge import judge
from gpufleet.on_host import payload
from gpufleet.paths import PACKAGE

SCHEMA = 1
FAILING = {Verdict.FAIL, Verdict.HUNG, Verdict.UNREACHABLE}
# Packages that the judge needs besides Python: pure Python of this very environment.
LIBRARIES = ("yaml", "packaging")
PACKED = (
    "__init__.py",
    "errors.py",
    "files.py",
    "paths.py",
    "catalog/*.py",
    "catalog/data/**/*.yml",
    "components/**/*.py",
    "documents/**/*.py",
    "fleet/__init__.py",
    "fleet/pull.py",
    "frameworks/*.py",
    "judge/*.py",
    "on_host/**/*.py",
    "workload/*.py",
)
# Beyond the probe's own deadline, by which it has ended all of its processes.
GRACE_S = 30


def main(args: list[str]) -> int:
    """Probe, judge, and write the result; or build the archive."""
    if len(args) == 2 and args[0] == "pack":
        pack(Path(args[1]))
        return 0
    if len(args) != 1:
        sys.stderr.write("usage: gpufleet-pull.pyz SETTINGS.json\n")
        return USAGE
    settings = json.loads(Path(args[0]).read_text(encoding="utf-8"))
    config, scrub = settings["config"], settings["config"].get("scrub")
    if scrub:
        states = earlier_states(Path(settings["result"]))
        config = {**config, "scrub": {**scrub, "components": states}}
    document, seconds = probe_and_judge(settings["plan"], config)
    if scrub:
        # A run without an answer leaves what earlier ones have read.
        found = scrub_of(document["snapshot"])
        document["scrub"] = sound_states(found["components"]) if found else states
    write_file(Path(settings["result"]), json.dumps(document, ensure_ascii=False) + "\n", 0o640)
    if settings["metrics"]:
        write_file(Path(settings["metrics"]), metrics(document, seconds), 0o644)
    for check in document["result"]["checks"]:
        if check["verdict"] not in {Verdict.PASS, Verdict.NOT_DECLARED}:
            print(f"{check['verdict']} {check['id']}: {check['cause']}")
            print(f"  remedy: {check['remedy']}")
    print(f"{document['host']}: {document['result']['verdict']}")
    return 0


def earlier_states(path: Path) -> list[ContentsRead]:
    """How far the last run has read the contents of what is installed."""
    try:
        return sound_states(json.loads(path.read_text(encoding="utf-8")).get("scrub"))
    except (OSError, ValueError, AttributeError):
        return []


def probe_and_judge(plan: Plan, config: Mapping[str, Any]) -> tuple[CollectedResult, float]:
    """The result, a document for `verify --snapshot`, and the duration in seconds."""
    begin = time.monotonic()
    settings = {**config, "matmul": payload.workload()}
    program = f"CONFIG = {json.dumps(settings)!r}\n{payload.probe()}"
    # Files instead of pipes: a hung probe must not block the reader.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as script:
        script.write(program.encode())
        script.seek(0)
        running = subprocess.Popen(
            [sys.executable, "-I", "-S", "-"],
            stdin=script,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            running.wait(config["deadline_s"] + GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
        output.seek(0)
        # A probe that prints more than a snapshot has one byte too many for the door.
        raw = output.read(received.MOST_BYTES + 1)
    snapshot: Snapshot | None = None
    result = judge.unreachable(
        "The probe ended without a snapshot"
        if running.returncode is not None
        else f"The probe gave no answer within {config['deadline_s'] + GRACE_S:g} s",
        "on the host: journalctl -u gpufleet-pull; check its load and its network mounts",
        received.output(raw[-2000:]),
    )
    try:
        snapshot = received.snapshot(raw.strip().rpartition(b"\n")[2], plan["host"])
    except received.UnfitError as error:
        result = judge.not_judged(f"The snapshot is not read: {error}", received.REMEDY)
    except ValueError:
        pass
    if snapshot is not None:
        result = bounded(
            "judged this host",
            partial(judge.judge, plan, snapshot),
            lambda defect: judge.defective(defect, plan["host"]),
        )
    return {
        "schema": SCHEMA,
        "host": plan["host"],
        "looked": utc_now(),
        "plan": plan,
        "snapshot": snapshot,
        "result": result,
    }, time.monotonic() - begin


def metrics(document: CollectedResult, seconds: float) -> str:
    """The verdicts as the nightly's metrics, and the run's own time and duration.

    The metrics of the run have other names than the nightly's, which alerts watch.
    """
    host = json.dumps(document["host"], ensure_ascii=False)
    healthy = int(document["result"]["verdict"] == Verdict.PASS)
    rows: dict[str, dict[str, float]] = {
        "gpufleet_pull_last_run_timestamp_seconds": {"": int(time.time())},
        "gpufleet_pull_run_duration_seconds": {"": round(seconds, 1)},
        "gpufleet_host_healthy": {f"{{host={host}}}": healthy},
        "gpufleet_check_failed": {
            f"{{host={host},check={json.dumps(check['id'])}}}": 1
            for check in document["result"]["checks"]
            if check["verdict"] in FAILING
        },
        "gpufleet_check_explained": {
            f"{{host={host},check={json.dumps(check['id'])},by={json.dumps(cause)}}}": 1
            for check in document["result"]["checks"]
            if check["verdict"] in FAILING and (cause := check.get("explained_by"))
        },
    }
    if (oldest := oldest_reading(document.get("snapshot"))) is not None:
        rows["gpufleet_contents_read_timestamp_seconds"] = {f"{{host={host}}}": oldest}
    return "".join(
        f"# TYPE {name} gauge\n"
        + "".join(f"{name}{label} {value}\n" for label, value in values.items())
        for name, values in rows.items()
    )


def pack(path: Path) -> None:
    """Build the archive that Python runs; the same sources give the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(_packed()):
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    partial.replace(path)


def _packed() -> Iterator[tuple[str, bytes]]:
    for pattern in PACKED:
        for found in PACKAGE.glob(pattern):
            if found.is_file():
                yield str(found.relative_to(PACKAGE.parent)), found.read_bytes()
    for name in LIBRARIES:
        library = Path(str(files(name)))
        for found in library.rglob("*.py"):
            yield str(Path(name, found.relative_to(library))), found.read_bytes()
    yield (
        "__main__.py",
        (b"import sys\nfrom gpufleet.fleet.pull import main\nsys.exit(main(sys.argv[1:]))\n"),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
