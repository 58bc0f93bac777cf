"""One round: the steps of `solver.py` over the blocks of a chunk, which meet in sums only.

C3 + (α/μ)I is factored once a round: it does not depend on B.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve
from scipy.sparse import csr_array

from .blocks import Rows, Sums
from .config import WOHConfig
from .solver import (
    FLOOR,
    V_of,
    W_of,
    descend,
    factor,
    regression,
    squared_lengths,
    weights,
    without_diagonal,
)
from .statistics import Statistics, of_codes, of_features, of_weights, of_words, scaled

Matrix = NDArray[np.float64]

#: `solver.FLOOR` where every block is in units of its energy: tag rows have length 1.
UNIT_FLOOR = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """A block of a chunk's items, as a round takes them.

    Attributes
    ----------
    phi, Y, Z : (b, m), (b, c) CSR, (b, f)
        Kernel map (single precision is enough), tags and word vectors.
    B0 : (b, r)
        Codes to start from, in {-1, +1}.
    aim : (b, r) or None
        G, what features and tags ask of each bit; with a semantic start only.
    given : int
        The first rows have their final codes already: they count, and stay.
    trust : (b,) or None
        Items that each counts as, from what `trust.py` says of its tags; None where each is one.
    """

    phi: NDArray[np.floating[Any]]
    Y: csr_array
    Z: Matrix
    B0: Matrix
    aim: Matrix | None = None
    given: int = 0
    trust: Matrix | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Codes:
    """Their codes so far.

    Attributes
    ----------
    B : (b, r)
        In {-1, +1}.
    YW : (b, r)
        Y Wᵀ of the newest W; with a semantic start (b, r + 1).
    y2, k : (b,)
        ‖y_i‖² and the weights, of these codes and the newest W.
    """

    B: Matrix
    YW: Matrix
    y2: Matrix
    k: Matrix


@dataclass(frozen=True, slots=True, eq=False)
class Maps:
    """What one iteration asks of all codes.

    Attributes
    ----------
    W, V : (r, c), (r, f) or None
        With a semantic start one row more; None without the θ block.
    F : (m, r) or None
        What φ is multiplied with, βUᵀ + μP; None with a semantic start, and without both blocks.
    HW, H : (r, r)
        See `descend`.
    """

    W: Matrix
    V: Matrix | None
    F: Matrix | None
    HW: Matrix
    H: Matrix


@dataclass(frozen=True, slots=True, eq=False)
class LearnedRound:
    """What a round leaves: the chunk's codes, the newest maps, the statistics.

    Attributes
    ----------
    codes : Rows of Codes
        Learned codes of the chunk's items, in blocks.
    P : (m, r)
        The hash function.
    W : (r, c)
        Codes to tags; the next round starts from it.
    stats : Statistics
        The past, for the next round.
    """

    codes: Rows[Codes]
    P: Matrix
    W: Matrix
    stats: Statistics

    @property
    def B(self) -> Matrix:
        """The codes (n, r), here."""
        return np.vstack([block.B for block in self.codes.gathered()])


def learn_round(
    items: Rows[Items], W0: Matrix | None, past: Statistics, config: WOHConfig, *, semantic: bool = False
) -> LearnedRound:
    """Learn the codes of one chunk and the hash function after it.

    Two configurations of the same steps; docs/adaptive.md has the difference in one table. From a semantic
    start B⁺ = [B, 1] explains tags and word vectors, ridges are shares of each block's energy, and the aim
    stands in Q where the hash function's prediction φP stands after a random one.

    Parameters
    ----------
    items : Rows of Items
        The chunk, in blocks.
    W0 : (r, c), with a semantic start (r + 1, c); or None
        The W of the round before, or a random one in round 1; None weighs all items alike at first.
    past : Statistics
        Of the rounds before, already widened to c tags.
    config : WOHConfig
        α, β, θ, μ, iterations, sweeps, weighted, refresh_statistics.
    semantic : bool
        Whether the items have an aim.

    Notes
    -----
    A round costs n m² + m³/3 once and T (n m r + g n r² + nnz(Y) r + n f r + r³) for the iterations. Rows
    meet in sums only: all that is done to them are steps over blocks.
    """
    alpha, beta, theta, mu = config.alpha, config.beta, config.theta, config.mu
    base = past.plus(items.sum(_of_phi))
    # Without the μ block P takes no part in the codes; it is then the plain ridge regression on them.
    C3_factor = factor(base.C3, alpha if semantic or not mu else alpha / mu)
    W = np.zeros_like(base.D2) if W0 is None else W0
    codes = items.map(_first, W, W0 is None or not config.weighted)
    for iteration in range(config.iterations):
        kept = iteration == config.iterations - 1 and not config.refresh_statistics
        stats = base.plus(items.sum(_terms, codes, not semantic, kept))
        W = W_of(stats, config)  # Eq. 13
        r = base.C2.shape[0]
        H = np.zeros((r, r))
        V = F = None
        if theta:
            V = V_of(stats, config)  # Eq. 9
            H += theta * (V[:r] @ V[:r].T)
        if not semantic and (beta or mu):
            F = np.zeros((base.C3.shape[0], r))
            if beta:
                U = regression(stats.C1, stats.C2, alpha / beta)  # Eq. 6
                F += beta * U.T
                H += beta * (U @ U.T)
            if mu:
                F += mu * cho_solve(C3_factor, stats.C4, check_finite=False)  # Eq. 8
        maps = Maps(W, V, F, without_diagonal(W[:r] @ W[:r].T), without_diagonal(H))
        codes = items.map(_improved, codes, maps, config)

    if config.refresh_statistics:
        stats = base.plus(items.sum(_terms, codes, True, True))
    P = cho_solve(C3_factor, stats.C4, check_finite=False)
    return LearnedRound(codes=codes, P=P, W=W, stats=stats)


def _of_phi(items: Items) -> Sums:
    return of_features(scaled(items.phi, _root(items)))


def _first(items: Items, W: Matrix, alike: bool) -> Codes:
    """The codes to start from, weighed by the W of the round before, or alike."""
    YW, y2 = items.Y @ W.T, squared_lengths(items.Y)
    k = np.ones(len(YW)) if alike else _weights(items, items.B0, W, YW, y2)
    return Codes(items.B0, YW, y2, k)


def _terms(items: Items, codes: Codes, with_phi: bool, kept: bool) -> Sums:
    """What the codes add to the statistics; C2 on demand, and in double precision if it is kept."""
    Bp = _explaining(items, codes.B)
    root = _root(items)
    counted = scaled(Bp, root)
    sums = of_words(counted, scaled(items.Z, root)) | of_weights(counted, codes.k, scaled(items.Y, root))
    if not with_phi:
        return sums
    phi = items.phi.astype(np.float64, copy=False) if kept else items.phi
    return sums | of_codes(scaled(codes.B, root), scaled(phi, root))


def _root(items: Items) -> Matrix | None:
    """What an item's rows are multiplied with, so that products of two of them count it by its trust."""
    return None if items.trust is None else np.sqrt(items.trust)


