import hashlib
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from conftest import length
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array

from woh_faiss.errors import InputError, StoreError
from woh_faiss.tags.tag_lists import TagLists
from woh_faiss.tags.vocabulary import Coverage, Vocabulary, normalise, normalised, spread


class Known:
    """Word vectors of a fixed set of words: width f, made from the word itself."""

    path = "known.vec"

    def __init__(self, words, f=3):
        self.f = f
        self.words = {
            w: np.random.default_rng(list(w.encode())).normal(size=f).astype(np.float32) for w in words
        }

    def lookup(self, tag):
        return self.words.get(normalise(tag))


def lists(*items):
    return TagLists.from_lists([item.split(",") if item else [] for item in items])


def learn(vocabulary, tags, vectors=None, **options):
    return vocabulary.learn(tags, vectors, **{"seed": 0, "vector_size": 4, **options})


# ---- normalisation ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("New_York", "new york"),
        ("new-york", "new york"),
        ("new  york", "new york"),
        (" \tNEW - _york\n", "new york"),
        ("new\u00a0york", "new york"),
        ("new\u2011york", "new york"),
        ("new–york", "new york"),
        ("Ｎｅｗ＿Ｙｏｒｋ", "new york"),
        ("Straße", "strasse"),
        ("ﬁre", "fire"),
        ("cafe\u0301", "café"),
        ("ΣΊΣΥΦΟΣ", "σίσυφοσ"),
        ("İ", "i̇"),
        ("\u0345", "ι"),
        ("①", "1"),
        ("c++", "c++"),
        ("_-_ ", ""),
        ("", ""),
    ],
)
def test_normalise_golden(typed, expected):
    assert normalise(typed) == expected


@settings(max_examples=length(500))
@given(st.text())
def test_normalise_twice_changes_nothing(tag):
    once = normalise(tag)
    assert normalise(once) == once
    assert normalise(f"_{tag.upper().lower()}-") == normalise(tag.upper().lower())
    assert "  " not in once
    assert once == once.strip()


@pytest.mark.slow
def test_normalise_twice_changes_nothing_for_any_character():
    for code in range(sys.maxunicode + 1):
        once = normalise(chr(code))
        assert once == chr(code) or normalise(once) == once


# ---- counts, admission, matrices: against a naive oracle ------------------------------------------------


class Naive:
    """Oracle: one tag and one item at a time, nothing shared with the package but `normalise`."""

    def __init__(self, min_count):
        self.min_count, self.counts, self.tags, self.E = min_count, Counter(), [], {}

    @staticmethod
    def distinct(items):
        return [list(dict.fromkeys(w for w in map(normalise, item) if w)) for item in items]

    @staticmethod
    def shown(items):
        return [{normalise(w): w for w in reversed(item) if normalise(w)} for item in items]

    def learn(self, items, known):
        items = self.distinct(items)
        for item in items:
            self.counts.update(item)
        new = {w for item in items for w in item if w not in self.tags and self.counts[w] >= self.min_count}
        new = sorted(new, key=lambda w: (-self.counts[w], w))
        self.tags += new
        own = [w for w in new if known.lookup(w) is not None]
        self.E |= {w: known.lookup(w).astype(float) for w in own}
        vectored = {w: v for w, v in self.E.items() if v.any()}
        for w in new:
            if w in own:
                continue
            near = [v for item in items if w in item for other, v in vectored.items() if other in item]
            everywhere = [v for other, v in vectored.items() for _ in range(self.counts[other])]
            self.E[w] = np.mean(near or everywhere or [np.zeros(known.f)], axis=0)
        return new, own

    def matrices(self, items):
        Y = np.array([[float(w in item) for w in self.tags] for item in self.distinct(items)])
        means = [[self.E[w] for w in item if w in self.tags] for item in self.distinct(items)]
        return Y, [np.mean(m, axis=0) if m else None for m in means]


# Few tags and several spellings of each, so that they meet, repeat and are admitted at different times.
TAG = st.sampled_from(["a", "A", "b", "c_d", "C-d", "c  d", "e", "f", "g", "ß", "SS", "--", "h"])
CHUNK = st.lists(st.lists(TAG, max_size=5), min_size=1, max_size=8)


