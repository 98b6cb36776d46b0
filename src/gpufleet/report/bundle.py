"""Bundles for fault reports: documents without secrets and names.

A name has the same replacement in every document, so the judge returns the same verdicts for the
cleaned documents as for the real ones. Pure: documents in, documents out.
"""

from __future__ import annotations

import ipaddress
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, cast

from gpufleet.components.stacks import environment_plan as environment
from gpufleet.documents.plan import Plan
from gpufleet.documents.verdict import Bundle, CheckResult, HostResult
from gpufleet.errors import Defect, bounded
from gpufleet.fleet.judging import undeclared
from gpufleet.fleet.session import HostRun
from gpufleet.judge import judge

Document = dict[str, Any]

SCHEMA = 1
NOTE = (
    "Names of hosts and users, addresses, keys, passwords, tokens, UUIDs and serial numbers are"
    " replaced where their position or form identifies them. Other confidential text (a project's"
    " name in a path, an internal version) is not recognized: review the files before you send"
    " them."
)
REMOVED = "removed"
# Accounts and names that every system has.
COMMON_NAMES = {"root", "nobody", "daemon", "localhost", "user", "host"}
# Public servers do not identify a site.
PUBLIC = re.compile(
    r"(?:.*\.)?(?:nvidia\.com|nvcr\.io|docker\.(?:com|io)|debian\.org|ubuntu\.com|pypi\.org"
    r"|pythonhosted\.org|github\.com|redhat\.com|rockylinux\.org|almalinux\.org|openssh\.com"
    r"|kernel\.org|freedesktop\.org|python\.org|tensorflow\.org|google\.com|localhost)$"
)
# Paths in documents that have names and addresses of hosts.
HOST_PATHS = {
    ("host",),
    ("sections", "os", "data", "hostname"),
    ("pairs", "with"),
    ("pairs", "hosts"),
    ("pairs", "sides", "reach", "address"),
}
USERS = {"user", "service_user"}
# Keys of numbers that only one device has. The PDI identifies a GPU, as its UUID does.
DEVICE_NUMBER = re.compile(r"(?:^|[/_])(?:serial|pdi$|gpu_fabric_guid$)", re.IGNORECASE)
# The longest text of a bundle: the kernel's command line and a path have at most 4096 characters.
MOST_TEXT = 4000
# The most names that one host's documents may add: each text is searched for each of them.
MOST_NAMES = 1000
SECRET_NAME = (
    r"(?:password|passwd|passphrase|secret|token|api_?-?key|access_?-?key|credentials?"
    r"|authorization|private_?-?key)"
)

_ADDRESS_4 = r"(?<![\w.-])(?<!cuDNN )(?<!CUDA )(?:\d{1,3}\.){3}\d{1,3}(?![\w-]|\.\d)"
_ADDRESS_6 = r"(?<![\w:.])[0-9a-fA-F]{0,4}(?::[0-9a-fA-F]{0,4}){2,7}(?![\w:])"
# Names of servers: of three parts, or of two before a port or an export, and not of files.
_SERVER = (
    r"(?<![\w./@-])(?!(?:tensorflow|keras|numpy|google|data)\.)(?=[a-z0-9-]*[a-z])"
    r"(?:(?:[a-z0-9-]+\.){2,}[a-z]{2,}|[a-z0-9-]+\.[a-z]{2,}(?=:[\d/]))(?![\w-]|\.\w)"
)
_FILE = re.compile(
    r".*\.(?:so|conf|d|py|json|cfg|ya?ml|toml|lock|txt|log|sh|h|ko|img|run|deb|rpm|whl|zip|tar"
    r"|[gx]z|service|target|slice|socket|mount|timer|wants|list|repo|sources|preload)$"
)
# Messages of programs about a server, whose name may have one part.
_SERVER_MESSAGE = (
    r"\b[Ss]erver (\S+) (?:not responding|has not responded|OK)\b|\bto host (\S+) port\b"
    r"|\bresolve hostname ([^\s:]+)|\bConnection to (\S+) (?:closed|broke)"
    r"|\\\\([\w.-]+)\\"
)
_USER = (
    r"A login of (\S+)|/home/([^/\s:'\"]+)|(?<!\S)-l ([\w.-]+)"
    r"|(?<![\w.+-])([a-z_][\w-]*)@(?!openssh\.com)[a-zA-Z][\w.-]*(?<!\.service)(?![\w.-])"
)
_HEX = "[0-9a-fA-F]"
_UUID = rf"{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}"


