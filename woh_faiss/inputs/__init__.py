"""Chunks from common formats: Parquet, Arrow and Feather, HDF5, .mat, folders of embeddings, .npz; pictures.

Files are read a chunk at a time. pyarrow and h5py are imported when a file needs them, and what encodes
pictures once there are any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .bad_rows import BadRows
from .columns import Columns
from .distinct import DistinctInputs
from .first_sample import SampledInputs, first_sampled, sample_rows
from .labelled import read_labelled
from .open import Inputs, Piece, open_inputs
from .source import CHUNK_SIZE

if TYPE_CHECKING:
    from .pictures import PictureOptions, embed_pictures

__all__ = [
    "BadRows",
    "CHUNK_SIZE",
    "Columns",
    "DistinctInputs",
    "Inputs",
    "PictureOptions",
    "Piece",
    "SampledInputs",
    "embed_pictures",
    "first_sampled",
    "open_inputs",
    "read_labelled",
    "sample_rows",
]


def __getattr__(name: str) -> Any:
    if name not in ("PictureOptions", "embed_pictures"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import pictures

    return getattr(pictures, name)
