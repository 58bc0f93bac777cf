"""What a server does with an index, without HTTP; each answer is of one committed state.

The index is open once. `Service.current` is its newest state, pinned: a request takes it once, and all that
it tells is of that state, while other threads follow the writers.
"""

from __future__ import annotations

import bisect
import copy
import io
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from woh_faiss.errors import ConfigError, InputError, LockedError, MissingItemError, short
from woh_faiss.index.index import WOHIndex
from woh_faiss.index.neighbours import By, Neighbour
from woh_faiss.tags.tag_text import normalise, words
from woh_faiss.validate import listed, whole_number

from .settings import Settings

if TYPE_CHECKING:
    from woh_faiss import Refine, WordVectors
    from woh_faiss.encoders.encoder import Encoder
    from woh_faiss.inputs.chunk import OnDuplicate
    from woh_faiss.store import Item, Round

#: Seconds between two looks for commits of other processes.
FOLLOW = 0.25
#: How often a search is repeated whose answers `compact` erased meanwhile.
_ATTEMPTS = 3


@dataclass(frozen=True, kw_only=True)
class How:
    """How a search answers; see `WOHIndex.search`.

    Attributes
    ----------
    k, offset : int
        The k best answers behind the first `offset` ones.
    by, where, expand, ann
        As there.
    refine : bool
        Whether answers are ordered by the server's original features.
    refine_k : int, optional
        As there.
    explain : bool
        Whether answers have `kind` and `instance`.
    describe : bool
        Whether they have keys, tags and metadata; the catalogue is looked up for them.
    """

    k: int = 10
    offset: int = 0
    by: By = "both"
    where: str | None = None
    expand: int = 3
    ann: str | None = None
    refine: bool = False
    refine_k: int | None = None
    explain: bool = False
    describe: bool = True


@dataclass(frozen=True, kw_only=True)
class Queries:
    """What is asked with, one kind of these; tags may stand beside vectors, pictures and texts.

    Attributes
    ----------
    vectors : (nq, d) array_like, optional
    ids : sequence of int, optional
    keys : sequence of str, optional
    tags : sequence of sequences of str, optional
        A list a query.
    texts : sequence of str, optional
    images : sequence of bytes, optional
        Picture files.
    """

    vectors: Any = None
    ids: Sequence[int] | None = None
    keys: Sequence[str] | None = None
    tags: Sequence[Sequence[str]] | None = None
    texts: Sequence[str] | None = None
    images: Sequence[bytes] | None = None


@dataclass(frozen=True, kw_only=True)
class SearchRequest:
    """One query, as a page asks it: one of vector, id, key, text and image, or tags, or tags beside them."""

    vector: Any = None
    id: int | None = None
    key: str | None = None
    tags: Sequence[str] | None = None
    text: str | None = None
    image: bytes | None = None
    k: int = 20
    offset: int = 0
    by: By = "both"
    where: str | None = None
    expand: int = 3
    explain: bool = True

    @property
    def queries(self) -> Queries:
        """As `Service.search_all` takes them."""

        def row(value: Any) -> Any:
            return None if value is None else [value]

        return Queries(
            vectors=row(self.vector),
            ids=row(self.id),
            keys=row(self.key),
            tags=row(self.tags),
            texts=row(self.text),
            images=row(self.image),
        )

    @property
    def how(self) -> How:
        """As `Service.search_all` takes it."""
        return How(
            k=self.k,
            offset=self.offset,
            by=self.by,
            where=self.where,
            expand=self.expand,
            explain=self.explain,
        )


@dataclass(frozen=True, slots=True)
class Hit:
    """One item, and as an answer its score, which is `kind` plus `instance` where both are there."""

    id: int
    key: str | None
    score: float | None
    kind: float | None
    instance: float | None
    tags: list[str] | None
    metadata: Mapping[str, Any] | None = None
    trust: float | None = None