class TooManyNamesError(Exception):
    """A host's documents have more names than any host, so the host has no bundle."""


class Names:
    """Replacements of names, consistent through all documents of a session."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], str] = {}
        # How many replacements of each kind there are.
        self._numbers: Counter[str] = Counter()
        # Addresses from host paths; elsewhere such a number alone is a version.
        self.addresses: set[str] = set()
        # Cleaned texts and patterns of the names; void once another name is known.
        self._cleaned: dict[str, str] = {}
        self._of_names: list[tuple[re.Pattern[str], str]] | None = None
        # How many names may be known, while documents are searched for them.
        self._most = sys.maxsize
        self._of_forms = [(re.compile(pattern), replace) for pattern, replace in self._patterns()]

    def replacement(self, kind: str, name: str, form: str = "{kind}{number}") -> str:
        """The replacement of a name, a new one for a new name."""
        if (kind, name) not in self.known:
            self._numbers[kind] += 1
            self._add(kind, name, form.format(kind=kind, number=self._numbers[kind]))
        return self.known[kind, name]

    def of(self, kind: str) -> list[tuple[str, str]]:
        """Pairs of a name and its replacement, longest names first: one may be part of another."""
        found = [(name, new) for (known, name), new in self.known.items() if known == kind]
        return sorted(found, key=lambda pair: -len(pair[0]))

    def learn(self, documents: Iterable[Any]) -> None:
        """Collect the names that known paths or the surrounding text identify.

        Documents with too many names add none, and are refused: they would cost all hosts time.
        """
        before = dict(self.known), set(self.addresses)
        self._most = len(self.known) + MOST_NAMES
        try:
            self._learn(list(documents))
        except BaseException:
            self.known, self.addresses = before
            self._cleaned.clear()
            self._of_names = None
            raise
        finally:
            self._most = sys.maxsize

    def _learn(self, everything: list[Any]) -> None:
        for document in everything:
            for path, whole in _texts(document):
                text = _cut(whole)
                if path in HOST_PATHS:
                    self._host(text)
                for found in re.finditer(_SERVER_MESSAGE, text):
                    self._host("".join(name or "" for name in found.groups()))
                users = (
                    [text]
                    if path and path[-1] in USERS
                    else ["".join(found) for found in re.findall(_USER, text)]
                )
                for user in users:
                    if not _usual(user):
                        self.replacement("user", user)
        # A server whose form is recognized here is then replaced in any form.
        self.document(everything)

    def _host(self, name: str) -> None:
        if _private(name):
            self.replacement("address", name)
            self.addresses.add(name)
        elif re.match(r"\w*[a-zA-Z]", name) and name not in COMMON_NAMES and not PUBLIC.match(name):
            # The short name and the full name are the same host.
            self._add("host", name, self.replacement("host", name.partition(".")[0]))

    def _add(self, kind: str, name: str, new: str) -> None:
        if self.known.get((kind, name)) != new:
            if len(self.known) >= self._most:
                raise TooManyNamesError(f"more than {MOST_NAMES} names of hosts, users and devices")
            self.known[kind, name] = new
            self._cleaned.clear()
            self._of_names = None

    def clean(self, text: str) -> str:
        """A text without secrets and names."""
        if re.fullmatch(r"[\d.]+", text):
            return self.known["address", text] if text in self.addresses else text
        cleaned = self._cleaned.get(text)
        if cleaned is None:
            cleaned = self._cleaned[text] = self._clean(text)
        return cleaned

    def _clean(self, text: str) -> str:
        for pattern, replace in self._of_forms:
            text = pattern.sub(replace, text)
        if self._of_names is None:
            self._of_names = list(self._name_patterns())
        for pattern, new in self._of_names:
            text = pattern.sub(new, text)
        return text

    def _name_patterns(self) -> Iterator[tuple[re.Pattern[str], str]]:
        for kind in ("host", "server", "user"):
            domain = r"(?:\.[a-zA-Z][\w-]*)*" if kind == "host" else ""
            for name, new in self.of(kind):
                yield re.compile(rf"(?<![\w-]){re.escape(name)}{domain}(?![\w-])"), new

    def _patterns(self) -> Iterator[tuple[str, str | Callable[[re.Match[str]], str]]]:
        yield r"(?s)-----BEGIN [^-]+-----.*?(?:-----END [^-]+-----|$)", REMOVED
        yield (
            r"\b(?:ssh-\w+|ecdsa-sha2-\S{1,64}|sk-\S{1,64}@openssh\.com)"
            r" [A-Za-z0-9+/=]{16,}(?: \S+)?",
            REMOVED,
        )
        yield r"SHA256:[A-Za-z0-9+/]{40,}=?", REMOVED
        yield r"(?i)\b(bearer|basic) +[\w.~+/=-]{6,}", rf"\1 {REMOVED}"
        yield (
            # The text before the word stays, and no name after it is longer than this.
            rf"(?i)({SECRET_NAME}[\w-]{{0,256}}[\"']?\s*[:=]\s*)"
            r"(?:\"[^\"]*\"|'[^']*'|[^\s,;&]+)",
            rf"\1{REMOVED}",
        )
        yield (
            r"\b(?:gh[a-z]_|github_pat_|glpat-|hf_|sk-|xox[a-z]-|nvapi-|AKIA|ASIA)[\w-]{10,}",
            REMOVED,
        )
        yield r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?", REMOVED
        yield r"(?i)\bserial(?: ?number)?\b\s*(?:[:=]\s*)?[\w-]{0,64}?\d[\w-]*", f"serial {REMOVED}"
        yield r"(?<=[\w+.-])(://)([^/\s\"'<>]*)([^\s\"'<>]*)", self._url
        yield r"(?<!\S)-i +\S+", f"-i {REMOVED}"
        yield (
            r"(?<![\w.+-])[\w.+-]+@(?:[\w-]+(?:\.[\w-]+)+|[a-zA-Z][\w-]*)",
            lambda m: self._numbered("mail", m[0], "mail{number}"),
        )
        yield (
            _UUID,
            lambda m: self._numbered("uuid", m[0].lower(), "00000000-0000-0000-0000-{number:012d}"),
        )
        yield (
            rf"(?<![\w:-])(?:{_HEX}{{2}}[:-]){{5}}{_HEX}{{2}}(?![\w:-])",
            lambda m: self._numbered("mac", m[0].lower(), "mac{number}"),
        )
        yield _ADDRESS_4, self._address
        yield _ADDRESS_6, self._address
        yield _SERVER, lambda m: self._server(m[0])

    def _numbered(self, kind: str, name: str, form: str) -> str:
        return self.replacement(kind, name, form)

    def _url(self, match: re.Match[str]) -> str:
        """Remove password and query; replace the server unless it is public."""
        server = match[2].rpartition("@")[2]
        host, colon, port = server.partition(":")
        host = self._server(host)
        path, mark, _query = match[3].partition("?")
        return f"{match[1]}{host}{colon}{port}{path}{mark}{REMOVED if mark else ''}"

    def _address(self, match: re.Match[str]) -> str:
        return self.replacement("address", match[0]) if _private(match[0]) else match[0]

    def _server(self, name: str) -> str:
        if not name or PUBLIC.match(name) or _FILE.match(name) or name.endswith(".invalid"):
            return name
        if ("host", name.partition(".")[0]) in self.known:
            return self.known["host", name.partition(".")[0]]
        return self.replacement("server", name, "server{number}.invalid")

    def document(self, value: Any, key: str = "") -> Any:
        """A copy with every text cleaned, including keys."""
        if isinstance(value, dict):
            return {self.clean(name): self.document(inner, name) for name, inner in value.items()}
        if isinstance(value, list):
            return [self.document(inner, key) for inner in value]
        if isinstance(value, str) and value:
            if re.search(SECRET_NAME, key, re.IGNORECASE) or DEVICE_NUMBER.search(key):
                return REMOVED
            if key in USERS and not _usual(value):
                return self.replacement("user", value)
            return self.clean(_cut(value))
        return value


def _usual(user: str) -> bool:
    return user in COMMON_NAMES or user.isdigit()


def _private(text: str) -> bool:
    """Return whether a text is an address other than loopback or unspecified."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified)


