"""woh-index query: the nearest items of feature rows, of an item that is indexed, or of tags."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click
from click.core import ParameterSource

from . import id_files, tsv
from .answers import Answer, QueryBatch, SearchOptions, answers
from .encoders import PictureFlags, Questions, encoder_option
from .errors import one_line_errors
from .options import (
    OTHER_VECTORS,
    column_options,
    index_option,
    json_option,
    limit_option,
    max_memory_option,
    noted,
    print_json,
    progress,
    say,
    where_option,
    word_vectors_option,
)

if TYPE_CHECKING:
    from woh_faiss import Chunk, Refine, WOHIndex, WordVectors
    from woh_faiss.integrations.remote import Remote


@click.command()
@click.argument("queries", required=False, type=click.Path(path_type=Path, readable=False))
@index_option
@click.option("-k", type=click.IntRange(min=1), default=10, show_default=True, help="Neighbours a query.")
@click.option(
    "--radius",
    type=click.IntRange(min=0),
    help="All items at most this many bits away, instead of the K nearest.",
)
@click.option(
    "--id",
    "item_ids",
    type=int,
    multiple=True,
    help="Query with the code of the item that has this id; may be given many times.",
)
@click.option("--key", "item_keys", multiple=True, help="The same by the item's key.")
@click.option(
    "--row",
    "row_keys",
    metavar="KEY",
    multiple=True,
    help="Only the rows of QUERIES that have this key; may be given many times.",
)
@click.option(
    "--image",
    "images_asked",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Query with a picture; may be given many times.",
)
@click.option(
    "--text",
    "texts",
    multiple=True,
    help="Query with a text, by the encoder if it takes texts, else by its words as tags; many times.",
)
@encoder_option
@limit_option
@column_options("features", "tags", "key")
@click.option("--tags", help='Query by tags, separated by spaces or ";"; with QUERIES each row counts, too.')
@word_vectors_option
@click.option("--allow", type=click.File(encoding="utf-8"), help="Only these ids answer: a file, one a line.")
@click.option("--deny", type=click.File(encoding="utf-8"), help="These ids never answer: a file, one a line.")
@where_option
@click.option(
    "--explain",
    is_flag=True,
    help="Show what scores are made of, kind and instance, and the tags that codes predict.",
)
@click.option(
    "--by",
    type=click.Choice(["both", "kind", "instance", "hamming"]),
    default="both",
    show_default=True,
    help="Order by kind and instance, one of them, or the bits that differ.",
)
@click.option(
    "--expand",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    help="First answers of QUERIES that are asked with again; 0 asks once.",
)
@click.option(
    "--database", metavar="URL", help="Search where `push` sent the codes to; answers are the same."
)
@click.option(
    "--ann",
    help="Search a part of the codes only, by what build-ann made: ivf; QUERIES only, not by hamming.",
)
@click.option(
    "--refine",
    type=click.Path(path_type=Path, readable=False),
    metavar="FEATURES",
    help="Order the best answers of QUERIES by cosine of their original features: an .npy (row i is id i), "
    "or what build takes, by key or id.",
)
@click.option(
    "--refine-k",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --refine: answers that are ordered, at least K.  [default: 100, or 10 K if that is more]",
)
@click.option("--html", type=click.Path(path_type=Path), help="Write a page of pictures, e.g. out.html.")
@click.option(
    "--images",
    type=click.Path(path_type=Path),
    help="With --html: the folder of the pictures that keys are paths of; no other is read.",
)
@json_option
@max_memory_option
@click.pass_context
@one_line_errors
def query(context: click.Context, **given: Any) -> None:
    """Print the K nearest items of each row of QUERIES: a 2-D .npy, or whatever build takes.

    With --id or --key instead: the nearest other items of items in the index. With --image or --text: those
    nearest to a picture or a text, by --encoder or the encoder that the index remembers. With --tags: the
    items that those tags ask for; tags the index does not know need --word-vectors. Items are ordered by
    score, higher is nearer: how much an item is of the query's kind plus how much it is the very item; with
    --refine by cosine of the features themselves. A JSON line is one neighbour: query, rank, id, key, score
    (with --refine cosine; with --by hamming or --radius distance, the bits that differ), and tags. --html
    writes a page instead of the table: one file that shows each query and its neighbours, with pictures from
    the folder --images where keys are their paths. With --database a database searches; all else stays the
    same. Answers are printed as they are found, some queries at a time; Ctrl-C ends them.

    \b
    Example:
        woh-index query queries.npz -k 5
        woh-index query queries.npz --radius 8 --json
        woh-index query photos.parquet --limit 20
        woh-index query queries.npz --refine features.npy --refine-k 1000
        woh-index query --id 1234 --id 1240 -k 5 --deny seen.txt
        woh-index query --tags "sunset beach" --where "year >= 2020"
        woh-index query --image cat.jpg --text "red bicycle"
        woh-index query queries.npz --html out.html --images photos
    """
    options = QueryOptions(**given)
    options.check(k_is_given=context.get_parameter_source("k") is not ParameterSource.DEFAULT)
    from woh_faiss import WOHIndex
    from woh_faiss.validate import listed

    only, never = (None if file is None else id_files.ids(file) for file in (options.allow, options.deny))
    with WOHIndex.open(options.index_path) as index, ExitStack() as opened:
        held = index.ntotal
        questions = options.questions(index) if options.asks else None
        words = [*(options.words or []), *(questions.words if questions else [])]
        how = SearchOptions(
            min(options.k, max(held, 1)),  # memory for the neighbours there are, not for those asked for
            options.radius,
            options.by,
            options.expand,
            options.opened_vectors(),
            only,
            never,
            _remote(index, options.database, opened),
            options.ann,
            options.where,
            options.opened_refine(),
            options.refine_k,
        )
        if options.where is not None:
            say(f"note: --where leaves {len(index.ids(options.where)):,} of {held:,} items")
        if options.ann is not None and options.filtered:
            say("note: --where, --allow and --deny search all codes that are left, not the lists of --ann")
        asked, n_asked = options.batches(index, questions)
        if held < options.k and options.radius is None:
            what = f"holds only {held} items" if held else "is empty; 'woh-index update' appends items"
            say(f"note: {options.index_path} {what}")
        unknown = index.unknown_tags(words, how.vectors) if words else []
        if 0 < len(unknown) < len(words or ()):  # of none it is an error
            say(f"note: nothing is known of {listed([*map(repr, unknown)])}, which the query leaves out")
        if words and how.vectors is not None and index.vectors_differ(how.vectors):
            say(f"note: {OTHER_VECTORS}")
        found = answers(index, asked, how, options.explain or options.html is not None)
        if options.html is not None or not sys.stdout.isatty():  # else the answers themselves show it
            found = progress(found, n_asked, "queries")
        if options.as_json:
            found = _lines(found, options.measure, options.explain)
        if options.html is not None:
            _write_page(options.html, found, options, n_asked, held)
        elif options.as_json:
            deque(found, maxlen=0)
        elif sys.stdout.isatty():
            from .tables import print_neighbours

            print_neighbours(found, options.measure, options.explain)
        else:
            tsv.print_neighbours(found, options.measure, options.explain)
        for line in how.refine.notes() if how.refine is not None else ():
            noted(line)


@dataclass(frozen=True, kw_only=True)
class QueryOptions:
    """What was asked for; a field an option of the command."""

    queries: Path | None
    index_path: Path
    k: int
    radius: int | None
    item_ids: Sequence[int]
    item_keys: Sequence[str]
    row_keys: Sequence[str]
    images_asked: Sequence[Path]
    texts: Sequence[str]
    encoder_name: str | None
    limit: int | None
    columns: dict[str, str | None]
    tags: str | None
    word_vectors: Path | None
    allow: TextIO | None
    deny: TextIO | None
    where: str | None
    explain: bool
    by: str
    expand: int
    database: str | None
    ann: str | None
    refine: Path | None
    refine_k: int | None
    html: Path | None
    images: Path | None
    as_json: bool

    def check(self, k_is_given: bool) -> None:
        """UsageError for options that do not go together."""
        by_tags = self.tags is not None
        by_items = bool(self.item_ids or self.item_keys)
        by_features = self.queries is not None or self.asks
        given = by_items + (self.queries is not None) + self.asks
        if given + (by_tags and not by_features) != 1:
            raise click.UsageError(
                "give one of QUERIES, --id, --key, --image (or --text) and --tags; --tags also goes "
                "with features"
            )
        if self.encoder_name is not None and not self.asks and self.queries is None:
            raise click.UsageError("--encoder goes with --image, --text, or QUERIES that are pictures")
        if by_tags and self.by != "both":
            raise click.UsageError("--tags ask for a kind; --by goes with QUERIES, --id or --key")
        if self.queries is None and (
            self.row_keys or self.limit or any(name is not None for name in self.columns.values())
        ):
            raise click.UsageError("--row, --limit and --...-column go with QUERIES")
        if self.row_keys and self.limit:
            raise click.UsageError("give --row or --limit, not both")
        if self.radius is not None and (self.by not in ("both", "hamming") or by_tags):
            raise click.UsageError("--radius is in bits; --by and --tags order by score")
        if self.radius is not None and k_is_given:
            raise click.UsageError("give -k or --radius, not both")
        others = self.radius is not None or by_tags
        if self.database is not None and (others or self.filtered or self.ann):
            raise click.UsageError("--database finds the K nearest to QUERIES, --id or --key, nothing else")
        if self.ann is not None and (others or not by_features):
            raise click.UsageError(
                "--ann finds the K nearest of QUERIES: not with --radius, --id, --key, --tags"
            )
        if self.refine is None and self.refine_k is not None:
            raise click.UsageError("--refine-k goes with --refine")
        if self.refine is not None and (others or not by_features or self.database is not None):
            raise click.UsageError(
                "--refine orders the K nearest of QUERIES: not with --radius, --id, --key, --tags, --database"
            )
        if self.images is not None and self.html is None:
            raise click.UsageError("--images goes with --html")
        if self.html is not None:
            from . import html_page

            html_page.check(self.html, self.images)

    @property
    def filtered(self) -> bool:
        """Whether only some items may be answers."""
        return any(given is not None for given in (self.allow, self.deny, self.where))

    @property
    def asks(self) -> bool:
        """Whether it is by pictures or texts."""
        return bool(self.images_asked or self.texts)

    def questions(self, index: WOHIndex) -> Questions:
        """The pictures and texts as queries, encoded."""
        found = Questions.of(self.images_asked, self.texts, self.encoder_name, index, self.words)
        by_score = self.by == "both" and self.radius is None and self.refine is None
        if found.words and (not by_score or self.ann is not None or self.database is not None):
            raise click.ClickException(
                "--text is asked as tags, without --by, --radius, --ann, --refine and --database; give "
                "an --encoder that takes texts"
            )
        return found

    @property
    def measure(self) -> str:
        """What neighbours are ordered by."""
        if self.refine is not None:
            return "cosine"
        return "distance" if self.by == "hamming" or self.radius is not None else "score"

    def opened_refine(self) -> Refine | None:
        """The features to refine by."""
        if self.refine is None:
            return None
        from woh_faiss import Refine

        return Refine(self.refine, note=noted)

    def opened_vectors(self) -> WordVectors | None:
        """The word vectors, where tags are asked with."""
        if self.word_vectors is None or (self.tags is None and not self.texts):
            return None
        from woh_faiss import WordVectors

        return WordVectors.open(self.word_vectors)

    @cached_property
    def words(self) -> list[str] | None:
        """What is asked by --tags, split as texts of tags are."""
        if self.tags is None:
            return None
        from woh_faiss.tags.splitting import TagTexts
        from woh_faiss.tags.tag_lists import TagLists

        split_as = TagTexts(note=lambda line: noted(f"--tags: {line}"))
        return TagLists.from_strings([self.tags], split_as).of_row(0)

    def batches(self, index: WOHIndex, questions: Questions | None) -> tuple[Iterable[QueryBatch], int]:
        """The queries, read a chunk at a time where their file can be, and how many there are."""
        words = self.words
        if self.queries is not None:
            return self._rows_of(self.queries, words, index)
        if questions is not None:
            return questions.batches, len(questions.batches)
        if words is not None:
            return [QueryBatch(words=words, text=self.tags)], 1
        named = [(index.id_of(key), key) for key in self.item_keys]
        wanted = [*((id_, None) for id_ in self.item_ids), *named]
        items = index.items([id_ for id_, _ in wanted])
        return [QueryBatch(item=item, text=key) for item, (_, key) in zip(items, wanted, strict=True)], len(
            items
        )

    def _rows_of(
        self, queries: Path, words: Sequence[str] | None, index: WOHIndex
    ) -> tuple[Iterable[QueryBatch], int]:
        from woh_faiss.inputs import Columns, open_inputs

        wanted = Columns(**self.columns, id="")
        pictures = PictureFlags(self.encoder_name, None, 1, None)
        inputs = open_inputs([queries], columns=wanted, pictures=pictures.options(None, index), note=noted)
        pictures.check(inputs, index)
        index.check_encoder(inputs.encoder, str(queries))
        for line in inputs.notes(wanted):
            noted(line)
        if inputs.whole:
            (chunk,) = inputs
            chunks: Iterable[Chunk] = [chunk]
            n = len(chunk)
        else:
            chunks, n = inputs, inputs.count()
        if self.row_keys:
            return _rows_with(self.row_keys, chunks, words, queries), len(self.row_keys)
        return _first_rows(chunks, self.limit or n, words), min(self.limit or n, n)


def _first_rows(chunks: Iterable[Chunk], left: int, words: Sequence[str] | None) -> Iterator[QueryBatch]:
    place = 0
    for chunk in chunks:
        part = chunk if len(chunk) <= left else chunk.rows(slice(0, left))
        yield QueryBatch(part, words=words, places=range(place, place + len(part)))
        place, left = place + len(chunk), left - len(part)
        if not left:
            return


def _rows_with(
    keys: Sequence[str], chunks: Iterable[Chunk], words: Sequence[str] | None, queries: Path
) -> list[QueryBatch]:
    """The rows with these keys, in the order of the keys; all are found before one is searched."""
    import numpy as np

    found: dict[str, QueryBatch] = {}
    for chunk in chunks:
        if chunk.keys is None:
            raise click.ClickException(f"{queries} has no keys for --row; give --key-column, or --limit")
        for row in np.flatnonzero(np.isin(chunk.keys, keys)).tolist():
            found.setdefault(str(chunk.keys[row]), QueryBatch(chunk.rows(np.array([row])), words=words))
    if missing := [key for key in keys if key not in found]:
        raise click.ClickException(f"no row of {queries} has the key {missing[0]!r}")
    return [found[key] for key in keys]


def _remote(index: WOHIndex, url: str | None, opened: ExitStack) -> Remote | None:
    """The database that searches, open as long as `opened` is."""
    if url is None:
        return None
    from woh_faiss.integrations.remote import Remote

    remote = opened.enter_context(Remote(index, url))
    if note := remote.note():
        say(f"note: {note}")
    return remote


def _write_page(html: Path, found: Iterator[Answer], options: QueryOptions, queries: int, held: int) -> None:
    from woh_faiss.thumbnails import Thumbnails

    from . import html_page

    about = f"{queries:,} {'query' if queries == 1 else 'queries'}"
    about += f" from {options.queries}" if options.queries else ""
    about += f" with the tags {options.tags}" if options.queries and options.tags else ""
    which = (
        f"the {options.k:,} nearest"
        if options.radius is None
        else f"all at most {options.radius:,} bits away"
    )
    about += f": {which} of {held:,} items in {options.index_path}"
    pictures = Thumbnails(options.images, options.images_asked)
    size = html_page.write(html, found, about=about, measure=options.measure, thumbnails=pictures)
    say(f"note: {html} is the page, {size / 1000:,.0f} kB{pictures.note()}")


def _lines(found: Iterator[Answer], measure: str, explain: bool) -> Iterator[Answer]:
    """The answers, each printed as JSON lines on its way."""
    for answer in found:
        for rank, neighbour in enumerate(answer.found, start=1):
            record = {"query": answer.asked.query, "rank": rank, "id": neighbour.id, "key": neighbour.key}
            record |= {measure: neighbour.distance, "tags": neighbour.tags}
            if neighbour.metadata:
                record["metadata"] = dict(neighbour.metadata)
            if explain:
                record |= answer.explained[neighbour.id]
            print_json(record)
        yield answer
