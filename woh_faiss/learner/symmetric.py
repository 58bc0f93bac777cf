"""Symmetric matrices as their lower triangles: half the bytes of a model file."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woh_faiss.errors import InputError
from woh_faiss.validate import stored

Matrix = NDArray[np.float64]


def lower(M: Matrix) -> Matrix:
    """The lower triangle of M (p, p), row by row: (p (p + 1) / 2,)."""
    values: Matrix = M[np.tri(len(M), dtype=bool)]
    return values


def stored_symmetric(arrays: Mapping[str, NDArray[Any]], name: str) -> Matrix:
    """The symmetric matrix (p, p) that a model file has as its `lower` triangle.

    KeyError if it is absent, InputError where it is none.
    """
    values = np.asarray(arrays[name])
    p = (isqrt(8 * values.size + 1) - 1) // 2
    if p * (p + 1) // 2 != values.size:
        raise InputError(f"{name} has {values.size} numbers, which do not fill a triangle")
    M, triangle = np.empty((p, p)), np.tri(p, dtype=bool)
    M[triangle] = M.T[triangle] = stored(arrays, name, 1)
    return M
