import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from woh_faiss import WOHIndex, codes
from woh_faiss.errors import InputError
from woh_faiss.index.neighbours import scores


@given(st.integers(0, 4), st.integers(0, 9), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_scores_are_inner_products_with_the_signs(q, K, n_bytes, seed):
    rng = np.random.default_rng(seed)
    H = rng.normal(size=(q, 8 * n_bytes))
    packed = rng.integers(0, 256, size=(q, K, n_bytes), dtype=np.uint8)
    signs = codes.unpack(packed.reshape(-1, n_bytes)).reshape(q, K, 8 * n_bytes)
    assert_allclose(scores(H, packed), np.einsum("qr,qkr->qk", H, signs), rtol=1e-4, atol=1e-4)


@pytest.fixture
def index(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 6))
    tags = [["sea"] if x[0] > 0 else ["hill"] for x in X]
    with WOHIndex.create(tmp_path / "index.woh", bits=16, anchors=50, vector_size=4) as index:
        index.update(X, tags, ids=np.arange(300) * 10)
        yield index


@pytest.mark.parametrize("k", [1, 7])
@pytest.mark.parametrize("rerank", [7, 250, 300, 1000])
def test_search_ranks_the_short_list_by_score_then_distance_then_row(index, k, rerank):
    xq = np.random.default_rng(1).normal(size=(5, 6))
    H = index.hasher.decision_function(xq)
    _, I = index.search(xq, min(rerank, 300))
    S, found = index.search(xq, k, rerank=rerank)
    for q in range(5):
        signs = codes.unpack(codes.unpad(index._store.view.codes(I[q]), 16))
        value = scores(H[q : q + 1], codes.pack(signs)[None])[0]
        # I comes by distance, then row: Python's stable sort keeps that order among equal scores
        naive = sorted(zip(value.tolist(), I[q].tolist(), strict=True), key=lambda pair: -pair[0])[:k]
        assert_allclose(S[q], [score for score, _ in naive])
        assert found[q].tolist() == [item for _, item in naive]
    assert (np.diff(S) <= 0).all()
    assert S.dtype == np.float32
    assert found.shape == (5, k)


def test_where_items_are_missing(index):
    S, I = index.search(np.zeros((1, 6)), 400, rerank=400)
    assert (I[0, 300:] == -1).all()
    assert np.isneginf(S[0, 300:]).all()
    assert set(I[0, :300]) == set(range(0, 3000, 10))


def test_an_index_that_has_learned_nothing(tmp_path):
    with WOHIndex.create(tmp_path / "index.woh") as index:
        S, I = index.search(np.zeros((2, 6)), 3, rerank=10)
    assert_array_equal(I, np.full((2, 3), -1))
    assert np.isneginf(S).all()


def test_fewer_than_k_are_refused(index):
    with pytest.raises(InputError, match="rerank is 2, expected at least k = 3"):
        index.search(np.zeros((1, 6)), 3, rerank=2)
