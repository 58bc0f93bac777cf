"""Each closed form against the objective it minimises, written out naively; never only at the defaults."""

import numpy as np
import pytest
from conftest import learned as learned_round
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.linalg import LinAlgError, cho_solve
from scipy.sparse import csr_array

from woh_faiss.learner import solver
from woh_faiss.learner.config import WOHConfig
from woh_faiss.learner.statistics import Statistics, of_codes, of_features, of_words, widen

SHAPES = {"n": 23, "m": 6, "f": 5, "c": 7, "r": 8}


def chunk(seed, n=SHAPES["n"], c=SHAPES["c"]):
    rng = np.random.default_rng(seed)
    phi = rng.normal(size=(n, SHAPES["m"]))
    Y = (rng.random((n, c)) < 0.3).astype(float)
    Y[np.arange(n), rng.integers(c, size=n)] = 1  # nobody without a tag
    Z = rng.normal(size=(n, SHAPES["f"]))
    B = rng.choice([-1.0, 1.0], size=(n, SHAPES["r"]))
    return phi, Y, Z, B


def zero(c=SHAPES["c"]):
    return Statistics.zero(r=SHAPES["r"], m=SHAPES["m"], f=SHAPES["f"], c=c)


def codes_objective(B, phi, Y, Z, U, V, W, P, k, config):
    """Eq. 4 as a function of the codes, with the l2,1 norm as the weighted squares that descend() sees."""
    return (
        np.sum(k[:, None] * (Y - B @ W) ** 2)
        + config.beta * np.sum((phi - B @ U) ** 2)
        + config.theta * np.sum((Z - B @ V) ** 2)
        + config.mu * np.sum((B - phi @ P) ** 2)
    )


