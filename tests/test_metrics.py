from __future__ import annotations

from itertools import pairwise, permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from woh_faiss.errors import InputError
from woh_faiss.evaluation import metrics
from woh_faiss.evaluation.metrics import (
    average_precision,
    cosine,
    hamming,
    l2,
    mean_average_precision,
    precision_at,
)

GOLDEN = Path(__file__).parent / "golden" / "map.npz"


@pytest.fixture(scope="module")
def golden():
    """60 codes of 6 bits, 12 queries, 3 with nothing relevant: what the published evaluation codes gave.

    `kept`: WOH; `dropped` and `at_20`: MIHash; `ap`: OSH, a query each; `single`: SDH, one label an item;
    `woh_*`: 2,000 codes of 16 bits learned by the published WOH.
    """
    with np.load(GOLDEN, allow_pickle=False) as file:
        return dict(file)


def saturated(Bq, Bd):
    return hamming(Bq, Bd, saturated_bytes=True)


def naive_average_precision(distances, relevant, at=None):
    order = sorted(range(len(distances)), key=lambda i: (distances[i], i))[:at]
    precisions = []
    for rank, i in enumerate(order, start=1):
        if relevant[i]:
            precisions.append((len(precisions) + 1) / rank)
    return sum(precisions) / len(precisions) if precisions else None


def naive_tied(distances, relevant):
    """Mean over every order of the items in which no two distances are out of order."""
    n = len(distances)
    orders = [o for o in permutations(range(n)) if all(distances[a] <= distances[b] for a, b in pairwise(o))]
    values = [naive_average_precision(range(n), [relevant[i] for i in order]) for order in orders]
    return None if values[0] is None else sum(values) / len(values)


def stream(seed=0, q=9, n=50, n_bytes=1, n_labels=4):
    """Codes of few values, so that ties are many; some queries share no label with anything."""
    rng = np.random.default_rng(seed)
    Bq, Bd = (rng.integers(0, 8, (k, n_bytes), dtype=np.uint8) for k in (q, n))
    return Bq, Bd, rng.random((q, n_labels)) < 0.2, rng.random((n, n_labels)) < 0.2


class TestGolden:
    def arguments(self, g):
        return g["Bq"], g["Bd"], g["Lq"], g["Ld"]

    def test_distances(self, golden):
        assert_array_equal(hamming(golden["Bq"], golden["Bd"]), golden["distances"])

    @pytest.mark.parametrize(
        ("value", "options"),
        [("kept", {}), ("dropped", {"drop_empty": True}), ("at_20", {"drop_empty": True, "at": 20})],
    )
    def test_published_rules(self, golden, value, options):
        found = mean_average_precision(*self.arguments(golden), **options)
        assert found == pytest.approx(float(golden[value]), abs=1e-12)

    def test_each_query(self, golden):
        relevant = (golden["Lq"][:, None] & golden["Ld"][None]).any(axis=2)
        assert_allclose(average_precision(golden["distances"], relevant), golden["ap"], rtol=1e-12)

    def test_one_label_an_item(self, golden):
        classes = np.arange(10)
        labels = (golden[name][:, None] == classes for name in ("single_q", "single_db"))
        found = mean_average_precision(golden["Bq"], golden["Bd"], *labels)
        assert found == pytest.approx(float(golden["single"]), abs=1e-12)

    @pytest.mark.parametrize(("value", "distance"), [("woh_saturated", saturated), ("woh_true", hamming)])
    def test_saturated_bytes_are_the_difference_to_the_published_code(self, golden, value, distance):
        labels = (np.unpackbits(golden[name], axis=1).astype(bool) for name in ("woh_Lq", "woh_Ld"))
        found = mean_average_precision(golden["woh_Bq"], golden["woh_Bd"], *labels, distance=distance)
        assert found == pytest.approx(float(golden[value]), abs=1e-6)


@given(st.integers(0, 5), st.integers(0, 40), st.integers(1, 17), st.integers(0, 2**32 - 1))
def test_hamming_counts_bits(q, n, n_bytes, seed):
    rng = np.random.default_rng(seed)
    Bq, Bd = (rng.choice(np.array([0, 255, 1, 128, 7], np.uint8), (k, n_bytes)) for k in (q, n))
    expected = [
        [sum((int(x) ^ int(y)).bit_count() for x, y in zip(a, b, strict=True)) for b in Bd] for a in Bq
    ]
    assert_array_equal(hamming(Bq, Bd), np.array(expected).reshape(q, n))
    capped = [
        [sum(min((int(x) ^ int(y)).bit_count(), 7) for x, y in zip(a, b, strict=True)) for b in Bd]
        for a in Bq
    ]
    assert_array_equal(saturated(Bq, Bd), np.array(capped).reshape(q, n))


def test_hamming_of_whole_bytes():
    """A byte whose 8 bits all differ counts 8."""
    codes = np.array([[255, 0], [0, 0]], np.uint8)
    assert hamming(codes[:1], codes[1:]).item() == 8
    assert saturated(codes[:1], codes[1:]).item() == 7


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("at", [None, 1, 7, 50, 80])
@pytest.mark.parametrize("drop_empty", [False, True])
def test_map_equals_the_naive_oracle(seed, at, drop_empty):
    Bq, Bd, Lq, Ld = stream(seed)
    values = [
        naive_average_precision(
            [(int(a[0]) ^ int(b[0])).bit_count() for b in Bd], [(x & y).any() for y in Ld], at
        )
        for a, x in zip(Bq, Lq, strict=True)
    ]
    kept = [v for v in values if v is not None] if drop_empty else [v or 0.0 for v in values]
    found = mean_average_precision(Bq, Bd, Lq, Ld, at=at, drop_empty=drop_empty)
    assert found == pytest.approx(sum(kept) / len(kept), abs=1e-12)