def _cut(text: str) -> str:
    """The text, or the whole words of its beginning: half of a secret would not be recognized."""
    if len(text) <= MOST_TEXT:
        return text
    return f"{text[:MOST_TEXT].rstrip().rpartition(' ')[0] or text[:MOST_TEXT]} ..."


def _texts(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, ""), key
            yield from _texts(inner, (*path, key))
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner, path)
    elif isinstance(value, str):
        yield path, value


def bundles(hosts: Iterable[HostRun]) -> list[Bundle]:
    """One document for each host: plan, snapshot and verdicts, cleaned."""
    runs, names = list(hosts), Names()
    defects: dict[str, Defect] = {}
    for run in runs:
        bounded(
            "looked for names in the documents of this host",
            partial(names.learn, [run.plan, run.snapshot or run.result]),
            partial(defects.__setitem__, run.name),
        )
    return [
        _without_documents(run, names, defects[run.name])
        if run.name in defects
        else bounded(
            "wrote the bundle of this host",
            partial(_bundle, run, names),
            partial(_without_documents, run, names),
        )
        for run in runs
    ]


def _without_documents(run: HostRun, names: Names, defect: Defect) -> Bundle:
    """The bundle of a host whose documents cannot be cleaned, so are not to be sent."""
    host = names.replacement("host", run.name)
    return {
        "schema": SCHEMA,
        "host": host,
        "note": NOTE,
        "same_verdicts": False,
        "plan": undeclared(host),
        "snapshot": None,
        "result": judge.defective(defect, host),
    }


