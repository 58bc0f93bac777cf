"""RPT-WOH against what the authors' code gave on WOH's fixture, to the bit (tests/golden/README.md)."""

from functools import partial

import numpy as np
import pytest
from conftest import golden
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array

from woh_faiss import codes
from woh_faiss.evaluation.baselines import rptwoh
from woh_faiss.evaluation.metrics import hamming, mean_average_precision
from woh_faiss.learner.kernel import reference_map

WEIGHTS = rptwoh.Weights()


@pytest.fixture(scope="module")
def published():
    return golden("rptwoh")


def rounds(fixture, bits):
    """Pseudo tags, codes, P, and query codes; the first 80 rows of the memory stay."""
    A0 = fixture["XTrain"][:500][fixture["anchor_idx"].astype(int) - 1]
    C3, C4, R, memory = np.zeros((100, 100)), np.zeros((100, bits)), np.zeros((24, 24)), None
    queries = reference_map(fixture["XTest"], A0)
    for start in range(0, 2000, 500):
        rows = slice(start, start + 500)
        Y, phi = csr_array(fixture["YTrain"][rows]), reference_map(fixture["XTrain"][rows], A0)
        R, C3 = R + (Y.T @ Y).toarray(), C3 + phi.T @ phi
        A = rptwoh.pseudo_tags(Y, R, WEIGHTS.lam)
        rng = np.random.default_rng(0)  # has nothing to draw: C lacks no direction
        B, P, C4 = rptwoh.codes_of(phi, A, fixture[f"B0_{bits}"][rows], C3, C4, memory, WEIGHTS, rng)
        memory = rptwoh.remembered(memory, A, Y, B, (np.arange(80),) * 2, 200)
        yield A, codes.pack(B), P, codes.pack(queries @ P)


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_codes_equal_the_published_ones_bit_for_bit(fixture, published, bits):
    wrong_distance, database = partial(hamming, saturated_bytes=True), np.empty((0, bits // 8), np.uint8)
    for t, (A, B, P, queries) in enumerate(rounds(fixture, bits), start=1):
        assert_array_equal(B, published[f"r{bits}_B_{t}"])
        assert_array_equal(queries, published[f"r{bits}_Q_{t}"])
        database = np.vstack([database, B])
        labels = fixture["LTest"] > 0, fixture["LTrain"][: len(database)] > 0
        found = mean_average_precision(queries, database, *labels, distance=wrong_distance)
        assert found == pytest.approx(published[f"MAP_r{bits}"][t - 1], abs=1e-12)
        if t in (1, 4):
            assert_allclose(A, published[f"A_{t}"], rtol=1e-6)  # stored in float32
        if t == 4:
            assert_allclose(P, published[f"r{bits}_P_4"], rtol=0, atol=1e-11)
