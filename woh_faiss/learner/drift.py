"""A chunk that is unlike the items so far: how its tags show that, and directions of its own for its codes.

Bits stand for what the first items differ in. Items of kinds that come later would follow them, know no bit
of their own and crowd together. Such a chunk starts like a warm-up round instead: from the tag directions
that its features show, turned so that signs lose least and given codes stay near. No item so far is needed
for that. Statistics have what given codes share with any directions R of the features, E of the tags: C2 R
and (TB)'E. And they have what those codes know of φ'T, (TB) C1⁻¹ C2 transposed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve
from scipy.sparse import csr_array

from .blocks import Rows, Sums
from .solver import factor, sign
from .statistics import Statistics, of_features
from .tag_directions import nearest
from .tag_targets import TagTargets

Matrix = NDArray[np.float64]

#: Standard deviations by which chance lets the count of a tag differ from what is expected.
CHANCE = 3.0
#: Share of a chunk's tags beyond that from which on the chunk is unlike the items so far.
UNLIKE = 0.05
#: What an item of the chunk counts beside one so far, whose code has its directions and stays.
WEIGHT = 10.0
#: Iterations for the directions, and for their turn.
POWER, TURNS = 4, 10
#: Share of the main direction below which what another has is rounding.
LEAST = 1e-6


def novelty(count: NDArray[Any], n: int, df: Matrix, seen: int) -> float:
    """Share of a chunk's tags that are more than chance would draw from the items so far, 0 to 1.

    Parameters
    ----------
    count, n : (c,), int
        Items of the chunk that carry each tag, and its items.
    df, seen : (c,), int
        The same of the items so far; with none of them nothing is new.
    """
    if not seen:
        return 0.0
    expected = df * (n / seen)
    chance = CHANCE * np.sqrt((expected + 1.0) * (1.0 + n / seen))
    return float(np.maximum(count - expected - chance, 0.0).sum() / count.sum())


def redirected(
    phi: Rows[NDArray[Any]],
    y: Rows[csr_array],
    z: Rows[Matrix],
    side: TagTargets,
    past: Statistics,
    TB: Matrix,
    ridge: float,
    rng: np.random.Generator,
) -> tuple[Matrix, Matrix]:
    """P (m, r) and M (c + f, r) for the start of this chunk's codes: what features and tags ask of each bit.

    Parameters
    ----------
    phi, y, z : Rows of (b, m), (b, c) CSR, (b, f)
        The chunk.
    side : TagTargets
        Means and scales.
    past, TB : Statistics, (c + f, r)
        Of the items so far, with room for the chunk's tags.
    ridge : float
        That of P.

    Notes
    -----
    The directions are the main ones of T'φ (C3 + ρ)⁻¹ φ'T, found by subspace iteration: any basis of them
    will do, as the turn starts from given codes.
    """
    r = len(past.C2)
    of_chunk = phi.sum(_of_chunk, y, z, side)
    C1 = past.C1[:r, :r]
    known = cho_solve(factor(C1, ridge * np.trace(C1) / r), past.C2, check_finite=False)  # r x m
    S = (TB @ known).T + WEIGHT * of_chunk["S"].T  # m x (c + f)
    C3 = factor(past.C3 + of_chunk["C3"], ridge)
    E = rng.standard_normal((S.shape[1], r))
    for _ in range(POWER):
        E = np.linalg.qr(S.T @ cho_solve(C3, S @ E, check_finite=False))[0]
    R = cho_solve(C3, S @ E, check_finite=False)  # m x r
    energy, u = np.linalg.eigh((S @ E).T @ R)
    u = u[:, energy > LEAST * energy[-1]]
    E, R = E @ u, R @ u  # p <= r columns

    squares = phi.sum(_squares, y, z, side, R, E)
    v, t = (1.0 / np.sqrt(max(float(squares[name]), 1e-300)) for name in ("Gv", "Gt"))
    H = phi.map(_asked, y, z, side, v * R, t * E)
    given = v * (past.C2 @ R) + t * (TB.T @ E)  # r x p, B'H of the items so far
    # Directions that given codes know nothing of are turned at random at first, not by rounding.
    turn = nearest(given + LEAST * np.abs(given).max() * rng.standard_normal(given.shape))
    for _ in range(TURNS):
        turn = nearest(given + WEIGHT * H.sum(_by_signs, turn)["BH"])
    return R @ turn, E @ turn


def _of_chunk(phi: NDArray[Any], y: csr_array, z: Matrix, side: TagTargets) -> Sums:
    phi = phi.astype(np.float64, copy=False)
    return of_features(phi) | {"S": side.transposed_times(y, z, phi)}


def _squares(phi: NDArray[Any], y: csr_array, z: Matrix, side: TagTargets, R: Matrix, E: Matrix) -> Sums:
    return {"Gv": np.square(phi @ R).sum(), "Gt": np.square(side.times(y, z, E)).sum()}


def _asked(phi: NDArray[Any], y: csr_array, z: Matrix, side: TagTargets, R: Matrix, E: Matrix) -> Matrix:
    return np.asarray(phi @ R + side.times(y, z, E))


def _by_signs(H: Matrix, turn: Matrix) -> Sums:
    return {"BH": sign(H @ turn).T @ H}
