"""Environments of logins, services and jobs: nothing in them disturbs a framework's own CUDA."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpufleet.components.base.registry import (
    INSPECT,
    Evidence,
    Finding,
    check,
    files_unchanged,
    found_locally,
    shortened,
)
from gpufleet.components.base.remedies import ENVIRONMENT, provision
from gpufleet.components.base.sections import Sections
from gpufleet.components.stacks import environment_plan as environment
from gpufleet.documents.plan import Plan
from gpufleet.documents.text import cut, is_number, quantity, quoted
from gpufleet.documents.verdict import Verdict
from gpufleet.frameworks import framework_of
from gpufleet.on_host.constants import MOST_VALUE, REFUSED

CONFIG_FILES = (
    "/etc/environment, /etc/profile, /etc/profile.d, the user's profile, /etc/systemd,"
    " /etc/security/pam_env.conf"
)


def no_cuda(plan: Plan) -> str | None:
    """The skip reason of a host without declared CUDA."""
    if plan["toolkits"] or plan["stacks"]:
        return None
    return "gpu_toolkits: [], gpu_stacks: []"


@check(
    "environment.login",
    reads=("environment",),
    repair=INSPECT,
    severity="major",
    skip_reason=no_cuda,
)
def login(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """No login, service or cron environment loads other libraries or hides GPUs."""
    found = observed.data["environment"]
    mentions = found.get("mentions", {})
    for where, variables, job in [
        ("A login", found["login"], False),
        *(
            (other["where"], other["variables"], other.get("job", False))
            for other in found["others"]
        ),
    ]:
        values = {key: str(value) for key, value in variables.items() if value is not None}
        # A single job may set its own variables, unless they cannot be right.
        reasons = list(
            _always_wrong(plan, values)
            if job
            else _disturbing_variables(plan, values, found["offers"])
        )
        unknown = [
            (name, f"of it, the first {MOST_VALUE} characters are judged")
            for name in ("LD_LIBRARY_PATH", "LD_PRELOAD")
            if len(values.get(name, "")) >= MOST_VALUE and name not in dict(reasons)
        ]
        for name, reason in [*reasons, *unknown]:
            if where.startswith("/"):
                after = (
                    "; then systemctl reload ssh || systemctl reload sshd"
                    if where.startswith("/etc/ssh/")
                    else " (for a unit: then systemctl daemon-reload, and restart it)"
                )
                remedy = f"on the host: remove {name} from {quoted(where)}{after}"
            elif name in mentions:
                remedy = f"on the host: remove it from {shortened([*map(quoted, mentions[name])])}"
            else:
                remedy = f"on the host: find where {name} is set ({CONFIG_FILES}) and remove it"
            yield Finding(
                f"{where} sets {name}={cut(values[name], 400)}: {reason}",
                remedy,
                verdict=Verdict.INCONCLUSIVE if (name, reason) in unknown else Verdict.FAIL,
            )
        sets = ", ".join(f"{key}={value}" for key, value in values.items())
        yield Evidence(f"{where} sets {sets or 'none'}")
    # Release 1.0 has the reason among the files that were not read.
    listed = (reason for reason in found.get("unread", []) if reason.endswith(REFUSED))
    if refused := found.get("refused", next(listed, None)):
        yield Finding(
            f"The login of root was not run: {refused}; its variables are known as far as its"
            " files assign them",
            "on the host: see who owns it",
            verdict=Verdict.INCONCLUSIVE,
        )
    if found.get("unread"):
        yield Evidence(f"not readable by the probe's user: {shortened(found['unread'])}")


def _disturbing_variables(
    plan: Plan, values: dict[str, str], offers: dict[str, list[str]]
) -> Iterator[tuple[str, str]]:
    """Pairs of a variable and the reason why it disturbs a stack."""
    count = plan["expect"]["count"] if plan["expect"] else None
    visible = values.get("CUDA_VISIBLE_DEVICES")
    if count and visible is not None:
        visible_devices, _ = _visible_devices(visible, count)
        if len(visible_devices) != count:
            yield (
                "CUDA_VISIBLE_DEVICES",
                f"it shows {len(visible_devices)} of {quantity(count, 'declared GPU')}",
            )
    if found_locally(plan, "toolkits"):
        return  # it is not declared which of them a stack uses
    toolkits = [toolkit["path"] for toolkit in plan["toolkits"]]
    default = plan["default_link"]["path"] if plan["default_link"] else None
    # Wheels of other frameworks contain their own CUDA: no toolkit is theirs.
    if any(
        stack["cuda_source"] != "toolkit" and framework_of(stack).own_libraries
        for stack in plan["stacks"]
    ):
        toolkits = []
    harmless = (
        [*toolkits, default]
        if len(toolkits) == 1 and default
        else toolkits[:1] * (len(toolkits) == 1)
    )
    for directory in values.get("LD_LIBRARY_PATH", "").split(":"):
        below = any(directory == own or directory.startswith(f"{own}/") for own in harmless)
        if "/stubs" in directory:
            yield "LD_LIBRARY_PATH", "the stub libraries there are no working driver"
        elif not below and (
            offers.get(directory)
            or any(word in directory.lower() for word in ("cuda", "cudnn", "nvidia"))
        ):
            yield "LD_LIBRARY_PATH", f"libraries in {directory} override a stack's own toolkit"
    preloaded = re.split(r"[:\s]+", values.get("LD_PRELOAD", ""))
    if any(offers.get(library) for library in preloaded):
        yield "LD_PRELOAD", "its libraries are loaded before those of every stack"
    for framework in dict.fromkeys(map(framework_of, plan["stacks"])):
        for name in framework.variables:
            if count and values.get(name) and not re.search("cuda|gpu", values[name]):
                yield name, f"{framework.title} uses no GPU with it"
    for name in ("PYTHONPATH", "PYTHONHOME"):
        if values.get(name):
            yield name, "modules from there override those of every stack"


def _always_wrong(plan: Plan, values: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Pairs of a variable and the reason why its value is right for no job of this host."""
    if "/stubs" in values.get("LD_LIBRARY_PATH", ""):
        yield "LD_LIBRARY_PATH", "the stub libraries there are no working driver"
    count = plan["expect"]["count"] if plan["expect"] else None
    _, wrong = _visible_devices(values.get("CUDA_VISIBLE_DEVICES", ""), count or 0)
    if count and wrong:
        yield (
            "CUDA_VISIBLE_DEVICES",
            (
                f"there is no GPU {cut(wrong, 20)} among the {count} declared, and CUDA ignores"
                " every entry from there on"
            ),
        )


