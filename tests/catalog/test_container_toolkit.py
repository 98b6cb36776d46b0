"""Known vulnerabilities of NVIDIA's container toolkit."""

from __future__ import annotations

import re

import pytest

from gpufleet.catalog import container_toolkit, facts, versions


def test_each_vulnerability_has_a_name_a_release_without_it_and_a_bulletin() -> None:
    known = container_toolkit.known()
    assert len({each.cve for each in known}) == len(known)
    for each in known:
        assert re.fullmatch(r"CVE-\d{4}-\d{4,5}", each.cve)
        assert versions.is_dotted(each.fixed)
        assert each.source.startswith("https://nvidia.custhelp.com/app/answers/detail/a_id/")
    fixed = [versions.key(each.fixed) for each in known]
    assert fixed == sorted(fixed)
    document = facts.document("container_toolkit.yml")
    assert {row["source"] for row in document["vulnerabilities"]} == set(document["sources"])


@pytest.mark.parametrize(
    ("release", "first", "count"),
    [
        ("1.13.5", "CVE-2024-0132", 10),
        ("1.14.0", "CVE-2024-0132", 10),
        ("1.16.2", "CVE-2024-0134", 8),
        ("1.17.3", "CVE-2025-23359", 4),
        ("1.17.7", "CVE-2025-23266", 3),
        ("1.17.8", "CVE-2026-24260", 1),
        ("1.19.0", "CVE-2026-24260", 1),
    ],
)
def test_a_release_has_each_vulnerability_that_was_fixed_later(
    release: str, first: str, count: int
) -> None:
    found = container_toolkit.vulnerabilities(release)
    assert (found[0].cve, len(found)) == (first, count)
    assert container_toolkit.first_without(found) == "1.19.1"
    assert container_toolkit.vulnerabilities("1.19.1") == []


def test_the_release_that_fixes_one_does_not_have_it_and_its_candidate_does() -> None:
    for each in container_toolkit.known():
        assert each not in container_toolkit.vulnerabilities(each.fixed)
        assert each in container_toolkit.vulnerabilities(f"{each.fixed}rc1")
        assert each not in container_toolkit.vulnerabilities("1.0", [each.cve])


@pytest.mark.parametrize(
    ("package", "release"),
    [
        ("1.17.8-1", "1.17.8"),
        ("1.17.8", "1.17.8"),
        ("1:1.17.8-0ubuntu1", "1.17.8"),
        ("1.18.0~rc.3-1", "1.18.0rc3"),
        ("1.18.0~dev-1", None),
        ("", None),
        (None, None),
        (1.17, None),
        ("9" * 5000, None),
        ("unknown", None),
    ],
)
def test_a_package_version_contains_a_release(package: object, release: str | None) -> None:
    assert container_toolkit.release(package) == release
