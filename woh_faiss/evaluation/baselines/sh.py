"""SH: Spectral Hashing (Weiss, Torralba and Fergus, NIPS 2008).

Minimises Σ_ij S_ij ‖b_i − b_j‖² over balanced, uncorrelated bits for a Gaussian similarity S. Relaxed, and
with items spread evenly over a box along their principal directions, the solutions are eigenfunctions of the
Laplacian in closed form: with [mn_i, mx_i] the box and R_i = mx_i − mn_i

    Φ_k(y) = sin(π/2 + k π (y_i − mn_i) / R_i),    eigenvalue growing with (k π / R_i)²,

one direction i and one mode k a bit; the r smallest (but the constant one) are taken and bit = Φ > 0.

Unsupervised, no hyper-parameter, nothing random. A round costs O(N d² + d³). The published helper code is
followed: the box is the plain range (percentiles are computed there, then overwritten), and queries outside
of it are extrapolated. Deviations: features have unit length; the mean is that of the training items (the
published toolkit centres with the queries' too). Batch; the database is encoded again after every round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.sparse import csr_array

from woh_faiss.learner.kernel import unit_rows

from .base import Matrix
from .batch import Batch
from .pca import principal


@dataclass(frozen=True, slots=True, eq=False)
class Modes:
    """The eigenfunctions of r bits.

    Attributes
    ----------
    pc : (d, p)
        Principal directions, p = min(r, d).
    mn : (p,)
        Lower ends of the box.
    omega : (r, p)
        k π / R_i, in each row at one place only.
    """

    pc: Matrix
    mn: Matrix
    omega: Matrix

    def __call__(self, X: Matrix) -> Matrix:
        """Φ of centred rows: (n, d) → (n, r)."""
        angles = (X @ self.pc - self.mn) @ self.omega.T  # one direction a bit, so the sum is that one angle
        return np.asarray(np.sin(angles + np.pi / 2))


def fit(X: Matrix, r: int) -> Modes:
    """The r smoothest eigenfunctions on the box of centred X (n, d)."""
    pc = principal(X, r)
    y = X @ pc  # n x p
    eps = np.finfo(np.float64).eps
    mn, mx = y.min(axis=0) - eps, y.max(axis=0) + eps
    R = mx - mn
    most = np.ceil((r + 1) * R / R.max()).astype(int)  # direction i has modes 1..most_i - 1
    direction = np.repeat(np.arange(len(R)), most - 1)
    k = np.concatenate([np.arange(1, m) for m in most])
    frequency = k * np.pi / R[direction]
    kept = np.argsort(frequency**2, kind="stable")[:r]
    omega = np.zeros((r, len(R)))
    omega[np.arange(r), direction[kept]] = frequency[kept]
    return Modes(pc, mn, omega)


class SH(Batch):
    """Spectral Hashing; see the module."""

    name: ClassVar[str] = "sh"
    source: ClassVar[str] = "Weiss et al., NIPS 2008; equal to the published helper code bit for bit"
    draws: ClassVar[bool] = False

    def _fit(self, X: Matrix, Y: csr_array, rng: np.random.Generator) -> None:
        X = unit_rows(X)
        self.mean_ = X.mean(axis=0)
        modes = fit(X - self.mean_, self.bits)
        self.pc_, self.mn_, self.omega_ = modes.pc, modes.mn, modes.omega

    def _project(self, X: Matrix) -> Matrix:
        return Modes(self.pc_, self.mn_, self.omega_)(unit_rows(X) - self.mean_)
