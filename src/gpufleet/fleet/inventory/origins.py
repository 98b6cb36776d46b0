"""The places of an inventory's declarations: file and line, by Ansible's own record of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

# Ansible 2.19 and newer attach the origin to each value. The class has no public name.
from ansible._internal._datatag._tags import Origin


def origin_of(value: Any) -> str | None:
    """`FILE:LINE` of a value that Ansible read from a file; None where that is not known."""
    origin = value if isinstance(value, Origin) else Origin.get_tag(value)
    if origin is None or not origin.path:
        return None
    return f"{origin.path}:{origin.line_num}" if origin.line_num else str(origin.path)


def origins_of(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """The places in a variable, as problems name them (`gpu_stacks[1].cudnn`), and their origins.

    Ansible's origin of a mapping or list is that of its first entry.
    """
    if origin := origin_of(value):
        yield name, origin
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from origins_of(f"{name}.{key}", part)
    elif isinstance(value, list | tuple):
        for number, part in enumerate(value):
            yield from origins_of(f"{name}[{number}]", part)


def origin_of_error(error: BaseException | None) -> str | None:
    """`FILE:LINE` of the value at which Ansible failed; it may be recorded with the cause."""
    while error is not None:
        if origin := origin_of(getattr(error, "obj", None)):
            return origin
        error = error.__cause__ or error.__context__
    return None
