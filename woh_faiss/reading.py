"""The reading half of an index: one committed snapshot, searched as Faiss searches."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import codes, validate
from .config import WOHConfig
from .errors import ConfigError, InputError, NotFittedError, StoreError
from .hasher import Hasher
from .kernel import unit_rows
from .rerank import scores
from .store import NO_DISTANCE, NO_ID, Item, Round, Snapshot, Store

if TYPE_CHECKING:
    from .meaning import Meaning
    from .vectors import WordVectors


class Neighbour(NamedTuple):
    """One answer to a query: an item, and how many bits of its code differ from the query's, or its score."""

    id: int
    key: str | None
    distance: float
    tags: list[str]


class IndexReader:
    """What can be asked of an index folder; `WOHIndex` adds what makes it grow.

    It answers from one committed state, whatever a writer does meanwhile, until `refresh`.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        try:
            self.config = WOHConfig.from_dict(store.config)
        except (ConfigError, TypeError) as error:
            raise StoreError(
                f"{store.path} has a config that is damaged or newer than this: {error}"
            ) from error
        if store.d != codes.stored_bits(self.config.bits):
            raise StoreError(
                f"{store.path} is damaged: codes of {self.config.bits} bits are stored in {store.d}, "
                f"expected {codes.stored_bits(self.config.bits)}; restore it from a backup"
            )
        self._hasher: tuple[str, Hasher] | None = None  # with the fingerprint it was loaded under
        self._tag_side: tuple[Snapshot, Meaning] | None = None  # with the state it was read in

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """The index at `path`, at its newest committed state.

        Raises
        ------
        StoreError
            There is none, it is damaged, or it was made by a newer version.
        """
        return cls(Store.open(path))

    def close(self) -> None:
        """Let go of files and database; the index answers no more."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def refresh(self) -> bool:
        """Follow what other writers have committed since; True if anything changed."""
        return self._store.refresh()

    # ---- what it holds ------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        """The folder."""
        return Path(self._store.path)

    @property
    def ntotal(self) -> int:
        """Items that can be found."""
        return self._store.ntotal

    @property
    def is_trained(self) -> bool:
        """Whether a round was learned, so that features can be encoded."""
        return self._store.snapshot.model is not None

    @property
    def d(self) -> int:
        """Width of the features it takes (not of the codes: that is `config.bits`)."""
        return self.hasher.d

    @property
    def hasher(self) -> Hasher:
        """The hash function of the newest round.

        Raises
        ------
        NotFittedError
            Nothing was learned yet.
        """
        fingerprint = self._store.snapshot.fingerprint
        if fingerprint is None:
            raise NotFittedError(
                f"{self.path} has learned nothing yet; 'woh-index update' with a tagged chunk first"
            )
        if self._hasher is None or self._hasher[0] != fingerprint:
            model = self._store.model()
            with model.damage():
                hasher = Hasher.from_arrays(model, self._store.anchors())
                if hasher.bits != self.config.bits:
                    raise InputError(
                        f"it gives codes of {hasher.bits} bits, the index has {self.config.bits}"
                    )
            self._hasher = fingerprint, hasher
        return self._hasher[1]

    def items(self, ids: ArrayLike) -> list[Item]:
        """Key, tags and round of each id, in the order asked; a StoreError names an id that is not there."""
        return self._store.items(ids)

    def id_of(self, key: str) -> int:
        """The id of the item whose key is `key`; a StoreError if there is none."""
        (key,) = validate.texts([key], "key")
        found = self._store.id_of_key(key)
        if found is None:
            raise StoreError(
                f"no item of {self.path} has the key {key!r}; 'woh-index query' shows the keys there are"
            )
        return found

    def rounds(self) -> list[Round]:
        """One record a committed round, oldest first."""
        return self._store.rounds()

    def tags(self) -> list[tuple[str, int, bool]]:
        """Every tag seen: (tag, times seen, whether it is learned from), the most frequent first."""
        rows = [(tag, count, column is not None) for column, tag, count, _ in self._store.tag_rows()]
        return sorted(rows, key=lambda row: (-row[1], row[0]))

    def info(self, n_tags: int = 10) -> dict[str, Any]:
        """What `woh-index info --json` prints: counts, sizes in bytes, model, and a record a round."""
        trained, tags = self.is_trained, self.tags()
        return {
            "path": str(self.path),
            "ntotal": self.ntotal,
            "rows": self._store.snapshot.rows,
            "removed": self._store.snapshot.rows - self.ntotal,
            "rounds": self._store.snapshot.round,
            "bits": self.config.bits,
            "stored_bits": self._store.d,
            "d": self.d if trained else None,
            "anchors": len(self.hasher.P) if trained else None,
            "preset": self.config.preset,
            "config": self.config.to_dict(),
            "fingerprint": self._store.snapshot.fingerprint,
            "tags_seen": len(tags),
            "tags_known": sum(known for _, _, known in tags),
            "tags_top": [(tag, count) for tag, count, _ in tags[:n_tags]],
            "sizes": self._store.sizes(),
            "history": [asdict(round_) for round_ in self.rounds()],
        }

    def reconstruct(self, id: int, *, signs: bool = False) -> NDArray[Any]:  # noqa: A002 - Faiss has no better
        """The stored code of one item: (bits // 8,) uint8, or its (bits,) signs, -1 or +1, as int8.

        Raises
        ------
        InputError
            No item has this id, or it was removed.
        """
        if not self._store.find([id]):
            raise InputError(f"id {id} is not in {self.path}; 'woh-index query' shows the ids there are")
        packed = codes.unpad(self._store.codes([id]), self.config.bits)
        code: NDArray[Any] = codes.unpack(packed)[0] if signs else packed[0]
        return code

    # ---- answering ----------------------------------------------------------------------------------

    def encode(self, X: ArrayLike) -> NDArray[np.uint8]:
        """Packed codes of features with the newest hash function: (n, d) → (n, bits // 8) uint8."""
        return self.hasher.encode(X)

    def search(
        self, xq: ArrayLike, k: int, *, rerank: int | None = None
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The k nearest items of each query, as Faiss answers.

        Parameters
        ----------
        xq : (nq, d) array_like of a real dtype
            Query features.
        k : int
            Neighbours a query; may be more than there are items.
        rerank : int, optional
            Order this many nearest items (at least k) anew by what the query knows of itself before the
            sign: see `rerank.scores`.

        Returns
        -------
        D : (nq, k) int32
            Hamming distances in bits, ascending; 2147483647 where there is no neighbour. With `rerank`
            float32 scores instead, descending, and -inf.
        I : (nq, k) int64
            Ids; -1 where there is no neighbour. Where distances are equal the earlier item comes first;
            where scores are, the one at the smaller distance, then the earlier.

        Raises
        ------
        InputError
            The features cannot be used or have another width, k is not a whole number of at least 1, or
            `rerank` is less than k.
        """
        k = validate.neighbours(k)
        if rerank is not None and validate.neighbours(rerank, "rerank") < k:
            raise InputError(f"rerank is {rerank}, expected at least k = {k}, the number of answers wanted")
        if not self.is_trained:  # no items either: nothing can be encoded before the first round
            nq = len(validate.features(xq))
            none = (
                np.full((nq, k), NO_DISTANCE, np.int32) if rerank is None else np.full((nq, k), -np.inf, "f4")
            )
            return none, np.full((nq, k), NO_ID, np.int64)
        if rerank is None:
            return self._store.search(codes.pad(self.encode(xq)), k)
        return self._reranked(self.hasher.decision_function(xq), k, rerank)

    def _reranked(
        self, H: NDArray[np.float64], k: int, rerank: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Scores and ids of the k best of the `rerank` nearest items, for queries H = φ(x)P (nq, r)."""
        _, I, stored = self._store.search_codes(codes.pad(codes.pack(H)), min(rerank, max(k, self.ntotal)))
        S = np.where(I == NO_ID, -np.inf, scores(H, stored[:, :, : H.shape[1] // 8])).astype(np.float32)
        best = np.argsort(-S, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(S, best, axis=1), np.take_along_axis(I, best, axis=1)

    def search_tags(
        self,
        tags: Sequence[str] | Sequence[Sequence[str]],
        k: int,
        *,
        xq: ArrayLike | None = None,
        rerank: int = 1000,
        word_vectors: WordVectors | None = None,
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The k items that tags ask for, by score: text in, pictures out.

        Parameters
        ----------
        tags : list of str, or a list of such lists
            One query, or nq of them.
        k : int
            Neighbours a query.
        xq : (nq, d) array_like, optional
            Features that belong to the tags; they and the tags then count in equal parts.
        rerank : int
            Nearest codes that are scored (at least k of them are).
        word_vectors : WordVectors, optional
            Answers tags that the index does not know.

        Returns
        -------
        S, I : (nq, k) float32 and (nq, k) int64
            As `search` with `rerank`.

        Raises
        ------
        InputError
            Nothing is known of any tag of a query, or xq does not fit.
        NotFittedError
            Nothing was learned yet.
        """
        k = validate.neighbours(k)
        lists: Any = [tags] if all(isinstance(tag, str) for tag in tags) else tags
        H = self._meaning.bits(lists, word_vectors)
        if xq is not None:
            of_features = self.hasher.decision_function(xq)
            if len(of_features) != len(H):
                raise InputError(f"there are {len(H)} tag lists for {len(of_features)} rows of features")
            H = unit_rows(H) + unit_rows(of_features)
        return self._reranked(H, k, max(k, validate.neighbours(rerank, "rerank")))

    def explain(self, ids: ArrayLike, most: int = 5) -> list[list[tuple[str, float]]]:
        """The tags that each indexed item's code predicts, best first, with scores: `Meaning.predicted`."""
        ids = np.atleast_1d(np.asarray(ids))
        return self._meaning.predicted(codes.unpad(self._store.codes(ids), self.config.bits), most)

    def explain_features(self, X: ArrayLike, most: int = 5) -> list[list[tuple[str, float]]]:
        """The tags that the codes of features (n, d) predict, as `explain`."""
        return self._meaning.predicted(self.encode(X), most)

    @property
    def _meaning(self) -> Meaning:
        """The newest model's tag side, read once a state; a search by features never needs it."""
        from .meaning import Meaning
        from .tags import Vocabulary

        self.hasher  # noqa: B018 - says so where nothing was learned
        snapshot = self._store.snapshot
        if self._tag_side is None or self._tag_side[0] != snapshot:
            self._store.check_model()
            model = self._store.model()
            with model.damage():
                c = model["W"].shape[1]  # the catalogue may know of tags that a newer round admitted
                rows = [row for row in self._store.tag_rows() if row[0] is not None and row[0] < c]
                vocabulary = Vocabulary.from_rows(rows, self.config.min_count)
                self._tag_side = snapshot, Meaning.of(self.config, model, vocabulary)
        return self._tag_side[1]

    def search_ids(self, ids: ArrayLike, k: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The k nearest other items of each indexed item, by its stored code; shapes as `search`."""
        k = validate.neighbours(k)
        ids = np.atleast_1d(np.asarray(ids))
        D, I = self._store.search(self._store.codes(ids), k + 1)  # which checks the ids
        # Drop the item itself; behind more than k duplicates of it, it was not found: drop the last then.
        own = ids.astype(np.int64)[:, None] == I
        own[~own.any(axis=1), -1] = True
        return D[~own].reshape(len(ids), k), I[~own].reshape(len(ids), k)

    def describe(self, D: NDArray[Any], I: NDArray[np.int64]) -> list[list[Neighbour]]:
        """What `search` found, with keys and tags: a list a query, without empty or erased places."""
        items = self._store.find(np.unique(I[I != NO_ID]))  # all, but for what `compact` erased meanwhile
        return [
            [Neighbour(i, items[i].key, d, items[i].tags) for d, i in zip(*row, strict=True) if i in items]
            for row in zip(D.tolist(), I.tolist(), strict=True)
        ]
