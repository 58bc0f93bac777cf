"""Codes and ids of a new generation: written whole, under names that a COMMIT makes theirs.

Nothing that a reader has mapped is changed. The pending names carry the generation; the COMMIT that raises
the generation makes these files the index's, and only then are they renamed over the old ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import codefile, files, schema


def mapped(codes: Path, ids: Path, d: int, rows: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The first `rows` codes and ids of two files, memory-mapped."""
    return codefile.map_codes(codes, d, rows), codefile.map_ids(ids, rows)


def write(
    folder: Path,
    d: int,
    generation: int,
    n: int,
    codes: Iterable[NDArray[np.uint8]],
    ids: Iterable[NDArray[Any]],
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The n codes and ids that these blocks make, in pending files that are on the disk; memory-mapped."""
    new_codes, new_ids = (folder / schema.pending(name, generation) for name in (schema.CODES, schema.IDS))
    files.write(new_codes, codefile.header(d, n), codes, folder / schema.CODES)
    files.write(new_ids, b"", ids, folder / schema.IDS)
    files.sync_folder(folder)
    return mapped(new_codes, new_ids, d, n)
