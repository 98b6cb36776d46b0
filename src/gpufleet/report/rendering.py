"""The templates of the report's pages, with every text escaped."""

from __future__ import annotations

import functools
from pathlib import Path

import jinja2

TEMPLATES = Path(__file__).parent / "templates"


def template(name: str) -> jinja2.Template:
    """A page's template; a value that it needs and does not get is an error."""
    return environment(TEMPLATES).get_template(name)


@functools.cache
def environment(templates: Path) -> jinja2.Environment:
    """The environment of a directory of templates; it keeps compiled templates while it exists."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def source(name: str) -> str:
    """The text of a style or a script."""
    return (TEMPLATES / name).read_text(encoding="utf-8")
