"""The documents of each area, made from the hosts and declarations that the tests have."""

from __future__ import annotations

import copy
import json
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.simulated_fabric import Fabric, Fault
from gpufleet.catalog import facts, smi
from gpufleet.components import resolver
from gpufleet.components.changes import changes
from gpufleet.components.stacks.pythons import usable
from gpufleet.fabric.conclusion import Kind
from gpufleet.fabric.rounds import Outcome
from gpufleet.fleet.inventory import Connection, HostSelector, InventoryHost, inventory_hosts
from gpufleet.fleet.judging import plan_of
from gpufleet.frameworks import FRAMEWORKS
from gpufleet.judge import judge
from gpufleet.report import page
from gpufleet.watch import message_forms, metrics, notifications
from gpufleet.watch.message_forms import Message
from tests.faults.plan import FAULTS as REFUSED
from tests.golden.documents import Document, Golden, Goldens, flat
from tests.support import (
    met_hosts,
    nights,
    real_gpus,
    recorded_hosts,
    remedies,
    smi_corpus,
    smi_judged,
)
from tests.support.check_faults import faults
from tests.support.fleet_documents import all_broken, fleet
from tests.support.framework_stacks import run, run_of, with_frameworks
from tests.support.healthy_host import FIXTURES, Break, document
from tests.support.host_documents import SYSTEMS, declaration, gpu_host, snapshot, with_pythons
from tests.support.wrong_variables import WRONG

ROOT = Path(__file__).parents[2]
INVENTORIES = ("example", "frameworks", "lab", "many", "side-by-side")
FLAVOURS = yaml.safe_load(
    (ROOT / "tests/components/driver/flavour_table.yml").read_text(encoding="utf-8")
)
Named = Iterator[tuple[str, Document]]


def by_name(rows: Sequence[Mapping[str, Any]], *keys: str) -> Document:
    """Rows by the values of these keys, and their order."""
    named = {" ".join(str(row[key]) for key in keys): row for row in rows}
    assert len(named) == len(rows)
    return {**named, "order": [*named]}


def judged(plan: Any, seen: Any) -> Document:
    """The verdicts of a host, and what provision would change on it."""
    result = judge.judge(plan, seen)
    pending = by_name(changes(plan, seen), "what", "id")
    return {"verdict": result["verdict"], "changes": pending, **by_name(result["checks"], "id")}


def planned(plan: Any, seen: Any) -> Document:
    """A plan and the changes of a host, or the problems of the plan."""
    if plan["problems"]:
        return {"problems": plan["problems"]}
    return {"plan": plan, "changes": by_name(changes(plan, seen), "what", "id")}


@cache
def healthy_host(change: Break) -> tuple[str, Document]:
    """Plan and snapshot of a healthy host as JSON, and the host as it is judged."""
    pair = document("plan.json"), document("snapshot.json")
    change(*pair)
    return json.dumps(pair), judged(*pair)


def healthy() -> Named:
    """The hosts that the faults break."""
    for change in dict.fromkeys(fault.healthy for fault in faults()):
        yield change.__name__, healthy_host(change)[1]


def broken() -> Goldens:
    """The hosts with a fault, an area for each module of tests/components/faults."""
    found: Goldens = {}
    for fault in faults():
        plan, seen = json.loads(healthy_host(fault.healthy)[0])
        fault.apply(plan, seen)
        golden = Golden(dict(flat(judged(plan, seen))), f"healthy: {fault.healthy.__name__}")
        found[f"faults/{fault.area}: {fault.name}"] = golden
    return found


def recorded() -> Named:
    """Hosts whose documents were recorded, and runs of frameworks that were."""
    names = ("plan", "snapshot")
    yield "2fb692b", judged(*(document(f"2fb692b/{name}.json") for name in names))
    for path in sorted((FIXTURES / "real_gpus").glob("*.json")):
        yield path.stem, judged(*(real_gpus.documents(path.stem)[name] for name in names))
    for path in sorted((FIXTURES / "frameworks").glob("*-*.json")):
        plan, seen = document("plan.json"), document("snapshot.json")
        with_frameworks(plan, seen)
        run(seen, path.stem.partition("-")[0]).update(run_of(path.stem))
        yield path.stem, judged(plan, seen)


def commissioned() -> Named:
    """A host after a burn-in, whole and with a bad card."""
    bad = {"slow": recorded_hosts.slow_card(1), "wrong": recorded_hosts.wrong_sample(1)}
    with tempfile.TemporaryDirectory() as place:
        hosts = recorded_hosts.RecordedHosts(Path(place), ["gpu01"])
        declared = InventoryHost("gpu01", hosts.variables, Connection("gpu01"))
        for name, change in {"whole": lambda seen: None, **bad}.items():
            seen = hosts.recorded("gpu01", recorded_hosts.BURN_IN)
            change(seen)
            plan = plan_of(declared, seen)
            yield name, {**planned(plan, seen), **judged(plan, seen)}


def meetings() -> Named:
    """Two hosts that met, as each of them is judged."""
    records: Any = document("pairs.json")
    with_gpus = met_hosts.with_gpus(copy.deepcopy(records))
    cases = {"whole": records, "GPUs": with_gpus, "frameworks": document("frameworks/pairs.json")}
    for name, (change, *_) in met_hosts.BROKEN.items():
        cases[name] = copy.deepcopy(records)
        change(cases[name])
    for name, case in cases.items():
        yield name, met_hosts.meeting(document("plan.json"), document("snapshot.json"), case)


