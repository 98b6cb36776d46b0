"""Prometheus metrics as one file for node_exporter's textfile collector; also of a failed run.

A run that did not judge the hosts writes no metrics of them: old values could be wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from gpufleet.components.base.counters import Growth
from gpufleet.documents.verdict import HostResult, Verdict
from gpufleet.files import write_file

from . import port_states, versions
from .fabric_history import FIRST, RecordedBandwidth, RecordedTest
from .port_states import PORTS
from .retention import read_time
from .silences import end_of, sounding_verdict

FILE = "gpufleet.prom"
FAILING = {Verdict.FAIL, Verdict.HUNG, Verdict.UNREACHABLE}
_TFLOPS = re.compile(
    r"gpu\.(?P<gpu>[^.]+)\.(?:stack\.(?P<stack>.+)|toolkit\.(?P<toolkit>.+))\.tflops"
)

# Name -> help text and labels.
METRICS: dict[str, tuple[str, tuple[str, ...]]] = {
    "gpufleet_last_run_timestamp_seconds": (
        "Time at which the last nightly run ended, successful or not",
        (),
    ),
    "gpufleet_last_success_timestamp_seconds": (
        "Time of the last nightly run without a failed step, whatever its verdicts; 0: never",
        (),
    ),
    "gpufleet_run_duration_seconds": ("Duration of the last nightly run", ()),
    "gpufleet_run_trouble": ("1 for each failed step of the last nightly run", ("step",)),
    "gpufleet_hosts": ("Hosts by verdict", ("verdict",)),
    "gpufleet_host_healthy": ("1 if the host is healthy, 0 if not", ("host",)),
    "gpufleet_check_failed": ("1 for each check that failed", ("host", "check")),
    "gpufleet_check_explained": (
        "1 for each failed check that the finding of another one (by) explains",
        ("host", "check", "by"),
    ),
    "gpufleet_check_silenced_until_timestamp_seconds": (
        "End of the silence of a check of which all that is found is silenced",
        ("host", "check"),
    ),
    "gpufleet_host_silenced_until_timestamp_seconds": (
        "Earliest end of the silences of an unhealthy host of which all that is found is silenced",
        ("host",),
    ),
    "gpufleet_matmul_tflops": ("Throughput of matrix products", ("host", "gpu", "stack")),
    "gpufleet_gpu_slow_nights": (
        "Nights in a row that a card is slower than its siblings or than before; absent if it is"
        ' not, and where it was not measured; gpu="all": all cards of the host',
        ("host", "gpu", "check"),
    ),
    "gpufleet_port_up": (
        "1 if a port of an RDMA device has a link, 0 if not; absent where it was not read",
        ("host", "port", "role"),
    ),
    "gpufleet_port_rate_bytes_per_second": (
        "Rate of a port that has a link",
        ("host", "port", "role"),
    ),
    "gpufleet_port_errors_per_hour": (
        "Growth of an error counter since the run before; absent if it did not grow, or is unknown",
        ("host", "port", "counter"),
    ),
    "gpufleet_port_errors_beyond_limit": (
        "1 for each error counter that grows faster than its limit",
        ("host", "port", "counter"),
    ),
    "gpufleet_nvlinks_active": (
        "Active NVLinks of a GPU; absent where the state of one was not read",
        ("host", "gpu"),
    ),
    "gpufleet_nvlink_errors_per_hour": (
        "Growth of an error counter of a GPU's NVLinks since the run before; absent if it did not"
        " grow, or is unknown",
        ("host", "gpu", "counter"),
    ),
    "gpufleet_fabric_test_timestamp_seconds": ("Start of the last fabric test", ("scope",)),
    "gpufleet_fabric_test_verdict": ("1 for the verdict of the last test", ("scope", "verdict")),
    "gpufleet_fabric_bus_bandwidth_bytes_per_second": (
        "Bus bandwidth of the largest size in the last fabric test: of all hosts together (host is"
        " empty), of a host alone, of the slowest pair with a host",
        ("scope", "collective", "host"),
    ),
    "gpufleet_host_state": (
        "1 for the state of a host: new, commissioning, production, quarantined, returned",
        ("host", "state"),
    ),
    "gpufleet_contents_read_timestamp_seconds": (
        "Time since which the contents of all that is installed were compared: the oldest whole"
        " reading of a component, or the begin of its first one",
        ("host",),
    ),
    "gpufleet_history_nights": ("Runs in the history", ()),
}


@dataclass(frozen=True)
class Run:
    """The result of a run. `hosts` are the verdicts document's, None if nothing was judged."""

    finished: float
    last_success: float
    seconds: float
    troubles: Iterable[str] = ()
    nights: int | None = None
    hosts: Mapping[str, HostResult] | None = None
    # By host, its `measures()`.
    measures: Mapping[str, Mapping[str, float | str]] = field(default_factory=dict)
    # By host, card and the check that says so, how many nights in a row the card is slow.
    slow: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    # By host, the oldest whole reading of a component.
    contents_read: Mapping[str, int] = field(default_factory=dict)
    # By host and port GUID, or UUID of a GPU, the growth of error counters since the run before.
    port_growth: Mapping[tuple[str, str], Sequence[Growth]] = field(default_factory=dict)
    # The newest fabric test of each scope.
    fabric_tests: Mapping[RecordedTest, Sequence[RecordedBandwidth]] = field(default_factory=dict)
    # By host and check, when the silence of all that is found of it ends.
    silenced: Mapping[tuple[str, str], int] = field(default_factory=dict)
    # By host, its state.
    states: Mapping[str, str] = field(default_factory=dict)


