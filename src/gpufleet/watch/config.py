"""The nightly's configuration file: YAML, checked by `nightly.schema.yml`, with its secrets.

A secret is in a file of its own, or for mail in the variable `GPUFLEET_SMTP_PASSWORD`. No repr
contains a secret, since logs and tracebacks show those.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from gpufleet.errors import ConfigurationError

SCHEMA: dict[str, Any] = yaml.safe_load(
    Path(__file__).with_name("nightly.schema.yml").read_text(encoding="utf-8")
)
DEFAULT_PATH = Path("/etc/gpufleet/nightly.yml")
PORTS = {"starttls": 587, "tls": 465, "none": 25}


@dataclass(frozen=True)
class Mail:
    """The SMTP server, the sender and the recipients."""

    host: str
    port: int
    tls: str
    sender: str
    to: tuple[str, ...]
    user: str | None = None
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Webhook:
    """An address that gets messages by POST; the address itself may be a secret."""

    url: str = field(repr=False)
    form: str = "json"
    secret: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Settings:
    """The file's settings, with defaults for those that it does not contain."""

    inventory: tuple[str, ...]
    limit: str | None
    vault_password_file: str | None
    fanout: int
    deadline_s: float
    deep: bool
    scrub_days: float
    scrub_seconds: float
    topology: Path | None
    launcher: str
    pulled: Path | None
    pulled_age_h: float
    state_dir: Path
    reports_dir: Path
    published_dir: Path | None
    keep_days: int
    alerts_per_month: float
    keep_reports_days: int
    textfile_dir: Path | None
    expected_every_h: float
    reports_url: str | None
    remedy_inventory: tuple[str, ...]
    remedy_program: str | None
    weekly: str | None
    heartbeat_url: str | None
    tell_within_s: float
    mail: Mail | None
    webhooks: tuple[Webhook, ...]
    drain: dict[str, Any] | None


def read(path: Path) -> Settings:
    """Return the settings; raise `ConfigurationError` for the first mistake."""
    document = _document(path)
    error = jsonschema.Draft202012Validator(SCHEMA).iter_errors(document)
    first = min(error, key=lambda found: list(map(str, found.absolute_path)), default=None)
    if first:
        raise _refusal(path, first)
    settings = _settings(document, path)
    methods = [
        name
        for name, used in {
            "pulled": settings.pulled,
            "launcher: slurm": settings.launcher == "slurm",
            "topology": settings.topology,
        }.items()
        if used
    ]
    if len(methods) > 1:
        raise ConfigurationError(
            f"{' and '.join(methods)} exclude each other.", str(path), "Remove all but one of them."
        )
    if settings.published_dir and settings.published_dir in {
        settings.reports_dir,
        settings.state_dir,
    }:
        raise ConfigurationError(
            "The web server's directory is one that holds what it must not read.",
            f"{path}: published_dir",
            "Name a directory of its own.",
        )
    if settings.pulled and settings.deep:
        raise ConfigurationError(
            "With 'pulled', hosts are not probed, so 'deep' has no effect.",
            f"{path}: deep",
            "Remove 'deep' or 'pulled'.",
        )
    return settings


def read_valid_settings(path: Path) -> Settings | None:
    """Return the valid settings of a refused file, so that people can be notified; or None."""
    try:
        document = _document(path)
        valid = {
            name: value
            for name, value in document.items()
            if jsonschema.Draft202012Validator(SCHEMA["properties"].get(name, False)).is_valid(
                value
            )
        }
        # A channel whose secret is missing does not disable the others.
        if "mail" in valid and not _readable(partial(_mail, valid["mail"], path)):
            del valid["mail"]
        valid["webhooks"] = [
            each
            for each in valid.get("webhooks", ())
            if _readable(partial(_webhook, each, str(path)))
        ]
        return _settings({"inventory": [], **valid}, path)
    except ConfigurationError:
        return None


def _readable(read: Callable[[], object]) -> bool:
    """Return whether a function reads its settings and secrets without an error."""
    try:
        read()
    except ConfigurationError:
        return False
    return True


