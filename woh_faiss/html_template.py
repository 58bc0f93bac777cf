"""HTML of pages that a browser opens from a file: by Jinja2, in one layout, with nothing to fetch or to run.

Names on a page come from strangers. Whatever a template prints goes through `display_text` and is escaped.
"""

from __future__ import annotations

from functools import cache, lru_cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from .display import display_text

_LAYOUTS = Path(__file__).parent / "templates"


@cache  # compiling takes a tenth of a second
def html_template(file: Path) -> Template:
    """The template in `file`, which may extend ``layout.html``; both are of this package and never change."""
    environment = Environment(
        loader=FileSystemLoader([file.parent, _LAYOUTS]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printed,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["bdi"] = _bdi
    return environment.get_template(file.name)


def _printed(value: object) -> object:
    """What is markup already (a macro's, a figure's) as it is, all else as `display_text`."""
    return value if hasattr(value, "__html__") else display_text(value)


@lru_cache(10_000)  # a tag stands on a page often, and this is most of the work
def _bdi(value: str) -> Markup:
    """Text of any direction that leaves what is around it in place, and may break at its slashes."""
    return Markup("<bdi>%s</bdi>") % Markup("/<wbr>").join(map(display_text, value.split("/")))
