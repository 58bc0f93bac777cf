import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from woh_faiss import codes
from woh_faiss.errors import InputError
from woh_faiss.learner.hasher import Hasher
from woh_faiss.learner.kernel import Kernel


@pytest.fixture
def hasher():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 6)).astype(np.float32)
    return Hasher(Kernel.fit(X, X[:9]), rng.normal(size=(9, 16)))


def test_encode_is_the_sign_of_phi_P(hasher):
    X = np.random.default_rng(1).normal(size=(7, 6))
    H = hasher.kernel.map(X) @ hasher.P
    assert_allclose(hasher.decision_function(X), H, atol=2e-5)
    assert_array_equal(codes.unpack(hasher.encode(X)), np.where(H >= 0, 1, -1))
    assert (hasher.d, hasher.bits) == (6, 16)


def test_one_row_encodes_as_in_a_batch(hasher):
    X = np.random.default_rng(2).normal(size=(50, 6))
    assert_array_equal(np.vstack([hasher.encode(x[None]) for x in X]), hasher.encode(X))


def test_no_rows_give_no_codes(hasher):
    assert hasher.encode(np.empty((0, 6))).shape == (0, 2)


def test_arrays_round_trip(hasher):
    X = np.random.default_rng(3).normal(size=(5, 6))
    again = Hasher.from_arrays(hasher.arrays(), hasher.kernel.A.astype(np.float32))
    assert_array_equal(again.decision_function(X), hasher.decision_function(X))


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
