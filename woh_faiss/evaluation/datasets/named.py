"""A whole set by its name and where its files are, for commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from woh_faiss import budget
from woh_faiss.display import display_path
from woh_faiss.errors import InputError
from woh_faiss.inputs.chunk import Chunk, concatenate
from woh_faiss.inputs.labelled import read_labelled
from woh_faiss.inputs.matlab.chunks import own_split, parts_of, read_mat

from .made_up import fine_tags, random_tags
from .mirflickr import mirflickr
from .nus_wide import NusWide
from .synthetic import synthetic


def _files(*places: str, **reading: Any) -> Chunk:
    return read_labelled(places, learn=False, **reading)


def _mirflickr(place: str, features: str | None = None, **reading: Any) -> Chunk:
    if features is not None:
        return mirflickr(place, features, **reading)
    if Path(place).is_dir():
        raise InputError(
            f"MIRFlickr-25K in {display_path(place)} has no features; give them, too: .npy, .mat, "
            "or what woh-index embed wrote of its pictures"
        )
    return _files(place, **reading)


def _nus_wide(place: str, features: str | None = None, **reading: Any) -> Chunk:
    if features is None and Path(place).is_file():
        return _files(place, **reading)
    return concatenate(list(NusWide(place, features, **reading).chunks()))


def _number(n: str) -> int:
    try:
        return int(n)
    except ValueError:
        raise InputError(f"the number of made-up items is {n!r}, expected a whole number") from None


def _synthetic(n: str) -> Chunk:
    return concatenate(list(synthetic(_number(n))))


#: Name: (what reads it, what it takes, the least and the most of those).
SETS: dict[str, tuple[Callable[..., Chunk], str, int, int]] = {
    "files": (_files, "files or folders of labelled items", 1, 1 << 20),
    "mirflickr": (_mirflickr, "FOLDER and FEATURES, or a FILE of labelled items", 1, 2),
    "mirflickr25k": (_mirflickr, "FOLDER and FEATURES, or a FILE of labelled items", 1, 2),
    "nus-wide": (_nus_wide, "FOLDER and, if they are yours, FEATURES, or a FILE of labelled items", 1, 2),
    "mat": (read_mat, "a FILE and, if it has several, the PART", 1, 2),
    "synthetic": (_synthetic, "a NUMBER of items", 1, 1),
    "random-tags": (lambda n: random_tags(_number(n)), "a NUMBER of items", 1, 1),
    "fine-tags": (lambda n: fine_tags(_number(n)), "a NUMBER of items", 1, 1),
}


def with_split(name: str, places: Sequence[str | Path], **reading: Any) -> tuple[Chunk, int]:
    """As `load`, and how many items at its head are the set's own queries: 0 if it brings no split.

    A .mat file without a PART brings one if it has both a train and a test part.
    """
    if name == "mat" and len(places) == 1 and {"train", "test"} <= parts_of(places[0]):
        with budget.reading(display_path(places[0])):
            return own_split(places[0])
    return load(name, places, **reading), 0


def load(name: str, places: Sequence[str | Path], **reading: Any) -> Chunk:
    """The set `name` of `SETS` at these places, as one chunk.

    Parameters
    ----------
    name : str
        Of `SETS`.
    places : sequence of paths
        As that set takes them.
    **reading
        Of files, parameters of `read_labelled`; of the paper's sets, `note` of theirs.

    Raises
    ------
    InputError
        The name is unknown, there are too few or too many places, or a file cannot be read.
    """
    if name not in SETS:
        raise InputError(f"the set is {name!r}, expected one of {', '.join(SETS)}")
    read, wanted, least, most = SETS[name]
    if not least <= len(places) <= most:
        raise InputError(f"{len(places)} arguments were given for {name}, expected {wanted}")
    with budget.reading(", ".join(map(display_path, places))):
        return read(*map(str, places), **reading)
