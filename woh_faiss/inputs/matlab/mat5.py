"""MATLAB files of version 5 to 7.2, by SciPy: matrices, full and sparse, and texts.

SciPy's reader trusts the file's own numbers: one changed byte can end the process. So a child reads.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from woh_faiss import budget
from woh_faiss.display import display_path, display_text
from woh_faiss.errors import InputError
from woh_faiss.io.npz import damage, npy_of

from .variables import NUMBERS, MatRows, check_expansion, full_matrix, kind_of, not_there, sparse_of


class Mat5:
    """A file of version 5 to 7.2. A variable is read whole, and mapped."""

    def __init__(self, file: Path) -> None:
        self._file, self.where = file, display_path(file)
        with damage(self.where), file.open("rb") as stream:
            self._size, header = file.stat().st_size, stream.read(128)
            if header[124:] not in (b"\0\1IM", b"\1\0MI"):
                raise InputError(
                    f"{self.where} is not a .mat file of version 5 to 7.3; save it from MATLAB with -v7, "
                    "or as .npy"
                )
            with self._child(self.where) as out:
                found = [(name, tuple(shape), kind) for name, shape, kind in json.load(out)]
        if twice := [name for name, count in Counter(name for name, *_ in found).items() if count > 1]:
            raise InputError(f"{self.where} holds variable {twice[0]!r} twice; save it again")
        # SciPy gives a name to what has none: what MATLAB keeps of objects.
        self._kinds = {name: (shape, kind) for name, shape, kind in found if name != "__function_workspace__"}
        self.variables = {name: kind_of(*kind) for name, kind in self._kinds.items()}

    def read(self, name: str) -> Any:
        """A variable, as `Mat.read`; cells only of text."""
        if name not in self._kinds:
            raise not_there(self, name)
        here, (shape, kind) = f"{self.where}: variable {name!r}", self._kinds[name]
        with damage(here):
            if kind in NUMBERS:
                claimed = math.prod(shape) * np.dtype(NUMBERS[kind]).itemsize
                check_expansion(here, claimed, self._size)
                budget.take(claimed, "a variable")
            with self._child(here, name) as out:
                value = npy_of(out, here, mapped=True)
            if kind != "sparse":
                return value
            ends, entries = np.split(value, [shape[1] + 1])
            ir, data = np.array_split(entries, 2)
            return sparse_of(data, ir, ends, shape)

    def rows(self, name: str) -> MatRows:
        """A full matrix."""
        return full_matrix(self.read(name), f"{self.where}: variable {name!r}")

    @contextmanager
    def _child(self, where: str, *names: str) -> Iterator[IO[bytes]]:
        """What `child.py` says of the file, or of a variable."""
        script = str(Path(__file__).with_name("child.py"))
        limit = str(budget.max_memory() + budget.LIBRARIES)
        with tempfile.TemporaryFile() as out:
            done = subprocess.run(  # noqa: S603 - our own script; names are no options of it
                [sys.executable, "-P", script, limit, str(self._file), *names],
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},  # each takes memory, and nothing is computed
                stdout=out,
                stderr=subprocess.PIPE,
                check=False,
            )
            said = (done.stderr.decode(errors="replace").splitlines() or [""])[-1]
            if "MemoryError" in said:
                raise budget.exceeded(where, "what is in it")
            if done.returncode:
                said = said if done.returncode > 0 else f"SciPy ended with signal {-done.returncode}"
                raise InputError(
                    f"{where} cannot be read ({display_text(said[:160])}); copy or write it again"
                )
            out.seek(0)
            yield out