@pytest.mark.parametrize("k", [1, 10, 50, 99])
def test_precision_equals_the_naive_oracle(k):
    Bq, Bd, Lq, Ld = stream(1)
    shares = []
    for a, x in zip(Bq, Lq, strict=True):
        order = sorted(range(len(Bd)), key=lambda i: ((int(a[0]) ^ int(Bd[i, 0])).bit_count(), i))[:k]
        shares.append(sum(bool((x & Ld[i]).any()) for i in order) / len(order))
    assert precision_at(k, Bq, Bd, Lq, Ld) == pytest.approx(sum(shares) / len(shares), abs=1e-12)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=6))
def test_tie_aware_is_the_mean_over_all_orders_of_ties(items):
    distances, relevant = zip(*items, strict=True)
    (found,) = average_precision(np.array([distances]), np.array([relevant]), tie_aware=True)
    expected = naive_tied(distances, relevant)
    assert np.isnan(found) if expected is None else found == pytest.approx(expected, abs=1e-12)


def test_tie_aware_is_the_plain_value_without_ties_and_ignores_positions_with_them():
    rng = np.random.default_rng(3)
    relevant = rng.random((4, 30)) < 0.3
    untied = rng.permuted(np.tile(np.arange(30), (4, 1)), axis=1)
    assert_allclose(average_precision(untied, relevant, tie_aware=True), average_precision(untied, relevant))
    tied, order = untied // 7, rng.permutation(30)
    assert_allclose(
        average_precision(tied, relevant, tie_aware=True),
        average_precision(tied[:, order], relevant[:, order], tie_aware=True),
    )


@pytest.mark.parametrize("tie_aware", [False, True])
@pytest.mark.parametrize("distance", [hamming, saturated, l2, cosine])
def test_blocks_change_nothing(monkeypatch, distance, tie_aware):
    Bq, Bd, Lq, Ld = stream(2, n_bytes=2)
    whole = mean_average_precision(Bq, Bd, Lq, Ld, distance=distance, tie_aware=tie_aware)
    precision = precision_at(5, Bq, Bd, Lq, Ld, distance=distance)
    monkeypatch.setattr(metrics, "CELLS", 120)  # 2 queries
    monkeypatch.setattr(metrics, "ROWS", 7)
    assert mean_average_precision(Bq, Bd, Lq, Ld, distance=distance, tie_aware=tie_aware) == pytest.approx(
        whole
    )
    assert precision_at(5, Bq, Bd, Lq, Ld, distance=distance) == pytest.approx(precision)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8])
def test_float_rankings(dtype):
    rng = np.random.default_rng(0)
    Xq, Xd = (rng.normal(size=(k, 6)) * 9 for k in (5, 40))
    Xd[3] = 0
    Xq, Xd = Xq.astype(dtype), Xd.astype(dtype)
    a, b = Xq.astype(float), Xd.astype(float)
    squares = ((a[:, None] - b[None]) ** 2).sum(axis=2)
    assert_allclose(l2(Xq, Xd) + (a**2).sum(axis=1, keepdims=True), squares, rtol=1e-4, atol=1e-2)
    norms = np.linalg.norm(b, axis=1)
    norms[3] = 1
    assert_allclose(cosine(Xq, Xd), -(a @ b.T) / norms, rtol=1e-4, atol=1e-3)


class TestRefusals:
    def test_both_at_and_tie_aware(self):
        with pytest.raises(InputError, match="one of them"):
            average_precision(np.zeros((1, 2)), np.ones((1, 2), bool), at=1, tie_aware=True)

    def test_shapes(self):
        with pytest.raises(InputError, match=r"\(1, 2\).*\(1, 3\)"):
            average_precision(np.zeros((1, 2)), np.ones((1, 3), bool))

    @pytest.mark.parametrize("at", [0, -1, 2.5])
    def test_at(self, at):
        with pytest.raises(InputError, match=r"^at is "):
            average_precision(np.zeros((1, 2)), np.ones((1, 2), bool), at=at)

    def test_code_dtype_and_width(self):
        Bq, Bd, *_ = stream()
        with pytest.raises(InputError, match="dtype int64, expected 2-D uint8"):
            hamming(Bq.astype(int), Bd)
        with pytest.raises(InputError, match="2 bytes, those of the database 1"):
            hamming(np.hstack([Bq, Bq]), Bd)

    def test_labels(self):
        Bq, Bd, Lq, Ld = stream()
        with pytest.raises(InputError, match="9 queries and labels of shape"):
            mean_average_precision(Bq, Bd, Lq[1:], Ld)
        with pytest.raises(InputError, match="3 columns, those of the database 4"):
            mean_average_precision(Bq, Bd, Lq[:, :3], Ld)

    def test_nothing_to_average(self):
        Bq, Bd, Lq, Ld = stream()
        with pytest.raises(InputError, match="no queries"):
            mean_average_precision(Bq[:0], Bd, Lq[:0], Ld)
        with pytest.raises(InputError, match="leaves nothing"):
            mean_average_precision(Bq, Bd, Lq, np.zeros_like(Ld), drop_empty=True)
        assert mean_average_precision(Bq, Bd, Lq, np.zeros_like(Ld)) == 0
        assert mean_average_precision(Bq, Bd[:0], Lq, Ld[:0]) == 0
        with pytest.raises(InputError, match="database is empty"):
            precision_at(1, Bq, Bd[:0], Lq, Ld[:0])
