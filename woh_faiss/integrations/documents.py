"""`Documents`: texts in an SQLite file, codes in an index, and a queue of documents without a code."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from woh_faiss import score, validate
from woh_faiss.errors import InputError, LockedError, StoreError
from woh_faiss.index.index import WOHIndex
from woh_faiss.index.item_ids import OnDuplicate, check_policy
from woh_faiss.inputs.chunk import Chunk
from woh_faiss.learner.config import merged
from woh_faiss.store import NO_ID
from woh_faiss.tags.tag_lists import TagLists

from .document import Entry, check_json, tag_lists_of, valid_metadata
from .document_db import DocumentDB, DocumentTransaction, Waiting
from .document_filter import DocumentFilter

__all__ = ["LEARN_FROM", "Documents", "Entry", "tag_lists_of"]

#: Tagged documents that wait before the first round is learned.
LEARN_FROM = 500
#: Documents that get their codes in one round.
ROUND = 10_000
#: Which entries may be answers.
Keep = Callable[[Entry], bool] | DocumentFilter


class Documents:
    """Documents with embeddings in a folder, searched by learned codes; LangChain's and Haystack's core.

    A document is stored first, with its embedding, and gets its code after; then the embedding goes. So the
    documents are what counts: one whose code never came, because the process died, is found by its
    embedding, and the next write or opening gives it its code. Until enough tagged documents are there to
    learn from, all wait like that and are searched exactly, by cosine.

    Parameters
    ----------
    folder : path
        Made if it is missing.
    learn_from : int
        Learn the first round once so many documents with tags wait.
    timeout : float
        Seconds to wait for a writer in another process.
    **hyper
        Fields of `WOHConfig` for a new folder; for one that is there they must be what it has.

    Raises
    ------
    ConfigError
        A hyper-parameter is unknown or out of range.
    InputError
        learn_from is no whole number of at least 1, or the folder's index has other hyper-parameters.
    StoreError
        The folder holds something else, is damaged, newer, or cannot be written.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        learn_from: int = LEARN_FROM,
        timeout: float = 10.0,
        **hyper: Any,
    ) -> None:
        self.path = Path(os.fsdecode(folder)).absolute()
        self._learn_from = validate.whole_number(learn_from, "learn_from", 1)
        self._timeout = validate.seconds(timeout)
        self._failed = 0  # documents with tags of which nothing could be learned
        self._lock = threading.RLock()
        self._index = opened(self.path, hyper)
        self._db = DocumentDB(self.path / DOCUMENTS, self._timeout)
        with suppress(LockedError):  # whoever holds it will do this
            self._settle(timeout=0)

    @property
    def index(self) -> WOHIndex:
        """The index of the codes, to look at; its ids are the documents' numbers, its keys their ids."""
        return self._index

    def close(self) -> None:
        """Close the index's files."""
        self._index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self._db.count()

    # ---- writing ------------------------------------------------------------------------------------

    def write(self, entries: Sequence[Entry], on_duplicate: OnDuplicate = "replace") -> int:
        """Store documents and give them codes, if there is a hash function; returns how many were written.

        Documents with tags are a round that is learned, others are encoded only.

        Parameters
        ----------
        entries : sequence of Entry
            Without an embedding a document is kept, but no search by embedding finds it.
        on_duplicate : "replace", "skip" or "error"
            What to do with an id that is there, or comes twice.

        Raises
        ------
        InputError
            Anything cannot be stored, or an id is there and the policy is "error"; nothing was written.
        LockedError, StoreError
            As `WOHIndex.update`. What was stored before the error gets its code with the next write.
        """
        check_policy(on_duplicate)
        given = valid_metadata(entries)
        with self._lock:
            with self._db.writing() as writing:
                known = writing.known([entry.id for entry in given])
                new: dict[str, Entry] = {}
                for entry in given:
                    if on_duplicate == "replace":
                        new.pop(entry.id, None)  # the last one counts, at its own place
                    elif entry.id in known or entry.id in new:
                        if on_duplicate == "error":
                            raise InputError(
                                f"id {validate.short(entry.id)} is in the store already; leave it out, or "
                                "choose to skip or replace duplicates"
                            )
                        continue
                    new[entry.id] = entry
                writing.put(list(new.values()))
            self._settle()
        return len(new)

    def delete(self, ids: Sequence[str] | None) -> int:
        """Remove documents by id, or all (None), and their codes; ids that are not there are ignored."""
        wanted = None if ids is None else _ids(ids)
        with self._lock:
            with self._db.writing() as writing:
                removed = writing.drop(wanted)
            self._settle()
        return removed

    def describe(self, metadata: Mapping[str, dict[str, Any]]) -> None:
        """New metadata for documents, by id; text, tags and code stay as they are."""
        for id_, values in metadata.items():
            check_json(values, f"metadata of {validate.short(id_)}")
        with self._lock, self._db.writing() as writing:
            for id_, values in metadata.items():
                writing.describe(id_, values)

    def learn(self) -> int:
        """Learn from what waits, however little it is, and give it codes; returns how many got one.

        Raises
        ------
        InputError
            No tag was seen as often as `min_count` asks, or all embeddings are alike.
        """
        with self._lock:
            return self._settle(learn=True)

    def _settle(self, *, learn: bool = False, timeout: float | None = None) -> int:
        """Remove the codes of what is gone and make those that are missing; each step may be repeated."""
        total = 0
        while True:
            with self._db.writing(timeout) as writing:
                self._index.refresh()
                if gone := writing.gone():
                    self._index.remove(gone, ignore_missing=True, timeout=self._timeout)
                    writing.forget(gone)
                done = self._next_round(writing, learn)
                writing.coded(done)
            total += len(done)
            if len(done) < ROUND:
                return total

    def _next_round(self, writing: DocumentTransaction, learn: bool) -> list[int]:
        """Give up to `ROUND` waiting documents codes; returns their numbers."""
        tagged = 0 if self._index.is_trained or learn else writing.tagged()
        if not (self._index.is_trained or learn) and tagged < max(self._learn_from, 2 * self._failed):
            return []
        waiting = writing.next_waiting(ROUND)
        if not waiting:
            return []
        tags = [entry.tags for entry in waiting]
        numbers = [entry.number for entry in waiting]
        chunk = Chunk.of(
            np.stack([entry.embedding for entry in waiting if entry.embedding is not None]),
            TagLists.from_lists(tags),
            ids=numbers,
            keys=[entry.id for entry in waiting],
        )
        # What has a code already, because the process died before it noted that, is not learned twice.
        if self._index.is_trained and not any(tags):
            self._index.add(chunk, on_duplicate="skip", timeout=self._timeout)
            return numbers
        try:
            self._index.update(chunk, on_duplicate="skip", timeout=self._timeout)
        except InputError:
            if learn or self._index.is_trained:
                raise
            self._failed = tagged  # nothing can be learned yet; all wait on
            return []
        return numbers

    # ---- reading ------------------------------------------------------------------------------------

    def get(self, ids: Sequence[str]) -> list[Entry]:
        """The documents with these ids, in their order; those that are not there are left out."""
        wanted = _ids(ids)
        found = self._db.entries("id", wanted)
        return [found[id_] for id_ in wanted if id_ in found]

    def matching(self, keep: Keep | None = None) -> Iterator[Entry]:
        """All documents, or those that `keep` lets through, the first written first."""
        return self._db.matching(None if keep is None else _filter(keep))

    def count(self, keep: Keep) -> int:
        """How many documents `keep` lets through."""
        return len(self._db.numbers(_filter(keep)))

    def search(self, query: Any, k: int, keep: Keep | None = None) -> list[tuple[Entry, float]]:
        """The k best documents for an embedding (d,), with scores in [-1, 1], the best first.

        Before the first round the score is the cosine of the embeddings. After it, it is the mean of the two
        terms of `score`, without query expansion, or the one term there is.

        Parameters
        ----------
        query : (d,) array_like of a real dtype
            An embedding.
        k : int
            Documents wanted.
        keep : callable or DocumentFilter, optional
            Which entries may be answers; a function is called for every document.

        Raises
        ------
        InputError
            The query has another width than the store's embeddings, or k is not a whole number of at least 1.
        """
        k = validate.positive_int(k)
        waiting = self._db.waiting()
        xq = np.asarray(validate.features(validate.array([query], "query"), waiting.d, "query"), np.float64)
        allow = None
        if keep is not None:
            allow = np.array(self._db.numbers(_filter(keep)), np.int64)
        self._index.refresh()
        if self._index.is_trained:
            found, numbers = self._by_codes(xq, k, waiting, allow)
        else:
            found, numbers = _cosines(xq[0], waiting.embeddings), waiting.numbers
            if allow is not None:
                there = np.isin(numbers, allow)
                found, numbers = found[there], numbers[there]
        best = np.lexsort((numbers, -found))[:k]
        entries = self._db.entries("number", numbers[best].tolist())
        pairs = zip(numbers[best].tolist(), found[best].tolist(), strict=True)
        return [(entries[number], score) for number, score in pairs if number in entries]

    def _by_codes(
        self, xq: NDArray[np.float64], k: int, waiting: Waiting, allow: NDArray[np.int64] | None
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Scores and numbers of the nearest codes, and of all that wait, encoded for the moment."""
        index, numbers = self._index, waiting.numbers
        # What waits may have a code already, by a death or by a writer since.
        deny = np.concatenate([waiting.gone, numbers])
        most = min(k, max(index.ntotal, 1))
        S, I = index.search(xq, most, expand=0, allow=allow, deny=deny if deny.size else None)
        there = I[0] != NO_ID
        found = S[0][there]
        if numbers.size:
            found = np.concatenate([found, _scores(index, xq, index.encode(waiting.embeddings))])
            if allow is not None:
                kept = np.isin(numbers, allow)
                found, numbers = found[np.concatenate([there[there], kept])], numbers[kept]
        terms = 2 if index.config.bits and index.instance_bits else 1
        return found.astype(np.float64) / terms, np.concatenate([I[0][there], numbers])


def _scores(index: WOHIndex, xq: NDArray[np.float64], packed: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Scores of codes (n, code_size) for one query: what `WOHIndex.search` gives them."""
    first, terms = 0, []
    for half in index.hasher.halves(xq):
        end = first if half is None else first + half.shape[1] // 8
        terms.append(None if half is None else score.sums_of_all(score.tables(half), packed[:, first:end])[0])
        first = end
    return score.combined(*terms)


def _filter(keep: Keep) -> DocumentFilter:
    return keep if isinstance(keep, DocumentFilter) else DocumentFilter(keep)


def _ids(ids: Sequence[str]) -> list[str]:
    """Each id once; a str is not taken for a list of its letters."""
    return list(dict.fromkeys(validate.texts(ids if isinstance(ids, str) else list(ids), "ids")))


def _cosines(x: NDArray[np.float64], X: NDArray[np.float64]) -> NDArray[np.float64]:
    lengths = np.linalg.norm(X, axis=1) * np.linalg.norm(x)
    return (X @ x if X.size else np.zeros(len(X))) / np.where(lengths > 0, lengths, 1)


#: Its files.
INDEX, DOCUMENTS = "codes.woh", "documents.sqlite"


def opened(folder: Path, hyper: dict[str, Any]) -> WOHIndex:
    """The index of a folder, made if there is none; it must have the hyper-parameters that are given."""
    merged(None, {name: value for name, value in hyper.items() if name != "instance_bits"})
    if not os.path.lexists(folder / INDEX):
        if os.path.lexists(folder / DOCUMENTS):
            raise StoreError(f"{folder} has {DOCUMENTS} but no {INDEX}; restore both from a backup")
        try:
            if folder.exists() and any(folder.iterdir()):
                raise StoreError(f"{folder} holds something else; give a new folder, or an empty one")
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{folder} cannot be made: {error.strerror}; choose another folder") from error
        return WOHIndex.create(folder / INDEX, **hyper)
    try:
        index = WOHIndex.open(folder / INDEX)
    except StoreError:
        if os.path.lexists(folder / DOCUMENTS):
            raise
        return WOHIndex.create(folder / INDEX, **hyper)  # what died in the making is replaced
    has = {**index.config.to_dict(), "instance_bits": index.instance_bits}
    if other := [
        f"{name} is {value!r}, not {has[name]!r}" for name, value in hyper.items() if has[name] != value
    ]:
        index.close()
        raise InputError(f"{other[0]} as {folder} was made with; leave it out, or choose another folder")
    return index
