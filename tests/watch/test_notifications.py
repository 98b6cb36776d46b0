"""Messages and channels: what changed and a link, retries, and no secret in an error."""

from __future__ import annotations

import json
import smtplib
import urllib.error
from types import SimpleNamespace
from typing import Any

import pytest

from gpufleet.watch import channels, message_forms, notifications
from gpufleet.watch.config import Mail, Webhook
from gpufleet.watch.notifications import Surroundings
from gpufleet.watch.run import NightlyRun
from tests.support import nights
from tests.support.receivers import Listener, change

LINK = "https://gpu.example.org/reports/2026-11-21T03-00-00Z/report.html"
MAIL = Mail("127.0.0.1", 25, "none", "gpufleet@example.org", ("ops@example.org", "b@example.org"))


def test_a_message_has_what_changed_and_a_link(changes: dict[str, Any]) -> None:
    message = notifications.nightly_message(
        changes, LINK, Surroundings(done=["gpu01 was drained."])
    )
    assert message.subject == ("gpufleet: gpu01, gpu02 fail cudnn.files; 98 of 100 healthy")
    assert (
        message_forms.as_text(message)
        == f"""\
2026-11-21T03:00:00Z: 98 of 100 hosts healthy; the night before: 99 of 100.

Needs a hand now
  gpu01, gpu02: cudnn.files fails: 1 of its 39 files changed
    remedy: ./gpufleet provision --limit gpu01,gpu02

Better
  gpu09: it answers again

In and out of service
  gpu01 was drained.

Full report: {LINK}
"""
    )


def test_a_night_without_a_change_is_quiet_and_the_first_one_is_not(
    changes: dict[str, Any],
) -> None:
    quiet = {**changes, "changes": []}
    assert not notifications.has_content(quiet)
    assert notifications.has_content(quiet, Surroundings(done=["gpu01 was drained."]))
    assert notifications.has_content(changes)
    first = {**quiet, "since": None, "hosts_before": None}
    assert notifications.has_content(first)
    message = notifications.nightly_message(first, LINK)
    assert "this is the first night" in message.summary
    [line] = message.sections[message_forms.NOW]
    assert line.hosts == "gpu01, gpu02" and "1 of its 39 files changed" in line.text


@pytest.mark.costly
def test_a_path_of_megabytes_leaves_a_message_that_servers_accept(changes: dict[str, Any]) -> None:
    long = "/opt/" + "x" * 6_000_000
    changes["changes"] = [
        {
            **change(f"gpu{number:03}", "cudnn.files", text=f"cudnn.files fails: {long}"),
            "remedy": f"on the host: chmod a+r {long}",
            "before": long,
            "after": long,
        }
        for number in range(300)
    ]
    message = notifications.nightly_message(changes, LINK, Surroundings(done=[long] * 30))
    sent = json.dumps(message.document)
    assert len(sent) < 300_000
    assert "more characters)" in sent
    assert message.document["left_out"]["changes"] > 0
    assert len(message_forms.as_mail(message, MAIL).as_bytes()) < 300_000
    failed = notifications.failure_message([long] * 100, "now", None)
    assert len(json.dumps(failed.document)) + len(message_forms.as_text(failed)) < 50_000


def test_a_cause_comes_with_the_number_of_its_consequences(changes: dict[str, Any]) -> None:
    lost = {"explained_by": "gpu.count"}
    changes["standing"] = []
    changes["changes"] = [
        row
        for host in ("gpu01", "gpu02")
        for row in (
            {
                **change(host, "gpu.count", text="gpu.count fails: 1 of 8 declared GPUs is gone."),
                "explains": ["stack.gpu", "toolkit.device-query"],
            },
            {**change(host, "stack.gpu", text="stack.gpu fails: no result of GPU 7."), **lost},
            {**change(host, "toolkit.device-query", text="toolkit.device-query fails: 7."), **lost},
        )
    ]
    # The cause failed in an earlier night, so that there is no line to fold this change under.
    changes["changes"] += [
        {**change("gpu03", "stack.gpu", text="stack.gpu fails: no result of GPU 7."), **lost}
    ]
    text = message_forms.as_text(notifications.nightly_message(changes, LINK))
    assert text.count(" fails: ") == 2
    assert (
        "  gpu01, gpu02: gpu.count fails: 1 of 8 declared GPUs is gone. (+2 consequences)\n" in text
    )
    assert "gpu03: stack.gpu fails: no result of GPU 7 (a consequence of gpu.count).\n" in text


