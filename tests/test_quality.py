"""What rankings are worth, against definitions written out item by item."""

import numpy as np
import pytest
from conftest import length, tagged
from hypothesis import given, settings
from hypothesis import strategies as st

from woh_faiss import WOHIndex, codes, score
from woh_faiss.evaluation import quality as module
from woh_faiss.evaluation.quality import Quality, ScoreRanking, StreamInstanceBits, own_ranks, quality
from woh_faiss.evaluation.streaming import stream
from woh_faiss.inputs.chunk import Chunk
from woh_faiss.learner.config import WOHConfig
from woh_faiss.learner.estimator import WOH
from woh_faiss.learner.instance import InstanceMap, packed_signs, unit_single


def naive(D, own_D, X, Xq, L, Lq):
    """The five numbers of distances (q, n) and (n, n), one query at a time."""
    precisions, at_10, recall, first, among = [], [], [], [], []
    for row, labels, x in zip(D, Lq, Xq, strict=True):
        order = sorted(range(len(row)), key=lambda i: (row[i], i))
        relevant = [bool((L[i] & labels).any()) for i in order]
        hits = [i for i, is_relevant in enumerate(relevant) if is_relevant]
        precisions.append(np.mean([(n + 1) / (i + 1) for n, i in enumerate(hits)]) if hits else 0.0)
        at_10.append(np.mean(relevant[:10]))
        cosines = (X @ x) / np.maximum(np.linalg.norm(X, axis=1), 1e-30)
        near = sorted(range(len(row)), key=lambda i: (-cosines[i], i))[:10]
        recall.append(len({*near} & {*order[:10]}) / len(near))
    for i, row in enumerate(own_D):
        rank = sorted(range(len(row)), key=lambda j: (row[j], j)).index(i)
        first.append(rank < 1)
        among.append(rank < 10)
    return np.mean(precisions), np.mean(at_10), np.mean(first), np.mean(among), np.mean(recall)


@settings(deadline=None, max_examples=length(60))
@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 40), st.integers(1, 4))
def test_quality_is_its_definition(seed, q, n, levels):
    rng = np.random.default_rng(seed)
    X, Xq = rng.integers(-4, 5, (n, 3)).astype(np.float32), rng.normal(size=(q, 3)).astype(np.float32)
    X = X[np.unique(X[:, :], axis=0, return_index=True)[1]]  # else cosines tie, by rounding
    X = X + 0.01 * rng.normal(size=X.shape).astype(np.float32)
    L, Lq = rng.random((len(X), 3)) < 0.4, rng.random((q, 3)) < 0.4
    w = rng.normal(size=(3, len(X))).astype(np.float32)

    def ranking(Q):
        return np.floor(Q @ w * levels)  # many ties

    got = quality(ranking, Xq, X, Lq, L, 0)
    assert got == pytest.approx(naive(ranking(Xq), ranking(X), X, Xq, L, Lq), abs=1e-6)


def test_a_sample_of_items_is_asked_for_by_their_own_features(monkeypatch):
    monkeypatch.setattr(module, "OWN", 7)
    X = np.random.default_rng(0).normal(size=(50, 4))
    asked = []

    def ranking(Q):
        asked.append(Q)
        return ((Q[:, None] - X[None]) ** 2).sum(axis=2)

    assert own_ranks(ranking, X, 3).tolist() == [0] * 7
    rows = [int(np.flatnonzero((x == X).all(axis=1))[0]) for x in np.vstack(asked)]
    assert rows == sorted(set(rows))
    assert len(rows) == 7


@pytest.mark.parametrize(("r", "s"), [(16, 8), (16, 0), (0, 16)])
@pytest.mark.parametrize("expand", [0, 2])
def test_the_ranking_by_score_is_its_definition(r, s, expand):
    X, tags = tagged(0, 60)
    instance = InstanceMap.fit(unit_single(X), s, 0, 60) if s else None
    if r:
        woh = WOH(bits=r, anchors=10, vector_size=5).partial_fit(X, tags)
        hasher, learned = woh.hasher_.beside(instance), woh.codes_
    else:
        from woh_faiss.learner.hasher import Hasher

        hasher, learned = Hasher.of_instance(instance), np.empty((60, 0), np.uint8)
    own = packed_signs(X, instance) if s else np.empty((60, 0), np.uint8)
    got = -ScoreRanking(hasher, learned, own, expand)(X[:9])
    h, a = hasher.halves(X[:9])
    for i in range(9):
        want = np.zeros(60)
        same = codes.unpack(own).astype(float) @ a[i] if s else 0
        if r:
            term = np.maximum(same, 0) ** 8
            want = codes.unpack(learned).astype(float) @ h[i] + term
            if expand:
                first = np.argsort(-want, kind="stable")[:expand]
                h_more = h[i] * r + 2 * codes.unpack(learned[first]).mean(axis=0)
                want = codes.unpack(learned).astype(float) @ (h_more / np.abs(h_more).sum()) + term
        else:
            want = same
        assert got[i] == pytest.approx(want, abs=2e-5)


