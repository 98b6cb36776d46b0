"""Environment: modulefiles, profile, activation and kernels, as the exact text of small files.

The plan has path, text and mode of each, and `for` the toolkit or stack that it belongs to; a file
that belongs to none is removed with the last of them. Hosts that an older release provisioned must
see no change: the texts stay byte for byte.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from gpufleet.components.base.context import ResolveContext
from gpufleet.documents.plan import EnvironmentFile, PlannedStack, PlannedToolkit
from gpufleet.documents.problems import Code
from gpufleet.documents.spec import StackSpec
from gpufleet.frameworks import FRAMEWORKS, FrameworkId

MODULES = "/opt/gpufleet/modulefiles"
ACTIVATION = "/opt/gpufleet/environment"
KERNELS = "/usr/local/share/jupyter/kernels"
# Read after the files by which environment-modules and Lmod (`z00_lmod.sh`) set themselves up.
MODULES_PROFILE = "/etc/profile.d/zz-gpufleet-modules.sh"
DEFAULT_PROFILE = "/etc/profile.d/gpufleet-cuda.sh"
RECEIPT: tuple[Literal["environment"], str] = ("environment", "files")  # kind and id
RECEIPT_VERSION = "1"


def activation(name: str) -> str:
    """The file that a stack's `bin/activate` reads if it exists."""
    return f"{ACTIVATION}/{name}.sh"


def module(framework: FrameworkId, name: str) -> str:
    """The name of a stack for `module load`: tensorflow/2.13.1, pytorch/vision."""
    return f"{framework}/{name.removeprefix(f'{framework}-')}"


def check(context: ResolveContext, declared: Iterable[StackSpec]) -> None:
    """Refuse names of stacks that no modulefile or kernel can have."""
    taken: dict[str, str] = {}
    for spec in declared:
        own = module(spec.framework, spec.name)
        other = taken.setdefault(own, spec.name)
        if other != spec.name:
            context.refuse(
                Code.STACK_NAME_CLASH,
                f"the stacks {other} and {spec.name} have the same module name, {own}",
                f"{spec.where}.name",
                "give one of them another name",
            )
        if not re.match(r"[a-z0-9]", own.partition("/")[2]):
            context.refuse(
                Code.BAD_NAME,
                f"{spec.name} gives the module name {own}, which is not valid",
                f"{spec.where}.name",
                f"put a letter or digit after {spec.framework}-, or leave {spec.framework}- out",
            )
        if context.spec.jupyter_kernels and "+" in spec.name:
            context.refuse(
                Code.BAD_NAME,
                f"a Jupyter kernel's name has no +, such as {spec.name}",
                f"{spec.where}.name",
                "give the stack another name, or set gpu_jupyter_kernels: false",
            )


def files(context: ResolveContext, plan: Mapping[str, Any]) -> list[EnvironmentFile]:
    """Every file that the host must have, by path."""
    found = [*_toolkits(plan), *_stacks(context, plan)]
    if context.spec.profile and plan["default_link"]:
        default = next(row for row in plan["toolkits"] if row["default"])
        found.append((DEFAULT_PROFILE, _default_profile(plan), _toolkit(default)))
    if found:
        found.append((MODULES_PROFILE, _modules_profile(), None))
    return [
        {"path": path, "text": text, "mode": "0644", "for": owner}
        for path, text, owner in sorted(found, key=lambda row: row[0])
    ]


def digests(rows: Iterable[EnvironmentFile]) -> dict[str, str]:
    """The sha256 of each file's text, by path, to compare with a receipt's."""
    return {row["path"]: hashlib.sha256(row["text"].encode()).hexdigest() for row in rows}


def variable(path: str) -> str:
    """The variables by which a file is declared."""
    if path.startswith(f"{KERNELS}/"):
        return "gpu_jupyter_kernels, gpu_stacks"
    if path == DEFAULT_PROFILE:
        return "gpu_profile, gpu_cuda_default"
    return "gpu_toolkits, gpu_stacks"


def _toolkit(row: PlannedToolkit) -> str:
    return f"toolkit {row['short']}"


def _toolkits(plan: Mapping[str, Any]) -> Iterator[tuple[str, str, str | None]]:
    for row in plan["toolkits"]:
        cudnn = [each["short"] for each in plan["cudnn"] if each["toolkit"] == row["short"]]
        what = f"CUDA {row['version']}" + "".join(f", cuDNN {each}" for each in cudnn)
        lines = [_put("CUDA_HOME", row["path"]), f"prepend-path PATH {row['path']}/bin"]
        if not row["registered"]:
            # Another toolkit has the same sonames in the linker cache.
            lines.append(f"prepend-path LD_LIBRARY_PATH {row['path']}/lib64")
        text = _modulefile(f"{what} in {row['path']}", "cuda", lines)
        yield f"{MODULES}/cuda/{row['short']}", text, _toolkit(row)
        if row["default"]:
            version = f'#%Module1.0\nset ModulesVersion "{row["short"]}"\n'
            yield f"{MODULES}/cuda/.version", version, _toolkit(row)