@settings(deadline=None)
@given(st.lists(CHUNK, min_size=1, max_size=4), st.integers(1, 4), st.sets(st.sampled_from("abefgh")))
def test_a_stream_equals_the_naive_oracle(chunks, min_count, words):
    known = Known(words)
    vocabulary, naive = Vocabulary(min_count), Naive(min_count)
    for items in chunks:
        before, tags = vocabulary, TagLists.from_lists(items)
        vocabulary, coverage, touched = learn(before, tags, known)
        new, own = naive.learn(items, known)
        assert vocabulary.counts == naive.counts
        assert vocabulary.tags == tuple(naive.tags)
        assert vocabulary.tags[: len(before.tags)] == before.tags
        assert sorted(touched) == sorted({w for item in Naive.distinct(items) for w in item})
        shown = [{normalise(tag): tag for tag in row} for row in normalised(tags).lists()]
        assert shown == Naive.shown(items)
        assert [[*map(normalise, row)] for row in normalised(tags).lists()] == Naive.distinct(items)
        E = np.array([naive.E[w] for w in naive.tags]).reshape(len(naive.tags), vocabulary.f)
        assert_allclose(vocabulary.E, E, atol=1e-12)
        assert_array_equal(vocabulary.E[: len(before.tags)], before.E.reshape(len(before.tags), vocabulary.f))

        Y, Z, known_items = vocabulary.matrices(tags)
        naive_Y, means = naive.matrices(items)
        assert_array_equal(Y.toarray(), naive_Y.reshape(len(items), len(naive.tags)))
        assert Y.dtype == Z.dtype == np.float64
        assert Y.has_canonical_format
        assert_array_equal(Y.data, 1.0)
        assert_array_equal(known_items, [m is not None for m in means])
        assert Z.shape == (len(items), vocabulary.f)
        for row, mean in zip(Z, means, strict=True):
            assert_allclose(row, np.zeros(vocabulary.f) if mean is None else mean, atol=1e-12)
        assert coverage == Coverage(len(new), len(naive.tags), len(own), len(items), int(known_items.sum()))

        again = Vocabulary.from_rows(reversed(vocabulary.rows()), min_count)
        assert (again.tags, again.counts) == (vocabulary.tags, vocabulary.counts)
        assert again.typed == vocabulary.typed
        assert again.E.tobytes() == vocabulary.E.tobytes()


def test_later_chunks_append_columns_and_leave_the_old_ones():
    first = lists("a,b", "b", "c,a")
    one, _, _ = learn(Vocabulary(1), first, Known("abcd"))
    two, _, _ = learn(one, lists("d,a", "aa,d", "c"), Known("abcd"))
    assert one.tags == ("a", "b", "c")
    assert two.tags == ("a", "b", "c", "d", "aa")
    assert_array_equal(two.matrices(first)[0].toarray()[:, :3], one.matrices(first)[0].toarray())
    assert not two.matrices(first)[0].toarray()[:, 3:].any()
    assert_array_equal(two.matrices(first)[1], one.matrices(first)[1])


def test_learning_leaves_the_old_vocabulary_as_it_was():
    one, _, _ = learn(Vocabulary(1), lists("a,b"), Known("ab"))
    counts, E = dict(one.counts), one.E.copy()
    learn(one, lists("a,c", "d"), Known("abcd"))
    assert (one.tags, one.counts) == (("a", "b"), counts)
    assert_array_equal(one.E, E)
    with pytest.raises(ValueError, match="read-only"):
        one.E[0] = 0


def test_a_tag_is_admitted_when_the_stream_has_shown_it_often_enough():
    vocabulary, coverage, touched = learn(Vocabulary(3), lists("a,A", "a"), Known("a"))
    assert (vocabulary.tags, vocabulary.counts, touched) == ((), {"a": 2}, ["a"])
    assert coverage == Coverage(0, 0, 0, 2, 0)
    Y, Z, known = vocabulary.matrices(lists("a", ""))
    assert (Y.shape, Z.shape, known.tolist()) == ((2, 0), (2, 0), [False, False])
    vocabulary, coverage, _ = learn(vocabulary, lists("a"), Known("a"))
    assert (vocabulary.tags, vocabulary.f) == (("a",), 3)
    assert coverage == Coverage(1, 1, 1, 1, 1)


def test_items_and_chunks_without_tags():
    vocabulary, coverage, touched = learn(Vocabulary(1), lists("", "", ""))
    assert (vocabulary.tags, touched) == ((), [])
    assert coverage == Coverage(0, 0, 0, 3, 0)
    assert normalised(lists("", "-", "a")).lists() == [[], [], ["a"]]
    Y, Z, known = vocabulary.matrices(TagLists.from_lists([]))
    assert (Y.shape, Z.shape, known.shape) == ((0, 0), (0, 0), (0,))


# ---- vectors of new tags --------------------------------------------------------------------------------


def test_an_unknown_tag_takes_the_mean_of_the_tags_it_occurs_with():
    known = Known("ab")
    vocabulary, coverage, _ = learn(Vocabulary(1), lists("a,x", "a,x", "b,x,y", "y", "z", "b"), known)
    a, b = (known.lookup(w).astype(float) for w in "ab")
    E = dict(zip(vocabulary.tags, vocabulary.E, strict=True))
    assert_allclose(E["x"], (2 * a + b) / 3)
    assert_allclose(E["y"], b)  # x has no vector of its own
    assert_allclose(E["z"], (a + b) / 2)  # occurs with nothing: all of them, by count
    assert coverage.tags_with_vector == 2