def _visible_devices(visible: str, count: int) -> tuple[list[str], str | None]:
    """The GPUs that CUDA shows for this value, and the first number that is no GPU, if any.

    CUDA reads up to the first entry that names no GPU; GPU-... and MIG-... are not checked.
    """
    visible_devices: list[str] = []
    for item in (part.strip() for part in visible.split(",")):
        if re.fullmatch("[0-9]+", item) and not (is_number(item) and int(item) < count):
            return visible_devices, item
        if item in visible_devices or not (is_number(item) or item.startswith(("GPU-", "MIG-"))):
            break
        visible_devices.append(item)
    return visible_devices, None


@check(
    "environment.files",
    reads=("receipts",),
    deep=True,
    severity="major",
    skip_reason=lambda plan: (
        None if plan["environment"] else found_locally(plan, "toolkits") or no_cuda(plan)
    ),
)
def files(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Modulefiles, profile, variables and Jupyter kernels are as planned and unchanged."""
    kind, identity = environment.RECEIPT
    yield from files_unchanged(plan, observed.data["receipts"], kind, identity, "/")
    wanted = environment.digests(plan["environment"])
    for receipt in observed.data["receipts"]["receipts"]:
        if (receipt["kind"], receipt["id"]) == (kind, identity):
            written = {path: row["sha256"] for path, row in (receipt.get("texts") or {}).items()}
            other = [
                path
                for path in sorted({*wanted, *written})
                if wanted.get(path) != written.get(path)
            ]
            if other:
                yield Finding(
                    f"Written by an earlier plan: {shortened(other)}",
                    provision(plan, ENVIRONMENT),
                    "\n".join(other),
                )
    yield Evidence(f"{len(wanted)} files")
