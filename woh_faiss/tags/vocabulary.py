"""Tags as the solver needs them: normalised tags, a growing vocabulary, Y and Z of a chunk.

A vocabulary is a value. `Vocabulary.learn` returns a new one; columns are only ever appended and a tag's
vector never changes, so that the statistics of earlier rounds stay true. A vector comes from a file of word
vectors, is learned from a first chunk, or is the mean of those of other tags.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from woh_faiss.errors import InputError, StoreError

from .tag_lists import TagLists, row_ends
from .tag_text import normalise as normalise

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from .word_vectors import WordVectors


@dataclass(frozen=True, slots=True, eq=False)
class NormalisedTags:
    """The different normalised tags of n items, in the order they were typed; `normalised` makes them.

    Attributes
    ----------
    names : list of c str
        Each once.
    rows, columns : (nnz,) int64
        Items, ascending, and places in `names` of their tags.
    n : int
        Items, those without tags too.
    typed : sequence of str
        Tags as they were typed, which is how they are shown.
    places : (nnz,) int64
        Places in `typed` of the items' tags.
    """

    names: list[str]
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    n: int
    typed: Sequence[str]
    places: NDArray[np.int64]

    def __len__(self) -> int:
        return self.n

    @property
    def indptr(self) -> NDArray[np.int64]:
        """Where each item's entries end: (n + 1,)."""
        return row_ends(self.rows, self.n)

    def lists(self) -> list[list[str]]:
        """A list of tags an item, as typed, for the catalogue."""
        words = [self.typed[place] for place in self.places.tolist()]
        return [words[a:b] for a, b in pairwise(self.indptr.tolist())]

    def first_typed(self) -> dict[str, str]:
        """The first form in which each tag that an item carries was typed."""
        columns, first = np.unique(self.columns, return_index=True)
        places = self.places[first].tolist()
        return {self.names[j]: self.typed[at] for j, at in zip(columns.tolist(), places, strict=True)}


