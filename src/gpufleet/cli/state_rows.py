"""The states of a host as rows of a table, for `fleet` and `history`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpufleet.documents.commission import HostState

_STYLES = {"quarantined": "bold red", "returned": "dim", "commissioning": "yellow"}


def table(*leading: str) -> Table:
    """A table of states; `leading` are the titles of its first columns."""
    found = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in (*leading, "state", "since", "by"):
        found.add_column(title, no_wrap=True)
    found.add_column("why", overflow="fold")
    return found


def add(to: Table, state: HostState, *leading: str, style: str | None = None) -> None:
    """Add a state; `style`: another one than the state has."""
    to.add_row(
        *map(Text, leading),
        state["state"],
        *map(Text, (state["since"], state["by"], state["why"])),
        style=_STYLES.get(state["state"], "") if style is None else style,
    )


def show_past(console: Console, states: Sequence[HostState]) -> None:
    """Print the states of one host, oldest first."""
    console.print(Text("states, oldest first", style="bold"))
    found = table()
    for state in states:
        add(found, state)
    console.print(found)
