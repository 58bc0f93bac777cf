"""Exact search by the score of `woh_faiss.score`: the k best rows, proved without scoring all of them.

Fagin's threshold algorithm. The K best by h·b and the K best by a·c come from two fast scans (packed_codes),
and are scored exactly. A row in neither list has at most the sum of both lists' last: where the k-th score
exceeds that, no row is missing. Else K grows, and in the end all rows are scored. Where many rows share a
code, the kind of each code is computed instead of the first scan, and the rows of the best codes are scored.
A row's score never depends on how it was found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from woh_faiss import score, validate

from .crowds import Crowds
from .packed_codes import Bytes, PackedCodes, PackedCopies, Single
from .scan import NO_ID, Rows, Scan

#: What a search goes by: the score, or one of its terms.
By = Literal["both", "kind", "instance"]

#: Candidates of the list by kind, of k; how many times more where they prove nothing; the share of rows that
#: is the most to be asked for at first, and again.
_TIMES, _SPARE, _MORE = 2, 94, 4
_MOST_FIRST, _MOST = 1 / 8, 1 / 64
#: Candidates of the list by instance, of those by kind, up to a share of the rows; how many times more again.
#: The eighth power makes its end small: a longer list proves more, and most of it need not be scored.
_DEEPER, _DEEPEST, _DEEPER_AGAIN = 2, 1 / 16, 2
#: Rows up to which all are scored, and the share of rows that may answer up to which only those are.
_ALL, FEW = 2000, 0.04
#: Queries asked before packing pays.
_WORTH = 2
#: Rows of crowds that are scored: while longer lists may prove an answer, and when they get too long; and the
#: share of all rows that costs no more than to scan them.
_CHEAP, _DEAR, _SHARE = 1 << 13, 1 << 16, 1 / 128
#: Queries scored together, and rows.
_QUERIES, _BLOCK = 66, 1 << 16
#: Twice what float32 may add to a score: 128 additions of numbers below 1, and the eighth power.
_ROUNDING = np.float32(4e-5)


class _List(NamedTuple):
    """The best by one term: sums, descending, their rows, and how wrong a sum may be: `PackedCodes.best`."""

    D: Single
    rows: Rows
    error: Single

    def most(self) -> Single:
        """What no row outside the list has more of; a normalised query has at most 1, in a crowd of codes."""
        end: Single = self.D[:, -1] + self.error
        return np.minimum(end, np.float32(1), out=end)

    def of(self, queries: NDArray[np.intp]) -> _List:
        return _List(self.D[queries], self.rows[queries], self.error[queries])

    def cut(self, kept: NDArray[np.bool_]) -> _List:
        """The columns in which a query keeps a row; as D descends, these are the first ones."""
        m = max(1, int(np.count_nonzero(kept.any(axis=0))))
        return _List(self.D[:, :m], self.rows[:, :m], self.error)


class Half(NamedTuple):
    """The numbers of some queries for one half of the code: H (n, bits), and their `score.tables`."""

    H: Single
    tables: Single

    @classmethod
    def of_numbers(cls, H: Single) -> Half:
        """Of queries (n, bits)."""
        H = np.ascontiguousarray(H, np.float32)
        return cls(H, score.tables(H))

    def of(self, queries: NDArray[np.intp] | slice) -> Half:
        """Some of the queries."""
        return Half(self.H[queries], self.tables[queries])


class Asked(NamedTuple):
    """What some queries ask of each half of the codes; None for a half that does not count."""

    kind: Half | None
    same: Half | None

    @classmethod
    def of_numbers(cls, h: Single | None, a: Single | None) -> Asked:
        """Of queries (n, r) and (n, s)."""
        return cls(h if h is None else Half.of_numbers(h), a if a is None else Half.of_numbers(a))

    @property
    def n(self) -> int:
        """Queries."""
        return _queries(self.kind and self.kind.H, self.same and self.same.H)

    def of(self, queries: NDArray[np.intp] | slice) -> Asked:
        """Some of the queries."""
        return Asked(self.kind and self.kind.of(queries), self.same and self.same.of(queries))

    def one(self, i: int) -> Asked:
        """The i-th query."""
        return self.of(slice(i, i + 1))


def _queries(h: Single | None, a: Single | None) -> int:
    given = a if h is None else h
    assert given is not None  # noqa: S101 - for mypy: a code has bits
    return len(given)


class _Known(NamedTuple):
    """What a search for one query that proved nothing has shown.

    Attributes
    ----------
    least : float32
        The k-th best score is this at least.
    more : float32
        The instance term of rows that are not `listed` is this at most.
    listed : (m,) int64
    """

    least: np.float32
    more: np.float32
    listed: Rows


#: The packed learned bits and the packed instance bits.
Packed = tuple[PackedCodes, PackedCodes]


@dataclass(frozen=True)
class ScoreScan:
    """Searches by score of the rows that an answer may have.

    Attributes
    ----------
    copies : PackedCopies
        Of all rows.
    scan : Scan
        The same codes, and which of them may answer.
    r, s : int
        Learned bits, then instance bits, in each code; multiples of 8, one may be 0.
    """

    copies: PackedCopies
    scan: Scan
    r: int
    s: int

    def search(
        self, h: Single | None, a: Single | None, k: int, by: By = "both", expand: int = 0
    ) -> tuple[Single, Rows]:
        """Scores and rows of the k best, (n, k): larger scores first, then smaller rows.

        The same for one query and for a thousand. Where there are fewer than k: -inf and NO_ID.

        Parameters
        ----------
        h : (n, r) float32, or None
            `score.normalised`; None where there are no learned bits, or `by` is "instance".
        a : (n, s) float32, or None
            As h, for the instance bits.
        k : int
            At least 1.
        by : "both", "kind" or "instance"
            The score, or one of its terms alone.
        expand : int
            First answers that say more of the kind asked for: see `score.expanded`. 0, no learned bits, or
            by "instance": none.
        """
        k = validate.positive_int(k)
        h = None if not self.r or by == "instance" else h
        a = None if not self.s or by == "kind" else a
        n = _queries(h, a)
        validate.empty_places(n, k, self.scan.ntotal)
        some = min(k, self.scan.ntotal)
        if not n or not some:
            return np.full((n, k), -np.inf, np.float32), np.full((n, k), NO_ID, np.int64)
        packed = self._packed(h is not None, a is not None, 2 * n if expand and h is not None else n)
        found = []
        for start in range(0, n, _QUERIES):
            part = slice(start, start + _QUERIES)
            asked = Asked.of_numbers(h if h is None else h[part], a if a is None else a[part])
            found.append(self._searched(packed, asked, some, expand))
        S, rows = found[0] if len(found) == 1 else map(np.concatenate, zip(*found, strict=True))
        if some < k:
            lack = ((0, 0), (0, k - some))
            S = np.pad(S, lack, constant_values=-np.inf)
            rows = np.pad(rows, lack, constant_values=NO_ID)
        return S, rows

    def _searched(self, packed: Packed | None, asked: Asked, k: int, expand: int) -> tuple[Single, Rows]:
        """Of a few queries, for k up to the rows there are."""
        if not expand or asked.kind is None:
            return self._best(packed, asked, k, None)[:2]
        some = min(expand, self.scan.ntotal)
        _, rows, listed = self._best(packed, asked, some, None, k)
        H = score.expanded(asked.kind.H, self.scan.mapped.codes[rows, : self.r // 8])
        return self._best(packed, asked._replace(kind=Half.of_numbers(H)), k, listed)[:2]

    def _best(
        self, packed: Packed | None, asked: Asked, k: int, listed: _List | None, later: int = 0
    ) -> tuple[Single, Rows, _List | None]:
        """The k best, and the list by instance, which a search for the same instances takes as `listed`.

        It is long enough for a search for `later` best.
        """
        n = asked.n
        S, rows = np.empty((n, k), np.float32), np.empty((n, k), np.int64)
        queries, known = np.arange(n), dict[int, _Known]()
        most = _MOST_FIRST * self.scan.rows
        K, K_same = self._enough(k), self._enough(max(k, later))
        if asked.kind is not None:
            K_same = max(K_same, min(_DEEPER * K_same, int(_DEEPEST * self.scan.rows)))
        if K_same > most:  # later, all rows will be scored
            K_same = K
        # Where crowds are known, so is every kind.
        kinds_known = None not in asked and self._crowds(make=False) is not None
        while len(queries) and packed is not None and most >= K:
            all_ = len(queries) == n
            here = asked if all_ else asked.of(queries)
            by_kind = by_same = None
            if here.kind is not None and not kinds_known:
                by_kind = _List(*packed[0].best(here.kind.H, K))
            if listed is not None and listed.rows.shape[1] >= K:
                by_same = listed if all_ else listed.of(queries)
            elif here.same is not None:
                by_same = _List(*packed[1].best(here.same.H, K_same))
                if all_:
                    listed = by_same
            found, found_rows, proved = self._union(here, by_kind, by_same, k)
            if all_:
                S, rows = found, found_rows
            else:
                S[queries], rows[queries] = found, found_rows
            left = np.flatnonzero(~proved)
            queries = queries[left]
            if not len(queries):
                break
            K, K_same, most, kinds_known = K * _MORE, K_same * _DEEPER_AGAIN, _MOST * self.scan.rows, False
            crowds = None if asked.kind is None else self._crowds(make=True)
            if by_same is not None and (most < K or crowds is not None):
                known |= _known(queries, found[left, -1], by_same.of(left))
            if crowds is not None:
                few = max(_CHEAP if most >= K else _DEAR, int(_SHARE * self.scan.rows))
                done = []
                for i in queries.tolist():
                    best = self._of_crowds(crowds, asked.one(i), k, known.get(i), few)
                    if best is not None:
                        S[i], rows[i] = best
                        done.append(i)
                queries = np.setdiff1d(queries, done, assume_unique=True)
        for i in queries.tolist():
            S[i], rows[i] = self._of_all(asked.one(i), k, known.get(i))
        return S, rows, listed

    def _of_crowds(
        self, crowds: Crowds, asked: Asked, k: int, known: _Known | None, most: int
    ) -> tuple[Single, Rows] | None:
        """The k best of all rows, (k,), for one query, where many rows share few learned codes.

        The kind of each code is known. The rows of a code, but for those that are listed, score no more than
        that and the instance term of the list's end. So codes are looked at, and the rows of the best ones;
        None if these are more than `most`.
        """
        assert asked.kind is not None  # noqa: S101 - for mypy: crowds are of learned bits
        kinds = score.sums_of_all(asked.kind.tables, crowds.codes)[0]
        more, least = np.float32(0), np.float32(-np.inf)
        near = np.arange(crowds.rows, self.scan.rows)  # rows that came since
        if known is not None:
            more, least = known.more, known.least
            near = np.concatenate([near, known.listed[known.listed != NO_ID]])
        wanted = np.flatnonzero(kinds + more >= least - _ROUNDING)
        some = 4 * k  # codes have that many rows at least; they may do
        if crowds.sizes(wanted).sum() > some:
            first = wanted[_first(kinds[wanted], wanted, some)]
            first = first[: int(np.searchsorted(np.cumsum(crowds.sizes(first)), some)) + 1]
            if crowds.sizes(first).sum() <= most:
                S, rows = self._best_of(asked, np.concatenate([near, crowds.rows_of(first)]), k)
                if len(S) == k:
                    near, wanted = rows, np.setdiff1d(wanted, first, assume_unique=True)
                    wanted = wanted[kinds[wanted] + more >= S[-1] - _ROUNDING]
        if crowds.sizes(wanted).sum() > most:
            return None
        return self._best_of(asked, np.concatenate([near, crowds.rows_of(wanted)]), k)

    def _crowds(self, make: bool) -> Crowds | None:
        """Rows by their learned code, if many share one; they are sorted first only if `make`."""
        return self.copies.crowds(0, self.r // 8, make)

    def _best_of(self, asked: Asked, rows: Rows, k: int) -> tuple[Single, Rows]:
        """Scores and rows of up to k best of some rows, for one query; those not allowed are left out."""
        rows = np.sort(rows, kind="stable")  # a few sorted parts; np.unique takes ten times as long
        rows = rows[np.diff(rows, prepend=-1) > 0]
        if self.scan.allowed is not None:
            rows = rows[self.scan.allowed[rows]]
        parts = [self._scores(asked, rows[None, i : i + _BLOCK])[0] for i in range(0, len(rows), _BLOCK)]
        S = np.concatenate(parts) if parts else np.empty(0, np.float32)
        first = _first(S, rows, k)
        return S[first], rows[first]

    def _enough(self, k: int) -> int:
        """Candidates to begin with."""
        return (_TIMES * k + _SPARE) * self.scan.rows // self.scan.ntotal

    def _packed(self, by_kind: bool, by_same: bool, n: int) -> Packed | None:
        """The packed halves that `n` more searches use, or None where those score all rows."""
        scan = self.scan
        if scan.rows <= _ALL or scan.ntotal <= FEW * scan.rows:
            return None
        middle, end = self.r // 8, (self.r + self.s) // 8
        learned = self.copies.of(0, middle, n, _WORTH) if by_kind else _NOTHING
        instance = self.copies.of(middle, end, n, _WORTH) if by_same else _NOTHING
        return None if learned is None or instance is None else (learned, instance)

    def _union(
        self, asked: Asked, by_kind: _List | None, by_same: _List | None, k: int
    ) -> tuple[Single, Rows, NDArray[np.bool_]]:
        """The k best rows of both lists, and of which queries no row outside can be among the k best."""
        # A normalised query has a kind of 1 at most.
        most = np.ones(1, np.float32) if by_kind is None else by_kind.most()
        beyond = score.combined(asked.kind and most, by_same and by_same.most())
        if by_kind is not None and by_same is not None and self.scan.allowed is None:
            by_kind, by_same = _shorter(by_kind, by_same, k, most)
        lists = [each.rows for each in (by_same, by_kind) if each is not None]
        S, rows = self._of_lists(asked, lists, k)
        return S, rows, S[:, -1] > beyond + _ROUNDING

    def _of_lists(self, asked: Asked, lists: list[Rows], k: int) -> tuple[Single, Rows]:
        """The k best rows of lists (n, m), (n, k); a row may be in several. -inf for those there are not."""
        rows = np.concatenate(lists, axis=1)
        rows.sort(axis=1)
        S = self._scores(asked, rows)
        np.putmask(S[:, 1:], rows[:, 1:] == rows[:, :-1], -np.inf)
        first = np.argsort(-S, axis=1, kind="stable")[:, :k]  # of equal scores the smaller rows
        S, rows = np.take_along_axis(S, first, axis=1), np.take_along_axis(rows, first, axis=1)
        if S.shape[1] < k:
            lack = ((0, 0), (0, k - S.shape[1]))
            S, rows = np.pad(S, lack, constant_values=-np.inf), np.pad(rows, lack, constant_values=NO_ID)
        return S, rows

    def _scores(self, asked: Asked, rows: Rows) -> Single:
        """Scores (n, m) of rows (n, m) for each query, -inf where a row may not answer or there is none."""
        packed = self.scan.mapped.codes.take(rows, axis=0)
        middle, end = self.r // 8, (self.r + self.s) // 8
        S = score.combined(
            asked.kind and score.sums(asked.kind.tables, packed[:, :, :middle]),
            asked.same and score.sums(asked.same.tables, packed[:, :, middle:end]),
        )
        if self.scan.allowed is not None:
            S[~self.scan.allowed[rows]] = -np.inf
        S[rows == NO_ID] = -np.inf
        return S

    def _of_all(self, asked: Asked, k: int, known: _Known | None) -> tuple[Single, Rows]:
        """The k best of all rows, (k,), for one query; each row is looked at.

        Blocks are scored with tables of two bytes, whose sums may differ from the score by float32's
        rounding; what may be among the best is then scored as it is everywhere. Where both terms count, rows
        are looked at by kind first.
        """
        middle, end = self.r // 8, (self.r + self.s) // 8
        pairs = self.scan.rows > _BLOCK
        of_kind = asked.kind and _Lookups.of(asked.kind.tables[0], pairs)
        of_same = asked.same and _Lookups.of(asked.same.tables[0], pairs)
        least, more = np.float32(-np.inf), np.float32(1)
        S, rows = np.empty(0, np.float32), np.empty(0, np.int64)
        if known is not None and asked.kind is not None:
            least, more = known.least, known.more
            rows = np.sort(known.listed[known.listed != NO_ID])
            S = self._scores(asked, rows[None])[0]
        listed, which = rows, self.scan.places
        total = self.scan.rows if which is None else len(which)
        for start in range(0, total, _BLOCK):
            end_ = min(start + _BLOCK, total)
            here: Rows = np.arange(start, end_) if which is None else which[start:end_]
            codes = self.scan.mapped.codes[slice(start, end_) if which is None else here]
            if of_kind is None:
                assert of_same is not None  # noqa: S101 - for mypy
                about = of_same.sums(codes[:, middle:end])
            else:
                about = of_kind.sums(codes[:, :middle])
                if of_same is not None:
                    near = np.flatnonzero(about >= least - more - _ROUNDING)
                    if len(near) < len(here):
                        about, here, codes = about[near], here[near], codes[near]
                    about = score.combined(about, of_same.sums(codes[:, middle:end]))
            near = np.flatnonzero(about >= least - _ROUNDING)
            if len(near) > 4 * k:
                about, here = about[near], here[near]
                least = max(least, _kth(about, k) - _ROUNDING)
                near = np.flatnonzero(about >= least - _ROUNDING)
            near = here[near]
            if len(listed):
                near = near[~np.isin(near, listed)]
            if len(near):
                S = np.concatenate([S, self._scores(asked, near[None])[0]])
                rows = np.concatenate([rows, near])
                first = _first(S, rows, k)
                S, rows = S[first], rows[first]
                if len(S) == k:
                    least = max(least, S[-1])
        first = _first(S, rows, k)
        return S[first], rows[first]


def _known(queries: NDArray[np.intp], least: Single, by_same: _List) -> dict[int, _Known]:
    """What lists that prove nothing show of each of these queries, whose k-th score is `least` so far."""
    each = zip(queries.tolist(), least, score.instance_term(by_same.most()), by_same.rows, strict=True)
    return {i: _Known(*shown) for i, *shown in each}


#: Stands for a half that is not used.
_NOTHING = PackedCodes(0, 0)


def _shorter(by_kind: _List, by_same: _List, k: int, most: Single) -> tuple[_List, _List]:
    """Both lists without the rows at their ends that are in no answer; all rows may answer.

    k rows have the k-th kind at least. A row that is in one list only has at most its term there, and what
    rows outside the other list have, which is `most` of the kind.
    """
    least = by_kind.D[:, k - 1] - by_kind.error - _ROUNDING
    terms = score.instance_term(by_same.D + by_same.error[:, None])
    by_same = by_same.cut(terms >= (least - most)[:, None])
    least -= by_kind.error + score.instance_term(by_same.most())
    return by_kind.cut(np.greater_equal(by_kind.D, least[:, None])), by_same


def _kth(S: Single, k: int) -> np.float32:
    """The k-th largest."""
    # From the other end it would take ten times as long where many are equal.
    return np.float32(-np.partition(-S, k - 1)[k - 1])


def _first(S: Single, rows: Rows, k: int) -> NDArray[np.intp]:
    """Positions of the k largest scores, largest first, of equal ones those of smaller rows."""
    if len(S) <= 4 * k:
        return np.lexsort((rows, -S))[:k]
    kth = _kth(S, k)
    more, equal = (np.flatnonzero(compare(S, kth)) for compare in (np.greater, np.equal))
    wanted = k - len(more)
    if wanted < len(equal):
        equal = equal[np.argpartition(rows[equal], wanted)[:wanted]]
    some = np.concatenate([more, equal])
    return some[np.lexsort((rows[some], -S[some]))]


@dataclass(frozen=True, slots=True)
class _Lookups:
    """Sums of one query over many codes: a table for each two bytes, then for each of the bytes left."""

    pairs: Single
    bytes: Single

    @classmethod
    def of(cls, tables: Single, pairs: bool) -> _Lookups:
        """From a query's `score.tables` (n_bytes, 256); without tables of two bytes unless `pairs`."""
        n = len(tables) // 2 if pairs else 0
        low, high = tables[0 : 2 * n : 2], tables[1 : 2 * n : 2]
        return cls((high[:, :, None] + low[:, None, :]).reshape(n, 1 << 16), tables[2 * n :])

    def sums(self, codes: Bytes) -> Single:
        """Of codes (n, n_bytes): (n,) float32."""
        codes = np.ascontiguousarray(codes)
        total = np.zeros(len(codes), np.float32)
        if n := len(self.pairs):
            both = np.ascontiguousarray(codes[:, : 2 * n]).view("<u2")
            for j in range(n):
                total += self.pairs[j].take(both[:, j])
        for j in range(len(self.bytes)):
            total += self.bytes[j].take(codes[:, 2 * n + j])
        return total
