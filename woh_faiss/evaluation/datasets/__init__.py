"""Published data sets from their own files, hashing papers' .mat files, and made-up ones.

Each gives `Chunk`s: features, tags, labels, ids and keys, aligned and checked. Nothing is downloaded.
"""

from __future__ import annotations

from woh_faiss.inputs.matlab.chunks import read_mat

from .cutting import cut, prepared, usual_tags
from .made_up import fine_tags, random_tags
from .mirflickr import mirflickr
from .named import load, with_split
from .nus_wide import NusWide
from .synthetic import synthetic

__all__ = [
    "NusWide",
    "cut",
    "fine_tags",
    "load",
    "mirflickr",
    "prepared",
    "random_tags",
    "read_mat",
    "synthetic",
    "usual_tags",
    "with_split",
]
