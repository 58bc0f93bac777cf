"""The k best by score against a sort of all scores."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import length
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from test_scan import mapped

from woh_faiss import codes as binary
from woh_faiss import score
from woh_faiss.store import score_scan
from woh_faiss.store.packed_codes import PackedCopies
from woh_faiss.store.scan import Scan
from woh_faiss.store.score_scan import ScoreScan


def all_scores(h, a, codes, r, s, by):
    """Each query's score of each row: (n, rows)."""
    packed = np.broadcast_to(codes, (len(h), *codes.shape))
    kind = score.sums(score.tables(h), packed[:, :, : r // 8]) if r and by != "instance" else None
    same = score.sums(score.tables(a), packed[:, :, r // 8 : (r + s) // 8]) if s and by != "kind" else None
    return score.combined(kind, same)


def sort_all(h, a, codes, r, s, k, by, allowed, expand):
    if not len(h):
        return np.empty((0, k), np.float32), np.empty((0, k), np.int64)
    S = all_scores(h, a, codes, r, s, by)
    rows = np.arange(len(codes)) if allowed is None else np.flatnonzero(allowed)
    order = np.array([rows[np.lexsort((rows, -each[rows]))] for each in S], int).reshape(len(S), len(rows))
    if expand and r and by != "instance" and len(rows):
        expanded = score.expanded(h, codes[order[:, :expand], : r // 8])
        return sort_all(expanded, a, codes, r, s, k, by, allowed, 0)
    best, lack = order[:, :k], ((0, 0), (0, max(0, k - len(rows))))
    return (
        np.pad(np.take_along_axis(S, best, axis=1), lack, constant_values=-np.inf),
        np.pad(best, lack, constant_values=-1),
    )


def score_scan_of(codes, r, s, allowed=None):
    return ScoreScan(PackedCopies(codes), Scan(mapped(codes), allowed), r, s)


@st.composite
def cases(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    widths = st.sampled_from([0, 8, 16, 32, 64, 96])
    r, s = draw(st.tuples(widths, widths).filter(any))
    n = draw(st.integers(1, 3000))

    def half(bits):
        """Bits of which few, many or no rows are equal."""
        distinct = rng.integers(0, 256, (draw(st.sampled_from([1, 4, 300, n])), bits // 8), dtype=np.uint8)
        return distinct[rng.integers(len(distinct), size=n)]

    codes = binary.pad(np.concatenate([half(r), half(s)], axis=1))
    asked = rng.integers(n, size=draw(st.integers(0, 5)))
    noise = draw(st.sampled_from([0, 0.5, 3]))
    signs = binary.unpack(codes[asked])[:, : r + s]
    H = signs * rng.exponential(size=signs.shape) + noise * rng.normal(size=signs.shape)
    if draw(st.booleans()):
        H[: len(H) // 2] = 0
    allowed = None if draw(st.booleans()) else rng.random(n) < draw(st.sampled_from([0, 0.03, 0.3, 0.9, 1]))
    return codes, r, s, score.normalised(H[:, :r]), score.normalised(H[:, r:]), allowed


@settings(deadline=None, max_examples=length(400))
@given(
    cases(),
    st.sampled_from([1, 2, 10, 100, 4000]),
    st.sampled_from(["both", "kind", "instance"]),
    st.sampled_from([0, 3]),
    st.sampled_from([0.0, 1.0]),
)
def test_the_k_best_are_those_of_a_sort_of_all_scores(case, k, by, expand, most):
    codes, r, s, h, a, allowed = case
    by = by if r and s else "both"
    # Also where lists prove it that are as long as all rows, and where they begin short.
    changed = {"_ALL": 10, "_MOST_FIRST": 1.0, "_MOST": most or 1 / 16, "_TIMES": 1, "_SPARE": 3}
    kept = {name: getattr(score_scan, name) for name in changed}
    vars(score_scan).update(changed)
    try:
        scan = score_scan_of(codes, r, s, allowed)
        expected = sort_all(h, a, codes, r, s, k, by, allowed, expand)
        alone = [scan.search(h[i : i + 1], a[i : i + 1], k, by, expand) for i in range(len(h))]
        S, rows = scan.search(h if r else None, a if s else None, k, by, expand)
    finally:
        vars(score_scan).update(kept)
    assert (S.dtype, rows.dtype, S.shape, rows.shape) == (np.float32, np.int64, (len(h), k), (len(h), k))
    assert_array_equal(rows, expected[1])
    assert_array_equal(S, expected[0])
    for i, (scores, found) in enumerate(alone):
        assert_array_equal(scores[0], S[i])
        assert_array_equal(found[0], rows[i])


def made_up(n, r=64, s=64, distinct=None, nq=20, seed=0):
    """Codes, and queries that are noisy copies of some: with `distinct` learned codes, unequally popular."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 256, (n, (r + s) // 8), dtype=np.uint8)
    if distinct:
        learned = rng.integers(0, 256, (distinct, r // 8), dtype=np.uint8)
        codes[:, : r // 8] = learned[np.minimum(rng.zipf(1.3, n) - 1, distinct - 1)]
    signs = binary.unpack(codes[rng.integers(n, size=nq)])
    H = signs * rng.exponential(size=signs.shape) + rng.normal(size=signs.shape)
    return codes, score.normalised(H[:, :r]), score.normalised(H[:, r:])


@pytest.mark.parametrize("distinct", [None, 1, 20, 5000])
@pytest.mark.parametrize("expand", [0, 3])
def test_large_indexes_with_crowds_of_equal_learned_codes(distinct, expand):
    codes, h, a = made_up(150_000, distinct=distinct, nq=5)
    scan = score_scan_of(codes, 64, 64)
    for k in (1, 10, 100):
        expected = sort_all(h, a, codes, 64, 64, k, "both", None, expand)
        one = score_scan_of(codes, 64, 64).search(h[:1], a[:1], k, expand=expand)  # not packed
        for got, want, first in zip(scan.search(h, a, k, expand=expand), expected, one, strict=True):
            assert_array_equal(got, want)
            assert_array_equal(first[0], want[0])


def test_a_first_question_is_answered_without_packing_and_a_second_packs():
    codes, h, a = made_up(5000)
    scan = score_scan_of(codes, 64, 64)
    scan.search(h[:1], a[:1], 5)
    assert not list(scan.copies)
    scan.search(h[:1], a[:1], 5)
    assert sorted((packed.first, packed.end) for packed in scan.copies) == [(0, 8), (8, 16)]


def test_expansion_is_two_questions():
    codes, h, a = made_up(5000)
    scan = score_scan_of(codes, 64, 64)
    scan.search(h[:1], a[:1], 5, expand=3)
    assert len(list(scan.copies)) == 2


def test_expansion_scans_the_instance_bits_once(monkeypatch):
    codes, h, a = made_up(50_000)
    scan, scans = score_scan_of(codes, 64, 64), []
    best = score_scan.PackedCodes.best
    monkeypatch.setattr(
        score_scan.PackedCodes, "best", lambda self, H, K: scans.append(self.first) or best(self, H, K)
    )
    scan.search(h[:3], a[:3], 10, expand=3)
    assert sorted(scans) == [0, 0, 8]


@settings(deadline=None, max_examples=length(100))
@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(0, 90), st.integers(0, 17))
def test_sums_of_the_same_codes_are_those_of_own_ones_to_the_bit(seed, n, m, n_bytes):
    rng = np.random.default_rng(seed)
    tables = score.tables(rng.normal(size=(n, 8 * n_bytes)).astype(np.float32))
    packed = rng.integers(0, 256, (m, n_bytes), dtype=np.uint8)
    own = np.broadcast_to(packed, (n, m, n_bytes))
    assert_array_equal(score.sums_of_all(tables, packed), score.sums(tables, own))


@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(1, 30), st.sampled_from([0, 0.03, 0.2]))
def test_what_is_cut_off_two_lists_is_in_no_answer(seed, K, K_same, error):
    rng = np.random.default_rng(seed)
    n, k = 20, rng.integers(1, K + 1)
    terms = rng.uniform(rng.uniform(0, 0.9), 1, (2, n, 60)).astype(np.float32)
    S = score.combined(*terms)

    def best(term, length):
        found = term + error * rng.choice(np.float32([-1, 1]), term.shape)
        rows = np.argsort(-found, axis=1)[:, :length]
        return score_scan._List(np.take_along_axis(found, rows, axis=1), rows, np.full(n, error, np.float32))

    whole = best(terms[0], K), best(terms[1], K_same)
    for i in range(n):
        answers = []
        one = [each.of(np.array([i])) for each in whole]
        for lists in (one, score_scan._shorter(*one, k, one[0].most())):
            rows = np.unique(np.concatenate([each.rows[0] for each in lists]))
            answers.append(rows[np.lexsort((rows, -S[i, rows]))][:k])
        assert_array_equal(*answers)


@given(st.lists(st.integers(0, 5), max_size=60), st.integers(1, 20), st.randoms())
def test_of_equal_scores_those_of_smaller_rows_come_first(scores, k, random):
    S, rows = np.array(scores, np.float32), np.array(random.sample(range(100), len(scores)), int)
    first = score_scan._first(S, rows, k)
    assert list(zip(-S[first], rows[first], strict=True)) == sorted(zip(-S, rows, strict=True))[:k]


THREADS = """
import sys, numpy as np, faiss
from test_score_scan import made_up, score_scan_of
from woh_faiss.store import scan
scan._SMALL = 0  # use the threads
assert faiss.omp_get_max_threads() == int(sys.argv[1])
for distinct in (None, 20):
    codes, h, a = made_up(20_000, distinct=distinct, nq=70)
    for allowed in (None, np.arange(20_000) % 3 > 0):
        for array in score_scan_of(codes, 64, 64, allowed).search(h, a, 10, expand=3):
            sys.stdout.buffer.write(array.tobytes())
"""


@pytest.mark.slow
def test_one_thread_and_many_answer_alike():
    here = Path(__file__).parent
    answers = [
        subprocess.run(
            [sys.executable, "-c", THREADS, str(threads)],
            env={
                **os.environ,
                "OMP_NUM_THREADS": str(threads),
                "PYTHONPATH": os.pathsep.join(map(str, (here, here / "helpers"))),
            },
            check=True,
            capture_output=True,
        ).stdout
        for threads in (1, 8)
    ]
    assert len(answers[0]) > 30_000
    assert answers[0] == answers[1]
