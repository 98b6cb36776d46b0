"""The notification channels: mail over SMTP, and webhooks. Delivers messages, with retries."""

from __future__ import annotations

import hashlib
import json
import smtplib
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

import tenacity

from gpufleet.on_host.addresses import public_addresses

from .config import Mail, Settings, Webhook
from .message_forms import Message, as_mail, as_slack

ANSWER_S = 20


class DeliveryError(Exception):
    """A channel did not accept a message; the reason contains no secret.

    `later`: whether a later attempt may succeed. `reached`: some of the recipients got it.
    """

    def __init__(self, reason: str, *, later: bool = False, reached: bool = False) -> None:
        super().__init__(public_addresses(reason))
        self.later, self.reached = later, reached


@dataclass(frozen=True)
class Channel:
    """A way to notify people: its name in logs, its key in the state file, and its function."""

    name: str
    key: str
    send: Callable[[Message], None]


def configured_channels(settings: Settings) -> list[Channel]:
    """Return every configured channel."""
    found = []
    if settings.mail:
        found.append(
            Channel(
                f"mail by {settings.mail.host}",
                f"mail {','.join(settings.mail.to)}",
                partial(send_mail, settings.mail),
            )
        )
    for webhook in settings.webhooks:
        # The address may be a secret, its host is not.
        key = hashlib.sha256(webhook.url.encode()).hexdigest()[:12]
        found.append(
            Channel(
                f"webhook at {urlsplit(webhook.url).hostname}",
                f"webhook {key}",
                partial(send_webhook, webhook),
            )
        )
    return found


def deliver(channel: Channel, message: Message, within_s: float) -> None:
    """Send a message, and retry for `within_s` seconds; raise `DeliveryError`."""
    try:
        retrying(partial(channel.send, message), within_s)
    except (OSError, ValueError, HTTPException) as error:
        raise DeliveryError(
            f"{channel.name}: {_plain_reason(error)}",
            later=is_temporary(error),
            reached=isinstance(error, PartlyRefusedError),
        ) from None


def retrying(act: Callable[[], None], within_s: float) -> None:
    """Call a function, and retry temporary failures for `within_s` seconds."""
    tenacity.Retrying(
        stop=tenacity.stop_before_delay(within_s),
        wait=tenacity.wait_exponential_jitter(initial=1, max=15),
        retry=tenacity.retry_if_exception(is_temporary),
        reraise=True,
    )(act)


def is_temporary(error: BaseException) -> bool:
    """Return whether a retry may help: no answer, or an answer that asks to try later."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code == HTTPStatus.TOO_MANY_REQUESTS or error.code >= 500
    if isinstance(error, smtplib.SMTPResponseException):
        return 400 <= error.smtp_code < 500
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        # A receiver that has accepted it would get it twice.
        partly = isinstance(error, PartlyRefusedError)
        return not partly and all(400 <= code < 500 for code, _ in error.recipients.values())
    if isinstance(error, ssl.SSLError) or isinstance(
        getattr(error, "reason", None), ssl.SSLCertVerificationError
    ):
        return False
    if isinstance(error, smtplib.SMTPException):
        return isinstance(error, smtplib.SMTPServerDisconnected)
    return isinstance(error, OSError)


def _plain_reason(error: Exception) -> str:
    """The reason without what was sent: that may contain an address or a password."""
    if isinstance(error, urllib.error.HTTPError):
        return f"it answered {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return f"it refused {', '.join(error.recipients)}"
    if isinstance(error, smtplib.SMTPResponseException):
        reply = error.smtp_error
        text = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else str(reply)
        return f"it answered {error.smtp_code} {' '.join(text.split())}"
    if isinstance(error, HTTPException):
        # Its text may contain the address.
        return f"the answer is not valid HTTP ({type(error).__name__})"
    return " ".join(str(error).split()) or type(error).__name__


class PartlyRefusedError(smtplib.SMTPRecipientsRefused):
    """The mail was refused for some recipients, and accepted for the others."""


def send_mail(settings: Mail, message: Message) -> None:
    """Send a mail, with certificates checked; a refused recipient is an error."""
    tls = ssl.create_default_context()
    connect: Callable[..., smtplib.SMTP] = smtplib.SMTP
    options: dict[str, Any] = {}
    if settings.tls == "tls":
        connect, options = smtplib.SMTP_SSL, {"context": tls}
    with connect(settings.host, settings.port, timeout=ANSWER_S, **options) as server:
        if settings.tls == "starttls":
            server.starttls(context=tls)
        if settings.user and settings.password:
            server.login(settings.user, settings.password)
        refused = server.send_message(as_mail(message, settings))
    if refused:
        raise PartlyRefusedError(refused)


def send_webhook(webhook: Webhook, message: Message) -> None:
    """Send a message to a webhook."""
    body = as_slack(message) if webhook.form == "slack" else message.document
    headers = {"Content-Type": "application/json"}
    if webhook.secret:
        headers["Authorization"] = f"Bearer {webhook.secret}"
    call(webhook.url, json.dumps(body).encode(), headers)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: a POST would arrive as a GET, without its body."""

    def redirect_request(self, *_: Any) -> None:
        """Override urllib's: do not follow, so that the answer counts as an error."""


def call(url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> None:
    """Send a GET request, or a POST request with a body; any status but 2xx is an error."""
    request = urllib.request.Request(url, body, dict(headers or {}))
    with urllib.request.build_opener(_NoRedirect).open(request, timeout=ANSWER_S):
        pass
