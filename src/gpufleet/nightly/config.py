"""The nightly's one configuration file: YAML, held against `nightly.schema.yml`, secrets read.

A secret stands in a file of its own, or for mail in the variable `GPUFLEET_SMTP_PASSWORD`; what is
read is kept out of every repr, since logs and tracebacks show those.
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
    Path(__file__).with_name("nightly.schema.yml").read_text(encoding="utf-8"))
USUAL = Path("/etc/gpufleet/nightly.yml")
PORTS = {"starttls": 587, "tls": 465, "none": 25}


@dataclass(frozen=True)
class Mail:
    """Where mail is handed in, and whom it is for."""

    host: str
    port: int
    tls: str
    sender: str
    to: tuple[str, ...]
    user: str | None = None
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Webhook:
    """An address that is told by POST; it may be a secret itself."""

    url: str = field(repr=False)
    form: str = "json"
    secret: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Settings:
    """What the file says, with what holds where it says nothing."""

    inventory: tuple[str, ...]
    limit: str | None
    vault_password_file: str | None
    fanout: int
    deadline_s: float
    deep: bool
    topology: Path | None
    launcher: str
    pulled: Path | None
    pulled_age_h: float
    state_dir: Path
    reports_dir: Path
    keep_days: int
    keep_reports_days: int
    textfile_dir: Path | None
    expected_every_h: float
    reports_url: str | None
    heartbeat_url: str | None
    tell_within_s: float
    mail: Mail | None
    webhooks: tuple[Webhook, ...]
    drain: dict[str, Any] | None


def read(path: Path) -> Settings:
    """The settings, or a `ConfigurationError` that says what is wrong, where, and what to do."""
    document = _document(path)
    error = jsonschema.Draft202012Validator(SCHEMA).iter_errors(document)
    first = min(error, key=lambda found: list(map(str, found.absolute_path)), default=None)
    if first:
        raise _refusal(path, first)
    settings = _settings(document, path)
    ways = [name for name, taken in {
        "pulled": settings.pulled, "launcher: slurm": settings.launcher == "slurm",
        "topology": settings.topology}.items() if taken]
    if len(ways) > 1:
        raise ConfigurationError(f"The hosts are reached in one way, not by {' and '.join(ways)}.",
                                 str(path), "Leave all but one of them out.")
    if settings.pulled and settings.deep:
        raise ConfigurationError("What the hosts have found is judged as it is.",
                                 f"{path}: deep", "Leave it out, or pulled.")
    return settings


def salvaged(path: Path) -> Settings | None:
    """Of a file that is refused, what holds by itself: somebody may still be told. Else None."""
    try:
        document = _document(path)
        sound = {
            name: value for name, value in document.items()
            if jsonschema.Draft202012Validator(SCHEMA["properties"].get(name, False))
            .is_valid(value)
        }
        # One whose secret is gone mutes no other.
        if "mail" in sound and not _whole(partial(_mail, sound["mail"], path)):
            del sound["mail"]
        sound["webhooks"] = [each for each in sound.get("webhooks", ())
                             if _whole(partial(_webhook, each, str(path)))]
        return _settings({"inventory": [], **sound}, path)
    except ConfigurationError:
        return None


def _whole(read: Callable[[], object]) -> bool:
    """Whether it can be read, its secrets with it."""
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
            f"It cannot be read: {error.strerror}.", str(path),
            "Write it (docs/how-to/nightly.md has one to copy), or name another with --config FILE."
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"It is no YAML: {' '.join(str(error).split())}", str(path), "Correct it.") from error
    if not isinstance(document, dict):
        raise ConfigurationError(
            "It is no mapping of names to values.", str(path),
            "docs/how-to/nightly.md has one to copy.")
    return document


def _refusal(path: Path, error: jsonschema.ValidationError) -> ConfigurationError:
    """The schema's complaint as a person needs it."""
    place = ".".join(map(str, error.absolute_path))
    where = f"{path}: {place}" if place else str(path)
    if error.validator == "additionalProperties":
        rules: Any = error.schema
        given: Any = error.instance
        known = sorted(rules["properties"])
        unknown = next(name for name in given if name not in known)
        near = difflib.get_close_matches(str(unknown), known, 1)
        meant = f"Did you mean '{near[0]}'?" if near else f"Known are: {', '.join(known)}."
        return ConfigurationError(f"There is no setting '{unknown}'.", where, meant)
    if error.validator == "oneOf":
        return ConfigurationError(
            "Exactly one of 'url' and 'url_file' is needed.", where, "Correct it.")
    return ConfigurationError(f"{error.message}.", where, "Correct it; see docs/how-to/nightly.md.")


