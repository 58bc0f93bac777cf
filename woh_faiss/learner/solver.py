"""The steps of a round. Pure functions: arrays in, arrays out, no state, no I/O, no randomness.

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

Nothing of size n x c or n x n is ever formed. `training_round.py` puts the steps together.
"""

from __future__ import annotations

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
#: Bits that a sweep takes together.
BITS = 32


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
    """min_M Σ‖t_i − b_i M‖² + ridge ‖M‖², from C = Σ bᵀb and T = Σ bᵀt: (r, p).

    With ridge = α/β it is U (Eq. 6), with α/θ it is V (Eq. 9), and with α and weighted sums W (Eq. 13).

    Parameters
    ----------
    C : (r, r) array
        Σ bᵀb, weighted for W.
    T : (r, p) array
        Σ bᵀt, weighted for W.
    ridge : float or (r,) array
        Weight of ‖M‖², > 0.
    """
    return np.asarray(cho_solve(factor(C, ridge), T, check_finite=False))


def weights(B: Matrix, W: Matrix, YW: Matrix, y2: Matrix, floor: float = FLOOR) -> Matrix:
    """k_i = 1 / max(‖y_i − b_i W‖₂, floor): (n,).

    The residual is expanded, ‖y‖² − 2 b·(W yᵀ) + b (W Wᵀ) bᵀ, so that Y stays sparse.

    Parameters
    ----------
    B : (n, r) array
        Codes, ±1.
    W : (r, c) array
        Map from codes to tags.
    YW : (n, r) array
        Y Wᵀ.
    y2 : (n,) array
        ‖y_i‖².
    floor : float
        Least residual: a row that is explained exactly would have the weight 1/0.
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

    Parameters
    ----------
    B : (n, r) array
        Codes to start from, ±1; not changed.
    Q : (n, r) array
        Linear term.
    k : (n,) array
        Weights of the items.
    HW, H : (r, r) arrays
        Quadratic terms with zero diagonals, with and without the weights.
    sweeps : int
        Passes over all bits.
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
    """One sweep of `descend` without weights: b_l ← sign(Q_l − (B H)_l), l ascending; (n, r).

    Parameters
    ----------
    B : (n, r) array
        Codes to start from, ±1; not changed.
    Q : (n, r) array
        Linear term.
    H : (r, r) array
        Quadratic term with a zero diagonal.
    """
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
