"""Metrics: a file that Prometheus reads, rules and dashboard that ask for nothing else."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from gpufleet.catalog.network import Limit
from gpufleet.components.base.counters import Growth
from gpufleet.fleet import pull
from gpufleet.watch import metrics
from gpufleet.watch.fabric_history import latest_tests, record_fabric_test
from gpufleet.watch.history import History
from tests.support.nightly_sessions import fabric_test, group_test

PROMETHEUS = Path(__file__).resolve().parents[2] / "contrib" / "prometheus"
HOSTS = {
    "gpu01": {"verdict": "PASS", "checks": [{"id": "host.probe", "verdict": "PASS"}]},
    "gpu02": {
        "verdict": "FAIL",
        "checks": [
            {"id": "cudnn.files", "verdict": "FAIL"},
            {"id": "gpu.mig", "verdict": "NOT-DECLARED"},
        ],
    },
    "gpu03": {
        "verdict": "UNREACHABLE",
        "checks": [{"id": "host.reachable", "verdict": "UNREACHABLE"}],
    },
    "gpu04": {
        "verdict": "INCONCLUSIVE",
        "checks": [{"id": "host.probe", "verdict": "INCONCLUSIVE"}],
    },
}


def read(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """The labels and values of each metric."""
    return {
        family.name: [(sample.labels, sample.value) for sample in family.samples]
        for family in text_string_to_metric_families(text)
    }


def test_hosts_checks_and_throughput(tmp_path: Path) -> None:
    metrics.write(
        tmp_path,
        metrics.Run(
            200.0,
            200.0,
            12.5,
            (),
            30,
            HOSTS,
            {
                "gpu01": {
                    "gpu.GPU-1.stack.tensorflow-2.13.1.tflops": 33.5,
                    "gpu.GPU-1.toolkit.11.8.tflops": 34.4,
                    "driver.version": "535.261.03",
                    "gpu.GPU-1.temperature_c": 31.0,
                }
            },
            {("gpu01", "GPU-1", "gpu.throughput"): 2},
            {"gpu01": 1_800_000_000},
        ),
    )
    assert [path.name for path in tmp_path.iterdir()] == ["gpufleet.prom"]
    assert (tmp_path / "gpufleet.prom").stat().st_mode & 0o777 == 0o644
    found = read((tmp_path / "gpufleet.prom").read_text())
    assert found["gpufleet_last_success_timestamp_seconds"] == [({}, 200.0)]
    assert ({"verdict": "HUNG"}, 0.0) in found["gpufleet_hosts"]
    assert ({"verdict": "FAIL"}, 1.0) in found["gpufleet_hosts"]
    assert {labels["host"]: value for labels, value in found["gpufleet_host_healthy"]} == {
        "gpu01": 1,
        "gpu02": 0,
        "gpu03": 0,
        "gpu04": 0,
    }
    assert found["gpufleet_check_failed"] == [
        ({"host": "gpu02", "check": "cudnn.files"}, 1.0),
        ({"host": "gpu03", "check": "host.reachable"}, 1.0),
    ]
    assert found["gpufleet_contents_read_timestamp_seconds"] == [
        ({"host": "gpu01"}, 1_800_000_000.0)
    ]
    assert found["gpufleet_gpu_slow_nights"] == [
        ({"host": "gpu01", "gpu": "GPU-1", "check": "gpu.throughput"}, 2.0)
    ]
    assert found["gpufleet_matmul_tflops"] == [
        ({"host": "gpu01", "gpu": "GPU-1", "stack": "tensorflow-2.13.1"}, 33.5),
        ({"host": "gpu01", "gpu": "GPU-1", "stack": "cuda-11.8"}, 34.4),
    ]


GUIDS = [f"a088c20300ab000{number}" for number in range(4)]
PORTS = "; ".join(
    f"{GUIDS[number]} mlx5_{number} {row}"
    for number, row in enumerate(
        (
            "compute InfiniBand up 400",
            "compute InfiniBand down 10",
            "storage Ethernet ? -",
            "- InfiniBand up -",
        )
    )
)


def of_fabric(**more: Any) -> dict[str, list[tuple[dict[str, str], float]]]:
    """The metrics of a host with four ports and two GPUs."""
    measures = {
        "ports": PORTS,
        "gpus": "0000:01:00.0 GPU-1 NVIDIA H100; 0000:02:00.0 - NVIDIA H100",
        "nvlinks": "0000:01:00.0 18; 0000:02:00.0 12",
    }
    run = metrics.Run(200.0, 200.0, 1.0, (), 2, HOSTS, {"gpu01": measures}, **more)
    return read(metrics.text(run))


def test_ports_and_nvlinks_have_a_value_where_they_were_read() -> None:
    found = of_fabric()
    assert found["gpufleet_port_up"] == [
        ({"host": "gpu01", "port": "mlx5_0", "role": "compute"}, 1.0),
        ({"host": "gpu01", "port": "mlx5_1", "role": "compute"}, 0.0),
        ({"host": "gpu01", "port": "mlx5_3", "role": ""}, 1.0),
    ]
    assert found["gpufleet_port_rate_bytes_per_second"] == [
        ({"host": "gpu01", "port": "mlx5_0", "role": "compute"}, 50e9)
    ]
    assert found["gpufleet_nvlinks_active"] == [
        ({"host": "gpu01", "gpu": "GPU-1"}, 18.0),
        ({"host": "gpu01", "gpu": "0000:02:00.0"}, 12.0),
    ]
    assert not found["gpufleet_port_errors_per_hour"]


def test_only_counters_that_grow_have_a_rate() -> None:
    limit = Limit(120, 3600, fatal=True)
    grown = [
        Growth("symbol_error", "known", 480.0, 7200.0, limit),
        Growth("port_rcv_errors", "known", 2.0, 7200.0),
        Growth("link_downed", "known", 0.0, 7200.0),
        Growth("roce_slow_restart", "reset", None, 7200.0),
    ]
    links = [Growth("replay", "known", 4.0, 7200.0), Growth("crc", "known", 0.0, 7200.0)]
    found = of_fabric(
        port_growth={
            ("gpu01", GUIDS[1]): grown,
            ("gpu02", GUIDS[1]): grown,
            ("gpu01", "GPU-1"): links,
        }
    )
    assert found["gpufleet_nvlink_errors_per_hour"] == [
        ({"host": "gpu01", "gpu": "GPU-1", "counter": "replay"}, 2.0)
    ]
    port = {"host": "gpu01", "port": "mlx5_1"}
    assert found["gpufleet_port_errors_per_hour"] == [
        ({**port, "counter": "symbol_error"}, 240.0),
        ({**port, "counter": "port_rcv_errors"}, 1.0),
    ]
    assert found["gpufleet_port_errors_beyond_limit"] == [({**port, "counter": "symbol_error"}, 1)]


def test_the_last_fabric_test_of_each_scope_is_shown(tmp_path: Path) -> None:
    sizes = {"operation": "all_reduce", "seconds": 1, "wrong": 0}
    with History(tmp_path / "history.sqlite") as history:
        for night, rate in ((0, 200.0), (1, 300.0)):
            record_fabric_test(
                history,
                fabric_test(
                    night,
                    "pairs",
                    group_test(1, "passed", 400.0, "a", "b"),
                    group_test(2, "slow", rate, "b", "c"),
                    group_test(3, "hung", None, "a", "c"),
                    verdict="FAIL",
                ),
            )
        record_fabric_test(
            history,
            fabric_test(
                0,
                "all",
                group_test(1, "not judged", 350.0, "a", "b", "c"),
                group_test(2, "passed", 390.0, "a", "b"),
                verdict="INCONCLUSIVE",
                results=[
                    {**sizes, "bytes": 8, "gb_per_s": 0.1},
                    {**sizes, "bytes": 512 << 20, "gb_per_s": 350.0},
                ],
            ),
        )
        found = of_fabric(fabric_tests=latest_tests(history))
    assert found["gpufleet_fabric_test_verdict"] == [
        ({"scope": "pairs", "verdict": "FAIL"}, 1),
        ({"scope": "all", "verdict": "INCONCLUSIVE"}, 1),
    ]
    times = {row["scope"]: at for row, at in found["gpufleet_fabric_test_timestamp_seconds"]}
    assert times["pairs"] - times["all"] == 86400
    assert {
        (row["scope"], row["host"]): rate
        for row, rate in found["gpufleet_fabric_bus_bandwidth_bytes_per_second"]
    } == {("pairs", "a"): 400e9, ("pairs", "b"): 300e9, ("pairs", "c"): 300e9, ("all", ""): 350e9}


def test_a_run_that_judged_nothing_calls_no_host_healthy() -> None:
    found = read(metrics.text(metrics.Run(200.0, 100.0, 3.0, ("look",))))
    assert found["gpufleet_last_run_timestamp_seconds"] == [({}, 200.0)]
    assert found["gpufleet_last_success_timestamp_seconds"] == [({}, 100.0)]
    assert found["gpufleet_run_trouble"] == [({"step": "look"}, 1.0)]
    assert not found.get("gpufleet_host_healthy") and not found.get("gpufleet_hosts")
    assert "gpufleet_history_nights" not in found


def queries(document: Any) -> list[str]:
    """Every query in a dashboard or in rules."""
    if isinstance(document, dict):
        own = [
            value
            for key, value in document.items()
            if key in {"expr", "query"} and isinstance(value, str)
        ]
        return own + [query for value in document.values() for query in queries(value)]
    if isinstance(document, list):
        return [query for value in document for query in queries(value)]
    return []


@pytest.mark.parametrize("name", ["alerts.yml", "dashboard.json"])
def test_every_query_asks_for_metrics_that_are_written(name: str) -> None:
    found = queries(yaml.safe_load((PROMETHEUS / name).read_text()))
    asked = [set(re.findall(r"gpufleet_\w+", query)) for query in found if query != "prometheus"]
    assert len(asked) >= 6 and all(asked)
    pulled = pull.metrics({"host": "gpu01", "result": {"verdict": "PASS", "checks": []}}, 1.0)
    assert set().union(*asked) <= {*metrics.METRICS, *re.findall(r"(?m)^gpufleet_\w+", pulled)}


def test_the_dashboard_shows_every_metric() -> None:
    text = (PROMETHEUS / "dashboard.json").read_text()
    assert [name for name in metrics.METRICS if name not in text] == []
    panels = json.loads(text)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)


@pytest.mark.costly
@pytest.mark.parametrize(
    "words", [["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]]
)
def test_promtool_accepts_the_rules_and_their_stories(words: list[str]) -> None:
    promtool = shutil.which("promtool")
    if not promtool:
        pytest.skip("there is no promtool: Debian's package prometheus has it")
    done = subprocess.run(
        [promtool, *words], cwd=PROMETHEUS, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


def test_every_alert_has_its_story() -> None:
    alerts = {
        rule["alert"]
        for group in yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"]
        for rule in group["rules"]
    }
    fired = {
        row["alertname"]
        for story in yaml.safe_load((PROMETHEUS / "alerts_test.yml").read_text())["tests"]
        for row in story["alert_rule_test"]
        if row["exp_alerts"]
    }
    assert fired == alerts
