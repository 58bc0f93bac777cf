"""Files of word vectors in the usual formats, recognised here and read by gensim; a cache of our own.

The content decides the format, never the name: gensim trusts the extension and the caller, and silently loads
garbage when either is wrong. Nothing is unpickled.
"""

from __future__ import annotations

import gzip
import io
import re
import tempfile
import warnings
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from woh_faiss import budget, validate
from woh_faiss.errors import InputError
from woh_faiss.io.npz import Npz, write_npz

_EXPECTED = (
    "expected word2vec text or binary, GloVe or fastText .vec text (each may be gzipped), "
    "or what WordVectors.save wrote"
)
#: The arrays of a file that `write` made: UTF-8 of all words, where each begins and ends among the characters
#: (bytes would have to be decoded word by word), a row a word.
_ARRAYS = ("words", "offsets", "vectors")
_ARCHIVE = "an archive (.zip or .7z); unpack it and give the file inside"
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_REFUSED = {
    # Of protocol 2 and later; of the two before, what gensim's save() and numpy begin with.
    rb"\x80[\x02-\x05]|c(?:copy_?re|gensim|numpy)": (
        "a pickle, such as gensim's save() writes, and no pickle is read; convert it with gensim: "
        'KeyedVectors.load("x.kv").save_word2vec_format("x.bin", binary=True)'
    ),
    rb"7z\xbc\xaf\x27": _ARCHIVE,
    rb"BZh[1-9]1AY|\xfd7zXZ\x00|\x28\xb5\x2f\xfd": "compressed (bzip2, xz or zstd); unpack it, or use gzip",
    re.escape((793712314).to_bytes(4, "little")): "a fastText model; give the .vec text that lies beside it",
    rb"\xef\xbb\xbf": "text with a byte order mark; save it as UTF-8 without one",
}
#: Longest line or word: far beyond any real one, and what is read to tell a format.
_SAMPLE = 1 << 20
#: Bytes that Python and gensim take for a word besides its vector.
_WORD = 400
#: Text and float32 pack 2 to 3 times; what unpacks to more than both of these is a bomb, not vectors.
_BOMB_RATIO, _BOMB_BYTES = 100, 64 << 20


def read(path: Path, limit: int | None, unicode_errors: str) -> tuple[dict[str, int], NDArray[Any]]:
    """Words, each with its row, and the rows of vectors of a file; see `WordVectors.open`."""
    if not path.exists():
        raise InputError("the file does not exist")
    if not path.is_file():
        raise InputError(f"it is not a file; {_EXPECTED}")
    with path.open("rb") as file:
        head = file.read(8)
    zipped = head.startswith(b"\x1f\x8b")
    if zipped:
        with _stream(path, zipped) as stream:
            head = stream.read(8)
    if not head:
        raise InputError(f"it is empty; {_EXPECTED}")
    for magic, what in _REFUSED.items():
        if re.match(magic, head):
            raise InputError(f"it is {what}")
    if head.startswith(_ZIP):
        if zipped:
            raise InputError("it is a gzipped archive; unpack it first")
        return _read_saved(path, limit)
    with _stream(path, zipped) as stream:
        layout = _inspect(stream, limit, unicode_errors)
    return _read_with_gensim(path, zipped, layout, unicode_errors)


def write(file: IO[bytes], index: dict[str, int], vectors: NDArray[Any]) -> None:
    """Words and their vectors as an .npz that `read` knows: equal vectors are equal bytes."""
    arrays: dict[str, NDArray[Any]] = {
        "words": np.frombuffer("".join(index).encode(), np.uint8),
        "offsets": np.cumsum([0, *map(len, index)], dtype=np.int64),
        "vectors": np.asarray(vectors[list(index.values())], np.float32),
    }
    write_npz(file, arrays)


