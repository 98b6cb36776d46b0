"""Fast tests first: what needs no host, then what needs one, then whole stories on hosts."""

from __future__ import annotations

import pytest

SLOWER = ("lab", "slow")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by cost, keeping the order within a module, where acceptance tests tell a story."""

    def cost(item: pytest.Item) -> tuple[bool, bool]:
        return any(map(item.get_closest_marker, SLOWER)), "acceptance" in item.nodeid

    items.sort(key=cost)
