"""An index of learned and instance bits: what a person tries first, and what must hold for every item."""

import numpy as np
import pytest
from conftest import LEARNED, SMALL, tagged
from numpy.testing import assert_array_equal

from woh_faiss import WOHIndex, codes, score
from woh_faiss.errors import ConfigError, InputError
from woh_faiss.inputs.chunk import Chunk
from woh_faiss.learner.instance import unit_single

SIZES = {"both": {}, "instance alone": {"bits": 0}, "learned alone": {"instance_bits": 0}}


def bits_of_all_rows(index, X):
    """Whether each row's instance bits are those of the features X (by id) and the newest function."""
    view, r = index.store.view, index.config.bits // 8
    mine = view.mapped.codes[:, r : index.code_size]
    return np.array_equal(mine, index.hasher.instance.packed(unit_single(X[view.ids])))


@pytest.mark.parametrize("how", ["update", "add", "without tags"])
@pytest.mark.parametrize("more", [{}, {"bits": 0}])
def test_an_item_finds_itself_however_it_came(tmp_path, how, more):
    X, tags = tagged(0, 400, d=30)
    with WOHIndex.create(tmp_path / "i", **{**SMALL, "vector_size": 5, **more}) as index:
        index.update(X[:200], tags[:200])
        if how == "update":
            index.update(X[200:], tags[200:])
        else:
            index.add(X[200:], tags[200:] if how == "add" else None)
        _, I = index.search(X, 10)
        own = np.arange(400)[:, None]
        assert (I[:, 0] == own[:, 0]).mean() > 0.95
        assert (own == I).any(axis=1).mean() > 0.96
        index.remove(np.arange(0, 400, 7))
        _, I = index.search(X, 400)
        assert not np.isin(I, np.arange(0, 400, 7)).any()
        index.add(X[:1] + 1, ids=[5], on_duplicate="replace")
        assert index.search(X[:1] + 1, 1, by="instance")[1][0, 0] == 5


@pytest.mark.parametrize("chunks", [[2300], [300, 900, 1100], [1999, 1, 300], [10, 1990, 300]])
@pytest.mark.parametrize("learns", [True, False])
def test_all_rows_have_bits_of_one_function_whatever_the_chunks(tmp_path, chunks, learns):
    X, tags = tagged(3, 2300, d=12)
    ids, end = np.arange(2300), 0
    with WOHIndex.create(tmp_path / "i", **{**SMALL, **({} if learns else {"bits": 0})}) as index:
        for number, n in enumerate(chunks):
            rows = slice(end, end + n)
            if learns and number != 1:
                index.update(X[rows], tags[rows], ids=ids[rows])
            else:
                index.add(X[rows], ids=ids[rows])
            end += n
            function = index.hasher.instance
            assert function.final == (end >= 2000)
            assert bits_of_all_rows(index, X)
            with WOHIndex.open(index.path) as again:
                for one, other in zip(index.search(X[:50], 5), again.search(X[:50], 5), strict=True):
                    assert_array_equal(one, other)
        frozen = index.hasher.instance.R
        index.add(X[:100] + 1)
        assert_array_equal(index.hasher.instance.R, frozen)
        assert WOHIndex.verify(index.path) == []
        if len(chunks) > 1:
            with pytest.raises(InputError, match="cannot be restored"):
                index.rollback(1)


def test_removed_replaced_and_erased_items_before_the_bits_are_final(tmp_path):
    X, tags = tagged(4, 2200, d=12)
    with WOHIndex.create(tmp_path / "i", **SMALL) as index, WOHIndex.open(tmp_path / "i") as reader:
        index.update(X[:400], tags[:400], ids=np.arange(400))
        index.remove([3, 17])
        X[5] += 2
        index.add(X[5:6], ids=[5], on_duplicate="replace")
        assert index.compact().items == 3
        index.remove([30])
        index.update(X[400:1000], tags[400:1000], ids=np.arange(400, 1000))
        reader.refresh()
        before = reader.search(X[:9], 4)
        index.update(X[1000:], tags[1000:], ids=np.arange(1000, 2200))
        live = index.store.view.ids[index.store.view.everything.allowed]
        assert sorted(live) == sorted({*range(2200)} - {3, 17, 30})
        assert bits_of_all_rows(index, X)
        for one, other in zip(reader.search(X[:9], 4), before, strict=True):  # keeps to its state
            assert_array_equal(one, other)
        assert reader.refresh()
        assert_array_equal(reader.search(X[:9], 4)[1], index.search(X[:9], 4)[1])
        assert index.search(X[5:6], 1, by="instance")[1][0, 0] == 5
        assert WOHIndex.verify(index.path) == []