def _document(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(
            f"The configuration cannot be read: {error.strerror}.",
            str(path),
            "Create it (docs/how-to/nightly.md has one to copy),"
            " or name another with --config FILE.",
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"The file is not valid YAML: {' '.join(str(error).split())}", str(path), "Correct it."
        ) from error
    if not isinstance(document, dict):
        raise ConfigurationError(
            "The file is not a mapping of names to values.",
            str(path),
            "docs/how-to/nightly.md has one to copy.",
        )
    return document


def _refusal(path: Path, error: jsonschema.ValidationError) -> ConfigurationError:
    """A schema's error as a `ConfigurationError`, with a suggestion for a mistyped name."""
    name = ".".join(map(str, error.absolute_path))
    where = f"{path}: {name}" if name else str(path)
    if error.validator == "additionalProperties":
        rules: Any = error.schema
        given: Any = error.instance
        known = sorted(rules["properties"])
        unknown = next(name for name in given if name not in known)
        near = difflib.get_close_matches(str(unknown), known, 1)
        remedy = f"Did you mean '{near[0]}'?" if near else f"Known settings: {', '.join(known)}."
        return ConfigurationError(f"There is no setting '{unknown}'.", where, remedy)
    if error.validator == "oneOf":
        return ConfigurationError(
            "Exactly one of 'url' and 'url_file' is required.", where, "Correct it."
        )
    remedy = "Correct it; see docs/reference/nightly.md."
    return ConfigurationError(f"{error.message}.", where, remedy)


def _defaults(rule: Mapping[str, Any]) -> dict[str, Any]:
    return {name: each.get("default") for name, each in rule["properties"].items()}


def _settings(document: Mapping[str, Any], path: Path) -> Settings:
    given = {**_defaults(SCHEMA), **document}
    return Settings(
        **{
            **given,
            "inventory": tuple(given["inventory"]),
            "remedy_inventory": tuple(given["remedy_inventory"]),
            "vault_password_file": given["vault_password_file"]
            and _expanded(given["vault_password_file"]),
            "topology": given["topology"] and Path(given["topology"]),
            "pulled": given["pulled"] and Path(given["pulled"]),
            "state_dir": Path(given["state_dir"]),
            "reports_dir": Path(given["reports_dir"]),
            "published_dir": given["published_dir"] and Path(given["published_dir"]),
            "textfile_dir": given["textfile_dir"] and Path(given["textfile_dir"]),
            "mail": given["mail"] and _mail(given["mail"], path),
            "webhooks": tuple(
                _webhook(each, f"{path}: webhooks.{number}")
                for number, each in enumerate(given["webhooks"])
            ),
            "drain": given["drain"]
            and {**_defaults(SCHEMA["properties"]["drain"]), **given["drain"]},
        }
    )


def _mail(given: Mapping[str, Any], path: Path) -> Mail:
    where = f"{path}: mail"
    tls = given.get("tls", "starttls")
    user = given.get("user")
    password = os.environ.get("GPUFLEET_SMTP_PASSWORD") if user else None
    if "password_file" in given:
        password = _secret(given["password_file"], f"{where}.password_file")
    if user and not password:
        raise ConfigurationError(
            "A user is set without a password.",
            where,
            "Add password_file, or set GPUFLEET_SMTP_PASSWORD.",
        )
    if user and tls == "none":
        raise ConfigurationError(
            "The password would be sent unencrypted, readable by everyone.",
            f"{where}.tls",
            "Use starttls or tls, or leave out user and password_file.",
        )
    return Mail(
        given["host"],
        given.get("port", PORTS[tls]),
        tls,
        given["from"],
        tuple(given["to"]),
        user,
        password,
    )


def _webhook(given: Mapping[str, Any], where: str) -> Webhook:
    url = given.get("url") or _secret(given["url_file"], f"{where}.url_file")
    if not url.startswith(("https://", "http://")):
        raise ConfigurationError(
            "The file does not contain an http address.",
            f"{where}.url_file",
            "Write only the address into it, beginning with https://.",
        )
    secret = given.get("secret_file")
    if secret and not url.startswith("https://"):
        raise ConfigurationError(
            "The secret would be sent unencrypted, readable by everyone.",
            f"{where}.secret_file",
            "Use an address that begins with https://.",
        )
    return Webhook(
        url, given.get("form", "json"), _secret(secret, f"{where}.secret_file") if secret else None
    )


def _expanded(name: str) -> str:
    """A path with variables expanded, such as systemd's ${CREDENTIALS_DIRECTORY}."""
    return os.path.expandvars(name)


def _secret(name: str, where: str) -> str:
    path = Path(_expanded(name))
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise ConfigurationError(
            f"The secret in {path} cannot be read: {why}.",
            where,
            "Create the file, readable only by the user of the nightly.",
        ) from error
    if not text or "\n" in text or "\r" in text:
        raise ConfigurationError(
            f"{path} does not contain exactly one line.", where, "Write only the secret into it."
        )
    return text
