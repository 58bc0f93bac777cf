"""Rows by code, and searches by score where thousands of rows share one."""

import numpy as np
import pytest
from conftest import length
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from test_scan import mapped
from test_score_scan import sort_all

from woh_faiss import codes as binary
from woh_faiss import score
from woh_faiss.store import score_scan
from woh_faiss.store.crowds import Crowds
from woh_faiss.store.packed_codes import PackedCopies
from woh_faiss.store.scan import Scan
from woh_faiss.store.score_scan import ScoreScan


@settings(deadline=None, max_examples=length(60))
@given(
    st.integers(0, 2**32), st.integers(0, 300), st.integers(1, 20), st.sampled_from([(0, 1), (1, 9), (2, 12)])
)
def test_rows_are_those_of_their_code(seed, n, distinct, columns):
    rng = np.random.default_rng(seed)
    few = rng.integers(0, 256, (distinct, 12), dtype=np.uint8)
    codes = few[rng.integers(0, distinct, n)]
    first, end = columns
    crowds = Crowds.of(codes, first, end)
    there, of = np.unique(codes[:, first:end], axis=0, return_inverse=True)
    if 16 * len(there) > n:
        assert not len(crowds.codes)
        return
    assert sorted(map(bytes, crowds.codes)) == sorted(map(bytes, there))
    for i, code in enumerate(crowds.codes):
        (j,) = np.flatnonzero((there == code).all(axis=1))
        assert_array_equal(crowds.rows_of(np.array([i])), np.flatnonzero(of.ravel() == j))
    assert sorted(crowds.rows_of(np.arange(len(crowds.codes)))) == list(range(n))


def crowded(rng, n, distinct, popular):
    few = rng.integers(0, 256, (distinct, 8), dtype=np.uint8)
    share = 1 / np.arange(1, distinct + 1) ** popular
    codes = np.hstack([few[rng.choice(distinct, n, p=share / share.sum())], rng.integers(0, 256, (n, 8))])
    return codes.astype(np.uint8)


@pytest.mark.parametrize(("distinct", "popular"), [(3, 0.0), (40, 0.0), (200, 1.3), (600, 0.5)])
@pytest.mark.parametrize("by", ["both", "kind"])
@pytest.mark.parametrize("expand", [0, 3])
@pytest.mark.parametrize("bounds", [(1 << 13, 1 << 16), (50, 400), (0, 0)])
def test_the_k_best_of_crowds_are_those_of_a_sort(monkeypatch, distinct, popular, by, expand, bounds):
    monkeypatch.setattr(score_scan, "_CHEAP", bounds[0])
    monkeypatch.setattr(score_scan, "_DEAR", bounds[1])
    monkeypatch.setattr(score_scan, "_SHARE", 0)
    rng = np.random.default_rng(distinct)
    codes = crowded(rng, 12_000, distinct, popular)
    near = codes[rng.integers(0, len(codes), 6)]
    h = score.normalised(binary.unpack(near[:, :8]) * rng.random((6, 64)))
    a = score.normalised(binary.unpack(near[:, 8:]) * rng.normal(0.5, 1, (6, 64)))
    for allowed in (None, rng.random(len(codes)) < 0.6):
        copies = PackedCopies(codes)
        scan = ScoreScan(copies, Scan(mapped(codes), allowed), 64, 64)
        for k in (1, 10):
            found = scan.search(h, a, k, by=by, expand=expand)
            wanted = sort_all(h, a, codes, 64, 64, k, by, allowed, expand)
            assert_array_equal(found[0], wanted[0])
            assert_array_equal(found[1], wanted[1])


def test_rows_that_came_since_are_found_without_sorting_again():
    rng = np.random.default_rng(1)
    codes = crowded(rng, 20_200, 50, 0.0)
    before = PackedCopies(codes[:20_000])
    h = score.normalised(binary.unpack(codes[-3:, :8]) * rng.random((3, 64)))
    a = score.normalised(binary.unpack(codes[-3:, 8:]) * rng.random((3, 64)))
    ScoreScan(before, Scan(mapped(codes[:20_000]), None), 64, 64).search(h, a, 5)
    held = before.crowds(0, 8)
    after = before.extended(codes)
    assert after.crowds(0, 8) is held
    found = ScoreScan(after, Scan(mapped(codes), None), 64, 64).search(h, a, 5)
    wanted = sort_all(h, a, codes, 64, 64, 5, "both", None, 0)
    assert_array_equal(found[0], wanted[0])
    assert_array_equal(found[1], wanted[1])
    assert found[1][:, 0].tolist() == [20_197, 20_198, 20_199]
    many = before.extended(np.concatenate([codes, codes]))
    assert many.crowds(0, 8).rows == 40_400
