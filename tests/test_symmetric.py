"""Symmetric matrices as their lower triangles."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from woh_faiss.errors import InputError
from woh_faiss.learner.statistics import lower, stored_symmetric


@given(st.integers(0, 40), st.integers(0, 2**32 - 1))
def test_a_triangle_gives_the_matrix_back(p, seed):
    M = np.random.default_rng(seed).normal(size=(p, p))
    M += M.T
    triangle = lower(M)
    assert_array_equal(triangle, [M[i, j] for i in range(p) for j in range(i + 1)])
    found = stored_symmetric({"M": triangle}, "M")
    assert_array_equal(found, M)
    assert found.flags.c_contiguous
    assert found.flags.writeable


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.ones(2), "M has 2 numbers, which do not fill a triangle"),
        (np.ones(3, "c16"), "M has dtype complex128"),
        (np.array([1, 2, np.nan]), "or is not finite"),
        (np.ones((1, 1, 1)), "M has dtype float64 and shape"),
        (np.array(["a"]), "M has dtype <U1"),
    ],
)
def test_what_is_no_matrix_is_refused(values, message):
    with pytest.raises(InputError, match=message):
        stored_symmetric({"M": values}, "M")
    with pytest.raises(KeyError):
        stored_symmetric({}, "M")