def _read_saved(path: Path, limit: int | None) -> tuple[dict[str, int], NDArray[np.float32]]:
    with path.open("rb") as file:
        npz = Npz(file, "the archive", _ARRAYS)
        if not set(_ARRAYS) <= set(npz.names):
            raise InputError(f"it is {_ARCHIVE}")
        blob, offsets, vectors = (npz.read(name) for name in _ARRAYS)
    n = len(vectors) if vectors.ndim == 2 else 0
    if not n or vectors.shape[1] == 0 or vectors.dtype != np.float32:
        raise InputError(
            f"its vectors are {vectors.dtype} of shape {vectors.shape}, expected float32, a row a word; "
            "save it again"
        )
    if blob.ndim != 1 or blob.dtype != np.uint8 or offsets.shape != (n + 1,) or offsets.dtype != np.int64:
        raise InputError(f"its words are not those of its {n} vectors; save it again")
    budget.take(3 * len(blob) + n * _WORD, "its words")
    try:
        text = blob.tobytes().decode()
    except UnicodeDecodeError:
        raise InputError("its words are not UTF-8; save it again") from None
    if offsets[0] != 0 or offsets[-1] != len(text) or (offsets[1:] < offsets[:-1]).any():
        raise InputError("the ends of its words are not in order; save it again")
    stop = n if limit is None else min(n, limit)
    index = {text[start:end]: at for at, (start, end) in enumerate(pairwise(offsets[: stop + 1].tolist()))}
    if len(index) != stop:
        raise InputError("it has a word twice; save it again")
    return index, vectors[:stop]


def _stream(path: Path, zipped: bool) -> IO[bytes]:
    if not zipped:
        return path.open("rb")
    limit = max(_BOMB_BYTES, _BOMB_RATIO * path.stat().st_size)
    return io.BufferedReader(_Bounded(gzip.open(path), limit))


class _Bounded(io.RawIOBase):
    """A gzipped file that gives no more than its first `limit` bytes."""

    def __init__(self, file: gzip.GzipFile, limit: int) -> None:
        self._file, self._limit = file, limit

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: Any, /) -> int:
        n = self._file.readinto(buffer)
        if self._file.tell() > self._limit:
            raise InputError(
                f"it unpacks to more than {_BOMB_RATIO} times its size; if this is intended, unpack it first"
            )
        return n

    def close(self) -> None:
        self._file.close()
        super().close()


class _Layout(NamedTuple):
    header: bool
    binary: bool
    f: int
    words: int  # to read


def _inspect(stream: IO[bytes], limit: int | None, unicode_errors: str) -> _Layout:
    """What kind of file it is, after a pass over it that finds what gensim would let through."""
    first = stream.readline(_SAMPLE)
    header = re.fullmatch(rb"(\d{1,18}) +(\d{1,6})\s*", first)
    if not header:
        f = first.rstrip().count(b" ")
        if f < 2 or not _is_row(first, f):
            raise InputError(f"it holds no word vectors; {_EXPECTED}")
        stream.seek(0)
        return _Layout(False, False, f, _count_text(stream, f, 1, limit, unicode_errors))
    claimed, f = int(header[1]), int(header[2])
    if not claimed or not f:
        raise InputError(f"its header says {claimed} words of {f} numbers, expected at least one of each")
    wanted = claimed if limit is None else min(claimed, limit)
    stop = None if wanted == claimed else wanted  # read on: there may be more words than the header says
    second = stream.readline(_SAMPLE)
    sample = second + stream.read(_SAMPLE)
    stream.seek(len(first))
    if not _is_row(second, f):
        found, rest = _count_binary(stream, f, stop)
        if found == wanted and not rest:
            return _Layout(True, True, f, wanted)
        if re.search(rb"[\x00-\x08\x0e-\x1f]", sample):
            raise InputError(
                f"its header says {claimed} words of {f} numbers, the binary file holds {found} "
                f"and {rest} bytes more; get it again if it was cut off"
            )
        stream.seek(len(first))
    found = _count_text(stream, f, 2, stop, unicode_errors)
    if found != wanted:
        raise InputError(
            f"its header says {claimed} words, the file has {found}; get it again if it was cut off, "
            "or correct the number in the first line"
        )
    return _Layout(True, False, f, wanted)


