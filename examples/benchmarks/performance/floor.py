"""The least that a round of the paper's steps costs: its large products alone, by the same BLAS."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.linalg import cho_factor
from scipy.sparse import csr_array


def floor(
    Y: csr_array, r: int, *, d: int = 4096, m: int = 1000, f: int = 300, T: int = 7, g: int = 3
) -> Callable[[], None]:
    """A function that does them once; Y (n, c) are tags, r bits, m anchors, T iterations of g sweeps."""
    n, c = Y.shape
    rng = np.random.default_rng(0)

    def double(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape)

    def single(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    X, A, phi32 = single(n, d), single(m, d), single(n, m)
    phi, Z, B = double(n, m), double(n, f), np.sign(double(n, r))
    B32, F, P, V, W = B.astype(np.float32), single(m, r), double(m, r), double(r, f), double(r, c)
    kB, HW = B * 0.5, double(r, r)
    C3 = phi.T @ phi + m * np.eye(m)

    def once() -> None:
        _ = X @ A.T  # φ
        _ = phi.T @ phi  # C3, half of a product: BLAS sees that it is symmetric
        cho_factor(C3, lower=True, check_finite=False)
        for _ in range(T):
            _ = B32.T @ phi32  # C2
            _ = phi32 @ F  # φ(βU' + μP)
            _ = C3 @ P  # the two triangular solves of P
            _ = B.T @ Z  # C5
            _ = Z @ V.T
            _ = B.T @ B  # C1
            _ = B.T @ kB  # D1
            _ = Y @ W.T
            _ = Y.T @ kB  # D2
            for _ in range(g):
                _ = B @ HW
                _ = B @ HW

    return once
