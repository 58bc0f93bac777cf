"""Packed codes against sums of unpacked ones, and Hamming distances through them against the flat scan."""

import re
from itertools import pairwise
from pathlib import Path

import faiss
import numpy as np
import pytest
from conftest import length
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from test_scan import mapped

from woh_faiss import codes as binary
from woh_faiss.store import packed_codes
from woh_faiss.store.packed_codes import PackedCodes, PackedCopies, nearest
from woh_faiss.store.scan import Scan


@st.composite
def packings(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    width, n = draw(st.sampled_from([4, 8, 12, 16, 32])), draw(st.integers(1, 700))
    first = draw(st.integers(0, width - 1))
    few = rng.integers(0, 256, (draw(st.integers(1, 300)), width), dtype=np.uint8)
    return few[rng.integers(len(few), size=n)], first, draw(st.integers(first + 1, width)), rng


def numbers(rng, n, bits, how):
    H = rng.normal(size=(n, bits))
    if how == "signs":
        H = np.sign(H)
    elif how == "steep":
        H **= 5
    elif how == "sparse":
        H *= rng.random(H.shape) < 0.1
    elif how == "zero":
        H *= 0
    return H.astype(np.float32)


HOW = st.sampled_from(["normal", "signs", "steep", "sparse", "zero"])


def check_best(packed, codes, H, K):
    """The sums are as near as they say they are, and no row that is missing has more than the last."""
    D, rows, error = packed.best(H, K)
    assert D.shape == rows.shape == (len(H), K)
    assert (D.dtype, rows.dtype, error.dtype) == (np.float32, np.int64, np.float32)
    true = H.astype(float) @ binary.unpack(codes[:, packed.first : packed.end]).T
    for d, row, e, sums in zip(D, rows, error, true, strict=True):
        there = row[row >= 0]
        assert len(set(there)) == len(there)
        assert (row[len(there) :] == -1).all()
        assert (np.abs(d[: len(there)] - sums[there]) <= e).all()
        assert (np.diff(d) <= 0).all()
        assert (np.delete(sums, there) <= d[-1] + e).all()


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="Linux's huge pages")
def test_large_copies_are_in_huge_pages_where_the_system_has_them():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (500_000, 16), dtype=np.uint8)
    packed = PackedCodes.of(codes, 0, 16)
    (segment,) = packed.segments
    middle = int(segment.index.codes.get()) + segment.index.codes.size() // 2
    ranges = Path("/proc/self/smaps").read_text().split("VmFlags:")
    for spans, flags in pairwise(ranges):
        start, end = (int(at, 16) for at in re.findall(r"^([0-9a-f]+)-([0-9a-f]+) ", spans, re.M)[-1])
        if start <= middle < end:
            assert "hg" in flags.partition("\n")[0].split()
            break
    else:
        pytest.fail("the copy is in no range")
    rows = rng.integers(len(codes), size=9)
    D, _ = packed.listed(binary.unpack(codes[rows]).astype(np.float32), 1)
    assert (np.abs(D - 128) < 1).all()


@settings(deadline=None, max_examples=length(200))
@given(packings(), st.integers(0, 5), st.integers(1, 800), HOW)
def test_sums_are_within_the_bound_and_no_row_outside_is_beyond_it(case, n, K, how):
    codes, first, end, rng = case
    packed = PackedCodes.of(codes, first, end)
    if n:
        check_best(packed, codes, numbers(rng, n, packed.bits, how), K)


