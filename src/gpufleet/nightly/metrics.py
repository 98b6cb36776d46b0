"""Prometheus metrics, as one file for node_exporter's textfile collector; also of a failed run.

A run that did not judge the hosts says nothing of them: an old figure would call them healthy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from gpufleet.model.verdict import Verdict

FILE = "gpufleet.prom"
FAILING = {Verdict.FAIL, Verdict.HUNG, Verdict.UNREACHABLE}
_TFLOPS = re.compile(
    r"gpu\.(?P<gpu>[^.]+)\.(?:stack\.(?P<stack>.+)|toolkit\.(?P<toolkit>.+))\.tflops")

# Name -> what it says, and its labels.
METRICS: dict[str, tuple[str, tuple[str, ...]]] = {
    "gpufleet_last_run_timestamp_seconds": ("When the last nightly ended, however it ended", ()),
    "gpufleet_last_success_timestamp_seconds":
        ("When a nightly last did all of its work, whatever it found; 0: never", ()),
    "gpufleet_run_duration_seconds": ("How long the last nightly took", ()),
    "gpufleet_run_trouble": ("1 for each step of the last nightly that failed", ("step",)),
    "gpufleet_hosts": ("Hosts by verdict", ("verdict",)),
    "gpufleet_host_healthy": ("1 where everything that is declared holds", ("host",)),
    "gpufleet_check_failed": ("1 for each check that failed", ("host", "check")),
    "gpufleet_matmul_tflops": ("Throughput of matrix products", ("host", "gpu", "stack")),
    "gpufleet_gpu_slow_nights":
        ("Nights in a row that a card is slower than its own past, where it is", ("host", "gpu")),
    "gpufleet_history_nights": ("Nights that the history holds", ()),
}


@dataclass(frozen=True)
class Run:
    """How a run went. `hosts` are the verdicts document's, None where nothing was judged."""

    finished: float
    last_success: float
    seconds: float
    troubles: Iterable[str] = ()
    nights: int | None = None
    hosts: Mapping[str, Mapping[str, Any]] | None = None
    # Of each host what `fleet.measures` measured.
    measures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # How many nights in a row a card is slow, by host and card.
    slow: Mapping[tuple[str, str], int] = field(default_factory=dict)


def text(run: Run) -> str:
    """The file's text."""
    registry = CollectorRegistry()
    gauges = {name: Gauge(name, said, labels, registry=registry)
              for name, (said, labels) in METRICS.items()
              if run.nights is not None or name != "gpufleet_history_nights"}
    gauges["gpufleet_last_run_timestamp_seconds"].set(run.finished)
    gauges["gpufleet_last_success_timestamp_seconds"].set(run.last_success)
    gauges["gpufleet_run_duration_seconds"].set(run.seconds)
    for step in run.troubles:
        gauges["gpufleet_run_trouble"].labels(step).set(1)
    if run.nights is not None:
        gauges["gpufleet_history_nights"].set(run.nights)
    if run.hosts is not None:
        _hosts(gauges, run.hosts)
    for host, values in run.measures.items():
        for name, value in values.items():
            found = _TFLOPS.fullmatch(name)
            if found and isinstance(value, int | float):
                stack = found["stack"] or f"cuda-{found['toolkit']}"
                gauges["gpufleet_matmul_tflops"].labels(host, found["gpu"], stack).set(value)
    for place, nights in run.slow.items():
        gauges["gpufleet_gpu_slow_nights"].labels(*place).set(nights)
    return generate_latest(registry).decode()


def _hosts(gauges: Mapping[str, Gauge], hosts: Mapping[str, Mapping[str, Any]]) -> None:
    found = [host["verdict"] for host in hosts.values()]
    for verdict in Verdict:
        gauges["gpufleet_hosts"].labels(verdict.value).set(found.count(verdict.value))
    for name, host in hosts.items():
        gauges["gpufleet_host_healthy"].labels(name).set(host["verdict"] == Verdict.PASS)
        for check in host["checks"]:
            if check["verdict"] in FAILING:
                gauges["gpufleet_check_failed"].labels(name, check["id"]).set(1)


def write(directory: Path, run: Run) -> None:
    """Put the file there by rename, readable by the exporter's user."""
    partial = directory / f".{FILE}.partial"
    partial.write_text(text(run), encoding="utf-8")
    partial.chmod(0o644)
    partial.replace(directory / FILE)
