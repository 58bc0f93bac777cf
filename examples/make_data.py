"""Make examples/data from the full Open Clip Art features.

Run: make_data.py openclipart.npz glove-100d-tags.w2v.txt [OUT]. Draws 2,500 tagged pictures, reduces their
features from 1,280 to 256 numbers, and writes three chunks in the order of the stream and 200 held-out
queries. The same inputs give the same arrays.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SEED = 0
WIDTH = 256
SIZES = {"chunk-000": 800, "chunk-001": 800, "chunk-002": 700, "queries": 200}


def reduced(X: NDArray[Any], width: int) -> NDArray[np.float16]:
    """X projected on its `width` main directions: (n, d) to (n, width).

    Not centred, so that inner products, and with them L2 and cosine rankings, stay what they were. The
    sign of a direction is free: its largest loading is made positive, so that every machine agrees.
    """
    _, _, directions = np.linalg.svd(X, full_matrices=False)
    main = directions[:width]
    largest = np.abs(main).argmax(axis=1)
    main *= np.sign(main[np.arange(width), largest])[:, None]
    return np.asarray(X @ main.T, dtype=np.float16)


def make(source: Path, vectors: Path, out: Path) -> None:
    """Read the full file and the word vectors, write everything but the README under `out`."""
    with np.load(source, allow_pickle=False) as file:
        full = dict(file)
    indptr, indices, names = full["tags_indptr"], full["tags_indices"], full["tag_names"]
    tagged = np.flatnonzero(np.diff(indptr) > 0)
    chosen = np.random.default_rng(SEED).permutation(tagged)[: sum(SIZES.values())]
    features = reduced(full["features"][chosen].astype(np.float64), WIDTH)
    # Every tag ends in ";": a lone tag of two words would be read as two tags without it.
    tags = np.array(["".join(f"{tag};" for tag in names[indices[indptr[i] : indptr[i + 1]]]) for i in chosen])
    keys = full["ids"][chosen]
    labels = full["labels"][chosen]
    present = labels.any(axis=0)

    out.mkdir(parents=True, exist_ok=True)
    stops = np.cumsum(list(SIZES.values()))
    for (name, size), stop in zip(SIZES.items(), stops, strict=True):
        rows = slice(stop - size, stop)
        np.savez_compressed(
            out / f"{name}.npz",
            features=features[rows],
            tags=tags[rows],
            keys=keys[rows],
            labels=labels[rows][:, present],
            label_names=full["label_names"][present],
        )
    shutil.copyfile(vectors, out / "glove-100d-tags.w2v.txt")


if __name__ == "__main__":
    if not 3 <= len(sys.argv) <= 4:
        sys.exit(__doc__)
    source, vectors, *rest = map(Path, sys.argv[1:])
    make(source, vectors, rest[0] if rest else Path(__file__).parent / "data")
