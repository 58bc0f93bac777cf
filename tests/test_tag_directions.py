import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse.linalg import aslinearoperator

from woh_faiss.learner.solver import sign
from woh_faiss.learner.tag_directions import cosine, directions, rotation, unit


def problem(seed=0, n=60, m=9, p=12):
    rng = np.random.default_rng(seed)
    phi = rng.normal(size=(n, m))
    return phi, phi @ rng.normal(size=(m, p)) * 0.5 + rng.normal(size=(n, p))


def found(phi, T, rho, r):
    L, Q = np.linalg.eigh(phi.T @ phi)
    shared = Q.T @ phi.T @ T @ T.T @ phi @ Q
    return directions((L, Q), shared, phi, aslinearoperator(T), rho, r, np.random.default_rng(0))


@pytest.mark.parametrize("rho", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("r", [1, 4, 9])
def test_directions_are_the_main_ones_of_the_ridge_prediction(rho, r):
    """Oracle: the SVD of the tags as ridge regression on the features foretells them."""
    phi, T = problem()
    C3 = phi.T @ phi
    E, R = found(phi, T, rho, r)
    predicted = phi @ np.linalg.solve(C3 + rho * np.eye(9), phi.T @ T)
    expected = np.linalg.svd(predicted)[2][:r].T
    assert_allclose(np.abs(np.sum(E * expected, axis=0)), 1, atol=1e-9)
    assert_allclose(phi @ R, predicted @ E, atol=1e-9)
    assert (E[np.argmax(np.abs(E), axis=0), np.arange(r)] > 0).all()  # signs do not hang on LAPACK


def test_fewer_directions_than_bits_are_spread_over_all_bits():
    phi, T = problem(p=3)
    E, R = found(phi, T, 0.1, 8)
    assert E.shape == (3, 8)
    assert R.shape == (9, 8)
    assert (np.abs(E).sum(axis=0) > 0).all()


def test_tags_without_any_signal_give_finite_directions():
    phi, _ = problem()
    E, R = found(phi, np.zeros((60, 5)), 0.1, 8)
    assert np.isfinite(E).all()
    assert not (phi @ R).any()


@pytest.mark.parametrize("r", [2, 8])
def test_rotation_is_orthogonal_and_loses_less_than_none(r):
    H = np.random.default_rng(1).normal(size=(200, r)) * np.geomspace(5, 1, r)
    nothing = np.zeros((0, r))
    R = rotation(H, nothing, np.random.default_rng(2))
    assert_allclose(R @ R.T, np.eye(r), atol=1e-10)
    assert np.abs(H @ R).sum() > np.abs(H).sum()  # the trace that ITQ raises
    assert_array_equal(R, rotation(H, nothing, np.random.default_rng(2)))
    assert np.square(sign(H @ R) - H @ R).sum() < np.square(sign(H) - H).sum()


def test_rotation_keeps_to_codes_that_are_given():
    """Oracle: signs made with a known turn of a wider H are found again, on rows without given codes, too."""
    rng = np.random.default_rng(4)
    H = rng.normal(size=(400, 12))
    true = np.linalg.qr(rng.normal(size=(12, 5)))[0]
    R = rotation(H, sign(H[:100] @ true), rng)
    assert R.shape == (12, 5)
    assert_allclose(R.T @ R, np.eye(5), atol=1e-10)
    assert np.mean(sign(H @ R) == sign(H @ true)) > 0.8


def test_unit_and_cosine():
    H = np.random.default_rng(3).normal(size=(5, 4)) * 7
    assert np.square(unit(H)).mean() == pytest.approx(1)
    assert_array_equal(unit(np.zeros((2, 3))), np.zeros((2, 3)))
    assert unit(np.empty((0, 3))).shape == (0, 3)
    assert cosine(H, 3 * H) == pytest.approx(1)
    assert cosine(H, -H) == pytest.approx(-1)
    assert cosine(H, np.zeros_like(H)) == 0
