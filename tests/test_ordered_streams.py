"""Streams in an order: chunks of kinds of items that were not there before."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array
from scipy.spatial.distance import cdist

from woh_faiss import WOH
from woh_faiss.evaluation.metrics import mean_average_precision
from woh_faiss.learner import blocks, semantic_start, tag_targets
from woh_faiss.learner.blocks import split_blocks
from woh_faiss.learner.drift import UNLIKE, novelty, redirected

KINDS = 12


def kinds(n, seed=0):
    """Features, tag lists and kinds of n items, in random order; two kinds in a row share a tag."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(KINDS, size=n)
    X = np.random.default_rng(7).normal(size=(KINDS, 24))[kind] + rng.normal(size=(n, 24))
    return X, [[f"own {k}", f"both {k // 2}"] for k in kind], kind


def streamed(order, chunks=8, n=960):
    """The estimator after a stream in an order, codes in it, what each round said, and MAP of new items."""
    X, tags, kind = kinds(n)
    woh = WOH(bits=32, anchors=150, vector_size=8, min_count=1)
    packed, said = [], []
    rows = order(kind)
    for part in np.array_split(rows, chunks):
        woh.partial_fit(X[part], [tags[row] for row in part])
        packed.append(woh.codes_)
        said.append((woh.adapted_, woh.novelty_))
    queries, _, asked = kinds(300, 1)
    labels = np.eye(KINDS, dtype=bool)
    found = mean_average_precision(woh.encode(queries), np.vstack(packed), labels[asked], labels[kind[rows]])
    return woh, packed, said, found


def by_kind(kind):
    return np.argsort(kind, kind="stable")


def shuffled(kind):
    return np.arange(len(kind))


def never(monkeypatch):
    monkeypatch.setattr(semantic_start, "UNLIKE", 1.0)


def test_a_sorted_stream_adapts_and_its_codes_are_better(monkeypatch):
    _, before, said, adapted = streamed(by_kind)
    assert [adapted for adapted, _ in said] == [False] + 7 * [True]
    never(monkeypatch)
    _, after, _, as_it_was = streamed(by_kind)
    assert_array_equal(before[0], after[0])
    assert adapted > as_it_was + 0.1


@pytest.mark.parametrize("preset", ["adaptive", "paper"])
def test_anchors_cover_what_is_like_the_first_items(preset):
    """Oracle: distances to the anchors, and those of the first items to all but the nearest."""
    X, tags, kind = kinds(2000)
    woh = WOH(bits=16, anchors=100, vector_size=8, min_count=1, preset=preset)
    half = KINDS // 2

    def covered(rows):
        woh.partial_fit(X[rows], [tags[row] for row in rows])
        return woh.covered_

    early, late = (np.flatnonzero((kind < half) == first) for first in (True, False))
    covered(early[:300])
    assert covered(early[300:900]) > 0.8
    low = covered(late[:500])
    A = woh.hasher_.kernel.A.astype(np.float64)
    if woh.hasher_.kernel.unit:
        X = X / np.linalg.norm(X, axis=1, keepdims=True)
    edge = np.quantile(np.sort(cdist(X[early[:300]], A), axis=1)[:, 1], 0.9)
    assert_allclose(low, (cdist(X[late[:500]], A).min(axis=1) <= edge).mean(), atol=0.02)
    assert low < 0.6
    woh.partial_fit(X[:5], [[]] * 5)
    assert woh.covered_ == 1


@pytest.mark.parametrize("chunks", [8, 32])
def test_a_shuffled_stream_has_the_bits_that_it_had(monkeypatch, chunks):
    woh, packed, said, _ = streamed(shuffled, chunks)
    assert max(novelty for _, novelty in said) < UNLIKE / 2
    assert not any(adapted for adapted, _ in said)
    never(monkeypatch)
    other, same, _, _ = streamed(shuffled, chunks)
    assert_array_equal(np.vstack(packed), np.vstack(same))
    for name, value in woh.state().items():
        assert_array_equal(value, other.state()[name])


def test_a_large_vocabulary_adapts_too(monkeypatch):
    monkeypatch.setattr(tag_targets, "MOST_COLUMNS", 10)
    woh, _, _, adapted = streamed(by_kind)
    assert not len(woh.state()["tags_TB"])
    never(monkeypatch)
    assert adapted > streamed(by_kind)[-1] + 0.1


