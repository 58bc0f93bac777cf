"""NUS-WIDE's lists, labels and tags, each by an image's place in ImageList.txt."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from woh_faiss import validate
from woh_faiss.display import display_path
from woh_faiss.errors import InputError
from woh_faiss.tags.tag_lists import TagLists, row_ends

from .published import Published, lines, number_blocks, zero_one_column

SET = Published("NUS-WIDE", "the NUS-WIDE page of the Lab for Media Search, National University of Singapore")

#: The set's own split, and how its files spell it.
PARTS = {"train": "Train", "test": "Test"}

_TAGS = ("NUS_WID_Tags", "Tags")
#: ``actor/0001_2124494179.jpg``: the number is Flickr's, by which All_Tags.txt names the image.
_PHOTO = re.compile(r"_(\d+)\.[A-Za-z]+$")

Places = NDArray[np.int64]
Files = list[tuple[Path, Places]]


class Images:
    """The images and the set's own split.

    Attributes
    ----------
    root : path
    names : list of n str
        Paths in ImageList.txt, with ``/``.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = root
        self._list, self.names = self._read("ImageList.txt")
        self._place = {name: place for place, name in enumerate(self.names)}
        self._places = {"all": np.arange(len(self.names))}

    def __len__(self) -> int:
        return len(self.names)

    def places(self, part: str) -> Places:
        """Places of a part's images, in the order of its list."""
        if part not in self._places:
            file, names = self._read(f"{PARTS[part]}ImageList.txt")
            if unknown := [name for name in names if name not in self._place]:
                raise InputError(
                    f"{display_path(file)} has {validate.short(unknown[0])}, which "
                    f"{display_path(self._list)} lacks"
                )
            self._places[part] = np.array([self._place[name] for name in names], np.int64)
        return self._places[part]

    def files(self, part: str, whole: str, partly: str, folders: Sequence[str]) -> Files:
        """The files that speak of a part's images, and each one's places.

        `partly` has {} for Train or Test. One file for all images is preferred where the part is 'all',
        the part's own where it is not.
        """
        places = [f"{folder}/{whole}" for folder in folders]
        own = {p: [f"{folder}/{partly.format(PARTS[p])}" for folder in folders] for p in PARTS}
        if part in PARTS and (file := SET.find_any(self.root, *own[part])) is not None:
            return [(file, self.places(part))]
        if (file := SET.find_any(self.root, *places)) is not None:
            return [(file, self.places("all"))]
        if part in PARTS:
            return [(SET.find(self.root, *own[part], *places), self.places(part))]  # says that it is missing
        if SET.find_any(self.root, *own["train"], *own["test"]) is None:
            SET.find(self.root, *places, *own["train"])
        if not np.array_equal(np.sort(np.concatenate([self.places(p) for p in PARTS])), self.places("all")):
            raise InputError(
                f"{display_path(self._list)} is not the train and the test list together; copy them again"
            )
        return [(SET.find(self.root, *own[p]), self.places(p)) for p in PARTS]

    def _read(self, name: str) -> tuple[Path, list[str]]:
        file = SET.find(self.root, f"ImageList/{name}", name)
        names = [line.replace("\\", "/") for line in lines(file, "latin-1") if line]
        if not names:
            raise InputError(f"{display_path(file)} is empty, expected a path a line")
        if len(set(names)) != len(names):
            twice = Counter(names).most_common(1)[0][0]
            raise InputError(f"{display_path(file)} has {validate.short(twice)} twice; copy it again")
        return file, names


def concept_labels(
    images: Images, concepts: int | Sequence[str]
) -> tuple[tuple[str, ...], NDArray[np.bool_]]:
    """Concepts and (n, L) marks: those given, or the most frequent, then by name."""
    folder = SET.find_any(images.root, "Groundtruth/AllLabels", "AllLabels")
    ending = "" if folder is not None else "_Train"
    if folder is None:
        folder = SET.find(
            images.root,
            *("Groundtruth/AllLabels", "AllLabels", "Groundtruth/TrainTestLabels", "TrainTestLabels"),
        )
    pattern = re.compile(rf"Labels_(.+?){ending}\.txt")
    known = sorted(m[1] for entry in folder.iterdir() if (m := pattern.fullmatch(entry.name)))
    if not known:
        SET.find(folder, f"Labels_airport{ending}.txt")  # says that it is missing
    if isinstance(concepts, str):
        concepts = [concepts]
    if isinstance(concepts, Sequence):
        names = list(concepts)
        if bad := [name for name in names if name not in known]:
            raise InputError(
                f"concept {validate.short(bad[0])} has no file in {display_path(folder)}, "
                f"which has {validate.listed(known)}"
            )
        if not names or len(set(names)) != len(names):
            raise InputError(f"concepts are {validate.short(names)}, expected different names, at least one")
    else:
        names = known
        if validate.positive_int(concepts, "concepts") > len(known):
            raise InputError(f"concepts is {concepts}, but {display_path(folder)} has {len(known)}")
    marks = np.zeros((len(images), len(names)), bool)
    for column, name in enumerate(names):
        for file, places in images.files(
            "all", f"Labels_{name}.txt", f"Labels_{name}_{{}}.txt", [_relative(folder, images.root)]
        ):
            marks[places, column] = zero_one_column(file, len(places))
    if isinstance(concepts, Sequence):
        return tuple(names), marks
    best = np.argsort(-marks.sum(axis=0), kind="stable")[:concepts]
    return tuple(names[column] for column in best), marks[:, best]


def _relative(folder: Path, root: str | os.PathLike[str]) -> str:
    return folder.relative_to(os.fsdecode(root)).as_posix()


def typed_tags(images: Images, encoding: str) -> TagLists:
    """Tags of All_Tags.txt: a line is Flickr's number of an image, then its tags."""
    file = SET.find(images.root, *(f"{folder}/All_Tags.txt" for folder in _TAGS), "All_Tags.txt")
    typed: dict[str, list[str]] = {}
    for line in lines(file, encoding):
        number, *tags = line.split() or [""]
        typed.setdefault(number, tags)

    def of_images() -> Iterator[list[str]]:
        for name in images.names:
            found = _PHOTO.search(name)
            if found is None or found[1] not in typed:
                raise InputError(
                    f"{display_path(file)} has no line for image {validate.short(name)}; copy it again"
                )
            yield typed[found[1]]

    return TagLists.from_lists(of_images())


def usual_1k_tags(images: Images, part: str, encoding: str) -> TagLists:
    """The 0/1 matrix of the 1,000 tags; images of other parts may be without."""
    file = SET.find(images.root, *(f"{folder}/TagList1k.txt" for folder in _TAGS), "TagList1k.txt")
    names = [name for name in lines(file, encoding) if name]
    cells: list[NDArray[np.int64]] = []
    for matrix, places in images.files(part, "AllTags1k.txt", "{}_Tags1k.dat", (*_TAGS, ".")):
        start = 0
        for block in number_blocks(matrix, len(places), 2000):
            try:
                tags = TagLists.from_dense(block, names)
            except InputError as error:
                raise InputError(f"{display_path(matrix)}, rows from {start + 1} on: {error}") from error
            rows = np.repeat(places[start : start + len(block)], np.diff(tags.indptr))
            cells.append(rows * len(names) + tags.indices)
            start += len(block)
    cell = np.sort(np.concatenate(cells))
    return TagLists(tuple(names), row_ends(cell // len(names), len(images)), cell % len(names))
