"""Which message each channel still gets: those of this run, and of runs that it missed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from gpufleet.documents.nightly import Changes

from . import channels, state
from .config import Settings
from .history import History
from .message_forms import Message
from .state import DELIVERED, DONE, ERROR, HISTORY, OWED, log

# At most so many earlier runs are still notified when their notifications failed.
MOST_OWED = 7


class Runs(NamedTuple):
    """This run: its number in the history, its changes, and a sentence for each action."""

    night: int
    changes: Changes
    done: Sequence[str]


class Tell(Protocol):
    """Sends the message of a run; `late`: of an earlier one."""

    def __call__(
        self, channel: channels.Channel, document: Changes, done: list[str], late: bool
    ) -> None: ...


def keep(settings: Settings, night: str, done: Sequence[str]) -> None:
    """Keep what a run did until it is delivered: a mail server may be down, or a run killed."""
    path = settings.state_dir / DELIVERED
    delivered = state.read(path)[0]
    delivered.setdefault(DONE, {})[night] = [*done]
    state.write(path, delivered)


def notify(settings: Settings, runs: Runs, tell: Tell) -> None:
    """Notify each channel of a run, then of the runs that it missed, the oldest first.

    A message that a channel refuses twice is dropped: it must not block later ones.
    """
    night, path = runs.night, settings.state_dir / DELIVERED
    (delivered, _), missed = state.read(path), []
    owed: dict[str, list[int]] = delivered.setdefault(OWED, {})
    done: dict[str, list[str]] = {**delivered.get(DONE, {}), str(night): [*runs.done]}
    with History(settings.state_dir / HISTORY) as history:
        earlier = [
            each.id for each in history.nights() if each.kind == "nightly" and each.id < night
        ][-MOST_OWED:]
        configured = channels.configured_channels(settings)
        former = delivered.keys() - {OWED, DONE} - {channel.key for channel in configured}
        # A new address takes over what its former one was not sent.
        was = min((delivered.pop(key) for key in former), default=night - 1)
        left = {each for key in former for each in owed.pop(key, [])}
        for channel in configured:
            if channel.key not in delivered:
                delivered[channel.key], owed[channel.key] = was, sorted(left)
            last, still = delivered[channel.key], owed.get(channel.key, [])
            late = [each for each in earlier if each > last or each in still]
            delivered[channel.key], owed[channel.key] = night, [*late, night]
            for each in (night, *late):
                try:
                    document = runs.changes if each == night else history.changes(each)
                    tell(channel, document, done.get(str(each), []), each != night)
                except channels.DeliveryError as error:
                    missed.append(str(error))
                    if not error.reached and (each == night or error.later):
                        break
                owed[channel.key].remove(each)
                state.write(path, delivered)
            state.write(path, delivered)
    undelivered = {str(each) for runs in owed.values() for each in runs}
    still_done = {run: texts for run, texts in done.items() if texts and run in undelivered}
    delivered.pop(DONE, None)
    if still_done:
        delivered[DONE] = still_done
    state.write(path, delivered)
    if missed:
        raise channels.DeliveryError("; ".join(missed))


def notify_all(settings: Settings, message: Message) -> list[str]:
    """Send a message to every channel; return the reason of each failure."""
    failed = []
    for channel in channels.configured_channels(settings):
        try:
            channels.deliver(channel, message, settings.tell_within_s)
            log(f"Notified: {channel.name}.")
        except channels.DeliveryError as error:
            log(str(error), ERROR)
            failed.append(str(error))
    return failed
