"""Orders, wrong and missing tags of an evaluated stream, against what their words say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from woh_faiss.errors import InputError
from woh_faiss.evaluation.streaming import stream
from woh_faiss.evaluation.troubles import ordered, sampled_first, spoiled
from woh_faiss.inputs.chunk import Chunk
from woh_faiss.learner.config import WOHConfig
from woh_faiss.tags.tag_lists import TagLists

rows_and_seed = st.tuples(st.integers(1, 60), st.integers(0, 5))


def classes(n, seed, several=False):
    rng = np.random.default_rng(seed)
    labels = np.zeros((n, 5), bool)
    labels[np.arange(n), rng.integers(5, size=n)] = True
    if several:
        labels[:, 4] = True  # the commonest, which no item counts for if it has another
    return labels


@given(rows_and_seed, st.booleans())
def test_by_label_classes_come_one_after_another(n_seed, several):
    n, seed = n_seed
    labels = classes(n, seed, several)
    rest = np.random.default_rng(seed).permutation(n)
    got = ordered(rest, labels, "by-label", seed)
    assert sorted(got) == list(range(n))
    count = labels.sum(axis=0)
    own = np.array([min(np.flatnonzero(labels[row]), key=lambda c: (count[c], c)) for row in got])
    starts = np.flatnonzero(np.diff(own, prepend=-1))
    assert len(starts) == len(set(own))  # each class is one run
    for c in set(own):  # whose items keep the order of the stream
        assert_array_equal(got[own == c], [row for row in rest if row in set(got[own == c])])


def test_new_labels_come_late():
    labels = classes(400, 3)
    got = ordered(np.random.default_rng(3).permutation(400), labels, "new-labels-late", 3)
    own = labels[got].argmax(axis=1)
    first = set(own[:40])
    assert 1 < len(first) < 5
    switch = next(i for i, c in enumerate(own) if c not in first)
    assert not first & set(own[switch:])


def test_given_and_random_orders():
    rest = np.array([5, 1, 3])
    labels = classes(6, 0)
    assert ordered(rest, labels, "given", 0).tolist() == [1, 3, 5]
    assert ordered(rest, labels, "random", 0) is rest


@given(rows_and_seed, st.integers(0, 60))
def test_a_sample_and_the_rest_are_the_stream(n_seed, m):
    n, seed = n_seed
    rest = np.random.default_rng(seed).permutation(n)
    sample, others = sampled_first(rest, min(m, n), seed)
    assert len(sample) == min(m, n)
    assert sorted([*sample, *others]) == list(range(n))
    for part in (sample, others):
        assert_array_equal(part, [row for row in rest if row in set(part)])


@given(st.integers(2, 60), st.floats(0, 1), st.floats(0, 1), st.integers(0, 5))
def test_shares_of_tags_are_exchanged_and_missing(n, wrong, untagged, seed):
    tags = TagLists.from_lists([[f"tag{i}"] for i in range(n + 3)])
    rows = np.random.default_rng(seed).permutation(n)  # the last three are not streamed
    got = spoiled(tags, rows, wrong, untagged, seed)
    lists = [got.of_row(i) for i in range(n + 3)]
    assert lists[n:] == [[f"tag{i}"] for i in range(n, n + 3)]
    assert lists.count([]) == round(untagged * n)
    moved = [i for i in range(n) if lists[i] not in ([], [f"tag{i}"])]
    most = round(wrong * n)
    assert len(moved) <= most
    if not untagged and most != 1:
        assert len(moved) == most
        assert sorted(map(str, lists)) == sorted(str([f"tag{i}"]) for i in range(n + 3))


def test_a_stream_with_troubles_is_measured_on_true_labels():
    rng = np.random.default_rng(0)
    topic = rng.integers(4, size=240)
    X = np.eye(4, 12)[topic] + rng.normal(size=(240, 12)) / 5
    chunk = Chunk.of(X, [[f"tag{t}"] for t in topic], labels=topic)
    config = WOHConfig(bits=16, anchors=20, min_count=1)

    def last(**how):
        found = [r for r in stream(chunk, [config], chunks=4, queries=60, **how) if r.method == "woh"]
        assert [r.round for r in found] == [1, 2, 3, 4]
        assert found[-1].database == 180
        return found[-1].map

    clean = last()
    assert clean > 0.9
    assert last(wrong_tags=1.0) < clean - 0.1
    assert last(untagged=0.5) <= clean
    assert last(order="by-label") < clean
    assert last(order="by-label", first_sample=60) > last(order="by-label")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"wrong_tags": 1.5}, "wrong_tags is 1.5, expected a share between 0 and 1"),
        ({"untagged": -0.1}, "untagged is -0.1"),
        ({"untagged": True}, "untagged is True"),
        ({"order": "sorted"}, "order is 'sorted', expected one of random, given, by-label"),
        ({"first_sample": -1}, "first_sample is -1"),
        ({"first_sample": 29}, "1 items cannot be cut into 3 chunks"),
    ],
)
def test_troubles_are_checked(how, words):
    chunk = Chunk.of(np.eye(40), [["a"]] * 40, labels=np.zeros(40, int))
    with pytest.raises(InputError, match=words):
        stream(chunk, [WOHConfig(bits=8)], chunks=4, queries=10, **how)
