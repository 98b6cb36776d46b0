"""The directory of the commissionings: a record of each host, its evidence, its certificate.

    DIR/HOST.json                     the record, written by rename after each step
    DIR/evidence/HOST/STAGE-CHECKSUM-NAME.json
                                      what a stage has found: snapshot, plan, verdicts
    DIR/certificates/HOST.json, .html and a signature of each
    DIR/refusals/HOST.json, .html     of a host that did not pass, with the parts to send back

A run may be killed at any moment: a stage that its record calls running is repeated.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from gpufleet.documents.commission import CommissionRecord, EvidenceFile
from gpufleet.documents.validator import faults
from gpufleet.errors import ConfigurationError
from gpufleet.files import open_lock, write_file
from gpufleet.paths import host_file_name

from .stages import burn_in_s

SCHEMA = 1
CERTIFICATES, REFUSALS, EVIDENCE, LOCKS = "certificates", "refusals", "evidence", "locks"
# The directory of the locks beside a history.
HISTORY_LOCKS = "commission-locks"
SIGNATURE = ".sig"
# The files of a certificate or refusal in the order in which they are renamed. The document comes
# last: where a run was killed before, the next one renames what is left.
ENDINGS = (f".html{SIGNATURE}", f".json{SIGNATURE}", ".html", ".json")


@dataclass(frozen=True)
class Store:
    """The directory."""

    directory: Path

    def record_path(self, host: str) -> Path:
        """The file of a host's record."""
        return self.directory / f"{host_file_name(host)}.json"

    def read(self, host: str) -> CommissionRecord:
        """A host's record, an empty one if it has none. Raises `ConfigurationError` if damaged."""
        path = self.record_path(host)
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            if found := faults(CommissionRecord, document, "record"):
                raise ValueError(str(found[0]))
            if document["schema"] != SCHEMA:
                raise ValueError("another release wrote it")
            if document["host"] != host:
                raise ValueError(f"it is of {document['host']!r}")
            for stage in document["stages"].values():
                burn_in_s(stage["inputs"])
        except FileNotFoundError:
            return {"schema": SCHEMA, "host": host, "stages": {}}
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigurationError(
                f"The record of {host} cannot be read ({error}).",
                str(path),
                "Move the file away: the host is then commissioned from the beginning.",
            ) from error
        record: CommissionRecord = document
        return record

    def write(self, record: CommissionRecord) -> None:
        """Write a record, all or nothing."""
        self._write(self.record_path(record["host"]), _pretty(record))

    def keep(self, host: str, stage: str, documents: Mapping[str, str]) -> list[EvidenceFile]:
        """Write what a stage has found, {name: JSON}; the files with their checksums.

        A certificate or refusal lists them, so a later run writes others.
        """
        kept: list[EvidenceFile] = []
        for name, text in documents.items():
            digest = hashlib.sha256(text.encode()).hexdigest()[:12]
            own = f"{stage}-{digest}-{name}.json"
            path = self.directory / EVIDENCE / host_file_name(host) / own
            self._write(path, text)
            kept.append({"file": self.relative(path), "sha256": sha256_of(path)})
        return kept

    def load(self, files: Sequence[EvidenceFile], name: str) -> Any:
        """A document among a stage's evidence, None if there is none that can be read."""
        for each in files:
            if each["file"].endswith(f"-{name}.json"):
                with suppress(OSError, ValueError):
                    return json.loads((self.directory / each["file"]).read_text(encoding="utf-8"))
        return None

    def issue(
        self, kind: str, host: str, document: object, page: str, sign: Callable[[Path], object]
    ) -> Path:
        """Write and sign a certificate or refusal with its page; the file of the document.

        `kind`: `CERTIFICATES` or `REFUSALS`. All files are complete before the first one appears,
        and what was issued to the host before is kept by its time.
        """
        name = host_file_name(host)
        path = self.directory / kind / f"{name}.json"
        # A file that a killed run has left there is none of this run's.
        new = path.with_name(f".{name}.new")
        shutil.rmtree(new, ignore_errors=True)
        try:
            for ending, text in ((".html", page), (".json", _pretty(document))):
                self._write(new / f"{name}{ending}", text)
                sign(new / f"{name}{ending}")
            # A host has one of them, never both.
            for each in (CERTIFICATES, REFUSALS):
                self.set_aside(each, host)
            for ending in ENDINGS:
                if (file := new / f"{name}{ending}").exists():
                    file.replace(path.with_name(file.name))
        finally:
            shutil.rmtree(new, ignore_errors=True)
        return path

    def issued_files(self, path: Path) -> list[EvidenceFile]:
        """A certificate's file, its page, and a signature of each if it has one."""
        both = (path, path.with_suffix(".html"))
        every = [*both, *(Path(f"{each}{SIGNATURE}") for each in both)]
        return [
            {"file": self.relative(each), "sha256": sha256_of(each)}
            for each in every
            if each.is_file()
        ]

    def set_aside(self, kind: str, host: str) -> None:
        """Rename a host's certificate or refusal, if it has one, by the time of its issue."""
        name = host_file_name(host)
        path = self.directory / kind / f"{name}.json"
        if not any(path.with_name(f"{name}{ending}").exists() for ending in ENDINGS):
            return
        try:
            issued = str(json.loads(path.read_text(encoding="utf-8"))["issued"]).replace(":", "-")
        except FileNotFoundError:
            # The run that issued it was killed before the document appeared.
            issued = "unfinished"
        except (OSError, ValueError, KeyError, TypeError):
            issued = "damaged"
        kept = f"{name}-{host_file_name(issued)}"
        stems = itertools.chain((kept,), (f"{kept}-{number}" for number in itertools.count(2)))
        stem = next(each for each in stems if not path.with_name(f"{each}.json").exists())
        for ending in ENDINGS:
            old = path.with_name(f"{name}{ending}")
            if old.exists():
                old.replace(path.with_name(f"{stem}{ending}"))

    def relative(self, path: Path) -> str:
        """A path below the directory, as documents have it."""
        return str(path.relative_to(self.directory))

    def intact(self, files: Sequence[EvidenceFile]) -> bool:
        """Return whether these files are unchanged."""
        return all(
            (self.directory / each["file"]).is_file()
            and sha256_of(self.directory / each["file"]) == each["sha256"]
            for each in files
        )

    @contextmanager
    def alone(self, hosts: Sequence[str], history: Path) -> Iterator[None]:
        """Hold the locks of these hosts; `ConfigurationError` where one is being commissioned.

        A lock is in this directory, and one is beside the history: a run with another directory
        writes the same states.
        """
        with ExitStack() as held:
            for directory in (self.directory / LOCKS, history.parent / HISTORY_LOCKS):
                self._make(directory)
                for host in hosts:
                    held.enter_context(_lock(directory, host))
            yield

    def _write(self, path: Path, text: str) -> None:
        self._make(path.parent)
        try:
            write_file(path, text, 0o644)
        except OSError as error:
            raise self._refused(error) from error

    def _make(self, directory: Path) -> None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> ConfigurationError:
        return ConfigurationError(
            f"The commissioning cannot be recorded: {error.strerror or error}.",
            str(self.directory),
            "Use another directory: --state DIR.",
        )


def _lock(directory: Path, host: str) -> TextIO:
    """The lock of a host in a directory, until it is closed."""
    lock = open_lock(directory / f"{host_file_name(host)}.lock")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise ConfigurationError(
            "This host is being commissioned.", host, "Wait until that run ends."
        ) from None
    return lock


def sha256_of(path: Path) -> str:
    """The checksum of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _pretty(document: object) -> str:
    """JSON for people and programs, the same text for equal documents."""
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
