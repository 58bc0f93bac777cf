"""The frozen hash function: r learned bits, sign(φ(x) P), then s instance bits; a query needs no more."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from woh_faiss import codes, score, validate
from woh_faiss.display import display_path
from woh_faiss.errors import InputError, StoreError
from woh_faiss.io import npz
from woh_faiss.io.atomic_write import write_whole

from .blocks import block_slices, split_blocks
from .instance import InstanceMap, packed_signs
from .kernel import Kernel, Matrix, Single, products_alone
from .threads import one_blas_thread

#: Of the file that `Hasher.save` writes.
FORMAT = 1
#: Error of a similarity in float32, at most, that depends on the order of its sums.
_ROUNDING = 6e-7


@dataclass(frozen=True, eq=False)
class Hasher:
    """Kernel map and projection after some round, and the instance bits' map.

    Attributes
    ----------
    kernel : Kernel
        φ, frozen at round 1.
    P : (m, r) float64
        The projection of that round (Eq. 8); r and m are 0 where no bits are learned.
    instance : InstanceMap or None
        What gives the s instance bits; None where there are none.
    """

    kernel: Kernel
    P: Matrix
    instance: InstanceMap | None = None

    @property
    def d(self) -> int:
        """Width of the features it takes."""
        return int(self.kernel.A.shape[1])

    @property
    def bits(self) -> int:
        """r, learned bits of the codes it gives."""
        return int(self.P.shape[1])

    @property
    def instance_bits(self) -> int:
        """s, instance bits of the codes it gives."""
        return 0 if self.instance is None else self.instance.bits

    @classmethod
    def of_instance(cls, instance: InstanceMap) -> Hasher:
        """The hash function of an index that learns nothing from tags."""
        kernel = Kernel(np.zeros((0, instance.d), np.float32), 1.0, np.zeros(0))
        return cls(kernel, np.zeros((0, 0)), instance)

    def beside(self, instance: InstanceMap | None) -> Hasher:
        """The same learned bits with these instance bits behind."""
        return replace(self, instance=instance)

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

        A row's numbers do not depend on the rows beside it, to the bit.

        Raises
        ------
        InputError
            X is not a finite real (n, d) array of the fitted width.
        """
        X = validate.features(X, d=self.d)
        H = np.empty((len(X), self.bits))
        if self.bits:
            P, bias = self._projection
            for rows in block_slices(len(X)):
                K = self.kernel.similarities(X[rows], alone=True)
                np.subtract(products_alone(K, P), bias, out=H[rows])
        return H

    def halves(self, X: ArrayLike) -> tuple[Single | None, Single | None]:
        """What the score takes of queries (n, d): h = tanh(2 φ(x) P) and a, each `score.normalised`.

        Returns
        -------
        h : (n, r) float32, or None where r is 0
        a : (n, s) float32, or None where s is 0

        Raises
        ------
        InputError
            As `decision_function`.
        """
        X = validate.features(X, d=self.d)
        h = score.normalised(np.tanh(2 * self.decision_function(X))) if self.bits else None
        return h, None if self.instance is None else score.normalised(self.instance.project(X))

    @cached_property
    def _projection(self) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """P (r, m) of the uncentred map, and what the means take off each bit (r,)."""
        P = self.P / self.kernel.scale
        return np.ascontiguousarray(P.T, np.float32), self.kernel.mean @ P

    @cached_property
    def _unsure(self) -> NDArray[np.float64]:
        """How near to 0 each bit's number (r,) may have another sign if it is computed in another order."""
        return np.asarray(_ROUNDING * np.abs(self._projection[0]).sum(axis=1, dtype=np.float64))

    def encode(self, X: ArrayLike) -> NDArray[np.uint8]:
        """Packed codes of each row: (n, d) → (n, (r + s) // 8) uint8, in the layout of `codes.pack`.

        A row's code does not depend on the rows beside it.

        Raises
        ------
        InputError
            As `decision_function`.
        """
        X = validate.features(X, d=self.d)
        if not len(X):
            return np.empty((0, (self.bits + self.instance_bits) // 8), np.uint8)
        with one_blas_thread() if len(X) > 1 else nullcontext():
            return np.concatenate(split_blocks(X).map(_packed, self).gathered())

    def _signs(self, X: NDArray[Any]) -> Matrix:
        """Numbers (n, r) with the signs of `decision_function`; many rows are faster."""
        P, bias = self._projection
        H = np.asarray(self.kernel.similarities(X) @ P.T - bias, np.float64)
        unsure = np.flatnonzero((np.abs(H) < self._unsure).any(axis=1))
        H[unsure] = self.decision_function(X[unsure])
        return H

    def drift(self, earlier: Hasher) -> NDArray[np.float64]:
        """How far learned bits have moved since an `earlier` function: (r,), a share a bit.

        It is the share of this function's anchors whose bit is another now. Stored codes do not move: this
        is how much more a new query differs from an old item than from a new one.
        """
        A = self.kernel.A
        ours, before = (codes.unpack(codes.pack(hasher._signs(A))) for hasher in (self, earlier))
        share: NDArray[np.float64] = (ours != before).mean(axis=0)
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
            "near": np.asarray(kernel.near),
            **({} if self.instance is None else self.instance.arrays()),
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
        scalars = {name: validate.stored(arrays, name, 0) for name in ("width", "scale", "unit", "near")}
        instance = InstanceMap.from_arrays(arrays)
        learns = P.size > 0 or instance is None
        sizes = len(A) == len(P) == len(mean) and P.shape[1] % 8 == 0 < A.shape[1]
        if not sizes or (learns and not A.size * P.size) or (instance and instance.d != A.shape[1]):
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
            near=float(scalars["near"]),
        )
        return cls(kernel, P, instance)

    def save(self, path: str | os.PathLike[str] | IO[bytes]) -> None:
        """Write it as one .npz file, anchors inside, whole or not at all; the bytes depend on it only.

        `path` may be a stream for bytes, too, such as an `io.BytesIO`.

        Raises
        ------
        StoreError
            The file cannot be written; what was there before still is.
        """
        arrays = {**self.arrays(), "A": self.kernel.A, "format": np.asarray(FORMAT)}
        if not isinstance(path, str | bytes | os.PathLike):
            npz.write_npz(path, arrays)
            return
        file = Path(os.fsdecode(path))
        try:
            with write_whole(file, "hasher") as stream:
                npz.write_npz(stream, arrays)
        except OSError as error:
            raise StoreError(
                f"cannot write {display_path(file)}: {error.strerror or error}; give another path"
            ) from error

    @classmethod
    def load(cls, path: str | os.PathLike[str] | IO[bytes]) -> Hasher:
        """What `save` wrote, from a path or a stream; it needs NumPy only, no index folder and no Faiss.

        Raises
        ------
        InputError
            There is no such file, it is damaged, or no hash function, or one of a newer version.
        """
        if not isinstance(path, str | bytes | os.PathLike):
            # What checks an .npz reads files.
            with tempfile.NamedTemporaryFile(prefix="stream-", suffix=".npz") as file:
                shutil.copyfileobj(path, file)
                file.flush()
                return cls.load(file.name)
        names = ["A", "mean", "width", "scale", "unit", "near", "format"]
        arrays = npz.read_arrays(path, "P", [*names, "instance_mean", "instance_R", "instance_n"])
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


def _packed(X: NDArray[Any], hasher: Hasher) -> NDArray[np.uint8]:
    """Codes of a block of rows."""
    learned = codes.pack(hasher._signs(X)) if hasher.bits else np.empty((len(X), 0), np.uint8)
    return learned if hasher.instance is None else np.hstack([learned, packed_signs(X, hasher.instance)])


def encoded(X: NDArray[Any], hasher: Hasher) -> NDArray[np.uint8]:
    """`Hasher.encode` of a block of rows."""
    return hasher.encode(X)
