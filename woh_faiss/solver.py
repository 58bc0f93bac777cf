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

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.sparse import csr_array

from .config import WOHConfig
from .statistics import Statistics

Matrix = NDArray[np.float64]

#: Smallest residual norm: a row that is explained exactly would otherwise weigh 1/0, then poison W.
FLOOR = 1e-8
#: The same where every block is in units of its energy: tag rows have length 1.
UNIT_FLOOR = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """What a round leaves: the chunk's codes, the newest maps, the statistics.

    Attributes
    ----------
    B : (n, r)
        Learned codes of the chunk's items, in {-1, +1}.
    P : (m, r)
        The hash function.
    W : (r, c)
        Codes to tags; the next round starts from it.
    stats : Statistics
        The past, for the next round.
    """

    B: Matrix
    P: Matrix
    W: Matrix
    stats: Statistics


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


def descend(
    B: Matrix, Q: Matrix, k: Matrix, HW: Matrix, H: Matrix, sweeps: int, tagged: Matrix | float = 1.0
) -> Matrix:
    """Discrete cyclic coordinate descent over the bits (Eq. 16): new codes (n, r).

    b_l ← sign(Q_l − k∘(B HW)_l − tagged∘(B H)_l), l ascending, in place, `sweeps` times. HW = W Wᵀ and
    H = β U Uᵀ + θ V Vᵀ come with zero diagonals, which is what B₋ₗ W₋ₗ w_l means. `tagged` (n,) is 0 for
    items whose tags say nothing (k is 0 for them, too), else 1.
    """
    B = np.array(B, order="F")
    for _ in range(sweeps):
        for l in range(B.shape[1]):
            B[:, l] = sign(Q[:, l] - k * (B @ HW[:, l]) - tagged * (B @ H[:, l]))
    return B


def without_diagonal(G: Matrix) -> Matrix:
    """G with zeros on its diagonal."""
    return G - np.diag(np.diag(G))


def learn_round(
    phi: Matrix, Y: csr_array, Z: Matrix, B0: Matrix, W0: Matrix, past: Statistics, config: WOHConfig
) -> Round:
    """Learn the codes of one chunk and the hash function after it.

    Parameters
    ----------
    phi, Y, Z : (n, m), (n, c) CSR, (n, f)
        The chunk's kernel map, tags and word vectors.
    B0 : (n, r)
        Codes to start from, in {-1, +1}.
    W0 : (r, c)
        The W of the round before, or a random one in round 1.
    past : Statistics
        Of the rounds before, already widened to c tags.
    config : WOHConfig
        α, β, θ, μ, iterations, sweeps, refresh_statistics.

    Notes
    -----
    A round costs n m² + m³/3 once and T (n m r + g n r² + nnz(Y) r + n f r + r³) for the iterations.
    """
    alpha, beta, theta, mu = config.alpha, config.beta, config.theta, config.mu
    base = past.with_features(phi)
    # Without the μ block P takes no part in the codes; it is then the plain ridge regression on them.
    C3_factor = factor(base.C3, alpha / mu if mu else alpha)
    y2 = squared_lengths(Y)
    B, W, YW = B0, W0, Y @ W0.T

    for _ in range(config.iterations):
        stats = base.with_codes(B, phi, Z)
        P = cho_solve(C3_factor, stats.C4, check_finite=False)  # Eq. 8
        k = weights(B, W, YW, y2)  # of the old W
        stats = stats.with_weights(B, k, Y)
        W = regression(stats.D1, stats.D2, alpha)  # Eq. 13
        YW = Y @ W.T  # n x r

        Q = k[:, None] * YW
        H = np.zeros_like(stats.C1)
        F = np.zeros((phi.shape[1], B.shape[1]))  # what φ is multiplied with: βUᵀ + μP
        if beta:
            U = regression(stats.C1, stats.C2, alpha / beta)  # Eq. 6
            F += beta * U.T
            H += beta * (U @ U.T)
        if theta:
            V = regression(stats.C1, stats.C5, alpha / theta)  # Eq. 9
            Q += theta * (Z @ V.T)
            H += theta * (V @ V.T)
        if mu:
            F += mu * P
        if beta or mu:
            Q += phi @ F  # n x r
        B = descend(B, Q, k, without_diagonal(W @ W.T), without_diagonal(H), config.sweeps)

    if config.refresh_statistics:
        stats = base.with_codes(B, phi, Z).with_weights(B, weights(B, W, YW, y2), Y)
        P = cho_solve(C3_factor, stats.C4, check_finite=False)
    return Round(B=B, P=P, W=W, stats=stats)