def normalised(tags: TagLists | NormalisedTags) -> NormalisedTags:
    """What items were tagged with, names normalised and repetitions gone; normalised tags are given back."""
    if isinstance(tags, NormalisedTags):
        return tags
    places: dict[str, int] = {}
    place_of = np.array(
        [places.setdefault(name, len(places)) if name else -1 for name in map(normalise, tags.names)],
        np.int64,
    )
    columns, typed = place_of[tags.indices], tags.indices
    rows = np.repeat(np.arange(len(tags)), np.diff(tags.indptr))
    rows, columns, typed = rows[columns >= 0], columns[columns >= 0], typed[columns >= 0]
    _, first = np.unique(rows * max(len(places), 1) + columns, return_index=True)
    first.sort()
    return NormalisedTags(list(places), rows[first], columns[first], len(tags), tags.names, typed[first])


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of a chunk its tags and their vectors cover.

    Attributes
    ----------
    tags_new : int
        Tags admitted with this chunk.
    tags_total : int
        Tags admitted so far.
    tags_with_vector : int
        Those of `tags_new` whose vector is their own, from a file or learned, and not a mean of others.
    items, items_tagged : int
        Items of the chunk, and those that carry an admitted tag.
    vectors_differ : bool
        New tags took their vectors from other ones than the tags before: see `Vocabulary.differs`.
    """

    tags_new: int
    tags_total: int
    tags_with_vector: int
    items: int
    items_tagged: int
    vectors_differ: bool = False


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Which tags count, and a vector for each.

    Attributes
    ----------
    min_count : int
        A tag is admitted in the chunk in which its count reaches this.
    tags : tuple of c str
        Admitted tags, column j's at place j; those admitted together by falling count, then by alphabet.
    E : (c, f) float64
        A vector an admitted tag; read-only.
    counts : dict
        Items that carried a tag so far, for every normalised tag ever seen.
    typed : dict
        How a tag was typed first, which is how it is shown, where that is another form.
    """

    min_count: int
    tags: tuple[str, ...] = ()
    E: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)), repr=False)
    counts: dict[str, int] = field(default_factory=dict, repr=False)
    typed: dict[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.E.flags.writeable = False

    @property
    def f(self) -> int:
        """Width of a vector; 0 until the first tag is admitted."""
        return int(self.E.shape[1])

    @property
    def df(self) -> NDArray[np.float64]:
        """Items that carried each admitted tag so far: (c,)."""
        return np.array([self.counts[tag] for tag in self.tags], np.float64)

    def shown(self, tag: str) -> str:
        """A normalised tag as it was typed first."""
        return self.typed.get(tag, tag)

    def __contains__(self, tag: str) -> bool:
        """Whether a tag, as typed or normalised, is admitted."""
        return normalise(tag) in self._columns

    @cached_property
    def _columns(self) -> dict[str, int]:
        return {tag: column for column, tag in enumerate(self.tags)}

    def learn(
        self, tags: TagLists | NormalisedTags, vectors: WordVectors | None, *, seed: int, vector_size: int
    ) -> tuple[Vocabulary, Coverage, list[str]]:
        """The vocabulary after one more chunk, what it covers, and the tags whose count changed.

        A newly admitted tag gets its vector from `vectors`. Where they are not given or don't know it
        (or know it as zeros), it gets the mean vector of the tags it occurs with in this chunk, each
        weighted by how often; else the mean of all tags, weighted by their counts; else zeros. Only
        tags that have a vector by then, and not zeros, enter these means.

        If there are neither `vectors` nor admitted tags yet, vectors are learned from the chunk itself;
        see `trained`.

        Parameters
        ----------
        seed : int
            Of that learning; 0 or more.
        vector_size : int
            Its width f.

        Raises
        ------
        InputError
            `vectors` have another width than the vocabulary.
        """
        if vectors is not None and self.f and vectors.f != self.f:
            raise InputError(
                f"word vectors {vectors.path} have {vectors.f} numbers each, the vocabulary was created with "
                f"{self.f}; give a file of that width, or none"
            )
        tags = normalised(tags)
        uses = np.bincount(tags.columns, minlength=len(tags.names)).tolist()
        seen = {name: k for name, k in zip(tags.names, uses, strict=True) if k}
        counts = {**self.counts, **{name: self.counts.get(name, 0) + k for name, k in seen.items()}}
        new = sorted(
            (name for name in seen if counts[name] >= self.min_count and name not in self._columns),
            key=lambda name: (-counts[name], name),
        )
        first = tags.first_typed()
        typed = {name: text for name, text in first.items() if text != name and name not in self.counts}
        typed = {**self.typed, **typed}
        grown = Vocabulary(self.min_count, self.tags + tuple(new), self.E, counts, typed)
        Y = grown.incidence(tags)
        own = 0
        if new and vectors is None and not self.tags:
            E, own = trained(spread(Y), grown.tags, new, seed=seed, vector_size=vector_size)
        elif new:
            f = self.f if vectors is None else vectors.f
            E = np.concatenate([self.E.reshape(len(self.tags), f), np.zeros((len(new), f))])
            for column, tag in enumerate(new, len(self.tags)):
                if vectors is not None and (vector := vectors.lookup(grown.shown(tag))) is not None:
                    E[column] = vector
            own = int(E[len(self.tags) :].any(axis=1).sum())
        if new:
            fill_with_means(E, Y, np.array([counts[tag] for tag in grown.tags]), first=len(self.tags))
            grown = replace(grown, E=E)
        tagged = int(np.count_nonzero(np.diff(Y.indptr)))
        differ = bool(new) and vectors is not None and self.differs(vectors)
        return grown, Coverage(len(new), len(grown.tags), own, len(tags), tagged, differ), list(seen)

    def differs(self, vectors: WordVectors) -> bool:
        """Whether tags have other vectors here, so that those of new tags say nothing beside them.

        Vectors of the first chunk's own are such, and those of another file. Asked are the first tags that
        `vectors` know; some may have means of others.
        """
        if vectors.f != self.f:  # refused by name
            return False
        known = islice(((j, found) for j, tag in enumerate(self.tags[: 10 * _ASKED])
                        if (found := vectors.lookup(self.shown(tag))) is not None), _ASKED)  # fmt: skip
        same = [np.allclose(self.E[j], found, rtol=1e-4, atol=1e-6) for j, found in known]
        return len(same) >= 3 and not any(same)

    def incidence(self, tags: TagLists | NormalisedTags) -> csr_array:
        """Y (n, c) of n items: float64 CSR of 0 and 1, sorted columns; unknown tags are left out."""
        from scipy.sparse import csr_array  # which learning needs and encoding does not

        tags = normalised(tags)
        columns = np.array([self._columns.get(name, -1) for name in tags.names], np.int64)[tags.columns]
        rows, columns = tags.rows[columns >= 0], columns[columns >= 0]
        order = np.lexsort((columns, rows))
        shape = len(tags), len(self.tags)
        return csr_array((np.ones(len(order)), columns[order], row_ends(rows, len(tags))), shape=shape)

    def matrices(
        self, tags: TagLists | NormalisedTags
    ) -> tuple[csr_array, NDArray[np.float64], NDArray[np.bool_]]:
        """Y, Z and which items are known, for n items.

        Returns
        -------
        Y : (n, c) float64 CSR
            See `incidence`.
        Z : (n, f) float64
            See `mean_vectors`.
        known : (n,) bool
            The item carries at least one admitted tag.
        """
        Y = self.incidence(tags)
        return Y, mean_vectors(Y, self.E), np.diff(Y.indptr) > 0

    def rows(self, tags: Iterable[str] | None = None) -> list[tuple[int | None, str, int, bytes | None]]:
        """(column, tag, count, vector) of the given tags, or of all ever seen, for the catalogue.

        The tag is as it was typed first. The vector is f little-endian float64, so that `from_rows` gives
        back the same numbers; column and vector are None for a tag that is not admitted yet.
        """
        out: list[tuple[int | None, str, int, bytes | None]] = []
        for tag in self.counts if tags is None else tags:
            column = self._columns.get(tag)
            vector = None if column is None else self.E[column].astype("<f8").tobytes()
            out.append((column, self.shown(tag), self.counts[tag], vector))
        return out

    @classmethod
    def from_rows(
        cls, rows: Iterable[tuple[int | None, str, int, bytes | None]], min_count: int, f: int = 0
    ) -> Vocabulary:
        """The vocabulary whose `rows`, in any order, these are.

        `f` is the width expected of the vectors; 0 takes any.

        Raises
        ------
        StoreError
            Columns are not 0..c-1, vectors are not all of one width, or a tag is there in two forms.
        """
        named = [(column, tag, normalise(tag), count, vector) for column, tag, count, vector in rows]
        typed = {name: tag for _, tag, name, *_ in named}
        if len(typed) < len(named):
            again = next(tag for _, tag, name, *_ in named if typed[name] != tag)
            raise StoreError(
                f"the catalogue has the tag {again!r} in two forms: an earlier version made it; build again"
            )
        admitted = sorted(
            (column, name, vector or b"") for column, _, name, _, vector in named if column is not None
        )
        if [column for column, *_ in admitted] != list(range(len(admitted))):
            raise StoreError("the catalogue's tag columns do not run from 0 without gaps; restore the index")
        widths = {len(vector) for *_, vector in admitted} | ({8 * f} if f else set())
        if len(widths) > 1 or any(width % 8 or not width for width in widths):
            raise StoreError(
                f"the catalogue's tag vectors have {sorted(widths)} bytes, expected one multiple of 8; "
                "restore the index"
            )
        E = np.frombuffer(b"".join(vector for *_, vector in admitted), "<f8").astype(np.float64)
        if not np.isfinite(E).all():
            raise StoreError("the catalogue's tag vectors are not finite; restore the index")
        return cls(
            min_count,
            tuple(tag for _, tag, _ in admitted),
            E.reshape(len(admitted), widths.pop() // 8 if widths else 0),
            {name: count for _, _, name, count, _ in named},
            {name: tag for name, tag in typed.items() if name != tag},
        )


#: Tags whose vectors are compared with those of a file.
_ASKED = 50
#: Skip-gram pairs times epochs that learning vectors from a first chunk may take: a few seconds on one core.
PAIRS = 2_000_000
MAX_EPOCHS = 50
#: Tags of an item that count as occurring together: pairs of all the words of a long caption say little, and
#: there are half a million.
MOST_TAGS = 64


def spread(Y: csr_array, most: int | NDArray[np.int64] = MOST_TAGS) -> csr_array:
    """Y (n, c) with at most `most` entries a row, an int or (n,), evenly spread over those it has."""
    length = np.diff(Y.indptr)
    if not (length > most).any():
        return Y
    n = np.repeat(np.minimum(length, most), length)
    place, length = np.arange(Y.nnz) - np.repeat(Y.indptr[:-1], length), np.repeat(length, length)
    kept = (place + 1) * n // length > place * n // length
    indptr = np.concatenate([[0], np.cumsum(kept)])[Y.indptr]
    return type(Y)((Y.data[kept], Y.indices[kept], indptr), shape=Y.shape)


def mean_vectors(Y: csr_array, E: NDArray[np.float64]) -> NDArray[np.float64]:
    """Plain mean of the vectors E (c, f) of an item's admitted tags, Y (n, c); zeros where it has none."""
    Z: NDArray[np.float64] = Y @ E
    Z /= np.maximum(np.diff(Y.indptr), 1)[:, None]
    return Z


def fill_with_means(E: NDArray[np.float64], Y: csr_array, counts: NDArray[np.int64], *, first: int) -> None:
    """Give the zero rows of E (c, f) from `first` on their means, as `Vocabulary.learn` says."""
    have = np.asarray(E.any(axis=1))
    unknown = first + np.flatnonzero(~have[first:])
    if not unknown.size or not have.any():
        return
    together = spread(Y[:, unknown]).T @ spread(Y)  # (unknown, c): items they share
    shared = together @ have.astype(np.float64)
    everywhere = (counts @ E) / counts[have].sum()
    means = (together @ E) / np.maximum(shared, 1)[:, None]
    E[unknown] = np.where(shared[:, None] > 0, means, everywhere)


def trained(
    Y: csr_array, columns: Sequence[str], tags: Sequence[str], *, seed: int, vector_size: int
) -> tuple[NDArray[np.float64], int]:
    """Vectors (len(tags), vector_size) learned from what occurs together in Y, and how many were learned.

    Skip-gram with negative sampling (Mikolov et al., 2013) over whole tag lists, its work bounded by
    `PAIRS`; zeros for a tag that no item of Y has. If no two tags share an item there is nothing to learn:
    seeded random unit vectors, and 0.
    The same lists and seed give the same bytes, in every process.
    """
    lists = _lists(Y, columns)
    lengths = np.array([len(words) for words in lists])
    if lengths.max() < 2:
        E = np.random.default_rng(seed).normal(size=(len(tags), vector_size))
        return E / np.linalg.norm(E, axis=1, keepdims=True), 0
    from gensim.models import Word2Vec

    # A list has no order: every tag sees every other, unless lists are so long that it would take minutes.
    window = min(int(lengths.max()), max(5, PAIRS // int(lengths.sum())))
    pairs = int((lengths * np.minimum(lengths - 1, 2 * window)).sum())
    model: Any = Word2Vec(
        sentences=lists,
        vector_size=vector_size,
        window=window,
        shrink_windows=False,
        min_count=1,
        sample=0,  # in a small vocabulary nearly every tag is "frequent" and would be thrown away
        sg=1,
        workers=1,  # more would make the result depend on timing
        seed=seed % 2**32,  # what numpy.random.RandomState takes
        epochs=max(1, min(MAX_EPOCHS, PAIRS // pairs)),
    )
    known = [place for place, tag in enumerate(tags) if tag in model.wv]
    E = np.zeros((len(tags), vector_size))
    E[known] = model.wv[[tags[place] for place in known]]
    return E, len(known)


def _lists(Y: csr_array, tags: Sequence[str]) -> list[list[str]]:
    """The tags of each item that has any."""
    words = [tags[column] for column in Y.indices.tolist()]
    return [words[a:b] for a, b in pairwise(Y.indptr.tolist()) if b > a]
