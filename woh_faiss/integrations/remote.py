"""Queries that are encoded here and searched where the codes were pushed to."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from woh_faiss import codes, validate
from woh_faiss.errors import EngineError
from woh_faiss.index.index import WOHIndex
from woh_faiss.index.neighbours import without_own
from woh_faiss.store import NO_DISTANCE, NO_ID

from .engine import PushState, RoundStamp
from .open_engine import open_engine
from .source import mark_of


class Remote:
    """An index's codes in a database, searched with Faiss's names.

    Answers are those of the index's own flat scan by Hamming distance over both halves of the codes, ties
    too, at the state that was last pushed; but for tables pushed as approximate.

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

    def search(self, xq: ArrayLike, k: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The k nearest items of each query, shaped and ordered as by
        `WOHIndex.search` by "hamming".

        Raises
        ------
        InputError
            The features cannot be used, or k is not a whole number of at least 1.
        EngineError
            The database refuses.
        """
        return self._nearest(self._index.encode(xq), validate.positive_int(k))

    def search_ids(self, ids: ArrayLike, k: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The k nearest other items of each indexed item, as `WOHIndex.search_ids` by
        "hamming".
        """
        k, wanted = validate.positive_int(k), np.atleast_1d(np.asarray(ids))
        stored = self._index.store.view.codes(wanted)
        return without_own(*self._nearest(codes.unpad(stored, self._state.bits), k + 1), wanted)

    def _nearest(self, packed: NDArray[np.uint8], k: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        D = np.full((len(packed), k), NO_DISTANCE, np.int32)
        I = np.full((len(packed), k), NO_ID, np.int64)
        found: Any = self._engine.search(packed, k, self._state) if len(packed) else []
        for row, neighbours in enumerate(found):
            if neighbours:
                D[row, : len(neighbours)], I[row, : len(neighbours)] = zip(*neighbours, strict=True)
        return D, I
