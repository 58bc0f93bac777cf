"""What a database is asked by score, and rows that it finds: a few that may be among the best, none missing.

A database computes sums of whole numbers over the bits of a code. So h becomes a multiple of whole numbers,
and what that may change of any sum is known: a database gives a bound of the score, the score itself is
computed here (woh_faiss.score), and is the same to the bit wherever the rows were found.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from woh_faiss import score
from woh_faiss.score import Single

Ids = NDArray[np.int64]
Bytes = NDArray[np.uint8]

#: Twice what float32 may add to a score, as in store/score_scan.py; sums of doubles add far less.
ROUNDING = 4e-5
#: Nearest codes that an approximate index gives to be scored, at least.
_SHORT_LIST = 1000


@dataclass(frozen=True, slots=True)
class Found:
    """Rows that a database found for one query, m of them.

    Attributes
    ----------
    ids, seq : (m,) int64
        As in `CodeRows`.
    codes : (m, bytes) uint8
        Learned bits, then instance bits.
    """

    ids: Ids
    seq: Ids
    codes: Bytes

    def at(self, places: NDArray[np.intp]) -> Found:
        """Some of the rows."""
        return Found(self.ids[places], self.seq[places], self.codes[places])

    def beside(self, other: Found) -> Found:
        """These rows and others, each once."""
        ids = np.concatenate([self.ids, other.ids])
        _, once = np.unique(ids, return_index=True)
        codes = np.concatenate([self.codes, other.codes])
        return Found(ids, np.concatenate([self.seq, other.seq]), codes).at(once)


@dataclass(frozen=True, slots=True)
class Weights:
    """Queries in whole numbers: h ≈ unit · W.

    Attributes
    ----------
    W : (n, bits) int64
        Odd, from -top to top: Σ 2^p (±1) over as many p as there are planes.
    unit : (n,) float64
    error : (n,) float64
        Σ|h - unit · W|: what no sum over the bits of a code is further off than.
    top : int
    """

    W: Ids
    unit: NDArray[np.float64]
    error: NDArray[np.float64]
    top: int

    @classmethod
    def of(cls, H: Single, planes: int) -> Weights:
        """Of `score.normalised` queries (n, bits), with 2^planes different numbers."""
        top = 2**planes - 1
        exact = H.astype(np.float64)
        unit = np.abs(exact).max(axis=1) / top
        steps = exact / np.where(unit > 0, unit, 1.0)[:, None]
        W = np.clip(2 * np.floor(steps / 2) + 1, -top, top)
        return cls(W.astype(np.int64), unit, np.abs(exact - unit[:, None] * W).sum(axis=1), top)

    def planes(self, query: int) -> list[NDArray[np.bool_]]:
        """The signs of one query's W, (bits,) for each p: 2^p counts as 1 where true, as -1 elsewhere."""
        halved = (self.W[query] + self.top) >> 1
        return [(halved >> p & 1).astype(np.bool_) for p in range(self.top.bit_length())]


@dataclass(frozen=True, slots=True)
class Asked:
    """n queries by score.

    Attributes
    ----------
    kind, same : (n, r) and (n, s) float32, or None
        `score.normalised` numbers for the halves that count.
    codes : (n, bytes) uint8
        The queries' own codes, for an approximate index.
    learned : int
        Bytes of a stored code that are learned bits.
    """

    kind: Single | None
    same: Single | None
    codes: Bytes
    learned: int

    def __len__(self) -> int:
        return len(self.codes)

    def of(self, queries: list[int] | slice) -> Asked:
        """Some of the queries."""
        kind, same = (None if half is None else half[queries] for half in (self.kind, self.same))
        return replace(self, kind=kind, same=same, codes=self.codes[queries])

    @property
    def counting(self) -> dict[str, Single]:
        """The numbers of the halves that count, by the name of their column."""
        named = {"learned": self.kind, "instance": self.same}
        return {name: half for name, half in named.items() if half is not None}

    def weights(self, planes: int) -> dict[str, Weights]:
        """The same in whole numbers."""
        return {name: Weights.of(half, planes) for name, half in self.counting.items()}

    def best(self, query: int, found: Found, k: int) -> Best:
        """The k best of some rows for one query: larger scores first, then smaller `seq`."""
        one, codes = slice(query, query + 1), found.codes[None]
        kind = same = None
        if self.kind is not None:
            kind = score.sums(score.tables(self.kind[one]), codes[:, :, : self.learned])
        if self.same is not None:
            same = score.sums(score.tables(self.same[one]), codes[:, :, self.learned :])
        S = score.combined(kind, same)[0]
        first = np.lexsort((found.seq, -S))[:k]
        return Best(S[first], found.at(first))

    def expanded(self, answers: list[Best]) -> Asked:
        """The queries with what their first answers have in common: `score.expanded`."""
        assert self.kind is not None  # noqa: S101 - for mypy: the caller looked
        H = self.kind.copy()
        for i, (_, found) in enumerate(answers):
            if len(found.ids):
                H[i] = score.expanded(H[i : i + 1], found.codes[None, :, : self.learned])[0]
        return replace(self, kind=H)


class Best(NamedTuple):
    """Scores (m,), descending, and their rows."""

    S: Single
    found: Found

    def kth(self, k: int) -> float:
        """What the k-th score is at least; -inf where there are fewer."""
        return float(self.S[k - 1]) - ROUNDING if len(self.S) >= k else -np.inf


def short_list(k: int) -> int:
    """Nearest codes to ask an approximate index for, of which the k best are wanted."""
    return max(4 * k, _SHORT_LIST)
