"""Start, continue or abandon a rollout: checks the request, reads and writes `rollout.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from gpufleet.campaign.provision.provision import checked_hosts
from gpufleet.documents.verdict import FAILED, HEALTHY
from gpufleet.errors import ConfigurationError
from gpufleet.fleet.inventory import HostSelector, inventory_hosts
from gpufleet.fleet.schedulers import scheduler_of

from .batches import CANARY, batches, canaries, size_of
from .progress import Progress, Store, wait_for_leftovers
from .runner import OWNER, Rollout

# The options that stay as they were until the rollout ends; keys of `settings` in rollout.json.
SETTINGS = ("hook", "drain_wait", "pause", "rollback", "force", "fanout", "deadline", "deep")
# The options that --resume may change for the rest of the rollout.
CHANGEABLE = ("drain_wait", "rollback", "fanout", "deadline")


@dataclass(frozen=True)
class Request:
    """The request of the command line; `settings` has one value for each of `SETTINGS`."""

    selector: HostSelector
    canary: str
    batch: str
    settings: Mapping[str, Any]
    ansible_args: Sequence[str] = ()


def prepare(request: Request) -> Progress:
    """Return the rollout's batches; raise `ConfigurationError` for every mistake in the request."""
    check_numbers(request.settings)
    selector = replace(request.selector, inventories=absolute(request.selector.inventories))
    hosts = checked_hosts(selector)
    names = [host.name for host in hosts]
    domains = {host.name: host.domain for host in hosts} if selector.domain else None
    planned = batches(
        names, canaries(request.canary, names), size_of(request.batch, len(names)), domains
    )
    if request.settings["pause"] and planned[0].name != CANARY:
        raise ConfigurationError(
            "There is no canary after which to pause.",
            "--pause",
            "Leave out --pause, or --canary 0.",
        )
    return Progress(
        asdict(selector), {**request.settings, "words": list(request.ansible_args)}, planned
    )


def run(progress: Progress, store: Store, console: Console, reports: Path) -> int:
    """Run the batches that are left; return the exit status. The caller holds the store's lock."""
    hosts = checked_hosts(progress.selector)
    scheduler = scheduler_of(progress.settings["hook"], hosts, progress.selector)
    rollout = Rollout(progress, store, scheduler, console, reports)
    wait_for_leftovers(progress.started, rollout.log)
    rollout.check([host.name for host in hosts])
    return rollout.run()


def abandon(progress: Progress, store: Store, console: Console) -> int:
    """Mark the rollout as abandoned, and list the hosts that it leaves drained.

    Works without a readable inventory: a broken one is often the reason to abandon.
    """
    progress.status = "abandoned"
    store.save(progress)
    console.print(f"Abandoned the {progress.summary}.", markup=False)
    try:
        hosts = inventory_hosts(progress.selector)
        scheduler = scheduler_of(progress.settings["hook"], hosts, progress.selector)
        states = scheduler.states(known_only=True)
    except ConfigurationError as error:
        console.print(
            f"Cannot determine which hosts are still drained: {error}", style="yellow", markup=False
        )
        return FAILED if progress.settings["hook"] != "none" else HEALTHY
    for host, state in states.items():
        if state.ours(OWNER):
            console.print(
                f"  {host} is still drained ({state.reason}). To resume it:"
                f" {scheduler.resume_command(host)}",
                markup=False,
            )
    started = {host for batch in progress.batches[: progress.done + 1] for host in batch.hosts}
    unknown = sorted(started - set(states))
    if unknown:
        console.print(
            f"  {', '.join(unknown)}: no longer in the inventory, or unknown to the"
            " scheduler. Check in the scheduler whether they are drained.",
            markup=False,
        )
    return HEALTHY


def resume(progress: Progress, given: Mapping[str, Any], ansible_args: Sequence[str]) -> None:
    """Apply the options of --resume; raise `ConfigurationError` for one that must not change.

    `given`: the options that the command line names, by their argparse names.
    """
    selector = progress.selector
    original = {
        **progress.settings,
        "inventory": selector.inventories,
        "limit": selector.limit,
        "extra_vars": selector.extra_vars,
        "vault_password_file": selector.vault_password_files,
        "domain": selector.domain,
    }
    if "inventory" in given:
        given = {**given, "inventory": absolute(given["inventory"])}
    fixed = {
        name: value
        for name, value in given.items()
        if name not in {*CHANGEABLE, "resume", "state", "report"}
    }
    different = [
        f"--{name.replace('_', '-')}"
        for name, value in fixed.items()
        if name not in original or original[name] != value
    ]
    different += [arg for arg in ansible_args if list(ansible_args) != progress.settings["words"]]
    if different:
        raise ConfigurationError(
            f"The rollout was started without {' '.join(different)}, or with another value.",
            "--resume",
            "Leave it out; or run --abandon, and start another rollout.",
        )
    changed = {name: given[name] for name in CHANGEABLE if name in given}
    check_numbers({**progress.settings, **changed})
    progress.settings.update(changed)


def absolute(inventories: Sequence[str]) -> list[str]:
    """Inventories by absolute path, so that --resume works from another directory."""
    return [str(Path(name).resolve()) if Path(name).exists() else name for name in inventories]


def check_numbers(settings: Mapping[str, Any]) -> None:
    """Refuse numbers that are out of range."""
    if settings["fanout"] < 1 or settings["deadline"] <= 0 or settings["drain_wait"] < 0:
        raise ConfigurationError(
            "--fanout and --deadline must be greater than 0, --drain-wait 0 or more."
        )
