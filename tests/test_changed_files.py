"""Files that another process cuts or rewrites while they are read: right, or refused in one line."""

import os
import re
import subprocess
import sys

import faiss
import numpy as np
import pytest

from woh_faiss.errors import InputError
from woh_faiss.inputs.chunk import read_chunk

#: Reads a file of features, says so, and uses them when it is told to.
READER = """
import sys
from pathlib import Path
from woh_faiss.errors import InputError
from woh_faiss.inputs import open_inputs
path = Path(sys.argv[1])
pieces = open_inputs([path]).pieces()
chunk = next(pieces).chunk
print("read", flush=True)
sys.stdin.readline()
print(chunk.features.sum(), chunk.digest()[:4])
try:
    print(sum(piece.chunk.features.sum() for piece in pieces))
except InputError as error:
    print(error)
"""

FAISS_READER = """
import sys
from pathlib import Path
from woh_faiss.inputs.flat_faiss_file import read_floats
found = read_floats(Path(sys.argv[1]))
print("read", flush=True)
sys.stdin.readline()
print(found.vectors.sum())
"""


@pytest.mark.parametrize("kind", ["npy", "folder", "faiss", "arrow", "parquet"])
def test_a_file_that_is_cut_while_its_rows_are_used_ends_no_process(tmp_path, kind):
    path = tmp_path / f"features.{kind}"
    X = np.ones((5000, 32), np.float32)
    if kind in ("npy", "folder"):
        np.save(tmp_path / "features.npy", X)
        given = {"npy": tmp_path / "features.npy", "folder": tmp_path}[kind]
        path = tmp_path / "features.npy"
    elif kind == "faiss":
        index = faiss.IndexFlatL2(32)
        index.add(X)
        faiss.write_index(index, str(path))
        given = path
    else:
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        table = pa.table({"features": list(X), "tags": ["sea"] * len(X)})
        if kind == "arrow":
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table, 500)
        else:
            pq.write_table(table, path, row_group_size=500)
        given = path
    command = [sys.executable, "-c", READER if kind != "faiss" else FAISS_READER, str(given)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout.readline() == "read\n"
        os.truncate(path, 1)
        out, _ = reader.communicate("\n", timeout=60)
    assert reader.returncode == 0, (reader.returncode, out)
    print(f"\n{kind}: {out}")


def test_a_file_that_changes_while_it_is_read_is_right_or_refused(tmp_path):
    """A process of its own that saves one array or another in place, all the time."""
    path = tmp_path / "features.npy"
    save = (
        "import sys, numpy as np\n"
        "n = 0\n"
        "while True:\n"
        "    n += 1\n"
        "    np.save(sys.argv[1], np.full((50_000, 8 + n % 2), n % 2, np.float32))\n"
        "    if n == 1: print('saved', flush=True)\n"
    )
    command = [sys.executable, "-c", save, str(path)]
    told = set()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        try:
            assert writer.stdout.readline() == "saved\n"
            for _ in range(300):
                try:
                    X = read_chunk(path).features
                except InputError as error:
                    told.add(re.sub(r"\d+", "n", str(error).rsplit(": ", 1)[-1])[:40])
                else:
                    assert np.unique(X).tolist() == [X.shape[1] - 8]
        finally:
            writer.kill()
    print(f"\nrefused: {told}")
