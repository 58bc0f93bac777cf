import faiss
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from woh_faiss.errors import InputError
from woh_faiss.evaluation.baselines import faiss_yardsticks as yardsticks
from woh_faiss.evaluation.metrics import mean_average_precision
from woh_faiss.learner.kernel import unit_rows


def data(n=300, d=20, seed=0):
    """Four groups of items, and their labels."""
    rng = np.random.default_rng(seed)
    group = rng.integers(4, size=n)
    return np.eye(4, d)[group] * 4 + rng.normal(size=(n, d)), np.eye(4, dtype=bool)[group]


#: Those that are one index of Faiss.
INDEXES = [name for name in yardsticks.MAKERS if name != "faiss-itq"]


@pytest.mark.parametrize("name", INDEXES)
@pytest.mark.parametrize("n_bytes", [9, 16])
def test_an_item_takes_the_bytes_asked_for(name, n_bytes):
    x = np.ascontiguousarray(data(d=80)[0], np.float32)
    index = yardsticks.MAKERS[name](x, n_bytes)
    index.train(x)
    assert index.sa_code_size() == n_bytes


@pytest.mark.parametrize("name", INDEXES)
def test_every_item_has_its_distance(name):
    """Oracle: distances to what the index decodes its items to (PQ), to signs (LSH), roughly (RaBitQ)."""
    X, _ = data()
    x = np.ascontiguousarray(unit_rows(X), np.float32)
    found = yardsticks.search(name, X, X[:5], 12)
    index = yardsticks.MAKERS[name](x, 12)
    index.train(x)
    bytes_ = index.sa_encode(x)
    if name == "faiss-lsh":
        assert_array_equal(found, np.unpackbits(bytes_[:5, None] ^ bytes_[None], axis=2).sum(axis=2))
    elif name == "faiss-pq":
        decoded = index.sa_decode(bytes_)
        assert_allclose(found, np.square(x[:5, None] - decoded[None]).sum(axis=2), atol=1e-5)
    else:
        real = np.square(x[:5, None] - x[None]).sum(axis=2)
        assert np.corrcoef(found.ravel(), real.ravel())[0, 1] > 0.8


@pytest.mark.parametrize(("n_bytes", "bits"), [(2, 16), (12, 20)])
def test_itq_ranks_signs_by_products_with_the_query(n_bytes, bits):
    X, _ = data()
    x = np.ascontiguousarray(unit_rows(X), np.float32)
    turn = faiss.ITQTransform(20, bits, True)
    turn.train(x)
    A = turn.apply(x).astype(np.float64)
    products = A[:5] @ np.where(A >= 0, 1.0, -1.0).T
    # ‖a − c‖² = ‖a‖² − 2 a·c + bits
    want = (A[:5] ** 2).sum(axis=1)[:, None] - 2 * products + bits
    assert_allclose(yardsticks.search("faiss-itq", X, X[:5], n_bytes), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", yardsticks.MAKERS)
def test_a_yardstick_is_a_distance_of_the_evaluation(name):
    X, labels = data()
    distance = yardsticks.ranker(name, X, 12)
    score = mean_average_precision(X[:20], X, labels[:20], labels, distance=distance)
    assert score > 0.6  # chance is 0.25


@pytest.mark.parametrize(
    ("name", "n", "n_bytes", "said"),
    [
        ("faiss-hnsw", 300, 8, "index is 'faiss-hnsw', expected one of faiss-lsh"),
        ("faiss-pq", 255, 8, "given 255 items, expected at least 256"),
        ("faiss-rabitq", 300, 8, "asked for 8 bytes an item, expected more than the 8"),
        ("faiss-lsh", 300, 0, "n_bytes is 0"),
    ],
)
def test_what_no_index_can_be_made_of_is_refused(name, n, n_bytes, said):
    with pytest.raises(InputError, match=said):
        yardsticks.ranker(name, data(n)[0], n_bytes)


def test_another_database_is_refused():
    X, _ = data()
    with pytest.raises(InputError, match="the database is"):
        yardsticks.ranker("faiss-lsh", X, 8)(X[:3], X[1:])
    with pytest.raises(InputError, match="queries have 19 columns"):
        yardsticks.search("faiss-lsh", X, X[:3, 1:], 8)
