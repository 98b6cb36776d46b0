"""Artifacts: what to download, and the checksum to verify it with.

`gpu_artifacts` overrides the catalog. A declared checksum means another file: then the catalog's
other checksums and its size are dropped.
"""

from __future__ import annotations

from gpufleet.components.base.context import ResolveContext
from gpufleet.documents.plan import Artifact
from gpufleet.documents.problems import Code
from gpufleet.documents.types import Row
from gpufleet.on_host.addresses import public_addresses

DIGESTS = ("sha256", "sha512", "md5")  # in the order of preference; md5 only where it is allowed


def describe(context: ResolveContext, row: Row) -> Artifact:
    """An artifact as the plan carries it, gpu_artifacts over the catalog.

    `checksum` is ALGORITHM:HEX, by the best algorithm that is known.
    """
    own = context.spec.artifacts.get(row["file"], {})
    known = {key: row.get(key) for key in ("file", "url", "size_bytes", *DIGESTS)}
    if any(own[name] != known[name] for name in DIGESTS if name in own):
        known |= dict.fromkeys(("size_bytes", *DIGESTS))
    known |= own
    checksum = next((f"{name}:{known[name]}" for name in DIGESTS if known[name]), None)
    return Artifact(
        file=known["file"],
        url=public_addresses(known["url"]) if known["url"] else None,
        sha256=known["sha256"],
        md5=known["md5"],
        checksum=checksum,
        size_bytes=known["size_bytes"],
        login_required=row.get("login_required", False),
    )


def usable(context: ResolveContext, row: Row) -> bool:
    """Return whether the artifact has a checksum that the spec allows."""
    checksum = describe(context, row)["checksum"]
    if not checksum:
        return False
    return context.spec.allow_md5 or not checksum.startswith("md5:")


def check(context: ResolveContext, row: Row, what: str, where: str) -> None:
    """Refuse an artifact without a checksum that the spec allows."""
    if usable(context, row):
        return
    known = describe(context, row)
    override = f'gpu_artifacts: {{"{row["file"]}": {{sha256: "..."}}}}'
    if known["md5"]:
        context.refuse(
            Code.ARTIFACT_MD5_ONLY,
            f"only an md5 of {row['file']} ({what}) is known, and md5 can be forged",
            where,
            f"set gpu_allow_md5: true, or declare its checksum: {override}",
        )
        return
    context.refuse(
        Code.ARTIFACT_WITHOUT_CHECKSUM,
        f"no checksum of {row['file']} ({what}) is known",
        where,
        f"download it, verify it, and declare its checksum: {override}; or declare another release",
    )
