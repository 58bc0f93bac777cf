"""The page of a benchmark: tables and figures in one file that fetches nothing; figures and CSV beside it."""

from __future__ import annotations

import html
import io
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from woh_faiss.display import display_text
from woh_faiss.errors import InputError
from woh_faiss.evaluation.baselines import METHODS
from woh_faiss.version import __version__

from .figures import figures
from .paper import Numbers, beside
from .records import Record, label, write_csv

_STYLE = """\
body { max-width: 75rem; margin: 0 auto; padding: 1rem; color: #1b1f24;
  font: 1rem/1.45 system-ui, sans-serif }
table { border-collapse: collapse; margin: .5rem 0 1.5rem }
th, td { padding: .25rem .7rem; text-align: right }
th:first-child, td:first-child { text-align: left } thead { border-bottom: 2px solid #b9c0c9 }
tbody tr:nth-child(even) { background: #f3f4f6 } .dim { color: #57606a } svg { max-width: 100%; height: auto }
pre { white-space: pre-wrap; background: #f3f4f6; padding: .6rem }
"""


def write(
    records: Sequence[Record], folder: Path, *, title: str, command: str, numbers: Numbers | None = None
) -> Path:
    """Write ``report.html``, ``results.csv`` and each figure as SVG and PNG; the path of the page.

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
            parts.append(f"<h2>{_text(caption)}</h2>\n{svg[svg.index('<svg') :]}")
        page = folder / "report.html"
        page.write_text(_page(records, title, command, parts, numbers or {}), "utf-8")
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror or error}; choose another -o") from error
    return page


def _page(records: Sequence[Record], title: str, command: str, figures_: list[str], numbers: Numbers) -> str:
    one = records[0]
    seeds = len({record["seed"] for record in records})
    about = (
        f"{one['database']:,} items in {one['chunks']} chunks, {one['queries']:,} queries, {seeds} "
        f"{'split' if seeds == 1 else 'splits'}; a tag counts from {one['min_count']} uses on. "
        f"woh-faiss {__version__}, Python {platform.python_version()}, NumPy {np.__version__}."
    )
    return "\n".join([
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
        "style-src 'unsafe-inline'; img-src data:\">",
        f"<title>{_text(title)}</title>\n<style>\n{_STYLE}</style>\n</head>\n<body>",
        f"<h1>{_text(title)}</h1>\n<p>{_text(about)}</p>\n<pre>{_text(command)}</pre>",
        "<h2>MAP at the last round</h2>",
        table(records, _map, best=True),
        '<p class="dim">Mean ± standard deviation over splits; the best of a column is bold. "learned": the '
        'database is ranked by codes as they were learned with their tags; "encoded": by codes of the newest '
        "function. Such numbers do not compare without that in mind.</p>",
        *(f'<p class="dim">{_text(note)}</p>' for note in _notes(records)),
        *_compared(records, numbers),
        "<h2>Precision of the first ten hits</h2>",
        table(records, _at_10, best=True),
        "<h2>Training seconds of the last round, and how many times those of the first</h2>",
        table([record for record in records if len(record["rounds"]) > 1], _seconds),
        *figures_,
        "</body>\n</html>\n",
    ])  # fmt: skip


def table(records: Sequence[Record], of: Any, best: bool = False, markup: bool = True) -> str:
    """A row a method, a column a code length; `of` says (number, text of several seeds' records).

    As HTML, or as Markdown where `markup` is false.
    """
    lengths = sorted({record["bits"] for record in records if record["bits"]})
    rows: dict[str, dict[int | None, tuple[float, str]]] = {}
    for name in dict.fromkeys(map(label, records)):
        mine = [record for record in records if label(record) == name]
        for bits in dict.fromkeys(record["bits"] for record in mine):
            rows.setdefault(name, {})[bits] = of([record for record in mine if record["bits"] == bits])
    top = {
        bits: max((row.get(bits, row.get(None, (-1.0, "")))[0] for row in rows.values()), default=0)
        for bits in lengths
    }
    bold = "<b>{}</b>" if markup else "**{}**"
    body = []
    for name, row in rows.items():
        cells = []
        for bits in lengths:
            value, text = row.get(bits, row.get(None, (-1.0, "")))
            cells.append(bold.format(text) if best and text and value >= top[bits] else text)
        method = next(record["method"] for record in records if label(record) == name)
        body.append([name, kind(method), *cells])
    head = ["method", "database", *(f"{bits} bits" for bits in lengths)]
    if not markup:
        lines = [head, ["---"] * len(head), *body]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return _html(head, [[_text(line[0]), *line[1:]] for line in body])


def _text(value: str) -> str:
    return html.escape(display_text(value))


def _html(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    return (
        f"<table><thead><tr>{''.join(f'<th>{name}</th>' for name in head)}</tr></thead><tbody>"
        + "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in line)}</tr>" for line in body)
        + "</tbody></table>"
    )


def _compared(records: Sequence[Record], numbers: Numbers) -> list[str]:
    rows = beside(records, numbers)
    if not rows:
        return []
    body = [
        [method, str(bits), f"{ours:.3f}", f"{theirs:.3f}", f"{ours - theirs:+.3f}"]
        for method, bits, ours, theirs in rows
    ]
    head = ["method", "bits", "here", "published", "difference"]
    return ["<h2>Beside published numbers</h2>", _html(head, body)]


def kind(method: str) -> str:
    """What the database of a method is ranked by."""
    if method in METHODS:
        return "learned" if METHODS[method].keeps_learned else "encoded"
    return "learned" if method.startswith("woh") else "as it is"


def _notes(records: Sequence[Record]) -> list[str]:
    methods = dict.fromkeys(record["method"] for record in records)
    return [f"{name}: {METHODS[name].source}" for name in methods if name in METHODS]


def _map(records: Sequence[Record]) -> tuple[float, str]:
    scores = [record["rounds"][-1]["map"] for record in records]
    spread = f" ± {np.std(scores):.3f}" if len(scores) > 1 else ""
    return float(np.mean(scores)), f"{np.mean(scores):.3f}{spread}"


def _at_10(records: Sequence[Record]) -> tuple[float, str]:
    scores = [dict(zip(it["first"], it["precision"], strict=True)).get(10, np.nan) for it in records]
    return float(np.mean(scores)), f"{np.mean(scores):.3f}"


def _seconds(records: Sequence[Record]) -> tuple[float, str]:
    last = float(np.mean([record["rounds"][-1]["seconds"] for record in records]))
    first = float(np.mean([record["rounds"][0]["seconds"] for record in records]))
    return last, f"{last:.2f} ({last / max(first, 1e-9):.1f})"


#: Tables by what they are of, for other pages: see `table`.
TABLES = {"MAP": _map, "P@10": _at_10, "seconds": _seconds}
