"""Join the pack, and have gpufleet do its work on this machine, step by step, with a record.

    cd PACK && python3 -m tools.gpu_pack.run --output RECORD

Standard library only, Python 3.12, as root. Nothing is fetched. Each step has its own deadline, and
the record is written after each: a run that is cut off leaves what it has found.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tools.gpu_pack import parts

PYTHON = "3.12"
# The checks whose evidence the short record quotes: what was installed, and what computed.
QUOTED = ("stack.matmul", "stack.gpu", "stack.libraries", "stack.mapped", "toolkit.present",
          "toolkit.cublas", "cudnn.convolution", "driver.cuda", "gpu.throughput",
          "gpu.sustained")  # fmt: skip
# The parts of a step's row that the short record shows in a form of their own.
SHOWN = ("state", "seconds", "error", "reports")
LINK = Path("/usr/local/cuda-12.5/targets/x86_64-linux/lib/libcudnn.so.9")
LINKER = Path("/etc/ld.so.conf.d")
OWN_LINKER = LINKER / "gpufleet-cuda.conf"
CUDA = "/usr/local/cuda"
SECOND = json.dumps({"gpu_toolkits": ["11.8"]})
MARK = "gpufleet-framework: "


class StepError(Exception):
    """Something that did not happen as the step expects."""


class StoppedError(StepError):
    """A command that did not end within the step's time."""


@dataclass
class Run:
    """One run: where it works, until when, and what it has found."""

    pack: Path
    work: Path
    output: Path
    gpus: int
    ends: float
    found: dict[str, Any] = field(default_factory=dict)

    @property
    def site(self) -> Path:
        """The directory that the parts are joined into."""
        return self.work / "site"

    @property
    def bin(self) -> Path:
        """The programs of the control machine's environment."""
        return self.work / "venv/bin"

    def command(self, *argv: str | Path, statuses: tuple[int, ...] = (0,)) -> str:
        """Run a command until it ends or the step does, append its output to the log, return it."""
        words = [str(word) for word in argv]
        wheels = str(self.site / "mirror/wheels")
        offline = {"UV_OFFLINE": "1", "UV_FIND_LINKS": wheels, "UV_PYTHON_DOWNLOADS": "never"}
        log, began = self.output / "log.txt", time.monotonic()
        with log.open("a+", encoding="utf-8") as stream:
            stream.write(f"\n$ {' '.join(words)}\n")
            stream.flush()
            start = stream.tell()
            process = subprocess.Popen(
                words,
                cwd=self.work,
                env={**os.environ, **offline, "LC_ALL": "C.UTF-8"},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = process.wait(max(0, self.ends - began))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise StoppedError(f"{words[0]} was stopped at the step's deadline") from None
            stream.write(f"# status {status} after {time.monotonic() - began:.1f} s\n")
            stream.seek(start)
            text = stream.read()
        if status not in statuses:
            raise StepError(f"{Path(words[0]).name} ended with status {status}: {text[-600:]}")
        return text

    def gpufleet(self, verb: str, *more: str, failing: str = "") -> None:
        """Run gpufleet on this machine and keep its report; `failing` names a check that must."""
        kept = self.found.setdefault("reports", [])
        reports = Path(tempfile.mkdtemp(prefix=f"{verb}-", dir=self.work))
        try:
            self.command(
                self.bin / "gpufleet", verb, "-i", self.site / "hosts.yml",
                *("-e", json.dumps({"gpu_expect": {"count": self.gpus}, **interpreter()})),
                *more, "--report", reports, statuses=(1,) if failing else (0,),
            )  # fmt: skip
        finally:
            kept += [json.loads(path.read_text()) for path in reports.glob("latest/report.json")]
        if failing and not (kept and failing in failed_checks(kept[-1])):
            raise StepError(f"{failing} does not fail")


def interpreter() -> dict[str, str]:
    """The Python of the stack where gpufleet finds none by itself: that of this program."""
    found = [Path("/usr/bin"), Path("/usr/local/bin"), *Path("/opt/python").glob("*/bin")]
    if any((directory / f"python{PYTHON}").exists() for directory in found):
        return {}
    return {"pack_python": own_python()}


def own_python() -> str:
    """The interpreter of this program, outside of any virtual environment."""
    return str(getattr(sys, "_base_executable", sys.executable))


def failed_checks(report: dict[str, Any]) -> list[str]:
    """The names of a report's checks that fail or could not be judged."""
    rows = [row for host in report["hosts"].values() for row in host["checks"]]
    return [row["id"] for row in rows if row["verdict"] not in ("PASS", "NOT-DECLARED")]


def join(run: Run) -> None:
    """Join the parts, and install gpufleet from its own wheel, as on a control machine."""
    shutil.rmtree(run.work, ignore_errors=True)
    run.work.mkdir(parents=True)
    parts.join(run.pack, run.site)
    (wheel,) = run.site.glob("mirror/wheels/uv-*.whl")
    uv = run.work / "uv"
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith(".data/scripts/uv"))
        uv.write_bytes(archive.read(member))
    uv.chmod(0o755)
    run.command(uv, "venv", "--python", own_python(), "venv")
    python = ("--python", run.bin / "python")
    run.command(uv, "pip", "sync", *python, "--require-hashes", run.site / "control.txt")
    run.command(uv, "pip", "install", *python, "--no-deps", *run.site.glob("own/*.whl"))


