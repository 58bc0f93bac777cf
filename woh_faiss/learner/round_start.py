"""The start of a round of the estimator: codes, the past, and in round 1 the kernel map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from woh_faiss import codes, validate
from woh_faiss.errors import InputError

from .blocks import Features, Rows, split_blocks
from .config import WOHConfig
from .drift import novelty
from .kernel import Kernel, Matrix, mapped, unit_rows
from .semantic_start import Start, early_start, later_start
from .state import ModelState, WarmupItems
from .statistics import Statistics, widen
from .training_round import Items


@dataclass(frozen=True, slots=True, eq=False)
class TaggedChunk:
    """A chunk and what its tags say.

    `trained` (n,) marks the items with a known tag; `Y` is theirs, `Y_rows` and `Z_rows` are their tags and
    word-vector means, of width `f`, where the features are. `names` (n, 2) is what the caller
    calls the items.
    """

    features: Features
    trained: NDArray[np.bool_]
    Y: csr_array
    Y_rows: Rows[csr_array]
    Z_rows: Rows[Matrix]
    f: int
    names: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class RoundStart:
    """What there is beside the chunk: hyper-parameters, what rounds before left, what was given from outside.

    Attributes
    ----------
    config : WOHConfig
    known : Learned or None
        None in round 1.
    A, W0 : (m, d), (r, c) array_like or None
        As `WOH` has them.
    """

    config: WOHConfig
    known: ModelState | None
    A: ArrayLike | None
    W0: ArrayLike | None

    def semantic(
        self, chunk: TaggedChunk, df: Matrix, B0: ArrayLike | None, rng: np.random.Generator
    ) -> Start:
        """Of features and tags; see `semantic_start`."""
        if B0 is not None or self.W0 is not None:
            raise InputError(
                'B0 and W0 are given, expected neither with a semantic start; use start="random"'
            )
        config, known, d = self.config, self.known, chunk.features.shape[1]
        n, c = chunk.Y.shape
        seen = 0 if known is None else known.stats.n
        count = np.asarray(chunk.Y.sum(axis=0)).ravel()
        new = novelty(count, n, df - count, seen)
        if known is None or known.memory is None:
            early = WarmupItems.none(d, config.bits, chunk.f, c)
        elif known.memory.early is None:
            side, X = known.memory.side.widened(c).seeing(chunk.Y), chunk.features.rows(chunk.trained)
            return later_start(X, chunk.Y_rows, chunk.Z_rows, side, df, seen + n, known, config, new, rng)
        else:
            early = known.memory.early
        A = None if self.A is None else valid_chunk("A", self.A, (None, d))
        tagged, bare = (np.flatnonzero(places) for places in (chunk.trained, ~chunk.trained))
        room = max(config.anchors - len(early.bare_x), 0)
        kept = bare if len(bare) <= room else np.sort(rng.choice(bare, room, replace=False))
        x, bare_x = (unit_rows(chunk.features.take(places)) for places in (tagged, kept))
        Z, names = np.vstack(chunk.Z_rows.gathered()), (chunk.names[tagged], chunk.names[kept])
        early = early.and_then(x, chunk.Y, Z, bare_x, len(bare), *names)
        return early_start(early, df, seen + n, config, rng, A, new)

    def random(
        self, chunk: TaggedChunk, B0: ArrayLike | None, rng: np.random.Generator
    ) -> tuple[Start, NDArray[Any] | None]:
        """The paper's: random codes, and in round 1 a random W; and the anchors."""
        n, r, c = len(chunk.trained), self.config.bits, chunk.Y.shape[1]
        anchors: NDArray[Any] | None
        if self.known is None:
            drawn = self._first_anchors(chunk.features, rng)
            kernel, anchors = Kernel.fit_rows(chunk.features.rows(), drawn), drawn
            past = Statistics.zero(r=r, m=len(kernel.A), f=chunk.f, c=c)
            W = rng.standard_normal((r, c)) if self.W0 is None else valid_chunk("W0", self.W0, (r, c))
        else:
            kernel, anchors = self.known.hasher.kernel, self.known.anchors
            past, W = self.known.stats.widened(c), widen(self.known.W, c)
        if B0 is None:  # drawn a block at a time: the numbers are those of one draw
            start = [
                codes.pack(rng.standard_normal((Y.shape[0], r))) for Y in split_blocks(chunk.Y).gathered()
            ]
        else:
            start = list(split_blocks(codes.pack(valid_chunk("B0", B0, (n, r))[chunk.trained])).gathered())
        size = 4 * n * len(kernel.A)
        phi = chunk.features.rows(chunk.trained).map_if_small(size, mapped, kernel)
        beside = chunk.features.beside(Rows(start))
        items = phi.map_if_small(size, _starting, chunk.Y_rows, chunk.Z_rows, beside)
        return Start(kernel, items, W, past), anchors

    def _first_anchors(self, X: Features, rng: np.random.Generator) -> NDArray[Any]:
        n, d = X.shape
        if self.A is not None:
            return valid_chunk("A", self.A, (None, d))
        return X.take(np.sort(rng.choice(n, min(self.config.anchors, n), replace=False)))


def _starting(phi: NDArray[Any], Y: csr_array, Z: Matrix, packed: NDArray[np.uint8]) -> Items:
    return Items(phi, Y, Z, codes.unpack(packed).astype(np.float64))


def valid_chunk(name: str, M: ArrayLike, shape: tuple[int | None, int | None]) -> Matrix:
    """M as a finite float64 matrix of `shape`, None leaving a side open."""
    M = np.asarray(validate.features(M, name=name), np.float64)
    if any(want is not None and want != got for want, got in zip(shape, M.shape, strict=True)):
        raise InputError(
            f"{name} has shape {M.shape}, expected {tuple('any' if s is None else s for s in shape)}"
        )
    return M
