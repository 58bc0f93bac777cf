"""Answers and facts for a pipe: cells separated by tabs. A terminal gets the tables of `tables.py`."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from woh_faiss.display import display_text

from . import info_text
from .answers import WHY

if TYPE_CHECKING:
    from .answers import Answer


def print_neighbours(answers: Iterable[Answer], measure: str, explain: bool) -> None:
    """The columns of `tables.print_neighbours`, without its import of rich, which takes longer than a query.

    Cells have tabs, line ends and whatever else a terminal obeys escaped; `--json` keeps everything as it is.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # an encoding that has no letter for a key
    head = ["query", "rank", "id", "key", measure, "tags", *(WHY if explain else ())]
    for number, answer in enumerate(answers):
        if not number:  # only now is it known that there are answers
            _write(head)
        for rank, hit in enumerate(answer.found, start=1):
            row = [answer.asked.query, rank, hit.id, hit.key or "", f"{hit.distance:.6g}"]
            row.append(", ".join(hit.tags))
            if explain:
                row += answer.why(hit.id)
            _write(row)


def print_info(facts: dict[str, Any]) -> None:
    """The tables of `tables.print_info` without padding, an empty line between two."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    for pair in info_text.summary(facts):
        _write(pair)
    for title, cells in (
        ("", info_text.history(facts)),
        ("", info_text.codes(facts)),
        ("", info_text.learning(facts)),
        ("tags trusted least", info_text.doubted(facts)),
    ):
        if cells.rows:
            _write([])
            for row in (*([[title]] if title else []), cells.heads, *cells.rows):
                _write(row)
    if lines := [*info_text.drift(facts), *facts["warnings"]]:
        _write([])
        for line in lines:
            _write([line])


def _write(cells: Iterable[object]) -> None:
    sys.stdout.write("\t".join(map(display_text, cells)) + "\n")