def prepare(run: Run) -> None:
    """Do what gpufleet leaves to a person: packages without a repository, and the linker's path.

    Another CUDA in the linker's path provides libraries of the same names (`linker.providers`).
    """
    for package in ("libxml2", "tar"):
        listed = subprocess.run(["dpkg", "--status", package], capture_output=True, check=False)
        run.found[package] = "there" if listed.returncode == 0 else "missing"
    if run.found["libxml2"] == "missing":
        run.command("dpkg", "--install", *run.site.glob("packages/*.deb"))
    run.found["set aside"] = []
    for path in sorted(LINKER.glob("*.conf")):
        lines = [each for each in path.read_text().split("\n") if each and not each.startswith("#")]
        if path != OWN_LINKER and lines and all(each.startswith(CUDA) for each in lines):
            shutil.move(path, run.work / path.name)
            run.found["set aside"].append(f"{path}: {', '.join(lines)}")
    run.command("ldconfig")


def provision(run: Run) -> None:
    """Install CUDA by runfile, cuDNN and TensorFlow's stack, and verify that it computes."""
    run.gpufleet("provision")


def deep(run: Run) -> None:
    """Verify deeply: every file's content, and minutes of load."""
    saved = run.work / "saved"
    run.gpufleet("verify", "--deep", "-e", SECOND, "--save", str(saved))
    (bundle,) = saved.glob("bundles/*.json")
    shutil.copy2(bundle, run.output / "deep.json")


def side_by_side(run: Run) -> None:
    """Install a second CUDA beside the first; the stack still computes with its own."""
    run.gpufleet("provision", "-e", SECOND)


def repair(run: Run) -> None:
    """Remove a link of cuDNN: verify must fail by it, provision repair it, and verify pass."""
    LINK.unlink()
    run.gpufleet("verify", "-e", SECOND, failing="cudnn.links")
    run.gpufleet("provision", "-e", SECOND)
    if not LINK.exists():
        raise StepError(f"{LINK} is not back")


def frameworks(run: Run) -> None:
    """Run the programs of PyTorch's and JAX's stacks by the Python that the machine has them in."""
    script = run.work / "workload.py"
    code = "from gpufleet.on_host import payload; print(payload.workload())"
    script.write_text(subprocess.check_output([run.bin / "python", "-c", code], text=True))
    for name, module in {"pytorch": "torch", "jax": "jax"}.items():
        code = f"import importlib.util as u, sys; sys.exit(not u.find_spec({module!r}))"
        if subprocess.run(["python3", "-c", code], check=False).returncode:
            run.found[name] = "not there"
            continue
        text = run.command("python3", script, "--framework", name, "--expect-gpus", str(run.gpus))
        run.found[name] = json.loads(text.rpartition(MARK)[2].splitlines()[0])
        if run.found[name]["state"] != "ok":
            raise StepError(f"{name}: {run.found[name]['error']}")


@dataclass(frozen=True)
class Step:
    """A step: the most time that it has, the least to start it, and the steps that it needs."""

    act: Callable[[Run], None]
    limit_s: int
    least_s: int
    needs: tuple[str, ...] = ()