def sparing(r: int) -> Matrix:
    """The ridge's share of each row of V and W: it spares the constant row, but for solvability. (r + 1,)."""
    return np.append(np.ones(r), 1e-6)


def energy_V(C1: Matrix, C5: Matrix, alpha: float) -> Matrix:
    """V (r + 1, f) of an energy round (Eq. 9); the constant column of B⁺ counts the tagged items."""
    return regression(C1, C5, alpha * max(C1[-1, -1], 1.0) * sparing(len(C1) - 1))


def learn_energy_round(
    G: Matrix, Y: csr_array, Z: Matrix, tagged: Matrix, W0: Matrix | None, past: Statistics, config: WOHConfig
) -> tuple[Matrix, Matrix, Statistics]:
    """The same steps with every block in units of its own energy, from a given aim G of the codes.

    Three things differ from `learn_round`; docs/adaptive.md says why. The codes B⁺ = [B, 1] that explain
    tags and word vectors have a constant column, whose row of V and W is not penalised. The hash function's
    prediction in Q is not made anew in the loop: it is the fixed aim G. Items without tags take part in
    neither V nor W.

    Parameters
    ----------
    G : (n, r)
        What features and tags ask of each bit; codes start at its sign.
    Y, Z : (n, c) CSR, (n, f)
        Tag rows of length 1 and word vectors of mean energy 1; zeros where `tagged` is 0.
    tagged : (n,)
        1 for items with a known tag, else 0.
    W0 : (r + 1, c) or None
        W of the round before; None in round 1.
    past : Statistics
        Of the rounds before, C1, C5, D1, D2 with r + 1 rows; C2 and C3 are the caller's.

    Returns
    -------
    B : (n, r)
        Final codes.
    W : (r + 1, c)
        Codes to tags.
    stats : Statistics
        C1, C5, D1, D2 of the final codes.
    """
    r = G.shape[1]
    free = sparing(r)
    y2 = squared_lengths(Y)
    B = sign(G)
    W = np.zeros((r + 1, Y.shape[1])) if W0 is None else W0
    YW = Y @ W.T

    def explaining(B: Matrix) -> Matrix:
        return np.column_stack([B, np.ones(len(B))]) * tagged[:, None]  # B+, n x (r + 1)

    def k_of(Bp: Matrix, W: Matrix, YW: Matrix) -> Matrix:
        return tagged * weights(Bp, W, YW, y2, UNIT_FLOOR)

    for iteration in range(config.iterations):
        Bp = explaining(B)
        V = energy_V(past.C1 + Bp.T @ Bp, past.C5 + Bp.T @ Z, config.alpha)
        k = tagged if W0 is None and not iteration else k_of(Bp, W, YW)
        stats = past.with_weights(Bp, k, Y)
        energy = max(float(np.trace(stats.D1)) / (r + 1), 1e-12)
        W = regression(stats.D1, stats.D2, config.alpha * energy * free)  # Eq. 13
        YW = Y @ W.T  # n x (r + 1)
        k = k_of(Bp, W, YW)
        VV, WW = V @ V.T, W @ W.T
        Q = config.mu / r * G
        Q += config.theta * tagged[:, None] * (Z @ V[:r].T - VV[-1, :r])
        Q += k[:, None] * (YW[:, :r] - WW[-1, :r])
        HW, H = without_diagonal(WW[:r, :r]), config.theta * without_diagonal(VV[:r, :r])
        B = descend(B, Q, k, HW, H, config.sweeps, tagged)

    Bp = explaining(B)
    final = past.with_weights(Bp, k_of(Bp, W, YW), Y)
    return B, W, replace(final, C1=past.C1 + Bp.T @ Bp, C5=past.C5 + Bp.T @ Z)
