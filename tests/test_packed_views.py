"""An opened store's searches by score and through packed copies, across a refresh and a compaction."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from test_score_scan import made_up, sort_all

from woh_faiss.store import NewRound, Store, packed_codes


def add(store, codes, first_id):
    ids = np.arange(first_id, first_id + len(codes))
    none = [None] * len(codes)
    with store.writing() as writing:
        writing.commit(NewRound("encoded", codes, ids, none, [[] for _ in none], numbered=True))


@pytest.fixture
def stored(tmp_path, monkeypatch):
    monkeypatch.setattr(packed_codes, "_LEAST", 100)
    monkeypatch.setattr(packed_codes, "_WORTH", 2)
    codes, h, a = made_up(9000, distinct=500, nq=4)
    store = Store.create(tmp_path / "index", config={}, d=128)
    add(store, codes[:6000], 0)
    return store, codes, h, a


def test_searches_through_packed_copies_follow_the_writer(stored):
    store, codes, h, a = stored
    reader, before = Store.open(store.path), Store.open(store.path).view
    assert reader.view.packed is not before.packed

    def check(view, codes):
        S, ids = view.score_search(64, 64, h, a, 10, expand=3)
        for got, want in zip((S, ids), sort_all(h, a, codes, 64, 64, 10, "both", None, 3), strict=True):
            assert_array_equal(got, want)
        D, I = view.search(codes[:5], 10)
        for got, want in zip((D, I), view.everything.nearest(codes[:5], 10), strict=True):
            assert_array_equal(got, want)

    check(reader.view, codes[:6000])
    assert {(packed.first, packed.end) for packed in reader.view.packed} == {(0, 8), (8, 16), (0, 16)}
    old = reader.view
    add(store, codes[6000:], 6000)
    assert reader.refresh()
    assert [packed.rows for packed in reader.view.packed] == [9000] * 3
    check(reader.view, codes)
    check(old, codes[:6000])


def test_allowed_and_removed_items_and_a_rewritten_file(stored):
    store, codes, h, a = stored
    store.view.score_search(64, 64, h, a, 10)
    assert len(list(store.view.packed)) == 2
    with store.writing() as writing:
        writing.commit(NewRound("removed", codes[:0], remove=range(0, 6000, 3)))
    allow = np.arange(0, 6000, 2)
    mask = np.arange(6000) % 6 > 0
    mask[1::2] = False
    S, ids = store.view.score_search(64, 64, h, a, 10, allow=allow)
    expected = sort_all(h, a, codes[:6000], 64, 64, 10, "both", mask, 0)
    assert_array_equal(ids, expected[1])
    assert_array_equal(S, expected[0])
    store.compact()
    assert not list(store.view.packed)
    again, ids = store.view.score_search(64, 64, h, a, 10, allow=allow)
    assert_array_equal(again, expected[0])
    assert_array_equal(ids, expected[1])