@dataclass(frozen=True)
class Answer:
    """Answers to one query.

    Attributes
    ----------
    hits : list of Hit
    about : str
        What was asked, in words.
    notes : list of str
        What a person should know of it, a line each.
    total : int
        Items that may be answers.
    """

    hits: list[Hit]
    about: str
    notes: list[str]
    total: int


@dataclass(frozen=True)
class Answers:
    """Answers to several queries, of one state.

    Attributes
    ----------
    hits : list of list of Hit
        A list a query.
    measure : "score", "distance" or "cosine"
        What their `score` is.
    notes : list of str
        As `Answer`.
    state : WOHIndex
        The state they are of.
    """

    hits: list[list[Hit]]
    measure: str
    notes: list[str]
    state: WOHIndex = field(repr=False)

    @property
    def round(self) -> int:
        """The newest round of the state."""
        return self.state.store.snapshot.round

    def part(self, start: int, stop: int) -> Answers:
        """The answers to some of the queries."""
        return replace(self, hits=self.hits[start:stop])


class Service:
    """An index that is served: threads share it.

    Parameters
    ----------
    settings : Settings

    Raises
    ------
    StoreError
        There is no index, or it is damaged.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._live = WOHIndex.open(settings.index)
        self._pinned = self._live.pinned()
        self._looked = time.monotonic()
        self._following, self._writing, self._encoding = (threading.Lock() for _ in range(3))
        self._encoders: dict[str, Encoder] = {}
        self._tags: tuple[Any, list[tuple[str, str, int]]] | None = None

    def close(self) -> None:
        """Close the index."""
        self._pinned.close()
        self._live.close()

    def prepare(self) -> None:
        """Open what the settings name, so that errors come now.

        Raises
        ------
        InputError, ConfigError
            The encoder, the word vectors or the features to refine by cannot be opened, or do not fit.
        """
        if self.settings.encoder is not None:
            self._encoder("images")
        if self.settings.refine is not None:
            features = self._refine
            self._live.check_encoder(features.encoder, features.where)
        _ = self.word_vectors

    # ---- the state -----------------------------------------------------------------------------------

    def current(self) -> WOHIndex:
        """The newest committed state, at most half a second old, as an index that stays at it.

        One thread at a time looks for a newer one, and the others answer from the state before.

        Raises
        ------
        StoreError
            The index is gone, damaged, or another took its place.
        """
        age = time.monotonic() - self._looked
        if age >= FOLLOW and self._following.acquire(blocking=age >= 2 * FOLLOW):
            try:
                if time.monotonic() - self._looked >= FOLLOW:
                    self._live.refresh()
                    self._pin()
                    self._looked = time.monotonic()
            finally:
                self._following.release()
        return self._pinned

    def _pin(self) -> None:
        if self._live.store.view is self._pinned.store.view:
            return
        if self._live.is_trained:
            _ = self._live.hasher  # read before anybody waits for it
        self._pinned = self._live.pinned()

    # ---- searches ------------------------------------------------------------------------------------

    def search(self, request: SearchRequest) -> Answer:
        """The answers to one query; errors as `search_all`."""
        found = self.search_all(request.queries, request.how)
        where = request.where
        total = len(found.state) if where is None else len(found.state.ids(where))
        return Answer(found.hits[0], _about(request), found.notes, total)

    def search_all(self, queries: Queries, how: How) -> Answers:
        """The answers to several queries, all of one state.

        Raises
        ------
        InputError
            The queries or the filter cannot be used, there are too many of them, or they ask for too much.
        MissingItemError
            No item has an id or key.
        NotFittedError, StoreError
            Nothing was learned yet; the index is damaged.
        """
        self._check(queries, how)
        notes: list[str] = []
        search = self._search_of(queries, how, notes)
        for attempt in range(_ATTEMPTS):
            index = self.current()
            try:
                D, I, terms = search(index)
                D, I = D[:, how.offset :], I[:, how.offset :]
                if not how.describe:
                    found = [_bare(*pair) for pair in zip(D.tolist(), I.tolist(), strict=True)]
                    break
                found = index.describe(D, I)
                if sum(map(len, found)) == int((I >= 0).sum()):
                    break
            except MissingItemError:
                if attempt + 1 == _ATTEMPTS or self._live.store.newest() == index.store.snapshot:
                    raise
            self._looked = -np.inf  # `compact` erased some of them: this state is no more
        explained = [_terms(terms, q, how.offset, row) for q, row in enumerate(I)]
        hits = [
            [_hit(it, how.describe, *of_id.get(it.id, (None, None))) for it in row]
            for row, of_id in zip(found, explained, strict=True)
        ]
        return Answers(hits, _measure(how), [*dict.fromkeys(notes)], index)

    def _check(self, queries: Queries, how: How) -> None:
        """InputError for what goes beyond the bounds, before anything is computed."""
        settings = self.settings
        whole_number(how.offset, "offset", 0)
        if whole_number(how.k, "k", 1) + how.offset > settings.max_k:
            raise InputError(
                f"k and offset are {how.k + how.offset} together, this server answers up to {settings.max_k}"
            )
        if how.refine_k is not None and whole_number(how.refine_k, "refine_k", 1) > 10 * settings.max_k:
            raise InputError(
                f"refine_k is {how.refine_k}, this server orders up to {10 * settings.max_k} answers"
            )
        if whole_number(how.expand, "expand", 0) > settings.max_k:
            raise InputError(f"expand is {how.expand}, expected at most {settings.max_k}")
        given = vars(queries)
        kinds = [name for name, values in given.items() if values is not None]
        if [name for name in kinds if name != "tags"][1:] or not kinds:
            raise InputError(
                f"a search has {listed(kinds) if kinds else 'nothing'} to ask with; give one of vectors, "
                "ids, keys, tags, texts and images; tags may stand beside vectors, texts and images"
            )
        if "tags" in kinds and (queries.ids is not None or queries.keys is not None):
            raise InputError("tags stand beside vectors, texts and images; ask by ids, keys or tags alone")
        counts = {name: len(given[name]) for name in kinds}
        if len({*counts.values()}) > 1:
            told = " and ".join(f"{n} {name}" for name, n in counts.items())
            raise InputError(f"there are {told}; give one of each a query")
        n = next(iter(counts.values()))
        if not 0 < n <= settings.max_queries:
            raise InputError(f"there are {n} queries, this server takes 1 to {settings.max_queries} at once")
        by_items = queries.ids is not None or queries.keys is not None
        if how.refine_k is not None and not how.refine:
            raise InputError("refine_k says how many answers are refined; ask for refine, too")
        if how.refine and (by_items or kinds == ["tags"]):
            raise InputError("refine orders answers to vectors, images and texts; drop it")

    def _search_of(self, queries: Queries, how: How, notes: list[str]) -> Callable[[WOHIndex], Any]:
        """What answers them from a state: scores, ids, and the two terms of scores where they are wanted."""
        most = how.k + how.offset
        explained = how.explain and how.by == "both" and not how.refine
        if queries.ids is not None or queries.keys is not None:
            ids, keys = queries.ids, queries.keys

            def by_items(index: WOHIndex) -> Any:
                asked = ids if keys is None else [item.id for item in index.items(keys=keys)]
                D, I = index.search_ids(np.array(asked), most, by=how.by, where=how.where)
                return D, I, index.explain_score(D, I, ids=np.array(asked)) if explained else None

            return by_items
        xq = queries.vectors
        if queries.images is not None:
            xq = self._encoded("images", queries.images)
        tags = queries.tags
        if queries.texts is not None:
            xq = self._encoded_texts(queries.texts, notes)
            if xq is None:
                beside = tags or [[]] * len(queries.texts)
                tags = [[*words(text), *more] for text, more in zip(queries.texts, beside, strict=True)]
        if tags is not None:
            asked_tags = tags
            if how.by != "both" or how.ann is not None or how.refine:
                raise InputError("tags ask for a kind; by, ann and refine go with vectors, ids and keys")

            def by_tags(index: WOHIndex) -> Any:
                for row in asked_tags:
                    unknown = index.unknown_tags(row, self.word_vectors)
                    if 0 < len(unknown) < len(row):
                        told = listed([short(tag) for tag in unknown])
                        notes.append(f"nothing is known of {told}, which the query leaves out")
                return *index.search_tags(
                    asked_tags, most, xq=xq, word_vectors=self.word_vectors, where=how.where
                ), None

            return by_tags

        def by_features(index: WOHIndex) -> Any:
            if how.ann is not None and how.ann not in {it.kind for it in index.store.snapshot.ann}:
                raise InputError(
                    f"there is no approximate index of kind {how.ann}; 'woh-index build-ann' makes one"
                )
            more: dict[str, Any] = {}
            refine = None
            if how.refine:
                refine = more["refine"] = self._refine_once()
                more["refine_k"] = how.refine_k
            D, I = index.search(xq, most, by=how.by, expand=how.expand, where=how.where, ann=how.ann, **more)
            if refine is not None:
                notes.extend(refine.notes())
            return D, I, index.explain_score(D, I, xq=xq) if explained else None

        return by_features

    # ---- encoders and features -----------------------------------------------------------------------

    def takes(self, side: str) -> bool:
        """Whether "images" or "texts" can be encoded; an encoder that cannot be opened takes none."""
        try:
            return side in self._encoder(side).sides
        except (InputError, ConfigError):
            return False

    def _encoder(self, side: str) -> Encoder:
        from woh_faiss.encoders import EncoderRecord, open_encoder
        from woh_faiss.encoders.open_encoder import open_remembered

        index, name = self._live, self.settings.encoder
        if name is not None:
            side = ""  # one for both
        with self._encoding:
            if side not in self._encoders:
                if name is not None:
                    encoder = open_encoder(name)
                    index.check_encoder(EncoderRecord.of(encoder), "--encoder")
                elif index.encoder is not None:
                    encoder = open_remembered(index.encoder, where=str(index.path), side=side)
                else:
                    raise InputError(
                        "the index does not say what made its features; a server takes pictures and texts "
                        "with --encoder NAME"
                    )
                self._encoders[side] = encoder
            return self._encoders[side]

    def _encoded_texts(self, texts: Sequence[str], notes: list[str]) -> NDArray[Any] | None:
        """Features of texts; None, with a note, where no encoder takes any."""
        if self.settings.encoder is None and self._live.encoder is None:
            notes.append("text is asked by its words as tags: no encoder is known")
            return None
        encoder = self._encoder("texts")
        if "texts" not in encoder.sides:
            notes.append(f"text is asked by its words as tags: the encoder {encoder.name} takes no texts")
            return None
        return self._encoded("texts", texts)

    def picture_features(self, data: bytes) -> NDArray[Any]:
        """The features of a picture file, (d,); InputError if it is none, or no encoder takes pictures."""
        found: NDArray[Any] = self._encoded("images", [data])[0]
        return found

    def _encoded(self, side: str, items: Sequence[Any]) -> NDArray[Any]:
        """Features of pictures or texts; one request at a time, so that memory holds one picture."""
        encoder = self._encoder(side)
        with self._encoding:
            if side == "texts":
                return encoder.embed_texts(items)
            return np.concatenate([encoder.embed_images([_picture(item)]) for item in items])

    @cached_property
    def word_vectors(self) -> WordVectors | None:
        """The server's word vectors."""
        if self.settings.word_vectors is None:
            return None
        from woh_faiss import WordVectors

        return WordVectors.open(self.settings.word_vectors)

    @cached_property
    def _refine(self) -> Refine:
        from woh_faiss import Refine

        if self.settings.refine is None:
            raise InputError("this server has no original features; start it with --refine FEATURES")
        return Refine(self.settings.refine)

    def _refine_once(self) -> Refine:
        """The same features for one request, whose notes are its own."""
        with self._encoding:  # opened by one of them, while others are answered
            features = self._refine
        found = copy.copy(features)
        found.missing, found.changed = set(), set()
        return found

    # ---- items ---------------------------------------------------------------------------------------

    def item(self, id: int) -> Hit:  # noqa: A002 - what it is called everywhere
        """The item with this id.

        Raises
        ------
        MissingItemError
            There is none.
        """
        return _of_item(self.current().items([id])[0])

    def items(
        self,
        *,
        ids: Sequence[int] | None = None,
        keys: Sequence[str] | None = None,
        where: str | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> tuple[list[Hit], int]:
        """Items in the order they were appended, or those with these ids or keys; and how many there are.

        Raises
        ------
        InputError
            The filter is none, or ids and keys are given together.
        MissingItemError
            No item has an id or key.
        """
        index = self.current()
        if ids is not None or keys is not None:
            found = index.items(None if ids is None else np.array(ids), keys=keys, where=where)
            return [_of_item(item) for item in found[offset : offset + limit]], len(found)
        every = index.ids(where)
        return [_of_item(item) for item in index.items(every[offset : offset + limit])], len(every)

    def tags(self, prefix: str = "", most: int = 10) -> list[tuple[str, int]]:
        """Tags that begin with `prefix` in their normal form, and how often they were seen, most first."""
        index = self.current()
        state = index.store.snapshot
        held = self._tags
        if held is None or held[0] != state:
            rows = [(normalise(tag), tag, count) for tag, count, _ in index.tags()]
            held = self._tags = state, sorted(rows)
        wanted, rows = normalise(prefix), held[1]
        first = bisect.bisect_left(rows, (wanted,))
        last = bisect.bisect_left(rows, (f"{wanted}\U0010ffff",))
        found = sorted(rows[first:last], key=lambda row: (-row[2], row[0]))
        return [(tag, count) for _, tag, count in found[:most]]

    def info(self, n_tags: int = 10) -> dict[str, Any]:
        """What `WOHIndex.info` says, without the place on this machine."""
        found = self.current().info(n_tags)
        del found["path"]
        return found

    # ---- writes --------------------------------------------------------------------------------------

    def add(
        self,
        *,
        learn: bool,
        vectors: Any = None,
        texts: Sequence[str] | None = None,
        tags: Sequence[Sequence[str]] | None = None,
        ids: Sequence[int] | None = None,
        keys: Sequence[str] | None = None,
        metadata: Mapping[str, Sequence[Any]] | None = None,
        on_duplicate: OnDuplicate = "error",
    ) -> tuple[Round, int]:
        """Append items, learned from or only encoded: the round, and how many were left out as duplicates.

        Raises
        ------
        InputError, LockedError, NotFittedError, StoreError
            As `WOHIndex.update` and `add`; or there are too many items.
        """
        from woh_faiss import Chunk

        if (vectors is None) == (texts is None):
            raise InputError("items need features; give one of vectors and texts")
        given: Any = texts if vectors is None else vectors
        n, most = len(given), self.settings.max_items
        if not 0 < n <= most:
            raise InputError(f"there are {n} items, this server takes 1 to {most} at once")
        if texts is not None:
            if "texts" not in (encoder := self._encoder("texts")).sides:
                raise InputError(f"the encoder {encoder.name} takes no texts; give vectors")
            vectors = self._encoded("texts", texts)
        types = self._live.metadata_types if metadata else {}
        chunk = Chunk.of(
            vectors,
            tags,
            ids=ids,
            keys=keys,
            metadata=metadata and {name: _dated(types.get(name), it) for name, it in metadata.items()},
            on_duplicate=on_duplicate,
        )
        how: dict[str, Any] = {"on_duplicate": on_duplicate, "timeout": self.settings.timeout}
        with self._written() as index:
            if learn:
                done = index.update(chunk, word_vectors=self.word_vectors, **how)
            else:
                done = index.add(chunk, **how)
        return done, n - done.n

    def remove(
        self,
        *,
        ids: Sequence[int] | None = None,
        keys: Sequence[str] | None = None,
        where: str | None = None,
        ignore_missing: bool = False,
    ) -> int:
        """Take items out of every answer; returns how many.

        Raises
        ------
        InputError, LockedError, StoreError
            As `WOHIndex.remove`, or nothing says which items.
        """
        if ids is None and keys is None and where is None:
            raise InputError("nothing says which items are to be removed; give id, key or where")
        with self._written() as index:
            return index.remove(
                None if ids is None else np.array(ids),
                keys=keys,
                where=where,
                ignore_missing=ignore_missing,
                timeout=self.settings.timeout,
            )

    @contextmanager
    def _written(self) -> Iterator[WOHIndex]:
        """The index to be written to by one thread; what it commits is served at once."""
        if not self._writing.acquire(timeout=self.settings.timeout):
            raise LockedError("another request is writing; try again when it has ended")
        try:
            yield self._live
            self._pin()
        finally:
            self._writing.release()


def _bare(D: list[float], I: list[int]) -> list[Neighbour]:
    """Answers of which only ids and scores are told."""
    return [Neighbour(id_, None, d, [], np.nan) for d, id_ in zip(D, I, strict=True) if id_ >= 0]


def _terms(
    terms: tuple[NDArray[Any], NDArray[Any]] | None, q: int, offset: int, ids: NDArray[np.int64]
) -> dict[int, tuple[float, float]]:
    """The two terms of the scores of one query's answers, by id."""
    if terms is None:
        return {}
    kind, instance = (part[q, offset:].tolist() for part in terms)
    return dict(zip(ids.tolist(), zip(kind, instance, strict=True), strict=True))


def _hit(it: Neighbour, described: bool, kind: float | None, instance: float | None) -> Hit:
    if not described:
        return Hit(it.id, None, it.distance, kind, instance, None)
    return Hit(it.id, it.key, it.distance, kind, instance, it.tags, it.metadata, it.trust)


def _of_item(item: Item) -> Hit:
    return Hit(item.id, item.key, None, None, None, item.tags, item.metadata, item.trust)


def _measure(how: How) -> str:
    return "cosine" if how.refine else "distance" if how.by == "hamming" else "score"


def _picture(data: bytes) -> Any:
    """A picture file as an upright RGB image; InputError if it is none."""
    from woh_faiss.encoders.picture import opened, upright_rgb

    try:
        with opened(io.BytesIO(data)) as image:
            return upright_rgb(image)
    except InputError as error:
        raise InputError(f"the picture: {error}") from None


def _dated(type_: str | None, cells: Sequence[Any]) -> list[Any]:
    """Cells for a column of dates or times, which JSON has as text; others as they are."""
    read = {"date": date.fromisoformat, "datetime": datetime.fromisoformat}.get(type_ or "")
    if read is None:
        return list(cells)
    try:
        return [read(cell) if isinstance(cell, str) else cell for cell in cells]
    except ValueError as error:
        raise InputError(f"metadata of a column of type {type_}: {error}") from None


def _about(request: SearchRequest) -> str:
    """What was asked, in words."""
    asked = {
        "like a vector": request.vector is not None,
        f"like item {request.id}": request.id is not None,
        f"like {request.key}": request.key is not None,
        f"text {request.text!r}": request.text is not None,
        "like a picture": request.image is not None,
        f"tags {', '.join(request.tags or [])}": request.tags is not None,
        f"where {request.where}": request.where is not None,
    }
    return ", ".join(text for text, given in asked.items() if given)