def test_a_file_may_be_left_out_later():
    one, _, _ = learn(Vocabulary(1), lists("a", "a", "b"), Known("ab"))
    two, coverage, _ = learn(one, lists("c,a", "d"), None, vector_size=99)
    assert_allclose(two.E[2:], [one.E[0], (3 * one.E[0] + one.E[1]) / 4])
    assert coverage.tags_with_vector == 0


def test_zeros_are_no_vector():
    known = Known("abc")
    known.words["b"][:] = 0
    one, coverage, _ = learn(Vocabulary(1), lists("b", "x"), known)
    assert not one.E.any()
    assert coverage.tags_with_vector == 0
    two, coverage, _ = learn(one, lists("a", "a,b,y", "c", "w"), known)
    E = dict(zip(two.tags, two.E, strict=True))
    assert not E["b"].any()
    assert coverage.tags_with_vector == 2
    assert_allclose(E["y"], known.lookup("a"))
    assert_allclose(E["w"], (2 * E["a"] + E["c"]) / 3)


def test_a_file_of_another_width_is_refused():
    one, _, _ = learn(Vocabulary(1), lists("a"), Known("a", f=3))
    with pytest.raises(InputError, match=r"known\.vec have 5 numbers each, .* created with 3"):
        learn(one, lists("b"), Known("b", f=5))


# ---- vectors learned from the first chunk ---------------------------------------------------------------


def topics(n=200, seed=1):
    """Items of two topics that share no tag; plus the odd rare one."""
    rng = np.random.default_rng(seed)
    words = [f"{'cat' if i % 2 else 'car'}{j}" for i in range(n) for j in rng.choice(8, 3, replace=False)]
    return TagLists.from_lists([[*words[i : i + 3], f"once{i}"] for i in range(0, 3 * n, 3)])


def test_learned_vectors_tell_topics_apart():
    vocabulary, coverage, _ = learn(Vocabulary(2), topics(), vector_size=16)
    assert vocabulary.E.shape == (16, 16)
    assert coverage == Coverage(16, 16, 16, 200, 200)
    unit = vocabulary.E / np.linalg.norm(vocabulary.E, axis=1, keepdims=True)
    cat = np.array([tag.startswith("cat") for tag in vocabulary.tags])
    likeness = unit @ unit.T
    assert likeness[cat][:, cat].min() > likeness[cat][:, ~cat].max()


def test_tags_may_be_learned_in_a_later_chunk_if_none_was_admitted_before():
    one, _, _ = learn(Vocabulary(2), lists("a,b"))
    two, coverage, _ = learn(one, lists("a,b"), vector_size=7)
    assert (two.tags, two.f, coverage.tags_with_vector) == (("a", "b"), 7, 2)


def test_the_seed_decides():
    def vectors(seed):
        return learn(Vocabulary(1), topics(), seed=seed)[0].E

    assert_array_equal(vectors(3), vectors(3))
    assert (vectors(3) != vectors(4)).any()
    assert vectors(2**40).shape == vectors(3).shape


def test_where_no_tags_meet_vectors_are_random_and_seeded():
    vocabulary, coverage, _ = learn(Vocabulary(1), lists("a", "b", "b"))
    assert coverage.tags_with_vector == 0
    assert_allclose(np.linalg.norm(vocabulary.E, axis=1), 1)
    assert_array_equal(vocabulary.E, learn(Vocabulary(1), lists("a", "b", "b"))[0].E)
    assert (vocabulary.E != learn(Vocabulary(1), lists("a", "b", "b"), seed=1)[0].E).all()


def test_long_lists_are_learned_in_bounded_time(monkeypatch):
    monkeypatch.setattr("woh_faiss.tags.vocabulary.PAIRS", 2_000)
    asked = {}

    def spy(**options):
        asked.update(options)
        raise InterruptedError

    monkeypatch.setattr("gensim.models.Word2Vec", spy)
    with pytest.raises(InterruptedError):
        learn(Vocabulary(1), TagLists.from_lists([[f"t{i}" for i in range(500)]] * 30))
    assert (asked["window"], asked["epochs"]) == (5, 1)
    assert {len(words) for words in asked["sentences"]} == {64}
    with pytest.raises(InterruptedError):
        learn(Vocabulary(1), lists("a,b,c", "a,b", "a"))
    assert (asked["window"], asked["epochs"]) == (3, 50)


