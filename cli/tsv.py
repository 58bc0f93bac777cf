"""Answers for a pipe: a line a neighbour, separated by tabs. A terminal gets the tables of `tables.py`."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from woh_faiss.display import display_text

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


def _write(cells: Iterable[object]) -> None:
    sys.stdout.write("\t".join(map(display_text, cells)) + "\n")
