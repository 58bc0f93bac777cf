"""The adaptive preset: what it must survive, and that its parts do what they are for."""

import numpy as np
import pytest
from conftest import learned as learn_round
from conftest import tagged
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array

from woh_faiss import WOH, WOHConfig, codes
from woh_faiss.errors import ConfigError, InputError
from woh_faiss.learner import semantic_start, tag_targets
from woh_faiss.learner.statistics import Statistics


def make(**hyper):
    return WOH(**{"bits": 16, "anchors": 20, "vector_size": 5, **hyper})


def hit_rate(woh, seed=50):
    """Share of the nearest items of unseen queries that are of the query's topic."""
    (X, _), (xq, _) = tagged(seed, n=300), tagged(seed + 1, n=100)
    topics, wanted = X[:, :6].argmax(axis=1), xq[:, :6].argmax(axis=1)
    D = woh.transform(X).astype(int) @ woh.transform(xq).T.astype(int)
    return np.mean(topics[np.argsort(-D, axis=0, kind="stable")[:10]] == wanted)


@pytest.mark.parametrize("bits", [8, 16, 64])
def test_it_learns_more_from_the_same_chunks_than_the_paper_s_constants(bits):
    rates = {}
    for preset in ("adaptive", "paper"):
        woh = make(bits=bits, preset=preset, anchors=100)
        for seed in range(4):
            woh.partial_fit(*tagged(seed, n=60))
        rates[preset] = hit_rate(woh)
    assert rates["adaptive"] > max(0.7, rates["paper"])


CHUNKS = {
    "one item": (1, 1.0),
    "two items": (2, 1.0),
    "untagged items among them": (40, 0.3),
    "nobody is tagged": (10, 0.0),
    "many": (500, 1.0),
}


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_any_later_chunk_leaves_everything_finite(chunk, scale):
    n, share = CHUNKS[chunk]
    woh = make(min_count=1).partial_fit(tagged(0)[0] * scale, tagged(0)[1])
    X, tags = tagged(1, n=n)
    rng = np.random.default_rng(0)
    woh.partial_fit(X * scale, [given if rng.random() < share else [] for given in tags])
    woh.partial_fit(np.zeros((3, 7)), ["sea", "hill", "new"])  # items of zeros, and a tag that is new
    for name, value in woh.state().items():
        assert np.isfinite(value).all(), name
    assert np.isfinite(woh.decision_function(X)).all()


@pytest.mark.parametrize(
    ("tags", "vectors"),
    [
        (["sea"] * 40, {}),  # the same tag for all
        (tagged(0)[1], {"Z": np.zeros((40, 3))}),  # word vectors that say nothing
        (tagged(0)[1], {"Z": np.zeros((40, 1))}),
        ([f"tag{i}" for i in range(40)], {}),  # a tag for each
    ],
)
def test_any_first_chunk_gives_codes(tags, vectors):
    woh = make(min_count=1).partial_fit(tagged(0)[0], tags, **vectors)
    assert np.isfinite(woh.decision_function(tagged(1)[0])).all()
    assert np.any(woh.decision_function(tagged(1)[0]))
    assert codes.health(woh.codes_)["distinct"] > 0.2


@pytest.mark.parametrize("few", [1, 2, 5])
def test_a_first_chunk_with_few_tagged_items_is_only_a_beginning(few):
    X, tags = tagged(0)
    woh = make(min_count=1, anchors=100).partial_fit(X, [*tags[:few], *[[]] * (40 - few)])
    assert np.isfinite(woh.decision_function(X)).all()
    for seed in range(1, 5):
        woh.partial_fit(*tagged(seed, n=60))
    assert hit_rate(woh) > 0.7


