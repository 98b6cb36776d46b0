"""An operator's week: forty-two hosts, seven nights, and each morning nothing but the mail.

Each night is one run of the timer's command on a control host that the nightly's playbook has set
up. `WEEK` says what happens before it, what its mail says, and what the morning does. The operator
runs each command of the mail as it is printed, and does by hand only what no command can: the
switch, the card, the clean-up job and the disk are a person's work, and are changes of the stand-ins
(`tests/support/week_site.py` says what is one). Two hosts are real: a library is deleted on lab2,
twice, so that Slurm's controller drains it; lab3 is reinstalled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.healthy_host import Document, data
from tests.support.host_parts import held_by_ann
from tests.support.lab_fleet import TOOLKIT, Fleet
from tests.support.week_site import CONTROL, HISTORY, PLANTED, RACKS, Site, carry_out, commands

pytestmark = [pytest.mark.lab, pytest.mark.slow]

UP = ("--hosts", "lab1,lab2,lab3,lab4")
RACK = PLANTED[8:16]
TFLOPS = 34.4
# Below it ssh names no reason of its own: the host is off the network.
UNREACHABLE = 255
Act = Callable[[Site], object]


@dataclass(frozen=True)
class Night:
    """A night: what comes before it, its mail, and the morning after it.

    `subject` None: no mail is sent. `says`: what the mail has, in this order. `ends`: by the
    beginning of each of its commands, its exit status. `hands`: what no command can do.
    """

    name: str
    before: tuple[Act, ...] = ()
    subject: str | None = None
    says: tuple[str, ...] = ()
    ends: dict[str, int] = field(default_factory=dict)
    hands: tuple[Act, ...] = ()


def delete_library(site: Site) -> None:
    """A clean-up job deletes a library of lab2."""
    site.fleet.on("lab2", f"rm {TOOLKIT}/lib64/libcudnn.so.8")


def switch(*, works: bool) -> Act:
    """The switch of a rack dies, or is replaced."""
    return lambda site: site.plug(RACK, in_place=works)


def card(share: float) -> Act:
    """A card of gpu05 multiplies at this share of its speed."""

    def slower(snapshot: Document) -> None:
        data(snapshot, "compute")["runs"][0]["cublas"][1]["tflops"] = TFLOPS * share

    return lambda site: site.record("gpu05", slower)


def busy(site: Site) -> None:
    """A job of ann's holds a card of gpu20, whose memory is full."""

    def hold(snapshot: Document) -> None:
        run = data(snapshot, "compute")["runs"][0]
        run["cublas"][0].update(busy={"free_mib": 312, "wanted_mib": 1024}, wrong=None, tflops=None)
        held_by_ann(snapshot)

    site.record("gpu20", hold)


def idle(site: Site) -> None:
    """The job of ann's has ended."""
    fresh = site.planted.healthy("gpu20", PLANTED.index("gpu20"))
    site.record("gpu20", lambda snapshot: snapshot.update(fresh))


def silence(site: Site) -> None:
    """The operator silences what is known of the slow card, as the guide has it."""
    day = f"{datetime.now(UTC) + timedelta(days=9):%Y-%m-%d}"
    for check in ("gpu.throughput", "fleet.outlier"):
        words = f"silence gpu05 {check} --until {day} --why 'card ordered'"
        assert carry_out(site, f"sudo -u gpufleet -H gpufleet {words}") == 0


def reinstall(site: Site) -> None:
    """lab3 is reinstalled: another host key, and nothing of gpufleet."""
    site.reinstall("lab3")


def fill(site: Site) -> None:
    """Something fills the disk of the history."""
    site.fleet.on(CONTROL, f"head -c 20M /dev/zero >{HISTORY}/core.4711", status=None)


def free(site: Site) -> None:
    """The operator removes what the commands have shown."""
    site.fleet.on(CONTROL, f"rm {HISTORY}/core.4711")


