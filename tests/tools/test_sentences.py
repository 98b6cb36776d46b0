"""No sentence that gpufleet says is broken in a way that a pattern can find.

Evidence is not judged: it quotes other programs, and data.
"""

from __future__ import annotations

import re

import pytest

from tools.sentences import sentences

NOUNS = "GPUs|ports|files|hosts|rows|numbers|blocks|sums|products|replicas|nights|instances|checks"
FAULTS = {
    "two blanks": r"\S  +\S",
    "a doubled full stop": r"(?<!\.)[.?!][;,.](?![./])|[;,:]\.(?![\w./])",
    "a blank before a comma": r"\w [,;](?!\w)",
    "an empty item": r"\( ?,|, ?\)|, ,|\( | \)|: \)",
    "a value of Python": r"\('[^']*',|\['[^']*'[,\]]|\b(?:None|True|False)\b",
    "a doubled word": r"\b([a-z]{2,}) \1\b",
    "a missing blank": r"[a-z][;!?][A-Za-z]|[a-z]\.[A-Z][a-z]+ [a-z]",
    "one thing in the plural": rf"(?<![\w.,:=-])(?<!GPU )1 (?:(?:wrong|declared|NVIDIA|MIG) )?(?:{NOUNS})\b",
    "a capital on a variable": r"^Gpu_",
}
# What other programs say, as gpufleet quotes it, and a value that is shown in part.
QUOTED = ("Blas GEMM launch failed", "docker: Error response", "more characters)")


def faults(text: str) -> list[str]:
    """The faults of a sentence, by their names."""
    if any(quote in text for quote in QUOTED):
        return []
    named = [name for name, pattern in FAULTS.items() if re.search(pattern, text)]
    outside = re.sub(r"(?<!\w)'[^']*'(?!\w)|\"[^\"]*\"|`[^`]*`", "", text)
    pairs = [outside.count(first) == outside.count(last) for first, last in ("()", "[]", "{}")]
    return named if all(pairs) else [*named, "an open bracket"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("the disk is full.. Free space", "a doubled full stop"),
        ("Is it installed?. see gpu.smi", "a doubled full stop"),
        ("(H100 (compute capability 9.0),), not managed", "an empty item"),
        ("the minimum is None", "a value of Python"),
        ("Since driver driver was installed", "a doubled word"),
        ("CUDA 11.8 lists 1 GPUs", "one thing in the plural"),
        ("Gpu_network declares it", "a capital on a variable"),
        ("the host is gone (and 1 more", "an open bracket"),
    ],
)
def test_a_broken_sentence_is_found(text: str, fault: str) -> None:
    assert faults(text) == [fault] or fault in faults(text)


@pytest.mark.parametrize(
    "text",
    [
        "gpu_expect: {network: [{ports: ..., role: storage}, ...]}",
        "write it as http(s)://HOST/... or file:///..., without a login",
        "1 of 8 declared GPUs is gone; 2 GPUs compute",
        "the key's owner (root) is unknown",
    ],
)
def test_a_whole_sentence_is_none(text: str) -> None:
    assert faults(text) == []


def test_no_sentence_is_broken() -> None:
    said = [each for each in sentences() if not each[0].endswith("evidence")]
    assert len(said) > 2000
    broken = [f"{', '.join(found)}: {text} ({place})" for place, text in said
              if (found := faults(text))]  # fmt: skip
    assert broken == []
