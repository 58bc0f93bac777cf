"""MIRFlickr-25K: a tag file an image, annotation files of image numbers, and the user's features."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from woh_faiss import validate
from woh_faiss.display import display_path
from woh_faiss.errors import InputError
from woh_faiss.inputs.chunk import Chunk
from woh_faiss.inputs.matlab.mat import open_rows
from woh_faiss.tags.tag_lists import TagLists

from .embedded import Embedded, Note, is_embedded
from .published import Published, lines, numbered

SET = Published("MIRFlickr-25K", "the MIRFLICKR page of LIACS, Leiden University")

#: Annotation files, in the order of the labels' columns: an image may show it ...
POTENTIAL = (
    *(
        "animals",
        "baby",
        "bird",
        "car",
        "clouds",
        "dog",
        "female",
        "flower",
        "food",
        "indoor",
        "lake",
        "male",
    ),
    *("night", "people", "plant_life", "portrait", "river", "sea", "sky", "structures", "sunset"),
    *("transport", "tree", "water"),
)
#: ... or shows it prominently.
RELEVANT = tuple(
    f"{name}_r1"
    for name in (
        *("baby", "bird", "car", "clouds", "dog", "female", "flower", "male", "night", "people"),
        *("portrait", "river", "sea", "tree"),
    )
)
LABELS = {"potential": POTENTIAL, "relevant": RELEVANT, "both": POTENTIAL + RELEVANT}

_TAGS = re.compile(r"tags([1-9][0-9]*)\.txt")


def mirflickr(
    root: str | os.PathLike[str],
    features: str | os.PathLike[str],
    *,
    variable: str | None = None,
    labels: Literal["potential", "relevant", "both"] = "potential",
    annotations: str | os.PathLike[str] | None = None,
    raw_tags: bool = False,
    encoding: str = "utf-8",
    note: Note | None = None,
) -> Chunk:
    """The whole set, images in order; `datasets.prepared` does to it what the paper did.

    Parameters
    ----------
    root : path
        The unpacked folder: `meta/tags` is in it, or in a folder `mirflickr` in it.
    features : path
        .npy (memory-mapped if it is large), .npz or .mat: row i is image im<i+1>.jpg. Or the folder that
        `woh-index embed` wrote of the pictures, which says itself whose each row is.
    variable : str, optional
        The matrix in `features`, where there are several.
    labels : {'potential', 'relevant', 'both'}
        The 24 potential labels, the 14 relevant ones, or all 38; columns as in `LABELS`.
    annotations : path, optional
        The folder of annotation files, if not `mirflickr25k_annotations_v080` or `annotations` in or
        beside `root`.
    raw_tags : bool
        Tags as typed (`meta/tags_raw`), not as Flickr cleaned them.
    encoding : str
        Of the tag files.
    note : callable, optional
        Takes a line on images without features in such a folder, which are then left out; without it they
        are refused.

    Returns
    -------
    Chunk
        ids 1 to n, keys im1.jpg and so on; of images that are left out, neither.

    Raises
    ------
    InputError
        A file is missing or damaged, or the features are of another number of images.
    """
    if labels not in LABELS:
        raise InputError(f"labels is {validate.short(labels)}, expected one of {', '.join(LABELS)}")
    name = "tags_raw" if raw_tags else "tags"
    tags = _tags(SET.find(root, f"meta/{name}", f"mirflickr/meta/{name}"), encoding)
    n = len(tags)
    marks = _annotations(_folder(root, annotations, LABELS[labels][0]), LABELS[labels], n)
    names = [f"im{i}.jpg" for i in range(1, n + 1)]
    if is_embedded(features):
        found = Embedded(features, names, note)
        found.check(np.ones(n, bool), names, note)
        places, X = (np.concatenate(parts) for parts in zip(*found.blocks(), strict=True))
        there, order = np.sort(places), np.argsort(places)
        keys = [names[place] for place in there.tolist()]
        return Chunk.of(X[order], tags.rows(there), ids=there + 1, keys=keys, labels=marks[there])
    rows = open_rows(features, variable)
    if rows.shape[0] != n:
        raise InputError(
            f"{display_path(features)} has {rows.shape[0]} rows, expected {n}, one an image in the "
            "order of their numbers"
        )
    matrix: NDArray[Any] = rows if isinstance(rows, np.ndarray) else rows[0:n]
    try:
        return Chunk.of(matrix, tags, ids=np.arange(1, n + 1), keys=names, labels=marks)
    except InputError as error:
        raise InputError(f"{display_path(features)}: {error}") from error


def _tags(folder: Path, encoding: str) -> TagLists:
    if not folder.is_dir():
        raise InputError(
            f"{display_path(folder)} is not a folder, expected one of files tags1.txt, tags2.txt, ..."
        )
    found = {int(m[1]) for entry in folder.iterdir() if (m := _TAGS.fullmatch(entry.name))}
    for number in range(1, max(found, default=1) + 1):
        if number not in found:
            SET.find(folder, f"tags{number}.txt")  # says that it is missing
    files = (folder / f"tags{number}.txt" for number in range(1, len(found) + 1))
    return TagLists.from_lists(lines(file, encoding) for file in files)


def _folder(root: str | os.PathLike[str], annotations: str | os.PathLike[str] | None, first: str) -> Path:
    if annotations is not None:
        return SET.find(annotations, f"{first}.txt").parent
    names = ("mirflickr25k_annotations_v080", "annotations")
    beside = [f"{up}{name}/{first}.txt" for name in names for up in ("", "../")]
    return SET.find(root, *beside, f"{first}.txt").parent


def _annotations(folder: Path, names: Sequence[str], n: int) -> NDArray[np.bool_]:
    return np.stack([numbered(SET.find(folder, f"{name}.txt"), n) for name in names], axis=1)
