"""The whole job on shipped pictures: build, update twice, query, look inside, compare with float search.

    python examples/demo.py

Runs the command line as a person would, in a folder of its own, and prints each command before its output.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from woh_faiss import read_chunk

DATA = Path(__file__).parent / "data"
GLOVE = DATA / "glove-100d-tags.w2v.txt"


def run(*arguments: str | Path, folder: str) -> None:
    """Show and run one woh-index command; stop the demo if it fails."""
    command = ["woh-index", *map(str, arguments)]
    print(f"\n$ {shlex.join(command)}", flush=True)
    subprocess.run([sys.executable, "-m", "woh_faiss_cli", *command[1:]], check=True, cwd=folder)


def main() -> None:
    chunks, queries = sorted(DATA.glob("chunk-*.npz")), DATA / "queries.npz"
    pages = Path(tempfile.mkdtemp(prefix="woh-faiss-demo-"))  # stays, to be looked at
    with tempfile.TemporaryDirectory() as folder:
        run(
            "build",
            chunks[0],
            "--bits",
            "64",
            "--word-vectors",
            GLOVE,
            folder=folder,
        )
        run("update", *chunks[1:], folder=folder)
        three = read_chunk(queries).rows(slice(0, 60, 20))
        np.savez(Path(folder) / "three.npz", features=three.features, keys=three.keys)
        run("query", "three.npz", "-k", "5", folder=folder)
        run("query", "--id", "7", "-k", "5", folder=folder)
        # The pictures are not shipped: the page shows a box with the name of each.
        run("query", "three.npz", "-k", "5", "--html", pages / "answers.html", folder=folder)
        run("info", folder=folder)
        run("evaluate", *chunks, queries, "--bits", "16,64", "--chunks", "3", "--queries", "400",
            "--word-vectors", GLOVE, folder=folder)  # fmt: skip
    print(f"\nTo look at the answers, open {pages / 'answers.html'}")


if __name__ == "__main__":
    main()