@pytest.mark.parametrize("ridge", [1e-3, 1.0, 4.0, 300.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_regression_is_a_stationary_point(ridge, weighted):
    """U, V (k = 1) and W: the gradient of sum k |t - bM|^2 + ridge |M|^2 vanishes."""
    _, _, T, B = chunk(1)
    k = np.random.default_rng(2).uniform(0.1, 9, len(B)) if weighted else np.ones(len(B))
    M = solver.regression(B.T @ (k[:, None] * B), B.T @ (k[:, None] * T), ridge)
    gradient = -2 * B.T @ (k[:, None] * (T - B @ M)) + 2 * ridge * M
    assert_allclose(gradient, 0, atol=1e-9)


@pytest.mark.parametrize("ridge", [1e-3, 1.0, 30.0])
def test_P_is_the_batch_least_squares_of_the_whole_stream(ridge):
    """Oracle: statistics of three rounds give the P of one lstsq on all of the data."""
    stats, seen = zero(), []
    for seed, n in enumerate((7, 1, 40)):
        phi, _, Z, B = chunk(seed, n)
        stats = stats.plus(of_features(phi), of_codes(B, phi), of_words(B, Z))
        seen.append((phi, B))
    phi, B = (np.vstack(parts) for parts in zip(*seen, strict=True))
    P = cho_solve(solver.factor(stats.C3, ridge), stats.C4)
    m = SHAPES["m"]
    stacked = np.vstack([phi, np.sqrt(ridge) * np.eye(m)])
    expected, *_ = np.linalg.lstsq(stacked, np.vstack([B, np.zeros((m, SHAPES["r"]))]), rcond=None)
    assert_allclose(P, expected, rtol=1e-8, atol=1e-12)


def test_weights_are_the_inverse_residual_norms():
    _, Y, _, B = chunk(3)
    W = np.random.default_rng(4).normal(size=(SHAPES["r"], SHAPES["c"]))
    k = solver.weights(B, W, Y @ W.T, (Y**2).sum(axis=1))
    assert_allclose(k, 1 / np.linalg.norm(Y - B @ W, axis=1), rtol=1e-10)


def test_a_row_that_is_explained_exactly_gets_a_finite_weight():
    """1/0 here used to put NaN into W, and chance-level codes into every later round."""
    _, _, _, B = chunk(5)
    W = np.random.default_rng(6).normal(size=(SHAPES["r"], SHAPES["c"]))
    Y = B @ W
    k = solver.weights(B, W, Y @ W.T, (Y**2).sum(axis=1))
    assert np.isfinite(k).all()
    assert (k <= 1 / solver.FLOOR).all()


def naive_sweep(B, Q, k, W, G):
    """Eq. 16 row by row and bit by bit, with the other bits written out."""
    B = B.copy()
    for l in range(B.shape[1]):
        rest = [j for j in range(B.shape[1]) if j != l]
        for i in range(len(B)):
            h = Q[i, l] - k[i] * (B[i, rest] @ W[rest] @ W[l]) - B[i, rest] @ G[rest, l]
            B[i, l] = 1.0 if h >= 0 else -1.0
    return B


@given(st.integers(0, 2**32 - 1), st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_descend_equals_the_naive_sweeps(seed, sweeps):
    rng = np.random.default_rng(seed)
    n, r, c, f = 5, 8, 4, 3
    B, Q, k = rng.choice([-1.0, 1.0], size=(n, r)), rng.normal(size=(n, r)), rng.uniform(0, 2, n)
    W, V = rng.normal(size=(r, c)), rng.normal(size=(r, f))
    off = solver.without_diagonal
    expected = B
    for _ in range(sweeps):
        expected = naive_sweep(expected, Q, k, W, V @ V.T)
    assert_array_equal(solver.descend(B, Q, k, off(W @ W.T), off(V @ V.T), sweeps), expected)


def test_descend_leaves_its_input_alone_and_takes_sign_of_zero_as_plus():
    B = -np.ones((3, 8))
    found = solver.descend(B, np.zeros((3, 8)), np.zeros(3), np.zeros((8, 8)), np.zeros((8, 8)), 1)
    assert_array_equal(B, -1)
    assert_array_equal(found, 1)


@pytest.mark.parametrize(("beta", "theta", "mu"), [(0.1, 0.1, 10.0), (2.0, 0.7, 0.3), (0.0, 5.0, 1.0)])
@pytest.mark.parametrize("seed", range(5))
def test_a_sweep_never_raises_the_objective(beta, theta, mu, seed):
    config = WOHConfig(preset="paper", beta=beta, theta=theta, mu=mu, alpha=3.0)
    phi, Y, Z, B = chunk(seed)
    rng = np.random.default_rng(seed + 100)
    U, V, W = (rng.normal(size=(SHAPES["r"], SHAPES[s])) for s in ("m", "f", "c"))
    P, k = rng.normal(size=(SHAPES["m"], SHAPES["r"])), rng.uniform(0.2, 3, len(B))
    Q = k[:, None] * (Y @ W.T) + config.beta * phi @ U.T + config.theta * Z @ V.T + config.mu * phi @ P
    H = config.beta * U @ U.T + config.theta * V @ V.T
    off = solver.without_diagonal
    values = [codes_objective(B, phi, Y, Z, U, V, W, P, k, config)]
    for _ in range(4):
        B = solver.descend(B, Q, k, off(W @ W.T), off(H), 1)
        values.append(codes_objective(B, phi, Y, Z, U, V, W, P, k, config))
    assert np.diff(values).max() <= 1e-9
    assert values[-1] < values[0]


def naive_round(phi, Y, Z, B, W, past, config):
    """The steps in their slow form: dense residuals and diagonals, inverses, one bit at a time."""
    I = np.eye
    for _ in range(config.iterations):
        C1, C2, C3, C5 = past.C1 + B.T @ B, past.C2 + B.T @ phi, past.C3 + phi.T @ phi, past.C5 + B.T @ Z
        inv, a, r = np.linalg.inv, config.alpha, len(C1)
        U = inv(C1 + a / config.beta * I(r)) @ C2 if config.beta else np.zeros_like(C2)
        V = inv(C1 + a / config.theta * I(r)) @ C5 if config.theta else np.zeros_like(C5)
        P = inv(C3 + (a / config.mu if config.mu else a) * I(len(C3))) @ C2.T
        K = np.diag(1 / np.maximum(np.linalg.norm(Y - B @ W, axis=1), 1e-8))
        D1, D2 = past.D1 + B.T @ K @ B, past.D2 + B.T @ K @ Y
        W = inv(D1 + a * I(r)) @ D2
        Q = K @ Y @ W.T + config.beta * phi @ U.T + config.theta * Z @ V.T + config.mu * phi @ P
        for _ in range(config.sweeps):
            B = naive_sweep(B, Q, np.diag(K), W, config.beta * U @ U.T + config.theta * V @ V.T)
    return B, P, W, Statistics(C1=C1, C2=C2, C3=C3, C5=C5, D1=D1, D2=D2, n=past.n + len(B))


@pytest.mark.parametrize(
    "hyper",
    [{}, {"alpha": 2.0, "beta": 1.0, "theta": 3.0, "mu": 0.5, "iterations": 2, "sweeps": 1},
     {"beta": 0.0}, {"theta": 0.0}, {"mu": 0.0, "alpha": 5.0}, {"beta": 0.0, "theta": 0.0, "iterations": 1}],
)  # fmt: skip
def test_two_rounds_equal_the_naive_ones(any_blocks, hyper):
    """Also with a block left out, and with tags that only appear in round 2."""
    config = WOHConfig(bits=8, preset="paper", **hyper)
    past, W = zero(), np.random.default_rng(7).normal(size=(SHAPES["r"], SHAPES["c"]))
    for seed, c in ((0, SHAPES["c"]), (1, SHAPES["c"] + 3)):
        phi, Y, Z, B0 = chunk(seed, c=c)
        past, W = past.widened(c), widen(W, c)
        learned = learned_round(phi, csr_array(Y), Z, B0, W, past, config)
        B, P, W, past = naive_round(phi, Y, Z, B0, W, past, config)
        assert_array_equal(learned.B, B)
        assert_allclose(learned.P, P, atol=1e-10)
        assert_allclose(learned.W, W, atol=1e-10)
        for name, value in past.arrays().items():
            assert_allclose(learned.stats.arrays()[name], value, atol=1e-8, err_msg=name)


@pytest.mark.parametrize("alpha", [0.5, 300.0])
def test_refreshed_statistics_are_those_of_the_final_codes(alpha):
    phi, Y, Z, B0 = chunk(0)
    config = WOHConfig(bits=8, preset="paper", alpha=alpha, refresh_statistics=True)
    W0 = np.random.default_rng(1).normal(size=(SHAPES["r"], SHAPES["c"]))
    learned = learned_round(phi, csr_array(Y), Z, B0, W0, zero(), config)
    B, k = learned.B, 1 / np.linalg.norm(Y - learned.B @ learned.W, axis=1)
    assert_allclose(learned.stats.C1, B.T @ B)
    assert_allclose(learned.stats.C5, B.T @ Z)
    assert_allclose(learned.stats.D2, B.T @ (k[:, None] * Y), rtol=1e-8, atol=1e-12)
    gradient = 2 * phi.T @ (phi @ learned.P - B) + 2 * alpha / config.mu * learned.P
    assert_allclose(gradient, 0, atol=1e-9)
    parity = learned_round(
        phi, csr_array(Y), Z, B0, W0, zero(), WOHConfig(bits=8, preset="paper", alpha=alpha)
    )
    assert_array_equal(parity.B, B)  # only what is remembered differs


def test_an_indefinite_system_names_the_ridge():
    with pytest.raises(LinAlgError) as caught:
        solver.factor(-np.eye(2), 0.5)
    assert "plus 0.5 I is not positive definite; raise alpha" in caught.value.__notes__[0]