def test_items_without_tags_are_encoded_by_what_the_others_taught():
    """They change nothing else: the hash function is the one that a chunk without them leaves."""
    X, tags = tagged(1)
    bare = tagged(2, n=15)[0]
    alone = make().partial_fit(*tagged(0)).partial_fit(X, tags)
    mixed = make().partial_fit(*tagged(0)).partial_fit(np.vstack([bare, X]), [*[[]] * 15, *tags])
    assert_array_equal(mixed.codes_[15:], alone.codes_)
    assert_array_equal(mixed.codes_[:15], alone.encode(bare))
    assert_array_equal(np.flatnonzero(~mixed.trained_), np.arange(15))
    for name, value in alone.state().items():
        assert_array_equal(mixed.state()[name], value, err_msg=name)


def test_anchors_are_drawn_anew_until_there_are_enough_items_then_never():
    woh = make(anchors=100)
    for seed, final in enumerate((False, False, True, True)):
        woh.partial_fit(*tagged(seed))
        assert (woh.anchors_ is not None) is final
        assert len(woh.hasher_.kernel.A) == 100
        if seed == 2:
            anchors = woh.anchors_
            assert "adaptive_x" not in woh.state()
    assert_array_equal(woh.anchors_, anchors)


def test_statistics_of_the_kernel_are_remade_exactly():
    """After a refill C3 and C2 are those of all items under the new map."""
    woh, chunks = make(anchors=100), [tagged(seed) for seed in range(2)]
    signs = []
    for chunk in chunks:
        woh.partial_fit(*chunk)
        signs.append(codes.unpack(woh.codes_).astype(float))
    phi = woh.hasher_.kernel.map(np.vstack([X for X, _ in chunks]))
    assert_allclose(woh._fitted.stats.C3, phi.T @ phi, rtol=1e-5, atol=1e-5)
    assert_allclose(woh.state()["C2"], np.vstack(signs).T @ phi, rtol=1e-5, atol=1e-5)
    gradient = phi.T @ (phi @ woh.hasher_.P - np.vstack(signs)) + woh.config.alpha * woh.hasher_.P
    assert_allclose(gradient, 0, atol=1e-4)


def test_the_smallest_ridge_near_the_best_is_chosen():
    assert semantic_start._choice(np.array([0.98, 1.0, 0.5])) == 0
    assert semantic_start._choice(np.array([0.9, 0.99, 1.0])) == 1
    assert semantic_start._choice(np.array([-1.0, -0.5, -2.0])) == 1
    assert semantic_start._choice(np.zeros(3)) == 0


def test_a_large_vocabulary_decodes_in_place_of_M(monkeypatch):
    monkeypatch.setattr(tag_targets, "MOST_COLUMNS", 8)
    woh = make(anchors=100)
    for seed in range(4):
        woh.partial_fit(*tagged(seed, n=60))
    assert woh.state()["tags_TT"].size == 0
    assert hit_rate(woh) > 0.7


def naive_semantic_round(G, Y, Z, W, past, config):
    """Dense, one bit of one item at a time."""
    r = G.shape[1]
    free = np.diag(np.append(np.ones(r), 1e-6))
    B = np.where(G >= 0, 1.0, -1.0)

    def k_of(B, W):
        residual = np.linalg.norm(Y - np.column_stack([B, np.ones(len(B))]) @ W, axis=1)
        return 1 / np.maximum(residual, 1e-3)

    for it in range(config.iterations):
        Bp = np.column_stack([B, np.ones(len(B))])
        C1 = past.C1 + Bp.T @ Bp
        V = np.linalg.solve(C1 + config.alpha * C1[-1, -1] * free, past.C5 + Bp.T @ Z)
        k = np.ones(len(B)) if W is None and not it else k_of(B, W)
        D1 = past.D1 + Bp.T @ (k[:, None] * Bp)
        W = np.linalg.solve(
            D1 + config.alpha * np.trace(D1) / (r + 1) * free, past.D2 + Bp.T @ (k[:, None] * Y)
        )
        k = k_of(B, W)
        for _ in range(config.sweeps):
            for l in range(r):
                rest = [j for j in range(r) if j != l]
                for i in range(len(B)):
                    h = config.mu / r * G[i, l]
                    h += config.theta * (Z[i] - V[r] - B[i, rest] @ V[rest]) @ V[l]
                    h += k[i] * (Y[i] - W[r] - B[i, rest] @ W[rest]) @ W[l]
                    B[i, l] = 1.0 if h >= 0 else -1.0
    return B, W


