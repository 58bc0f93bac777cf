"""The WDH-style reconstruction has no published values: its steps against their definitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array

from woh_faiss.evaluation.baselines import wdh


@given(st.integers(1, 5), st.floats(0.01, 3), st.integers(0, 2**32 - 1))
def test_shortened_minimises_the_norm_and_the_distance(r, by, seed):
    """Oracle: nothing near it does better at by Σ‖a_i‖ + ½‖A − H‖²."""
    rng = np.random.default_rng(seed)
    H = rng.normal(size=(4, r))

    def cost(A):
        return by * np.linalg.norm(A, axis=1).sum() + np.square(A - H).sum() / 2

    A = wdh.shortened(H, by)
    for size in (1e-3, 1e-1, 1):
        for _ in range(5):
            assert cost(A) <= cost(A + size * rng.normal(size=H.shape)) + 1e-12
    assert_array_equal(wdh.shortened(np.zeros((2, r)), by), 0)


def test_anchor_graph_is_its_definition():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 4))
    A = X[:6]  # so that each has an item
    D = np.linalg.norm(X[:, None] - A[None], axis=2)
    sigma = np.sort(D, axis=1)[:, 1].mean()
    Z = np.where(np.sort(D, axis=1)[:, 1:2] >= D, np.exp(-(D**2) / sigma**2), 0)
    Z /= Z.sum(axis=1, keepdims=True)
    V = wdh.anchor_graph(X, A)
    assert_allclose((V @ V.T).toarray(), Z @ np.diag(1 / Z.sum(axis=0)) @ Z.T, atol=1e-12)
    assert_allclose((V @ V.T).sum(axis=1), 1, atol=1e-12)  # so that tr(BᵀB) − tr(BᵀVVᵀB) is a Laplacian's


@pytest.mark.parametrize(("n", "m"), [(1, 1), (5, 1), (5, 5)])
def test_few_or_equal_anchors(n, m):
    X = np.ones((n, 3))
    V = wdh.anchor_graph(X, X[:m])
    assert_allclose((V @ V.T).sum(axis=1), 1)


def test_far_items_do_not_underflow():
    V = wdh.anchor_graph(np.array([[1e4], [0.0], [1.0]]), np.array([[0.0], [1.0]]))
    assert np.isfinite(V.data).all()


def test_an_iteration_is_the_steps_of_the_page(monkeypatch):
    """Oracle: the docstring's formulas, dense and by inverses, twice."""
    monkeypatch.setattr(wdh, "ITERATIONS", 2)
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(40, 5)), (rng.random((40, 6)) < 0.3).astype(float)
    Y[:, 5] = Y[:, 4]  # a singular YᵀY
    V = wdh.anchor_graph(X, X[:7])
    B0 = rng.choice([-1.0, 1.0], (40, 8))
    B, W = wdh.fit(X, csr_array(Y), V, B0)

    expected, A, E, F, mu, G = B0, 0 * B0, 0 * B0, 0 * B0, 0.01, (V @ V.T).toarray()

    def ridge(B):
        return np.linalg.inv(X.T @ X + 0.01 * 40 / 5 * np.eye(5)) @ X.T @ B

    for _ in range(2):
        YP = Y @ np.linalg.pinv(Y) @ (expected - A + E / mu)
        H = expected - YP + E / mu
        A = np.array([h * max(1 - 1 / mu / np.linalg.norm(h), 0) for h in H])
        C = expected + (0.01 * G @ expected + F) / mu
        Q = mu * (YP + A + C) + 0.01 * G @ C - E - F + 2 * 0.01 * X @ ridge(expected)
        expected = np.where(Q >= 0, 1.0, -1.0)
        E, F, mu = E + mu * (expected - YP - A), F + mu * (expected - C), mu * 1.1
    assert_array_equal(B, expected)
    assert_allclose(W, ridge(expected), atol=1e-12)
    assert np.any(B != B0)
