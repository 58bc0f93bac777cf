"""WOH-1 to WOH-4: their parts, against WOH itself where it has them and against each step written out."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array
from test_baselines_online import agreement, stream

from woh_faiss import WOH, WOHConfig, codes
from woh_faiss.evaluation.baselines import ablations
from woh_faiss.evaluation.baselines.ablations import VARIANTS, WOH1, WOH2, WOH3, WOH4, Ablation, Parts, learn
from woh_faiss.learner.solver import sign
from woh_faiss.learner.statistics import Statistics

N, M, C, F, R = 40, 12, 6, 5, 8


@pytest.mark.parametrize(("method", "changed"), [(Ablation, {}), (WOH1, {"theta": 0.0})])
@pytest.mark.parametrize("bits", [8, 24])
def test_where_woh_has_the_parts_it_is_woh_to_the_bit(method, changed, bits):
    """New tags, items without any, and several rounds among them."""
    one = method(bits, seed=3, anchors=20, min_count=1)
    woh = WOH(WOHConfig(bits=bits, seed=3, anchors=20, min_count=1, preset="paper", **changed))
    for round_ in range(3):
        X, tags = stream(round_)
        if round_ == 1:
            tags[3], tags[5] = ["new"], []
        one.partial_fit(X, tags)
        woh.partial_fit(X, tags)
        assert_array_equal(one.codes_, woh.codes_)
        assert_array_equal(one.P_, woh.hasher_.P)
        assert_array_equal(one.encode(X), woh.encode(X))


@pytest.fixture
def items():
    rng = np.random.default_rng(0)
    phi = rng.normal(size=(N, M)).astype(np.float32)
    Y = csr_array((rng.random((N, C)) < 0.4).astype(float))
    Z, B, W = rng.normal(size=(N, F)), sign(rng.normal(size=(N, R))), rng.normal(size=(R, C))
    return phi, Y, Z, B, W, Statistics.zero(r=R, m=M, f=F, c=C)


def ridged(C, T, ridge):
    """The least-squares system by other means: of least length where there is no ridge."""
    return np.linalg.pinv(C + ridge * np.eye(len(C)), rcond=1e-9) @ T


def by_hand(phi, Y, Z, B, W, parts):
    """A first round of Eq. 6 to 16 with dense matrices and a loop a bit."""
    phi, Y, r = phi.astype(float), Y.toarray(), B.shape[1]
    a, b, t, m = parts.alpha, parts.beta, parts.theta, parts.mu
    k = 1 / np.maximum(np.linalg.norm(Y - B @ W, axis=1), 1e-8)
    for _ in range(7):
        kept = B.copy()
        Q, G = np.zeros((N, r)), np.zeros((r, r))
        if parts.tags:
            W = ridged((B * k[:, None]).T @ B, (B * k[:, None]).T @ Y, a)
            Q += k[:, None] * (Y @ W.T)
        if t:
            V = ridged(B.T @ B, B.T @ Z, a / t)
            Q, G = Q + t * (Z @ V.T), G + t * (V @ V.T)
        if b:
            U = ridged(B.T @ B, B.T @ phi, a / b)
            Q, G = Q + b * (phi @ U.T), G + b * (U @ U.T)
        if m:
            Q += m * phi @ ridged(phi.T @ phi, phi.T @ B, a / m)
        B = B.copy()
        for _ in range(3):
            for l in range(r):
                rest = np.delete(np.arange(r), l)
                pull = B[:, rest] @ G[rest, l]
                if parts.tags:
                    pull = pull + k * (B[:, rest] @ (W[rest] @ W[l]))
                B[:, l] = sign(Q[:, l] - pull)
        k = 1 / np.maximum(np.linalg.norm(Y - B @ W, axis=1), 1e-8)
    learned_from = kept if m else B  # the second step has the final codes
    return B, ridged(phi.T @ phi, phi.T @ learned_from, a / (m or 10))


@pytest.mark.parametrize("method", [Ablation, *VARIANTS.values()])
@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_a_round_is_its_equations(items, method, scale):
    phi, Y, Z, B, W, past = items
    parts = method.parts._replace(alpha=method.parts.alpha * scale)
    got_B, got_P, _, stats = learn(phi, Y, Z, B, W, past, parts)
    want_B, want_P = by_hand(phi, Y, Z, B, W, parts)
    assert np.mean(got_B != want_B) < 0.01  # rounding may decide a bit
    assert_allclose(got_P, want_P, atol=0.02 * np.abs(want_P).max())
    assert stats.n == N


def test_what_each_leaves_out():
    assert WOH1.parts == Parts(theta=0)
    assert WOH2.parts == Parts(theta=0, tags=False)
    assert WOH3.parts == Parts(alpha=0)
    assert WOH4.parts == Parts(beta=0, mu=0)
    assert (Parts().alpha, Parts().beta, Parts().theta, Parts().mu) == (300, 0.1, 0.1, 10)
    assert list(VARIANTS) == ["woh-1", "woh-2", "woh-3", "woh-4"]


def test_without_tags_codes_are_those_of_the_features(items):
    phi, Y, Z, B, W, past = items
    other = csr_array(Y.toarray()[::-1])
    for tags, same in ((False, True), (True, False)):
        parts = Parts(theta=0, tags=tags, mu=0.1)
        one, two = (learn(phi, each, Z, B, W, past, parts)[0] for each in (Y, other))
        assert np.array_equal(one, two) == same


def test_the_second_step_is_a_regression_on_the_final_codes_of_all_rounds():
    model, phis, Bs = WOH4(16, min_count=1, anchors=20), [], []
    for round_ in range(3):
        X, tags = stream(round_)
        model.partial_fit(X, tags)
        phis.append(ablations.mapped(X, model._kernel).astype(float))
        Bs.append(codes.unpack(model.codes_))
    phi, B = np.vstack(phis), np.vstack(Bs)
    want = np.linalg.solve(phi.T @ phi + 30 * np.eye(20), phi.T @ B)
    assert_allclose(model.P_, want, rtol=1e-6, atol=1e-8)


def test_without_ridges_more_anchors_than_directions_are_no_trouble():
    model = WOH3(16, min_count=1, anchors=60)
    for round_ in range(2):
        model.partial_fit(*stream(round_, n=60, d=3))
    assert np.isfinite(model.P_).all()
    assert agreement(model, *stream(9, d=3)) > 0
