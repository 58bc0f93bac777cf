"""The kernel map against its formula, one pair at a time."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from woh_faiss.errors import InputError
from woh_faiss.learner import blocks
from woh_faiss.learner.kernel import Kernel, centroids, reference_map, squared_distances

#: Exponents may be off by that much: they are summed in float32.
SINGLE = 2e-5


def naive(X, A, width):
    return np.array([[np.exp(-np.sum((x - a) ** 2) / (2 * width)) for a in A] for x in X])


@pytest.fixture(params=[1, 3, 4096])
def small_blocks(request, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", request.param)


@pytest.mark.parametrize("dtype", ["f2", "f4", ">f8", "i2", "u1"])
@pytest.mark.parametrize("scale", [5, 40])
def test_map_is_the_formula_with_constants_of_the_first_chunk(small_blocks, dtype, scale):
    rng = np.random.default_rng(0)
    X = (rng.random((9, 6)) * scale).astype(dtype)
    X[0] = 0  # an item of zeros is an item
    queries = (rng.random((4, 6)) * scale).astype(dtype)
    A = X[[1, 4, 7]]
    fitted = Kernel.fit(X, A)
    wide, anchors = X.astype(float), A.astype(float)
    width = np.mean([np.sum((x - a) ** 2) for x in wide for a in anchors])
    assert fitted.width == pytest.approx(width)
    assert_allclose(fitted.mean, naive(wide, anchors, width).mean(axis=0), rtol=1e-5)
    assert_allclose(
        fitted.map(queries), naive(queries.astype(float), anchors, width) - fitted.mean, atol=SINGLE
    )
    assert_allclose(fitted.map(X).mean(axis=0), 0, atol=SINGLE)


def test_one_query_maps_as_in_a_batch():
    """The published code's kernel gives a single query all zeros, and so every bit 1."""
    X = np.random.default_rng(1).normal(size=(30, 4))
    fitted = Kernel.fit(X, X[:5])
    assert_allclose(np.vstack([fitted.map(x[None]) for x in X]), fitted.map(X), atol=SINGLE)
    assert_array_equal(reference_map(X[:1], X[:5]), np.zeros((1, 5)))


@pytest.mark.parametrize("energy", [False, True])
@pytest.mark.parametrize(("move", "size"), [(0, 1e-12), (0, 1e15), (30, 1), (1e5, 1), (1e6, 1e-3)])
def test_single_precision_is_enough_far_from_zero_and_at_any_size(move, size, energy):
    rng = np.random.default_rng(3)
    X = (rng.normal(size=(40, 20)) + move) * size
    ready = X / np.linalg.norm(X, axis=1, keepdims=True) if energy else X
    A = ready[:6]
    width = np.mean([np.sum((x - a) ** 2) for x in ready for a in A]) / (2 if energy else 1)
    K = naive(ready, A, width)
    scale = np.sqrt(np.square(K - K.mean(axis=0)).sum(axis=1).mean()) if energy else 1
    fitted = Kernel.fit(X, A, energy=energy)
    assert fitted.width == pytest.approx(width, rel=1e-6)
    assert fitted.scale == pytest.approx(scale, rel=1e-4)
    assert_allclose(fitted.map(X), (K - K.mean(axis=0)) / scale, atol=1e-4)


@pytest.mark.parametrize("size", [1e17, 1e30, 1e150])
def test_an_item_of_huge_numbers_is_like_nothing_or_scaled(size):
    X = np.random.default_rng(4).normal(size=(30, 5))
    bare, scaled = (
        Kernel.fit(X, X[:4]),
        Kernel.fit(X, X[:4] / np.linalg.norm(X[:4], axis=1)[:, None], energy=True),
    )
    queries = np.vstack([X[7], X[9] * size])
    assert_array_equal(bare.similarities(queries)[1], 0)
    assert_array_equal(bare.similarities(queries)[0], bare.similarities(X[[7, 7]])[0])
    assert_allclose(scaled.similarities(queries), scaled.similarities(X[[7, 9]]), atol=SINGLE)


def test_distances_are_never_negative():
    X = 1e6 + np.random.default_rng(2).normal(size=(50, 3)) * 1e-6
    D = squared_distances(X, X)
    assert D.min() >= 0


def test_items_that_are_all_alike_are_refused():
    with pytest.raises(InputError, match="the 7 items of the first chunk all have the same features"):
        Kernel.fit(np.ones((7, 3)), np.ones((2, 3)))


def test_centroids_are_means_of_their_rows():
    X = np.concatenate([np.zeros((5, 2)), np.ones((3, 2)), np.full((2, 2), 9.0)])
    assert_allclose(np.sort(centroids(X, X[[0, 5, 8]], 5)[:, 0]), [0, 1, 9])
    assert_allclose(centroids(X, X[[0, 0, 5]], 5)[:, 0].min(), 0)  # one of two equal ones stays without rows
