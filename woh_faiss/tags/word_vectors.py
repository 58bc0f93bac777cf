"""Word vectors of tags, from a file of any usual format."""

from __future__ import annotations

import os
import unicodedata
import zlib
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woh_faiss import budget, validate
from woh_faiss.display import display_path
from woh_faiss.errors import InputError, MemoryBudgetError
from woh_faiss.io.atomic_write import write_whole

from .tag_text import found_as_it_is, normalise, spaced
from .word_vector_files import read, refuse_not_finite, write

UNICODE_ERRORS = ("strict", "ignore", "replace")


class WordVectors:
    """The vectors of a file's words.

    Attributes
    ----------
    path : Path
    f : int
        Width of a vector.
    """

    def __init__(self, path: Path, index: dict[str, int], vectors: NDArray[Any]) -> None:
        self.path, self.f = path, int(vectors.shape[1])
        self._index, self._vectors = index, vectors

    def __len__(self) -> int:
        return len(self._index)

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, limit: int | None = None, unicode_errors: str = "strict"
    ) -> WordVectors:
        """The vectors in `path`, whatever its extension.

        word2vec text and binary, fastText .vec, GloVe text (no header), each of these gzipped, and what
        `save` wrote, by far the fastest to open. gensim's own .kv is a pickle, and no pickle is read.

        Parameters
        ----------
        path : path
            The file; its content decides the format.
        limit : int, optional
            Read only the first `limit` words (most files begin with the most frequent).
        unicode_errors : {'strict', 'ignore', 'replace'}
            What to do with words that are not UTF-8; 'strict' refuses the file.

        Raises
        ------
        InputError
            No such file, another format, a damaged one, a header that miscounts, a line with too few
            or too many numbers, or a vector that is not finite.
        """
        path = Path(os.fsdecode(path))
        if limit is not None:
            limit = validate.positive_int(limit, "limit")
        if unicode_errors not in UNICODE_ERRORS:
            raise InputError(f"unicode_errors is {unicode_errors!r}, expected one of {UNICODE_ERRORS}")
        try:
            with budget.reading(f"word vectors {display_path(path)}"):
                index, vectors = read(path, limit, unicode_errors)
                refuse_not_finite(index, vectors)
        except MemoryBudgetError:
            raise
        except InputError as error:
            raise InputError(f"word vectors {display_path(path)}: {error}") from error
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"word vectors {display_path(path)} cannot be read: {error}") from error
        return cls(path, index, vectors)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the vectors to `path` as an .npz without pickles, which `open` reads a hundred times faster
        than text; the path that was written.

        The file is there whole or not at all, and equal vectors are equal bytes.

        Raises
        ------
        InputError
            It cannot be written.
        """
        final = Path(os.path.realpath(os.fsdecode(path)))  # else a link would be replaced
        try:
            with write_whole(final, "vectors") as file:
                write(file, self._index, self._vectors)
        except OSError as error:
            raise InputError(
                f"cannot write word vectors to {display_path(final)} ({error.strerror or error}); "
                "choose another"
            ) from error
        return final

    def lookup(self, tag: str) -> NDArray[np.float32] | None:
        """Vector (f,) of a tag, as it was typed; None if the file knows neither it nor any of its words.

        The whole tag comes first; else the mean of the words that are known. Each is tried as typed, in
        Unicode NFC, in lower case, folded (`normalise`), Capitalised and in UPPER CASE, words joined by a
        space, '_' or '-' (new_york); then any word of the file that folds to the same.
        """
        found = self._find(tag)
        if found is not None:
            return found
        words = spaced(unicodedata.normalize("NFC", tag)).split(" ")
        if len(words) == 1:
            return None
        known = [vector for word in words if (vector := self._find(word)) is not None]
        return np.array(np.mean(known, axis=0), np.float32) if known else None

    def _find(self, tag: str) -> NDArray[np.float32] | None:
        composed, folded = unicodedata.normalize("NFC", tag), normalise(tag)
        for text in (tag, composed):
            if text in self._index:
                return np.array(self._vectors[self._index[text]], np.float32)
        forms = dict.fromkeys((spaced(composed), spaced(composed.lower()), folded))
        for joiner in " _-":
            for form in forms:
                at = self._index.get(form.replace(" ", joiner))
                if at is not None:
                    return np.array(self._vectors[at], np.float32)
            for case in (str.capitalize, str.upper):
                at = self._index.get(joiner.join(case(word) for word in folded.split(" ")))
                if at is not None:
                    return np.array(self._vectors[at], np.float32)
        at = self._folded.get(folded)
        return None if at is None else np.array(self._vectors[at], np.float32)

    @cached_property
    def _folded(self) -> dict[str, int]:
        """The first word of each folded form, where that is another: files have the frequent ones first."""
        found: dict[str, int] = {}
        for word, at in self._index.items():
            if not found_as_it_is(word):
                found.setdefault(normalise(word), at)
        return found
