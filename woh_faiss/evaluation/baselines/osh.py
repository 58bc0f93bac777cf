"""OSH, "SketchHash": online sketching hashing (Leng et al., CVPR 2015). Unsupervised: tags are not looked at.

Rows are samples. The r leading principal directions V of all items so far, turned at random,

    max_W tr(WᵀXᵀXW),  WᵀW = I,  W = V_r R,  R drawn afresh every chunk,

where the items are present as a sketch S of l rows with SᵀS near to XᵀX (frequent directions, Liberty,
KDD 2013). A chunk of n rows X with mean c, after N rows with mean m:

1. A = X − c and, but for the first chunk, one row more, √(Nn / (N + n)) (c − m): sums of squares about the
   common mean are then those of A and S together.
2. Rows of A go into S; when it is full, s_i² ← max(s_i² − s²_{l/2+1}, 0) leaves l/2 of them.
3. m ← (Nm + nc) / (N + n).
4. V from the singular vectors of S. Code: (x − m) W > 0, the whole database again, because R has changed.

Costs n / (l/2) SVDs of l x d a chunk; keeps l x d numbers.

Defaults as published: l = 100. Deviations: l is at least 2r, since after a shrink only l/2 rows hold
directions; where fewer than r directions exist, R is the first rows of a rotation, not square. As published
a sketch counts as full at the start of each later chunk, though half its rows may be zero.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from scipy.linalg import svd
from scipy.sparse import csr_array

from woh_faiss.errors import ConfigError
from woh_faiss.learner.kernel import unit_rows
from woh_faiss.validate import positive_int

from .base import Baseline, Matrix


def sketched(S: Matrix, A: Matrix, l: int) -> Matrix:
    """The sketch S (at most l, d) after the rows of A (n, d), step 2; l is even."""
    filled = len(S)  # rows, zero or not, as published
    while len(A):
        if filled == l:
            S, filled = shrunk(S), l // 2
        taken = min(l - filled, len(A))
        S = np.vstack([S[:filled], A[:taken], S[filled + taken :]])
        A, filled = A[taken:], filled + taken
    return S


def shrunk(S: Matrix) -> Matrix:
    """The same number of rows (l, d), the latter half of them zero."""
    half = len(S) // 2
    _, s, Vt = svd(S, full_matrices=False, check_finite=False)
    least = s[half] if len(s) > half else 0.0
    kept = np.sqrt(np.maximum(s[:half] ** 2 - least**2, 0.0))[:, None] * Vt[:half]
    return np.vstack([kept, np.zeros((len(S) - len(kept), S.shape[1]))])


def centred(X: Matrix, mean: Matrix, seen: int) -> tuple[Matrix, Matrix]:
    """A (n or n + 1, d) of step 1, the new mean (d,) of step 3; `mean` is that of `seen` rows before."""
    n, c = len(X), X.mean(axis=0)
    if not seen:
        return X - c, c
    bridge = np.sqrt(seen * n / (seen + n)) * (c - mean)
    return np.vstack([X - c, bridge]), (seen * mean + n * c) / (seen + n)


def directions(S: Matrix, r: int) -> Matrix:
    """V (d, at most r): right singular vectors of S, each one's largest entry positive."""
    _, s, Vt = svd(S, full_matrices=False, check_finite=False)
    V = Vt[:r][s[:r] > 1e-10 * max(s[0], 1e-300)].T
    top = V[np.argmax(np.abs(V), axis=0), np.arange(V.shape[1])]
    return np.asarray(V * np.where(top < 0, -1.0, 1.0))


class OSH(Baseline):
    """See the module; features are scaled to length 1.

    Parameters
    ----------
    bits, seed, min_count
        As in `Baseline`.
    rows : int, optional
        l, even (default: 100, or 2r if that is more).
    """

    name: ClassVar[str] = "osh"
    source: ClassVar[str] = "Leng et al., CVPR 2015; the authors' code"
    sketch_: Matrix
    mean_: Matrix
    seen_: int

    def __init__(self, bits: int = 64, *, seed: int = 0, min_count: int = 2, rows: int | None = None) -> None:
        super().__init__(bits, seed=seed, min_count=min_count)
        self.rows = max(100, 2 * bits) if rows is None else positive_int(rows, "rows")
        if self.rows % 2:
            raise ConfigError(f"rows is {rows}, expected an even number")

    def _learn(self, X: Matrix, Y: csr_array, Z: Matrix, rng: np.random.Generator) -> None:
        x = unit_rows(X)
        if self.rounds_ == 1:
            self.sketch_, self.mean_, self.seen_ = np.zeros((0, x.shape[1])), np.zeros(x.shape[1]), 0
        A, self.mean_ = centred(x, self.mean_, self.seen_)
        self.sketch_, self.seen_ = sketched(self.sketch_, A, self.rows), self.seen_ + len(x)
        V = directions(self.sketch_, self.bits)
        R = np.linalg.qr(rng.standard_normal((self.bits, self.bits)))[0]
        self.W_ = V @ R[: V.shape[1]]  # d x r

    def _project(self, X: Matrix) -> Matrix:
        return np.asarray((unit_rows(X) - self.mean_) @ self.W_)
