"""The instance bits of a code: c(x) = sign((x/‖x‖ − x̄) R), which say which item it is, whatever its tags.

R holds the first s principal directions of items of length 1, turned so that signs lose least (ITQ: Gong and
Lazebnik, CVPR 2011). Both are learned from the first `ENOUGH` items or more and then frozen, so that an item
has the same bits as a query with its features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woh_faiss import codes, validate
from woh_faiss.errors import InputError

from .kernel import Single, products_alone, unit_rows

#: Bits of a code behind the learned ones, unless another number is given.
INSTANCE_BITS = 64
#: Items from which the function is final.
ENOUGH = 2000
#: Items that it is learned from, at most.
MOST = 10_000
#: Turns of the subspace of the principal directions; more change nothing that is measured.
_POWER = 6
#: Turns of ITQ. More lose less of the features, but put near-duplicates on equal codes: with 10 in place of 1
#: .034 fewer pictures of openclipart found themselves first.
_ITQ = 1
#: Numbers nearer to 0 than this may have another sign if they are computed in another order.
_UNSURE = np.float32(2e-5)


@dataclass(frozen=True, eq=False)
class InstanceMap:
    """a(x) = (x/‖x‖ − x̄) R.

    Attributes
    ----------
    mean : (d,) float32
        x̄, of the rows of length 1.
    R : (d, s) float32
        Columns of length 1.
    n : int
        Items it was learned from.
    """

    mean: Single
    R: Single
    n: int

    @property
    def d(self) -> int:
        """Width of the features."""
        return len(self.mean)

    @property
    def bits(self) -> int:
        """s, bits it gives."""
        return int(self.R.shape[1])

    @property
    def final(self) -> bool:
        """Whether it is learned from enough items to stay as it is."""
        return self.n >= ENOUGH

    @cached_property
    def _turned(self) -> Single:
        return np.ascontiguousarray(self.R.T)

    def project(self, X: NDArray[Any]) -> Single:
        """a of each row of X (n, d) of any real dtype: (n, s) float32, each row as if it were alone."""
        return products_alone(unit_single(X) - self.mean, self._turned)

    def packed(self, U: Single) -> NDArray[np.uint8]:
        """Packed instance bits of rows U (n, d) of length 1, as `unit_single` has them: (n, s // 8)."""
        centred = U - self.mean
        A = np.asarray(centred @ self.R, np.float32)
        unsure = np.flatnonzero((np.abs(A) < _UNSURE).any(axis=1))
        A[unsure] = products_alone(centred[unsure], self._turned)
        return codes.pack(A)

    @classmethod
    def fit(cls, U: Single, s: int, seed: int, n: int) -> InstanceMap:
        """Learn s bits from rows U (m, d) of length 1, the `sample` of n items.

        Where there are fewer than s directions, further ones are random, orthonormal among themselves.
        """
        d, rng = U.shape[1], np.random.default_rng((seed, s))
        mean = U.mean(axis=0, dtype=np.float64)
        C = unit_single(U - mean)  # items near the mean count as much as others
        parts = [_directions(C, min(d, s), rng)]
        parts += [_orthonormal(d, min(d, s - first), rng) for first in range(d, s, d)]
        R = np.hstack(parts)
        return cls(mean.astype(np.float32), np.ascontiguousarray(R, np.float32), n)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Its numbers by name."""
        return {
            "instance_mean": self.mean,
            "instance_R": self.R,
            "instance_n": np.asarray(self.n, np.int64),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> InstanceMap | None:
        """The inverse of `arrays`; None where they are not there.

        Raises
        ------
        KeyError, InputError
            Some are missing, or they do not fit each other.
        """
        if "instance_R" not in arrays:
            return None
        mean, R = validate.stored(arrays, "instance_mean", 1), validate.stored(arrays, "instance_R", 2)
        n = validate.stored(arrays, "instance_n", 0)
        if len(R) != len(mean) or R.shape[1] % 8 or not R.size or not n >= 0:
            raise InputError(f"instance_R {R.shape} and instance_mean {mean.shape} do not fit each other")
        return cls(np.asarray(mean, np.float32), np.ascontiguousarray(R, np.float32), int(n))


def sample(n: int, seed: int) -> NDArray[np.intp]:
    """Places of those of n items that the map is learned from, ascending."""
    if n <= MOST:
        return np.arange(n)
    return np.sort(np.random.default_rng((seed, n)).choice(n, MOST, replace=False))


def packed_signs(X: NDArray[Any], instance: InstanceMap) -> NDArray[np.uint8]:
    """`InstanceMap.packed` of a block of features."""
    return instance.packed(unit_single(X))


def unit_single(X: NDArray[Any]) -> Single:
    """Rows of X (n, d) scaled to length 1, computed in float64 and rounded to float32."""
    return unit_rows(X).astype(np.float32)


def _directions(C: Single, s: int, rng: np.random.Generator) -> NDArray[Any]:
    """The first s principal directions of centred rows C (n, d), turned by ITQ; s <= d."""
    Q = _orthonormal(C.shape[1], s, rng)
    for _ in range(_POWER):  # simultaneous iteration: a few turns find what an exact decomposition would
        Q = np.linalg.qr(C.T @ (C @ Q) + np.float32(1e-7) * Q)[0]
    H = C @ Q
    turn = _orthonormal(s, s, rng)
    for _ in range(_ITQ):
        left, _, right = np.linalg.svd(H.T @ np.where(H @ turn >= 0, np.float32(1), np.float32(-1)))
        turn = left @ right
    return np.asarray(Q @ turn)


def _orthonormal(d: int, s: int, rng: np.random.Generator) -> Single:
    return np.linalg.qr(rng.standard_normal((d, s)))[0].astype(np.float32)
