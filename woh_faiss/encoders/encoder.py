"""What every encoder can do, and what files and indexes keep of one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from woh_faiss.errors import InputError, short

T = TypeVar("T")
Features = NDArray[np.float32]

#: The name of a record in the metadata of a Parquet or Arrow file of features.
METADATA = b"woh_faiss.encoder"
#: The column of such a file that it is about.
FEATURES = "features"
#: Pictures or texts that a model gets at once.
BATCH = 32
#: The sides that an encoder may have.
IMAGES, TEXTS = "images", "texts"


class Encoder(Protocol):
    """Gives pictures, texts or both their features.

    Attributes
    ----------
    name : str
        What `open_encoder` opens it by.
    dimension : int
        Numbers of a row of features, d.
    fingerprint : str
        Equal for two encoders if, and only if, they give the same features.
    sides : frozenset of "images", "texts"
        What it takes.
    """

    name: str
    dimension: int
    fingerprint: str
    sides: frozenset[str]

    def embed_images(self, images: Sequence[Any]) -> Features:
        """Features (n, d) float32 of n pictures: paths or Pillow images.

        Raises
        ------
        InputError
            A picture cannot be read, or the encoder takes no pictures.
        """

    def embed_texts(self, texts: Sequence[str]) -> Features:
        """Features (n, d) float32 of n texts; InputError if the encoder takes none."""


@dataclass(frozen=True, slots=True)
class EncoderRecord:
    """What is kept beside features of the encoder that made them; fields as of `Encoder`."""

    name: str
    fingerprint: str
    dimension: int

    @classmethod
    def of(cls, encoder: Encoder) -> EncoderRecord:
        """The record of an encoder."""
        return cls(encoder.name, encoder.fingerprint, encoder.dimension)

    @classmethod
    def from_dict(cls, found: Any) -> EncoderRecord:
        """The record that `to_dict` gave; InputError for anything else."""
        if (
            isinstance(found, dict)
            and found.keys() == {"name", "fingerprint", "dimension"}
            and isinstance(found["name"], str)
            and isinstance(found["fingerprint"], str)
            and type(found["dimension"]) is int
        ):
            record = cls(**found)
            if record.name and re.fullmatch("[0-9a-f]{16,128}", record.fingerprint) and record.dimension > 0:
                return record
        raise InputError(f"{short(found)} is no record of an encoder: name, fingerprint in hex, dimension")

    @classmethod
    def from_json(cls, text: str | bytes) -> EncoderRecord:
        """The record in the metadata of a file of features; InputError where it is none."""
        try:
            return cls.from_dict(json.loads(text))
        except (ValueError, RecursionError):
            raise InputError(f"{short(text)} is no record of an encoder") from None

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self)

    def check(self, other: EncoderRecord | None, whose: str, what: str) -> None:
        """Refuse features of another encoder than this one.

        Parameters
        ----------
        other : EncoderRecord or None
            What made them; None where that is not known, which passes.
        whose : str
            What a message calls that which has features of this encoder.
        what : str
            What it calls the others.

        Raises
        ------
        InputError
            The fingerprints differ.
        """
        if other is not None and other.fingerprint != self.fingerprint:
            raise InputError(
                f"{what}: features of the encoder {other.name} ({other.fingerprint[:12]}), {whose} has "
                f"those of {self.name} ({self.fingerprint[:12]}), and the two do not compare; use that "
                "one, or build again"
            )


def lacks(name: str, side: str) -> InputError:
    """The error of an encoder that does not take pictures, or texts."""
    other = {IMAGES: "pictures", TEXTS: "texts"}[side]
    return InputError(f"the encoder {name} takes no {other}; give one that does")


def embedded(
    items: Sequence[T], run: Callable[[Sequence[T]], Any], name: str, dimension: int | None, size: int = BATCH
) -> Features:
    """The features of items, `size` at a time, checked: (n, dimension) float32, finite.

    Raises
    ------
    InputError
        What the encoder gave is something else.
    """
    parts = [items[start : start + size] for start in range(0, len(items), size)]
    rows = [_checked(run(part), len(part), name, dimension) for part in parts]
    if not rows:
        return np.empty((0, dimension or 0), np.float32)
    return np.concatenate(rows)


def _checked(found: Any, n: int, name: str, dimension: int | None) -> Features:
    X = np.asarray(found)
    if X.ndim != 2 or len(X) != n or X.dtype.kind not in "fiu" or (dimension or X.shape[1]) != X.shape[1]:
        raise InputError(
            f"the encoder {name} gave an array of shape {X.shape} and dtype {X.dtype} for {n} items, "
            f"expected ({n}, {dimension or 'd'}) numbers"
        )
    X = X.astype(np.float32, copy=False)
    if not np.isfinite(X).all():
        raise InputError(f"the encoder {name} gave features that are not finite (NaN or infinite)")
    return X


# ---- threads ---------------------------------------------------------------------------------------------

_threads = 0


def set_threads(n: int) -> None:
    """How many threads encoders that are opened from now on may use in this process; 0 leaves it to them."""
    global _threads
    _threads = n


def threads() -> int:
    """What `set_threads` said."""
    return _threads