def _usual(rule: Mapping[str, Any]) -> dict[str, Any]:
    return {name: each.get("default") for name, each in rule["properties"].items()}


def _settings(document: Mapping[str, Any], path: Path) -> Settings:
    given = {**_usual(SCHEMA), **document}
    return Settings(**{
        **given,
        "inventory": tuple(given["inventory"]),
        "vault_password_file": given["vault_password_file"] and _expanded(
            given["vault_password_file"]),
        "topology": given["topology"] and Path(given["topology"]),
        "pulled": given["pulled"] and Path(given["pulled"]),
        "state_dir": Path(given["state_dir"]),
        "reports_dir": Path(given["reports_dir"]),
        "textfile_dir": given["textfile_dir"] and Path(given["textfile_dir"]),
        "mail": given["mail"] and _mail(given["mail"], path),
        "webhooks": tuple(_webhook(each, f"{path}: webhooks.{number}")
                          for number, each in enumerate(given["webhooks"])),
        "drain": given["drain"] and {**_usual(SCHEMA["properties"]["drain"]), **given["drain"]},
    })


def _mail(given: Mapping[str, Any], path: Path) -> Mail:
    where = f"{path}: mail"
    tls = given.get("tls", "starttls")
    user = given.get("user")
    password = os.environ.get("GPUFLEET_SMTP_PASSWORD") if user else None
    if "password_file" in given:
        password = _secret(given["password_file"], f"{where}.password_file")
    if user and not password:
        raise ConfigurationError("There is a user and no password.", where,
                                 "Add password_file, or set GPUFLEET_SMTP_PASSWORD.")
    if user and tls == "none":
        raise ConfigurationError("The password would travel readable by everyone.", f"{where}.tls",
                                 "Use starttls or tls, or leave out user and password_file.")
    return Mail(given["host"], given.get("port", PORTS[tls]), tls, given["from"],
                tuple(given["to"]), user, password)


def _webhook(given: Mapping[str, Any], where: str) -> Webhook:
    url = given.get("url") or _secret(given["url_file"], f"{where}.url_file")
    if not url.startswith(("https://", "http://")):
        raise ConfigurationError("What stands in it is no http address.", f"{where}.url_file",
                                 "Write the address alone, beginning with https://.")
    secret = given.get("secret_file")
    if secret and not url.startswith("https://"):
        raise ConfigurationError("The secret would travel readable by everyone.",
                                 f"{where}.secret_file", "Use an address that begins with https://.")
    return Webhook(url, given.get("form", "json"),
                   _secret(secret, f"{where}.secret_file") if secret else None)


def _expanded(name: str) -> str:
    """A path; systemd's ${CREDENTIALS_DIRECTORY} may stand in it."""
    return os.path.expandvars(name)


def _secret(name: str, where: str) -> str:
    path = Path(_expanded(name))
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise ConfigurationError(
            f"The secret in {path} cannot be read: {why}.", where,
            "Put it there, readable by the user of the nightly alone.") from error
    if not text or "\n" in text or "\r" in text:
        raise ConfigurationError(f"{path} does not hold one line.", where,
                                 "Write the secret into it, and nothing else.")
    return text
