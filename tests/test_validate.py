import numpy as np
import pytest
from numpy.testing import assert_array_equal

from woh_faiss import validate
from woh_faiss.errors import InputError

BASE = np.arange(24).reshape(6, 4)


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", ">i4", "f2", "f4", ">f8"])
def test_real_dtypes_pass_uncopied(dtype):
    X = BASE.astype(dtype)
    assert validate.features(X) is X


@pytest.mark.parametrize("view", [BASE[::2], BASE.T, BASE[::-1], np.asfortranarray(BASE), BASE[:, ::2]])
def test_any_strides_pass(view):
    assert_array_equal(validate.features(view), view)


def test_lists_pass():
    assert_array_equal(validate.features([[1, 2], [3, 4]]), [[1, 2], [3, 4]])


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.ones((2, 2), complex), "features have dtype complex128, expected real numbers"),
        (np.array([["a"]]), "dtype <U1, expected real"),
        (np.ones((2, 2), object), "dtype object, expected real"),
        (np.ones(3), r"shape \(3,\), expected 2-D .*; for one item pass X\[None, :\]"),
        (np.ones((1, 2, 3)), r"shape \(1, 2, 3\), expected 2-D"),
        (np.ones((3, 0)), "no columns"),
        (np.ones((3, 5)), "5 columns, the model was fitted with 4"),
    ],
)
def test_other_arrays_are_refused(X, message):
    with pytest.raises(InputError, match=message):
        validate.features(X, d=4)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [0, 4, 11])
def test_the_first_row_that_is_not_finite_is_named(monkeypatch, bad, row):
    monkeypatch.setattr(validate, "BLOCK", 5)
    X = np.zeros((12, 3), np.float32)
    X[row:, 1] = bad
    with pytest.raises(InputError, match=f"row {row} are not finite"):
        validate.features(X)


@pytest.mark.parametrize("ids", [[3, 0, 2**62], np.array([1, 2, 3], "u1"), np.array([1, 2, 3], ">i4")])
def test_ids_become_int64(ids):
    found = validate.item_ids(ids, 3)
    assert found.dtype == np.int64
    assert found.tolist() == list(ids)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, 2], "there are 2 ids for 3 items"),
        ([1.0, 2.0, 3.0], "dtype float64, expected 1-D integers"),
        ([[1], [2], [3]], r"shape \(3, 1\)"),
        ([5, -2, -3], "id -2 of row 1 is negative"),
        ([4, 9, 4], "id 4 of row 2 is given twice"),
        (np.array([1, 2, 2**63], np.uint64), "id 9223372036854775808 does not fit"),
    ],
)
def test_bad_ids_are_refused(ids, message):
    with pytest.raises(InputError, match=message):
        validate.item_ids(ids, 3)


@pytest.mark.parametrize("k", [1, np.int64(7), np.uint8(3)])
def test_counts_become_python_ints(k):
    assert type(validate.positive_int(k)) is int


@pytest.mark.parametrize("k", [0, -1, 1.0, "3", None, np.float32(2)])
def test_bad_counts_are_refused(k):
    with pytest.raises(InputError, match=r"k is .*, expected"):
        validate.positive_int(k)
