"""woh-index benchmark: every method on one data set, kept cell by cell, on one page."""

from __future__ import annotations

import shlex
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .errors import on_interrupt, one_line_errors
from .options import (
    bits_list,
    column_options,
    json_option,
    limit_option,
    max_memory_option,
    noted,
    print_json,
    print_line,
    progress,
    say,
    say_split,
    tag_separator_option,
    word_vectors_option,
)

if TYPE_CHECKING:
    from woh_faiss import Chunk
    from woh_faiss.evaluation.benchmark import Cell
    from woh_faiss.evaluation.benchmark.published_numbers import Reference
    from woh_faiss.tags.word_vectors import WordVectors


_DEFAULT = click.core.ParameterSource.DEFAULT
#: The paper's sets, by --dataset.
_OF_PAPER = {"mirflickr": "mirflickr", "mirflickr25k": "mirflickr", "nus-wide": "nus-wide"}


@click.command()
@click.argument("places", nargs=-1, required=True, metavar="DATA...")
@click.option(
    "--dataset",
    "name",
    type=click.Choice(
        [
            *("files", "mirflickr", "mirflickr25k", "nus-wide", "mat"),
            *("synthetic", "random-tags", "fine-tags"),
        ]
    ),
    default="files",
    show_default=True,
    help="What DATA is.",
)
@click.option("--methods", default="all", show_default=True, help="Names separated by commas, or all.")
@click.option("--bits", default="8,16,32,64,96", show_default=True, callback=bits_list, help="Code lengths.")
@click.option(
    "--chunks",
    "n_chunks",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    help="Equal parts to stream.",
)
@click.option(
    "--queries", type=click.IntRange(1), default=1000, show_default=True, help="Items held out as queries."
)
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="Splits; the first is 0.")
@click.option(
    "--min-count",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    help="Uses before a tag is learned from.",
)
@click.option("--tagged-only", "tagged", is_flag=True, help="Leave items without tags out.")
@click.option(
    "--vary",
    multiple=True,
    metavar="NAME=V,V,...",
    help="Also woh-paper with other values of alpha, beta, theta, mu, ...; may be given many times.",
)
@click.option(
    "--ablation", is_flag=True, help="Also woh-1 to woh-4, and woh-paper without each part of its objective."
)
@click.option(
    "--sensitivity",
    is_flag=True,
    help="Also woh-paper with other values of alpha, beta, theta and mu at 16 bits, as the paper's figure.",
)
@click.option(
    "--learn-from",
    "learned",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Items to learn from, at random; all others are encoded. 0 for all.  [default: 0]",
)
@click.option(
    "--paper",
    is_flag=True,
    help="The paper's experiment: its methods, lengths, chunks and tags, where no option says otherwise.",
)
@click.option(
    "--published",
    metavar="NAME|FILE",
    help="Numbers to print beside what is measured: the paper's of mirflickr or nus-wide, or a CSV of "
    "method,bits,map.  [default: with --paper those of the --dataset]",
)
@word_vectors_option
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Folder of the report.",
)
@column_options("features", "tags", "labels")
@tag_separator_option
@limit_option
@json_option
@max_memory_option
@one_line_errors
def benchmark(**given: Any) -> None:
    """Compare WOH with other methods on labelled DATA.

    DATA are labelled inputs as for evaluate; or, by --dataset, the folder of MIRFlickr-25K or NUS-WIDE and
    its features (.npy, .mat, or what embed wrote), or one file of labelled items of that set; a hashing
    paper's .mat file; a number of made-up items.

    Each method learns the same stream from the same tags; labels only measure. MAP after every round as in
    evaluate, precision and recall of the first hits, seconds of training. Each measurement is saved in the
    folder at once: a stopped command continues, and one with more methods, lengths or splits measures what is
    missing.

    --paper takes tags from 50 uses on, leaves out items without any, and cuts the stream into chunks of
    2,000; of NUS-WIDE 40,000 items are learned from in chunks of 5,000, with 2,000 queries. It measures the
    paper's systems, woh and woh-twin, beside the paper's numbers. A .mat file's own train and test parts are
    its split.

    \b
    Example:
        woh-index benchmark corel5k.npz --methods woh,sdh,itq --bits 16,64 --seeds 1 -o report
        woh-index benchmark --paper --dataset mirflickr mirflickr vgg.npy --word-vectors vectors.bin -o report
    """
    from woh_faiss.evaluation.benchmark import Records, Setting, check_cells, measure, write
    from woh_faiss.evaluation.benchmark import published_numbers as published
    from woh_faiss.evaluation.benchmark.cells import data_digest
    from woh_faiss.evaluation.plots import figure
    from woh_faiss.tags.word_vectors import WordVectors

    figure()  # says so before hours of work where nothing can be drawn
    context, options = click.get_current_context(), BenchmarkOptions(**given)
    if options.published not in (None, *published.IMAGES):
        published.of_file(Path(str(options.published)))  # damage is told before hours of work, too
    size = 0
    if options.paper:
        defaults = {name for name in given if context.get_parameter_source(name) is _DEFAULT}
        options, size = options.as_in_the_paper(defaults)
    planned = options.cells()
    vectors = WordVectors.open(options.word_vectors) if options.word_vectors else None
    data, own, prepared = options.data(vectors)
    check_cells(data, planned)
    reference = options.reference(data, vectors)
    min_count = 1 if options.paper else options.min_count  # rare tags are gone already
    setting = Setting(options.n_chunks, options.queries, min_count, size, own, options.learned)
    records = Records(options.output, data_digest(data), setting)
    on_interrupt(lambda: f"what was measured is kept in {options.output}; the same command continues")
    missing = [cell for cell in planned if cell not in records]

    def work() -> Iterator[Cell]:
        for cell in missing:
            records.add(cell, measure(data, cell, setting, vectors))
            yield cell

    for cell in progress(work(), len(missing), "cells"):
        length = "" if cell.bits is None else f", {cell.bits} bits"
        say(f"measured {cell.label}{length}, split {cell.seed}")
    found, title = records.of(planned), f"Benchmark on {options.title}"
    command = _command(context)
    page = write(found, options.output, title=title, command=command, reference=reference, prepared=prepared)
    for record in found if options.as_json else ():
        print_json(record)
    for line in () if reference is None else _compared(published, found, reference):
        (say if options.as_json else print_line)(line)
    say(f"note: {page} is the report; {len(planned) - len(missing)} of {len(planned)} cells were there")


