"""The verbs of `gpufleet`, grouped by what people do. Data only: `gpufleet --help` prints it."""

from __future__ import annotations

from dataclasses import dataclass

from gpufleet.stopping import GRACE_S


@dataclass(frozen=True)
class Verb:
    """A verb; its module in `package` has the verb's name, with an underscore for a hyphen.

    `program`: a package of the checkout that has the whole command line of this verb.
    `grace_s`: how long the processes of a stopped verb may clean up.
    """

    name: str
    summary: str
    program: str = ""
    grace_s: float = GRACE_S
    package: str = "gpufleet.cli"

    @property
    def module(self) -> str:
        """The full name of the module."""
        return f"{self.package}.{self.name.replace('-', '_')}"


# The package of the developers' verbs: in the checkout, and in no wheel.
TOOLS = "tools.cli"

GROUPS: dict[str, tuple[Verb, ...]] = {
    "Start": (
        Verb("init", "Create an inventory to start from"),
        Verb("completion", "Print a completion script for bash or zsh"),
    ),
    "Plan and provision": (
        Verb("resolve", "Show what goes with a framework's release, or why it cannot be installed"),
        Verb("plan", "Show each host's plan and pending changes"),
        Verb("provision", "Provision the hosts that differ from their plans, and verify them"),
        Verb("commission", "Prove fresh hosts in stages, and certify them or name the faulty part"),
        Verb("rollout", "Provision a fleet batch by batch, the canary first"),
        Verb("remove", "Remove toolkits, stacks, the driver or the container integration"),
        Verb("playbook", "Run one of gpufleet's playbooks, such as rollback, nightly or pull"),
    ),
    "Verify": (
        Verb("verify", "Verify the hosts of an inventory"),
        Verb("fabric", "Test the fabric between hosts, and find what makes it slow or wrong"),
        Verb("nightly", "Run nightly verification"),
        Verb("history", "Show nightly verification history"),
        Verb("fleet", "Show the hosts with their states, or set a state"),
        Verb("silence", "Notify nobody of a known fault until a day"),
        Verb("report", "Show the latest report"),
        Verb("manifest", "Propose a group's manifest: what most of its hosts have"),
    ),
    "Offline": (Verb("artifacts", "Mirror everything that the hosts of an inventory install"),),
    "Lab": (Verb("lab", "Manage throwaway hosts on this machine", "lab"),),
    "Developer": (
        # A test removes its lab hosts.
        Verb("test", "Run the tests", grace_s=60, package=TOOLS),
        Verb("lint", "Run every linter", package=TOOLS),
        Verb("docs", "Generate the reference documentation", "docs.generate", package=TOOLS),
        Verb(
            "build",
            "Build the wheel and the collection, with their bill of materials",
            package=TOOLS,
        ),
        Verb("bench", "Run the benchmarks", "benchmarks", package=TOOLS),
        Verb(
            "catalog",
            "Add releases to the catalog, check it, make and try its locks",
            package=TOOLS,
        ),
    ),
}
# Groups of verbs that an installed gpufleet neither has nor names.
OF_CHECKOUTS = {"Lab", "Developer"}
# Run by roles and by the generator of documents.
INTERNAL = (
    Verb("checks-table", "Print the checks as a table"),
    Verb("pack", "Write this checkout into one archive"),
    Verb("pack-pull", "Write probe and judge into one file that hosts run"),
)
VERBS = {verb.name: verb for verbs in (*GROUPS.values(), INTERNAL) for verb in verbs}