@pytest.mark.parametrize("how", ["normal", "signs", "steep", "sparse"])
@pytest.mark.parametrize("bits", [8, 32, 64, 256, packed_codes.WIDEST])
def test_the_bound_holds_for_every_width(bits, how):
    rng = np.random.default_rng(bits)
    codes = rng.integers(0, 256, (3000, bits // 8), dtype=np.uint8)
    H = numbers(rng, 7, bits, how)
    # the largest sum that there is, and the smallest
    codes[:7], codes[7:14] = binary.pack(H), ~binary.pack(H)
    check_best(PackedCodes.of(codes, 0, bits // 8), codes, H, 100)
    check_best(PackedCodes.of(codes, 0, bits // 8), codes, H, 3000)


@settings(deadline=None, max_examples=length(100))
@given(packings(), st.lists(st.integers(0, 150), max_size=6), st.integers(1, 100))
def test_extended_answers_as_packed_at_once(case, added, K):
    codes, first, end, rng = case
    most, packed_codes._SEGMENT = packed_codes._SEGMENT, 200
    try:
        packed = PackedCodes.of(codes[:0], first, end)
        for n in np.cumsum(added):
            before, searched = packed, packed.segments
            packed = packed.extended(codes[:n])
            assert before.segments is searched
            assert packed.rows == min(n, len(codes))
        packed = packed.extended(codes)
        check_best(packed, codes, numbers(rng, 3, packed.bits, "normal"), K)
        assert all(segment.rows <= 200 for segment in packed.segments)
        starts = [segment.start for segment in packed.segments]
        assert starts == np.cumsum([0, *(segment.rows for segment in packed.segments)])[:-1].tolist()
    finally:
        packed_codes._SEGMENT = most


def test_a_long_life_packs_each_row_a_few_times_and_shares_old_segments(monkeypatch):
    packings, pack = [], packed_codes._packed
    monkeypatch.setattr(packed_codes, "_packed", lambda codes: packings.append(len(codes)) or pack(codes))
    codes = np.zeros((300_000, 8), np.uint8)
    packed = PackedCodes.of(codes[:100_000], 0, 8)
    large = packed.segments[0]
    for n in range(102_000, 300_000, 2000):
        packed = packed.extended(codes[:n])
        if n < 120_000:
            assert packed.segments[0] is large
    assert sum(packings) < 8 * len(codes)
    assert len(packed.segments) < 10


@st.composite
def searches(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    width = draw(st.sampled_from([4, 8, 16, 32]))
    end = draw(st.integers(1, width))
    few = rng.integers(0, 256, (draw(st.sampled_from([1, 3, 100, 2000])), width), dtype=np.uint8)
    few[:, end:] = 0
    codes = few[rng.integers(len(few), size=draw(st.integers(1, 3000)))]
    xq = few[rng.integers(len(few), size=draw(st.integers(0, 4)))] ^ draw(st.sampled_from([0, 1, 255]))
    xq[:, end:] = 0
    allowed = (
        None if draw(st.booleans()) else rng.random(len(codes)) < draw(st.sampled_from([0, 0.1, 0.5, 1]))
    )
    return codes, xq.astype(np.uint8), end, allowed


@settings(deadline=None, max_examples=length(300))
@given(searches(), st.sampled_from([1, 2, 10, 100, 4000]))
def test_hamming_is_that_of_the_flat_scan(case, k):
    codes, xq, end, allowed = case
    scan = Scan(mapped(codes), allowed)
    got = nearest(PackedCodes.of(codes, 0, end), scan, xq, k)
    for found, expected in zip(got, scan.nearest(xq, k), strict=True):
        assert found.dtype == expected.dtype
        assert_array_equal(found, expected)


@pytest.mark.parametrize("bits", range(8, packed_codes.WIDEST_HAMMING + 1, 8))
def test_distances_are_whole_at_every_distance(bits):
    rng = np.random.default_rng(bits)
    xq = rng.integers(0, 256, (2, bits // 8), dtype=np.uint8)
    flipped = np.arange(2000) % (bits + 1)
    flips = rng.permuted(np.arange(bits) < flipped[:, None], axis=1)
    flips[: bits + 1] = np.arange(bits) < np.arange(bits + 1)[:, None]
    # all tables off by two bits, which is where all of them are rounded up
    flips[bits + 1 : bits + 9] = np.arange(bits) % 4 < 2
    codes = np.packbits(flips, axis=1, bitorder="little") ^ xq[:1]
    scan, packed = Scan(mapped(codes), None), PackedCodes.of(codes, 0, bits // 8)
    for k in (5, 100):
        for found, expected in zip(nearest(packed, scan, xq, k), scan.nearest(xq, k), strict=True):
            assert_array_equal(found, expected)
    assert_array_equal(nearest(packed, scan, xq, 400)[0], scan.nearest(xq, 400)[0])


def test_a_copy_is_made_once_asked_for_often_enough_and_a_later_state_has_it():
    codes = np.random.default_rng(0).integers(0, 256, (100, 8), dtype=np.uint8)
    copies = PackedCopies(codes[:90])
    assert copies.of(0, 8, 2, 4) is None
    packed = copies.of(0, 8, 2, 4)
    assert packed.rows == 90
    assert copies.of(0, 8, 0, 4) is packed
    assert copies.of(0, 4, 1, 4) is None
    later = copies.extended(codes)
    assert [packed.rows for packed in later] == [100]
    assert [packed.rows for packed in copies] == [90]
    assert later.of(0, 4, 3, 4).rows == 100  # the count goes on


def test_faiss_takes_no_selector():
    """Once it does, filtered searches need not drop what they find."""
    index = PackedCodes.of(np.zeros((64, 8), np.uint8), 0, 8).segments[0].index
    some = faiss.SearchParameters(sel=faiss.IDSelectorRange(0, 5))
    with pytest.raises(RuntimeError, match="not supported"):
        index.search(np.ones((1, 64), np.float32), 3, params=some)