def _improved(items: Items, codes: Codes, maps: Maps, config: WOHConfig) -> Codes:
    """The codes after the sweeps of one iteration (Eq. 16)."""
    B, r, given = codes.B, codes.B.shape[1], items.given
    YW = items.Y @ maps.W.T  # b x r, or r + 1
    # The published code weighs by the old W throughout.
    k = codes.k if items.aim is None or not config.weighted else _weights(items, B, maps.W, YW, codes.y2)
    Q = k[:, None] * (YW[:, :r] - _constant(maps.W, r))
    if maps.V is not None:
        Q += config.theta * (items.Z @ maps.V[:r].T - _constant(maps.V, r))
    if items.aim is not None:
        Q += config.mu / r * items.aim
    if maps.F is not None:
        Q += items.phi @ maps.F.astype(items.phi.dtype)  # b x r
    new = descend(B[given:], Q[given:], k[given:], maps.HW, maps.H, config.sweeps)
    B = np.vstack([B[:given], new]) if given else new
    return Codes(B, YW, codes.y2, _weights(items, B, maps.W, YW, codes.y2) if config.weighted else k)


def _explaining(items: Items, B: Matrix) -> Matrix:
    """B, with a semantic start B⁺."""
    return B if items.aim is None else np.column_stack([B, np.ones(len(B))])


def _weights(items: Items, B: Matrix, W: Matrix, YW: Matrix, y2: Matrix) -> Matrix:
    return weights(_explaining(items, B), W, YW, y2, FLOOR if items.aim is None else UNIT_FLOOR)


def _constant(M: Matrix, r: int) -> Matrix:
    """What the constant column adds to each bit's part in Q, zeros where there is none: (r,)."""
    return np.asarray((M[r:] @ M[:r].T).sum(axis=0))
