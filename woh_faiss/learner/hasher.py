"""The frozen hash function, h(x) = sign(φ(x) P): the only part of a model that a query needs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from woh_faiss import codes, validate
from woh_faiss.display import display_path
from woh_faiss.errors import InputError, StoreError
from woh_faiss.io import npz
from woh_faiss.io.atomic_write import write_whole

from .blocks import block_slices
from .kernel import Kernel, Matrix

#: Of the file that `Hasher.save` writes.
FORMAT = 1


@dataclass(frozen=True, eq=False)
class Hasher:
    """Kernel map and projection after some round.

    Attributes
    ----------
    kernel : Kernel
        φ, frozen at round 1.
    P : (m, r) float64
        The projection of that round (Eq. 8).
    """

    kernel: Kernel
    P: Matrix

    @property
    def d(self) -> int:
        """Width of the features it takes."""
        return int(self.kernel.A.shape[1])

    @property
    def bits(self) -> int:
        """Length r of the codes it gives."""
        return int(self.P.shape[1])

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all its numbers, in hex: codes are comparable where it is the same."""
        sha = hashlib.sha256(np.asarray(self.kernel.A, "<f8").tobytes())
        for name, value in sorted(self.arrays().items()):
            sha.update(f"{name} {value.shape} {value.dtype}".encode())
            sha.update(value.tobytes())
        return sha.hexdigest()

    def decision_function(self, X: ArrayLike) -> Matrix:
        """φ(x) P of each row, before the sign: (n, d) of any real dtype → (n, r) float64.

        Raises
        ------
        InputError
            X is not a finite real (n, d) array of the fitted width.
        """
        X = validate.features(X, d=self.d)
        P, bias = self._projection
        H = np.empty((len(X), self.bits))
        for rows in block_slices(len(X)):
            np.subtract(self.kernel.similarities(X[rows]) @ P, bias, out=H[rows])
        return H

    @cached_property
    def _projection(self) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """P (m, r) of the uncentred map, and what the means take off each bit (r,)."""
        P = self.P / self.kernel.scale
        return P.astype(np.float32), self.kernel.mean @ P

    def encode(self, X: ArrayLike) -> NDArray[np.uint8]:
        """Packed codes of each row: (n, d) → (n, r // 8) uint8, in the layout of `codes.pack`.

        Raises
        ------
        InputError
            As `decision_function`.
        """
        return codes.pack(self.decision_function(X))

    def drift(self, earlier: Hasher) -> NDArray[np.float64]:
        """How far codes have moved since an `earlier` function: (r,), a share a bit.

        It is the share of this function's anchors whose bit is another now. Stored codes do not move: this
        is how much more a new query differs from an old item than from a new one.
        """
        A = self.kernel.A
        share: NDArray[np.float64] = (codes.unpack(self.encode(A)) != codes.unpack(earlier.encode(A))).mean(0)
        return share

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Its numbers by name, but for the anchors, which are stored once and apart."""
        kernel = self.kernel
        return {
            "P": self.P,
            "mean": kernel.mean,
            "width": np.asarray(kernel.width),
            "scale": np.asarray(kernel.scale),
            "unit": np.asarray(kernel.unit),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], anchors: NDArray[Any] | None) -> Hasher:
        """The inverse of `arrays`, with the anchors (m, d); None where they are among the arrays.

        Raises
        ------
        KeyError, InputError
            An array is missing, or they are not those of one hash function.
        """
        A = validate.stored(arrays if anchors is None else {"A": anchors}, "A", 2)
        P, mean = validate.stored(arrays, "P", 2), validate.stored(arrays, "mean", 1)
        scalars = {name: validate.stored(arrays, name, 0) for name in ("width", "scale", "unit")}
        if not (len(A) == len(P) == len(mean) and P.shape[1] % 8 == 0 < A.size * P.size):
            raise InputError(f"anchors {A.shape}, P {P.shape} and mean {mean.shape} do not fit each other")
        if not (scalars["width"] > 0 and scalars["scale"] > 0):
            raise InputError(
                f"width is {scalars['width']} and scale {scalars['scale']}, expected more than 0"
            )
        kernel = Kernel(
            A,
            width=float(scalars["width"]),
            mean=mean,
            scale=float(scalars["scale"]),
            unit=bool(scalars["unit"]),
        )
        return cls(kernel, P)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as one .npz file, anchors inside, whole or not at all; the bytes depend on it only.

        Raises
        ------
        StoreError
            The file cannot be written; what was there before still is.
        """
        file = Path(os.fsdecode(path))
        arrays = {**self.arrays(), "A": self.kernel.A, "format": np.asarray(FORMAT)}
        try:
            with write_whole(file, "hasher") as stream:
                npz.write_npz(stream, arrays)
        except OSError as error:
            raise StoreError(
                f"cannot write {display_path(file)}: {error.strerror or error}; give another path"
            ) from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Hasher:
        """What `save` wrote; it needs NumPy only, no index folder and no Faiss.

        Raises
        ------
        InputError
            There is no such file, it is damaged, or no hash function, or one of a newer version.
        """
        arrays = npz.read_arrays(path, "P", ["A", "mean", "width", "scale", "unit", "format"])
        where = display_path(path)
        try:
            if (found := float(validate.stored(arrays, "format", 0))) != FORMAT:
                raise InputError(f"its format is {found:g}, this version reads {FORMAT}")
            return cls.from_arrays(arrays, None)
        except (KeyError, InputError) as error:
            what = f"it has no array {error}" if isinstance(error, KeyError) else error
            raise InputError(
                f"{where} is not a hash function ({what}); write it with index.hasher.save(...)"
            ) from error
