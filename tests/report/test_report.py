"""The page and the summary: nothing is loaded, injected or missing."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from gpufleet.components.checks import CHECKS
from gpufleet.fleet.session import HostRun, Session
from gpufleet.judge import judge, table
from gpufleet.paths import PROGRAM, host_file_name
from gpufleet.report import directory as report
from gpufleet.report import summary
from tests.support.framework_stacks import with_frameworks_on_gpus
from tests.support.healthy_host import EXCUSED, Document, data, of_page, with_cards, with_driver

EVIL = "<script>alert('x')</script>\"&"


@pytest.fixture
def session(plan: Document, snapshot: Document) -> Session:
    """A healthy host, a broken one whose texts are hostile, one that is unreachable."""
    broken_plan, broken = copy.deepcopy(plan), copy.deepcopy(snapshot)
    broken_plan["host"] = broken["host"] = "gpu02"
    data(broken, "environment")["login"]["PYTHONPATH"] = EVIL
    return Session(
        [
            HostRun("gpu01", snapshot, plan, judge.judge(plan, snapshot)),
            HostRun("gpu02", broken, broken_plan, judge.judge(broken_plan, broken)),
            HostRun(
                "gpu03", None, plan, judge.unreachable("No route to host", "look at the cable")
            ),
        ],
        finished="now",
    )


def test_the_page_loads_nothing_from_anywhere(session: Session) -> None:
    page = report.render_page(session)
    assert not re.search(r"https?://|//\w|@import|url\(|<link|<img|<iframe|src=", page)


def test_texts_from_hosts_are_escaped(session: Session) -> None:
    page = report.render_page(session)
    assert EVIL not in page
    assert "&lt;script&gt;alert(" in page
    assert page.count("<script>") == 1


def test_the_page_has_every_host_and_check_with_cause_and_remedy(session: Session) -> None:
    page = report.render_page(session)
    assert of_page(page) == {
        (host.name, check["id"]): check["verdict"]
        for host in session.hosts
        for check in host.result["checks"]
    }
    assert "No route to host" in page and "look at the cable" in page
    assert "gpu_expect: {count: 0}" in page


@pytest.mark.parametrize(
    ("make", "driver"),
    [
        (with_driver, "are built for every kernel, and it is not loaded, without a GPU"),
        (with_cards, "are built for every kernel, and it is running"),
    ],
)
def test_the_summary_of_driver_and_containers(
    plan: Document, snapshot: Document, make: Callable[[Document, Document], None], driver: str
) -> None:
    make(plan, snapshot)
    verified = summary.verified_statements(
        Session([HostRun("gpu01", snapshot, plan, judge.judge(plan, snapshot))])
    )
    assert (
        f"Driver branch 535 is complete and held, its proprietary modules {driver} (gpu01)"
        in verified
    )
    assert "docker has NVIDIA's runtime and keeps containers running (gpu01)" in verified


def test_the_summary(session: Session) -> None:
    assert summary.headline(session) == "1 of 3 hosts healthy; 1 failed, 1 unreachable."
    verified = summary.verified_statements(session)
    assert (
        "tensorflow-2.13.1 multiplies matrices exactly on the CPU, not on a GPU (gpu01, gpu02)"
        in verified
    )
    skipped = summary.skipped_checks(session)
    assert {check: gap.declaration for gap in skipped for check in gap.check_ids} == EXCUSED
    assert {gap.hosts for gap in skipped} == {("gpu01", "gpu02")}
    assert [(each.hosts, list(each.checks)) for each in summary.issues(session)] == [
        (("gpu02",), ["environment.login"]),
        (("gpu03",), ["host.reachable"]),
    ]


def test_the_summary_says_where_a_stack_computed_and_whose_libraries_it_loads(
    plan: Document, snapshot: Document
) -> None:
    """Where no number of GPUs is declared, it is unknown whether all of them computed."""
    with_frameworks_on_gpus(plan, snapshot)
    plan["stacks"][0]["cuda_source"] = "pip"  # TensorFlow's, as of the others
    for count, where in (
        (2, "on every declared GPU"),
        (None, "on the devices that it lists, of which none is declared"),
    ):
        plan["expect"]["count"] = count
        result = judge.judge(plan, snapshot)
        for check in result["checks"]:
            if check["id"] in {"stack.matmul", "stack.release", "stack.libraries", "stack.mapped"}:
                check["verdict"] = "PASS"
        verified = summary.verified_statements(Session([HostRun("gpu01", snapshot, plan, result)]))
        for stack in plan["stacks"]:
            assert f"{stack['name']} multiplies matrices exactly {where} (gpu01)" in verified
            assert (
                f"{stack['name']} loads every CUDA and cuDNN library of its build, only from"
                " its own wheels (gpu01)" in verified
            )


def test_the_page_has_where_ansible_ran_and_why(session: Session) -> None:
    assert "Where Ansible ran" not in report.render_page(session)
    session.provisioned = {}
    assert "Ansible did not run: no host differed" in report.render_page(session)
    session.provisioned = {
        "gpu03": ["not judged: gpu03 is silent"],
        "gpu01": [f"install file {number}" for number in range(7)],
        "gpu02": [f"install file {number}" for number in range(7)],
    }
    assert [row[1] for row in summary.provision_reasons(session)] == [
        ("gpu01", "gpu02"),
        ("gpu03",),
    ]
    page = report.render_page(session)
    part = page[page.index('<h2 id="provisioned">') :]
    assert part.index("2 hosts") < part.index("install file 4") < part.index("and 2 more")
    assert "not judged: gpu03 is silent" in part


def test_nothing_that_failed_is_reported_as_verified(plan: Document, snapshot: Document) -> None:
    data(snapshot, "stacks")["stacks"][0]["framework"]["matmul"][0]["wrong"] = 1
    data(snapshot, "receipts")["receipts"] = []
    data(snapshot, "containers")["engine"] = None
    broken = Session([HostRun("gpu01", snapshot, plan, judge.judge(plan, snapshot))])
    assert summary.verified_statements(broken) == []


def test_documents_are_complete_and_can_be_judged_again(session: Session, tmp_path: Path) -> None:
    directory = report.create_directory(tmp_path / "reports")
    page = report.write_report(directory, session).value
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert json.loads((directory / "report.json").read_text()) == session.document
    assert sorted(p.name for p in (directory / "snapshots").iterdir()) == [
        "gpu01.json",
        "gpu02.json",
    ]
    assert sorted(p.name for p in (directory / "plans").iterdir()) == [
        "gpu01.json",
        "gpu02.json",
        "gpu03.json",
    ]
    assert not list(directory.rglob(".*"))


def test_latest_points_to_the_newest_and_names_do_not_collide(tmp_path: Path) -> None:
    first, second = report.create_directory(tmp_path), report.create_directory(tmp_path)
    assert first != second
    for directory in (first, second):
        assert report.update_latest(directory).resolve() == directory.resolve()
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([first.name, second.name, "latest"])


NAMES = (
    "../../etc/passwd",
    "a/b",
    "a_b",
    "a b",
    "a%2Fb",
    "a%b",
    ".hidden",
    "%2Ehidden",
    "_hidden",
    "hidden",
    ".",
    "..",
    "",
    "_",
    "%",
    "gpu01.example.org",
    "fd00::1",
    "fd00__1",
    "[fd00::1]",
    "ber\u00e4",
    "bera\u0308",
    "\udcff",
    "a\n",
    "a",
    "x" * 230,
    "x" * 231,
    "x" * 232,
    "x" * 231 + "y",
    "\u00fc" * 115,
    "\u00fc" * 116,
    "\u00fc" * 117,
    "/" * 90,
    "/" * 91,
)


def test_hosts_of_any_names_have_files_of_their_own() -> None:
    found = [host_file_name(name) for name in NAMES]
    assert len(set(found)) == len(NAMES)
    for name in found:
        assert name and "/" not in name and not name.startswith(".")
        # With the longest ending and the dot of a partial name.
        assert len(f".{name}.json.{'0' * 16}".encode()) <= 255


@pytest.mark.parametrize("name", ["gpu01.example.org", "a_b", "GPU-1", "ber\u00e4", "x" * 230])
def test_a_usual_name_is_its_files_name(name: str) -> None:
    assert host_file_name(name) == name


def test_displayed_remedies_have_the_inventory_and_documents_do_not(session: Session) -> None:
    session.hosts[1].result["checks"][0]["remedy"] = (
        "./gpufleet provision --limit gpu02; then ./gpufleet verify (see ./gpufleet report)"
    )
    session.inventory_args = "-i inventory/ours"
    remedy = session.for_display().hosts[1].result["checks"][0]["remedy"]
    assert remedy == (
        "./gpufleet provision -i inventory/ours --limit gpu02; then ./gpufleet verify"
        " -i inventory/ours (see ./gpufleet report)"
    )
    assert "-i inventory/ours" not in json.dumps(session.document)


def test_the_catalogue_has_every_check_with_its_statement() -> None:
    text, _, _ = table.markdown().partition("\n## ")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) == len(judge.CHECK_IDS)
    for check in CHECKS.values():
        assert f"| `{check.id}` | {check.statement} |" in text
        assert check.statement.endswith("."), check.id


@pytest.mark.parametrize(
    ("program", "inventory", "expected"),
    [
        ("./gpufleet", "", "./gpufleet provision --limit a; then ./gpufleet nightly"),
        ("gpufleet", "", "gpufleet provision --limit a; then gpufleet nightly"),
        ("gpufleet", "-i inv", "gpufleet provision -i inv --limit a; then gpufleet nightly"),
    ],
)
def test_remedies_have_the_name_and_inventory_of_the_call(
    program: str, inventory: str, expected: str
) -> None:
    session = Session(program=program, inventory_args=inventory)
    remedy = "./gpufleet provision --limit a; then ./gpufleet nightly"
    assert session.as_called(remedy) == expected


def test_remedies_of_an_image_repair_the_image_and_verify_its_host() -> None:
    session = Session(inventory_args="-i inv", provision_args="--chroot /srv/image")
    remedy = "./gpufleet provision --limit a; then ./gpufleet verify --limit a"
    assert session.as_called(remedy).split("; then ") == [
        f"{PROGRAM} provision -i inv --chroot /srv/image --limit a",
        f"{PROGRAM} verify -i inv --limit a",
    ]


def test_the_reader_of_a_remedy_learns_from_where_a_host_was_not_reached() -> None:
    session = Session(reached_from=("control1", "gpufleet"))
    assert session.as_called("try by hand: ssh -p 22 gpu01 true") == (
        "try by hand, on control1: sudo -u gpufleet -H ssh -p 22 gpu01 true"
    )
    assert session.as_called("on the host: systemctl restart ssh") == (
        "on the host: systemctl restart ssh"
    )
