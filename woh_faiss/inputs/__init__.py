"""Chunks from common formats: Parquet, Arrow and Feather, HDF5, .mat, folders of embeddings, .npz; pictures.

Files are read a chunk at a time. pyarrow and h5py are imported when a file needs them.
"""

from __future__ import annotations

from .bad_rows import BadRows
from .columns import Columns
from .distinct import DistinctInputs
from .first_sample import SampledInputs, first_sampled, sample_rows
from .labelled import read_labelled
from .open import Inputs, Piece, open_inputs
from .pictures import PictureOptions, embed_pictures
from .source import CHUNK_SIZE

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
