"""The page of a benchmark: tables and figures in one file that fetches nothing; figures and CSV beside it."""

from __future__ import annotations

import io
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from woh_faiss.display import display_text
from woh_faiss.errors import InputError
from woh_faiss.html_template import html_template
from woh_faiss.version import __version__

from .cells import LEARNERS, VARIANTS
from .figures import figures
from .paper import ABLATIONS, DEFAULTS
from .published_numbers import SECONDS_BITS, Reference, measured, orders
from .records import QUALITY, Record, label, means, write_csv


class Table(NamedTuple):
    """A table of the page: under `title` and `notes` a row a method; a cell is its text and whether it is a
    best one.
    """

    title: str
    head: list[str]
    rows: list[list[tuple[str, bool]]]
    notes: Sequence[str] = ()


def write(
    records: Sequence[Record],
    folder: Path,
    *,
    title: str,
    command: str,
    reference: Reference | None = None,
    prepared: str = "",
) -> Path:
    """Write ``report.html``, its tables as ``report.md``, ``results.csv`` and each figure as SVG and PNG.

    The path of the page is returned.

    Parameters
    ----------
    records : sequence of Record
        The measured cells.
    folder : path
        Where the files go.
    title, command : str
        Title of the page, and the command that makes it again.
    reference : Reference, optional
        Published numbers to show beside what was measured.
    prepared : str
        A sentence on what was done to the data.

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
        content = _content(records, reference, prepared)
        page.write_text(_page(content, title, command, parts), "utf-8")
        (folder / "report.md").write_text(_markdown(content, title, command), "utf-8")
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror or error}; choose another -o") from error
    return page


class Content(NamedTuple):
    """The text of a report."""

    about: str
    notes: list[str]
    tables: list[Table]


def _content(records: Sequence[Record], reference: Reference | None, prepared: str) -> Content:
    one = records[0]
    seeds = len({record["seed"] for record in records})
    counted = prepared or f"A tag counts from {one['min_count']} uses on."
    chunks = max(len(record["rounds"]) for record in records)
    learned = f", {one['learned']:,} of them learned from" if one.get("learned") else ""
    about = (
        f"{one['database']:,} items{learned} in {chunks if chunks > 1 else one['chunks']} chunks, "
        f"{one['queries']:,} queries, {seeds} {'split' if seeds == 1 else 'splits'}. {counted} "
        f"woh-faiss {__version__}, Python {platform.python_version()}, NumPy {np.__version__}."
    )
    plain = [record for record in records if not record["hyper"] and record["method"] not in VARIANTS]
    methods = dict.fromkeys(record["method"] for record in records)
    long = [record for record in plain if len(record["rounds"]) > 1]
    tables = [table("MAP at the last round", plain, _map, best=True)] if plain else []
    tables += _beside(records, reference) if reference is not None else []
    tables += _ablations(records)
    if plain:
        tables.append(table("Precision of the first ten hits", plain, _at_10, best=True))
        tables += [table(QUALITY[name], plain, _quality(name), best=True) for name in QUALITY]
    tables += _convergence(records)
    if long:
        title = "Training seconds of the last round, and how many times those of the first"
        tables.append(table(title, long, _seconds))
    notes = [f"{name}: {LEARNERS[name].source}" for name in methods if name in LEARNERS]
    return Content(about, notes, tables)


def _page(content: Content, title: str, command: str, figures_: list[tuple[str, str]]) -> str:
    return html_template(Path(__file__).parent / "templates" / "report.html").render(
        title=title, command=command, figures=figures_, **content._asdict()
    )


def _markdown(content: Content, title: str, command: str) -> str:
    """The tables of the page, to be pasted."""
    lines = [f"# {display_text(title)}", content.about, f"    {display_text(command)}"]
    lines += [f"- {note}" for note in content.notes]
    for made in content.tables:
        rows = [[f"**{text}**" if best else text for text, best in row] for row in made.rows]
        body = [made.head, ["---"] * len(made.head), *rows]
        table_ = "\n".join(f"| {' | '.join(display_text(cell) for cell in row)} |" for row in body)
        lines += [f"## {display_text(made.title)}", *made.notes, table_]
    return "\n\n".join(lines) + "\n"


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


def _beside(records: Sequence[Record], reference: Reference) -> list[Table]:
    """What was published beside what was measured: MAP, the order of methods, seconds."""
    ours, numbers = measured(records), reference.map
    methods = list(dict.fromkeys(name for name, _ in ours))
    compared = [name for name in methods if any((name, bits) in numbers for _, bits in ours)]
    if not any(key in numbers for key in ours):
        return []
    lengths = sorted({bits for _, bits in ours})
    rows = []
    for name in compared:
        there, here = ([table_.get((name, bits)) for bits in lengths] for table_ in (numbers, ours))
        rows += [[name, "published", *map(_number, there)], ["", "here", *map(_number, here)]]
        gaps = [None if a is None or b is None else b - a for a, b in zip(there, here, strict=True)]
        rows.append(["", "difference", *("" if gap is None else f"{gap:+.3f}" for gap in gaps)])
    for name in DEFAULTS:
        if name in methods:
            rows.append([name, "here", *(_number(ours.get((name, bits))) for bits in lengths)])
    head = ["method", "MAP", *(f"{bits} bits" for bits in lengths)]
    made = [_plain(f"MAP beside {reference.title}", head, rows, reference.caveats)]
    if found := orders(records, numbers):
        places = range(max(len(order.here) for order in found))
        rows = [
            [str(place + 1), *(_at(names, place) for order in found for names in (order.there, order.here))]
            for place in places
        ]
        rows.append(["Kendall's τ", *(text for order in found for text in (order.agreement, ""))])
        head = [
            "place",
            *(f"{order.bits} bits, {whose}" for order in found for whose in ("published", "here")),
        ]
        made.append(_plain("Order of the methods by MAP", head, rows, reference.caveats))
    return made + _seconds_beside(records, reference)


def _seconds_beside(records: Sequence[Record], reference: Reference) -> list[Table]:
    """Training seconds of the first chunks, and how many times those of OSH: machines differ."""
    wanted = {*reference.seconds, *DEFAULTS}
    some = [
        record
        for record in records
        if record["method"] in wanted and record["bits"] == SECONDS_BITS and not record["hyper"]
    ]
    most = max(map(len, reference.seconds.values()), default=0)
    some = [record for record in some if len(record["rounds"]) >= most]
    if not most or not some:
        return []
    took = means(some, lambda record: [it["seconds"] for it in record["rounds"][:most]])
    here = {name: list(map(float, seconds)) for (name, _), seconds in took.items()}
    rows = [
        [name, whose, *_relative(table_[name], table_.get("osh"))]
        for name in here
        for whose, table_ in (("published", reference.seconds), ("here", here))
        if name in table_
    ]
    head = ["method", "seconds (times OSH's)", *(f"chunk {t + 1}" for t in range(most))]
    notes = (
        "Machines differ: compare what is in brackets, of a run with nothing beside it. Where no word "
        "vectors are given, every method's chunk 1 includes learning them.",
    )
    return [_plain(f"Training seconds, {SECONDS_BITS} bits, beside {reference.title}", head, rows, notes)]


def _relative(seconds: Sequence[float], unit: Sequence[float] | None) -> list[str]:
    """Seconds, and how many times those of `unit`."""
    if unit is None:
        return [f"{it:.3f}" for it in seconds]
    return [f"{it:.3f} ({it / max(one, 1e-9):.2f})" for it, one in zip(seconds, unit, strict=True)]


def _ablations(records: Sequence[Record]) -> list[Table]:
    """MAP of `woh-paper` without parts of its objective, and with other constants."""
    whole = [record for record in records if record["method"] == "woh-paper" and not record["hyper"]]
    defaults = [record for record in records if record["method"] in DEFAULTS]
    without = [it for it in records if it["method"] in VARIANTS or it["hyper"] in ABLATIONS]
    made = []
    if without:
        rows = [*whole, *without, *defaults]
        made.append(table("MAP of woh-paper without parts of its objective", rows, _map, best=True))
    for name in dict.fromkeys(name for record in records for name in record["hyper"]):
        varied = [it for it in records if [*it["hyper"]] == [name] and it["hyper"] not in ABLATIONS]
        lengths = {record["bits"] for record in varied}
        beside = [record for record in (*whole, *defaults) if record["bits"] in lengths]
        if varied:
            varied.sort(key=lambda record: float(record["hyper"][name]))
            rows = [*varied, *beside]
            made.append(table(f"MAP of woh-paper with other values of {name}", rows, _map, best=True))
    return made


def _convergence(records: Sequence[Record]) -> list[Table]:
    """The objective on the first chunk by iterations, as a share of that after the first."""
    falling = [record for record in records if record.get("objective")]
    if not falling:
        return []
    curves = means(falling, lambda record: record["objective"])
    rows = [
        [f"{name}, {bits} bits", *(f"{value / values[0]:.4f}" for value in values)]
        for (name, bits), values in curves.items()
    ]
    head = ["outer iterations", *(str(t + 1) for t in range(len(rows[0]) - 1))]
    title = "Objective (Eq. 4) on the first chunk, as a share of that after one iteration"
    return [_plain(title, head, rows)]


def _plain(title: str, head: list[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> Table:
    return Table(title, head, [[(text, False) for text in row] for row in rows], notes)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _at(names: Sequence[str], place: int) -> str:
    return names[place] if place < len(names) else ""


def kind(method: str) -> str:
    """What the database of a method is ranked by."""
    if method in LEARNERS:
        return "learned" if LEARNERS[method].keeps_learned else "encoded"
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
