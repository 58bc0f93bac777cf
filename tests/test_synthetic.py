"""The made-up stream: deterministic, and the shares are what was asked for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from woh_faiss.errors import InputError
from woh_faiss.evaluation import streaming
from woh_faiss.evaluation.datasets import synthetic
from woh_faiss.inputs.chunk import concatenate
from woh_faiss.learner.config import WOHConfig


def lists(chunk):
    return [chunk.tags.of_row(i) for i in range(len(chunk))]


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 60),
    more=st.integers(0, 40),
    size=st.integers(1, 30),
    labels=st.integers(3, 6),
    seed=st.integers(0, 2**40),
)
def test_a_longer_stream_begins_like_a_shorter(n, more, size, labels, seed):
    short = list(synthetic(n, 3, labels=labels, size=size, seed=seed))
    long = concatenate(list(synthetic(n + more, 3, labels=labels, size=size, seed=seed)), own_names=True)
    assert [len(chunk) for chunk in short] == [size] * (n // size) + ([n % size] if n % size else [])
    one = concatenate(short, own_names=True)
    assert one.features.dtype == np.float32
    assert one.features.tobytes() == long.features[:n].tobytes()
    assert_array_equal(one.labels, long.labels[:n])
    assert_array_equal(one.ids, np.arange(n))
    assert lists(one) == lists(long)[:n]


def test_another_seed_is_another_stream():
    a, b = (next(synthetic(50, seed=seed)) for seed in (0, 1))
    assert not np.array_equal(a.features, b.features)
    assert lists(a) != lists(b)


def counted(**arguments):
    """(tags right, wrong, off topic), items without any, and items, of one big chunk."""
    chunk = next(synthetic(20000, 2, size=20000, **arguments))
    right = wrong = off = bare = 0
    for tags, marks in zip(lists(chunk), chunk.labels, strict=True):
        bare += not tags
        for tag in tags:
            if tag.startswith("any"):
                off += 1
            elif marks[int(tag.removeprefix("label").split("word")[0])]:
                right += 1
            else:
                wrong += 1
    return np.array([right, wrong, off]), bare, len(chunk)


@pytest.mark.parametrize(
    ("wrong", "off_topic", "missing"), [(0, 0, 0), (1, 0, 0.5), (0, 1, 0), (0.3, 0.2, 0.25)]
)
def test_shares_are_those_asked_for(wrong, off_topic, missing):
    # One tag an item at most, so that none is merged with another.
    counts, bare, n = counted(wrong=wrong, off_topic=off_topic, missing=missing, tags=1, seed=3)
    assert bare / n == pytest.approx(missing, abs=0.015)
    assert counts / counts.sum() == pytest.approx([1 - wrong - off_topic, wrong, off_topic], abs=0.015)


def test_labels_decide_the_features():
    chunk = next(synthetic(2000, 128, noise=0.3, labels=5))
    centres = np.stack([chunk.features[chunk.labels[:, j]].mean(axis=0) for j in range(5)])
    nearest = np.argmin(((chunk.features[:, None] - centres) ** 2).sum(axis=2), axis=1)
    assert chunk.labels[np.arange(2000), nearest].mean() > 0.99
    assert chunk.labels.sum(axis=1).mean() == pytest.approx(4 / 3, abs=0.05)


def test_it_can_be_learned_from():
    data = concatenate(list(synthetic(600, 16, labels=5, size=300)))
    config = WOHConfig(bits=16, anchors=60, vector_size=8)
    *_, learned, _, _ = streaming.stream(data, [config], chunks=2, queries=100)
    chance = (data.labels.astype(int) @ data.labels.T > 0).mean()
    assert learned.database == 500
    assert learned.map > chance + 0.1


def test_one_label_and_two():
    assert next(synthetic(9, labels=1, wrong=0)).labels.all()
    assert next(synthetic(99, labels=2, wrong=0)).labels.shape == (99, 2)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"n": 0}, "n is 0, expected at least 1"),
        ({"n": 2.5}, "n is 2.5"),
        ({"seed": -1}, "seed is -1"),
        ({"missing": 1.1}, "missing is 1.1, expected a share"),
        ({"wrong": float("nan")}, "wrong is nan"),
        ({"wrong": 0.6, "off_topic": 0.6}, "at most 1 together"),
        ({"labels": 2}, "need at least 3"),
        ({"tags": 0.5}, "tags and noise are 0.5"),
        ({"noise": float("inf")}, "tags and noise are 4.0 and inf"),
    ],
)
def test_arguments_are_refused_at_once(wrong, words):
    with pytest.raises(InputError, match=words) as caught:
        synthetic(**{"n": 10, **wrong})
    assert str(caught.value).isprintable()
