"""Blocks of rows, and the order in which their sums are added."""

import tracemalloc

import numpy as np
import pytest
from conftest import tagged
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from woh_faiss import WOH
from woh_faiss.learner import blocks
from woh_faiss.learner.blocks import FAN_IN, Features, Rows, added, block_slices, split_blocks


@given(st.integers(1, 10 * FAN_IN**2))
def test_sums_are_added_eight_by_eight(n):
    terms = np.random.default_rng(n).normal(size=n)
    level = list(terms)
    while len(level) > 1:
        level = [
            float(np.cumsum(level[i : i + FAN_IN])[-1]) for i in range(0, len(level), FAN_IN)
        ]  # cumsum adds from the left
    assert added({"a": term, "n": 1} for term in terms) == {"a": level[0], "n": n}


@pytest.mark.parametrize("n", [1, 2047, 2048, 2049, 5000])
def test_blocks_cover_the_rows_once(n):
    assert_array_equal(np.concatenate([np.arange(n)[rows] for rows in block_slices(n)]), np.arange(n))
    assert [len(block) for block in split_blocks(np.arange(n)).gathered()][:-1] == [2048] * (
        -(-n // 2048) - 1
    )


def test_steps_see_the_values_of_their_block(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", 3)
    X = np.arange(10.0)
    doubled = split_blocks(X).map(lambda x, y, c: x + y + c, split_blocks(X), 1.0)
    assert isinstance(doubled, Rows)
    assert_array_equal(np.concatenate(doubled.gathered()), 2 * X + 1)
    assert split_blocks(X).sum(lambda x, y: {"dot": x @ y}, split_blocks(X)) == {"dot": X @ X}
    assert len(doubled) == 4


def test_wanted_rows_are_in_blocks_of_their_own(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", 2)
    X = np.arange(14).reshape(7, 2)
    features = Features(X)
    wanted = np.array([1, 0, 0, 1, 1, 0, 1], bool)
    assert [block.tolist() for block in features.rows(wanted).gathered()] == [
        [[0, 1], [6, 7]],
        [[8, 9], [12, 13]],
    ]
    assert np.shares_memory(features.rows().gathered()[1], X)
    assert_array_equal(features.take(np.array([6, 0])), X[[6, 0]])


@pytest.mark.parametrize("preset", ["paper", "adaptive"])
def test_a_map_that_is_not_kept_gives_the_same_round(monkeypatch, preset):
    """Each block is mapped anew whenever it is needed, and all bits are the same."""
    monkeypatch.setattr(blocks, "BLOCK", 16)
    kept, remade = (WOH(bits=16, anchors=20, min_count=1, preset=preset) for _ in range(2))
    for seed in range(3):
        X, tags = tagged(seed, n=70)
        kept.partial_fit(X, tags)
        with monkeypatch.context() as small:
            small.setattr(blocks, "MEMORY", 0)
            remade.partial_fit(X, tags)
        assert_array_equal(remade.codes_, kept.codes_)
        assert_array_equal(remade.trust_, kept.trust_)
        for name, value in kept.state().items():
            assert_array_equal(remade.state()[name], value, err_msg=name)


def test_a_map_that_is_not_kept_takes_the_memory_of_a_block(monkeypatch):
    rng = np.random.default_rng(0)
    X, tags = rng.normal(size=(8000, 4)).astype(np.float32), [[f"{n % 5}"] for n in range(8000)]
    peaks = []
    for memory in (1 << 30, 0):
        monkeypatch.setattr(blocks, "MEMORY", memory)
        woh = WOH(bits=8, anchors=300, min_count=1, preset="paper", iterations=1).partial_fit(X, tags)
        tracemalloc.start()
        woh.partial_fit(X, tags)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    whole, block = 4 * 8000 * 300, 4 * blocks.BLOCK * 300
    assert peaks[0] - peaks[1] > (whole - block) / 2
