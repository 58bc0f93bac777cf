"""Bit order, padding and health of codes."""

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from woh_faiss import codes


def signs(n, r, seed):
    return np.random.default_rng(seed).choice([-1.0, 1.0], size=(n, r))


@given(st.integers(0, 40), st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_pack_and_pad_round_trip_and_keep_hamming_distances(n, n_bytes, seed):
    B = signs(n, 8 * n_bytes, seed)
    packed = codes.pack(B)
    stored = codes.pad(packed)
    assert packed.shape == (n, n_bytes)
    assert packed.dtype == stored.dtype == np.uint8
    assert_array_equal(codes.unpack(packed), B)
    assert_array_equal(codes.unpad(stored, 8 * n_bytes), packed)
    assert stored.shape[1] * 8 == codes.stored_bits(8 * n_bytes)
    if n:
        hamming = np.unpackbits(stored ^ stored[0], axis=1).sum(axis=1)
        assert_array_equal(hamming, (8 * n_bytes - B @ B[0]) / 2)


def test_pack_is_faiss_order():
    B = signs(5, 24, 0)
    expected = np.empty((5, 3), np.uint8)
    faiss.real_to_binary(B.size, faiss.swig_ptr(B.astype(np.float32)), faiss.swig_ptr(expected))
    assert_array_equal(codes.pack(B), expected)


def test_pack_golden_byte():
    """Pins the bit order on disk: a change here is a change of the store's format."""
    B = np.array([[1, -1, -1, -1, -1, -1, -1, -1, -1, 1, -1, -1, -1, -1, -1, -1.0]])
    assert_array_equal(codes.pack(B), [[0b1, 0b10]])


def test_zero_packs_as_plus_one():
    assert_array_equal(codes.pack(np.array([[0.0, -0.0, 1, -1, -1, -1, -1, -1]])), [[0b111]])


@pytest.mark.parametrize(
    ("bits", "stored"),
    [(8, 32), (24, 32), (32, 32), (40, 64), (64, 64), (72, 128), (96, 128), (128, 128), (136, 192)],
)
def test_stored_bits(bits, stored):
    assert codes.stored_bits(bits) == stored


def test_health_of_known_codes():
    B = np.ones((4, 8))
    B[:2, 0] = -1  # one balanced bit
    B[0, 1] = -1  # one with a quarter
    health = codes.health(codes.pack(B))
    quarter = -(0.25 * np.log2(0.25) + 0.75 * np.log2(0.75))
    assert health == {
        "balance": pytest.approx((0.5 + 0.25) / 8),
        "entropy": pytest.approx((1 + quarter) / 8),
        "distinct": 0.75,
        "constant": 6.0,
        "correlation": pytest.approx(np.corrcoef(B[:, 0], B[:, 1])[0, 1], abs=1e-6),
    }


@given(st.integers(0, 2**32 - 1), st.integers(2, 40))
@settings(max_examples=25, deadline=None)
def test_the_largest_correlation_of_two_bits(seed, n):
    rng = np.random.default_rng(seed)
    B = np.where(rng.random((n, 16)) < rng.random(16), 1, -1)
    B[:, 5] = -B[:, 2]
    moving = B[:, B.std(axis=0) > 0]
    expected = np.abs(np.corrcoef(moving.T) - np.eye(moving.shape[1])).max() if moving.shape[1] > 1 else 0.0
    assert codes.health(codes.pack(B))["correlation"] == pytest.approx(expected, abs=1e-5)