# The most important ones first.
STEPS = {
    "join": Step(join, 120, 0),
    "prepare": Step(prepare, 30, 0, ("join",)),
    "provision": Step(provision, 240, 60, ("join",)),
    "side by side": Step(side_by_side, 90, 30, ("join",)),
    "repair": Step(repair, 90, 45, ("provision",)),
    "deep": Step(deep, 300, 200, ("join",)),
    "frameworks": Step(frameworks, 90, 20, ("join",)),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--pack", type=Path, default=Path.cwd(), help="the pack's directory")
    parser.add_argument("--work", type=Path, default=Path("/var/tmp/gpu-pack"))
    parser.add_argument("--output", type=Path, required=True, help="where the record is written")
    parser.add_argument("--gpus", type=int, default=1, help="0: a trial on a machine without a GPU")
    parser.add_argument("--seconds", type=int, default=480, help="for all steps together")
    parser.add_argument("--slower", type=int, default=1, help="multiply each step's deadline")
    parser.add_argument("--steps", default=",".join(STEPS), help="these only")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    return perform(options, {name: STEPS[name] for name in options.steps.split(",")})


def perform(options: argparse.Namespace, steps: dict[str, Step]) -> int:
    """Do the steps in order; 0 if all of them passed."""
    ends = time.monotonic() + options.seconds
    record: dict[str, Any] = {
        "started": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "machine": machine(),
        "steps": {},
    }
    for name, step in steps.items():
        began = time.monotonic()
        run = Run(
            options.pack.absolute(), options.work.absolute(), options.output.absolute(),
            options.gpus, min(began + step.limit_s * options.slower, ends),
        )  # fmt: skip
        lacking = [each for each in step.needs if state_of(record, each) not in ("passed", None)]
        state, error = "passed", None
        if lacking or ends - began < step.least_s:
            state, error = "not started", f"{', '.join(lacking)} failed" if lacking else "no time"
        else:
            try:
                step.act(run)
            except StoppedError as stopped:
                state, error = "stopped", str(stopped)
            except Exception as failure:  # the next steps go on
                state, error = "failed", f"{type(failure).__name__}: {failure}"
        seconds = round(time.monotonic() - began, 1)
        record["steps"][name] = {"state": state, "seconds": seconds, "error": error, **run.found}
        write(options.output, record)
        print(f"{name}: {state} after {seconds} s{f': {error}' if error else ''}", flush=True)
    return 0 if all(row["state"] == "passed" for row in record["steps"].values()) else 1


def state_of(record: dict[str, Any], name: str) -> str | None:
    """How a step ended; None if it is not one of this run's."""
    row = record["steps"].get(name)
    return row["state"] if row else None


def machine() -> dict[str, str]:
    """The machine, by its own programs; an absent one is left out."""
    commands = {
        "kernel": ["uname", "-sr"],
        "system": ["sed", "-n", "s/^PRETTY_NAME=//p", "/etc/os-release"],
        "gpu": ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
        "first process": ["ps", "-p", "1", "-o", "comm="],
    }  # fmt: skip
    found = {name: argv for name, argv in commands.items() if shutil.which(argv[0])}
    return {
        name: subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()
        for name, argv in found.items()
    }


def write(output: Path, record: dict[str, Any]) -> None:
    """Write the whole record, and a short one for people."""
    (output / "record.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    lines = [f"# {record['started'][:10]}", ""]
    lines += [f"- {name}: {value}" for name, value in record["machine"].items()]
    lines += ["", "| step | state | seconds |", "|-|-|-|"]
    lines += [f"| {n} | {row['state']} | {row['seconds']} |" for n, row in record["steps"].items()]
    for name, row in record["steps"].items():
        lines += ["", f"## {name}", "", row["error"] or ""]
        for report in row.get("reports", []):
            counts = ", ".join(f"{count} {it}" for it, count in report["summary"].items() if count)
            lines += [f"{counts} ({report['started']} to {report['finished']})", ""]
            for check in (each for host in report["hosts"].values() for each in host["checks"]):
                if check["verdict"] not in ("PASS", "NOT-DECLARED"):
                    lines.append(f"- {check['verdict']} {check['id']}: {check['cause']}")
                elif check["id"] in QUOTED and check["evidence"]:
                    evidence = check["evidence"].replace("\n", "; ")
                    lines.append(f"- {check['id']}: {evidence}")
        more = {key: it for key, it in row.items() if key not in SHOWN}
        lines += [f"- {key}: {json.dumps(it)[:2000]}" for key, it in more.items()]
    (output / "record.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