def _stacks(
    context: ResolveContext, plan: Mapping[str, Any]
) -> Iterator[tuple[str, str, str | None]]:
    for row in plan["stacks"]:
        owner = f"stack {row['name']}"
        framework = row["framework"]
        what = f"{FRAMEWORKS[framework].title} {row['version']}, CUDA {row['cuda']}"
        variables = row["environment"]
        lines = [_put("VIRTUAL_ENV", row["venv"]), f"prepend-path PATH {row['venv']}/bin"]
        lines += [_put(name, value) for name, value in variables.items()]
        text = _modulefile(f"{what} in {row['venv']}", _conflicts(framework), lines)
        yield f"{MODULES}/{module(framework, row['name'])}", text, owner
        if variables:
            yield row["activation"], _activation(row["name"], variables), owner
        if context.spec.jupyter_kernels:
            named = "" if row["name"] == f"{framework}-{row['version']}" else f" ({row['name']})"
            yield f"{KERNELS}/{row['name']}/kernel.json", _kernel(what + named, row), owner


def _conflicts(framework: FrameworkId) -> str:
    """The families that a stack's modulefile excludes: an environment has one interpreter.

    One that excludes its own family alone is named by the others' modulefiles.
    """
    return " ".join(sorted(FRAMEWORKS)) if FRAMEWORKS[framework].excludes_all else framework


def _modulefile(what: str, family: str, lines: list[str]) -> str:
    """A Tcl modulefile that environment-modules and Lmod both read; one of a family at a time.

    `pushenv` restores the previous value; environment-modules has it from 5.1 on. In Tcl,
    Lmod's restores a wrong value (its issue 584): there `setenv` leaves the variable unset.
    """
    head = [
        "#%Module1.0",
        "# Written by gpufleet; changes are undone by the next provisioning.",
        f'proc ModulesHelp {{ }} {{ puts stderr "{what}" }}',
        f'module-whatis "{what}"',
        f"conflict {family}",
        "set put setenv",
        "if {[llength [info commands pushenv]] && ![info exists env(LMOD_VERSION)]} {",
        "    set put pushenv",
        "}",
    ]
    return "\n".join([*head, *lines]) + "\n"


def _put(name: str, value: str) -> str:
    # The `pushenv` of environment-modules keeps its values in one with colons between them, and
    # leaves half of a value that has one (seen in 5.2.0).
    command = "setenv" if ":" in value else "$put"
    return f"{command} {name} {{{value}}}"


def _modules_profile() -> str:
    return f"""\
# Written by gpufleet: its modulefiles, wherever environment-modules or Lmod is installed.
if command -v module >/dev/null 2>&1; then
    case ":${{MODULEPATH-}}:" in
        *:{MODULES}:*) ;;
        *) MODULEPATH="${{MODULEPATH:+$MODULEPATH:}}{MODULES}"; export MODULEPATH ;;
    esac
fi
"""


def _default_profile(plan: Mapping[str, Any]) -> str:
    """By the default link, so that another default needs no other text; never LD_LIBRARY_PATH."""
    path = plan["default_link"]["path"]
    return f"""\
# Written by gpufleet (gpu_profile): the default CUDA toolkit.
if [ -d {path}/bin ]; then
    CUDA_HOME={path}; export CUDA_HOME
    case ":$PATH:" in
        *:{path}/bin:*) ;;
        *) PATH="{path}/bin:$PATH"; export PATH ;;
    esac
fi
"""


def _activation(name: str, variables: Mapping[str, str]) -> str:
    """For any Bourne shell; `deactivate` calls the function, which restores the previous values."""
    back, put = [], []
    for each, value in variables.items():
        old = f"_GPUFLEET_OLD_{each}"
        back += [
            f'    if [ -n "${{{old}+set}}" ]; then',
            f'        {each}="${old}"; export {each}; unset {old}',
            "    else",
            f"        unset {each}",
            "    fi",
        ]
        put += [
            f'if [ -n "${{{each}+set}}" ]; then {old}="${each}"; fi',
            f"{each}='{value}'; export {each}",
        ]
    head = f"# Written by gpufleet: what {name} sets. Read by its bin/activate."
    function = ["_gpufleet_leave () {", *back, "    unset -f _gpufleet_leave", "}"]
    return "\n".join([head, *function, *put]) + "\n"


def _kernel(title: str, row: PlannedStack) -> str:
    python = f"{row['venv']}/bin/python"
    document = {
        "argv": [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": title,
        "language": "python",
        "env": row["environment"],
    }
    return json.dumps(document, indent=1) + "\n"
