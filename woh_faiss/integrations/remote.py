"""Queries that are encoded here and searched where the codes were pushed to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from woh_faiss import codes, score, validate
from woh_faiss.errors import EngineError
from woh_faiss.index.index import WOHIndex
from woh_faiss.index.neighbours import By, halves_of_codes, no_answers, valid_by, without_own
from woh_faiss.score import Single

from .candidates import Asked, Best, Bytes
from .engine import FORMAT, PushState, RoundStamp
from .open_engine import open_engine
from .source import mark_of

#: Queries asked together.
_QUERIES = 64


class Remote:
    """An index's codes in a database, searched with Faiss's names.

    Answers are those of the index, scores to the bit and ties too, at the state that was last pushed; but for
    tables pushed as approximate.

    Parameters
    ----------
    index : WOHIndex
        Encodes the queries.
    url : str
        As it was given to `push`.

    Raises
    ------
    InputError
        The URL names no table of a known database.
    EngineError
        The database refuses, or the table is not this index's.
    """

    def __init__(self, index: WOHIndex, url: str) -> None:
        self._index, self._engine = index, open_engine(url)
        try:
            self._state = self._checked()
        except BaseException:
            self.close()
            raise

    def _checked(self) -> PushState:
        found, shown = self._engine.state(), self._engine.shown
        if found is None:
            what = "was not made by" if self._engine.exists() else "is not there yet; make it with"
            raise EngineError(f"{shown} {what} woh-index push")
        if found.format != FORMAT:
            raise EngineError(f"{shown} has the layout of an earlier woh-faiss; push again with --force")
        if found.identity != self._index.store.snapshot.identity:
            raise EngineError(f"{shown} holds the codes of another index than {self._index.path}")
        return found

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._engine.close()

    def note(self) -> str | None:
        """How the table differs from the index that was opened; None where it does not."""
        state, store, shown = self._state, self._index.store, self._engine.shown
        number = store.snapshot.round
        if not state.ended:
            return f"a push to {shown} has not ended; answers may lack items until one has"
        if state.at != (mark_of(store.round(number), store.snapshot.recoded) if number else RoundStamp()):
            return f"{shown} is at round {state.at.round}, the index at {number}; push again"
        return None

    def search(
        self, xq: ArrayLike, k: int, *, by: By = "both", expand: int = score.EXPAND
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The k nearest items of each query, shaped and ordered as by `WOHIndex.search`.

        Parameters
        ----------
        xq : (nq, d) array_like of a real dtype
            Query features.
        k : int
            Neighbours a query; may be more than there are items.
        by, expand
            As `WOHIndex.search`.

        Returns
        -------
        D : (nq, k) float32
            Scores, equal to the bit to those of the index; by "hamming" int32 distances.
        I : (nq, k) int64
            Ids.

        Raises
        ------
        InputError
            The features cannot be used, k is not a whole number of at least 1 (or is more than the database
            lists), `by` is unknown or the index has no such bits, or `expand` is not a whole number of at
            least 0.
        EngineError
            The database refuses.
        """
        index, k = self._index, validate.positive_int(k)
        by = valid_by(by, index.config.bits, index.instance_bits)
        expand = validate.whole_number(expand, "expand", 0)
        if not index.is_trained:
            return no_answers(len(validate.features(xq)), k, by)
        hasher = index.hasher
        codes_too = by == "hamming" or self._state.approximate
        packed = hasher.encode(xq) if codes_too else np.zeros((len(validate.features(xq)), 0), np.uint8)
        if by == "hamming":
            return self._nearest(packed, k)
        return self._best(*hasher.halves(xq), packed, k, by, expand)

    def search_ids(
        self, ids: ArrayLike, k: int, *, by: By = "both"
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The k nearest other items of each indexed item, as `WOHIndex.search_ids`.

        Parameters
        ----------
        ids : (nq,) array_like of integers
            Ids of items that the index has; the table has them as of the last push.
        k, by
            As `search`; there is no expansion.

        Returns
        -------
        D, I : (nq, k) float32 (by "hamming" int32) and (nq, k) int64
            As `search`.

        Raises
        ------
        InputError
            As `search`.
        StoreError
            An id is not in the index.
        EngineError
            The database refuses.
        """
        index, k, wanted = self._index, validate.positive_int(k), np.atleast_1d(np.asarray(ids))
        by = valid_by(by, index.config.bits, index.instance_bits)
        stored = index.store.view.codes(wanted)
        packed = codes.unpad(stored, self._state.learned + self._state.instance)
        if by == "hamming":
            return without_own(*self._nearest(packed, k + 1), wanted)
        h, a = halves_of_codes(stored, self._state.learned, self._state.instance)
        return without_own(*self._best(h, a, packed, k + 1, by, 0), wanted)

    def _nearest(self, packed: Bytes, k: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Distances and ids of the k nearest codes of each code (n, bytes): (n, k)."""
        D, I = self._answers(len(packed), k, "hamming")
        for some in _parts(len(packed)):
            with self._engine.reading():
                found = self._engine.nearest(packed[some], k, self._state)
            for i, rows in enumerate(found, some.start):
                differing = np.unpackbits(rows.codes ^ packed[i], axis=1).sum(axis=1)
                D[i, : len(rows.ids)], I[i, : len(rows.ids)] = differing, rows.ids
        return D, I

    def _best(
        self, h: Single | None, a: Single | None, packed: Bytes, k: int, by: By, expand: int
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Scores and ids of the k best rows: (n, k); h and a are `Hasher.halves` of the queries."""
        h, a = None if by == "instance" else h, None if by == "kind" else a
        asked = Asked(h, a, packed, self._state.learned // 8)
        S, I = self._answers(len(packed), k, by)
        for some in _parts(len(packed)):
            part = asked.of(some)
            with self._engine.reading():
                if expand and h is not None:
                    part = part.expanded(self._proved(part, expand))
                answers = self._proved(part, k)
            for i, (scores, rows) in enumerate(answers, some.start):
                S[i, : len(scores)], I[i, : len(scores)] = scores, rows.ids
        return S, I

    def _proved(self, asked: Asked, k: int) -> list[Best]:
        """The k best rows of each query, of which none is missing.

        Where another row than those that the database gave at first may score as much as the k-th of them,
        it is asked for all that may.
        """
        answers, left = [], []
        for i, (found, beyond) in enumerate(self._engine.best(asked, k, self._state)):
            answers.append(asked.best(i, found, k))
            if beyond > -np.inf and beyond >= answers[i].kth(k):
                left.append(i)
        if left:
            least = np.array([answers[i].kth(k) for i in left])
            for at, found in self._engine.reaching(asked.of(left), least, k, self._state):
                i = left[at]
                answers[i] = asked.best(i, answers[i].found.beside(found), k)
        return answers

    def _answers(self, nq: int, k: int, by: By) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Places for answers, empty."""
        validate.empty_places(nq, k, self._state.goal.ntotal)
        return no_answers(nq, k, by)


def _parts(n: int) -> Iterator[slice]:
    return (slice(start, min(start + _QUERIES, n)) for start in range(0, n, _QUERIES))