def test_a_thousand_changes_stay_one_readable_message(changes: dict[str, Any]) -> None:
    changes["changes"] = [change(f"gpu{n:04}") for n in range(1000)]
    text = message_forms.as_text(notifications.nightly_message(changes, LINK))
    assert "1000 hosts (gpu[0000-0999]): cudnn.files fails: 1 of its 39" in text
    changes["changes"] = [
        change("gpu01", f"check.{n}", text=f"check.{n} fails: it is {n}", remedy=f"do {n}")
        for n in range(1000)
    ]
    message = notifications.nightly_message(changes, LINK)
    assert "and 980 more; see the report" in message_forms.as_text(message)
    sent = message_forms.as_slack(message)["text"]
    assert len(sent) < 4000 and sent.endswith(f"report: {LINK}\n")
    changes["changes"] = [
        change("gpu01", f"check.{n}", text=f"check.{n} fails: {'so ' * 200}{n}") for n in range(20)
    ]
    sent = message_forms.as_slack(notifications.nightly_message(changes, LINK))["text"]
    assert len(sent) < 4000 and sent.endswith(f"\n...\n\n{LINK}")
    assert len(message.document["changes"]) == 200
    assert message.document["left_out"] == {"changes": 800, "standing": 0, "done": 0}


@pytest.mark.parametrize(
    ("words", "obeyed"),
    [
        ("H100 @channel", "@channel"),
        ("(@here) _@all", "@here"),
        ("_@all", "@all"),
        ("[x](http://evil.example)", "]("),
        ("![i](http://evil.example/t.png)", "]("),
        ("[x][1]", "]["),
        ("HTTPS://evil.example/a", "://"),
        ("www.evil.example", "www."),
        ("<!channel> <http://evil.example|x>", "<"),
    ],
)
def test_a_chat_obeys_nothing_that_a_host_says(
    changes: dict[str, Any], words: str, obeyed: str
) -> None:
    changes["changes"] = [change("gpu01", "gpu.smi", text=f"gpu.smi fails: {words} is slow")]
    sent = message_forms.as_slack(notifications.nightly_message(changes, LINK))["text"]
    assert obeyed not in sent.replace(LINK, "").lower()
    assert "is slow" in sent and sent.endswith(f"Full report: {LINK}\n")


def test_a_chat_shows_commands_and_ranges_of_hosts_as_they_are(changes: dict[str, Any]) -> None:
    said = "try by hand: ssh -p 22 gpufleet@gpu01; gpu[001-019]: it failed!"
    changes["changes"] = [change("gpu01", "gpu.smi", text=said)]
    assert said in message_forms.as_slack(notifications.nightly_message(changes, LINK))["text"]


def unreachable(host: str, number: int, **more: Any) -> dict[str, Any]:
    """An unreachable host, with the same message of ssh as the others."""
    return change(
        host,
        "host.reachable",
        **{
            "text": "It is not reached: ssh failed: ssh: connect to host"
            f" 10.0.{number // 256}.{number % 256} port 22: No route to host.",
            "remedy": f"try by hand: ssh -p 22 gpufleet@10.0.{number // 256}.{number % 256} true",
            **more,
        },
    )


def test_an_unreachable_fleet_is_one_line_and_hides_nothing_else(changes: dict[str, Any]) -> None:
    changes["changes"] += [unreachable(f"gpu{n:03}", n) for n in range(600)]
    changes["hosts"] = dict.fromkeys(changes["hosts"], 0) | {"UNREACHABLE": 600}
    message = notifications.nightly_message(changes, LINK)
    text = message_forms.as_text(message)
    assert (
        "  600 hosts (gpu[000-599]): It is not reached: ssh failed: ssh: connect to"
        " host ...: No route to host.\n"
    ) in text
    assert "No host was reached: check the control host and its network first." in text
    assert "cudnn.files fails" in text and "gpu09: it answers again" in text
    assert len(text) < 1500
    assert message_forms.as_slack(message)["text"].endswith(f"report: {LINK}\n")
    # A single host keeps ssh's full message.
    changes["changes"] = [unreachable("gpu07", 7)]
    text = message_forms.as_text(notifications.nightly_message(changes, LINK))
    assert "host 10.0.0.7 port 22" in text


def test_hundreds_of_causes_of_one_check_are_one_line(changes: dict[str, Any]) -> None:
    changes["changes"] = [
        change(f"gpu{n:03}", "gpu.smi", text=f"gpu.smi fails: pid {n} hangs.", remedy="")
        for n in range(300)
    ]
    assert (
        "300 hosts (gpu[000-299]): gpu.smi (300 different causes), such as: fails: pid 0 hangs."
        in message_forms.as_text(notifications.nightly_message(changes, LINK))
    )


def test_actions_on_hundreds_of_hosts_are_listed_in_part(changes: dict[str, Any]) -> None:
    done = [f"gpu{n:03} is not drained (gpu.smi failed)." for n in range(540)]
    message = notifications.nightly_message(changes, LINK, Surroundings(done=done))
    assert "gpu019 is not drained" in message_forms.as_text(message)
    assert "... and 520 more; see the journal." in message_forms.as_text(message)
    assert len(message_forms.as_text(message)) < 2500
    assert message.document["left_out"]["done"] == 340


