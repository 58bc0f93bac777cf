"""Digests of what is learned, stored and answered: equal before and after a change that only moves code.

    python examples/benchmarks/same_results.py [FILE.npz ...] > before.txt
    python examples/benchmarks/same_results.py [FILE.npz ...] | diff before.txt -

Each data set (the shipped pictures unless files are given) is cut into four chunks and learned with both
presets, once with the index kept open and once with it reopened before every update. Codes, ids, every array
of the model file, tags, answers by features, by items and by tags are digested.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

import setting

PARTS = 4


def main() -> None:
    args_parser = setting.parser(__doc__)
    args_parser.add_argument("files", type=Path, nargs="*")
    args_parser.add_argument("--word-vectors", type=Path, default=setting.DATA / "glove-100d-tags.w2v.txt")
    args = args_parser.parse_args()
    setting.threads(1)
    import numpy as np

    from woh_faiss import WordVectors, read_chunk

    vectors = WordVectors.open(args.word_vectors)
    shipped = [read_chunk(path) for path in sorted(setting.DATA.glob("chunk-*.npz"))]
    asked = read_chunk(setting.DATA / "queries.npz").features
    sets = {} if args.files else {"shipped": (shipped[:PARTS], asked)}
    for path in args.files:
        chunk = read_chunk(path)
        rows = np.array_split(np.arange(len(chunk)), PARTS)
        sets[path.name] = ([chunk.rows(part) for part in rows], np.asarray(chunk.features[::25], "f4"))
    for name, (chunks, xq) in sets.items():
        for preset in ("adaptive", "paper"):
            for reopened in (False, True):
                for what, digest in results(chunks, xq, vectors, preset, reopened):
                    print(f"{name} {preset} {'reopened' if reopened else 'kept open'} {what} {digest}")


def results(chunks, xq, vectors, preset, reopened):
    """(what, digest) of one life of an index."""
    import numpy as np

    from woh_faiss import WOHIndex

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "index.woh")
        index = WOHIndex.create(path, bits=64, instance_bits=0, preset=preset)
        for chunk in chunks:
            index.update(chunk, word_vectors=vectors)
            if reopened:
                index.close()
                index = WOHIndex.open(path)
        with index:
            yield "codes.faiss", hashlib.sha256((path / "codes.faiss").read_bytes()).hexdigest()[:16]
            yield "ids.i64", hashlib.sha256((path / "ids.i64").read_bytes()).hexdigest()[:16]
            model = max(path.glob("model-*.npz"), key=lambda model: int(model.stem.split("-")[1]))
            with np.load(model) as arrays:
                for name in sorted(arrays):
                    yield f"model {name}", digest(arrays[name])
            yield "anchors", digest(np.load(path / "anchors.npy"))
            yield "tags", digest(np.array([repr(index.tags())]))
            ids = index.search(xq, 1)[1][:50, 0]
            yield "search", digest(*index.search(xq, 20, by="hamming"))
            yield "score", digest(*index.search(xq, 20))
            yield "range_search", digest(*index.range_search(xq, 12))
            yield "search_ids", digest(*index.search_ids(ids, 20, by="hamming"))
            tags = [[tag] for tag, _, known in index.tags() if known][:20]
            yield "search_tags", digest(*index.search_tags(tags, 20))
            yield "explain", digest(np.array([repr(index.explain(ids))]))


def digest(*arrays):
    """Of shapes, dtypes and bytes."""
    import numpy as np

    found = hashlib.sha256()
    for array in arrays:
        array = np.ascontiguousarray(array)
        found.update(repr((array.shape, array.dtype.str)).encode())
        found.update(array.tobytes())
    return found.hexdigest()[:16]


if __name__ == "__main__":
    main()
