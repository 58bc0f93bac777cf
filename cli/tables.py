"""Tables for people: everything that needs rich."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console as RichConsole
from rich.table import Table as RichTable

from woh_faiss.display import display_text

from . import info_text
from .answers import WHY

if TYPE_CHECKING:
    from .answers import Answer

#: Columns of text where stdout is not a terminal: wide enough that nothing a script greps for is cut.
PIPED_WIDTH = 200


class Console(RichConsole):
    """Rich's, but a closed pipe is for `one_line_errors` to end quietly; Rich would exit with 1."""

    def on_broken_pipe(self) -> None:
        """Go on with the BrokenPipeError that is being handled."""
        raise


class Table(RichTable):
    """Rich's, but title and cells are shown as text."""

    def __init__(self, *, title: str | None = None, **options: Any) -> None:
        super().__init__(title=None if title is None else display_text(title), **options)

    def add_row(self, *cells: object, **options: Any) -> None:
        """A row of anything that has a text."""
        super().add_row(*map(display_text, cells), **options)


def console() -> Console:
    """A console on stdout that neither wraps at 80 columns in a pipe nor reads [brackets] as mark-up."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that has no letter for a key
    out = Console(markup=False, highlight=False, emoji=False)
    return out if out.is_terminal else Console(markup=False, highlight=False, emoji=False, width=PIPED_WIDTH)


def print_neighbours(answers: Iterable[Answer], measure: str, explain: bool) -> None:
    """A table a query, one row a neighbour; printed as they come, so that many queries need little memory.

    `measure` heads the column of distances or scores; with `explain` there are those of `WHY`.
    """
    out = console()
    for answer in answers:
        table = Table(title=f"query {answer.asked.query}", title_justify="left", box=box.SIMPLE_HEAD)
        table.add_column("rank", justify="right")
        table.add_column("id", justify="right")
        table.add_column("key", overflow="fold")
        table.add_column(measure, justify="right")
        table.add_column("tags", overflow="fold")
        if explain:
            for name in WHY:
                table.add_column(name, overflow="fold")
        for rank, hit in enumerate(answer.found, start=1):
            row = [str(rank), str(hit.id), hit.key or "", f"{hit.distance:.6g}", ", ".join(hit.tags)]
            if explain:
                row += answer.why(hit.id)
            table.add_row(*row)
        out.print(table)


def print_info(facts: dict[str, Any]) -> None:
    """What `WOHIndex.info` says, and its health, as short tables, each of which fits into 80 columns."""
    out = console()
    about = Table(box=box.SIMPLE_HEAD, show_header=False)
    about.add_column()
    about.add_column(overflow="fold")
    for pair in info_text.summary(facts):
        about.add_row(*pair)
    out.print(about)
    for cells in (info_text.history(facts), info_text.codes(facts), info_text.learning(facts)):
        table = Table(box=box.SIMPLE_HEAD)
        for head in cells.heads:
            table.add_column(head, justify="right")
        for row in cells.rows:
            table.add_row(*row)
        out.print(table)
    for line in [*info_text.drift(facts), *facts["warnings"]]:
        out.print(f"  {line}")
    if facts["doubted"]:
        table = Table(title="tags trusted least", title_justify="left", box=box.SIMPLE_HEAD)
        heads, rows = info_text.doubted(facts)
        for head in heads:
            table.add_column(head, justify="right" if head in ("id", "trust") else "left", overflow="fold")
        for row in rows:
            table.add_row(*row)
        out.print(table)