@pytest.mark.parametrize(("r", "s"), [(16, 8), (8, 0), (0, 16)])
@pytest.mark.parametrize("expand", [0, 3])
def test_the_ranking_by_score_is_that_of_an_index_to_the_bit(tmp_path, r, s, expand, monkeypatch):
    monkeypatch.setattr(module, "CELLS", 4000)  # a few queries at a time
    X, tags = tagged(4, 150)
    X[70:110] = X[3:43]  # equal items tie
    X[5] = X[60] = 0
    made = {"anchors": 10, "vector_size": 5} if r else {}
    with WOHIndex.create(tmp_path / "index.woh", bits=r, instance_bits=s, **made) as index:
        if r:
            index.update(X, tags)
        else:
            index.add(X)
        packed = np.asarray(index.store.view.mapped.codes)
        learned, own = packed[:, : r // 8], packed[:, r // 8 : (r + s) // 8]
        got = ScoreRanking(index.hasher, learned, own, expand)(X[:70])
        D, I = index.search(X[:70], len(X), expand=expand)
    assert np.array_equal(np.argsort(got, axis=1, kind="stable"), I)
    assert np.array_equal(-np.sort(got, axis=1), D)


@pytest.mark.parametrize("by", ["both", "hamming"])
def test_rows_of_zeros_are_measured(by):
    X, tags = tagged(5, 120)
    X[::4] = 0
    labels = np.array([[word in given for word in ("sea", "hill")] for given in tags])
    config = WOHConfig(bits=16, anchors=10, vector_size=5)
    how = {"instance_bits": 8, "expand": 3} if by == "both" else {}
    found = list(stream(Chunk.of(X, tags, labels=labels), [config], chunks=2, queries=20, by=by, **how))
    assert len(found) == 4
    for result in found:
        shares = np.array([getattr(result, name) for name in Quality._fields])
        assert np.all((shares >= 0) & (shares <= 1))


def test_instance_bits_of_a_stream_are_those_of_an_index(tmp_path):
    X, _ = tagged(1, 2300, d=20)
    half = StreamInstanceBits(16, 0)
    with WOHIndex.create(tmp_path / "index.woh", bits=0, instance_bits=16) as index:
        for end in (40, 1500, 2100, 2300):
            index.add(X[index.ntotal : end])
            stored = index.store.view.mapped.codes[:, :2]
            assert np.array_equal(stored, half.codes(X[:end]))


def test_a_stream_by_score_is_measured_as_its_rankings_are():
    X, tags = tagged(2, 120)
    labels = np.array([[word in given for word in ("sea", "hill")] for given in tags])
    chunk = Chunk.of(X, tags, labels=labels)
    config = WOHConfig(bits=16, anchors=10, vector_size=5)
    found = list(stream(chunk, [config], chunks=2, queries=20, instance_bits=8, by="both", expand=3))
    order = np.random.default_rng(0).permutation(120)
    held_out, parts = order[:20], np.array_split(order[20:], 2)
    woh, half, learned = WOH(config), StreamInstanceBits(8, 0), np.empty((0, 2), np.uint8)
    for t, part in enumerate(parts):
        woh.partial_fit(X[part], [tags[i] for i in part])
        learned = np.vstack([learned, woh.codes_])
        rest = np.concatenate(parts[: t + 1])
        own = half.codes(X[rest])
        ranking = ScoreRanking(woh.hasher_.beside(half.function), learned, own, 3)
        want = quality(ranking, X[held_out], X[rest], labels[held_out], labels[rest], 0)
        got = found[t]
        assert (got.map, got.p10, got.self1, got.self10, got.float_recall10) == want
        assert (got.bits, got.instance_bits, got.database) == (16, 8, len(rest))
    assert score.EXPAND == 3
