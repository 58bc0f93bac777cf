"""Features and word vectors at the ends of their numbers: right answers, or the right message."""

import numpy as np
import pytest
from conftest import SMALL
from numpy.testing import assert_array_equal

from woh_faiss import Chunk, WOHIndex, WordVectors
from woh_faiss.errors import InputError
from woh_faiss.learner.kernel import unit_rows

SCALES = [5e-300, 1e-200, 1e-60, 1e-30, 1e30, 1e60, 1e200, 1e300]


def made(scale=1.0, **how):
    rng = np.random.default_rng(0)
    y = rng.integers(4, size=60)
    X = (rng.normal(size=(4, 8))[y] + rng.normal(size=(60, 8)) / 4) * scale
    return X, Chunk.of(X, [[f"class{c}"] for c in y]), {**SMALL, "bits": 32, **how}


@pytest.mark.parametrize("scale", SCALES)
def test_the_scale_of_features_changes_no_code(tmp_path, scale):
    X, chunk, how = made()
    with WOHIndex.build(tmp_path / "a.woh", [chunk], **how) as index:
        expected = index.encode(X)
        assert_array_equal(index.encode(X * scale), expected)
        assert_array_equal(index.search(X * scale, 5)[1], index.search(X, 5)[1])
    with WOHIndex.build(tmp_path / "b.woh", [made(scale)[1]], **how):
        pass
    with WOHIndex.open(tmp_path / "b.woh") as index:
        assert_array_equal(index.encode(X * scale), expected)
        assert_array_equal([index.reconstruct(i) for i in range(60)], expected)


def test_rows_of_any_length_become_unit_rows():
    X = np.array([[3, 4], [0, 0], [3e-320, 4e-320], [3e307, -4e307], [1e308, 1e308]])
    expected = [[0.6, 0.8], [0, 0], [0.6, 0.8], [0.6, -0.8], [0.5**0.5] * 2]
    np.testing.assert_allclose(unit_rows(X), expected, rtol=1e-3)
    ordinary = np.random.default_rng(1).normal(size=(50, 7))
    beside = np.vstack([ordinary, [[1e300] * 7]])
    assert unit_rows(beside)[:-1].tobytes() == unit_rows(ordinary).tobytes()


@pytest.mark.parametrize(("scale", "which"), [(1e-200, "small"), (1e200, "large"), (1e307, "large")])
def test_the_papers_kernel_says_that_squares_do_not_fit(tmp_path, scale, which):
    _, chunk, how = made(scale, preset="paper")
    with pytest.raises(InputError, match=f"features of the first chunk are too {which} for their squares"):
        WOHIndex.build(tmp_path / "i.woh", [chunk], **how)
    assert not (tmp_path / "i.woh").exists()


@pytest.mark.parametrize("scale", [1e-100, 1e100])
def test_the_papers_codes_survive_reopening_at_any_scale(tmp_path, scale):
    X, chunk, how = made(scale, preset="paper")
    with WOHIndex.build(tmp_path / "i.woh", [chunk], **how) as index:
        expected = index.encode(X)
    with WOHIndex.open(tmp_path / "i.woh") as index:
        assert_array_equal(index.encode(X), expected)
        index.update(X, [["class1"]] * 60)


def vectors_of(seed, tags, f=SMALL["vector_size"]):
    E = np.random.default_rng(seed).normal(size=(len(tags), f)).astype(np.float32)
    return WordVectors(f"{seed}.txt", {tag: at for at, tag in enumerate(tags)}, E)


def test_word_vectors_of_another_space_are_told(tmp_path):
    """Learned from the first chunk, and given later; or of one file, and then of another."""
    tags = [f"class{c}" for c in range(4)]
    one, other = vectors_of(1, [*tags, "new"]), vectors_of(2, [*tags, "new", "newer"])
    X, chunk, how = made()
    for name, first, expected in (("a", None, True), ("b", other, True), ("c", one, False)):
        with WOHIndex.build(tmp_path / name, [chunk], word_vectors=first, **how) as index:
            assert index.vectors_differ(one) is expected
            index.update(X, [["class1", "unheard"]] * 60)  # gets a mean of others
            done = index.update(X, [["class2", "new"]] * 60, word_vectors=one)
            assert done.health["vectors_differ"] is expected
            assert not index.update(X, [["class2", "new"]] * 60, word_vectors=one).health["vectors_differ"]
