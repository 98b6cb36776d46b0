"""Parse a host's gpu_* variables into a spec.

Checks types only, not whether the spec can be satisfied. A wrong value becomes a problem and is
left out, so that one run shows all problems.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

from gpufleet.catalog import facts
from gpufleet.documents.problems import Code, Problems
from gpufleet.documents.spec import (
    KEYS,
    LOCAL,
    PIP,
    SHORT_FORMS,
    Declaration,
    Spec,
    StackSpec,
    ToolkitSpec,
)
from gpufleet.frameworks import DEFAULT, FRAMEWORKS, Framework, titles

from .base import expectation
from .base.reader import Reader, meant
from .driver import declare as parse_driver
from .host import declare as parse_manifest
from .network import declare as parse_network

_NAME = re.compile(r"[a-z0-9][a-z0-9._+-]*")
_STACK = (*FRAMEWORKS, "cuda", "cudnn", "python", "name", "environment", "index")
_ARTIFACT = ("sha256", "sha512", "md5", "size_bytes", "url", "file")


def declaration_of(variables: Mapping[str, Any]) -> Declaration:
    """Parse a host's variables."""
    problems = Problems()
    return Declaration(read(variables, problems), tuple(problems.found))


# A fleet's hosts declare the same names, and each is compared with every known one.
@functools.lru_cache(maxsize=1 << 14)
def meant_key(key: str) -> str:
    """The one of `KEYS` that became this key by a slip; empty for the names of other roles."""
    is_ours = key.startswith("gpu") and key not in KEYS
    return meant(key, KEYS, alike=0.85, letters=2) if is_ours else ""


def read(variables: Mapping[str, Any], problems: Problems) -> Spec:
    """The spec; everything of a wrong type becomes a problem.

    Other roles have `gpu_` variables of their own: so an unknown key is refused only when it is
    probably a known one with a slip.
    """
    reader = Reader(problems)
    if not isinstance(variables, Mapping):
        reader.wrong(variables, "variables", "a mapping of gpu_* variables")
        return Spec()
    for key in map(str, variables):
        if near := meant_key(key):
            reader.unknown_key(key, key, KEYS, near)
    get = variables.get
    for key in ("gpu_artifacts_source", "gpu_wheelhouse"):
        reader.location(get(key), key)
    defaults = Spec()
    stacks = reader.sequence(get("gpu_stacks"), "gpu_stacks")
    toolkits = reader.sequence(get("gpu_toolkits"), "gpu_toolkits")
    read_stacks = [_stack(reader, each, f"gpu_stacks[{at}]") for at, each in enumerate(stacks)]
    for variable, framework in SHORT_FORMS.items():
        declared = [s.release for s in read_stacks if s and s.framework == framework]
        if (release := get(variable)) not in [None, *declared]:
            read_stacks.append(_stack(reader, {framework: release}, variable))
    read_toolkits = [
        _toolkit(reader, each, f"gpu_toolkits[{at}]") for at, each in enumerate(toolkits)
    ]
    expect = expectation.read(reader, get("gpu_expect"))
    gpus = enumerate(reader.sequence(get("gpu_gpus"), "gpu_gpus"))
    read_gpus = [reader.text(each, f"gpu_gpus[{at}]", 'such as "8.9"') for at, each in gpus]
    return Spec(
        stacks=[each for each in read_stacks if each],
        toolkits=[each for each in read_toolkits if each],
        cuda_default=reader.version(get("gpu_cuda_default"), "gpu_cuda_default"),
        adopt=reader.consent(get("gpu_cuda_adopt"), "gpu_cuda_adopt"),
        prune=_prune(reader, variables),
        driver=parse_driver.driver(reader, get("gpu_driver")),
        driver_reboot=parse_driver.reboot(reader, get("gpu_driver_reboot")),
        mig=parse_driver.mig(reader, get("gpu_mig"), expect.get("count")),
        network=parse_network.network(reader, get("gpu_network")),
        containers=parse_driver.containers(reader, get("gpu_containers")),
        expect=expect,
        manifest=parse_manifest.manifest(reader, get("gpu_manifest")),
        gpus=[each for each in read_gpus if each],
        arch=reader.choice(get("gpu_arch"), "gpu_arch", facts.machines()),
        service_user=expectation.service_user(reader, get("gpu_service_user")),
        prefix=reader.path(get("gpu_prefix"), "gpu_prefix") or defaults.prefix,
        stack_root=reader.path(get("gpu_stack_root"), "gpu_stack_root") or defaults.stack_root,
        tmpdir=reader.path(get("gpu_tmpdir"), "gpu_tmpdir") or defaults.tmpdir,
        python_install=reader.flag(get("gpu_python_install"), "gpu_python_install"),
        artifacts=_artifacts(reader, get("gpu_artifacts")),
        allow_md5=reader.flag(get("gpu_allow_md5"), "gpu_allow_md5"),
        eula_accepted=reader.consent(get("gpu_accept_nvidia_eula"), "gpu_accept_nvidia_eula"),
        environment=_variables(reader, get("gpu_stack_environment"), "gpu_stack_environment"),
        profile=reader.flag(get("gpu_profile"), "gpu_profile"),
        jupyter_kernels=reader.flag(get("gpu_jupyter_kernels"), "gpu_jupyter_kernels"),
    )


