"""The nightly's configuration: what is wrong is refused, with its place and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpufleet.errors import ConfigurationError
from gpufleet.watch import config

Configured = Callable[..., Path]
MAIL = {"host": "mail.example.org", "from": "gpufleet@example.org", "to": ["ops@example.org"]}


def test_what_is_left_out_has_a_usual_value(configured: Configured) -> None:
    settings = config.read(configured(mail=MAIL, topology="/etc/gpufleet/topology.conf"))
    assert settings.topology == Path("/etc/gpufleet/topology.conf")
    assert (settings.fanout, settings.keep_days, settings.webhooks) == (32, 400, ())
    assert settings.mail == config.Mail(
        "mail.example.org", 587, "starttls", "gpufleet@example.org", ("ops@example.org",)
    )


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"mial": {}}, "There is no setting 'mial'. Did you mean 'mail'?"),
        ({"fanout": "many"}, "fanout: 'many' is not of type 'integer'"),
        ({"inventory": []}, "inventory: [] should be non-empty"),
        ({"mail": {**MAIL, "tls": "maybe"}}, "mail.tls: 'maybe' is not one of"),
        ({"mail": {**MAIL, "to": ["a@b\nBcc: c@d"]}}, "mail.to.0: "),
        ({"mail": {**MAIL, "user": "u"}}, "mail: A user is set without a password."),
        (
            {"mail": {**MAIL, "user": "u", "password_file": "/nowhere/smtp"}},
            "mail.password_file: The secret in /nowhere/smtp cannot be read: No such file",
        ),
        ({"webhooks": [{"form": "slack"}]}, "webhooks.0: Exactly one of 'url' and 'url_file'"),
        ({"webhooks": [{"url": "file:///etc/passwd"}]}, "webhooks.0.url: "),
        (
            {"webhooks": [{"url": "http://hook.example.org", "secret_file": __file__}]},
            "webhooks.0.secret_file: ",
        ),
        ({"drain": {"hook": "slurm", "after_strikes": 1}}, "drain.after_strikes: 1 is less than"),
        ({"state_dir": "here"}, "state_dir: 'here' does not match"),
        (
            {"pulled": "/srv/pulled", "launcher": "slurm"},
            "pulled and launcher: slurm exclude each other",
        ),
        (
            {"topology": "/etc/topology.conf", "launcher": "slurm"},
            "launcher: slurm and topology exclude each other",
        ),
        ({"pulled": "/srv/pulled", "deep": True}, "deep: With 'pulled', hosts are not probed"),
    ],
)
def test_a_mistake_is_refused_with_its_location(
    configured: Configured, wrong: dict[str, Any], words: str
) -> None:
    path = configured(**wrong)
    with pytest.raises(ConfigurationError) as refused:
        config.read(path)
    assert str(refused.value).startswith(str(path))
    assert words in str(refused.value)
    assert refused.value.remedy


@pytest.mark.parametrize("text", ["", "- a", "a: [", "a: \x00"])
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "nightly.yml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=r"nightly\.yml"):
        config.read(path)
    with pytest.raises(ConfigurationError, match="--config FILE"):
        config.read(tmp_path / "nowhere")


def test_a_secret_is_read_from_its_file_and_shown_nowhere(
    configured: Configured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "smtp").write_text("hunter2\n")
    (tmp_path / "hook").write_text("https://hooks.example.org/T0/B0/hunter3\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    settings = config.read(
        configured(
            mail={**MAIL, "user": "u", "password_file": "${CREDENTIALS_DIRECTORY}/smtp"},
            webhooks=[{"url_file": str(tmp_path / "hook"), "secret_file": str(tmp_path / "smtp")}],
        )
    )
    assert settings.mail and settings.mail.password == settings.webhooks[0].secret == "hunter2"
    assert settings.webhooks[0].url.endswith("hunter3")
    assert "hunter" not in repr(settings)


def test_the_password_may_come_from_the_environment_and_is_never_sent_unencrypted(
    configured: Configured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUFLEET_SMTP_PASSWORD", "hunter2")
    settings = config.read(configured(mail={**MAIL, "user": "u"}))
    assert settings.mail and settings.mail.password == "hunter2"
    with pytest.raises(ConfigurationError, match="readable by everyone"):
        config.read(configured(mail={**MAIL, "user": "u", "tls": "none"}))


def test_the_valid_settings_of_a_refused_file_are_read(configured: Configured) -> None:
    settings = config.read_valid_settings(configured(fanout="many", mial={}, mail=MAIL))
    assert settings and settings.mail and settings.fanout == 32
    assert config.read_valid_settings(Path("/nowhere")) is None


def test_a_missing_secret_does_not_disable_other_channels(configured: Configured) -> None:
    gone, there = {"url_file": "/nowhere/hook"}, {"url": "https://hook.example.org"}
    settings = config.read_valid_settings(
        configured(
            mail={**MAIL, "user": "u", "password_file": "/nowhere/smtp"}, webhooks=[gone, there]
        )
    )
    assert settings and settings.mail is None
    assert [webhook.url for webhook in settings.webhooks] == ["https://hook.example.org"]


def test_every_setting_is_explained() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "nightly.md").read_text()
    rules = config.SCHEMA["properties"]
    inner = [
        *rules["mail"]["properties"],
        *rules["webhooks"]["items"]["properties"],
        *rules["drain"]["properties"],
    ]
    assert [name for name in (*rules, *inner) if f"`{name}`" not in page] == []