@pytest.mark.parametrize("hyper", [{}, {"theta": 3.0, "mu": 2.0, "alpha": 0.3, "iterations": 2, "sweeps": 1}])
def test_two_rounds_equal_the_naive_ones(any_blocks, hyper):
    config = WOHConfig(bits=8, **hyper)
    past, W = Statistics.zero(r=8, m=2, f=3, c=5, constant=True), None
    for seed in range(2):
        rng = np.random.default_rng(seed)
        G, Z = rng.normal(size=(17, 8)), rng.normal(size=(17, 3))
        Y = (rng.random((17, 5)) < 0.5).astype(float)
        expected = naive_semantic_round(G, Y, Z, W, past, config)
        done = learn_round(
            rng.normal(size=(17, 2)), csr_array(Y), Z, np.where(G >= 0, 1.0, -1.0), W,
            past, config, aim=G,
        )  # fmt: skip
        B, W, stats = done.B, done.W, done.stats
        assert_array_equal(B, expected[0])
        assert_allclose(W, expected[1], atol=1e-9)
        Bp = np.column_stack([B, np.ones(17)])
        assert_allclose(stats.C1, past.C1 + Bp.T @ Bp)
        assert_allclose(stats.C5, past.C5 + Bp.T @ Z, atol=1e-12)
        past = stats


def test_codes_that_are_given_hold_still_and_count(any_blocks):
    rng, config = np.random.default_rng(3), WOHConfig(bits=8)
    G, Z, phi = rng.normal(size=(20, 8)), rng.normal(size=(20, 3)), rng.normal(size=(20, 4))
    Y = csr_array((rng.random((20, 5)) < 0.5).astype(float))
    given = rng.choice([-1.0, 1.0], size=(6, 8))
    B0 = np.vstack([given, np.where(G[6:] >= 0, 1.0, -1.0)])
    past = Statistics.zero(r=8, m=4, f=3, c=5, constant=True)
    done = learn_round(phi, Y, Z, B0, None, past, config, aim=G, given=6)
    assert_array_equal(done.B[:6], given)
    Bp = np.column_stack([done.B, np.ones(20)])
    assert_allclose(done.stats.C1, Bp.T @ Bp)
    free = learn_round(phi, Y, Z, B0, None, past, config, aim=G)
    assert np.any(free.B[:6] != given)


def test_what_the_semantic_start_has_no_use_for_is_refused():
    with pytest.raises(ConfigError, match=r"beta is 0\.1, expected 0 with a semantic start"):
        WOHConfig(beta=0.1)
    with pytest.raises(ConfigError, match="refresh_statistics is False, expected true with a semantic start"):
        WOHConfig(refresh_statistics=False)
    with pytest.raises(ConfigError, match="start is 'warm', expected one of random, semantic"):
        WOHConfig(start="warm")
    X, tags = tagged(0)
    with pytest.raises(InputError, match="expected neither with a semantic start"):
        make().partial_fit(X, tags, B0=np.ones((40, 16)))
    with pytest.raises(InputError, match="word-vector means have 2 columns, the model was fitted with 5"):
        make().partial_fit(X, tags).partial_fit(X, tags, Z=np.ones((40, 2)))


def test_anchors_of_ones_own_stay():
    X, tags = tagged(0)
    woh = WOH(WOHConfig(bits=16, vector_size=5), A=X[:7])
    woh.partial_fit(X, tags).partial_fit(*tagged(1))
    assert_allclose(woh.anchors_, X[:7] / np.linalg.norm(X[:7], axis=1, keepdims=True), rtol=1e-6)
