"""The paper's round as one would write it down, dense and in float64: what the fast one must agree with."""

from __future__ import annotations

from typing import Any

import numpy as np

ALPHA, BETA, THETA, MU, T, G = 300.0, 0.1, 0.1, 10.0, 7, 3


def sign(H: np.ndarray) -> np.ndarray:
    return np.where(H >= 0, 1.0, -1.0)


def distances(X: np.ndarray, A: np.ndarray) -> np.ndarray:
    """‖x − a‖² of all rows."""
    X, A = X.astype(np.float64), A.astype(np.float64)
    return np.square(X).sum(1)[:, None] + np.square(A).sum(1) - 2 * X @ A.T


def ridge(C: np.ndarray, T_: np.ndarray, weight: float) -> np.ndarray:
    return np.linalg.solve(C + weight * np.eye(len(C)), T_)


def learn(
    phi: np.ndarray, Y: np.ndarray, Z: np.ndarray, B: np.ndarray, W: np.ndarray, past: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Codes, W and sums after one round; `past` holds the sums of the rounds before, {} at first."""

    def plus(name: str, term: np.ndarray) -> np.ndarray:
        return past[name] + term if name in past else term

    C3 = plus("C3", phi.T @ phi)
    for _ in range(T):
        k = 1 / np.maximum(np.linalg.norm(Y - B @ W, axis=1), 1e-8)[:, None]
        sums = {"C1": plus("C1", B.T @ B), "C2": plus("C2", B.T @ phi), "C3": C3}
        sums |= {"C5": plus("C5", B.T @ Z), "D1": plus("D1", B.T @ (k * B)), "D2": plus("D2", B.T @ (k * Y))}
        U = ridge(sums["C1"], sums["C2"], ALPHA / BETA)
        V = ridge(sums["C1"], sums["C5"], ALPHA / THETA)
        W = ridge(sums["D1"], sums["D2"], ALPHA)
        P = ridge(C3, sums["C2"].T, ALPHA / MU)
        Q = k * (Y @ W.T) + BETA * phi @ U.T + THETA * Z @ V.T + MU * phi @ P
        B = B.copy()
        for _ in range(G):
            for l in range(B.shape[1]):
                rest = np.arange(B.shape[1]) != l
                others = B[:, rest]
                step = Q[:, l] - k[:, 0] * (others @ (W[rest] @ W[l]))
                B[:, l] = sign(step - others @ (BETA * U[rest] @ U[l] + THETA * V[rest] @ V[l]))
    return B, W, sums


def differing(make: Any, codes: Any, chunks: list[Any], vectors: Any, bits: int) -> tuple[int, int]:
    """How many bits of the estimator's codes differ from these, of how many."""
    rng = np.random.default_rng(0)
    A = np.array(chunks[0].features[:300])
    first = make(bits=bits, preset="paper", min_count=1, A=A)
    first.partial_fit(chunks[0].features, chunks[0].tags, word_vectors=vectors)
    W = rng.standard_normal((bits, len(first.vocabulary_.tags)))
    woh = make(bits=bits, preset="paper", min_count=1, A=A, W0=W)
    D = distances(chunks[0].features, A)
    width = D.mean()
    mean = np.exp(-D / (2 * width)).mean(0)
    past: dict[str, np.ndarray] = {}
    wrong = total = 0
    for chunk in chunks:
        B0 = rng.standard_normal((len(chunk), bits))
        woh.partial_fit(chunk.features, chunk.tags, word_vectors=vectors, B0=B0)
        Y, Z, rows = woh.vocabulary_.matrices(chunk.tags)
        phi = np.exp(-distances(chunk.features, A) / (2 * width)) - mean
        W = np.pad(W, ((0, 0), (0, Y.shape[1] - W.shape[1])))
        if past:
            past["D2"] = np.pad(past["D2"], ((0, 0), (0, Y.shape[1] - past["D2"].shape[1])))
        B, W, past = learn(phi[rows], Y.toarray()[rows], Z[rows], sign(B0[rows]), W, past)
        wrong += int((codes.unpack(woh.codes_[rows]) != B).sum())
        total += B.size
    return wrong, total
