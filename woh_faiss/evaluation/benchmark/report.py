"""The page of a benchmark: tables and figures in one file that fetches nothing; figures and CSV beside it."""

from __future__ import annotations

import io
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from woh_faiss.errors import InputError
from woh_faiss.evaluation.baselines import METHODS
from woh_faiss.html_template import html_template
from woh_faiss.version import __version__

from .figures import figures
from .paper import Numbers, beside
from .records import QUALITY, Record, label, write_csv


class Table(NamedTuple):
    """A table of the page: under `title` a row a method; a cell is its text and whether it is a best one."""

    title: str
    head: list[str]
    rows: list[list[tuple[str, bool]]]


def write(
    records: Sequence[Record], folder: Path, *, title: str, command: str, numbers: Numbers | None = None
) -> Path:
    """Write ``report.html``, ``results.csv`` and each figure as SVG and PNG; the path of the page.

    Parameters
    ----------
    records : sequence of Record
        The measured cells.
    folder : path
        Where the files go.
    title, command : str
        Title of the page, and the command that makes it again.
    numbers : Numbers, optional
        Published MAP to show beside what was measured.

    Raises
    ------
    InputError
        There are no records, matplotlib is not installed, or a file cannot be written.
    """
    if not records:
        raise InputError("nothing was measured, so there is nothing to report")
    drawn = figures(records)
    parts = []
    try:
        write_csv([*records], folder / "results.csv")
        for name, (caption, figure) in drawn.items():
            figure.savefig(folder / f"{name}.png", dpi=150)
            text = io.StringIO()
            figure.savefig(text, format="svg", metadata={"Date": None})
            svg = text.getvalue()
            (folder / f"{name}.svg").write_text(svg, "utf-8")
            parts.append((caption, svg[svg.index("<svg") :]))
        page = folder / "report.html"
        page.write_text(_page(records, title, command, parts, numbers or {}), "utf-8")
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror or error}; choose another -o") from error
    return page


def _page(
    records: Sequence[Record], title: str, command: str, figures_: list[tuple[str, str]], numbers: Numbers
) -> str:
    one = records[0]
    seeds = len({record["seed"] for record in records})
    about = (
        f"{one['database']:,} items in {one['chunks']} chunks, {one['queries']:,} queries, {seeds} "
        f"{'split' if seeds == 1 else 'splits'}; a tag counts from {one['min_count']} uses on. "
        f"woh-faiss {__version__}, Python {platform.python_version()}, NumPy {np.__version__}."
    )
    methods = dict.fromkeys(record["method"] for record in records)
    long = [record for record in records if len(record["rounds"]) > 1]
    return html_template(Path(__file__).parent / "templates" / "report.html").render(
        title=title,
        about=about,
        command=command,
        scores=table("MAP at the last round", records, _map, best=True),
        notes=[f"{name}: {METHODS[name].source}" for name in methods if name in METHODS],
        tables=[
            *_compared(records, numbers),
            table("Precision of the first ten hits", records, _at_10, best=True),
            *(table(QUALITY[name], records, _quality(name), best=True) for name in QUALITY),
            table(
                "Training seconds of the last round, and how many times those of the first", long, _seconds
            ),
        ],
        figures=figures_,
    )


def table(
    title: str,
    records: Sequence[Record],
    of: Callable[[Sequence[Record]], tuple[float, str]],
    best: bool = False,
) -> Table:
    """A row a method, a column a code length; `of` says (number, text) of several seeds' records."""
    lengths = sorted({record["bits"] for record in records if record["bits"]})
    rows: dict[str, dict[int | None, tuple[float, str]]] = {}
    kinds = {}
    for name in dict.fromkeys(map(label, records)):
        mine = [record for record in records if label(record) == name]
        kinds[name] = kind(mine[0]["method"])
        rows[name] = {
            bits: of([record for record in mine if record["bits"] == bits])
            for bits in dict.fromkeys(record["bits"] for record in mine)
        }
    body = {
        name: [row.get(bits, row.get(None, (-1.0, ""))) for bits in lengths] for name, row in rows.items()
    }
    top = [max(column)[0] for column in zip(*body.values(), strict=True)]
    return Table(
        title,
        ["method", "database", *(f"{bits} bits" for bits in lengths)],
        [
            [
                (name, False),
                (kinds[name], False),
                *(
                    (text, best and text != "" and value >= most)
                    for (value, text), most in zip(cells, top, strict=True)
                ),
            ]
            for name, cells in body.items()
        ],
    )


def _compared(records: Sequence[Record], numbers: Numbers) -> list[Table]:
    rows = [
        [
            (text, False)
            for text in (method, str(bits), f"{ours:.3f}", f"{theirs:.3f}", f"{ours - theirs:+.3f}")
        ]
        for method, bits, ours, theirs in beside(records, numbers)
    ]
    head = ["method", "bits", "here", "published", "difference"]
    return [Table("Beside published numbers", head, rows)] if rows else []


def kind(method: str) -> str:
    """What the database of a method is ranked by."""
    if method in METHODS:
        return "learned" if METHODS[method].keeps_learned else "encoded"
    return "learned" if method.startswith("woh") else "as it is"


def _map(records: Sequence[Record]) -> tuple[float, str]:
    scores = [record["rounds"][-1]["map"] for record in records]
    spread = f" ± {np.std(scores):.3f}" if len(scores) > 1 else ""
    return float(np.mean(scores)), f"{np.mean(scores):.3f}{spread}"


def _at_10(records: Sequence[Record]) -> tuple[float, str]:
    scores = [dict(zip(it["first"], it["precision"], strict=True)).get(10, np.nan) for it in records]
    return float(np.mean(scores)), f"{np.mean(scores):.3f}"


def _quality(name: str) -> Callable[[Sequence[Record]], tuple[float, str]]:
    """The mean of one of `records.QUALITY`."""

    def of(records: Sequence[Record]) -> tuple[float, str]:
        mean = float(np.mean([record["quality"][name] for record in records]))
        return mean, f"{mean:.3f}"

    return of


def _seconds(records: Sequence[Record]) -> tuple[float, str]:
    last = float(np.mean([record["rounds"][-1]["seconds"] for record in records]))
    first = float(np.mean([record["rounds"][0]["seconds"] for record in records]))
    return last, f"{last:.2f} ({last / max(first, 1e-9):.1f})"
