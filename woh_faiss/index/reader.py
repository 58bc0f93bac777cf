"""The answers of an index: what is near to features, to indexed items, to tags; Faiss's shapes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from woh_faiss import codes, validate
from woh_faiss.errors import InputError
from woh_faiss.learner.kernel import unit_rows
from woh_faiss.store import NO_DISTANCE, NO_ID, Searcher, Snapshot, View

from .index_state import WOHIndex
from .rerank import scores

if TYPE_CHECKING:
    from woh_faiss.tags.word_vectors import WordVectors

    from .tag_queries import TagQueries

#: Ids as an array_like, or a faiss.IDSelector.
Ids = Any


class Neighbour(NamedTuple):
    """One answer to a query: an item, and how many bits of its code differ from the query's, or its score."""

    id: int
    key: str | None
    distance: float
    tags: list[str]


class WOHIndex(WOHIndex):
    """What can be asked of an index folder; `WOHIndex` adds what makes it grow.

    Each answer is of one committed state, the newest when the index was opened or last refreshed. Searches
    may run in any number of threads.
    """

    _tag_side: tuple[Snapshot, TagQueries] | None = None  # with the state it was read in

    def encode(self, X: ArrayLike) -> NDArray[np.uint8]:
        """Packed codes of features with the newest hash function: (n, d) → (n, bits // 8) uint8."""
        return self._hasher_of(self._follow()).encode(X)

    def search(
        self,
        xq: ArrayLike,
        k: int,
        *,
        rerank: int | None = None,
        allow: Ids | None = None,
        deny: Ids | None = None,
        params: Any = None,
        through: str | None = None,
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The k nearest items of each query, as Faiss answers.

        Parameters
        ----------
        xq : (nq, d) array_like of a real dtype
            Query features.
        k : int
            Neighbours a query; may be more than there are items.
        rerank : int, optional
            Order this many nearest items (at least k) anew by what the query knows of itself before the
            sign: see `rerank.scores`.
        allow, deny : array_like of ids or faiss.IDSelector, optional
            Only items in `allow`, and none in `deny`, are answers; ids that no item has are no fault. The
            ids of the index are walked through once a call; a selector is asked for each, about a second a
            million.
        params : faiss.SearchParameters, optional
            Its selector, in place of `allow`.
        through : "ivf", "hnsw" or "multihash", optional
            Look at a part of the codes only, through the index of this kind that `derive` made: faster among
            millions of items, but some of the nearest may be missed, and fewer than k be found. Not with
            allow or deny. Items that came since are always found.

        Returns
        -------
        D : (nq, k) int32
            Hamming distances in bits, ascending; 2147483647 where there is no neighbour. With `rerank`
            float32 scores instead, descending, and -inf.
        I : (nq, k) int64
            Ids; -1 where there is no neighbour. Where distances are equal the earlier item comes first;
            where scores are, the one at the smaller distance, then the earlier.

        Raises
        ------
        InputError
            The features cannot be used or have another width, k is not a whole number of at least 1,
            `rerank` is less than k, allow or deny are no integers, params ask for more than a selector, or
            `through` is unknown or beside them.
        StoreError
            There is no approximate index `through`, or its file is damaged.
        """
        k, allow = validate.positive_int(k), validate.selector(params, allow)
        if through is not None and (allow is not None or deny is not None):
            raise InputError(
                "through goes without allow and deny, which need the scan of all codes; drop one"
            )
        if rerank is not None and validate.whole_number(rerank, "rerank", 1) < k:
            raise InputError(f"rerank is {rerank}, expected at least k = {k}, the number of answers wanted")
        view = self._follow()
        if view.model is None:  # no items either: nothing can be encoded before the first round
            nq = len(validate.features(xq))
            none = (
                np.full((nq, k), NO_DISTANCE, np.int32) if rerank is None else np.full((nq, k), -np.inf, "f4")
            )
            return none, np.full((nq, k), NO_ID, np.int64)
        hasher = self._hasher_of(view)
        way = None if through is None else self._store.through(view, through)
        if rerank is None:
            return view.search(codes.pad(hasher.encode(xq)), k, allow, deny, way)
        return _reranked(view, hasher.decision_function(xq), k, rerank, allow, deny, way)

    def range_search(
        self,
        xq: ArrayLike,
        radius: int,
        *,
        allow: Ids | None = None,
        deny: Ids | None = None,
        params: Any = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
        """All items nearer than a radius to each query, as Faiss answers.

        Parameters
        ----------
        xq : (nq, d) array_like of a real dtype
            Query features.
        radius : int
            In bits; items at exactly this distance are not among the answers (Faiss's rule for binary codes).
        allow, deny, params
            As `search`.

        Returns
        -------
        lims : (nq + 1,) int64
            The answers of query i are ``D[lims[i]:lims[i + 1]]`` and ``I[lims[i]:lims[i + 1]]``.
        D, I : (lims[-1],) int32 and int64
            Distances, ascending for each query, and ids; of equal distances the earlier item comes first.

        Raises
        ------
        InputError
            As `search`, or the radius is not a whole number of at least 0.
        """
        radius, allow = validate.whole_number(radius, "radius", 0), validate.selector(params, allow)
        view = self._follow()
        if view.model is None:
            lims = np.zeros(len(validate.features(xq)) + 1, np.int64)
            return lims, np.empty(0, np.int32), np.empty(0, np.int64)
        return view.range_search(codes.pad(self._hasher_of(view).encode(xq)), radius, allow, deny)

    def search_ids(
        self, ids: ArrayLike, k: int, *, allow: Ids | None = None, deny: Ids | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The k nearest other items of each indexed item, by its stored code; shapes as `search`."""
        k, view = validate.positive_int(k), self._follow()
        ids = np.atleast_1d(np.asarray(ids))
        D, I = view.search(view.codes(ids), k + 1, allow, deny)  # which checks the ids
        return without_own(D, I, ids)

    def range_search_ids(
        self, ids: ArrayLike, radius: int, *, allow: Ids | None = None, deny: Ids | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
        """The other items nearer than a radius to each indexed item; shapes as `range_search`."""
        view = self._follow()
        ids = np.atleast_1d(np.asarray(ids))
        lims, D, I = view.range_search(view.codes(ids), radius, allow, deny)
        query = np.repeat(np.arange(len(ids)), np.diff(lims))
        other = ids.astype(np.int64)[query] != I
        lims = np.searchsorted(query[other], np.arange(len(ids) + 1)).astype(np.int64)
        return lims, D[other], I[other]

    def search_tags(
        self,
        tags: Sequence[str] | Sequence[Sequence[str]],
        k: int,
        *,
        xq: ArrayLike | None = None,
        rerank: int = 1000,
        word_vectors: WordVectors | None = None,
        allow: Ids | None = None,
        deny: Ids | None = None,
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The k items that tags ask for, by score: text in, pictures out.

        Parameters
        ----------
        tags : list of str, or a list of such lists
            One query, or nq of them.
        k : int
            Neighbours a query.
        xq : (nq, d) array_like, optional
            Features that belong to the tags; they and the tags then count in equal parts.
        rerank : int
            Nearest codes that are scored (at least k of them are).
        word_vectors : WordVectors, optional
            Answers tags that the index does not know.
        allow, deny
            As `search`.

        Returns
        -------
        S, I : (nq, k) float32 and (nq, k) int64
            As `search` with `rerank`.

        Raises
        ------
        InputError
            Nothing is known of any tag of a query, or xq does not fit.
        NotFittedError
            Nothing was learned yet.
        """
        k, view = validate.positive_int(k), self._follow()
        if isinstance(tags, str) or not isinstance(tags, Iterable):
            raise InputError(
                f"tags is {validate.short(tags)}, expected a list of tags, or a list of such lists"
            )
        lists: Any = [tags] if all(isinstance(tag, str) for tag in tags) else tags
        H = self._meaning_of(view).bits(lists, word_vectors)
        if xq is not None:
            of_features = self._hasher_of(view).decision_function(xq)
            if len(of_features) != len(H):
                raise InputError(f"there are {len(H)} tag lists for {len(of_features)} rows of features")
            H = unit_rows(H) + unit_rows(of_features)
        return _reranked(view, H, k, max(k, validate.whole_number(rerank, "rerank", 1)), allow, deny)

    def explain(self, ids: ArrayLike, most: int = 5) -> list[list[tuple[str, float]]]:
        """The tags that each indexed item's code predicts, best first, with scores: `Meaning.predicted`."""
        view = self._store.view
        most = validate.whole_number(most, "most", 1)
        packed = codes.unpad(view.codes(np.atleast_1d(np.asarray(ids))), self.config.bits)
        return self._meaning_of(view).predicted(packed, most)

    def explain_features(self, X: ArrayLike, most: int = 5) -> list[list[tuple[str, float]]]:
        """The tags that the codes of features (n, d) predict, as `explain`."""
        view = self._store.view
        return self._meaning_of(view).predicted(self._hasher_of(view).encode(X), most)

    def _meaning_of(self, view: View) -> TagQueries:
        """The tag side of a state's model, read once a state; a search by features never needs it."""
        from woh_faiss.tags.vocabulary import Vocabulary

        from .tag_queries import TagQueries

        self._hasher_of(view)  # says so where nothing was learned
        held = self._tag_side
        if held is None or held[0] != view.snapshot:
            model = view.learned()
            with model.damage():
                c = model["W"].shape[1]  # the catalogue may know of tags that a newer round admitted
                rows = [row for row in self._store.tag_rows() if row[0] is not None and row[0] < c]
                vocabulary = Vocabulary.from_rows(rows, self.config.min_count)
                held = view.snapshot, TagQueries.of(self.config, model, vocabulary)
            self._tag_side = held
        return held[1]

    def describe(self, D: Iterable[NDArray[Any]], I: Iterable[NDArray[np.int64]]) -> list[list[Neighbour]]:
        """What a search found, with keys and tags: a list a query, without empty or erased places.

        Rows may differ in length: for `range_search` give ``np.split(D, lims[1:-1])`` and the same of I.
        """
        distances, ids = [row.tolist() for row in D], [row.tolist() for row in I]
        found = sorted({i for row in ids for i in row} - {NO_ID})
        items = self._store.view.find(found)  # all, but for what `compact` erased meanwhile
        return [
            [Neighbour(i, items[i].key, d, items[i].tags) for d, i in zip(*row, strict=True) if i in items]
            for row in zip(distances, ids, strict=True)
        ]


def without_own(
    D: NDArray[np.int32], I: NDArray[np.int64], ids: NDArray[Any]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The k nearest other items of each of `ids`, out of the k + 1 nearest to its code."""
    # Behind more than k duplicates of it an item was not found: drop the last then.
    own = ids.astype(np.int64)[:, None] == I
    own[~own.any(axis=1), -1] = True
    shape = len(ids), D.shape[1] - 1
    return D[~own].reshape(shape), I[~own].reshape(shape)


def _reranked(
    view: View,
    H: NDArray[np.float64],
    k: int,
    rerank: int,
    allow: Ids | None,
    deny: Ids | None,
    through: Searcher | None = None,
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Scores and ids of the k best of the `rerank` nearest items, for queries H = φ(x)P (nq, r)."""
    most = min(rerank, max(k, view.snapshot.ntotal))
    _, I, stored = view.search_codes(codes.pad(codes.pack(H)), most, allow, deny, through)
    S = np.where(I == NO_ID, -np.inf, scores(H, stored[:, :, : H.shape[1] // 8])).astype(np.float32)
    best = np.argsort(-S, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(S, best, axis=1), np.take_along_axis(I, best, axis=1)