def _prune(reader: Reader, variables: Mapping[str, Any]) -> bool:
    """Return `gpu_prune`; refuse it for a host that declares nothing at all."""
    wanted = reader.consent(variables.get("gpu_prune"), "gpu_prune")
    if wanted and variables.get("gpu_stacks") is None and variables.get("gpu_toolkits") is None:
        reader.problems.add(
            Code.PRUNE_UNDECLARED,
            "gpu_prune would remove everything: neither gpu_stacks nor gpu_toolkits is set",
            "gpu_prune",
            "check that the host is in the right groups; to remove everything, set gpu_stacks: []",
        )
    return wanted


def _stack(reader: Reader, value: Any, where: str) -> StackSpec | None:
    entry = reader.mapping(value, where, _STACK)
    framework = _framework(reader, entry, where) if isinstance(value, Mapping) else None
    if framework is None:
        return None
    release = reader.release(entry[framework.id], f"{where}.{framework.id}", framework.example)
    spec = StackSpec(
        where=where,
        framework=framework.id,
        release=release or "",
        name=_name(reader, entry, where) or f"{framework.id}-{release}",
        cuda=_cuda(reader, framework, entry.get("cuda"), f"{where}.cuda"),
        cudnn=reader.version(entry.get("cudnn"), f"{where}.cudnn"),
        python=_python(reader, entry.get("python"), f"{where}.python"),
        environment=_variables(reader, entry.get("environment"), f"{where}.environment"),
        index=reader.index(entry.get("index"), f"{where}.index"),
    )
    return spec if release else None


def _framework(reader: Reader, entry: dict[str, Any], where: str) -> Framework | None:
    """The one framework that an entry names."""
    named = [each for each in FRAMEWORKS if each in entry]
    if len(named) == 1:
        return FRAMEWORKS[named[0]]
    if named:
        reader.problems.add(
            Code.SEVERAL_FRAMEWORKS,
            f"{where} names {' and '.join(named)}; a stack has one framework",
            where,
            "write an entry for each of them",
        )
    else:
        reader.problems.add(
            Code.WRONG_TYPE,
            f"{where} names no framework",
            where,
            f"add one of {', '.join(FRAMEWORKS)} with its release, "
            f'such as {DEFAULT.id}: "{DEFAULT.example}"',
        )
    return None


def _cuda(reader: Reader, framework: Framework, value: Any, where: str) -> str | None:
    """A version, or a word: `pip`, and `local` for some frameworks."""
    if value == LOCAL and not framework.can_be_local:
        reader.problems.add(
            Code.LOCAL_CUDA_UNAVAILABLE,
            f"cuda: local is for {titles(lambda each: each.can_be_local)};"
            f" {framework.title} {framework.instead_of_local}",
            where,
            "remove cuda: local",
        )
        return None
    # cu92 is 9.2, cu118 is 11.8 and cu12 is 12: no CUDA 1 has such a name.
    if variant := re.fullmatch(r"cu(?:da)?(1\d|\d)(?:\.?(\d))?", str(value)):
        reader.wrong(value, where, f'a version: "{".".join(filter(None, variant.groups()))}"')
        return None
    return str(value) if value in (PIP, LOCAL) else reader.version(value, where)


