"""Containers: the engine and NVIDIA's container toolkit as the plan carries them."""

from __future__ import annotations

from dataclasses import asdict

from gpufleet.catalog import container_toolkit, versions
from gpufleet.components.base.context import ResolveContext
from gpufleet.components.base.host import mapping
from gpufleet.documents.problems import Code
from gpufleet.documents.spec import ContainersSpec
from gpufleet.documents.types import Row


def describe(context: ResolveContext) -> Row | None:
    """The plan's `containers`; None where they are not managed."""
    spec = context.spec.containers
    if spec is None:
        return None
    if spec.toolkit:
        _check_vulnerabilities(context, spec, spec.toolkit)
    else:
        _note_held(context)
    return {
        **asdict(spec),
        "accept_cves": [*spec.accept_cves],
        "gpus": context.spec.expect.get("count"),
    }


def _check_vulnerabilities(context: ResolveContext, spec: ContainersSpec, toolkit: str) -> None:
    """Refuse a declared release with vulnerabilities that are not accepted; note accepted ones."""
    found = container_toolkit.vulnerabilities(toolkit, spec.accept_cves)
    if found:
        names = ", ".join(each.cve for each in found)
        context.refuse(
            Code.CONTAINER_TOOLKIT_VULNERABLE,
            f"NVIDIA's container toolkit {toolkit} has known vulnerabilities: {names}",
            "gpu_containers.toolkit",
            f'declare toolkit: "{container_toolkit.first_without(found)}" or newer, or accept them'
            f" deliberately with accept_cves: [{names}]",
        )
        return
    accepted = [each.cve for each in container_toolkit.vulnerabilities(toolkit)]
    if accepted:
        context.note(
            f"The container toolkit {toolkit} has known vulnerabilities, which"
            f" gpu_containers.accept_cves accepts: {', '.join(accepted)}"
        )


def _note_held(context: ResolveContext) -> None:
    """Note that an installed toolkit stays where none is declared, and how to upgrade it."""
    toolkit = mapping(context.host.containers.get("toolkit"))
    installed = container_toolkit.release(toolkit.get("version"))
    if installed is None:
        return
    held = f"The container toolkit {installed} is installed and stays: no release is declared"
    offered = container_toolkit.release(toolkit.get("candidate"))
    if offered is None:
        context.note(
            f"{held}. Which release the repository offers was not read. To upgrade, declare"
            " gpu_containers.toolkit"
        )
    elif versions.key(offered) > versions.key(installed) and not (
        container_toolkit.vulnerabilities(offered)
    ):
        context.note(
            f"{held}. The repository offers {offered}: to upgrade, declare"
            f' gpu_containers.toolkit: "{offered}"'
        )
