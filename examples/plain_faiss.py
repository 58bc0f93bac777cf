"""A script around faiss.IndexFlatL2 with three lines changed (one, two, three).

python examples/plain_faiss.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import faiss
import numpy as np

from woh_faiss import WOHIndex, WordVectors, read_chunk  # one

DATA = Path(__file__).parent / "data"


def main() -> None:
    chunk, queries = read_chunk(DATA / "chunk-000.npz"), read_chunk(DATA / "queries.npz")
    vectors = WordVectors.open(DATA / "glove-100d-tags.w2v.txt")
    xb, xq, k = np.asarray(chunk.features), np.asarray(queries.features), 5
    ids = np.arange(len(xb)) + 100
    folder = tempfile.TemporaryDirectory()

    # index = faiss.IndexIDMap(faiss.IndexFlatL2(xb.shape[1]))
    index = WOHIndex.create(f"{folder.name}/pictures.woh", bits=64)  # two
    # index.add_with_ids(xb, ids)
    index.update(xb, chunk.tags, ids=ids, word_vectors=vectors)  # three

    D, I = index.search(xq, k)  # D are scores: higher is nearer
    print(f"{index.ntotal} items of {index.d} numbers, nearest to the first query: {I[0]} at {D[0]}")

    even = faiss.SearchParameters(sel=faiss.IDSelectorBatch(ids[::2]))
    print(f"with even ids only: {index.search(xq, k, params=even)[1][0]}")

    print(f"{index.remove_ids(I[0])} removed, {index.ntotal} left")
    index.add_with_ids(xb[:10], np.arange(10) + 10_000)

    index.hasher.save(f"{folder.name}/hash.npz")  # all a process needs to encode; see docs/stacks.md
    print(f"hash function: {Path(folder.name, 'hash.npz').stat().st_size} bytes")
    index.close()
    folder.cleanup()


if __name__ == "__main__":
    main()
