"""The steps of one round. Pure functions: arrays in, arrays out, no state, no I/O, no randomness.

Source: Zhan et al., "Weakly-Supervised Online Hashing", ICME 2021. Rows are samples. A round minimises

    ‖Y − BW‖₂,₁ + β‖φ − BU‖² + θ‖Z − BV‖² + μ‖B − φP‖² + α(‖W‖² + ‖U‖² + ‖V‖² + ‖P‖²)       (Eq. 4)

over the old and the new items together, old codes fixed; the old items are present as statistics only.

=======  ==========  ====================================================================
symbol   shape       meaning
=======  ==========  ====================================================================
phi      (n, m)      kernel map of the chunk's items
Y        (n, c)      their tags, CSR of 0/1
Z        (n, f)      mean word vector of each item's tags
B        (n, r)      their codes, in {-1, +1}
U, V, W  (r, ·)      B → φ, B → Z, B → Y
P        (m, r)      the hash function, h(x) = sign(φ(x) P) with sign(0) = +1
k        (n,)        ℓ2,1 weights, 1 / ‖y_i − b_i W‖₂
C1..D2   statistics  see statistics.py
=======  ==========  ====================================================================

Nothing of size n x c or n x n is ever formed, and C3 + (α/μ)I is factored once a round: it does not
depend on B.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.sparse import csr_array

from .config import WOHConfig
from .rows import Rows, Sums
from .statistics import Statistics, of_codes, of_features, of_weights, of_words

Matrix = NDArray[np.float64]

#: Smallest residual norm: a row that is explained exactly would otherwise weigh 1/0, then poison W.
FLOOR = 1e-8
#: The same where every block is in units of its energy: tag rows have length 1.
UNIT_FLOOR = 1e-3
#: Bits that a sweep takes together.
BITS = 32


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
    """

    phi: NDArray[np.floating[Any]]
    Y: csr_array
    Z: Matrix
    B0: Matrix
    aim: Matrix | None = None
    given: int = 0


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
class Round:
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


def sign(H: Matrix) -> Matrix:
    """sgn with sgn(0) = +1, as `codes.pack` has it."""
    return np.where(H >= 0, 1.0, -1.0)


def squared_lengths(Y: csr_array) -> Matrix:
    """‖y_i‖² of each row of Y, which stays sparse: (n,)."""
    return np.asarray(Y.multiply(Y).sum(axis=1), dtype=np.float64).ravel()


def factor(C: Matrix, ridge: float | Matrix) -> Any:
    """Cholesky factor of C + diag(ridge), for `scipy.linalg.cho_solve`; C (p, p) symmetric, ridge > 0."""
    A = C.copy()
    A.flat[:: len(A) + 1] += ridge
    try:
        return cho_factor(A, lower=True, overwrite_a=True, check_finite=False)
    except LinAlgError as error:
        error.add_note(
            f"a {len(C)} x {len(C)} statistic plus {np.max(ridge):g} I is not positive definite; "
            "raise alpha, or look for features of very large size"
        )
        raise


def regression(C: Matrix, T: Matrix, ridge: float | Matrix) -> Matrix:
    """min_M Σ‖t_i − b_i M‖² + ridge ‖M‖², from C = Σ bᵀb (r, r) and T = Σ bᵀt (r, p): (r, p).

    With ridge = α/β it is U (Eq. 6), with α/θ it is V (Eq. 9), and with α and weighted sums W (Eq. 13).
    """
    return np.asarray(cho_solve(factor(C, ridge), T, check_finite=False))


def weights(B: Matrix, W: Matrix, YW: Matrix, y2: Matrix, floor: float = FLOOR) -> Matrix:
    """k_i = 1 / max(‖y_i − b_i W‖₂, floor): (n,).

    The residual is expanded, ‖y‖² − 2 b·(W yᵀ) + b (W Wᵀ) bᵀ, so that Y stays sparse.
    `YW` is Y Wᵀ (n, r) and `y2` holds ‖y_i‖² (n,).
    """
    squared = y2 - 2.0 * np.einsum("ij,ij->i", B, YW) + np.einsum("ij,ij->i", B @ (W @ W.T), B)
    k: Matrix = 1.0 / np.maximum(np.sqrt(np.maximum(squared, 0.0)), floor)
    return k


