"""Rows that cannot be used, left out where a user says so: which they are, and why."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woh_faiss import budget
from woh_faiss.validate import BLOCK

#: A mask (n,) of rows, and what is wrong with them.
Fault = tuple[NDArray[np.bool_], str]
NOT_FINITE = "features are not finite (NaN or infinite)"


class BadRows:
    """Collects the rows that are left out, each once, however often its file is read.

    Attributes
    ----------
    found : dict of (file, row) to str
        Rows are counted from 0 in their file; the text says what is wrong.
    """

    def __init__(self) -> None:
        self.found: dict[tuple[str, int], str] = {}

    def kept(self, where: str, start: int, n: int, faults: Iterable[Fault]) -> NDArray[np.bool_]:
        """Which of n rows from `start` on have no fault: a mask (n,)."""
        kept = np.ones(n, np.bool_)
        for mask, why in faults:
            for row in np.flatnonzero(mask & kept).tolist():
                if (where, start + row) not in self.found:
                    budget.take(300, "the list of rows that are left out")
                    self.found[where, start + row] = why
            kept &= ~mask
        return kept

    def records(self) -> list[dict[str, Any]]:
        """``{"file", "row", "fault"}`` of each row, in the order they were met."""
        return [{"file": where, "row": row, "fault": why} for (where, row), why in self.found.items()]


def not_finite(X: NDArray[Any]) -> NDArray[np.bool_]:
    """The rows of (n, d) features that hold NaN or infinite values: a mask (n,)."""
    if X.ndim != 2 or X.dtype.kind != "f":
        return np.zeros(len(X), np.bool_)
    parts = [~np.isfinite(X[at : at + BLOCK]).all(axis=1) for at in range(0, len(X), BLOCK)]
    return np.concatenate(parts) if parts else np.zeros(0, np.bool_)


def of_features(X: NDArray[Any]) -> list[Fault]:
    """The faults that rows of an array may have."""
    return [(not_finite(X), NOT_FINITE)]
