"""SciPy's reader of MATLAB files in a process of its own, since a damaged file can end it; see `mat5`.

``python child.py BYTES FILE [VARIABLE]`` writes the variables as JSON, or one as an .npy: of a sparse one
its column ends, rows and values, one after the other. BYTES is the memory it may take.
"""

from __future__ import annotations

import json
import resource
import sys
import warnings
from typing import Any, cast

import numpy as np
from scipy.io import loadmat, whosmat
from scipy.sparse import issparse


def main(limit: str, file: str, *names: str) -> None:
    """List a file's variables, or write the one that is named, on standard output."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (int(limit), hard))
    warnings.simplefilter("ignore")  # the error that follows a warning says enough
    warnings.simplefilter("error", np.exceptions.ComplexWarning)  # else imaginary parts are lost
    if not names:
        print(json.dumps(whosmat(file)))  # noqa: T201 - that is what it is for
        return
    # As MATLAB would have them: whole numbers that are stored as bytes are doubles.
    value: Any = loadmat(file, variable_names=names, mat_dtype=True)[names[0]]
    if issparse(value):
        value = cast(Any, value).tocsc()
        value = np.concatenate([value.indptr, value.indices, value.data])
    elif value.dtype.kind == "O":
        value = np.array([_text(cell) for cell in value.ravel(order="F")], dtype=np.str_)
    if value.dtype.kind not in "biufU":
        raise ValueError("a variable of neither real numbers nor text")
    np.save(sys.stdout.buffer, value.astype(value.dtype.newbyteorder("="), copy=False))


def _text(cell: Any) -> str:
    if not isinstance(cell, np.ndarray) or cell.size > 1 or (cell.size and cell.dtype.kind != "U"):
        raise ValueError("a cell that is no text")
    return str(cell.item()) if cell.size else ""


if __name__ == "__main__":
    main(*sys.argv[1:])