def test_mail_is_plain_text_and_a_small_page_that_loads_nothing(changes: dict[str, Any]) -> None:
    changes["changes"][0]["text"] = "<script>alert(1)</script>"
    made = message_forms.as_mail(notifications.nightly_message(changes, LINK), MAIL)
    assert made["To"] == "ops@example.org, b@example.org"
    assert made["Auto-Submitted"] == "auto-generated"
    plain, page = made.iter_parts()
    assert plain.get_content_type() == "text/plain"
    assert "<script>" in plain.get_content()
    html = page.get_content()
    assert "&lt;script&gt;" in html and "<script" not in html and "src=" not in html
    assert f'<a href="{LINK}">' in html


def test_slack_gets_text_without_markup(changes: dict[str, Any]) -> None:
    changes["changes"][0]["text"] = "<!channel> & co"
    sent = message_forms.as_slack(notifications.nightly_message(changes, LINK))
    assert list(sent) == ["text"]
    assert "&lt;!channel&gt; &amp; co" in sent["text"]
    assert sent["text"].startswith("gpufleet: ")


def channel(webhook: Webhook) -> channels.Channel:
    return channels.Channel(
        "webhook at 127.0.0.1", "webhook 1", lambda message: channels.send_webhook(webhook, message)
    )


def test_a_webhook_gets_the_changes_as_a_document(
    changes: dict[str, Any], listener: Listener
) -> None:
    webhook = Webhook(listener.url, "json", "hunter2")
    channels.deliver(channel(webhook), notifications.nightly_message(changes, LINK), 5)
    [(method, headers, body)] = listener.heard
    assert (method, headers["Authorization"]) == ("POST", "Bearer hunter2")
    assert headers["Content-Type"] == "application/json"
    assert body == {
        "event": "night",
        **changes,
        "done": [],
        "report": LINK,
        "left_out": {"changes": 0, "standing": 0, "done": 0},
    }


@pytest.mark.costly
def test_a_busy_webhook_is_tried_again(changes: dict[str, Any], listener: Listener) -> None:
    listener.answers = [503, 429]
    message = notifications.nightly_message(changes, LINK)
    channels.deliver(channel(Webhook(listener.url)), message, 20)
    assert len(listener.heard) == 3


@pytest.mark.parametrize(("answer", "words"), [(404, "it answered 404"), (302, "it answered 302")])
def test_a_refusal_is_not_tried_again_and_reported_without_the_address(
    changes: dict[str, Any], listener: Listener, answer: int, words: str
) -> None:
    listener.answers = [answer]
    with pytest.raises(channels.DeliveryError) as error:
        message = notifications.nightly_message(changes, LINK)
        channels.deliver(channel(Webhook(listener.url)), message, 20)
    assert words in str(error.value)
    assert "s3cret" not in str(error.value)
    assert len(listener.heard) == 1


def test_a_webhook_that_does_not_answer_is_given_up_in_time(changes: dict[str, Any]) -> None:
    with pytest.raises(channels.DeliveryError, match="refused"):
        channels.deliver(
            channel(Webhook("http://127.0.0.1:1/s3cret")),
            notifications.nightly_message(changes, LINK),
            0.1,
        )


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (smtplib.SMTPServerDisconnected("gone"), True),
        (smtplib.SMTPConnectError(421, "busy"), True),
        (smtplib.SMTPAuthenticationError(535, b"no"), False),
        (smtplib.SMTPRecipientsRefused({"a@b": (550, b"unknown")}), False),
        # Greylisting, or too many mails in a short time.
        (smtplib.SMTPRecipientsRefused({"a@b": (450, b"later"), "c@d": (451, b"later")}), True),
        (smtplib.SMTPRecipientsRefused({"a@b": (450, b"later"), "c@d": (550, b"no")}), False),
        # Some recipients have it: they would get it twice.
        (channels.PartlyRefusedError({"a@b": (450, b"later")}), False),
        (smtplib.SMTPNotSupportedError("STARTTLS"), False),
        (TimeoutError(), True),
        (urllib.error.URLError(ConnectionRefusedError()), True),
        (ValueError("a header"), False),
    ],
)
def test_only_temporary_failures_are_tried_again(error: Exception, again: bool) -> None:
    assert channels.is_temporary(error) is again


def test_a_failed_run_has_its_own_message(changes: dict[str, Any]) -> None:
    message = notifications.failure_message(
        ["history: the disk is full"], "2026-11-21T03:00:00Z", None
    )
    assert "No host was judged" in message_forms.as_text(message)
    assert "the disk is full" in message_forms.as_text(message)
    assert json.loads(json.dumps(message.document))["event"] == "failure"


