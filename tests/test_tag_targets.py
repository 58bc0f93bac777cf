"""The tag side against its definition, written out with dense T and Python loops."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array

from woh_faiss.learner import tag_targets
from woh_faiss.learner.tag_targets import TagTargets, TagWeights, decoded, shares, unit_length


def marks(seed, n=30, c=7, share=0.35):
    rng = np.random.default_rng(seed)
    Y = (rng.random((n, c)) < share).astype(float)
    Y[np.arange(n), rng.integers(c, size=n)] = 1
    return Y, rng.normal(size=(n, 4))


def naive_y(Y, seen, df, n, neighbours):
    """tf-idf with smoothing: one tag, one item at a time."""
    C = seen.T @ seen
    c = len(C)
    R = np.zeros((c, c))
    for i in range(c):
        strength = {j: C[i, j] / np.sqrt(df[i] * df[j]) for j in range(c) if j != i and C[i, j]}
        for j in sorted(strength, key=lambda j: (-strength[j], j))[:neighbours]:
            R[i, j] = strength[j]
        R[i] /= max(R[i].sum(), 1)
    rows = (Y + Y @ R) * np.maximum(np.log((1 + n) / (1 + np.minimum(df, n))), 1e-3)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("neighbours", [1, 3, 20])
def test_tag_rows_are_smoothed_tf_idf_of_length_one(monkeypatch, neighbours):
    monkeypatch.setattr(tag_targets, "NEIGHBOURS", neighbours)
    (first, Z), (second, _) = marks(0), marks(1)
    df = first.sum(axis=0)
    side, _ = TagTargets.start(csr_array(first), Z, df, 30, 8)
    assert_allclose(side.y(csr_array(first), df, 30).toarray(), naive_y(first, first, df, 30, neighbours))
    both = np.vstack([first, second])
    side = side.seeing(csr_array(second))
    found = side.y(csr_array(second), both.sum(axis=0), 60).toarray()
    assert_allclose(found, naive_y(second, both, both.sum(axis=0), 60, neighbours))


def test_a_tag_that_everyone_carries_does_not_make_an_item_vanish():
    Y, Z = np.ones((5, 1)), np.zeros((5, 2))
    side, _ = TagTargets.start(csr_array(Y), Z, np.array([5.0]), 5, 8)
    assert_allclose(side.y(csr_array(Y), np.array([5.0]), 5).toarray(), 1)


def dense_T(side, y, z):
    return np.hstack([side.a * (y.toarray() - side.y_mean), side.q * z])


@pytest.mark.parametrize("kind", ["both", "no vectors", "one tag set"])
def test_products_with_T_are_those_of_the_dense_T(kind):
    Y, Z = marks(2)
    if kind == "no vectors":
        Z = np.zeros((30, 4))
    if kind == "one tag set":
        Y = np.ones((30, 7))
    df = Y.sum(axis=0)
    side, _ = TagTargets.start(csr_array(Y), Z, df, 30, 8)
    y, z = side.y(csr_array(Y), df, 30), side.z(Z)
    T, rng = dense_T(side, y, z), np.random.default_rng(0)
    M, F = rng.normal(size=(11, 8)), rng.normal(size=(30, 5))
    assert_allclose(side.times(y, z, M), T @ M, atol=1e-12)
    assert_allclose(side.transposed_times(y, z, F), T.T @ F, atol=1e-12)
    assert_allclose(side.gram(y, z), T.T @ T, atol=1e-12)
    for m in (2, 50):  # by T'F, and by TT'
        F = rng.normal(size=(30, m))
        assert_allclose(side.covariance(y, z, F), F.T @ T @ T.T @ F, atol=1e-10)
    operator = side.operator(y, z)
    assert_allclose(operator @ M, T @ M, atol=1e-12)
    assert_allclose(operator @ M[:, 0], T @ M[:, 0], atol=1e-12)
    assert_allclose(operator.T @ F, T.T @ F, atol=1e-12)
    assert np.square(T).sum() / 30 == pytest.approx(1)  # each part in units of its energy
    if kind == "both":
        assert np.square(T[:, :7]).sum() / 30 == pytest.approx(0.5)


def test_M_is_the_ridge_regression_of_all_codes_so_far():
    """A stationary point of the objective over both rounds, with tags that only came in the second."""
    (Y1, Z1), (Y2, Z2) = marks(3, c=5), marks(4, c=7)
    rng = np.random.default_rng(5)
    B1, B2 = (rng.choice([-1.0, 1.0], size=(30, 8)) for _ in range(2))
    df1 = Y1.sum(axis=0)
    side, _ = TagTargets.start(csr_array(Y1), Z1, df1, 30, 8)
    y1, z1 = side.y(csr_array(Y1), df1, 30), side.z(Z1)
    side = side.refitted(side.of_codes(y1, z1, B1))
    T1 = dense_T(side, y1, z1)
    df2 = np.pad(df1, (0, 2)) + Y2.sum(axis=0)
    side = side.widened(7).seeing(csr_array(Y2))
    y2, z2 = side.y(csr_array(Y2), df2, 60), side.z(Z2)
    side = side.refitted(side.of_codes(y2, z2, B2))
    T = np.vstack([np.insert(T1, [5, 5], 0.0, axis=1), dense_T(side, y2, z2)])
    ridge = tag_targets.RIDGE_M * np.trace(T.T @ T) / 11
    gradient = T.T @ (T @ side.M - np.vstack([B1, B2])) + ridge * side.M
    assert_allclose(gradient, 0, atol=1e-9)


def test_beyond_the_bound_nothing_of_its_square_is_kept(monkeypatch):
    monkeypatch.setattr(tag_targets, "MOST_COLUMNS", 10)
    Y, Z = marks(6, c=5)
    side, _ = TagTargets.start(csr_array(Y), Z, Y.sum(axis=0), 30, 8)
    assert side.TT.shape == (9, 9)
    wide = side.widened(7)
    assert wide.TT.size == 0
    y, z = wide.y(csr_array(np.pad(Y, ((0, 0), (0, 2)))), np.pad(Y.sum(axis=0), (0, 2)), 30), wide.z(Z)
    sums = wide.of_codes(y, z, np.ones((30, 8)))
    assert sums["TB"].shape == (11, 8)


def test_co_occurrences_are_bounded(monkeypatch):
    monkeypatch.setattr(tag_targets, "PARTNERS", 2)
    Y, Z = marks(7, share=0.9)
    side, _ = TagTargets.start(csr_array(Y), Z, Y.sum(axis=0), 30, 8)
    assert side.C.nnz <= 2 * 7


def test_decoded_minimises_its_objective():
    rng = np.random.default_rng(8)
    Y, Z = marks(9)
    V, W = rng.normal(size=(9, 4)), rng.normal(size=(9, 7))
    y = unit_length(csr_array(Y))
    h = decoded(y, Z, V, W)
    ridge = 0.1 * (np.square(V[:8]).sum() + np.square(W[:8]).sum()) / 8
    rest_z, rest_y = h @ V[:8] + V[8] - Z, h @ W[:8] + W[8] - y.toarray()
    assert_allclose(rest_z @ V[:8].T + rest_y @ W[:8].T + ridge * h, 0, atol=1e-9)


def test_state_round_trips():
    Y, Z = marks(10)
    side, _ = TagTargets.start(csr_array(Y), Z, Y.sum(axis=0), 30, 8)
    again = TagTargets.from_arrays(side.arrays())
    for name, value in side.arrays().items():
        assert_array_equal(again.arrays()[name], value, err_msg=name)


def test_smoothing_without_partners_changes_nothing():
    Y = csr_array(np.eye(3))
    assert_array_equal(
        TagWeights(shares(csr_array(np.eye(3)), np.ones(3)), np.ones(3)).rows(Y).toarray(), np.eye(3)
    )


def test_the_more_tags_an_item_has_the_fewer_add_their_neighbours():
    """Oracle: the sum over the tags that add, one by one."""
    rng = np.random.default_rng(0)
    c = 400
    R = csr_array(rng.random((c, c)) * (rng.random((c, c)) < 0.05))
    for n in (1, 63, 64, 65, 128, 399):
        Y = np.zeros((1, c))
        Y[0, np.sort(rng.choice(c, n, replace=False))] = 1
        tags = np.flatnonzero(Y[0])
        most = n if n <= 64 else 64 * 64 // n
        adding = tags[np.diff(np.arange(n + 1) * most // n) > 0]
        assert len(adding) == most
        row = Y[0] + R.toarray()[adding].sum(axis=0)
        found = TagWeights(R, np.ones(c)).rows(csr_array(Y)).toarray()[0]
        assert_allclose(found, row / np.linalg.norm(row), rtol=1e-12)
