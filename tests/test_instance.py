"""The instance bits' function: what it promises of any features."""

import numpy as np
import pytest
from conftest import length
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from woh_faiss import codes
from woh_faiss.errors import InputError
from woh_faiss.learner import instance
from woh_faiss.learner.instance import InstanceMap, packed_signs, sample, unit_single


def features(seed, n, d, dtype=np.float32):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) + rng.normal(size=d)
    X[rng.random(n) < 0.05] = 0
    return X.astype(dtype)


@settings(deadline=None, max_examples=length(60))
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 60),
    st.integers(1, 90),
    st.sampled_from([8, 16, 64]),
    st.sampled_from([np.float16, np.float32, np.float64]),
)
def test_a_row_has_its_bits_whatever_is_beside_it(seed, n, d, s, dtype):
    X = features(seed, n, d, dtype)
    function = InstanceMap.fit(unit_single(X), s, 0, n)
    assert (function.d, function.bits, function.n) == (d, s, n)
    assert np.linalg.norm(function.R, axis=0) == pytest.approx(1, abs=1e-4)
    packed, numbers = packed_signs(X, function), function.project(X)
    assert packed.shape == (n, s // 8)
    assert_array_equal(packed, codes.pack(numbers))
    for i in range(n):
        assert_array_equal(packed_signs(X[i : i + 1], function)[0], packed[i])
        assert_array_equal(function.project(X[i : i + 1])[0], numbers[i])
    again = InstanceMap.fit(unit_single(X), s, 0, n)
    assert_array_equal(again.R, function.R)
    back = InstanceMap.from_arrays(function.arrays())
    assert_array_equal(back.project(X), numbers)
    assert back.n == n


def test_the_first_directions_are_orthonormal_and_hold_the_most_variance():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(3000, 40)) * np.r_[np.full(8, 5.0), np.ones(32)]
    function = InstanceMap.fit(unit_single(X), 8, 0, len(X))
    assert pytest.approx(np.eye(8), abs=1e-5) == function.R.T @ function.R
    assert np.square(function.R[:8]).sum() > 7.9


def test_more_bits_than_features_are_other_directions():
    function = InstanceMap.fit(unit_single(features(0, 200, 20)), 64, 0, 200)
    for start in (0, 20, 40):
        block = function.R[:, start : start + 20]
        assert block.T @ block == pytest.approx(np.eye(20), abs=1e-5)
    assert np.abs(np.corrcoef(function.R.T))[np.triu_indices(64, 1)].max() < 0.999


def test_scale_does_not_matter_and_equal_items_are_no_error():
    X = features(3, 100, 12)
    function = InstanceMap.fit(unit_single(X), 16, 0, 100)
    for factor in (1e-30, 4.0, 1e30):
        assert_array_equal(packed_signs(X.astype(float) * factor, function), packed_signs(X, function))
    same = InstanceMap.fit(unit_single(np.ones((50, 5))), 8, 0, 50)
    assert np.isfinite(same.R).all()


def test_it_is_final_with_enough_items_and_learned_from_a_sample_of_many(monkeypatch):
    assert not InstanceMap.fit(unit_single(features(0, 10, 4)), 8, 0, 1999).final
    assert InstanceMap.fit(unit_single(features(0, 10, 4)), 8, 0, 2000).final
    assert_array_equal(sample(7, 0), np.arange(7))
    monkeypatch.setattr(instance, "MOST", 50)
    some = sample(1000, 3)
    assert len(np.unique(some)) == 50
    assert (np.diff(some) > 0).all()
    assert_array_equal(some, sample(1000, 3))


@pytest.mark.parametrize(
    "wrong",
    [
        {"instance_R": np.ones((3, 8))},
        {"instance_R": np.ones((4, 7))},
        {"instance_R": np.zeros((0, 8)), "instance_mean": np.zeros(0)},
        {"instance_n": np.asarray(-1)},
        {"instance_mean": np.array([1, 2, 3, np.nan])},
    ],
)
def test_arrays_that_do_not_fit_are_refused(wrong):
    arrays = InstanceMap.fit(unit_single(features(0, 20, 4)), 8, 0, 20).arrays()
    with pytest.raises(InputError):
        InstanceMap.from_arrays({**arrays, **wrong})
    assert InstanceMap.from_arrays({}) is None
