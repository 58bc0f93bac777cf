"""Features of a set's pictures in the folder that `woh-index embed` wrote: found by each picture's path."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woh_faiss.display import display_path
from woh_faiss.errors import InputError
from woh_faiss.inputs.columns import Columns
from woh_faiss.inputs.open import Inputs, open_inputs
from woh_faiss.validate import short

Places = NDArray[np.int64]
#: What takes a line about what is left out.
Note = Callable[[str], object]


def is_embedded(features: str | os.PathLike[str]) -> bool:
    """Whether it is a folder, and not a file of a row an image."""
    return Path(os.fsdecode(features)).is_dir()


class Embedded:
    """Rows of such a folder by the place of their image in the set; they are read when they are asked for.

    Parameters
    ----------
    folder : path
    names : sequence of str
        Of the images by place; a picture's path must be one, or end in ``/`` and one.
    note : callable, optional
        Takes a line on pictures that are none of the set's.

    Attributes
    ----------
    has : (n,) bool
        Images with features.

    Raises
    ------
    InputError
        It cannot be read, no picture is one of the set's, or two are the same image.
    """

    def __init__(
        self, folder: str | os.PathLike[str], names: Sequence[str], note: Note | None = None
    ) -> None:
        self._folder, self._where = folder, display_path(folder)
        known = {name: place for place, name in enumerate(names)}
        depth = names[0].count("/") + 1
        found: list[int] = []
        for chunk in self._inputs():
            if chunk.keys is None:
                raise InputError(
                    f"{self._where} does not say whose each row is; give a folder that woh-index embed wrote"
                )
            tails = ("/".join(key.split("/")[-depth:]) for key in chunk.keys.tolist())
            found += [known.get(tail, -1) for tail in tails]
        self._places = np.array(found, np.int64)
        ours = self._places[self._places >= 0]
        self.has = np.zeros(len(names), bool)
        self.has[ours] = True
        if not len(ours):
            raise InputError(f"{self._where} has no picture of the set, such as {short(names[0])}")
        if len(ours) > self.has.sum():
            twice = names[int(np.flatnonzero(np.bincount(ours) > 1)[0])]
            raise InputError(f"{self._where} has {short(twice)} twice; encode the set's pictures once")
        if note is not None and len(ours) < len(self._places):
            note(f"{self._where}: {len(self._places) - len(ours)} pictures are none of the set's")

    def check(self, wanted: NDArray[np.bool_], names: Sequence[str], note: Note | None) -> None:
        """Tell of wanted images (n,) without features; without a `note` InputError."""
        lacking = np.flatnonzero(wanted & ~self.has)
        if not len(lacking):
            return
        first = names[int(lacking[0])]
        told = f"{self._where} lacks features of {len(lacking)} of {int(wanted.sum())} images"
        if note is None:
            raise InputError(f"{told}, the first {short(first)}; encode them, or give a note to go without")
        note(f"{told}, the first {short(first)}; they are left out")

    def blocks(self) -> Iterator[tuple[Places, NDArray[Any]]]:
        """Places and features of images, as they come."""
        start = 0
        for chunk in self._inputs():
            places = self._places[start : start + len(chunk)]
            start += len(chunk)
            yield places[places >= 0], chunk.features[places >= 0]

    def _inputs(self) -> Inputs:
        return open_inputs([self._folder], columns=Columns(tags="", id=""))