def text(run: Run) -> str:
    """Return the file's text."""
    registry = CollectorRegistry()
    gauges = {
        name: Gauge(name, help_text, labels, registry=registry)
        for name, (help_text, labels) in METRICS.items()
        if run.nights is not None or name != "gpufleet_history_nights"
    }
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
        _ports(gauges, host, values, run.port_growth)
        _nvlinks(gauges, host, values)
    for (host, owner), grown in run.port_growth.items():
        if owner.startswith("GPU-"):
            for each in grown:
                if each.growth:
                    gauge = gauges["gpufleet_nvlink_errors_per_hour"]
                    gauge.labels(host, owner, each.counter).set(_per_hour(each))
    for test, bandwidths in run.fabric_tests.items():
        _fabric_test(gauges, test, bandwidths)
    for card, nights in run.slow.items():
        gauges["gpufleet_gpu_slow_nights"].labels(*card).set(nights)
    for check, until in run.silenced.items():
        gauges["gpufleet_check_silenced_until_timestamp_seconds"].labels(*check).set(until)
    for host, state in run.states.items():
        gauges["gpufleet_host_state"].labels(host, state).set(1)
    for host, read in run.contents_read.items():
        gauges["gpufleet_contents_read_timestamp_seconds"].labels(host).set(read)
    return generate_latest(registry).decode()


def _hosts(gauges: Mapping[str, Gauge], hosts: Mapping[str, HostResult]) -> None:
    found = [host["verdict"] for host in hosts.values()]
    for verdict in Verdict:
        gauges["gpufleet_hosts"].labels(verdict.value).set(found.count(verdict.value))
    for name, host in hosts.items():
        gauges["gpufleet_host_healthy"].labels(name).set(host["verdict"] == Verdict.PASS)
        ends = [end_of(check["silenced"]) for check in host["checks"] if "silenced" in check]
        if ends and sounding_verdict(host) == Verdict.PASS:
            gauges["gpufleet_host_silenced_until_timestamp_seconds"].labels(name).set(min(ends))
        for check in host["checks"]:
            if check["verdict"] in FAILING:
                gauges["gpufleet_check_failed"].labels(name, check["id"]).set(1)
                if cause := check.get("explained_by"):
                    gauges["gpufleet_check_explained"].labels(name, check["id"], cause).set(1)


def _ports(
    gauges: Mapping[str, Gauge],
    host: str,
    values: Mapping[str, float | str],
    port_growth: Mapping[tuple[str, str], Sequence[Growth]],
) -> None:
    for guid, port in port_states.states(str(values.get(PORTS, ""))).items():
        if port.state == port_states.NOT_READ:
            continue
        up = port.state == port_states.UP
        gauges["gpufleet_port_up"].labels(host, port.name, port.role).set(up)
        if up and port.gb_s is not None:
            rate = gauges["gpufleet_port_rate_bytes_per_second"]
            rate.labels(host, port.name, port.role).set(port.gb_s * 1e9 / 8)
        for each in port_growth.get((host, guid), ()):
            if each.growth:
                labels = host, port.name, each.counter
                gauges["gpufleet_port_errors_per_hour"].labels(*labels).set(_per_hour(each))
                if each.limit:
                    gauges["gpufleet_port_errors_beyond_limit"].labels(*labels).set(1)


def _per_hour(grown: Growth) -> float:
    return (grown.growth or 0) / grown.seconds * 3600


def _nvlinks(gauges: Mapping[str, Gauge], host: str, values: Mapping[str, float | str]) -> None:
    cards = versions.cards(str(values.get("gpus", "")))
    uuids = {address: uuid for uuid, (address, _) in cards.items()}
    for address, count in versions.links(str(values.get("nvlinks", ""))).items():
        gauges["gpufleet_nvlinks_active"].labels(host, uuids.get(address, address)).set(count)


def _fabric_test(
    gauges: Mapping[str, Gauge], test: RecordedTest, bandwidths: Sequence[RecordedBandwidth]
) -> None:
    started = read_time(test.started).timestamp()
    gauges["gpufleet_fabric_test_timestamp_seconds"].labels(test.scope).set(started)
    gauges["gpufleet_fabric_test_verdict"].labels(test.scope, test.verdict.value).set(1)
    together = test.scope == "all"
    rows = [row for row in bandwidths if row.number == FIRST or not together]
    largest: dict[str, int] = {}
    for row in rows:
        largest[row.collective] = max(row.bytes, largest.get(row.collective, 0))
    least: dict[tuple[str, str], float] = {}
    for row in rows:
        if row.gb_per_s is None or row.bytes < largest[row.collective]:
            continue
        for host in ("",) if together else row.hosts:
            key = row.collective, host
            least[key] = min(row.gb_per_s, least.get(key, row.gb_per_s))
    gauge = gauges["gpufleet_fabric_bus_bandwidth_bytes_per_second"]
    for (collective, host), rate in least.items():
        gauge.labels(test.scope, collective, host).set(rate * 1e9)


def write(directory: Path, run: Run) -> None:
    """Write the file, readable by the exporter's user."""
    write_file(directory / FILE, text(run), 0o644)
