"""The plan: a person's wishes turned, once, into a document that says everything of one host.

The shape is documented in docs/documents.md (Plan). A plan with problems is never acted upon.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpufleet.catalog import facts, gpus, pci, performance, versions
from gpufleet.catalog.records import DRIVER_SONAME
from gpufleet.host_state import containers, leftovers
from gpufleet.host_state.host import Host
from gpufleet.model.problems import Code, Problems
from gpufleet.spec import expectation, parse

from . import (
    cudnn,
    driver,
    driver_sources,
    environment,
    linker,
    ownership,
    pins,
    space,
    stacks,
    toolkits,
)
from .context import Case
from .toolkits import Chosen

Row = dict[str, Any]

SCHEMA = 1
ARCH = "x86_64"


def resolve(
    wishes: Mapping[str, Any], host: Mapping[str, Any] | None = None, name: str = ""
) -> Row:
    """The plan for a host: `wishes` are the gpu_* variables, `host` its snapshot or None.

    Never raises on what a user wrote: everything that is wrong stands in `problems`, all at once.
    """
    problems = Problems()
    case = Case(parse.read(wishes, problems), Host(host), problems)
    _look_at_host(case)
    case.gpus = _gpus(case)

    found = stacks.read(case)
    environment.check(case)
    cuda_wants: list[toolkits.Want] = []
    cudnn_wants: list[cudnn.Want] = []
    for stack in found:
        for_cuda, for_cudnn = stacks.wants(case, stack)
        cuda_wants += for_cuda
        cudnn_wants += for_cudnn
    for wish in case.wishes.toolkits:
        cuda_wants.append(toolkits.Want(wish.cuda, wish.where, wish.where, declared=True))
        for version in wish.cudnn:
            where = f"{wish.where}.cudnn"
            short = versions.short(wish.cuda)
            cudnn_wants.append(cudnn.Want(short, where, wish.where, pinned=version))
    chosen = toolkits.choose(case, cuda_wants)
    cudnn.choose(case, cudnn_wants, chosen)
    toolkits.default(case, chosen, cuda_wants)
    for each in chosen.values():
        cudnn.check_gpus(case, each)
    linked = linker.register(case, chosen)

    needs = [n for each in chosen.values() for n in driver.of_toolkit(each.toolkit)]
    needs += [n for each in chosen.values() for n in driver.of_cudnn(each)]
    rows: list[Row] = []
    for stack in found:
        own = None if stack.pip_cuda else chosen.get(stack.cuda)
        if own is None and not stack.pip_cuda:
            continue
        if own:
            pins.toolkit_fits(case, stack.wish, stack.build, own)
        need = driver.of_stack(case, stack, own)
        needs.append(need)
        rows.append(stacks.describe(case, stack, own, need.version))
    highest = driver.highest(needs)
    own_driver = driver.plan(case, highest)
    _check_eula(case, cuda=bool(cuda_wants))

    plan: Row = {
        "schema": SCHEMA,
        "host": name or case.host.name,
        "arch": case.host.arch or ARCH,
        "expect": {
            **{key: case.wishes.expect.get(key) for key in expectation.KEYS},
            **_throughput(case),
        },
        "service_user": case.wishes.service_user,
        "os": driver_sources.describe(case.host),
        "driver": own_driver,
        "containers": containers.describe(case.wishes),
        "driver_library": _driver_library(case, found),
        "toolkits": [toolkits.describe(case, each) for each in chosen.values()],
        "cudnn": [
            cudnn.describe(case, each, picked)
            for each in chosen.values()
            # The default last: header and unversioned link are its own, whoever had them before.
            for _, picked in sorted(each.majors.items(), key=lambda row: (row[1].default, row[0]))
        ],
        "stacks": rows,
        "linker": linked,
        "default_link": _default_link(case, chosen),
        "adopt": case.wishes.adopt,
        "prune": case.wishes.prune,
    }
    plan["environment"] = environment.files(case, plan)
    plan["artifacts"] = _artifacts(plan)
    if case.host.reached:
        places = {each.path(case): each.where for each in chosen.values()}
        places |= {f"{case.wishes.stack_root}/{each.wish.name}": each.wish.where for each in found}
        ownership.check(case, plan, places)
        space.check(case, plan)
        for text in leftovers.notes(plan, case.host):
            case.note(text)
    plan["notes"] = case.notes
    plan["problems"] = problems.documents()
    return plan


def _throughput(case: Case) -> Row:
    """The least float32 throughput of each GPU: as wished, else the declared model's floor."""
    wished = case.wishes.expect.get("tflops")
    if wished is not None:
        return {"tflops": wished, "tflops_because": "gpu_expect.tflops"}
    floor = performance.floors(case.wishes.expect.get("model") or "")
    return {
        "tflops": floor.tflops if floor else None,
        "tflops_because": floor.because if floor else None,
    }


