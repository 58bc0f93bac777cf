"""Tags as queries and predicted tags, against their definitions and on a stream whose answer is known."""

import numpy as np
import pytest
from conftest import SMALL, WORDS, tagged
from numpy.testing import assert_allclose, assert_array_equal

from woh_faiss import WOH, Chunk, WOHIndex, WordVectors, codes
from woh_faiss.errors import InputError, NotFittedError
from woh_faiss.index.tag_queries import TagQueries


@pytest.fixture(params=["adaptive", "paper"])
def index(request, tmp_path):
    with WOHIndex.create(tmp_path / "i.woh", **{**SMALL, "bits": 32}, preset=request.param) as index:
        for seed in range(3):
            index.update(*tagged(seed, n=80))
        yield index


def naive_bits(index, tags):
    """The least-squares problem solved as one, by lstsq."""
    meaning = index._model.tag_queries(index._store.view)
    known = list(meaning.vocabulary.tags)
    Y = np.array([[float(tag in given) for tag in known] for given in tags])
    Z = (Y @ meaning.vocabulary.E) / Y.sum(axis=1, keepdims=True)
    if meaning.side is not None:
        from scipy.sparse import csr_array

        df = np.array([meaning.vocabulary.counts[tag] for tag in known], float)
        Y, Z = meaning.side.y(csr_array(Y), df, meaning.n).toarray(), meaning.side.z(Z)
    V, W, r = meaning.V, meaning.W, 32
    A = np.hstack([V[:r], W[:r]]).T
    ridge = 0.1 * np.trace(A.T @ A) / r
    aim = np.hstack([Z - V[r], Y - W[r]]).T
    stacked = np.vstack([A, np.sqrt(ridge) * np.eye(r)])
    return np.linalg.lstsq(stacked, np.vstack([aim, np.zeros((r, len(tags)))]), rcond=None)[0].T


def test_bits_of_tags_are_the_least_squares_decode(index):
    tags = [["sea"], ["Hill", "snow"], ["city", "night", "unheard of"]]
    expected = naive_bits(index, [["sea"], ["hill", "snow"], ["city", "night"]])
    assert_allclose(index._model.tag_queries(index._store.view).bits(tags), expected, rtol=1e-6, atol=1e-9)


def test_search_tags_scores_every_code_against_those_bits(index):
    S, I = index.search_tags([["sea"], ["snow"]], 7)
    H = index._model.tag_queries(index._store.view).bits([["sea"], ["snow"]])
    stored = codes.unpack(index._store.view.codes(np.arange(240)))[:, :32].astype(float)
    kind = H @ stored.T / np.abs(H).sum(axis=1, keepdims=True)
    assert_allclose(S, -np.sort(-kind, axis=1)[:, :7], rtol=1e-5)
    assert S.shape == I.shape == (2, 7)
    one = index.search_tags(["sea"], 7)
    assert_array_equal(one[1], I[:1])


def test_tags_find_items_that_carry_them(tmp_path):
    with WOHIndex.create(tmp_path / "i.woh", **{**SMALL, "bits": 32, "anchors": 60}) as index:
        for seed in range(4):
            index.update(*tagged(seed, n=80))
        for word in WORDS:
            _, I = index.search_tags([word], 20)
            carried = [word in item.tags for item in index.items(I[0])]
            assert np.mean(carried) > 0.8
        predicted = index.explain(np.arange(320), most=2)
        carried = [item.tags for item in index.items(np.arange(320))]
        hits = [best[0][0] in tags for best, tags in zip(predicted, carried, strict=True)]
        assert np.mean(hits) > 0.8
        assert all(first[1] >= second[1] for first, second in predicted)
        unseen, tags = tagged(9, n=50)
        hits = [b[0][0] in t for b, t in zip(index.explain_features(unseen, most=1), tags, strict=True)]
        assert np.mean(hits) > 0.7


