"""Say in plain words why Ansible failed on a host, as the one cause of what was not done. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gpufleet.documents.text import cut, printable
from gpufleet.documents.verdict import HEALTHY_VERDICTS, CheckResult, HostResult, Repair, Verdict
from gpufleet.on_host.addresses import public_addresses

# Which check says it: the plan was not carried out.
CHECK = "host.plan"
MOST_CHARACTERS = 600
AGAIN = "then run the same command again"
FETCHES = "on the machine that fetches it"


@dataclass(frozen=True)
class Failure:
    """Why Ansible failed on a host, and what to do."""

    cause: str
    remedy: str


@dataclass(frozen=True)
class _Known:
    """An error of the system in the words that programs print, and what it means here."""

    seen: str
    cause: str
    remedy: str


# `{what}`: the file or address that the message names; the first match counts.
_KNOWN = (
    _Known(
        r"No space left on device|\[Errno 28\]|[Nn]ot enough (?:free )?space|ENOSPC",
        "no space is left{where}",
        "on the host: free space (df -h{path} shows how much there is); " + AGAIN,
    ),
    _Known(
        r"Disk quota exceeded|\[Errno 122\]",
        "the disk quota is used up{where}",
        "free space there, or raise the quota; " + AGAIN,
    ),
    _Known(
        r"Read-only file system|\[Errno 30\]",
        "the file system is read-only{where}",
        "on the host: see why it is (dmesg, mount), and mount it writable; " + AGAIN,
    ),
    _Known(
        r"Name or service not known|Temporary failure (?:in name resolution|resolving)"
        r"|Could not resolve|No address associated|nodename nor servname",
        "the name of{address} is not resolved",
        f"{FETCHES}: correct its DNS (getent hosts NAME), or name a mirror it reaches; {AGAIN}",
    ),
    _Known(
        r"Network is unreachable|No route to host|Connection refused|[Tt]imed out|timeout"
        r"|Connection reset|Could not connect|Unable to connect",
        "{address} is not reached",
        f"{FETCHES}: see its route, firewall and proxy, or name a mirror that it reaches; {AGAIN}",
    ),
    _Known(
        r"certificate verify failed|self[- ]signed certificate|SSLCertVerificationError",
        "the certificate of{address} is not trusted",
        f"{FETCHES}: add your site's certificate authority to its trust store; {AGAIN}",
    ),
    _Known(
        r"NO_PUBKEY|EXPKEYSIG|GPG error|is not signed"
        r"|signatures? (?:couldn't|could not) be verified",
        "the signing key of a package repository is missing or expired{key}",
        "on the host: apt-get update (or dnf makecache) names the repository; bring its key up to"
        " date, or remove the repository; " + AGAIN,
    ),
    _Known(
        r"Could not get lock|is held by process|dpkg frontend lock|waiting for cache lock",
        "another program holds the package manager's lock{key}",
        "wait until it has ended (unattended-upgrades, or somebody's apt); " + AGAIN,
    ),
)
_FETCHING = [each for each in _KNOWN if FETCHES in each.remedy]
# By which a message is about something that is fetched, and not about a service that is slow.
FETCH = re.compile(
    r"https?://|urlopen|[Ff]etch|[Dd]ownload|resolv|mirror|index|repositor|[Ii]ndex files"
    r"|curl|wget|InRelease|pypi|uv pip|dnf|yum|apt"
)
_PATH = re.compile(r"(?:'|\"|: |\s)(/[\w./+-]+)")
_ADDRESS = re.compile(r"https?://[^\s'\"<>,;)`]+(?<![:.])")
_HOST = re.compile(r"(?:resolv\w+|host|connect to|reach)(?:ing)?:? '?([\w-]+(?:\.[\w-]+)+)")
_KEY = re.compile(r"(?:NO_PUBKEY|EXPKEYSIG) ([0-9A-F]{8,40})|process (\d+(?: \([\w.-]+\))?)")


def of_lines(lines: Iterable[str]) -> dict[str, Failure]:
    """By host, its last failure, from the lines that the callback `failures` wrote."""
    found: dict[str, Failure] = {}
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            # The run was killed amid a line.
            continue
        found[row["host"]] = in_plain_words(row)
    return found


def in_plain_words(row: dict[str, Any]) -> Failure:
    """The cause and the remedy of a failed task."""
    text = public_addresses(printable(" ".join(str(row["message"]).split())))
    if row.get("unreachable"):
        return Failure(
            f"The connection broke in '{row['task']}': {cut(text, MOST_CHARACTERS)}",
            f"see whether the host or its ssh service restarted, or its network failed; {AGAIN}",
        )
    # A remedy is never a host's own word.
    message, remedy = _split(text) if row.get("own") else (text, "")
    known = next((each for each in _KNOWN if re.search(each.seen, message)), None)
    if known in _FETCHING and not FETCH.search(f"{message} {row.get('address') or ''}"):
        known = None
    if remedy or known is None:
        shown = cut(message.removesuffix("."), MOST_CHARACTERS) or "it gave no reason"
        return Failure(
            f"Ansible failed in '{row['task']}': {shown}",
            cut(remedy, MOST_CHARACTERS)
            or f"remove the cause that Ansible's output names; {AGAIN}",
        )
    path, key = _PATH.search(_ADDRESS.sub("", message)), _KEY.search(message)
    address = _ADDRESS.search(message)
    named = address[0] if address else public_addresses(str(row.get("address") or ""))
    if not named and (host := _HOST.search(message)):
        named = host[1]
    words = {
        "where": f" for {path[1]}" if path else "",
        "path": f" {path[1]}" if path else "",
        "address": f" {named}" if named else " a machine",
        "key": f": {key[1] or key[2]}" if key else "",
    }
    cause = known.cause.format(**words).strip()
    return Failure(
        f"Ansible failed in '{row['task']}': {cause} ({cut(message.removesuffix('.'), 300)})",
        known.remedy.format(**words),
    )


def _split(text: str) -> tuple[str, str]:
    """A message of ours: cause and remedy."""
    cause, found, remedy = text.partition("Remedy: ")
    return (cause.rstrip(), remedy) if found else (text, "")


def _entry(failure: Failure, known: CheckResult | None = None) -> CheckResult:
    """The check's entry with the failure, before what it has found itself."""
    found = known if known and known["verdict"] not in HEALTHY_VERDICTS else None
    own: list[Repair] = [{"by": "person", "act": failure.remedy}]
    entry: CheckResult = {
        "id": CHECK,
        "verdict": Verdict.FAIL.value,
        "statement": known["statement"] if known else "The declaration is carried out.",
        "cause": ". ".join([failure.cause, *([found["cause"]] if found else [])]),
        "remedy": "; ".join([failure.remedy, *([found["remedy"]] if found else [])]),
        "evidence": known["evidence"] if known else "",
        "repairs": [*own, *(found.get("repairs", []) if found else [])],
    }
    return entry


def as_cause(result: HostResult, failure: Failure) -> HostResult:
    """A host's result, with the failure as the cause of all that provisioning was to repair."""
    checks: list[CheckResult] = []
    if all(check["id"] != CHECK for check in result["checks"]):
        checks.append(_entry(failure))
    left = {
        check["id"]
        for check in result["checks"]
        if check["verdict"] not in HEALTHY_VERDICTS
        and any(part["by"] == "provision" for part in check.get("repairs", []))
    }
    for check in result["checks"]:
        if check["id"] == CHECK:
            checks.append(_entry(failure, check))
        elif check["id"] in left or check.get("explained_by") in left:
            checks.append({**check, "explained_by": CHECK})
        else:
            checks.append(check)
    return {**result, "verdict": Verdict.FAIL.value, "checks": checks}
