"""NUS-WIDE: lists of images, tags, labels and low-level features, streamed in chunks.

Every file covers all images or one part. An image's place in ImageList.txt connects them: labels and tags
are kept by place, features are read row by row and never held whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from woh_faiss import validate
from woh_faiss.display import display_path
from woh_faiss.errors import InputError
from woh_faiss.inputs.chunk import Chunk
from woh_faiss.inputs.matlab.mat import open_rows

from .cutting import cut, usual_tags
from .embedded import Embedded, Note, is_embedded
from .nus_wide_files import PARTS, Images, concept_labels, typed_tags, usual_1k_tags
from .published import number_blocks

if TYPE_CHECKING:
    from woh_faiss.tags.word_vectors import WordVectors

#: Low-level features: colour histogram, block-wise colour moments, colour correlogram, edge directions,
#: wavelet texture.
KINDS = ("CH", "CM55", "CORR", "EDH", "WT")

#: Rows of features read at a time.
BLOCK = 1000

Places = NDArray[np.int64]
Blocks = Iterator[tuple[Places, NDArray[Any]]]


class NusWide:
    """The set, or a part of it, as a stream.

    Parameters
    ----------
    root : path
        The folder in which ImageList, NUS_WID_Tags, Groundtruth and Low_Level_Features were unpacked.
    features : path, optional
        Instead of the low-level features an .npy, .npz or .mat file: a row an image of ImageList.txt, or
        a row an image of the part's list, in that order. Or the folder that `woh-index embed` wrote of the
        pictures, whose paths end as those of ImageList.txt.
    variable : str, optional
        The matrix in `features`, where there are several.
    kinds : sequence of str
        The low-level features, put side by side in this order.
    part : {'all', 'train', 'test'}
    tags : {'all', '1k'}
        As users typed them (All_Tags.txt), or the 1,000 of TagList1k.txt.
    concepts : int or sequence of str
        Labels: that many of the most frequent of all images, or these.
    labelled : bool
        Leave out images without any of these labels, as papers do.
    min_count : int, optional
        Leave out tags that fewer of the remaining images carry, those without a vector, and then images
        without tags.
    word_vectors : WordVectors, optional
        For `min_count`.
    encoding : str
        Of the tag files.
    note : callable, optional
        Takes a line on images without features in such a folder, which are then left out; without it they
        are refused.

    Attributes
    ----------
    concepts : tuple of str
        Columns of the labels, the most frequent first, or as given.

    Raises
    ------
    InputError
        A file is missing, damaged or disagrees with the lists; features are read and checked only when
        their chunk comes.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        features: str | os.PathLike[str] | None = None,
        *,
        variable: str | None = None,
        kinds: Sequence[str] = KINDS,
        part: Literal["all", "train", "test"] = "all",
        tags: Literal["all", "1k"] = "all",
        concepts: int | Sequence[str] = 21,
        labelled: bool = True,
        min_count: int | None = None,
        word_vectors: WordVectors | None = None,
        encoding: str = "utf-8",
        note: Note | None = None,
    ) -> None:
        for name, value, known in (("part", part, ("all", *PARTS)), ("tags", tags, ("all", "1k"))):
            if value not in known:
                raise InputError(f"{name} is {validate.short(value)}, expected one of {', '.join(known)}")
        if word_vectors is not None and min_count is None:
            raise InputError("word_vectors are given without min_count; give min_count, 1 for any tag")
        self._images = images = Images(root)
        embedded = None
        if features is None:
            self._blocks = self._low_level(part, kinds)
        elif is_embedded(features):
            embedded = Embedded(features, images.names, note)
            self._blocks = embedded.blocks
        else:
            self._blocks = self._given(features, variable, part)
        self.concepts, self._labels = concept_labels(images, concepts)
        members = np.zeros(len(images), bool)
        members[images.places(part)] = True
        if labelled:
            members &= self._labels.any(axis=1)
        if embedded is not None:
            embedded.check(members, images.names, note)
            members &= embedded.has
        places = np.flatnonzero(members)
        if not len(places):
            raise InputError(
                f"no image of part '{part}' has any of the labels {validate.listed(self.concepts)}"
            )
        lists = typed_tags(images, encoding) if tags == "all" else usual_1k_tags(images, part, encoding)
        lists = lists.rows(places)
        if min_count is not None:
            lists = usual_tags(lists, min_count=min_count, word_vectors=word_vectors)
            tagged = np.flatnonzero(np.diff(lists.indptr))
            places, lists = places[tagged], lists.rows(tagged)
        self._tags = lists
        self._row = np.full(len(images), -1)
        self._row[places] = np.arange(len(places))

    def __len__(self) -> int:
        """Images that are left."""
        return len(self._tags)

    def chunks(self, size: int = 5000) -> Iterator[Chunk]:
        """All of them in chunks of `size` (see `cut`), in the order of the features' file.

        Yields
        ------
        Chunk
            float32 features (or the user's dtype), tags, labels, the image's line in ImageList.txt from
            0 as id, and its path there as key, with ``/``.

        Raises
        ------
        InputError
            While reading: the features are damaged, or of another number of images.
        """
        return self._stream(cut(len(self), size))

    def _stream(self, lengths: list[int]) -> Iterator[Chunk]:
        waiting: list[tuple[Places, NDArray[Any]]] = []
        held, lengths = 0, lengths[::-1]
        for places, X in self._blocks():
            keep = self._row[places] >= 0
            waiting.append((places[keep], X[keep]))
            held += int(keep.sum())
            while lengths and held >= lengths[-1]:
                all_places = np.concatenate([p for p, _ in waiting])
                all_X = np.concatenate([x for _, x in waiting])
                now = lengths.pop()
                yield self._chunk(all_places[:now], all_X[:now])
                waiting, held = [(all_places[now:], all_X[now:])], held - now

    def _chunk(self, places: Places, X: NDArray[Any]) -> Chunk:
        keys = [self._images.names[place] for place in places.tolist()]
        try:
            return Chunk.of(
                X, self._tags.rows(self._row[places]), ids=places, keys=keys, labels=self._labels[places]
            )
        except InputError as error:
            raise InputError(f"NUS-WIDE, from {keys[0]} on: {error}") from error

    def _low_level(self, part: str, kinds: Sequence[str]) -> Callable[[], Blocks]:
        if unknown := [kind for kind in kinds if kind not in KINDS]:
            raise InputError(f"kinds has {validate.short(unknown[0])}, expected some of {', '.join(KINDS)}")
        if isinstance(kinds, str) or not kinds:
            raise InputError(f"kinds is {kinds!r}, expected a list of some of {', '.join(KINDS)}")
        folders = ("Low_Level_Features", "NUS_WID_Low_Level_Features/Low_Level_Features")
        found = [
            self._images.files(part, f"Normalized_{kind}.dat", f"{{}}_Normalized_{kind}.dat", folders)
            for kind in kinds
        ]
        if len({len(files) for files in found}) > 1 or any(
            not np.array_equal(a[1], b[1]) for files in found for a, b in zip(files, found[0], strict=True)
        ):
            raise InputError(
                f"{display_path(found[0][0][0].parent)}: some kinds have a file of all images, others "
                "one a part; keep one form"
            )
        segments = [([files[i][0] for files in found], places) for i, (_, places) in enumerate(found[0])]
        return lambda: _side_by_side(segments)

    def _given(
        self, features: str | os.PathLike[str], variable: str | None, part: str
    ) -> Callable[[], Blocks]:
        rows = open_rows(features, variable)
        for places in (self._images.places("all"), self._images.places(part)):
            if rows.shape[0] == len(places):
                chosen = places
                break
        else:
            counts = " or ".join(
                f"{len(self._images.places(p))} (part '{p}')" for p in dict.fromkeys(("all", part))
            )
            raise InputError(
                f"{display_path(features)} has {rows.shape[0]} rows, expected {counts}, one an image"
            )
        starts = range(0, len(chosen), BLOCK)
        return lambda: ((chosen[a : a + BLOCK], rows[a : a + BLOCK]) for a in starts)


def _side_by_side(segments: list[tuple[list[Path], Places]]) -> Blocks:
    for files, places in segments:
        readers = [number_blocks(file, len(places), BLOCK) for file in files]
        for start, blocks in zip(range(0, len(places), BLOCK), zip(*readers, strict=True), strict=True):
            yield places[start : start + BLOCK], np.hstack(blocks)