def descend(B: Matrix, Q: Matrix, k: Matrix, HW: Matrix, H: Matrix, sweeps: int) -> Matrix:
    """Discrete cyclic coordinate descent over the bits (Eq. 16): new codes (n, r).

    b_l ← sign(Q_l − k∘(B HW)_l − (B H)_l), l ascending, in place, `sweeps` times. HW = W Wᵀ and
    H = β U Uᵀ + θ V Vᵀ come with zero diagonals, which is what B₋ₗ W₋ₗ w_l means.

    Bits go in blocks: a product for all other bits of a block at its start, then corrections in the rows
    whose bit has changed. After the first sweep few do, and a product with B for every bit alone would be
    half of a round at 128 bits.
    """
    B = np.array(B, order="F")
    for _ in range(sweeps):
        still = True
        for start in range(0, B.shape[1], BITS):
            block = slice(start, start + BITS)
            S = Q[:, block] - k[:, None] * (B @ HW[:, block]) - B @ H[:, block]
            for l in range(start, start + S.shape[1]):
                b = B[:, l]
                changed = np.flatnonzero((S[:, l - start] >= 0) != (b > 0))
                if len(changed):
                    step = -2.0 * b[changed]
                    b[changed] += step
                    S[changed] -= (step * k[changed])[:, None] * HW[l, block] + step[:, None] * H[l, block]
                    still = False
        if still:  # and would be in every further sweep
            break
    return B


def sweep(B: Matrix, Q: Matrix, H: Matrix) -> Matrix:
    """One sweep of `descend` where no item is weighed: b_l ← sign(Q_l − (B H)_l), l ascending; (n, r)."""
    B = np.array(B, order="F")
    for l in range(B.shape[1]):
        B[:, l] = sign(Q[:, l] - B @ H[:, l])
    return B


def without_diagonal(G: Matrix) -> Matrix:
    """G with zeros on its diagonal."""
    return G - np.diag(np.diag(G))


def V_of(stats: Statistics, config: WOHConfig) -> Matrix:
    """V of the statistics (Eq. 9): (r, f), with a semantic start (r + 1, f); zeros where θ is 0."""
    if not config.theta:
        return np.zeros_like(stats.C5)
    if config.start == "random":
        return regression(stats.C1, stats.C5, config.alpha / config.theta)
    # The corner counts the items: every bit has that energy.
    return regression(stats.C1, stats.C5, _sparing(config.alpha * stats.C1[-1, -1], stats.C1))


def W_of(stats: Statistics, config: WOHConfig) -> Matrix:
    """W of the statistics (Eq. 13): (r, c), with a semantic start (r + 1, c)."""
    D1 = stats.D1
    if config.start == "random":
        return regression(D1, stats.D2, config.alpha)
    return regression(D1, stats.D2, _sparing(config.alpha * float(np.trace(D1)) / len(D1), D1))


def _sparing(ridge: float, C: Matrix) -> Matrix:
    """The ridge of each row of V or W: it spares the constant row, but for solvability. (len(C),)."""
    return max(ridge, 1e-12) * np.append(np.ones(len(C) - 1), 1e-6)


def learn_round(
    items: Rows[Items], W0: Matrix | None, past: Statistics, config: WOHConfig, *, semantic: bool = False
) -> Round:
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
    return Round(codes=codes, P=P, W=W, stats=stats)


def _of_phi(items: Items) -> Sums:
    return of_features(items.phi)


def _first(items: Items, W: Matrix, alike: bool) -> Codes:
    """The codes to start from, weighed by the W of the round before, or alike."""
    YW, y2 = items.Y @ W.T, squared_lengths(items.Y)
    k = np.ones(len(YW)) if alike else _weights(items, items.B0, W, YW, y2)
    return Codes(items.B0, YW, y2, k)


def _terms(items: Items, codes: Codes, with_phi: bool, kept: bool) -> Sums:
    """What the codes add to the statistics; C2 on demand, and in double precision if it is kept."""
    Bp = _explaining(items, codes.B)
    sums = of_words(Bp, items.Z) | of_weights(Bp, codes.k, items.Y)
    if not with_phi:
        return sums
    return sums | of_codes(codes.B, items.phi.astype(np.float64, copy=False) if kept else items.phi)


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
