"""Statistics against sums over the whole stream."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array

from woh_faiss.learner.statistics import Statistics, of_codes, of_features, of_weights, of_words, widen


def stream(seed, sizes, m=5, f=3, c=4, r=8):
    rng = np.random.default_rng(seed)
    for n in sizes:
        Y = (rng.random((n, c)) < 0.4).astype(float)
        yield (
            rng.normal(size=(n, m)),
            Y,
            rng.normal(size=(n, f)),
            rng.choice([-1.0, 1.0], (n, r)),
            rng.random(n),
        )


def everything(phi, Y, Z, B, k):
    return of_features(phi), of_codes(B, phi), of_words(B, Z), of_weights(B, k, csr_array(Y))


def accumulated(chunks):
    stats = Statistics.zero(r=8, m=5, f=3, c=4)
    for phi, Y, Z, B, k in chunks:
        stats = stats.plus(*everything(phi, Y, Z, B, k))
    return stats


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(1, 9), min_size=1, max_size=5))
@settings(max_examples=25, deadline=None)
def test_the_stream_equals_the_batch_in_any_order(seed, sizes):
    chunks = list(stream(seed, sizes))
    phi, Y, Z, B, k = (np.concatenate(parts) for parts in zip(*chunks, strict=True))
    K = np.diag(k)
    batch = {
        "C1": B.T @ B,
        "C2": B.T @ phi,
        "C3": phi.T @ phi,
        "C5": B.T @ Z,
        "D1": B.T @ K @ B,
        "D2": B.T @ K @ Y,
    }
    for found in (accumulated(chunks), accumulated(chunks[::-1])):
        for name, expected in batch.items():
            assert_allclose(getattr(found, name), expected, atol=1e-9, err_msg=name)
        assert_array_equal(found.C4, found.C2.T)
        assert found.n == sum(sizes)


def test_a_round_does_not_change_the_past():
    past = Statistics.zero(r=8, m=5, f=3, c=4)
    for phi, Y, Z, B, k in stream(0, [6]):
        past.plus(*everything(phi, Y, Z, B, k))
    assert all(not value.any() for value in past.arrays().values())


def test_arrays_round_trip():
    stats = accumulated(stream(1, [4, 5]))
    again = Statistics.from_arrays(stats.arrays())
    assert again.n == 9
    for name, value in stats.arrays().items():
        assert_array_equal(again.arrays()[name], value)


@pytest.mark.parametrize("more", [0, 1, 7])
def test_widening_appends_zero_columns(more):
    stats = accumulated(stream(2, [6]))
    wide = stats.widened(4 + more)
    assert_array_equal(wide.D2, np.hstack([stats.D2, np.zeros((8, more))]))
    assert_array_equal(widen(stats.D2, 4 + more), wide.D2)