def _look_at_host(case: Case) -> None:
    """Say what of the host could not be looked at, and refuse an architecture without wheels."""
    if not case.host.reached:
        case.note(
            "the host was not looked at: its Pythons, glibc, disks, driver and what stands there "
            "already are not judged"
        )
        return
    for name in case.host.unseen(("os", "disks", "driver", "receipts", "toolkits", "stacks")):
        case.note(f"the host's {name} could not be looked at: what depends on it is not judged")
    if case.host.arch not in {None, ARCH}:
        case.refuse(
            Code.HOST_UNSUPPORTED,
            f"the host is {case.host.arch}; TensorFlow's GPU wheels exist for {ARCH} only",
            f"host {case.host.name}".strip(),
            "leave this host out of the group",
        )


def _gpus(case: Case) -> list[gpus.Gpu]:
    """The GPUs that are declared: gpu_gpus, or else gpu_expect.model, or else those that were seen.

    None when GPU-less. A model that is only expected and not known is no problem: its name is for
    the suite.
    """
    if case.wishes.without_gpu:
        return []
    found: list[gpus.Gpu] = []
    named = [(label, f"gpu_gpus[{at}]") for at, label in enumerate(case.wishes.gpus)]
    model = case.wishes.expect.get("model")
    if not named and model and gpus.capabilities(model):
        named = [(model, "gpu_expect.model")]
    for label, where in named:
        known = gpus.capabilities(label)
        new = [each for each in known if each not in {card.capability for card in found}]
        found += [gpus.Gpu(capability, label, where) for capability in new]
        if not known:
            case.refuse(
                Code.GPU_UNKNOWN,
                f"the compute capability of {label!r} is not known",
                where,
                'give it as a figure, such as "8.9" (nvidia-smi --query-gpu=compute_cap shows it)',
            )
    if named:
        _note_undeclared(case, found)
        return found
    if model:
        case.note(f"the compute capability of {model!r} is not known")
    found = _seen(case)
    wanted = case.wishes.stacks or case.wishes.toolkits or case.wishes.driver
    if wanted and not found:
        case.note("no GPU is declared (gpu_gpus, gpu_expect.model) or seen: GPUs are not judged")
    return found


def _note_undeclared(case: Case, declared: list[gpus.Gpu]) -> None:
    """Say which GPUs were seen and are of none of the declared kinds: they are not judged."""
    kinds = {card.capability for card in declared}
    for card in _seen(case):
        if kinds and card.capability not in kinds:
            case.note(f"{card.text} was seen too ({card.where}), and is not declared: not judged")


def _seen(case: Case) -> list[gpus.Gpu]:
    """The GPUs on the host's PCI bus, each kind once; a note where not even the chip is known."""
    found: dict[str, gpus.Gpu] = {}
    for row in case.host.gpus:
        number, place = pci.digits(str(row.get("device"))), str(row.get("address"))
        card = pci.device(number)
        if card is None:
            case.note(f"the GPU at {place} (PCI id 10de:{number}) is not known: it is not judged")
        elif number not in found:
            found[number] = gpus.Gpu(card.capability, card.label, f"GPU {place}", number)
            if card.name is None:
                case.note(f"the GPU at {place} is not known by its PCI id, but it is {card.label}")
    return list(found.values())


def _check_eula(case: Case, *, cuda: bool) -> None:
    """Refuse what NVIDIA's own installers would bring, until a person has accepted the licence."""
    runfile = case.wishes.driver is not None and case.wishes.driver.source == "runfile"
    if (cuda or runfile) and not case.wishes.eula_accepted:
        what = "CUDA toolkits are" if cuda else "the driver's runfile is"
        case.refuse(
            Code.EULA_NOT_ACCEPTED,
            f"{what} asked for, and nobody has accepted NVIDIA's licence; the silent installer "
            "would imply that somebody has",
            "gpu_accept_nvidia_eula",
            "read https://docs.nvidia.com/cuda/eula/ and say gpu_accept_nvidia_eula: true",
        )


def _driver_library(case: Case, found: list[stacks.Stack]) -> Row | None:
    """What a host without a GPU needs of a driver, for builds that are linked against it."""
    linked = [each.wish.name for each in found if facts.linked_to_driver(each.build.version)]
    if not linked or not case.wishes.without_gpu:
        return None
    return {"soname": DRIVER_SONAME, "because": linked}


def _default_link(case: Case, chosen: dict[str, Chosen]) -> Row | None:
    for each in chosen.values():
        if each.default:
            return {"path": f"{case.wishes.prefix}/cuda", "target": f"cuda-{each.short}"}
    return None


def _artifacts(plan: Row) -> list[Row]:
    """Everything to download, with what it is for."""
    keys = ("file", "url", "sha256", "md5", "checksum", "size_bytes", "login_required")
    wanted = []
    for row in plan["toolkits"]:
        wanted.append((row["artifact"], f"toolkit {row['short']}"))
        wanted += [
            (patch, f"patch {patch['version']} of toolkit {row['short']}")
            for patch in row["patches"]
        ]
    for row in plan["cudnn"]:
        wanted.append((row["artifact"], f"cudnn {row['version']} in toolkit {row['toolkit']}"))
    return [{**{key: row[key] for key in keys}, "for": what} for row, what in wanted]