def test_features_and_tags_together_count_in_equal_parts(index):
    xq = tagged(7, n=2)[0]
    S, _ = index.search_tags([["sea"], ["sea"]], 3, xq=xq)
    sides = (
        index._model.tag_queries(index._store.view).bits([["sea"]] * 2),
        index.hasher.halves(xq)[0],
    )
    H = [M / np.linalg.norm(M, axis=1, keepdims=True) for M in sides]
    stored = codes.unpack(index._store.view.codes(np.arange(240))).astype(float)
    both = H[0] + H[1]
    kind = both @ stored[:, :32].T / np.abs(both).sum(axis=1, keepdims=True)
    same = index.hasher.halves(xq)[1] @ stored[:, 32:96].T
    assert_allclose(S, -np.sort(-(kind + np.maximum(same, 0) ** 8), axis=1)[:, :3], rtol=1e-4)
    with pytest.raises(InputError, match="there are 1 tag lists for 2 rows of features"):
        index.search_tags(["sea"], 3, xq=xq)


def test_unknown_tags_are_answered_through_word_vectors(tmp_path):
    words = tmp_path / "words.txt"
    rng = np.random.default_rng(0)
    known = {word: rng.normal(size=8) for word in WORDS}
    known["ocean"] = known["sea"] + 0.01 * rng.normal(size=8)
    lines = [f"{word} " + " ".join(f"{x:.4f}" for x in vector) for word, vector in known.items()]
    words.write_text("\n".join(lines) + "\n")
    vectors = WordVectors.open(words)
    with WOHIndex.create(tmp_path / "i.woh", **{**SMALL, "bits": 32, "anchors": 60}) as index:
        for seed in range(3):
            index.update(*tagged(seed, n=80), word_vectors=vectors)
        _, I = index.search_tags(["ocean"], 20, word_vectors=vectors)
        assert np.mean(["sea" in item.tags for item in index.items(I[0])]) > 0.8
        both = index.search_tags(["ocean", "sea"], 5, word_vectors=vectors)[0]
        assert np.isfinite(both).all()
        for given in (["ocean"], []):
            with pytest.raises(
                InputError, match=r"nothing is known of the tags .*--word-vectors answers others"
            ):
                index.search_tags([given], 3)
        narrow = tmp_path / "narrow.txt"
        narrow.write_text("ocean 1 2\nlake 2 1\n")
        with pytest.raises(InputError, match="word vectors have 2 numbers, the model's have 8"):
            index.search_tags(["ocean"], 3, word_vectors=WordVectors.open(narrow))


def test_an_index_that_has_learned_nothing_says_so(tmp_path):
    with (
        WOHIndex.create(tmp_path / "i.woh") as index,
        pytest.raises(NotFittedError, match="has learned nothing"),
    ):
        index.search_tags(["sea"], 3)


def test_without_a_word_vector_block_tags_alone_answer():
    X, tags = tagged(0, n=80)
    woh = WOH(bits=16, preset="paper", theta=0.0, vector_size=4).partial_fit(X, tags)
    meaning = TagQueries.of(woh.config, woh.state(), woh.vocabulary_)
    assert not meaning.V.any()
    assert np.isfinite(meaning.bits([["sea"]])).all()
    assert meaning.predicted(woh.codes_[:1], most=1)[0][0][0] in WORDS


@pytest.mark.parametrize("preset", ["adaptive", "paper"])
@pytest.mark.parametrize("share", [0.9, 1.0])
def test_a_tag_that_nearly_everyone_carries_says_nothing(tmp_path, preset, share):
    """At 100 % the mean of right items among 10 fell from 10 to chance, because no item is without it."""
    rng = np.random.default_rng(0)
    y = rng.integers(12, size=900)
    X = (rng.normal(size=(12, 24))[y] + rng.normal(size=(900, 24)) / 2).astype(np.float32)
    tags = [[f"class{c}"] + ["photo"] * (rng.random() < share) for c in y]
    how = {"bits": 64, "anchors": 120, "preset": preset}
    with WOHIndex.build(tmp_path / "i.woh", [Chunk.of(X, tags)], **how) as index:
        S, I = index.search_tags([[f"class{c}"] for c in range(12)], 10)
        assert np.mean(y[I] == np.arange(12)[:, None]) > 0.95
        with_it = index.search_tags([["Photo", f"class{c}"] for c in range(12)], 10)
        assert_array_equal(with_it[0], S)
        assert_array_equal(with_it[1], I)
        assert index.search_tags(["photo"], 10)[1].shape == (1, 10)
        with pytest.raises(InputError, match="nothing is known of the tags 'qqqq'"):
            index.search_tags(["qqqq"], 10)
        assert index.unknown_tags(["qqqq", "PHOTO", "class1"]) == ["qqqq"]
