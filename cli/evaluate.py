"""`woh-index evaluate`: how well codes rank, round by round; without labels, whether they pay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
from click.core import ParameterSource

from .encoders import PictureFlags, picture_options
from .errors import one_line_errors
from .options import (
    bits_list,
    chunks_argument,
    column_options,
    json_option,
    limit_option,
    max_memory_option,
    noted,
    preset_option,
    print_json,
    progress,
    say_split,
    tag_separator_option,
    word_vectors_option,
)

if TYPE_CHECKING:
    from woh_faiss.evaluation.streaming import Result
    from woh_faiss.evaluation.troubles import Order

#: With more rounds than this the table shows the first, the middle and the last: it must fit in 80 columns.
MOST_ROUNDS = 3
#: Options that need labels, and those that are for data without.
_BY_LABELS = ("by", "n_chunks", "order", "first_sample", "wrong_tags", "untagged", "plot")
_BY_TAGS = ("sample", "html", "images")


@click.command("evaluate")
@chunks_argument
@click.option(
    "--bits",
    default="16,64",
    callback=bits_list,
    help="Numbers of learned bits to try.  [default: 16,64; without labels 16,32,64,128]",
)
@click.option(
    "--instance-bits",
    default=64,
    type=click.IntRange(0),
    help="Bits of the features alone behind them.  [default: 64; without labels as many as learned bits]",
)
@click.option(
    "--by",
    type=click.Choice(["both", "hamming"]),
    default="both",
    show_default=True,
    help="Rank by score, as an index does, or by learned bits that differ.",
)
@click.option(
    "--expand",
    default=3,
    show_default=True,
    type=click.IntRange(0),
    help="First answers that are asked with again, by score.",
)
@click.option(
    "--chunks",
    "n_chunks",
    default=8,
    show_default=True,
    type=click.IntRange(1),
    help="Equal parts to stream.",
)
@click.option(
    "--queries",
    type=click.IntRange(1),
    help="Items held out as queries, at most half.  [default: a quarter, at most 1000]",
)
@click.option(
    "--order",
    type=click.Choice(["random", "given", "by-label", "new-labels-late"]),
    default="random",
    show_default=True,
    help="Order of the stream; the last one has half of the classes first.",
)
@click.option(
    "--first-sample",
    default=0,
    show_default=True,
    type=click.IntRange(0),
    metavar="N",
    help="Items of the first part, a random sample, as build has it.",
)
@click.option(
    "--wrong-tags",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0, 1),
    metavar="SHARE",
    help="Share of the items whose tags are exchanged among them.",
)
@click.option(
    "--untagged",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0, 1),
    metavar="SHARE",
    help="Share of the items whose tags are taken away.",
)
@click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(0), help="Decides every random draw."
)
@click.option(
    "--sample",
    type=click.IntRange(1),
    metavar="N",
    help="Without labels: random items that are taken at most.  [default: 5000]",
)
@click.option(
    "--html",
    type=click.Path(path_type=Path),
    help="Without labels: write the verdict and pictures of the first answers to a page, e.g. out.html.",
)
@click.option(
    "--images",
    type=click.Path(path_type=Path),
    help="With --html: the folder of the pictures that keys are paths of; no other is read.",
)
@preset_option
@word_vectors_option
@json_option
@click.option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False), help="Draw MAP by round, e.g. map.png."
)
@column_options("features", "tags", "key", "labels")
@tag_separator_option
@limit_option
@picture_options
@max_memory_option
@click.pass_context
@one_line_errors
def evaluate(
    context: click.Context,
    chunks: Sequence[Path],
    columns: dict[str, str | None],
    tag_separator: str | None,
    limit: int | None,
    bits: list[int],
    instance_bits: int,
    by: Literal["both", "hamming"],
    expand: int,
    n_chunks: int,
    queries: int | None,
    order: Order,
    first_sample: int,
    wrong_tags: float,
    untagged: float,
    seed: int,
    preset: str,
    word_vectors: Path | None,
    as_json: bool,
    plot: Path | None,
    sample: int | None,
    html: Path | None,
    images: Path | None,
    pictures: PictureFlags,
) -> None:
    """Measure learned codes on the items of all CHUNKs: by labels round by round, or without labels by tags.

    With labels: holds queries out at random, streams the rest in equal parts, and prints the mean average
    precision (MAP) after each: ranked as an index searches, the whole database so far, relevant = a shared
    label. Database items keep the learned bits they got when their part came. At the end it also prints how
    many of the first ten answers are relevant (P@10), how often an item is the first answer to its own
    features, or among the first ten (self@1, self@10), and how many of the ten nearest by float cosine are
    found. Uncompressed search on the same split is printed beside it. CHUNKs are as for build. Every item
    needs tags, which are learned from (not with --bits 0), and labels (0/1, class numbers or names), which
    are not.

    --order, --wrong-tags and --untagged show what an order, wrong tags and items without tags cost.

    Without labels (--labels-column '' leaves them out): queries are held out with their tags, and an item is
    relevant as far as it shares tags that few items have. Learned codes of several lengths stand beside
    uncompressed search and Faiss's ITQ, PQ and RaBitQ of as many bytes. The last lines are a verdict: which
    index pays, of which length, and the numbers that this rests on. --html writes it with the answers to some
    queries.

    \b
    Example:
        woh-index evaluate photos.parquet
        woh-index evaluate photos/ --encoder onnx:model.onnx --tags-from folders
        woh-index evaluate examples/data/chunk-*.npz --word-vectors examples/data/glove-100d-tags.w2v.txt
        woh-index evaluate chunk-*.npz --wrong-tags .1 --untagged .7
        woh-index evaluate photos.parquet --labels-column category --limit 20000
    """
    from woh_faiss.errors import InputError
    from woh_faiss.evaluation import plots
    from woh_faiss.evaluation.quality import Quality
    from woh_faiss.evaluation.streaming import stream
    from woh_faiss.inputs import Columns, read_labelled
    from woh_faiss.learner.config import WOHConfig
    from woh_faiss.tags.word_vectors import WordVectors

    if plot is not None:
        plots.check(plot)
    if html is not None:
        from . import html_page

        html_page.check(html, images)
    elif images is not None or columns["key"]:
        raise click.UsageError(f"{'--key-column' if images is None else '--images'} goes with --html")
    configs = [WOHConfig(bits=b, preset=preset, seed=seed) for b in dict.fromkeys(bits)]
    if by == "hamming":
        instance_bits = 0
    if not instance_bits and not all(bits):
        raise click.UsageError("--bits 0 has instance bits alone: give --instance-bits, and no --by hamming")
    vectors = WordVectors.open(word_vectors) if word_vectors else None
    labels = columns.pop("labels")
    data = read_labelled(
        chunks,
        columns=Columns(**columns),
        labels=labels,
        limit=limit,
        tag_separator=tag_separator,
        split_note=say_split,
        learn=any(bits),
        keys=html is not None,
        note=noted,
        pictures=pictures.options(None),
    )
    if data.labels is None:
        from . import verdict

        if data.tags is None:
            raise InputError(
                "the data have neither labels nor tags, expected one to tell what is relevant by; "
                "give --labels-column or --tags-column"
            )

        _refuse(context, _BY_LABELS, "with labels, and the data have none")
        verdict.run(
            data,
            verdict.VerdictOptions(
                codes=_codes(context, bits, instance_bits, verdict.BITS),
                queries=queries,
                sample=sample or verdict.SAMPLE,
                seed=seed,
                preset=preset,
                word_vectors=vectors,
                expand=expand,
                as_json=as_json,
                html=html,
                images=images,
                of=chunks[0].name if len(chunks) == 1 else f"{len(chunks)} inputs",
                unasked=labels is None,
            ),
        )
        return
    _refuse(context, _BY_TAGS, "without labels; --labels-column '' leaves them out")
    steps = stream(
        data,
        configs,
        chunks=n_chunks,
        queries=queries,
        seed=seed,
        word_vectors=vectors,
        instance_bits=instance_bits,
        by=by,
        expand=expand,
        order=order,
        first_sample=first_sample,
        wrong_tags=wrong_tags,
        untagged=untagged,
    )
    results = []
    for result in progress(steps, total=n_chunks * len(configs) + 2):
        results.append(result)
        if as_json:
            line = asdict(result)
            line["seconds"] = round(result.seconds, 4)
            line |= {name: round(line[name], 6) for name in Quality._fields}
            print_json(line)
    if not as_json:
        _print_table(results, n_chunks)
    if plot is not None:
        plots.map_by_round(results, plot)


def _refuse(context: click.Context, names: Sequence[str], when: str) -> None:
    """UsageError for options that were given and have no meaning for these data."""
    for name in names:
        if _given(context, name):
            raise click.UsageError(f"--{name.replace('_', '-').removeprefix('n-')} is for data {when}")


def _given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is not ParameterSource.DEFAULT


def _codes(
    context: click.Context, bits: list[int], instance_bits: int, usual: Sequence[int]
) -> list[tuple[int, int]]:
    """Learned and instance bits of the codes to compare."""
    if not all(bits):
        raise click.UsageError(
            "without labels --bits are learned bits, at least 8; codes without are beside them"
        )
    learned = bits if _given(context, "bits") else usual
    own = _given(context, "instance_bits")
    return [(r, instance_bits if own else r) for r in learned]


def _print_table(results: list[Result], chunks: int) -> None:
    """Two tables, a row a method and code length: MAP of some rounds, and the quality after the last."""
    from rich import box

    from .tables import Table, console

    rounds = range(1, chunks + 1)
    shown = list(rounds) if chunks <= MOST_ROUNDS else [1, (chunks + 1) // 2, chunks]
    last = results[-1]
    by_round = Table(
        title="MAP after a round",
        box=box.SIMPLE,
        caption=f"{last.queries} queries against up to {last.database} items in {chunks} parts; "
        "training seconds a round",
    )
    at_last = Table(title="After the last round", box=box.SIMPLE)
    for table, columns in (
        (by_round, (*(f"round {t}" for t in shown), "seconds")),
        (at_last, ("P@10", "self@1", "self@10", "float recall")),
    ):
        for name in ("method", "preset"):
            table.add_column(name, no_wrap=True)
        for name in ("bits", *columns):
            table.add_column(name, justify="right", no_wrap=True)
    for method, preset, bits in dict.fromkeys((r.method, r.preset, r.bits) for r in results):
        row = {r.round: r for r in results if (r.method, r.preset, r.bits) == (method, preset, bits)}
        end = row[max(row)]
        learned = bits is not None
        width = (f"{bits} + {end.instance_bits}" if end.instance_bits else str(bits)) if learned else ""
        named = method, preset or "", width
        by_round.add_row(
            *named,
            *(f"{row[t].map:.4f}" if t in row else "" for t in shown),
            f"{sum(r.seconds for r in row.values()) / len(row):.2f}" if learned else "",
        )
        quality = (end.p10, end.self1, end.self10, end.float_recall10)
        at_last.add_row(*named, *(f"{value:.3f}" for value in quality))
    console().print(by_round)
    console().print(at_last)