def test_the_maps_of_codes_stand_for_what_a_large_vocabulary_does_not_keep():
    """Oracle: TB itself, where codes explain the tags exactly."""
    X, tags, _ = kinds(500)
    woh = WOH(bits=32, anchors=150, vector_size=8, min_count=1).partial_fit(X, tags)
    side, stats = woh._learned.memory.side, woh._learned.stats
    V, W = (np.random.default_rng(1).normal(size=(33, len(mean))) for mean in (side.z_mean, side.y_mean))
    B = np.where(np.random.default_rng(2).random((60, 32)) < 0.5, -1.0, 1.0)
    Bp = np.column_stack([B, np.ones(60)])
    TB = side.transposed_times(Bp @ W, Bp @ V, B)
    assert_allclose(side.TB_of(Bp.T @ Bp, V, W), TB, atol=1e-9)
    assert stats.C1.shape == (33, 33)


def test_tags_that_said_nothing_at_first_leave_the_start_as_it_is():
    X, tags, _ = kinds(400)
    woh = WOH(bits=16, anchors=50, vector_size=8, min_count=1).partial_fit(X[:200], [["all"]] * 200)
    assert len(np.unique(woh.partial_fit(X[200:], tags[200:]).codes_, axis=0)) > 50
    assert woh.novelty_ > UNLIKE
    assert not woh.adapted_


def test_fewer_tags_than_bits():
    X, tags, kind = kinds(600)
    woh = WOH(bits=64, anchors=50, vector_size=2, min_count=1)
    packed = []
    for part in np.array_split(by_kind(kind), 6):
        packed.append(woh.partial_fit(X[part], [tags[row][:1] for row in part]).codes_)
    assert woh.adapted_
    assert len(np.unique(np.vstack(packed), axis=0)) >= KINDS


def test_a_round_that_adapts_has_the_same_bits_again_after_a_reopening():
    X, tags, kind = kinds(600)
    rows = by_kind(kind)
    woh = WOH(bits=32, anchors=150, vector_size=8, min_count=1)
    woh.partial_fit(X[rows[:300]], [tags[row] for row in rows[:300]])
    again = WOH.from_state(woh.config, woh.state(), woh.anchors_, woh.vocabulary_)
    for one in (woh, again):
        one.partial_fit(X[rows[300:]], [tags[row] for row in rows[300:]])
        assert one.adapted_
    assert_array_equal(woh.codes_, again.codes_)
    woh.partial_fit(X[rows[300:]], [[]] * 300)  # nothing to learn from
    assert (woh.adapted_, woh.novelty_) == (False, 0.0)


def test_directions_do_not_depend_on_the_size_of_blocks(monkeypatch):
    X, tags, kind = kinds(600)
    rows = by_kind(kind)
    woh = WOH(bits=32, anchors=150, vector_size=8, min_count=1)
    woh.partial_fit(X[rows[:300]], [tags[row] for row in rows[:300]])
    learned, rng = woh._learned, np.random.default_rng(3)
    side = learned.memory.side
    phi = learned.hasher.kernel.map(X[rows[300:]])
    y, z = csr_array(rng.random((300, side.c)) < 0.2, dtype=float), rng.normal(size=(300, 8))
    maps = []
    for size in (2048, 37):
        monkeypatch.setattr(blocks, "BLOCK", size)
        chunk = (split_blocks(part) for part in (phi, y, z))
        maps.append(redirected(*chunk, side, learned.stats, side.TB, 0.01, np.random.default_rng(0)))
    for one, other in zip(*maps, strict=True):
        assert_allclose(one, other, rtol=1e-6, atol=1e-9)


def test_novelty_is_the_share_of_tags_beyond_chance():
    df = np.array([500.0, 500.0, 0.0])
    assert novelty(np.array([50, 50, 0]), 100, df, 1000) == 0
    assert novelty(np.array([60, 40, 3]), 100, df, 1000) == 0  # chance
    assert novelty(np.array([0, 0, 100]), 100, df, 1000) == pytest.approx((100 - 3 * 1.1**0.5) / 100)
    assert novelty(np.array([0, 0, 100]), 100, np.zeros(3), 0) == 0
