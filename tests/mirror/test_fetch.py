"""A mirror comes whole and checked, each file once; what cannot come is named with its remedy."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from gpufleet.mirror import needs
from gpufleet.paths import ROOT
from tests.support.machine import deadline
from tests.support.mirror_site import ARCHIVE, CONTENTS, RUNFILE, Desk, Site, heed_interrupts

SIZE = sum(map(len, CONTENTS.values()))


def fetched(desk: Desk) -> dict[str, bytes]:
    """Every file of the mirror with its content, without our own notes."""
    return {path.name: path.read_bytes() for path in desk.mirror.iterdir() if path.is_file()}


def test_everything_that_the_plans_need_comes_once_for_all_hosts(desk: Desk, site: Site) -> None:
    done = desk("fetch")
    assert done.status == 0
    assert fetched(desk) == CONTENTS
    assert sorted(site.got()) == [(f"/{RUNFILE}", None), (f"/{ARCHIVE}", None)]
    assert "2 hosts need 2 files" in done.err
    assert "toolkit 11.8" in done.err
    assert desk.variables["gpu_artifacts"][RUNFILE]["sha256"][:16] in done.err


def test_what_is_there_and_right_is_not_fetched_again(desk: Desk, site: Site) -> None:
    desk("fetch")
    site.asked.clear()
    done = desk("fetch", "--json")
    assert (done.status, done.state(RUNFILE), done.document["complete"]) == (0, "there", True)
    assert site.asked == []


def test_the_document_says_what_came(desk: Desk) -> None:
    row = desk("fetch", "--json").document["files"][0]
    declared = desk.variables["gpu_artifacts"][RUNFILE]
    assert row == {
        "path": RUNFILE,
        "kind": "artifact",
        "checksum": f"sha256:{declared['sha256']}",
        "size_bytes": len(CONTENTS[RUNFILE]),
        "url": declared["url"],
        "login_required": False,
        "for": ["toolkit 11.8"],
        "state": "fetched",
        "because": None,
        "remedy": None,
    }


def test_a_signed_address_is_used_and_shown_nowhere(desk: Desk, site: Site) -> None:
    declared = desk.variables["gpu_artifacts"][RUNFILE]
    declared["url"] += "?X-Amz-Signature=secret"
    for size in (None, declared["size_bytes"]):
        declared["size_bytes"] = size
        site.asked.clear()
        shutil.rmtree(desk.mirror, ignore_errors=True)
        done = desk("fetch", "--json")
        assert (done.status, done.state(RUNFILE)) == (0, "fetched")
        assert (f"/{RUNFILE}?X-Amz-Signature=secret", None) in site.got()
        assert "secret" not in done.out + done.err
    declared["url"] = f"http://127.0.0.1:9/{RUNFILE}?X-Amz-Signature=secret"
    shutil.rmtree(desk.mirror)
    done = desk("fetch")
    assert done.status == 1
    assert f"http://127.0.0.1:9/{RUNFILE}?***" in " ".join(done.err.split())
    assert "secret" not in done.out + done.err
    assert not [path for path in desk.mirror.rglob("*.json") if "secret" in path.read_text()]


def test_a_download_that_broke_off_is_continued(desk: Desk, site: Site) -> None:
    site.cut = {f"/{RUNFILE}": 5000}
    done = desk("fetch", "--json")
    assert (done.status, done.state(RUNFILE), done.state(ARCHIVE)) == (1, "missing", "fetched")
    assert "broke off" in next(row["because"] for row in done.document["files"] if row["because"])
    site.cut = {}
    assert desk("fetch").status == 0
    assert (f"/{RUNFILE}", "bytes=5000-") in site.got()
    assert fetched(desk) == CONTENTS


@pytest.mark.parametrize(
    ("stop", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_run_that_was_stopped_is_continued_by_the_next(
    desk: Desk, site: Site, stop: signal.Signals, status: int
) -> None:
    content, mebibyte = os.urandom(3 << 20), 1 << 20
    (site.root / RUNFILE).write_bytes(content)
    desk.variables["gpu_artifacts"][RUNFILE] |= {
        "sha256": hashlib.sha256(content).hexdigest(),
        "size_bytes": len(content),
    }
    site.cut = {f"/{RUNFILE}": 2 * mebibyte}
    site.hold.clear()
    partial = desk.mirror / f"{RUNFILE}.partial"
    command = [sys.executable, "-m", "gpufleet", "artifacts", *desk.words("fetch")]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
        preexec_fn=heed_interrupts,  # noqa: PLW1509
    ) as running:
        ends = time.monotonic() + deadline(60)
        while not partial.exists() or partial.stat().st_size < 2 * mebibyte:
            assert running.poll() is None
            assert time.monotonic() < ends
            time.sleep(0.02)
        running.send_signal(stop)
        assert running.wait(10) == status
    site.cut = {}
    assert desk("fetch").status == 0
    assert (f"/{RUNFILE}", f"bytes={2 * mebibyte}-") in site.got()
    assert fetched(desk) == CONTENTS | {RUNFILE: content}


def test_a_size_that_nobody_has_said_is_asked_of_the_server(desk: Desk, site: Site) -> None:
    del desk.variables["gpu_artifacts"][RUNFILE]["size_bytes"]
    rows = desk("fetch", "--json").document["files"]
    assert ("HEAD", f"/{RUNFILE}", None) in site.asked
    assert rows[0]["size_bytes"] == len(CONTENTS[RUNFILE])


def test_another_content_than_declared_is_refused_and_not_kept(desk: Desk, site: Site) -> None:
    (site.root / RUNFILE).write_bytes(b"something else")
    done = desk("fetch", "--json")
    assert (done.status, done.state(RUNFILE)) == (1, "missing")
    assert set(fetched(desk)) == {ARCHIVE}
    row = done.document["files"][0]
    assert desk.variables["gpu_artifacts"][RUNFILE]["sha256"] in row["because"]
    assert row["remedy"]


def test_a_wrong_file_in_the_mirror_is_replaced(desk: Desk) -> None:
    desk.mirror.mkdir()
    (desk.mirror / RUNFILE).write_bytes(b"damaged")
    assert desk("fetch").status == 0
    assert fetched(desk) == CONTENTS


def test_a_directory_of_the_call_comes_before_the_network(
    desk: Desk, site: Site, tmp_path: Path
) -> None:
    downloads = tmp_path / "Downloads"
    downloads.mkdir()
    (downloads / RUNFILE).write_bytes(CONTENTS[RUNFILE])
    assert desk("fetch", "--from", downloads).status == 0
    assert site.got() == [(f"/{ARCHIVE}", None)]


def test_a_wrong_file_of_such_a_directory_is_not_taken(
    desk: Desk, site: Site, tmp_path: Path
) -> None:
    (tmp_path / RUNFILE).write_bytes(b"cut off")
    assert desk("fetch", "--from", tmp_path).status == 0
    assert fetched(desk) == CONTENTS


@pytest.mark.parametrize("kind", ["directory", "address"])
def test_the_inventory_s_own_source_serves(desk: Desk, site: Site, kind: str) -> None:
    for row in desk.variables["gpu_artifacts"].values():
        row["url"] = "http://127.0.0.1:9/nothing"
    source = str(site.root) if kind == "directory" else site.url
    desk.variables["gpu_artifacts_source"] = source
    assert desk("fetch").status == 0
    assert fetched(desk) == CONTENTS


def test_a_source_that_lacks_a_file_is_not_the_last_word(desk: Desk, site: Site) -> None:
    desk.variables["gpu_artifacts_source"] = f"{site.url}/elsewhere"
    assert desk("fetch").status == 0
    assert fetched(desk) == CONTENTS


def test_an_archive_behind_a_login_is_named_with_its_page_and_taken_from_a_directory(
    desk: Desk, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = needs.plan_of

    def behind_a_login(*words: Any) -> dict[str, Any]:
        plan = planned(*words)
        for row in plan["artifacts"]:
            if row["file"] == ARCHIVE:
                row |= {"login_required": True, "url": "https://example.org/cudnn-archive"}
        return plan

    monkeypatch.setattr(needs, "plan_of", behind_a_login)
    done = desk("fetch")
    assert done.status == 1
    assert "needs a login" in done.err
    reported = " ".join(done.err.split())
    assert "https://example.org/cudnn-archive" in reported
    assert f"{ARCHIVE} (63.0 kB)" in reported
    assert "--from" in reported
    assert f"/{ARCHIVE}" not in dict(site.got())

    (tmp_path / "Downloads").mkdir()
    (tmp_path / "Downloads" / ARCHIVE).write_bytes(CONTENTS[ARCHIVE])
    assert desk("fetch", "--from", tmp_path / "Downloads").status == 0
    assert fetched(desk) == CONTENTS


def test_a_disk_that_is_too_full_is_reported_before_anything_is_fetched(
    desk: Desk, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(SIZE, 1, SIZE - 1))
    done = desk("fetch", "--json")
    assert done.status == 1
    assert "GB free" in done.document["problems"][0]["message"]
    assert site.got() == []


def test_an_unfinished_download_counts_against_what_is_to_come(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.mirror.mkdir()
    (desk.mirror / f"{RUNFILE}.partial").write_bytes(CONTENTS[RUNFILE][:1000])
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(SIZE, 0, SIZE - 1000))
    assert desk("fetch").status == 0


def test_two_contents_of_one_name_are_refused(desk: Desk, site: Site, tmp_path: Path) -> None:
    other = desk.inventory.parent / "host_vars" / "gpu02.yml"
    other.parent.mkdir()
    other.write_text(f"gpu_artifacts: {{{RUNFILE}: {{sha256: {'0' * 64}}}}}\n")
    done = desk("fetch", "--json")
    assert done.status == 4
    assert "one directory cannot hold both" in done.document["problems"][0]["message"]
    assert "--limit" in done.document["problems"][0]["remedy"]


def test_a_plan_that_is_refused_stops_it_with_the_problems(desk: Desk, site: Site) -> None:
    desk.variables["gpu_accept_nvidia_eula"] = False
    done = desk("fetch", "--json")
    assert done.status == 4
    assert done.document["problems"][0]["code"] == "eula-not-accepted"
    assert done.document["problems"][0]["where"].startswith("gpu01: ")
    assert site.asked == []
    assert not desk.mirror.exists()


@pytest.mark.parametrize("words", [["--from", "/no/such/place"], ["--limit", "nobody"], ["--fly"]])
def test_a_mistake_in_the_call_is_status_4(desk: Desk, words: list[str]) -> None:
    done = desk("fetch", *words)
    assert (done.status, done.out) == (4, "")
    assert words[-1] in done.err


def test_verify_reads_everything_again(desk: Desk) -> None:
    desk("fetch")
    assert desk("verify").status == 0
    path = desk.mirror / RUNFILE
    status = path.stat()
    path.write_bytes(CONTENTS[RUNFILE][:-1] + b"?")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    done = desk("verify", "--json")
    assert (done.status, done.state(RUNFILE), done.state(ARCHIVE)) == (1, "wrong", "there")


def test_verify_names_what_is_missing_and_what_is_not_needed(desk: Desk) -> None:
    desk("fetch")
    (desk.mirror / ARCHIVE).rename(desk.mirror / "old.tgz")
    done = desk("verify", "--json")
    assert (done.status, done.state(ARCHIVE)) == (1, "missing")
    assert done.document["extra"] == ["old.tgz"]
    assert (desk.mirror / "old.tgz").exists()


def test_verify_of_nothing_is_a_mistake(desk: Desk) -> None:
    assert desk("verify").status == 4
