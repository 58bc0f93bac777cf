"""Agreement of COSDISH with a public copy of its code on a stored fixture (tests/golden/README.md).

Exact for tags at 8 bits. Elsewhere its solver meets ties, which rounding decides: there objective and MAP are
compared.
"""

from itertools import combinations

import numpy as np
import pytest
from conftest import golden
from hypothesis import given as examples
from hypothesis import settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.linalg import cholesky
from scipy.sparse import csr_array

from woh_faiss.codes import pack, unpack
from woh_faiss.evaluation.baselines import cosdish
from woh_faiss.evaluation.metrics import mean_average_precision


@pytest.fixture(scope="module")
def published():
    return golden("cosdish")


@pytest.fixture(scope="module")
def fixture(published):
    stored = golden("fixture")
    X = np.vstack([stored["XTrain"], stored["XTest"]])  # the published demo standardises both together
    return {
        "X": (X - X.mean(axis=0)) / X.std(axis=0, ddof=1),
        "tags": csr_array(stored["YTrain"].astype(np.float64)),
        "single": csr_array(np.eye(16)[published["y1"] - 1]),
        "labels": (stored["LTest"] > 0, stored["LTrain"] > 0),
    }


def learned(fixture, published, bits, kind):
    start = unpack(published[f"r{bits}_start"]).astype(np.float64)
    draws = published[f"r{bits}_omega"].astype(int) - 1
    return cosdish.learn(fixture[kind], start, draws)


def test_codes_equal_the_published_ones_bit_for_bit(fixture, published):
    B = learned(fixture, published, 8, "tags")
    assert_array_equal(pack(B), published["r8_tags_B"])
    W = cosdish.ridge(fixture["X"][:2000], B)
    assert_allclose(W, published["r8_tags_W"], atol=1e-12)
    assert_array_equal(pack(fixture["X"][2000:] @ W), published["r8_tags_test"])


@pytest.mark.parametrize("bits", [16, 32])
def test_the_objective_is_the_published_one_s(fixture, published, bits):
    S = cosdish.similarities(fixture["tags"], np.arange(2000))

    def tag_outlier(B):
        return np.square(bits * S - B @ B.T).mean()

    expected = tag_outlier(unpack(published[f"r{bits}_tags_B"]).astype(np.float64))
    assert tag_outlier(learned(fixture, published, bits, "tags")) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("kind", ["tags", "single"])
@pytest.mark.parametrize("bits", [8, 16, 32])
def test_map_is_the_published_one(fixture, published, bits, kind):
    B = learned(fixture, published, bits, kind)
    queries = pack(fixture["X"][2000:] @ cosdish.ridge(fixture["X"][:2000], B))
    expected = mean_average_precision(
        published[f"r{bits}_{kind}_test"], published[f"r{bits}_{kind}_B"], *fixture["labels"]
    )
    assert mean_average_precision(queries, pack(B), *fixture["labels"]) == pytest.approx(expected, abs=0.02)


@settings(max_examples=50)
@examples(st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_solve_is_the_cheapest_group_around_a_column(q, seed):
    """Oracle: the definition, column by column; random reals have no ties."""
    rng = np.random.default_rng(seed)
    Q, p = rng.normal(size=(q, q)), rng.normal(size=q)
    Q = Q + Q.T
    np.fill_diagonal(Q, 0)
    x = cosdish.solve(Q, p)
    size = (q + 2) // 2 - 1
    assert np.count_nonzero(x > 0) == size
    M = np.zeros((q + 1, q + 1))
    M[:q, :q], M[:q, q] = 4 * Q, p - 2 * Q.sum(axis=1)
    M[q] = M[:, q]
    R = cholesky(10_000 * np.eye(q + 1) - M / np.abs(M).max())

    def cost(chosen):
        group = R[:, [*chosen, q]]
        return np.square(group - group.mean(axis=1, keepdims=True)).sum()

    groups = []
    for i in range(q + 1):
        distance = [np.square(R[:, j] - R[:, i]).sum() for j in range(q)]
        groups.append(sorted(range(q), key=distance.__getitem__)[:size])
    assert cost(np.flatnonzero(x > 0)) == pytest.approx(min(map(cost, groups)), rel=1e-9)
    assert cost(np.flatnonzero(x > 0)) >= min(map(cost, combinations(range(q), size))) - 1e-6


@pytest.mark.parametrize("negative", [False, True])
def test_similarities_of_tags(negative):
    Y = csr_array(np.array([[1.0, 0], [1, 1], [0, 1], [0, 0]]))
    rho = -5 / 3 if negative else 5 / 3
    expected = [[1, 1], [1, 1], [rho, 1], [rho, rho]]
    assert_allclose(cosdish.similarities(Y, np.array([0, 1]), negative_rho=negative), expected)
