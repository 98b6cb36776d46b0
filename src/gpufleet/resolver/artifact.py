"""Artifacts: what to download, and what it is checked against.

A site's own word (`gpu_artifacts`) goes over the catalogue's. A checksum of the site's makes it
another file, so the catalogue's other figures about the old one (checksums, size) are dropped.
"""

from __future__ import annotations

from typing import Any

from gpufleet.model.problems import Code

from .context import ResolveContext

Row = dict[str, Any]

DIGESTS = ("sha256", "sha512", "md5")  # in the order of preference; md5 only where it is allowed


def describe(context: ResolveContext, row: Row) -> Row:
    """An artifact as the plan carries it, with the site's word over the catalogue's.

    `checksum` is what the file is checked against, as ALGORITHM:HEX, by the best that is known.
    """
    own = context.spec.artifacts.get(row["file"], {})
    known = {key: row.get(key) for key in ("file", "url", "size_bytes", *DIGESTS)}
    if any(own[name] != known[name] for name in DIGESTS if name in own):
        known |= dict.fromkeys(("size_bytes", *DIGESTS))
    known |= own
    checksum = next((f"{name}:{known[name]}" for name in DIGESTS if known[name]), None)
    return {
        **{key: known[key] for key in ("file", "url", "sha256", "md5")},
        "checksum": checksum,
        "size_bytes": known["size_bytes"],
        "login_required": row.get("login_required", False),
    }


def usable(context: ResolveContext, row: Row) -> bool:
    """Whether the artifact can be checked as the site allows it."""
    checksum = describe(context, row)["checksum"]
    return bool(checksum) and (context.spec.allow_md5 or not checksum.startswith("md5:"))


def check(context: ResolveContext, row: Row, what: str, where: str) -> None:
    """Refuse an artifact that cannot be checked as the site allows it."""
    if usable(context, row):
        return
    known = describe(context, row)
    override = f'gpu_artifacts: {{"{row["file"]}": {{sha256: "..."}}}}'
    if known["md5"]:
        context.refuse(
            Code.ARTIFACT_MD5_ONLY,
            f"{row['file']} ({what}) is known by md5 only, and md5 can be forged",
            where,
            f"say gpu_allow_md5: true, or give its checksum: {override}",
        )
        return
    context.refuse(
        Code.ARTIFACT_WITHOUT_CHECKSUM,
        f"no checksum of {row['file']} ({what}) is known",
        where,
        f"download it yourself, check it, and give its checksum: {override}; "
        "or ask for another release",
    )