def _compared(published: Any, found: Sequence[Any], reference: Reference) -> Iterator[str]:
    """Lines of what was measured beside published numbers, what differs besides the methods first."""
    ours = published.measured(found)
    both = [key for key in ours if key in reference.map]
    yield from reference.caveats if both else ()
    for method, bits in both:
        here, there = ours[method, bits], reference.map[method, bits]
        yield f"{method}, {bits} bits: MAP {here:.3f}, published {there:.3f} ({here - there:+.3f})"
    for order in published.orders(found, reference.map):
        lists = f"published {' > '.join(order.there)}; here {' > '.join(order.here)}"
        yield f"order at {order.bits} bits: {lists}; Kendall's tau {order.agreement}"


@dataclass(frozen=True, kw_only=True)
class BenchmarkOptions:
    """What is to be compared, on what; a field an option of the command."""

    places: Sequence[str]
    name: str
    methods: str
    bits: list[int]
    n_chunks: int
    queries: int
    seeds: int
    min_count: int
    tagged: bool
    vary: Sequence[str]
    ablation: bool
    sensitivity: bool
    learned: int
    paper: bool
    published: str | None
    word_vectors: Path | None
    output: Path
    columns: dict[str, str | None]
    tag_separator: str | None
    limit: int | None
    as_json: bool

    def as_in_the_paper(self, defaults: Container[str]) -> tuple[BenchmarkOptions, int]:
        """The paper's values of the options that are at their `defaults`, and the size of a chunk or 0."""
        from woh_faiss.evaluation.benchmark import paper as papers

        values: dict[str, Any] = {
            "methods": ",".join([*papers.SYSTEMS.values(), *papers.DEFAULTS]),
            "bits": [*papers.BITS],
            "min_count": papers.MIN_COUNT,
        }
        size = papers.SIZE
        if self.name == "nus-wide":
            size = papers.NUS_WIDE_SIZE
            values |= {"queries": papers.NUS_WIDE_QUERIES, "learned": papers.NUS_WIDE_LEARNED}
        changed: dict[str, Any] = {name: value for name, value in values.items() if name in defaults}
        return replace(self, **changed), size if "n_chunks" in defaults else 0

    def cells(self) -> list[Cell]:
        """What is to be measured."""
        from woh_faiss.evaluation.benchmark import cells
        from woh_faiss.evaluation.benchmark import paper as papers

        planned = cells(self.methods.split(","), self.bits, range(self.seeds), _varied(self.vary))
        more = papers.ablation(self.bits, range(self.seeds)) if self.ablation else []
        more += papers.sensitivity(range(self.seeds)) if self.sensitivity else []
        return planned + [cell for cell in more if cell not in planned]

    def reference(self, data: Chunk, vectors: WordVectors | None) -> Reference | None:
        """Numbers to compare with: those asked for, or with --paper those of the set."""
        from woh_faiss.evaluation.benchmark import published_numbers

        name = self.published
        if name is None and self.paper:
            name = _OF_PAPER.get(self.name)
        if name is None:
            return None
        if name in published_numbers.IMAGES:
            return published_numbers.of_paper(name, data, vectors)
        return published_numbers.of_file(Path(name))

    def data(self, vectors: WordVectors | None) -> tuple[Chunk, int, str]:
        """The items; how many at their head are queries of a split of their own, 0 without one; and what was
        done to them, a sentence or nothing.
        """
        from woh_faiss.evaluation.datasets import prepared, with_split
        from woh_faiss.inputs import Columns

        reading: dict[str, Any] = {}
        labels = self.columns["labels"]
        named = {role: name for role, name in self.columns.items() if role != "labels"}
        if self.name == "files":
            columns = Columns(**named)
            reading = {"limit": self.limit, "columns": columns, "labels": labels, "note": noted}
            reading |= {"tag_separator": self.tag_separator, "split_note": say_split}
        elif any(given is not None for given in (self.limit, self.tag_separator, *self.columns.values())):
            raise click.UsageError("--limit, --tag-separator and --...-column go with --dataset files")
        elif self.name in _OF_PAPER:
            reading = {"note": noted}
        data, own = with_split(self.name, self.places, **reading)
        if own and self.learned:
            raise click.UsageError("--learn-from does not go with a set that brings its own split")
        if self.paper:
            left = prepared(data, min_count=self.min_count, word_vectors=vectors, own=own)
            vector = "" if vectors is None else " and with a vector"
            done = (
                f"Tags from {self.min_count} uses on{vector}, and the {len(left):,} of {len(data):,} items "
                "that have one."
            )
            return left, own, done
        if self.tagged and own:
            raise click.UsageError("--tagged-only does not go with a set that brings its own split")
        if self.tagged and data.tags is not None:
            data = data.rows(data.tags.indptr[1:] > data.tags.indptr[:-1])
        return data, own, ""

    @property
    def title(self) -> str:
        """The data's name on the report."""
        places = [Path(place).name for place in self.places]
        return ", ".join(places if self.name == "files" else [self.name, *places])


def _varied(given: Sequence[str]) -> dict[str, list[float]]:
    """The values to try of each field, of NAME=V,V,..."""
    found: dict[str, list[float]] = {}
    for text in given:
        name, _, values = text.partition("=")
        try:
            found[name] = [float(value) for value in values.split(",")]
        except ValueError:
            raise click.BadParameter(f"{text!r} is not of the form alpha=3,30,300") from None
    return found


def _command(context: click.Context) -> str:
    """What was asked for, as a line that asks for it again."""
    words = ["woh-index", "benchmark"]
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        values = value if isinstance(value, (list, tuple)) else [value]
        if isinstance(parameter, click.Argument):
            words += map(str, values)
        elif value not in (None, False, ()) and value != parameter.default:
            name = max(parameter.opts, key=len)
            if parameter.multiple:
                words += [word for one in values for word in (name, str(one))]
            else:
                words += [name] if value is True else [name, ",".join(map(str, values))]
    return shlex.join(words)
