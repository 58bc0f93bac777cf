"""OSH against what the authors' code gave, up to the signs of singular vectors (tests/golden/README.md)."""

import numpy as np
import pytest
from conftest import golden
from numpy.testing import assert_allclose, assert_array_equal

from woh_faiss import codes
from woh_faiss.evaluation.baselines import osh


@pytest.fixture(scope="module")
def fixture(fixture):
    return fixture["XTrain"], fixture["XTest"]


@pytest.fixture(scope="module")
def published():
    return golden("osh")


def rounds(X):
    """Sketch and mean after each chunk of 500."""
    sketch, mean = np.zeros((0, X.shape[1])), np.zeros(X.shape[1])
    for start in range(0, len(X), 500):
        A, mean = osh.centred(X[start : start + 500], mean, start)
        sketch = osh.sketched(sketch, A, 100)
        yield sketch, mean


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_codes_equal_the_published_ones(fixture, published, bits):
    X, queries = fixture
    for t, (sketch, mean) in enumerate(rounds(X), start=1):
        V, theirs = osh.directions(sketch, bits), published[f"V_{t}"][:, :bits]
        V = V * np.sign((V * theirs).sum(axis=0))
        assert_allclose(V, theirs, rtol=0, atol=1e-7)  # stored in float32
        assert_allclose(mean, published[f"mean_{t}"], rtol=0, atol=1e-13)
        W = V @ published[f"R_{bits}"][t - 1]
        assert_array_equal(codes.pack((queries - mean) @ W), published[f"r{bits}_Q_{t}"])
    assert_array_equal(codes.pack((X - mean) @ W), published[f"r{bits}_B_4"])


def test_the_last_sketch_holds_the_published_second_moments(fixture, published):
    *_, (sketch, _) = rounds(fixture[0])
    assert_allclose((sketch.T @ sketch)[np.triu_indices(128)], published["StS_4"], rtol=1e-6, atol=1e-4)