WEEK = (
    Night(
        "the first night names no host",
        subject="first night; 42 of 42 healthy",
    ),
    Night(
        "a switch dies, a library is deleted, and a card begins to slow down",
        before=(switch(works=False), delete_library, card(0.9)),
        subject="8 hosts unreachable; 1 more; 33 of 42 healthy",
        says=(
            ", ".join(RACK),
            "The host is unreachable",
            "lab2: cudnn.files fails",
            "libcudnn.so.8",
        ),
        ends={"sudo -u gpufleet -H ssh": UNREACHABLE, "./gpufleet provision": 0},
        hands=(switch(works=True),),
    ),
    Night(
        "the library is deleted again, so the host is drained, and a host is busy",
        before=(delete_library, card(0.81), busy),
        subject=r"lab2 drained; gpu05 fails gpu\.throughput; .*39 of 42 healthy",
        says=("gpu05: ", "GPU 1 multiplies", "is reachable again", "lab2 is drained: cudnn.files"),
        ends={"./gpufleet provision": 0, "./gpufleet verify": 1},
        hands=(silence,),
    ),
    Night(
        "the host is given back, the card is silenced, and another host was reinstalled",
        before=(reinstall, card(0.73), idle),
        subject="lab3 unreachable; lab2 better; 40 of 42 healthy",
        says=(
            "lab3: The host is unreachable: The ssh host key of lab3 does not match",
            "lab2 is healthy again and resumed",
            "gpu05: gpu.throughput is silenced until",
        ),
        ends={"sudo -u gpufleet -H ssh-keygen": 0, "sudo -u gpufleet -H ssh ": 0},
    ),
    Night(
        "the disk of the history is full",
        before=(fill, card(0.66)),
        subject="the nightly run failed",
        says=("Not healthy: gpu05, lab3.", f"{HISTORY}/history.sqlite: The disk is full"),
        ends={"df -h": 0},
        hands=(free,),
    ),
    Night(
        "the reinstalled host is reached, and its card replaced",
        before=(card(1),),
        subject="lab3 fails .*; gpu05 better; 41 of 42 healthy",
        says=("lab3: ", "toolkit", "gpu05: gpu.throughput passes again"),
        ends={"./gpufleet provision": 0},
    ),
    Night(
        "all is well again",
        subject="lab3 better; 42 of 42 healthy",
        says=("42 of 42 hosts healthy",),
    ),
    Night("a night without news sends no mail"),
)


@pytest.fixture(scope="module")
def site(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The site, all of it healthy."""
    made = Site(fleet, tmp_path_factory.mktemp("week"))
    made.set_up()
    yield made


@pytest.mark.parametrize("number", range(len(WEEK)), ids=[night.name for night in WEEK])
def test_each_morning_the_mail_is_all_that_is_needed(site: Site, number: int) -> None:
    night = WEEK[number]
    for act in night.before:
        act(site)
    site.set_clock(number)
    known, heard = len(site.mails()), len(site.chats())
    journal = site.night()
    mails, chats = site.mails()[known:], site.chats()[heard:]
    assert [text.partition("\n")[0] for text in chats] == [mail.subject for mail in mails]
    if night.subject is None:
        assert mails == [], journal
        return
    [mail] = mails
    assert re.fullmatch(f"gpufleet: {night.subject}.*", mail.subject), (mail, journal)
    place = 0
    for text in night.says:
        place = mail.text.find(text, place)
        assert place >= 0, (text, mail.text, journal)
    printed = commands(mail)
    for command in printed:
        expected = [status for begin, status in night.ends.items() if command.startswith(begin)]
        assert expected, f"nobody expects {command} in {mail.text}"
        assert carry_out(site, command) == expected[0], command
    assert all(any(each.startswith(begin) for each in printed) for begin in night.ends), printed
    for act in night.hands:
        act(site)


def test_the_week_ends_healthy(site: Site) -> None:
    state = site.fleet.on(RACKS, "sinfo -hN -n lab2 -o '%T|%E'").strip()
    assert state == "idle|none"
    output = site.gpufleet("verify", "--fanout", "8", "--limit", "lab2,lab3")
    assert "2 hosts healthy: all declared checks pass." in output
