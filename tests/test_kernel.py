"""The kernel map against its formula, one pair at a time."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from woh_faiss import rows
from woh_faiss.errors import InputError
from woh_faiss.kernel import Kernel, reference_map, squared_distances


def naive(X, A, width):
    return np.array([[np.exp(-np.sum((x - a) ** 2) / (2 * width)) for a in A] for x in X])


@pytest.fixture(params=[1, 3, 4096])
def small_blocks(request, monkeypatch):
    monkeypatch.setattr(rows, "BLOCK", request.param)


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
    assert_allclose(fitted.mean, naive(wide, anchors, width).mean(axis=0))
    assert_allclose(
        fitted.map(queries), naive(queries.astype(float), anchors, width) - fitted.mean, atol=1e-12
    )
    assert_allclose(fitted.map(X).mean(axis=0), 0, atol=1e-12)


def test_one_query_maps_as_in_a_batch():
    """The published code's kernel gives a single query all zeros, and so every bit 1."""
    X = np.random.default_rng(1).normal(size=(30, 4))
    fitted = Kernel.fit(X, X[:5])
    assert_allclose(np.vstack([fitted.map(x[None]) for x in X]), fitted.map(X), atol=1e-12)
    assert_array_equal(reference_map(X[:1], X[:5]), np.zeros((1, 5)))


def test_distances_are_never_negative():
    X = 1e6 + np.random.default_rng(2).normal(size=(50, 3)) * 1e-6
    D = squared_distances(X, X)
    assert D.min() >= 0


def test_items_that_are_all_alike_are_refused():
    with pytest.raises(InputError, match="the 7 items of the first chunk all have the same features"):
        Kernel.fit(np.ones((7, 3)), np.ones((2, 3)))