def _python(reader: Reader, value: Any, where: str) -> str | None:
    """A Python as a version, or an interpreter by its path or prefix, which contain the version.

    The prefix /opt/python/3.6.15 means the interpreter /opt/python/3.6.15/bin/python3.6.
    """
    if re.fullmatch(r"\d+\.\d+(\.\d+)?t", str(value)):
        wanted = f'a version such as "{value[:-1]}": no build has the free-threaded ones'
        reader.wrong(value, where, wanted)
        return None
    if not str(value).startswith("/"):
        return reader.version(value, where, "3.11")
    path = reader.path(value, where)
    if path is None or re.fullmatch(r"python\d+\.\d+", path.rpartition("/")[2]):
        return path
    prefix = re.fullmatch(r".*[^\d.](\d+\.\d+)(\.\d+)?", path)
    if prefix:
        return f"{path}/bin/python{prefix[1]}"
    wanted = "a version, an interpreter such as /opt/python/3.6/bin/python3.6, or its prefix"
    reader.wrong(path, where, wanted)
    return None


def _name(reader: Reader, entry: dict[str, Any], where: str) -> str | None:
    """A stack's name, which becomes a directory's and a file's name."""
    name = reader.text(entry.get("name"), f"{where}.name", "a directory's name")
    if name is None or _NAME.fullmatch(name):
        return name
    reader.problems.add(
        Code.BAD_NAME,
        f"the name {name!r} cannot be a directory's name",
        f"{where}.name",
        "use lower-case letters, digits and . _ + - only, with a letter or digit first",
    )
    return None


def _variables(reader: Reader, value: Any, where: str) -> dict[str, str]:
    """Variables by name; true, false and whole numbers need no quotes."""
    if value is not None and not isinstance(value, Mapping):
        reader.wrong(value, where, "a mapping from names of variables")
        return {}
    found = {}
    for name, part in (value or {}).items():
        plain = str(part).lower() if isinstance(part, bool | int) else part
        text = reader.text(plain, f"{where}.{name}", "the variable's value")
        if text is not None:
            found[str(name)] = text
    return found


def _toolkit(reader: Reader, value: Any, where: str) -> ToolkitSpec | None:
    if not isinstance(value, Mapping):
        cuda = reader.version(value, where)
        if value is None:
            reader.wrong(value, where, 'a version such as "11.8"')
        return ToolkitSpec(where, cuda) if cuda else None
    entry = reader.mapping(value, where, ("cuda", "cudnn"))
    if "cuda" not in entry:
        reader.wrong(None, f"{where}.cuda", 'a version such as "11.8"')
    cuda = reader.version(entry.get("cuda"), f"{where}.cuda")
    wanted = entry.get("cudnn")
    listed = [wanted] if isinstance(wanted, str) else reader.sequence(wanted, f"{where}.cudnn")
    read = [reader.version(each, f"{where}.cudnn[{at}]") for at, each in enumerate(listed)]
    return ToolkitSpec(where, cuda, tuple(each for each in read if each)) if cuda else None


def _artifacts(reader: Reader, value: Any) -> dict[str, dict[str, Any]]:
    if value is not None and not isinstance(value, Mapping):
        reader.wrong(value, "gpu_artifacts", "a mapping from file names")
        return {}
    result: dict[str, dict[str, Any]] = {}
    for file, part in (value or {}).items():
        where = f"gpu_artifacts[{file}]"
        entry = reader.mapping(part, where, _ARTIFACT)
        read = {
            "sha256": reader.digest(entry.get("sha256"), f"{where}.sha256", 64),
            "sha512": reader.digest(entry.get("sha512"), f"{where}.sha512", 128),
            "md5": reader.digest(entry.get("md5"), f"{where}.md5", 32),
            "size_bytes": reader.count(
                entry.get("size_bytes"), f"{where}.size_bytes", "a number of bytes"
            ),
            "url": reader.url(entry.get("url"), f"{where}.url"),
            "file": _file(reader, entry.get("file"), f"{where}.file"),
        }
        result[str(file)] = {key: each for key, each in read.items() if each is not None}
    return result


def _file(reader: Reader, value: Any, where: str) -> str | None:
    """A file's name without a directory."""
    name = reader.text(value, where, "a file's name")
    if name and (name.startswith(".") or "/" in name):
        reader.wrong(name, where, "a file's name, without a directory")
        return None
    return name