def _bundle(run: HostRun, names: Names) -> Bundle:
    plan: Plan = names.document(run.plan)
    old = environment.digests(run.plan.get("environment") or [])
    new = environment.digests(plan.get("environment") or [])
    # A cleaned text has another digest, which is replaced wherever it occurs.
    digests = dict(zip(old.values(), new.values(), strict=True))
    snapshot = _replaced_digests(names.document(run.snapshot), digests)
    result = judge.judge(plan, snapshot) if snapshot else _unsilenced(names.document(run.result))
    return {
        "schema": SCHEMA,
        "host": plan["host"],
        "note": NOTE,
        "same_verdicts": _verdicts(result) == _verdicts(run.result),
        "plan": plan,
        "snapshot": snapshot,
        "result": result,
    }


def _unsilenced(result: HostResult) -> HostResult:
    """The result without the silences of the site: they name people, and nobody else needs them."""
    checks = [cast(CheckResult, {**check}) for check in result["checks"]]
    for check in checks:
        check.pop("silenced", None)
    return {**result, "checks": checks}


def _verdicts(result: HostResult) -> list[tuple[str, str]]:
    return [(check["id"], check["verdict"]) for check in result["checks"]]


def _replaced_digests(value: Any, texts: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _replaced_digests(inner, texts) for key, inner in value.items()}
    if isinstance(value, list):
        return [_replaced_digests(inner, texts) for inner in value]
    return texts.get(value, value) if isinstance(value, str) else value
