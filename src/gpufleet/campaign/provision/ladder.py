"""The repair ladder: which step each component of a host takes next, and why. Pure.

A failing check whose remedy is `provision` names the components that it depends on, the most likely
one first. First its metadata decides (`changes`), as for every host. Where the check still fails,
its contents are compared, then it is reinstalled, then recreated, until the check passes. The other
components that the check names are compared together with it, and reinstalled when it is recreated.
After the last step a person has to look: no step is taken twice in a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpufleet.components.repairs import STEPS, key, repairable
from gpufleet.documents.plan import Plan
from gpufleet.documents.verdict import HEALTHY_VERDICTS, CheckResult, HostResult
from gpufleet.judge.due import components

METADATA = "metadata"
RUNGS = (METADATA, *STEPS)
# The steps of components that keep nothing to compare, reinstall or recreate
# apart from what the role does in any case.
ROLE_ONLY = (METADATA, "contents")
ROLE_KINDS = ("driver", "default_link", "containers")
# The rung of a check's other components, by the rung of the first one.
BESIDE = {"contents": "contents", "recreate": "reinstall"}
WORDS = {
    METADATA: "repair {}",
    "contents": "compare the contents of {}",
    "reinstall": "reinstall {}",
    "recreate": "recreate {}",
}
DONE = {
    METADATA: "repaired",
    "contents": "compared",
    "reinstall": "reinstalled",
    "recreate": "recreated",
}
# More rounds than these change nothing: each component takes each rung once.
MOST_ROUNDS = len(RUNGS)


@dataclass
class Ladder:
    """The rungs that each component of one host has taken in this run."""

    taken: dict[str, list[str]] = field(default_factory=dict)

    def next(
        self, plan: Plan, result: HostResult, differing: Mapping[str, str]
    ) -> dict[str, tuple[str, str]]:
        """The next rung of each component, and why; empty where nothing is left to try.

        `differing`: {component: why} of what the plan's changes repair. A check that also names
        one of these waits for that repair, unless it is the only one that demands a step.
        """
        checks = demanding(result)
        ready = [check for check in checks if not waits(check, differing)]
        return self._next(plan, ready, differing) or self._next(plan, checks, differing)

    def _next(
        self, plan: Plan, checks: list[CheckResult], differing: Mapping[str, str]
    ) -> dict[str, tuple[str, str]]:
        known = {key(*each) for each in repairable(plan)}
        found: dict[str, tuple[str, str]] = {}
        for check in checks:
            first, *others = [name for name in components(check) if name in known] or [""]
            # A comparison of metadata shows no difference in content.
            differs = first in differing and not needs_contents(check)
            rung = self._rung(first, differs) if first else None
            if rung is None:
                continue
            found[first] = (rung, f"{check['id']} fails")
            for other in others:
                beside = BESIDE.get(rung)
                if beside and other not in found and beside not in self.taken.get(other, []):
                    found[other] = (beside, f"{check['id']} fails")
        for name, (rung, _) in found.items():
            self.taken.setdefault(name, []).append(rung)
        return found

    def _rung(self, name: str, differs: bool) -> str | None:
        """The next rung of a component that a check names first."""
        rungs = ROLE_ONLY if name.partition(" ")[0] in ROLE_KINDS else RUNGS
        taken = self.taken.get(name, [])
        last = max((RUNGS.index(each) for each in taken), default=-1)
        left = [
            rung for rung in rungs if RUNGS.index(rung) > last and (differs or rung != METADATA)
        ]
        # A component that a repair left unfinished is not compared: it is recreated.
        if differs and taken and "recreate" in left:
            return "recreate"
        return left[0] if left else None

    def exhausted(self, check: CheckResult) -> list[str]:
        """The components of a check for which every rung was taken."""
        return [
            name
            for name in components(check)[:1]
            if self.taken.get(name) and self._rung(name, False) is None
        ]


def demanding(result: HostResult) -> list[CheckResult]:
    """The checks that are not healthy, each cause once, whose remedy is to provision."""
    return [
        check
        for check in result["checks"]
        if check["verdict"] not in HEALTHY_VERDICTS
        and "explained_by" not in check
        and components(check)
    ]


def waits(check: CheckResult, differing: Mapping[str, str]) -> bool:
    """Return whether a check may pass once another component that it names is repaired."""
    first, *others = components(check) or [""]
    return first not in differing and any(name in differing for name in others)


def needs_contents(check: CheckResult) -> bool:
    """Return whether only a comparison of contents shows the finding of the check."""
    return any("--contents" in part.get("command", "") for part in check.get("repairs", []))


def sentence(name: str, rung: str, why: str) -> str:
    """`recreate stack tensorflow-2.13.1: stack.matmul fails`."""
    return f"{WORDS[rung].format(name)}: {why}"


def person_has_to_look(
    check: CheckResult, names: list[str], taken: list[str], *, failed: bool = False
) -> CheckResult:
    """The check with the remedy that is left when every step was taken.

    `failed`: ansible-playbook failed on the host, so that the last step was not finished.
    """
    components = ", ".join(names)
    if failed:
        step = WORDS[taken[-1]].format(components)
        act = (
            f"ansible-playbook failed on this host while it was to {step}: its output says why;"
            " remove that cause, then run the same command again"
        )
    else:
        steps = " and ".join(DONE[rung] for rung in taken)
        act = (
            f"a person has to look: provision has {steps} {components}, and this remains;"
            " ./gpufleet verify --save DIR keeps what shows it"
        )
    return {**check, "remedy": act, "repairs": [{"by": "person", "act": act}]}
