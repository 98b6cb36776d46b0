"""Refusals to install over what gpufleet did not install.

A foreign toolkit or cuDNN is adopted instead where the spec asks for it (`gpu_cuda_adopt`) and it
is what is planned.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from gpufleet.components.base.context import ResolveContext
from gpufleet.components.cuda import cudnn, ownership, toolkit
from gpufleet.documents.problems import Code
from gpufleet.documents.text import gpufleet

from . import environment_plan as environment


def check(context: ResolveContext, plan: Mapping[str, Any], declared_at: Mapping[str, str]) -> None:
    """Refuse to install over what we did not install.

    `declared_at`: the variable of each toolkit's path and each stack's venv.
    """

    def refuse(path: str, what: str, where: str, otherwise: str = "") -> None:
        context.refuse(
            Code.FOREIGN_TREE,
            f"{path} exists already, and gpufleet did not install it ({what} belongs there)",
            where,
            f"{_away(path)}{otherwise}",
        )

    def judge(path: str, what: str, where: str, wrong: list[str], away: str) -> None:
        if not plan["adopt"]:
            refuse(path, what, where, ", or let gpufleet check and adopt it: gpu_cuda_adopt: true")
        elif wrong:
            context.refuse(
                Code.NOT_ADOPTABLE,
                f"{path} cannot be adopted as {what}: {'; '.join(wrong)}",
                where,
                f"repair it, or {away}: the next run then installs {what}",
            )

    planned = [("toolkit", row["short"], row["path"]) for row in plan["toolkits"]]
    planned += [("stack", row["name"], row["venv"]) for row in plan["stacks"]]
    for kind, identity, path in planned:
        if other := ownership.elsewhere(context.host, kind, identity, path):
            context.refuse(
                Code.INSTALLED_ELSEWHERE,
                f"{kind} {identity} is installed in {other} and declared in {path}",
                declared_at[path],
                f"remove it first ({gpufleet('remove', f'--{kind}', identity)}), or declare it "
                "where it is installed",
            )
    for row in plan["toolkits"]:
        if toolkit.is_foreign(context.host, row):
            path, wrong = row["path"], toolkit.differences(context.host, row)
            judge(path, f"CUDA {row['version']}", declared_at[path], wrong, _away(path))
    for row in plan["cudnn"]:
        if cudnn.is_foreign(context.host, row, plan["adopt"]):
            path, wrong = row["toolkit_path"], cudnn.differences(context.host, row)
            away = f"remove it (rm {shlex.quote(path)}/lib64/libcudnn*)"
            library = f"{path}/lib64/{row['soname']}"
            judge(library, f"cuDNN {row['version']}", declared_at[path], wrong, away)
    for row in plan["stacks"]:
        if ownership.foreign_stack(context.host, row):
            refuse(row["venv"], f"the stack {row['name']}", declared_at[row["venv"]])
    for path, digest in environment.digests(plan["environment"]).items():
        if context.host.foreign_text(path, digest):
            refuse(path, "a file of the stacks' and toolkits' environment", path)
    if plan["default_link"] and toolkit.foreign_default(context.host):
        refuse(plan["default_link"]["path"], "the link to the default toolkit", "gpu_cuda_default")


def _away(path: str) -> str:
    return f"move it away (mv {shlex.join([path, f'{path}.old'])})"