def test_words_of_long_captions_all_have_vectors():
    rng = np.random.default_rng(0)
    captions = TagLists.from_lists([[f"t{i}" for i in rng.choice(3000, 200)] for _ in range(30)])
    vocabulary, coverage, _ = learn(Vocabulary(1), captions)
    assert coverage.tags_with_vector < coverage.tags_new == len(vocabulary.tags)  # the others: a mean
    assert np.abs(vocabulary.E).sum(axis=1).all()


SCRIPT = """
import hashlib, sys
sys.path[:0] = [{folder!r}, {folder!r} + "/helpers"]
from test_vocabulary import learn, topics
from woh_faiss.tags.vocabulary import Vocabulary
print(hashlib.sha256(learn(Vocabulary(1), topics(), vector_size=16)[0].E.tobytes()).hexdigest())
"""


def test_other_processes_learn_the_same_bytes():
    """Whatever order their sets and hashes have."""
    script = SCRIPT.format(folder=str(Path(__file__).parent))
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "271828")
    ]
    here = hashlib.sha256(learn(Vocabulary(1), topics(), vector_size=16)[0].E.tobytes()).hexdigest()
    assert [run.communicate(timeout=600)[0].strip() for run in runs] == [here, here]


# ---- the catalogue's rows -------------------------------------------------------------------------------


def test_rows_golden():
    vocabulary = Vocabulary(2, ("a",), np.array([[1.0, -0.5]]), {"b": 1, "a": 2})
    a = (0, "a", 2, b"\0\0\0\0\0\0\xf0\x3f\0\0\0\0\0\0\xe0\xbf")
    assert vocabulary.rows() == [(None, "b", 1, None), a]
    assert vocabulary.rows(["a"]) == [a]


def test_rows_of_the_touched_tags_bring_an_older_copy_up_to_date():
    one, _, _ = learn(Vocabulary(2), lists("a,b", "a,c", "b"), Known("ab"))
    table = {row[1]: row for row in one.rows()}
    two, _, touched = learn(one, lists("c,b", "d"), Known("abc"))
    assert set(touched) == {"b", "c", "d"}
    table |= {row[1]: row for row in two.rows(touched)}
    again = Vocabulary.from_rows(table.values(), 2, f=3)
    assert (again.tags, again.counts, again.min_count) == (two.tags, two.counts, 2)
    assert_array_equal(again.E, two.E)


def test_no_rows():
    assert Vocabulary.from_rows([], 3).tags == ()
    assert Vocabulary.from_rows([(None, "a", 1, None)], 3, f=5).f == 5


@pytest.mark.parametrize(
    ("rows", "f", "expected"),
    [
        ([(1, "a", 1, bytes(8))], 0, "do not run from 0"),
        ([(0, "a", 1, bytes(8)), (0, "b", 1, bytes(8))], 0, "do not run from 0"),
        ([(0, "a", 1, bytes(8)), (1, "b", 1, bytes(16))], 0, r"have \[8, 16\] bytes"),
        ([(0, "a", 1, bytes(7))], 0, r"have \[7\] bytes"),
        ([(0, "a", 1, None)], 0, r"have \[0\] bytes"),
        ([(0, "a", 1, bytes(8))], 2, r"have \[8, 16\] bytes"),
    ],
)
def test_damaged_rows_are_refused(rows, f, expected):
    with pytest.raises(StoreError, match=expected):
        Vocabulary.from_rows(rows, 1, f)


@pytest.mark.slow
def test_a_large_chunk_and_vocabulary_take_seconds():
    import time

    rng = np.random.default_rng(0)
    n, c = 100_000, 100_000
    names = tuple(f"tag_{i}" for i in range(c))
    tags = TagLists(names, np.arange(0, 5 * n + 1, 5), rng.permuted(np.arange(5 * n) % c))
    start = time.process_time()
    vocabulary, coverage, _ = learn(Vocabulary(1, ("x",), np.ones((1, 50)), {"x": 1}), tags)
    Y, _, _ = vocabulary.matrices(tags)
    assert coverage.tags_total == c + 1
    assert Y.sum() <= 5 * n
    assert time.process_time() - start < 30


@pytest.mark.parametrize("most", [1, 3, 64])
def test_spread_keeps_so_many_of_a_row_from_all_over_it(most):
    rng = np.random.default_rng(0)
    Y = csr_array((rng.random((40, 200)) < rng.random((40, 1))).astype(float))
    kept = spread(Y, most)
    assert ((kept.toarray() == 0) | (kept.toarray() == Y.toarray())).all()
    assert_array_equal(np.diff(kept.indptr), np.minimum(np.diff(Y.indptr), most))
    for row in np.flatnonzero(np.diff(Y.indptr) > most):
        gaps = np.diff(np.flatnonzero(np.isin(Y[[row]].indices, kept[[row]].indices)))
        assert len(gaps) == 0 or gaps.max() - gaps.min() <= 1
