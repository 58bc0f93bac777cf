"""Bad files of every kind: seeds, damage, what must hold for each, and the process that tries them.

Run as ``python fuzzing.py``: reads lines ``["TARGET", "PATH"]``, answers each with a JSON line. A process of
its own, so that a crash of the interpreter or a wait for ever is seen by the test that asked.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import resource
import signal
import subprocess
import sys
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from woh_faiss import WOHIndex, WordVectors, codes, read_chunk
from woh_faiss.errors import StoreError, WOHError
from woh_faiss.inputs import open_inputs
from woh_faiss.inputs.flat_faiss_file import read_floats
from woh_faiss.store import NewRound
from woh_faiss.tags import word_vector_files

#: Memory a file may take: twice its size and this.
ALLOWANCE = 16 << 20
#: Seconds of computing that a file may take, seconds of a loaded machine, and memory at which the system
#: steps in.
COMPUTING, PATIENCE, CEILING = 30, 600, 6 << 30

D = 7
SMALL = {"bits": 16, "anchors": 10, "vector_size": 5}
WORDS = ["sea", "beach", "hill", "snow", "city", "night"]


def tagged(seed: int, n: int = 12) -> tuple[Any, list[list[str]]]:
    rng = np.random.default_rng(seed)
    topic = rng.integers(6, size=n)
    X = (np.eye(6, D)[topic] * 3 + rng.normal(size=(n, D))).astype(np.float32)
    return X, [[WORDS[t], WORDS[(t + 1) % 6]] for t in topic]


# ---- seeds -------------------------------------------------------------------------------------------


def npy_bytes(array: Any) -> bytes:
    buffer = io.BytesIO()
    npy.write_array(buffer, np.asarray(array), allow_pickle=True)
    return buffer.getvalue()


def npz_bytes(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def chunk_members() -> dict[str, bytes]:
    """Every key a chunk may have, but for the second form of tags."""
    X, tags = tagged(0)
    arrays = {
        "features": X,
        "tags": np.array([";".join(given) for given in tags]),
        "ids": np.arange(len(X)),
        "keys": np.array([f"k{i}" for i in range(len(X))]),
        "labels": np.eye(3, dtype=np.uint8)[np.arange(len(X)) % 3],
        "groups": np.arange(len(X)) / 2,
    }
    return {f"{key}.npy": npy_bytes(array) for key, array in arrays.items()}


def csr_members() -> dict[str, bytes]:
    n = 6
    arrays = {
        "features": tagged(0, n)[0].astype(np.float16),
        "tags_data": np.ones(n, np.uint8),
        "tags_indices": np.arange(n, dtype=np.int32) % 2,
        "tags_indptr": np.arange(n + 1),
        "tags_shape": np.array([n, 2]),
        "tag_names": np.array(["sea", "hill"]),
    }
    return {f"{key}.npy": npy_bytes(array) for key, array in arrays.items()}


def word_files() -> dict[str, bytes]:
    """The same vectors in every format that is read."""
    V = np.random.default_rng(1).normal(size=(6, 5)).astype(np.float32)
    rows = "".join(f"{w} {' '.join(map(str, v))}\n" for w, v in zip(WORDS, V.tolist(), strict=True)).encode()
    binary = b"".join(w.encode() + b" " + v.tobytes() + b"\n" for w, v in zip(WORDS, V, strict=True))
    buffer = io.BytesIO()
    word_vector_files.write(buffer, {word: at for at, word in enumerate(WORDS)}, V)
    found = {
        "glove": rows,
        "text": b"6 5\n" + rows,
        "binary": b"6 5\n" + binary,
        "saved": buffer.getvalue(),
    }
    return found | {f"{name}.gz": gzip.compress(found[name]) for name in ("glove", "text", "binary")}


def make_index(path: Path) -> Path:
    """A small index of two learned rounds and an encoded one, with items erased, removed and replaced."""
    with WOHIndex.create(path, **SMALL) as index:
        for seed in range(2):
            more = {"size": range(12), "place": [None, *"abcdefghijk"], "day": np.arange(12).astype("M8[D]")}
            metadata = {name: np.array(values) for name, values in more.items()}
            index.update(*tagged(seed), keys=[f"{seed}/{i}" for i in range(12)], metadata=metadata)
        index.add(tagged(5, 3)[0], ids=[100, 110, 120], metadata={"size": [1, None, 3]})
        index.remove([11, 100, 120])
        index.compact()
        index.add(tagged(8, 2)[0], [["sea"], ["lake"]], ids=[5, 110], on_duplicate="replace")
        index.remove([4])
        put(index, 200, early=tagged(3, 3)[0])
    return path


def put(index: WOHIndex, first: int, **more: Any) -> None:
    """Three items as a round of the store."""
    stored = {"codes": codes.pad(index.encode(tagged(3, 3)[0])), "ids": range(first, first + 3)}
    with index.store.writing() as writing:
        writing.commit(NewRound("encoded", **stored, keys=[None] * 3, tags=[[]] * 3, **more))


# ---- what must hold ----------------------------------------------------------------------------------


def try_chunk(path: Path) -> Iterator[Callable[[], Any]]:
    def look() -> None:
        chunk = read_chunk(path)
        if chunk.tags is not None:
            for i in range(len(chunk)):
                assert all(isinstance(tag, str) for tag in chunk.tags.of_row(i))
        assert np.isfinite(np.asarray(chunk.rows(slice(0, 1)).features, np.float64)).all()

    yield look


def try_vectors(path: Path) -> Iterator[Callable[[], Any]]:
    def look() -> None:
        vectors = WordVectors.open(path)
        found = [vectors.lookup(word) for word in ("sea", "beach hill", "nothing")]
        assert all(v is None or (v.shape == (vectors.f,) and np.isfinite(v).all()) for v in found)

    yield look
    yield lambda: WordVectors.open(path, limit=2, unicode_errors="replace")


def try_reading(path: Path) -> Iterator[Callable[[], Any]]:
    def asked(question: Callable[[WOHIndex], Any]) -> Callable[[], Any]:
        def ask() -> None:
            with WOHIndex.open(path) as index:
                question(index)

        return ask

    xq = tagged(9, 2)[0]
    yield asked(lambda index: json.dumps(index.info()))
    yield asked(lambda index: index.describe(*index.search(xq, 3)))
    yield asked(lambda index: index.search(xq, 3, by="hamming"))
    yield asked(lambda index: index.search_ids([index.id_of("0/1")], 3))
    yield asked(lambda index: index.explain([0]))
    yield asked(lambda index: index.search_tags(["sea"], 3))
    yield asked(lambda index: index.reconstruct(7))
    yield lambda: verified(path)


def verified(path: Path) -> None:
    """It tells faults, a line each, and raises nothing."""
    for fault in WOHIndex.verify(path):
        assert fault.isprintable(), fault
        assert str(path) in fault, fault


def try_index(path: Path) -> Iterator[Callable[[], Any]]:
    yield from try_reading(path)

    def add() -> None:
        with WOHIndex.open(path) as index:
            index.add(tagged(6, 3)[0])

    def update() -> None:
        with WOHIndex.open(path) as index:
            index.update(*tagged(7))

    def remove() -> None:
        with WOHIndex.open(path) as index:
            index.remove([2], keys=["1/1"], ignore_missing=True)

    def replace() -> None:
        with WOHIndex.open(path) as index:
            index.add(tagged(4, 2)[0], ids=[110, 7], on_duplicate="replace")

    def again() -> None:
        with WOHIndex.open(path) as index:
            index.add(tagged(4, 1)[0], ids=[100])  # which was erased: always refused

    def compact() -> None:
        with WOHIndex.open(path) as index:
            index.compact()

    def rollback() -> None:
        with WOHIndex.open(path) as index:
            index.rollback([0, *(done.round for done in index.rounds())][-2])

    def keep() -> None:
        with WOHIndex.open(path) as index:
            index.store.early_features()
            put(index, 1000, early=tagged(3, 3)[0])

    def recode() -> None:
        with WOHIndex.open(path) as index:
            with index.store.writing() as writing:
                writing.early_features()
            put(index, 2000, recoded=np.ones((index.store.snapshot.rows, index.store.d // 8), np.uint8))

    yield from (add, update, remove, replace, again, keep, compact, rollback, recode)


def try_inputs(path: Path) -> Iterator[Callable[[], Any]]:
    """Whatever `update` takes, in chunks of 5."""
    yield lambda: [len(chunk) for chunk in open_inputs([path], learn=True, chunk_size=5)]


def try_faiss(path: Path) -> Iterator[Callable[[], Any]]:
    def look() -> None:
        found = read_floats(path)
        assert found.vectors.ndim == 2
        assert found.ids is None or found.ids.shape == found.vectors.shape[:1]
        found.vectors.tobytes(), None if found.ids is None else found.ids.tobytes()

    yield look


TARGETS = {
    "inputs": try_inputs,
    "faiss": try_faiss,
    "chunk": try_chunk,
    "vectors": try_vectors,
    "reading": try_reading,
    "index": try_index,
}


def attempt(target: str, path: Path) -> list[str]:
    """Messages of what was refused; any other exception goes on, as does a message of two lines."""
    messages = []
    for step in TARGETS[target](path):
        try:
            step()
        except WOHError as error:
            message = str(error)
            # What is wrong with a question to an index names no file.
            about_a_file = target in ("chunk", "vectors", "inputs", "faiss") or isinstance(error, StoreError)
            named = not about_a_file or str(path) in message or "the catalogue" in message
            if not (message.isprintable() and named):
                raise AssertionError(f"not one line that names {path}: {message}") from error
            messages.append(message)
    return messages


def size_of(path: Path) -> int:
    return sum(p.stat().st_size for p in path.rglob("*")) if path.is_dir() else path.stat().st_size


# ---- the process that tries --------------------------------------------------------------------------


class Trier:
    """A process that tries files, started anew if it ends."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __call__(self, target: str, path: Path) -> list[str]:
        """`attempt` in the other process, which must live, in time and within the memory allowed."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
        print(json.dumps([target, str(path)]), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self.close()
            raise AssertionError(f"the process ended with {code} over {path}")
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        assert answer["peak"] <= ALLOWANCE + 2 * size_of(path), f"{answer['peak']} bytes for {path}"
        return answer["messages"]

    def close(self) -> None:
        if self._process is not None:
            self._process.stdin.close()
            self._process.stdout.close()
            self._process.kill()
            self._process.wait()
            self._process = None


def main() -> None:
    import traceback

    resource.setrlimit(resource.RLIMIT_AS, (CEILING, CEILING))
    warnings.simplefilter("error")
    answers = os.fdopen(os.dup(1), "w")
    import gensim.models  # noqa: F401 - what a first use imports is no file's memory
    import scipy.linalg  # noqa: F401

    with suppress(ImportError):
        import h5py  # noqa: F401
        import pyarrow.dataset
        import pyarrow.parquet  # noqa: F401

    for line in sys.stdin:
        target, path = json.loads(line)
        signal.alarm(PATIENCE)
        signal.setitimer(signal.ITIMER_PROF, COMPUTING)
        tracemalloc.start()
        try:
            answer: dict[str, Any] = {"messages": attempt(target, Path(path))}
        except BaseException:
            answer = {"error": traceback.format_exc()}
        answer["peak"] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
