"""A check of one item as a check of all items."""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.components.base.items import for_each
from gpufleet.components.checks import Evidence, Finding, Sections
from tests.support.healthy_host import Document

UNKNOWN = Finding("the second one is unknown", "inspect it")


def items(plan: Document, observed: Sections) -> Iterator[str | Finding]:
    yield from ("first", UNKNOWN, "third")


@for_each(items)
def judged(plan: Document, observed: Sections, item: str) -> Iterator[Finding | Evidence]:
    """Each item is right."""
    yield Evidence(item)


def test_each_item_is_judged_and_a_finding_takes_the_place_of_its_item(
    plan: Document, snapshot: Document
) -> None:
    found = list(judged(plan, Sections(snapshot, ())))
    assert found == [Evidence("first"), UNKNOWN, Evidence("third")]


def test_the_statement_of_a_check_of_items_is_its_own() -> None:
    assert judged.__doc__ == "Each item is right."
