"""Whether learned codes pay on data without labels: `evaluate`'s other half. Tables, JSON lines, the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from woh_faiss.evaluation.comparison import (
    FLOAT,
    Measured,
    Trial,
    compare,
    methods,
)
from woh_faiss.evaluation.relevance import Relevance
from woh_faiss.evaluation.verdict import NAMES, Interval, Verdict, verdict
from woh_faiss.tags.tag_text import normalise

from .options import noted, print_json, print_line, progress, say

if TYPE_CHECKING:
    from woh_faiss.inputs.chunk import Chunk
    from woh_faiss.tags.word_vectors import WordVectors

#: Learned bits that are tried unless others are asked for, each with as many instance bits.
BITS = (16, 32, 64, 128)
#: Items that are taken at most unless more are asked for: a minute or two.
SAMPLE = 5000
#: Queries on the page.
SHOWN = 20
#: Heads of the table: of `Measured.means`, after the first two.
HEADS = ("method", "bytes", "nDCG@10", "chance", "P@10", "MAP", "recall", "self@1", "self@10")
_MEASURES = {
    "ndcg": "ndcg10",
    "chance": "chance_ndcg10",
    "p10": "p10",
    "ap": "map",
    "recall": "float_recall10",
}
LEGEND = (
    "nDCG@10, P@10 and MAP: by tags of the query that an answer shares. Chance: nDCG@10 of the answers to "
    "another query. Recall: of float's ten nearest. Self: an item of the index asked for by its own features."
)


@dataclass(frozen=True)
class VerdictOptions:
    """What `evaluate` was asked for, as far as it concerns data without labels; `unasked`: it had none."""

    codes: Sequence[tuple[int, int]]
    queries: int | None
    sample: int
    seed: int
    preset: str
    word_vectors: WordVectors | None
    expand: int
    as_json: bool
    html: Path | None
    images: Path | None
    of: str
    unasked: bool


class _Item(NamedTuple):
    """An item on the page."""

    name: str
    key: str | None
    tags: list[str]


class _Hit(NamedTuple):
    item: _Item
    relevant: bool


class _Shown(NamedTuple):
    """One method's first answers to a query."""

    method: str
    relevant: int
    hits: list[_Hit]