def test_each_order_is_its_definition(tmp_path):
    X, tags = tagged(0, 300, d=20)
    with WOHIndex.create(tmp_path / "i", **SMALL) as index:
        index.update(X, tags)
        xq = tagged(1, 12, d=20)[0]
        h, a = index.hasher.halves(xq)
        signs = codes.unpack(codes.unpad(index.store.view.mapped.codes, 80)).astype(float)
        kind, same = h @ signs[:, :16].T, a @ signs[:, 16:].T
        wanted = {"kind": kind, "instance": same, "both": kind + np.maximum(same, 0) ** 8}
        for by, scores in wanted.items():
            S, I = index.search(xq, 7, by=by, expand=0)
            assert np.sort(scores, axis=1)[:, :-8:-1] == pytest.approx(S, abs=1e-5)
            assert np.take_along_axis(scores, I, axis=1) == pytest.approx(S, abs=1e-5)
        first = np.argsort(-wanted["both"], axis=1, kind="stable")[:, :3]
        more = score.expanded(h, index.store.view.mapped.codes[first][:, :, :2])
        S, I = index.search(xq, 7)
        scores = more @ signs[:, :16].T + np.maximum(same, 0) ** 8
        assert np.take_along_axis(scores, I, axis=1) == pytest.approx(S, abs=1e-5)
        packed = index.encode(xq)
        distances = (codes.unpack(packed)[:, None] != signs[None]).sum(axis=2)
        D, I = index.search(xq, 7, by="hamming")
        assert_array_equal(D, np.sort(distances, axis=1)[:, :7])
        for row, item in enumerate((4, 9)):  # by the stored code, without itself
            S, I = index.search_ids([item], 5)
            scores = signs[:, :16] @ signs[item, :16] / 16
            scores = scores + np.maximum(signs[:, 16:] @ signs[item, 16:] / 64, 0) ** 8
            scores[item] = -9
            assert np.sort(scores)[:-6:-1] == pytest.approx(S[0], abs=1e-5), row


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_scores_are_explained_and_do_not_depend_on_the_batch(tmp_path, sizes):
    X, tags = tagged(0, 300, d=20)
    with WOHIndex.create(tmp_path / "i", **{**SMALL, **sizes}) as index:
        index.update(X, tags)
        S, I = index.search(X[:40], 6)
        kind, instance = index.explain_score(S, I, xq=X[:40])
        assert kind + instance == pytest.approx(S, abs=1e-6)
        if len(sizes) == 0:
            assert (instance >= 0).all()
            assert (kind <= 1 + 1e-5).all()
        for i in range(40):
            one = index.search(X[i : i + 1], 6)
            assert_array_equal(one[0][0], S[i])
            assert_array_equal(one[1][0], I[i])
        S, I = index.search_ids([3, 4], 400)
        kind, instance = index.explain_score(S, I, ids=[3, 4])
        there = I >= 0
        assert (kind + instance)[there] == pytest.approx(S[there], abs=1e-6)
        assert not (kind + instance)[~there].any()


def test_what_an_index_cannot_be_asked_by_is_said(tmp_path):
    X, tags = tagged(0, 60)
    for name, missing, has in (("bits", "kind", "instance"), ("instance_bits", "instance", "kind")):
        with WOHIndex.create(tmp_path / name, **{**SMALL, name: 0}) as index:
            index.update(X, tags)
            with pytest.raises(InputError, match=f"by is '{missing}', but the index has no such bits"):
                index.search(X, 3, by=missing)
            assert_array_equal(index.search(X, 3, by=has, expand=0)[1], index.search(X, 3, expand=0)[1])
            with pytest.raises(InputError, match="by is 'cosine', expected one of both, kind"):
                index.search(X, 3, by="cosine")
            with pytest.raises(InputError, match="expand is -1"):
                index.search(X, 3, expand=-1)
    with WOHIndex.open(tmp_path / "bits") as index, pytest.raises(InputError, match="no learned bits"):
        index.search_tags(["sea"], 3)
    for wrong in (-8, 12, 4104, 8.0, True, "64"):
        with pytest.raises(ConfigError, match="instance_bits is"):
            WOHIndex.create(tmp_path / "none", instance_bits=wrong)
    with pytest.raises(ConfigError, match="both 0"):
        WOHIndex.create(tmp_path / "none", bits=0, instance_bits=0)
    assert not (tmp_path / "none").exists()


def test_an_index_without_tags_is_built_from_features_alone(tmp_path):
    X = tagged(0, 100, d=9)[0]
    chunks = [Chunk.of(X[:60]), Chunk.of(X[60:])]
    with WOHIndex.build(tmp_path / "i", chunks, bits=0, instance_bits=32) as index:
        assert (index.ntotal, index.code_size, index.info()["bits"]) == (100, 4, 0)
        assert (index.search(X, 1)[1][:, 0] == np.arange(100)).mean() > 0.95
        assert index.health()["rounds"]
        D, _ = index.search(X, 1, by="hamming")
        assert_array_equal(D, 0)


def test_learned_bits_are_those_of_an_index_without_instance_bits(tmp_path):
    X, tags = tagged(0, 80)
    with (
        WOHIndex.create(tmp_path / "both", **SMALL) as both,
        WOHIndex.create(tmp_path / "learned", **LEARNED) as learned,
    ):
        for index in (both, learned):
            index.update(X[:40], tags[:40])
            index.update(X[40:], tags[40:])
            index.add(X[:5] + 1)
        assert_array_equal(both.store.view.mapped.codes[:, :2], learned.store.view.mapped.codes[:, :2])