def test_each_kind_of_night_says_first_what_to_do_and_in_few_words() -> None:
    """The words themselves are golden documents."""
    order = [message_forms.NOW, message_forms.NEW, message_forms.BETTER, message_forms.STILL]
    for name, message in nights.messages():
        if message is None:
            assert name in {"all healthy", "unchanged"}
            continue
        assert len(message.subject.removeprefix("gpufleet: ")) <= notifications.MOST_SUBJECT, name
        shown = [heading for heading in message.sections if heading in order]
        assert shown == [heading for heading in order if heading in shown], name


def test_who_is_unhealthy_is_named_with_the_remedy_in_each_message() -> None:
    for name, night in nights.NIGHTS.items():
        if night.message is None:
            continue
        text = message_forms.as_text(night.message)
        for row in night.changes["standing"]:
            if "explained_by" not in row and "silenced" not in row and len(night.bad) < 5:
                assert f"{row['host']}: " in text, name
                assert row["remedy"] in text or row["verdict"] == "INCONCLUSIVE", name


def test_the_reader_gets_commands_as_they_call_gpufleet() -> None:
    around = nights.Surroundings(
        as_called=lambda remedy: remedy.replace(
            "./gpufleet provision", "gpufleet provision -i mine"
        )
    )
    message = notifications.nightly_message(nights.NIGHTS["a rack"].changes, LINK, around)
    assert "gpufleet provision -i mine --limit gpu01,gpu02,gpu03" in message_forms.as_text(message)
    # Programs get what all documents have.
    assert message.document["changes"][0]["remedy"].startswith("./gpufleet")


@pytest.mark.parametrize(
    ("nights", "day", "week"),
    [
        # 2026-11-23 is a Monday.
        (["2026-11-21", "2026-11-22", "2026-11-23"], "monday", [1, 2, 1]),
        (["2026-11-21", "2026-11-22", "2026-11-23"], "tuesday", []),
        (["2026-11-21", "2026-11-22", "2026-11-23"], None, []),
        # The second run of the day, by hand.
        (["2026-11-21", "2026-11-23", "2026-11-23"], "monday", []),
    ],
)
def test_a_summary_of_the_week_is_sent_once_on_its_day(
    nights: list[str], day: str | None, week: list[int]
) -> None:
    made = NightlyRun(SimpleNamespace(weekly=day))  # type: ignore[arg-type]
    made.past = {
        "schema": 1,
        "nights": [f"{night}T03:00:00Z" for night in nights],
        "hosts": {
            "gpu01": {"verdicts": "PPP", "measures": {}},
            "gpu02": {"verdicts": "FPF", "measures": {}},
        },
    }
    assert made._week() == week


def test_hosts_that_wait_for_nobody_hide_none_that_needs_a_hand(changes: dict[str, Any]) -> None:
    changes["changes"] = [change("gpu03", "gpu.count", text="gpu.count fails: 1 is gone")]
    row = {"check": "gpu.count", "verdict": "FAIL", "cause": "c", "remedy": "r", "strikes": 1}
    busy = {**row, "check": "stack.gpu", "verdict": "INCONCLUSIVE", "strikes": 5}
    changes["standing"] = [{**row, "host": "gpu03"}]
    changes["standing"] += [{**busy, "host": f"gpu{number}"} for number in range(10, 35)]
    assert notifications.subject(changes).startswith("gpu03 fails gpu.count; 25 more; ")


def test_the_subject_names_what_is_new_before_what_many_hosts_had_before() -> None:
    old = dict.fromkeys(nights.HOSTS[8:16], (nights.since(nights.GONE, "UUU"),))
    message = nights.Night({**old, "gpu02": (nights.LOST_CARD, nights.CONSEQUENCE)}).message
    assert message
    assert message.subject == ("gpufleet: gpu02 fails gpu.count; 8 more; 31 of 40 healthy")


def test_hosts_behind_one_dead_switch_are_one_line_whatever_ssh_says_of_each() -> None:
    said = "The host is unreachable: ssh failed: ssh: connect to host {} port 22: {}."
    reasons = ["No route to host", "Connection timed out", "No route to host"]
    rows = [
        change(host, "host.reachable", text=said.format(host, reason), strikes=1)
        for host, reason in zip(("gpu01", "gpu02", "gpu03"), reasons, strict=True)
    ]
    [(_, line)] = notifications.grouped(rows)
    assert line.hosts == "gpu01, gpu02, gpu03"
    assert line.text.endswith("connect to host ...: Connection timed out, or No route to host.")
    [(_, alone)] = notifications.grouped(rows[:1])
    assert alone.text.endswith("connect to host gpu01 port 22: No route to host.")
