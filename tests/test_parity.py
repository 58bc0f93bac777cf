"""Bit-for-bit agreement with what the authors' code gave on a stored fixture (tests/golden/README.md)."""

from functools import partial

import numpy as np
import pytest
from conftest import golden
from conftest import learned as learn_round
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array

from woh_faiss import codes
from woh_faiss.evaluation.metrics import hamming, mean_average_precision
from woh_faiss.learner.config import WOHConfig
from woh_faiss.learner.kernel import Kernel, reference_map
from woh_faiss.learner.statistics import Statistics

CHUNKS = [slice(500 * t, 500 * (t + 1)) for t in range(4)]


@pytest.fixture(scope="module")
def fixture(fixture):
    Y = fixture["YTrain"]
    return {**fixture, "ZTrain": (Y @ fixture["E"]) / Y.sum(axis=1, keepdims=True)}


@pytest.fixture(scope="module")
def published():
    return golden("woh")


def single_map(X, A):
    """As `reference_map`, by the map that is in use."""
    return Kernel.fit(X, A).map(X)


def rounds(fixture, bits, map_=reference_map):
    """The published protocol, kernel recomputed for every batch: what was learned, and the query codes."""
    X, Y, Z = fixture["XTrain"], fixture["YTrain"], fixture["ZTrain"]
    A = X[:500][fixture["anchor_idx"].astype(int) - 1]
    config = WOHConfig(bits=bits, preset="paper")
    past, W = Statistics.zero(r=bits, m=len(A), f=Z.shape[1], c=Y.shape[1]), fixture[f"W0_{bits}"]
    for rows in CHUNKS:
        phi, B0 = map_(X[rows], A), fixture[f"B0_{bits}"][rows]
        learned = learn_round(phi, csr_array(Y[rows]), Z[rows], B0, W, past, config)
        past, W = learned.stats, learned.W
        yield learned, codes.pack(map_(fixture["XTest"], A) @ learned.P)


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_codes_equal_the_published_ones_bit_for_bit(fixture, published, bits):
    for t, (learned, queries) in enumerate(rounds(fixture, bits), start=1):
        assert_array_equal(codes.pack(learned.B), published[f"r{bits}_B_{t}"])
        assert_array_equal(queries, published[f"r{bits}_Q_{t}"])
        assert_allclose(learned.P, published[f"r{bits}_P_{t}"], rtol=0, atol=1e-12)
        assert_allclose(learned.W, published[f"r{bits}_W_{t}"], rtol=0, atol=1e-12)
        assert_allclose(learned.stats.D2, published[f"r{bits}_D2_{t}"], rtol=0, atol=1e-10)


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_a_map_in_single_precision_gives_the_same_codes(fixture, published, bits):
    for t, (learned, queries) in enumerate(rounds(fixture, bits, single_map), start=1):
        assert_array_equal(codes.pack(learned.B), published[f"r{bits}_B_{t}"])
        assert_array_equal(queries, published[f"r{bits}_Q_{t}"])


def test_statistics_equal_the_published_ones(fixture, published):
    for t, (learned, _) in enumerate(rounds(fixture, 8), start=1):
        assert_array_equal(learned.stats.C1, published[f"r8_C1_{t}"])
        assert_allclose(learned.stats.D1, published[f"r8_D1_{t}"], rtol=0, atol=1e-10)


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_map_equals_the_published_one_under_the_saturated_byte(fixture, published, bits):
    wrong_distance = partial(hamming, saturated_bytes=True)
    learned_so_far = []
    for t, (learned, queries) in enumerate(rounds(fixture, bits)):
        learned_so_far.append(codes.pack(learned.B))
        database = np.concatenate(learned_so_far)
        labels = fixture["LTest"] > 0, fixture["LTrain"][: len(database)] > 0
        found = mean_average_precision(queries, database, *labels, distance=wrong_distance)
        assert found == pytest.approx(published[f"MAP_r{bits}"].ravel()[t], abs=1e-12)