def run(data: Chunk, options: VerdictOptions) -> None:
    """Compare, print, and write the page."""
    trial = Trial(data, queries=options.queries, sample=options.sample, seed=options.seed)
    if options.unasked:
        noted("there are no labels of all items, so tags tell what is relevant")
    if len(trial.chunk) < len(data):
        noted(
            f"a random sample of {len(trial.chunk):,} of {len(data):,} items; --sample {len(data)} takes all"
        )
    relevance = Relevance.of_tags(trial.chunk, trial.held_out, trial.rest)
    d = trial.X.shape[1]
    wanted = methods(d, options.codes)
    if longer := sorted({(r + s) // 8 for r, s in options.codes} - {method.n_bytes for method in wanted[1:]}):
        noted(f"codes of {', '.join(map(str, longer))} bytes are left out: features take {4 * d}")
    measured = []
    compared = compare(
        trial,
        relevance,
        options.codes,
        preset=options.preset,
        word_vectors=options.word_vectors,
        expand=options.expand,
    )
    for each in progress(compared, len(wanted), "methods"):
        measured.append(each)
        if options.as_json:
            print_json(_record(each, trial))
    found = verdict(measured, options.seed)
    if options.as_json:
        print_json(_verdict_record(found))
    else:
        _print_table(measured, found, trial)
    if options.html is not None:
        _write_page(options.html, measured, found, trial, relevance, options)


def _record(measured: Measured, trial: Trial) -> dict[str, Any]:
    means = {_MEASURES.get(name, name): value for name, value in measured.means().items()}
    rounded = {name: None if value is None else round(value, 6) for name, value in means.items()}
    sizes = {"queries": len(trial.Xq), "database": len(trial.X), "seconds": round(measured.seconds, 4)}
    method = measured.method._asdict()
    return {"method": method.pop("name"), **method, **rounded, **sizes}


def _verdict_record(found: Verdict) -> dict[str, Any]:
    """The verdict as JSON has it: no NaN."""

    def ends(interval: Interval) -> list[float] | None:
        return None if np.isnan(interval.mean) else [round(value, 6) for value in interval]

    return {
        "verdict": found.choice,
        "headline": found.headline,
        "reasons": found.reasons,
        "method": found.method.name,
        **{name: getattr(found.method, name) for name in ("n_bytes", "bits", "instance_bits")},
        "beside": found.beside.name,
        "difference": ends(found.difference),
        "lift": ends(found.lift),
    }


def _cells(measured: Measured) -> list[str]:
    """A row of the table."""
    method = measured.method
    name = method.name
    if method.bits is not None:
        name = f"woh {method.bits} + {method.instance_bits}"
    values = ("-" if value is None else f"{value:.3f}" for value in measured.means().values())
    return [name, f"{method.n_bytes:,}", *values]


def _print_table(measured: list[Measured], found: Verdict, trial: Trial) -> None:
    from rich import box

    from .tables import Table, console

    table = Table(title=_about(trial), title_justify="left", box=box.SIMPLE_HEAD)
    for place, head in enumerate(HEADS):
        table.add_column(head, justify="right" if place else "left", no_wrap=True)
    for each in measured:
        table.add_row(*_cells(each))
    console().print(table)
    print_line(f"Verdict: {found.headline}")
    for reason in found.reasons:
        print_line(f"- {reason}")


def _about(trial: Trial) -> str:
    return f"{len(trial.Xq):,} queries held out with their tags, {len(trial.X):,} items searched"


def _write_page(
    path: Path,
    measured: list[Measured],
    found: Verdict,
    trial: Trial,
    relevance: Relevance,
    options: VerdictOptions,
) -> None:
    from woh_faiss.thumbnails import Thumbnails

    from . import html_page

    pictures = Thumbnails(options.images)
    wanted = {found.method, found.beside}
    shown = [m for m in measured if m.method.name == FLOAT or m.method in wanted]
    shown.sort(key=lambda m: (m.method != found.method, m.method.name == FLOAT))
    rows = [{"cells": _cells(m), "chosen": m.method == found.method} for m in measured]
    size = html_page.write_template(
        path,
        "verdict.html",
        title=f"Does it pay? {options.of}",
        about=f"{options.of}: {_about(trial)}",
        verdict=found,
        heads=HEADS,
        rows=rows,
        legend=LEGEND,
        queries=[_asked(q, shown, trial, relevance) for q in _some(relevance)],
        thumbnail_of=pictures.of,
    )
    say(f"note: {path} is the page, {size / 1000:,.0f} kB{pictures.note()}")


def _some(relevance: Relevance) -> list[int]:
    """The first queries, which are in random order; those that share a tag with something, if any do."""
    known = np.flatnonzero(relevance.known)
    shown: list[int] = (known if len(known) else np.arange(len(relevance.known)))[:SHOWN].tolist()
    return shown


def _asked(q: int, shown: list[Measured], trial: Trial, relevance: Relevance) -> dict[str, Any]:
    """A query with the first answers of some methods."""
    gains = relevance.gains(np.array([q]))[0]
    item = _item(trial, trial.held_out[q])
    answers = []
    for each in shown:
        places = each.first[q].tolist()
        hits = [_Hit(_item(trial, trial.rest[place]), bool(gains[place] > 0)) for place in places]
        name = NAMES[each.method.name] + (
            "" if each.method.name == FLOAT else f", {each.method.n_bytes} bytes"
        )
        answers.append(_Shown(name, sum(hit.relevant for hit in hits), hits))
    own = {normalise(tag) for tag in item.tags}
    return {"item": item, "answers": answers, "shared": _Shared(own)}


class _Shared:
    """Tags that are a query's, whatever their case."""

    def __init__(self, own: set[str]) -> None:
        self._own = own

    def __contains__(self, tag: str) -> bool:
        return normalise(tag) in self._own


def _item(trial: Trial, row: Any) -> _Item:
    chunk = trial.chunk
    key = None if chunk.keys is None else str(chunk.keys[row])
    return _Item(key or f"item {int(row)}", key, [] if chunk.tags is None else chunk.tags.of_row(int(row)))
