"""Searching among some of the rows, against a scan that sorts everything."""

import os
import subprocess
import sys

import faiss
import numpy as np
import pytest
from conftest import length
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from woh_faiss.errors import InputError
from woh_faiss.store import NO_DISTANCE, NO_ID, codefile, scan
from woh_faiss.store.scan import Scan, members


def mapped(codes):
    d = 8 * codes.shape[1]
    index = faiss.IndexBinaryFlat(d)
    counting = faiss.IndexBinaryFlat(d)
    counting.use_heap = False
    for each in (index, counting):
        each.add(codes)
    return codefile.MappedCodes(index, counting, codes, None)


def distances(xq, codes):
    return np.unpackbits(xq[:, None] ^ codes[None], axis=2).sum(axis=2, dtype=int)


def sorted_rows(xq, codes, allowed):
    """Each query's allowed rows and their distances, nearest first, then by row."""
    for row in distances(xq, codes):
        order = [i for i in np.lexsort((np.arange(len(row)), row)) if allowed[i]]
        yield row[order], np.array(order, int)


@st.composite
def searches(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    width = draw(st.sampled_from([4, 8, 16, 24]))
    n = draw(st.integers(1, 300))
    few_values = rng.integers(0, 256, (draw(st.integers(1, 40)), width), dtype=np.uint8)  # many ties
    codes = few_values[rng.integers(len(few_values), size=n)]
    xq = few_values[rng.integers(len(few_values), size=draw(st.integers(0, 5)))]
    share = draw(st.sampled_from([0, 0.05, 0.15, 0.5, 0.9, 1]))
    return codes, xq, rng.random(n) < share


@settings(deadline=None, max_examples=length(200))
@given(searches(), st.integers(1, 320))
def test_nearest_is_a_naive_scan_of_the_allowed_rows(case, k):
    codes, xq, allowed = case
    D, I = Scan(mapped(codes), allowed).nearest(xq, k)
    assert D.dtype == np.int32
    assert I.dtype == np.int64
    assert D.shape == I.shape == (len(xq), k)
    for d, i, (distance, rows) in zip(D, I, sorted_rows(xq, codes, allowed), strict=True):
        found = min(k, len(rows))
        assert_array_equal(i, np.append(rows[:k], [NO_ID] * (k - found)))
        assert_array_equal(d, np.append(distance[:k], [NO_DISTANCE] * (k - found)))


@settings(deadline=None, max_examples=length(200))
@given(searches(), st.integers(0, 200))
def test_within_is_a_naive_scan_of_the_allowed_rows(case, radius):
    codes, xq, allowed = case
    lims, D, I = Scan(mapped(codes), allowed).within(xq, np.int16(radius))
    assert lims.dtype == I.dtype == np.int64
    assert D.dtype == np.int32
    assert lims[0] == 0
    assert len(lims) == len(xq) + 1
    assert lims[-1] == len(D) == len(I)
    for start, end, (distance, rows) in zip(lims, lims[1:], sorted_rows(xq, codes, allowed), strict=False):
        assert_array_equal(I[start:end], rows[distance < radius])
        assert_array_equal(D[start:end], distance[distance < radius])


def test_a_query_surrounded_by_rows_left_out_still_finds_k():
    codes = np.zeros((1000, 8), np.uint8)
    codes[900:, 0] = np.arange(100)  # all near ones are left out: asking for some more is not enough
    allowed = np.arange(1000) >= 600
    allowed[600:880] = False
    allowed[:500] = True
    xq = np.array([[255] + [0] * 7], np.uint8)
    for k in (1, 10, 250, 900):
        D, I = Scan(mapped(codes), allowed).nearest(xq, k)
        distance, rows = next(sorted_rows(xq, codes, allowed))
        assert_array_equal(I[0, : len(rows)], rows[:k])
        assert_array_equal(D[0, : len(rows)], distance[:k])


def test_parts_of_a_large_batch_are_one_answer(monkeypatch):
    rng = np.random.default_rng(0)
    codes, xq = (rng.integers(0, 256, (n, 8), dtype=np.uint8) for n in (500, 23))
    allowed = rng.random(500) < 0.5
    for among in (None, allowed, allowed & (rng.random(500) < 0.2)):
        whole = Scan(mapped(codes), among)
        expected = [*whole.nearest(xq, 7), *whole.within(xq, 25)]
        monkeypatch.setattr(scan, "_AT_ONCE", 500 * 4)  # four queries at a time
        parted = Scan(mapped(codes), among)
        for got, want in zip([*parted.nearest(xq, 7), *parted.within(xq, 25)], expected, strict=True):
            assert_array_equal(got, want)
        monkeypatch.undo()


@pytest.mark.parametrize("make", [np.array, list, faiss.IDSelectorBatch], ids=["array", "list", "selector"])
def test_members_are_told_by_arrays_and_by_the_selectors_of_faiss(make):
    ids = np.array([2**62, 7, 0, 5, 12])
    named = make(np.array([7, 2**62, 99])) if make is faiss.IDSelectorBatch else make([7, 2**62, 99])
    assert members(ids, named, "allow").tolist() == [True, True, False, False, False]


def test_a_selector_of_a_range_and_its_opposite():
    ids = np.arange(20) * 3
    inside = faiss.IDSelectorRange(10, 30)
    assert ids[members(ids, inside, "allow")].tolist() == [12, 15, 18, 21, 24, 27]
    assert (members(ids, faiss.IDSelectorNot(inside), "deny") != members(ids, inside, "allow")).all()


@pytest.mark.parametrize(
    ("name", "radius", "said"),
    [("float", 3.5, "whole number"), ("text", "3", "whole number"), ("negative", -1, "at least 0")],
)
def test_a_radius_that_is_none_is_refused(name, radius, said):
    with pytest.raises(InputError, match=said):
        Scan(mapped(np.zeros((3, 8), np.uint8)), None).within(np.zeros((1, 8), np.uint8), radius)


def test_a_radius_beyond_every_distance_finds_all():
    codes = np.random.default_rng(1).integers(0, 256, (9, 8), dtype=np.uint8)
    lims, D, I = Scan(mapped(codes), None).within(codes[:1], 2**40)
    assert lims.tolist() == [0, 9]
    assert sorted(I.tolist()) == list(range(9))
    assert (np.diff(D) >= 0).all()


TIES = """
import sys, numpy as np, faiss
from woh_faiss.store import scan, codefile
scan._SMALL = 0  # use the threads
rng = np.random.default_rng(0)
codes = rng.integers(0, 2, (20_000, 8), dtype=np.uint8)  # few distances: ties everywhere
index, counting = faiss.IndexBinaryFlat(64), faiss.IndexBinaryFlat(64)
counting.use_heap = False
index.add(codes), counting.add(codes)
mapped = codefile.MappedCodes(index, counting, codes, None)
assert faiss.omp_get_max_threads() == int(sys.argv[1])
for allowed in (None, rng.random(20_000) < 0.7, rng.random(20_000) < 0.1):
    for k in (10, 300):
        for array in scan.Scan(mapped, allowed).nearest(codes[:64], k):
            sys.stdout.buffer.write(array.tobytes())
    for array in scan.Scan(mapped, allowed).within(codes[:64], 2):
        sys.stdout.buffer.write(array.tobytes())
"""


@pytest.mark.slow
def test_ties_are_broken_alike_with_one_thread_and_with_eight():
    answers = [
        subprocess.run(
            [sys.executable, "-c", TIES, str(threads)],
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            check=True,
            capture_output=True,
        ).stdout
        for threads in (1, 8)
    ]
    assert len(answers[0]) > 100_000
    assert answers[0] == answers[1]
