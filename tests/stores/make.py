"""Make a tiny real store of the current format, with what it must answer. Argument: a new folder."""

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import numpy as np

from woh_faiss import WOHIndex


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir()
    rng = np.random.default_rng(0)
    words = ["sea", "hill", "city"]
    with WOHIndex.create(folder / "index", bits=16, anchors=8, vector_size=3) as index:
        for t in range(2):
            topic = rng.integers(3, size=12)
            X = (np.eye(3, 4)[topic] * 3 + rng.normal(size=(12, 4))).astype(np.float32)
            more = {"year": np.arange(2000, 2012), "place": [None, *"abcdefghijk"]} if t else {}
            index.update(X, [words[i] for i in topic], keys=[f"{t}/{i}" for i in range(12)], metadata=more)
        index.add(np.eye(3, 4, dtype=np.float32), ids=[100, 200, 300])
        index.remove([5, 200], keys=["0/7"])
        index.add(np.eye(2, 4, dtype=np.float32), ["sea", "lake"], ids=[300, 20], on_duplicate="replace")
        xq = np.round(rng.normal(size=(4, 4)), 3)
        D, I = index.search(xq, 6, by="hamming")
        expected = {
            "queries": xq.tolist(),
            "D": D.tolist(),
            "I": I.tolist(),
            "keys": [item.key for item in index.items(I[0])],
            "metadata": [item.metadata for item in index.items(I[0])],
            "tags": index.tags(),
            "rounds": [done.kind for done in index.rounds()],
        }
    with closing(sqlite3.connect(folder / "index" / "catalog.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # and SQLite takes its side files away
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main()
