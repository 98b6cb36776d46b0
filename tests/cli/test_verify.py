"""The command line: streams, exit status, and that pytest itself runs the same suite."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from gpufleet.components.checks import CHECKS, PAIR_CHECKS
from gpufleet.fleet.suite import name_of_test
from gpufleet.judge import judge
from tests.support.command_line import PLAN, ROOT, SNAPSHOT, run, run_process
from tests.support.healthy_host import EXCUSED, Document, data, document, of_page


@pytest.fixture
def broken(tmp_path: Path, snapshot: Document) -> str:
    """A snapshot of a host whose cuDNN header is of another version."""
    data(snapshot, "cudnn")["trees"][0]["headers"][0]["version"] = "8.9.7"
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(snapshot))
    return str(path)


def test_a_healthy_snapshot_ends_with_0_and_says_what_holds(tmp_path: Path) -> None:
    ended = run_process("verify", "--snapshot", SNAPSHOT, "--plan", PLAN, "--report", str(tmp_path))
    taken = "Saved snapshots, taken 2026-11-20T12:00:09Z"
    assert taken in ended.stdout
    (page,) = tmp_path.rglob("report.html")
    assert f"{taken}; judged <time>" in page.read_text()
    assert ended.returncode == 0, ended.stderr
    assert "✓ cudnn.links" not in ended.stdout
    assert not [line for line in ended.stdout.splitlines() if line != line.rstrip()]
    assert "gpu_expect: {count: 0}" in ended.stdout
    last = ended.stdout.rstrip().splitlines()[-1]
    assert last == f"Report: {tmp_path}/latest/report.html"
    assert (tmp_path / "latest" / "report.html").exists()


def test_verbose_lists_the_checks_of_a_healthy_host(tmp_path: Path) -> None:
    ended = run("verify", "--snapshot", SNAPSHOT, "--plan", PLAN, "--report", str(tmp_path), "-v")
    assert "✓ cudnn.links" in ended.stdout


def test_junit_is_pytests_own(tmp_path: Path, broken: str) -> None:
    ended = run("verify", "--snapshot", broken, "--plan", PLAN, "--report", str(tmp_path))
    assert ended.returncode == 1
    suite = ET.parse(tmp_path / "latest" / "junit.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == (
        str(len(CHECKS)),
        "1",
        str(len(EXCUSED)),
    )
    failed = [case for case in suite if case.find("failure") is not None]
    assert [case.get("name") for case in failed] == ["test_present[gpu01]"]
    message = failed[0].find("failure")
    assert message is not None and "declared is 8.6.0" in (message.text or "")


def test_json_is_one_document_and_nothing_else(tmp_path: Path, broken: str) -> None:
    ended = run("verify", "--json", "--snapshot", broken, "--plan", PLAN, "--report", str(tmp_path))
    assert ended.returncode == 1
    document = json.loads(ended.stdout)
    assert list(document) == ["schema", "started", "finished", "hosts", "summary"]
    assert document["hosts"]["gpu01"]["verdict"] == "FAIL"
    assert document == json.loads((tmp_path / "latest" / "report.json").read_text())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-i", "/nowhere"], "The inventory does not exist."),
        (["-i", "gpu01,", "--limit", "gpu09"], "No host matches"),
        (["--snapshot", "/nowhere.json"], "cannot be read"),
        (["--snapshot", SNAPSHOT, "-i", "other,"], "There is no plan for gpu01"),
        (["-i", "gpu01,", "--fanout", "0"], "more than 0"),
        (["-i", "gpu01,gpu02", "--pair", "gpu01,gpu09"], "gpu09 is not among the hosts"),
        (["-i", "gpu01,gpu02", "--pairs"], "have no stack of the same release of a framework"),
        (["--snapshot", SNAPSHOT, "--pairs"], "have their pairs in them"),
        (["-i", "gpu01,", "--plan", PLAN], "used with a saved snapshot only"),
        (["-i", "gpu01,", "--pulled", "/tmp", "--pulled-age", "nan"], "no number of hours"),
        (["-i", "gpu01,", "--pulled", "/tmp", "--pulled-age", "1e12"], "no number of hours"),
    ],
)
def test_usage_and_configuration_end_with_4(tmp_path: Path, words: list[str], message: str) -> None:
    ended = run("verify", "--json", *words, "--report", str(tmp_path))
    assert ended.returncode == 4
    assert message in json.loads(ended.stdout)["problems"][0]["message"]
    assert "Traceback" not in ended.stderr


def test_an_option_that_not_even_pytest_knows_ends_with_4(tmp_path: Path) -> None:
    ended = run(
        "verify",
        "--snapshot",
        SNAPSHOT,
        "--plan",
        PLAN,
        "--report",
        str(tmp_path),
        "--no-such-option",
    )
    assert ended.returncode == 4
    assert "--no-such-option" in ended.stderr


def test_hosts_that_met_have_their_checks_in_every_report(
    tmp_path: Path, plan: Document, snapshot: Document
) -> None:
    snapshot["pairs"] = document("pairs.json")
    plan["pairs"] = [
        {"with": "gpu02", "gpus": 0, "stacks": [{"name": "tensorflow-2.13.1", "release": "2.13.1"}]}
    ]
    for name, content in (("snapshot", snapshot), ("plan", plan)):
        (tmp_path / name).write_text(json.dumps(content))
    ended = run(
        "verify",
        "--snapshot",
        str(tmp_path / "snapshot"),
        "--plan",
        str(tmp_path / "plan"),
        "--report",
        str(tmp_path),
        "--verbose",
    )
    assert ended.returncode == 0, ended.stderr
    assert "✓ pair.parameter-server" in ended.stdout
    assert "TensorFlow 2.13.1 computes exactly in a distributed run with gpu02" in ended.stdout
    latest = tmp_path / "latest"
    names = [case.get("name") for case in ET.parse(latest / "junit.xml").getroot()[0]]
    shown = of_page((latest / "report.html").read_text())
    for check in PAIR_CHECKS:
        assert f"{name_of_test(check)}[gpu01]" in names
        assert ("gpu01", check) in shown


def test_saved_documents_can_be_judged_again(tmp_path: Path, broken: str) -> None:
    first = run(
        "verify",
        "--snapshot",
        broken,
        "--plan",
        PLAN,
        "--report",
        str(tmp_path / "r"),
        "--save",
        str(tmp_path / "s"),
    )
    assert "review the files before you send" in first.stderr
    for words in (
        [
            "--snapshot",
            f"{tmp_path}/s/snapshots/host1.json",
            "--plan",
            f"{tmp_path}/s/plans/host1.json",
        ],
        ["--snapshot", f"{tmp_path}/s/bundles/host1.json"],
    ):
        again = run("verify", "--json", *words, "--report", str(tmp_path / "r"))
        assert first.returncode == again.returncode == 1
        assert json.loads(again.stdout)["summary"]["FAIL"] == 1
    assert "gpu01" not in "".join(p.read_text() for p in (tmp_path / "s").rglob("*.json"))


def test_an_unreachable_host_is_one_item_and_one_check(tmp_path: Path) -> None:
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(
        "gpu_hosts: {hosts: {gone: {ansible_host: 127.0.0.1, ansible_port: 1,"
        " gpu_expect: {count: 0}}}}"
    )
    ended = run("verify", "--json", "-i", str(inventory), "--report", str(tmp_path / "r"))
    assert ended.returncode == 1, ended.stderr
    host = json.loads(ended.stdout)["hosts"]["gone"]
    assert [check["id"] for check in host["checks"]] == ["host.reachable"]
    suite = ET.parse(tmp_path / "r/latest/junit.xml").getroot()[0]
    assert [case.get("name") for case in suite] == ["test_reachable[gone]"]


def test_pytest_alone_judges_saved_documents(broken: str) -> None:
    ended = run(
        "pytest",
        "verify",
        "--gpu-snapshot",
        broken,
        "--gpu-plan",
        PLAN,
        "-p",
        "no:cacheprovider",
        "-v",
    )
    assert ended.returncode == 1
    assert "verify/test_cudnn.py::test_links[gpu01] PASSED" in ended.stdout
    assert "verify/test_cudnn.py::test_present[gpu01] FAILED" in ended.stdout
    passed = len(CHECKS) - len(EXCUSED) - 1
    assert f"1 failed, {passed} passed, {len(EXCUSED)} skipped" in ended.stdout
    assert "remedy: ./gpufleet provision --limit gpu01" in ended.stdout
    assert "not declared: gpu_expect: {count: 0}" in ended.stdout
    assert "test_cudnn.py:1" not in ended.stdout.split("FAILURES")[1].split("short test")[0]


def test_pytest_alone_probes_the_hosts_of_an_inventory(tmp_path: Path) -> None:
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(
        "gpu_hosts: {hosts: {here: {ansible_connection: local, ansible_become: false,"
        f" gpu_prefix: {tmp_path}, gpu_stack_root: {tmp_path}}}}}}}"
    )
    ended = run(
        "pytest", "verify", f"--ansible-inventory={inventory}", "-p", "no:cacheprovider", "-v"
    )
    assert "test_host.py::test_disk[here] PASSED" in ended.stdout, ended.stdout
    assert "test_stack.py::test_matmul[here] SKIPPED" in ended.stdout
    assert "test_reachable" not in ended.stdout
    # Nothing is declared of it, so that it is not healthy, whatever else passes.
    assert "Nothing is declared for this host" in ended.stdout
    # The clock of a machine that tests are run on may be set by nobody.
    failed = set(re.findall(r"test_(\w+)\[here\] FAILED", ended.stdout))
    assert failed == {"plan", *({"probe"} & failed)}
    assert ended.returncode == 1


def test_a_mistake_in_the_call_is_one_document_too(tmp_path: Path) -> None:
    ended = run("verify", "--json", "--fanout", "many")
    assert (ended.returncode, json.loads(ended.stdout)["problems"][0]["code"]) == (
        4,
        "configuration",
    )


def test_a_report_that_cannot_be_written_is_printed_before_the_probe(broken: str) -> None:
    ended = run("verify", "--snapshot", broken, "--plan", PLAN, "--report", "/proc/x")
    assert (ended.returncode, "Traceback" in ended.stderr) == (4, False)
    assert "--report DIR" in ended.stderr


def test_a_directory_in_place_of_the_latest_report_is_refused(tmp_path: Path, broken: str) -> None:
    reports = tmp_path / "reports"
    (reports / "latest").mkdir(parents=True)
    ended = run("verify", "--snapshot", broken, "--plan", PLAN, "--report", str(reports))
    assert (ended.returncode, "Traceback" in ended.stderr) == (4, False)
    assert f"{reports}/latest: It is a directory" in ended.stderr
    assert [path.name for path in reports.iterdir()] == ["latest"]


def test_what_is_saved_is_of_one_run(tmp_path: Path, broken: str) -> None:
    saved = tmp_path / "saved"
    (saved / "plans").mkdir(parents=True)
    (saved / "plans" / "mine.json").write_text('{"of": "somebody else"}')
    for kind in ("bundles", "plans", "snapshots"):
        (saved / kind).mkdir(exist_ok=True)
        (saved / kind / "host9.json").write_text('{"schema": 1, "host": "host9"}')
    run("verify", "--snapshot", broken, "--plan", PLAN, "--save", str(saved), "--report",
        str(tmp_path / "reports"))  # fmt: skip
    assert [path.name for path in (saved / "snapshots").iterdir()] == ["host1.json"]
    assert sorted(path.name for path in (saved / "plans").iterdir()) == ["host1.json", "mine.json"]


def test_an_option_of_pytest_keeps_its_value(tmp_path: Path, broken: str) -> None:
    ended = run(
        "verify", "--snapshot", broken, "--plan", PLAN, "--report", str(tmp_path), "-k", "matmul"
    )
    assert ended.returncode == 1


def test_a_name_that_is_no_unicode_does_not_end_the_run(tmp_path: Path, broken: str) -> None:
    document = json.loads(Path(broken).read_text(encoding="utf-8"))
    document["sections"]["linker"]["data"]["files"].append(
        {"path": "/etc/ld.so.conf.d/\udcff.conf", "directories": ["\udcff"]}
    )
    odd = tmp_path / "odd.json"
    odd.write_text(json.dumps(document), encoding="utf-8")
    ended = run("verify", "--snapshot", str(odd), "--plan", PLAN, "--report", str(tmp_path / "r"))
    assert (ended.returncode, "Traceback" in ended.stderr) == (1, False)


def test_a_host_that_is_no_name_is_refused(tmp_path: Path) -> None:
    odd = tmp_path / "odd.json"
    odd.write_text('{"schema": 1, "host": ["x"], "sections": {}}', encoding="utf-8")
    assert run("verify", "--snapshot", str(odd)).returncode == 4


def test_the_table_of_checks_is_printed() -> None:
    ended = run("checks-table")
    assert ended.returncode == 0
    assert ended.stdout.startswith("| check | what must hold |")


def test_plan_without_probing_refuses_with_4_and_the_reason(tmp_path: Path) -> None:
    inventory = tmp_path / "hosts.yml"
    inventory.write_text('gpu_hosts: {hosts: {gpu01: {gpu_stacks: [{tensorflow: "9.9"}]}}}')
    ended = run("plan", "--offline", "--json", "-i", str(inventory))
    assert ended.returncode == 4, ended.stderr
    plan = json.loads(ended.stdout)["hosts"]["gpu01"]
    assert plan["problems"][0]["where"] == "gpu_stacks[0].tensorflow"
    assert plan["changes"] is None


@pytest.mark.parametrize(
    ("args", "checks"),
    [
        (["verify/test_cudnn.py"], {name for name in CHECKS if name.startswith("cudnn.")}),
        (
            ["verify/test_cudnn.py", "verify/test_linker.py", "-k", "linker.cache or cudnn.links"],
            {"cudnn.links", "linker.cache"},
        ),
        (["verify", "-m", "deep"], {name for name, check in CHECKS.items() if check.deep}),
        (["verify", "-k", "gpu.count"], {"gpu.count"}),
    ],
)
def test_pytest_runs_the_selected_areas_alone(
    tmp_path: Path, args: list[str], checks: set[str]
) -> None:
    ended = run(
        "pytest",
        *args,
        "--gpu-snapshot",
        SNAPSHOT,
        "--gpu-plan",
        PLAN,
        "-p",
        "no:cacheprovider",
        f"--junitxml={tmp_path}/junit.xml",
    )
    assert ended.returncode == 0, ended.stdout
    cases = {
        (case.get("classname"), case.get("name"))
        for case in ET.parse(tmp_path / "junit.xml").getroot()[0]
    }
    assert cases == {
        (f"verify.test_{name.partition('.')[0]}", f"{name_of_test(name)}[gpu01]") for name in checks
    }


def test_each_area_has_a_file_and_each_check_is_in_one() -> None:
    second_opinion = "test_smoke"
    assert {path.stem for path in (ROOT / "verify").glob("test_*.py")} - {second_opinion} == {
        f"test_{area}" for area in judge.AREAS
    }
    assert all(name.partition(".")[0] in judge.AREAS for name in judge.CHECK_IDS)


@pytest.mark.parametrize("args", [["verify/test_cudnn.py"], ["verify", "-k", "cudnn.links"]])
def test_an_unreachable_host_fails_the_areas_that_were_selected(
    tmp_path: Path, args: list[str]
) -> None:
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(
        "gpu_hosts: {hosts: {gone: {ansible_host: 127.0.0.1, ansible_port: 1,"
        " gpu_expect: {count: 0}}}}"
    )
    ended = run("pytest", *args, f"--ansible-inventory={inventory}", "-p", "no:cacheprovider")
    assert ended.returncode == 1, ended.stdout
    assert "UNREACHABLE: The host" in ended.stdout
    figures = ended.stdout.splitlines()[-1]
    assert "1 failed" in figures and "passed" not in figures
