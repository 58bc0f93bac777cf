"""The objective against outer iterations: Eq. 4 on the first chunk, as the paper's Fig. 3b."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woh_faiss import codes
from woh_faiss.inputs.chunk import Chunk
from woh_faiss.learner.config import WOHConfig
from woh_faiss.learner.estimator import WOH
from woh_faiss.learner.solver import regression, squared_lengths
from woh_faiss.tags.word_vectors import WordVectors

Matrix = NDArray[np.float64]


def objective(config: WOHConfig, phi: Matrix, Y: Any, Z: Matrix, B: Matrix, W: Matrix, P: Matrix) -> float:
    """Eq. 4 of codes B; U and V are solved for B, as the next iteration would (Eq. 6, 9).

    Parameters
    ----------
    config : WOHConfig
        The weights of the blocks.
    phi : (n, m) array
        Kernel features.
    Y : (n, c) CSR matrix
        Tags, 0 and 1.
    Z : (n, f) array
        Word-vector means.
    B : (n, r) array
        Codes, ±1.
    W, P : (r, c) and (m, r) arrays
        Those of the round.
    """
    alpha, beta, theta, mu = config.alpha, config.beta, config.theta, config.mu
    residual = squared_lengths(Y) - 2 * np.einsum("ij,ij->i", B, Y @ W.T)
    residual += np.einsum("ij,ij->i", B @ (W @ W.T), B)
    residual = np.maximum(residual, 0)
    value = (np.sqrt(residual) if config.weighted else residual).sum() + alpha * np.square(W).sum()
    for weight, target in ((beta, phi), (theta, Z)):
        if weight:
            M = regression(B.T @ B, B.T @ target, alpha / weight)
            value += weight * np.square(target - B @ M).sum() + alpha * np.square(M).sum()
    if mu:
        value += mu * np.square(B - phi @ P).sum() + alpha * np.square(P).sum()
    return float(value)


def by_iteration(
    chunk: Chunk, config: WOHConfig, vectors: WordVectors | None = None, most: int = 10
) -> list[float]:
    """The objective after 1, 2, ... outer iterations on a chunk, each from the same random start.

    Parameters
    ----------
    chunk : Chunk
        With tags.
    config : WOHConfig
        With a random start.
    vectors : WordVectors, optional
        Vectors of the tags' words.
    most : int
        Outer iterations of the last value.
    """
    values = []
    for iterations in range(1, most + 1):
        woh = WOH(replace(config, iterations=iterations))
        woh.partial_fit(chunk.features, chunk.tags, word_vectors=vectors)
        assert chunk.tags is not None  # noqa: S101 - partial_fit has checked; this tells mypy
        Y, Z, _ = woh.vocabulary_.matrices(chunk.tags)
        rows = woh.trained_
        phi = woh.hasher_.kernel.map(chunk.features[rows])
        B = codes.unpack(woh.codes_[rows]).astype(np.float64)
        values.append(objective(config, phi, Y[rows], Z[rows], B, woh.state()["W"], woh.hasher_.P))
    return values
