"""The consequences of a host's stages: its certificate or refusal, its state, its service."""

from __future__ import annotations

from pathlib import Path

from gpufleet.documents.clock import utc_now
from gpufleet.documents.commission import Certificate, IssuedCertificate
from gpufleet.errors import ConfigurationError, Defect, guarded
from gpufleet.fleet.schedulers import SchedulerError
from gpufleet.report import certificate_page

from . import signing
from .candidates import FAILED, MARK, OWNER, PASSED, Candidate, Log, Request
from .certificate import Seen, certificate
from .identity import other_parts, parts_of
from .records import CERTIFICATES, REFUSALS, SIGNATURE, Store, sha256_of
from .stages import STAGES

NAMESPACES = {CERTIFICATES: signing.CERTIFICATE, REFUSALS: signing.REFUSAL}
# The files of a certificate that are signed: the document and its page.
SIGNED = 2


def conclude(each: Candidate, request: Request, store: Store, log: Log) -> None:
    """Issue what a host has earned. What goes wrong here is the host's own, and stops no other."""

    def work() -> None:
        if each.outcome == PASSED:
            certify(each, request, store, log)
        elif each.outcome == FAILED:
            refuse(each, request, store, log)
        else:
            log(f"{each.name} is not judged: its {each.stopped} names no part to send back")

    def failed(defect: Defect) -> None:
        each.error = defect.error

    try:
        guarded("concluded on this host", work, failed)
    except ConfigurationError as error:
        each.error = str(error)
    if each.error:
        what = f"{each.issued} was issued, but" if each.issued else "nothing was issued:"
        log(f"{each.name}: {what} {each.error}", "bold red")


def certify(each: Candidate, request: Request, store: Store, log: Log) -> None:
    """Issue the certificate, unless the host has it already; return the host to service."""
    key, known = str(request.key or ""), each.record.get("certificate")
    if known and is_whole(known, store) and is_signed(known, request, store):
        each.issued, key = store.directory / known["file"], known["key"]
    else:
        found = concluded(each, request, store)
        if known:
            # It is signed again, or what was lost of it is written again: nothing was proven since.
            found["issued"] = known["issued"]
        path = issue(each, request, store, CERTIFICATES, found)
        each.record["certificate"] = {
            "file": store.relative(path),
            "sha256": sha256_of(path),
            "issued": found["issued"],
            "key": key,
            "files": store.issued_files(path),
        }
        store.write(each.record)
    request.set_state(each.name, "production", "it is certified")
    signed = f"signed by {key}" if key else "not signed: no --key was named"
    log(f"{each.name} is certified: {each.issued} ({signed})", "green")
    return_to_service(each, request, log)


def is_whole(known: IssuedCertificate, store: Store) -> bool:
    """Return whether a certificate, its page and their signatures are as they were issued."""
    files = known.get("files") or []
    return bool(files) and store.intact(files)


def is_signed(known: IssuedCertificate, request: Request, store: Store) -> bool:
    """Return whether the requested key has signed a certificate and its page; any, where none is.

    The same file may hold another key than the one that signed.
    """
    if not request.key:
        return True
    signers = [
        signing.signer(store.directory / each["file"])
        for each in known.get("files") or []
        if each["file"].endswith(SIGNATURE)
    ]
    return len(signers) == SIGNED and {*signers} == {request.signer}


def refuse(each: Candidate, request: Request, store: Store, log: Log) -> None:
    """Keep the host out of service, and issue the refusal.

    The refusal comes last: a key that does not sign leaves no bad host in service.
    """
    found = concluded(each, request, store)
    named = [certificate_page.named(entry["part"]) for entry in found["faulty"]]
    why = f"{each.stopped} failed: {'; '.join(named) or each.reasons[0]['cause']}"
    log(f"{each.name} is refused: {why}", "bold red")
    try:
        request.set_state(each.name, "quarantined", why)
    finally:
        keep_out_of_service(each, request, why, log)
    path = issue(each, request, store, REFUSALS, found)
    log(f"for the vendor: {path.with_suffix('.html')}")


def keep_out_of_service(each: Candidate, request: Request, why: str, log: Log) -> None:
    """Drain a refused host, unless somebody else has."""
    scheduler = request.scheduler
    if not scheduler.commands:
        return
    try:
        state = scheduler.states([each.name])[each.name]
        if state.ours(OWNER) or not state.unschedulable:
            scheduler.drain(each.name, f"{MARK} {why}")
    except SchedulerError as error:
        # The refusal stands, whatever the scheduler answers.
        command = scheduler.drain_command(each.name, f"{MARK} {why}")
        log(
            f"{each.name} is refused, and may still be in service: {error} By hand: {command}",
            "bold red",
        )


def concluded(each: Candidate, request: Request, store: Store) -> Certificate:
    """The certificate or refusal of a host, by what its stages have recorded."""
    each.document = certificate(
        each.record,
        last_seen(each, store),
        by=request.by,
        issued=utc_now(),
        program=request.program,
    )
    return each.document


def issue(
    each: Candidate, request: Request, store: Store, kind: str, document: Certificate
) -> Path:
    """Write and sign a certificate or refusal; its file."""
    namespace, key = NAMESPACES[kind], request.key

    def sign(path: Path) -> None:
        if key:
            signing.sign(path, key, namespace)

    page = certificate_page.render(document, namespace)
    each.issued = store.issue(kind, each.name, document, page, sign)
    return each.issued


def last_seen(each: Candidate, store: Store) -> Seen:
    """The host as its last stage with a verification saw it, by that stage's evidence."""
    for stage in reversed(STAGES):
        kept = each.record["stages"].get(stage.name)
        if kept and (result := store.load(kept["evidence"], "verdicts")):
            return Seen(each.declared, store.load(kept["evidence"], "snapshot"), result)
    return Seen(each.declared, None, {"verdict": "INCONCLUSIVE", "checks": []})


def other_than_certified(each: Candidate, store: Store) -> list[str]:
    """Sentences on the parts that differ from the host's certificate, if it has one."""
    if "certificate" not in each.record or each.seen is None:
        return []
    certified = parts_of(each.name, last_seen(each, store).snapshot)
    return other_parts(certified, parts_of(each.name, each.seen.snapshot))


def return_to_service(each: Candidate, request: Request, log: Log) -> None:
    """Resume a certified host, whoever has drained it: the caller has asked for it.

    A host on which no stage was run now, and that somebody else drained, stays drained.
    """
    scheduler = request.scheduler
    if not scheduler.commands:
        return
    try:
        state = scheduler.states([each.name])[each.name]
        if state.unschedulable and (each.ran or state.ours(OWNER)):
            scheduler.resume(each.name)
        if missing := scheduler.not_returned([each.name]):
            state = missing[each.name]
            raise SchedulerError(f"It is not back in service ({state.state} {state.reason}).")
        log(f"{each.name} is back in service")
    except SchedulerError as error:
        command = scheduler.resume_command(each.name)
        log(f"{each.name} is certified, but out of service: {error} By hand: {command}", "yellow")
