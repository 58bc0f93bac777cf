"""Round 1 of a semantic start: the directions that tags share with features, turned so that signs lose least.

With φ (n, m) and the tag target T (n, c + f), the ridge prediction of T from φ has covariance A'A for
A(ρ) = L^½ (L + ρ)⁻¹ Q'φ'T, C3 = φ'φ = Q L Q'. Its top r right singular vectors E are the tag directions that
can be seen in the features (reduced-rank regression); ITQ (Gong and Lazebnik, CVPR 2011) turns them. They are
T'φ Q L^½ (L + ρ)⁻¹ times the eigenvectors of AA', which is no wider than φ: nothing of the size of φ'T is
formed, which with 60,000 tags would be a gigabyte.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.sparse.linalg import LinearOperator

from .solver import sign

Matrix = NDArray[np.float64]

#: ITQ iterations; more change nothing, restarts neither.
ITQ = 40


def directions(
    eigen: tuple[Matrix, Matrix],
    shared: Matrix,
    phi: Matrix,
    T: LinearOperator,
    rho: float,
    r: int,
    rng: np.random.Generator,
) -> tuple[Matrix, Matrix]:
    """E (p, r), and R (m, r) with φR the ridge prediction of TE, for T (n, p).

    `eigen` holds the eigenvalues L (m,) and eigenvectors Q (m, m) of C3, `shared` is Q'φ'TT'φQ (m, m). With
    fewer than r directions they are spread over all bits at random. The signs of eigenvectors are arbitrary:
    each column's largest entry is made positive, so that equal inputs give equal codes on any LAPACK.
    """
    L, Q = np.maximum(eigen[0], 0.0), eigen[1]
    shrunk = np.sqrt(L) / (L + rho)
    m, p = len(L), T.shape[1]
    rank = min(r, m, p)
    energy, u = eigh(shrunk[:, None] * shared * shrunk, subset_by_index=[m - rank, m - 1])
    kept = energy[::-1] > 1e-9 * max(energy[-1], 1e-300)
    E = T.rmatmat(phi @ (Q @ (shrunk[:, None] * u[:, ::-1][:, kept])))  # p x rank
    E /= np.maximum(np.linalg.norm(E, axis=0), 1e-300)
    E *= np.where(E[np.argmax(np.abs(E), axis=0), np.arange(E.shape[1])] < 0, -1.0, 1.0)
    if E.shape[1] < r:
        E = E @ rng.standard_normal((E.shape[1], r)) / np.sqrt(max(E.shape[1], 1))
    return E, Q @ ((Q.T @ (phi.T @ T.matmat(E))) / (L + rho)[:, None])


def rotation(H: Matrix, given: Matrix, rng: np.random.Generator) -> Matrix:
    """R (p, r) with orthonormal columns for which sign(HR) loses least of H (n, p), by ITQ; p >= r.

    The first rows' signs are `given` (b, r); with none of them r is p and the start is random.
    """
    if len(given):
        R = nearest(given.T @ H[: len(given)])
    else:
        R = np.linalg.qr(rng.standard_normal((H.shape[1],) * 2))[0]
    for _ in range(ITQ):
        R = nearest(np.vstack([given, sign(H[len(given) :] @ R)]).T @ H)
    return R


def nearest(BH: Matrix) -> Matrix:
    """The R (p, r) with orthonormal columns that takes H (n, p) nearest to B (n, r), from B'H; p >= r."""
    left, _, right = np.linalg.svd(BH, full_matrices=False)
    return np.asarray((left @ right).T)


def unit(H: Matrix) -> Matrix:
    """H in units of the root mean square of its entries; zeros stay zeros."""
    rms = np.sqrt(np.square(H).mean()) if H.size else 0.0
    return H / rms if rms > 0 else H


def cosine(G: Matrix, H: Matrix) -> float:
    """Cosine of two matrices as vectors; 0 where one is zero."""
    size = np.sqrt(np.square(G).sum() * np.square(H).sum())
    return float((G * H).sum() / size) if size > 0 else 0.0
