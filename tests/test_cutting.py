"""The paper's preparation against a naive one."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from woh_faiss.errors import InputError
from woh_faiss.evaluation.datasets import cut, prepared, usual_tags
from woh_faiss.inputs.chunk import Chunk
from woh_faiss.tags.tag_lists import TagLists
from woh_faiss.tags.vocabulary import normalise
from woh_faiss.tags.word_vectors import WordVectors

WORDS = ["sea", "Sea", "new-york", "new_york", "sun", "-", "hill"]


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    path = tmp_path_factory.mktemp("vectors") / "v.txt"
    path.write_text("2 2\nsea 1 0\nsun 0 1\n")
    return WordVectors.open(path)


@given(
    typed=st.lists(st.lists(st.sampled_from(WORDS), unique=True), min_size=1, max_size=12),
    least=st.integers(1, 4),
    known=st.booleans(),
)
def test_usual_tags_are_the_naive_ones(vectors, typed, least, known):
    counts = Counter(form for tags in typed for form in {normalise(tag) for tag in tags} if form)
    good = {form for form, count in counts.items() if count >= least}
    if known:
        good &= {"sea", "sun"}
    expected = [[tag for tag in tags if normalise(tag) in good] for tags in typed]
    arguments = {"min_count": least, "word_vectors": vectors if known else None}
    lists = TagLists.from_lists(typed)
    n = len(typed)
    chunk = Chunk.of(np.arange(n)[:, None], lists, ids=np.arange(n), labels=np.eye(n, 3))
    if not any(expected):
        with pytest.raises(InputError, match=f"none of .* tags is carried by {least} of {n} items"):
            usual_tags(lists, **arguments)
        return
    found = usual_tags(lists, **arguments)
    assert [found.of_row(i) for i in range(n)] == expected
    assert set(found.names) == {tag for tags in expected for tag in tags}
    left = prepared(chunk, **arguments)
    rows = [i for i in range(n) if expected[i]]
    assert [left.tags.of_row(i) for i in range(len(left))] == [expected[i] for i in rows]
    assert_array_equal(left.features[:, 0], rows)
    assert_array_equal(left.ids, rows)
    assert_array_equal(left.labels, np.eye(n, 3)[rows])


def test_a_set_without_tags_is_refused():
    with pytest.raises(InputError, match="no tags to prepare"):
        prepared(Chunk.of([[1.0]]))
    with pytest.raises(InputError, match="min_count is 0"):
        usual_tags(TagLists.from_lists([["a"]]), min_count=0)


def test_the_papers_last_chunk():
    assert cut(16833, 2000) == [2000] * 7 + [2833]
    assert cut(5, 9) == [5]


@given(st.integers(1, 500), st.integers(1, 60))
def test_cut_leaves_nothing_out(n, size):
    sizes = cut(n, size)
    assert sum(sizes) == n
    assert all(s == size for s in sizes[:-1])
    assert sizes[-1] < 2 * size
    assert len(sizes) == 1 or sizes[-1] >= size
