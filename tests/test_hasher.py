import io

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from woh_faiss import codes
from woh_faiss.errors import InputError
from woh_faiss.learner.hasher import Hasher
from woh_faiss.learner.instance import InstanceMap, unit_single
from woh_faiss.learner.kernel import Kernel


@pytest.fixture(params=[0, 24], ids=["learned bits alone", "both halves"])
def hasher(request):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 6)).astype(np.float32)
    s = request.param
    instance = InstanceMap.fit(unit_single(X), s, 0, 40) if s else None
    return Hasher(Kernel.fit(X, X[:9]), rng.normal(size=(9, 16)), instance)


def test_encode_is_the_sign_of_phi_P(hasher):
    X = np.random.default_rng(1).normal(size=(7, 6))
    H = hasher.kernel.map(X) @ hasher.P
    assert_allclose(hasher.decision_function(X), H, atol=2e-5)
    found = codes.unpack(hasher.encode(X))
    assert_array_equal(found[:, :16], np.where(H >= 0, 1, -1))
    assert (hasher.d, hasher.bits) == (6, 16)
    assert found.shape == (7, 16 + hasher.instance_bits)
    if hasher.instance is not None:
        unit = X / np.linalg.norm(X, axis=1, keepdims=True)
        a = (unit - hasher.instance.mean) @ hasher.instance.R
        assert_array_equal(found[:, 16:], np.where(a >= 0, 1, -1))


def test_halves_are_what_the_score_takes(hasher):
    X = np.random.default_rng(1).normal(size=(7, 6))
    h, a = hasher.halves(X)
    H = np.tanh(2 * hasher.decision_function(X))
    assert_allclose(h, H / np.abs(H).sum(axis=1, keepdims=True), rtol=1e-5)
    assert (a is None) == (hasher.instance is None)
    if a is not None:
        A = hasher.instance.project(X)
        assert_allclose(a, A / np.abs(A).sum(axis=1, keepdims=True), rtol=1e-5)
        assert_array_equal(codes.pack(a), hasher.encode(X)[:, 2:])
    assert_array_equal(codes.pack(h), hasher.encode(X)[:, :2])
    for row in range(7):
        for one, all_ in zip(hasher.halves(X[row : row + 1]), (h, a), strict=True):
            assert all_ is None or (one == all_[row]).all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_one_row_encodes_as_in_a_batch(hasher, dtype):
    X = np.random.default_rng(2).normal(size=(50, 6)).astype(dtype)
    assert_array_equal(np.vstack([hasher.encode(x[None]) for x in X]), hasher.encode(X))


@pytest.mark.usefixtures("any_blocks")
def test_bits_at_the_edge_are_those_of_the_row_alone(hasher):
    """Rows are moved onto the plane of a bit, where the order of a sum decides its sign."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(300, 6))
    Y = rng.normal(size=(300, 6))
    for column in range(300):
        bit = column % 16
        low, high = X[column], Y[column]
        sign = hasher.decision_function(low[None])[0, bit] >= 0
        for _ in range(50):
            middle = (low + high) / 2
            inside = (hasher.decision_function(middle[None])[0, bit] >= 0) == sign
            low, high = (middle, high) if inside else (low, middle)
        X[column] = low
    alone = np.vstack([hasher.encode(x[None]) for x in X])
    assert_array_equal(hasher.encode(X), alone)
    for step in (2, 7, 64):
        assert_array_equal(np.vstack([hasher.encode(X[i : i + step]) for i in range(0, 300, step)]), alone)
    assert_array_equal(codes.unpack(alone)[:, :16], np.where(hasher.decision_function(X) >= 0, 1, -1))


def test_no_rows_give_no_codes(hasher):
    assert hasher.encode(np.empty((0, 6))).shape == (0, 2 + hasher.instance_bits // 8)
    assert len(hasher.halves(np.empty((0, 6)))[0]) == 0


def test_arrays_round_trip(hasher):
    X = np.random.default_rng(3).normal(size=(5, 6))
    again = Hasher.from_arrays(hasher.arrays(), hasher.kernel.A.astype(np.float32))
    assert_array_equal(again.decision_function(X), hasher.decision_function(X))
    assert_array_equal(again.encode(X), hasher.encode(X))
    assert again.fingerprint == hasher.fingerprint
    assert (again.bits, again.instance_bits) == (hasher.bits, hasher.instance_bits)


def test_a_file_has_both_halves(hasher, tmp_path):
    X = np.random.default_rng(3).normal(size=(5, 6))
    hasher.save(tmp_path / "hasher.npz")
    again = Hasher.load(tmp_path / "hasher.npz")
    assert again.fingerprint == hasher.fingerprint
    assert_array_equal(again.encode(X), hasher.encode(X))
    for one, other in zip(again.halves(X), hasher.halves(X), strict=True):
        assert (one is None) == (other is None)
        assert one is None or (one == other).all()


def test_instance_bits_alone_make_a_hash_function(tmp_path):
    X = np.random.default_rng(3).normal(size=(50, 6)).astype(np.float32)
    own = Hasher.of_instance(InstanceMap.fit(unit_single(X), 16, 0, 50))
    assert (own.d, own.bits, own.instance_bits) == (6, 0, 16)
    assert_array_equal(own.encode(X), own.instance.packed(unit_single(X)))
    assert own.halves(X)[0] is None
    own.save(tmp_path / "own.npz")
    assert_array_equal(Hasher.load(tmp_path / "own.npz").encode(X), own.encode(X))


def test_halves_of_other_widths_are_refused(hasher):
    if hasher.instance is None:
        return
    arrays = hasher.arrays()
    for name, wrong in (("instance_mean", np.zeros(5)), ("instance_R", np.zeros((6, 12))),
                        ("instance_R", np.zeros((6, 0))), ("instance_n", np.asarray(-1))):  # fmt: skip
        with pytest.raises(InputError):
            Hasher.from_arrays({**arrays, name: wrong}, hasher.kernel.A.astype(np.float32))
    with pytest.raises(KeyError):
        Hasher.from_arrays({k: v for k, v in arrays.items() if k != "instance_n"}, hasher.kernel.A)


def test_another_width_is_refused(hasher):
    with pytest.raises(InputError, match="features have 5 columns, the model was fitted with 6"):
        hasher.encode(np.ones((2, 5)))


def test_drift_is_the_share_of_anchors_whose_bit_turned(hasher):
    turned = hasher.P.copy()
    turned[:, 3] *= -1  # every anchor's
    turned[:, 5] = np.random.default_rng(4).normal(size=9)
    A = hasher.kernel.A
    some = np.mean((hasher.kernel.map(A) @ turned[:, 5] >= 0) != (hasher.decision_function(A)[:, 5] >= 0))
    drift = hasher.drift(Hasher(hasher.kernel, turned))
    assert_allclose(drift, np.eye(16)[3] + some * np.eye(16)[5])
    assert not hasher.drift(hasher).any()


def test_a_stream_holds_what_a_file_holds(hasher, tmp_path):
    hasher.save(tmp_path / "h.npz")
    stream = io.BytesIO()
    hasher.save(stream)
    assert stream.getvalue() == (tmp_path / "h.npz").read_bytes()
    stream.seek(0)
    X = np.random.default_rng(1).normal(size=(7, 6))
    assert_array_equal(Hasher.load(stream).encode(X), hasher.encode(X))
    with pytest.raises(InputError):
        Hasher.load(io.BytesIO(stream.getvalue()[:-300]))