def cards() -> Named:
    """Cards of each gathered nvidia-smi, and one with an error in each element that is judged."""
    cases: list[tuple[str, dict[str, str]]] = [(sample, {}) for sample in smi_corpus.samples()]
    for path in sorted({path for rule in smi.all_rules() for each in rule.shapes for path in each}):
        have = [name for name, _ in cases if smi_corpus.card(name).get(path) not in {None, "N/A"}]
        cases += [(sample, {path: "Unknown Error"}) for sample in have[:1]]
    host, parts = smi_judged.host_of_cards(), ("verdict", "cause", "remedy", "evidence")
    for sample, changed in cases:
        found = {
            f"{check} {number}": {part: str(getattr(finding, part)) for part in parts}
            for check, findings in smi_judged.judged(host, sample, {}, changed).items()
            for number, finding in enumerate(findings)
        }
        yield " ".join((sample, *changed)), found


def inventories() -> Named:
    """The plans of the inventories' hosts without a lab, and the changes of a bare host."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUFLEET_CACHE", "/nonexistent/gpufleet")
        patch.delenv("GPUFLEET_LAB_LIBRARIES", raising=False)
        for name in INVENTORIES:
            for host in inventory_hosts(HostSelector([str(ROOT / "inventory" / name)])):
                yield f"{name} {host.name}", planned(plan_of(host, None), snapshot())


def releases() -> Named:
    """The needs of each release, alone and with other options, of which most are refused."""
    options = (remedies.CUDA, remedies.CUDNN, [None], remedies.GPUS, remedies.PYTHONS)
    for framework in FRAMEWORKS:
        for version in [*resolver.releases(framework), *remedies.UNKNOWN[framework]]:
            name, chance = f"{framework} {version}", random.Random(f"{framework} {version}")
            chosen = [chance.choice(each) for each in options]
            yield name, resolver.release(framework, version)
            yield f"{name} {chosen}", resolver.release(framework, version, *chosen)


def stacks() -> Named:
    """The plan of each release on a host with the newest Python that it runs on."""
    for framework in FRAMEWORKS:
        for version in resolver.releases(framework):
            seen = with_pythons(*usable(facts.build(framework, version))[-1:])
            plan = resolver.resolve(declaration({framework: version}), seen)
            yield f"{framework} {version}", planned(plan, seen)


def distributions() -> Named:
    """The plans of hosts with one GPU, whose driver and containers are managed."""
    gpus = [device for group in FLAVOURS.values() for device in group["devices"]]
    for system, source, gpu in product(SYSTEMS, ("distro", "nvidia_repo"), gpus):
        seen = gpu_host(system, gpu)
        declared = {"gpu_driver": {"source": source}, "gpu_containers": {}}
        yield f"{system} {source} {gpu}", planned(resolver.resolve(declared, seen), seen)


def refusals() -> Named:
    """The problems of wrong variables."""
    cases = {json.dumps(variables)[:100]: variables for variables, _ in WRONG}
    for fault in REFUSED:
        fault.inject(cases.setdefault(fault.name, {}))
    for name, variables in cases.items():
        yield name, planned(resolver.resolve(variables, snapshot()), snapshot())


def nights_message(message: Message | None) -> Document:
    """The message of a night for people."""
    text = message_forms.as_text(message).splitlines() if message else []
    return {"subject": message.subject if message else None, "text": text}


def fleets() -> Named:
    """A night of a fleet with faults: its page, messages and metrics; and a host with all faults."""
    eight, one = fleet(8, seed=5, broken=0.6), all_broken(1)
    message = notifications.nightly_message(eight.changes, "https://reports.example.org/")
    night = metrics.Run(1, 1, 1, hosts=eight.session.document["hosts"])
    yield "page", page.document(eight.session, eight.past)
    yield "changes", eight.changes
    yield "message", {**asdict(message), "text": message_forms.as_text(message).splitlines()}
    yield from ((f"night: {name}", nights_message(message)) for name, message in nights.messages())
    yield "metrics", {"lines": metrics.text(night).splitlines()}
    yield "all faults", by_name(one.hosts[0].result["checks"], "id")


def fabrics() -> Named:
    """The conclusions about simulated fabrics with one fault."""
    one, two = ("gpu0007",), ("gpu0002", "gpu0011")
    places = [(Kind.MEMBER, one), (Kind.PORT, one, 2), (Kind.RAIL, (), 5), (Kind.PAIR, two)]
    for place, effect in product(places, (Outcome.SLOW, Outcome.WRONG, Outcome.HUNG)):
        found = Fabric(16, 8, [Fault(*place, effect=effect)], noise=0).bisect()
        yield f"{place[0].value} {effect.value}", {"lines": found.lines()}


# The areas beside those of the faults.
AREAS: tuple[Callable[[], Named], ...] = (
    cards, commissioned, distributions, fabrics, fleets, healthy, inventories, meetings, recorded,
    refusals, releases, stacks,
)  # fmt: skip


def goldens() -> Goldens:
    """All documents as the code makes them now."""
    found: Goldens = {}
    for area in AREAS:
        first = ""
        for name, made in area():
            key = f"{area.__name__}: {name}"
            assert key not in found, f"two documents are {key}"
            found[key] = Golden(dict(flat(made)), first)
            first = first or key
    return {**found, **broken()}
