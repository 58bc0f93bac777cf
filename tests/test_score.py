"""The score against its definition, number by number."""

import numpy as np
from conftest import length
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from woh_faiss import codes, score

SEED, WIDTH = st.integers(0, 2**32 - 1), st.sampled_from([8, 16, 64, 96])


@settings(deadline=None, max_examples=length(80))
@given(SEED, st.integers(0, 4), st.integers(0, 9), WIDTH)
def test_sums_are_inner_products_with_the_signs(seed, n, K, bits):
    rng = np.random.default_rng(seed)
    H = rng.normal(size=(n, bits)).astype(np.float32)
    packed = rng.integers(0, 256, size=(n, K, bits // 8), dtype=np.uint8)
    signs = codes.unpack(packed.reshape(-1, bits // 8)).reshape(n, K, bits)
    got = score.sums(score.tables(H), packed)
    assert_allclose(got, np.einsum("qr,qkr->qk", H, signs), rtol=1e-4, atol=1e-4)
    for i in range(n):  # to the bit
        assert_array_equal(score.sums(score.tables(H[i : i + 1]), packed[i : i + 1])[0], got[i])


@settings(deadline=None, max_examples=length(80))
@given(SEED, st.integers(1, 5), WIDTH)
def test_normalised_rows_add_up_to_one_and_do_not_depend_on_others(seed, n, bits):
    rng = np.random.default_rng(seed)
    H = rng.normal(size=(n, bits)) * 10.0 ** rng.integers(-6, 7, (n, 1))
    H[0] = 0
    got = score.normalised(H)
    assert got.dtype == np.float32
    assert_array_equal(got[0], 0)
    assert_allclose(np.abs(got[1:]).sum(axis=1), 1, rtol=1e-5)
    for i in range(n):
        assert_array_equal(score.normalised(H[i : i + 1])[0], got[i])


@settings(deadline=None, max_examples=length(80))
@given(SEED, st.integers(1, 4), st.integers(1, 5), WIDTH)
def test_an_expanded_query_is_its_definition(seed, n, hits, bits):
    rng = np.random.default_rng(seed)
    H = rng.normal(size=(n, bits)) + 0.1
    learned = rng.integers(0, 256, (n, hits, bits // 8), dtype=np.uint8)
    got = score.expanded(H, learned)
    for i in range(n):
        more = H[i] / np.abs(H[i]).mean() + 2 * codes.unpack(learned[i]).mean(axis=0)
        assert_allclose(got[i], more / np.abs(more).sum(), rtol=1e-4, atol=1e-7)
        assert_array_equal(score.expanded(H[i : i + 1], learned[i : i + 1])[0], got[i])


def test_the_two_terms():
    kind, same = np.float32([[0.5, -0.25, 1]]), np.float32([[1, -0.9, 0.7]])
    assert_allclose(score.combined(kind, same), [[1.5, -0.25, 1 + 0.7**8]], rtol=1e-6)
    assert_array_equal(score.combined(kind, None), kind)
    assert_array_equal(score.combined(None, same), same)
    assert_array_equal(same, np.float32([[1, -0.9, 0.7]]))  # nothing is changed that was given
