"""What benchmarks share before numpy and faiss load: arguments, and how many threads those will use."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data"


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the script's docstring."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def threads(count: int) -> None:
    """Set what OpenMP and BLAS read once, when numpy and faiss load."""
    for library in ("OMP", "OPENBLAS", "MKL"):
        os.environ[f"{library}_NUM_THREADS"] = str(count)


def learning(doc: str | None, files: list[Path]) -> argparse.ArgumentParser:
    """A parser for what learns from labelled chunk files: `files` unless others are given."""
    made = parser(doc)
    made.add_argument("files", type=Path, nargs="*", default=files)
    made.add_argument("--word-vectors", type=Path, default=DATA / "glove-100d-tags.w2v.txt")
    made.add_argument("--bits", type=int, nargs="+", default=[16, 64])
    made.add_argument("--seeds", type=int, nargs="+", default=[0])
    made.add_argument("--chunks", type=int, default=8)
    made.add_argument("--queries", type=int, default=1000)
    made.add_argument("--threads", type=int, default=1)
    return made


def tagged(args: argparse.Namespace) -> tuple[Any, Any]:
    """The items of the files that have a tag, and the word vectors."""
    import numpy as np

    from woh_faiss import WordVectors, read_chunk
    from woh_faiss.inputs.chunk import concatenate

    chunk = concatenate([read_chunk(path) for path in args.files])
    return chunk.rows(np.diff(chunk.tags.indptr) > 0), WordVectors.open(args.word_vectors)