def _is_row(line: bytes, f: int) -> bool:
    """A word and f numbers."""
    try:
        return len([float(cell) for cell in line.rstrip().split(b" ")[1:]]) == f
    except ValueError:
        return False


def _count_text(stream: IO[bytes], f: int, first_line: int, stop: int | None, unicode_errors: str) -> int:
    """Words in the lines of `stream`, at most `stop`; each line is looked at but for its numbers' sake."""
    words = blank = 0
    for number, line in enumerate(iter(lambda: stream.readline(_SAMPLE), b""), first_line):
        if words == stop:
            break
        if len(line) == _SAMPLE:
            raise InputError(f"line {number} is longer than {_SAMPLE} bytes; {_EXPECTED}")
        line = line.rstrip()
        if not line:
            blank = blank or number
            continue
        if blank:  # empty lines at the end harm nobody
            raise InputError(f"line {blank} is empty; delete it")
        if line.count(b" ") != f:
            raise InputError(
                f"line {number} has {line.count(b' ')} numbers, expected {f}; "
                "a line is a word without spaces and its numbers, single spaces between"
            )
        try:
            line.decode("utf-8", unicode_errors)
        except UnicodeDecodeError:
            raise InputError(_not_utf8(f"line {number}")) from None
        words += 1
    return words


def _count_binary(stream: IO[bytes], f: int, stop: int | None) -> tuple[int, int]:
    """Whole words of a word2vec binary behind its header, at most `stop`, and bytes that belong to none."""
    words, rest, size = 0, b"", 4 * f
    while block := stream.read(max(_SAMPLE, size)):
        rest += block
        at = 0
        while words != stop and (space := rest.find(b" ", at)) >= 0 and len(rest) - space > size:
            at, words = space + 1 + size, words + 1
        if words == stop:
            return words, 0
        rest = rest[at:]
        if len(rest) > size + 2 * _SAMPLE:  # a word without end
            break
    return words, len(rest.strip())


def _read_with_gensim(
    path: Path, zipped: bool, layout: _Layout, unicode_errors: str
) -> tuple[dict[str, int], NDArray[np.float32]]:
    from gensim.models import KeyedVectors

    budget.take(layout.words * (4 * layout.f + _WORD), "its words")
    problem = ""
    # gensim unpacks by extension: give it a link whose extension is the content's.
    with tempfile.TemporaryDirectory(prefix="woh-faiss-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # no_header opens the file twice and closes it once
        warnings.simplefilter("ignore", RuntimeWarning)  # a number beyond float32: refused as infinite
        link = Path(folder) / ("words.gz" if zipped else "words")
        link.symlink_to(path.resolve())
        try:
            model = KeyedVectors.load_word2vec_format(
                str(link),
                binary=layout.binary,
                no_header=not layout.header,
                limit=layout.words,
                unicode_errors=unicode_errors,
            )
        except UnicodeDecodeError:
            problem = _not_utf8("a word")
        except ValueError:
            with _stream(path, zipped) as stream:
                lines = enumerate(stream, 1)
                rows = ((n, line) for n, line in lines if n > layout.header)
                bad = next((f"line {n}" for n, line in rows if not _is_row(line, layout.f)), "a line")
            problem = f"{bad} holds something that is not a number"
    if problem:  # raised here, it does not keep gensim's open file alive
        raise InputError(problem)
    return model.key_to_index, model.vectors


def _not_utf8(where: str) -> str:
    return f"{where} is not UTF-8; convert the file, or open it with unicode_errors 'replace' or 'ignore'"


def refuse_not_finite(index: dict[str, int], vectors: NDArray[Any]) -> None:
    """InputError naming the first word whose vector holds NaN or infinite values."""
    for start in range(0, len(vectors), validate.BLOCK):
        finite = np.isfinite(vectors[start : start + validate.BLOCK]).all(axis=1)
        if not finite.all():
            at = start + int(np.argmin(finite))
            word = next(word for word, place in index.items() if place == at)
            raise InputError(
                f"the vector of {word!r} is not finite (NaN, infinite or beyond float32); "
                "repair it or leave the word out"
            )
