"""OSH, BOSDH, HMOH and RPT-WOH: their steps against what defines them, and streams as they come."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.linalg import hadamard
from scipy.sparse import csr_array

from woh_faiss.errors import ConfigError, InputError
from woh_faiss.evaluation.baselines import bosdh, hmoh, osh, rptwoh
from woh_faiss.evaluation.baselines.bosdh import BOSDH
from woh_faiss.evaluation.baselines.hmoh import HMOH
from woh_faiss.evaluation.baselines.osh import OSH
from woh_faiss.evaluation.baselines.rptwoh import RPTWOH
from woh_faiss.learner.kernel import unit_rows

WORDS = ["sea", "beach", "hill", "snow", "city", "night"]
TAUGHT = {"bosdh": BOSDH, "bosdh-paper": lambda b: BOSDH(b, paper_order=True), "hmoh": HMOH, "rpt": RPTWOH}

seeds = st.integers(0, 2**32 - 1)


def stream(seed, n=60, d=7, words=WORDS):
    rng = np.random.default_rng(seed)
    topic = rng.integers(6, size=n)
    X = np.eye(6, d)[topic] * 3 + rng.normal(size=(n, d))
    tags = [[words[t], words[(t + 1) % 6]] if rng.random() < 0.6 else [words[t]] for t in topic]
    return X, tags


def agreement(model, X, tags):
    """How much nearer, in bits, items are that share their first tag, than others."""
    B = model.transform(X).astype(float)
    D = (B.shape[1] - B @ B.T) / 2
    same = np.array([[a[0] == b[0] for a in tags] for b in tags])
    return D[~same].mean() - D[same].mean()


@pytest.mark.parametrize("make", [OSH, *TAUGHT.values()], ids=["osh", *TAUGHT])
def test_new_items_of_a_topic_get_near_codes(make):
    model = make(16)
    for seed in range(3):
        model.partial_fit(*stream(seed))
    assert agreement(model, *stream(9)) > 1


@pytest.mark.parametrize("make", TAUGHT.values(), ids=TAUGHT)
def test_items_without_known_tags_are_encoded_and_teach_nothing(make):
    (X1, tags1), (X2, tags2), (more, _) = stream(1), stream(2), stream(3, n=9)
    plain, mixed = make(16).partial_fit(X1, tags1), make(16).partial_fit(X1, tags1)
    plain.partial_fit(X2, tags2)
    mixed.partial_fit(np.vstack([more, X2]), [*([["seen once"]] + [[]] * 8), *tags2])
    assert_array_equal(mixed.codes_[9:], plain.codes_)
    assert_array_equal(mixed.codes_[:9], plain.encode(more))
    assert_array_equal(mixed.decision_function(more), plain.decision_function(more))


@pytest.mark.parametrize("make", [OSH, *TAUGHT.values()], ids=["osh", *TAUGHT])
def test_a_stream_may_begin_without_tags(make):
    (X1, _), (X2, tags2), (X3, tags3) = stream(1), stream(2), stream(3)
    model = make(16).partial_fit(X1, [[]] * len(X1))
    assert model.codes_.shape == (60, 2)
    for X, tags in ((X2, tags2), (X3, tags3)):
        model.partial_fit(X, tags)
    assert agreement(model, X2, tags2) > 1


@pytest.mark.parametrize("make", TAUGHT.values(), ids=TAUGHT)
def test_tags_that_appear_later_are_learned(make):
    model = make(16).partial_fit(*stream(1))
    for seed in range(2, 9):
        model.partial_fit(*stream(seed, words=[f"new {word} {seed}" for word in WORDS]))
    assert len(model.vocabulary_.tags) == 48
    assert agreement(model, *stream(9)) > 1


@pytest.mark.parametrize("make", [OSH, *TAUGHT.values()], ids=["osh", *TAUGHT])
@pytest.mark.parametrize("n", [1, 2])
def test_chunks_may_be_smaller_than_anything(make, n):
    model = make(64).partial_fit(*stream(1))
    model.partial_fit(*stream(2, n=n))
    assert model.codes_.shape == (n, 8)


# OSH


@given(seeds, st.lists(st.integers(1, 30), min_size=1, max_size=5), st.integers(1, 12), st.integers(1, 8))
def test_a_sketch_is_near_to_the_scatter_about_the_common_mean(seed, sizes, half, d):
    """The bound of frequent directions; where nothing was dropped, equal."""
    X = np.random.default_rng(seed).normal(size=(sum(sizes), d)) + 5
    S, mean, seen = np.zeros((0, d)), np.zeros(d), 0
    for chunk in np.split(X, np.cumsum(sizes)[:-1]):
        A, mean = osh.centred(chunk, mean, seen)
        S, seen = osh.sketched(S, A, 2 * half), seen + len(chunk)
    assert len(S) <= 2 * half
    assert_allclose(mean, X.mean(axis=0))
    scatter = (X - mean).T @ (X - mean)
    lost = np.linalg.eigvalsh(scatter - S.T @ S)
    assert lost.min() > -1e-8
    assert lost.max() < np.trace(scatter) / half + 1e-8
    if half >= d:
        assert lost.max() < 1e-8


def test_directions_are_the_leading_ones_and_have_one_sign():
    X = np.random.default_rng(0).normal(size=(50, 6)) * [9, 7, 5, 3, 1, 0]
    V = osh.directions(X, 3)
    _, _, Vt = np.linalg.svd(X)
    assert_allclose(np.abs((V * Vt[:3].T).sum(axis=0)), 1)
    assert_allclose(osh.directions(-X, 3), V)
    assert osh.directions(X, 99).shape == (6, 5)


def test_more_bits_than_directions_are_spread_over_them():
    X, tags = stream(0, d=3)
    model = OSH(32).partial_fit(X, tags)
    assert_allclose(model.W_ @ model.W_.T, np.eye(3), atol=1e-12)
    assert len(np.unique(model.codes_, axis=0)) > 5


# HMOH


@given(seeds, st.integers(0, 12), st.integers(1, 5), st.integers(1, 4), st.integers(1, 5))
def test_the_perceptron_is_one_item_a_step(seed, n, d, r, block):
    rng = np.random.default_rng(seed)
    X, T, W = rng.normal(size=(n, d)), rng.choice([-1.0, 1.0], size=(n, r)), rng.normal(size=(d, r))
    W0, total, wrong = W.copy(), np.zeros((d, r)), np.zeros(r)
    for x, t in zip(X, T, strict=True):
        mistaken = np.where(x @ W > 0, 1, -1) != t
        W = W + np.outer(x, t * mistaken)
        total, wrong = total + W, wrong + mistaken
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hmoh, "BLOCK", block)
        found = hmoh.perceptron(X, T, W0)
    for mine, theirs in zip(found, (W, total, wrong), strict=True):
        assert_allclose(mine, theirs, atol=1e-9)


@given(seeds, st.integers(1, 6))
def test_targets_are_votes_with_as_many_of_either_sign_as_can_be(seed, c):
    rng = np.random.default_rng(seed)
    Y, H = (rng.random((20, c)) < 0.5).astype(float), hadamard(8, np.float64)
    T, votes = hmoh.targets(csr_array(Y), H, rng), Y @ H[:c]
    assert_array_equal(np.abs(T), 1)
    assert_array_equal(T[votes != 0], np.sign(votes[votes != 0]))
    for t, vote in zip(T, votes, strict=True):
        fixed = int(np.sign(vote).sum())
        free = int((vote == 0).sum())
        assert abs(t.sum()) == max(abs(fixed) - free, (fixed + free) % 2)


def test_published_targets_lose_the_vote():
    """A vote of two tags has as many zeros as it has signs, which balance: all of it is overwritten."""
    Y = csr_array(np.array([[0, 1, 1, 0, 0], [0, 0, 0, 1, 1], [0, 1, 0, 0, 0]], float))
    T = hmoh.targets(Y, hadamard(8, np.float64), None, published=True)
    assert_array_equal(T[0], T[1])
    assert_array_equal(T[2], hadamard(8)[1])


def test_the_matrix_grows_with_the_tags():
    model = HMOH(16, min_count=1).partial_fit(*stream(0))
    assert model.G_.shape == (16, 16)
    first = model.G_
    model.partial_fit(*stream(1, words=[f"{word} {i}" for i, word in enumerate(WORDS)]))
    model.partial_fit(*stream(2, words=[f"{word} again" for word in WORDS]))
    assert model.G_.shape == (32, 16)
    assert_array_equal(model.G_[:16], first)


# BOSDH


def published_stage(X, S, Be, W, r, paper_order):
    """The published loop, with S of 0 and 1 dense and rows for items."""
    Bs = np.where(X @ W >= 0, 1.0, -1.0)
    for i in range(len(X)):
        if S[i].any():
            Bs[i] = Be[np.flatnonzero(S[i])[0]]
    S = np.where(S > 0, 1.2, -0.2) * r

    def new_codes(Bs, Be, W):
        Bs, P = Bs.copy(), r * S @ Be + X @ W
        for k in range(r):
            rest = np.arange(r) != k
            Bs[:, k] = np.where(P[:, k] - Bs[:, rest] @ Be[:, rest].T @ Be[:, k] >= 0, 1, -1)
        return Bs

    def old_codes(Bs):
        return np.where(np.round(S.T @ Bs, 6) >= 0, 1.0, -1.0)

    def function(Bs):
        return 0.5 * np.linalg.inv(0.5 * X.T @ X + 0.3 * np.eye(X.shape[1])) @ X.T @ Bs

    if paper_order:
        W, Be = function(Bs), old_codes(Bs)
        return new_codes(Bs, Be, W), Be, W
    Bs = new_codes(Bs, Be, W)
    return Bs, old_codes(Bs), function(Bs)


@given(seeds, st.integers(1, 12), st.integers(1, 12), st.integers(1, 15), st.booleans())
@settings(max_examples=60)
def test_a_stage_is_the_published_loop(seed, n, N, d, paper_order):
    rng, r = np.random.default_rng(seed), 8
    X, W = unit_rows(rng.normal(size=(n, d))), rng.normal(size=(d, r))
    Be, Y = rng.choice([-1.0, 1.0], size=(N, r)), csr_array((rng.random((n + N, 6)) < 0.2).astype(float))
    M = bosdh.similar(Y[:n], Y[n:])
    dense = (Y[:n].toarray() @ Y[n:].toarray().T > 0).astype(float)
    assert_array_equal(M.toarray(), dense)
    found = bosdh.stage(X, M, Be, W, bosdh.Weights(), paper_order=paper_order)
    for mine, theirs in zip(found, published_stage(X, dense, Be, W, r, paper_order), strict=True):
        assert_allclose(mine, theirs, atol=1e-9)


def test_bosdh_relates_a_chunk_to_all_before():
    """Three rounds of the class are three stages, old codes going along."""
    model, Be, Ys = BOSDH(8, min_count=1), None, None
    for seed in range(3):
        X, tags = stream(seed)
        W = model.W_ if seed else None
        model.partial_fit(X, tags)
        Y, _, _ = model.vocabulary_.matrices(csr_tags(tags))
        if Be is None:
            Be, Ys = np.where(model._ready(X) @ model.W_ >= 0, 1.0, -1.0), Y.toarray()
        else:
            M = bosdh.similar(csr_array(Y), csr_array(Ys))
            Bs, Be, W = bosdh.stage(model._ready(X), M, Be, W, model.weights)
            assert_allclose(model.W_, W)
            Be, Ys = np.vstack([Be, Bs]), np.vstack([Ys, Y.toarray()])
        assert_array_equal(model.Be_, Be)


def csr_tags(tags):
    from woh_faiss.inputs.chunk import Chunk

    return Chunk.of(np.zeros((len(tags), 1)), tags).tags


# RPT-WOH


@given(seeds, st.integers(1, 20), st.integers(1, 6), st.integers(0, 6))
def test_balanced_codes_are_the_best_of_their_kind(seed, n, r, rank):
    rng = np.random.default_rng(seed)
    C = rng.normal(size=(n, rank)) @ rng.normal(size=(rank, r)) if rank < r else rng.normal(size=(n, r))
    V = rptwoh.balanced(C, rng)
    assert_allclose(V.sum(axis=0), 0, atol=1e-7 * n)
    best = np.sqrt(n) * np.linalg.norm(C - C.mean(axis=0), "nuc")  # von Neumann's trace inequality
    assert np.trace(V.T @ C) == pytest.approx(best, abs=1e-2)
    if n > r:
        assert_allclose(V.T @ V, n * np.eye(r), atol=1e-6 * n)


def test_pseudo_tags_spread_to_what_occurs_together():
    Y = csr_array(np.array([[1.0, 1, 0], [1, 1, 0], [1, 0, 0], [0, 0, 1]]))
    A = rptwoh.pseudo_tags(Y, (Y.T @ Y).toarray(), 0.01)
    assert_allclose(A[2], np.array([1 + 0.01, 2 / 3, 0]) / 1.01)
    assert_allclose(A[3], np.array([0, 0, 1 + 0.01]) / 1.01)


@pytest.mark.parametrize("published", [False, True])
def test_the_memory_keeps_tags_and_codes_together(published):
    """Each pair in it was learned as a pair; the published code loses that."""
    model, learned = RPTWOH(16, size=40, published=published), []
    for seed in range(4):
        model.partial_fit(*stream(seed))
        fresh = rptwoh.remembered(
            None, *last_round(model, *stream(seed)), (np.zeros(0, int),) * 2, 60
        )  # all 60 pairs of the chunk
        learned += [pair(q, b) for q, b in zip(*fresh, strict=True)]
        assert model.Q_.shape == (40, 6)
    kept = [pair(q, b) for q, b in zip(model.Q_, model.Bq_, strict=True)]
    assert (set(kept) <= set(learned)) != published


def last_round(model, X, tags):
    Y, _, _ = model.vocabulary_.matrices(csr_tags(tags))
    B = np.unpackbits(model.codes_, axis=1, bitorder="little") * 2.0 - 1
    return rptwoh.pseudo_tags(Y, model.R_, model.weights.lam), Y, B


def pair(q, b):
    return np.round(q, 9).tobytes() + b.astype(np.int8).tobytes()


# Parameters


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: OSH(rows=7), ConfigError, "rows is 7"),
        (lambda: OSH(rows=0), InputError, "rows is 0"),
        (lambda: BOSDH(weights=bosdh.Weights(sigma=0)), ConfigError, "sigma is 0"),
        (lambda: RPTWOH(weights=rptwoh.Weights(mu=float("nan"))), ConfigError, "mu is nan"),
        (lambda: RPTWOH(size=0), InputError, "size is 0"),
        (lambda: RPTWOH(anchors=1.5), InputError, "anchors is 1.5"),
    ],
)
def test_parameters_that_make_no_model_are_refused(make, error, said):
    with pytest.raises(error, match=said):
        make()
