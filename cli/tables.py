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
    """What `WOHIndex.info` says, and its health, as short tables."""
    out = console()
    summary = Table(box=box.SIMPLE_HEAD, show_header=False)
    names = [
        "path",
        "ntotal",
        "rounds",
        "bits",
        "instance_bits",
        "stored_bits",
        "d",
        "anchors",
        "preset",
        "model_digest",
    ]
    if facts["removed"]:
        names[2:2] = ["rows", "removed"]
    for name in names:
        summary.add_row(name, facts[name])
    summary.add_row("tags", f"{facts['tags_known']:,} learned from, {facts['tags_seen']:,} seen")
    summary.add_row("tags most used", ", ".join(f"{tag} ({count:,})" for tag, count in facts["tags_top"]))
    summary.add_row("bytes", ", ".join(f"{name} {size:,}" for name, size in facts["sizes"].items()))
    for made in facts["ann"]:
        summary.add_row(f"approximate {made['kind']}", _ann(made))
    out.print(summary)
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("round", "kind", "items", "learned", "ntotal", "seconds"):
        table.add_column(name, justify="right")
    for name in ("balance", "entropy", "correlation", "distinct", "tagged"):
        table.add_column(name, justify="right")
    for row in facts["history"]:
        table.add_row(
            str(row["round"]), row["kind"], f"{row['n']:,}", f"{row['trained']:,}", f"{row['ntotal']:,}",
            f"{row['seconds']:.2f}", *_figures(row["health"] or {}),
        )  # fmt: skip
    out.print(table)
    for moved in facts["drift"]:
        most = max(moved["bits"])
        out.print(
            f"  since round {moved['round']} the hash function sets {moved['turned']:.1%} of bits otherwise "
            f"(bit {moved['bits'].index(most)} most: {most:.1%})"
        )
    if facts["tag_outliers"]:
        table = Table(title="tags and features disagree", title_justify="left", box=box.SIMPLE_HEAD)
        table.add_column("id", justify="right")
        table.add_column("key", overflow="fold")
        table.add_column("bits", justify="right")
        table.add_column("tags", overflow="fold")
        for item in facts["tag_outliers"]:
            table.add_row(str(item["id"]), item["key"] or "", str(item["differ"]), ", ".join(item["tags"]))
        out.print(table)


def _ann(made: dict[str, Any]) -> str:
    """An approximate index in a line."""
    text = ", ".join(f"{name} {value}" for name, value in made["parameters"].items())
    text += f"; recall@10 {made['recall']:.3f} after round {made['round']}"
    return text + (f"; {made['behind']:,} newer codes are scanned" if made["behind"] else "")


def _figures(health: dict[str, Any]) -> list[str]:
    """What the columns on a round's codes say; empty where it is not known."""
    shown = [
        f"{health[name]:.2f}" if name in health else "" for name in ("balance", "entropy", "correlation")
    ]
    shown.append(f"{health['distinct']:.0%}" if "distinct" in health else "")
    shown.append(f"{health['items_tagged'] / health['items']:.0%}" if health.get("items") else "")
    return shown
