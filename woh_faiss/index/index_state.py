"""What an index folder holds: items, tags, rounds, and how well its codes do."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from woh_faiss import codes, validate
from woh_faiss.errors import ConfigError, InputError, NotFittedError, StoreError
from woh_faiss.learner.config import WOHConfig
from woh_faiss.learner.hasher import Hasher
from woh_faiss.store import Item, Round, Store, View


class WOHIndex:
    """An index folder, opened, and what is in it; `WOHIndex` adds the answers to queries.

    It tells of one committed state, whatever a writer does meanwhile, until `refresh`. Pickled and copied it
    is its place and that state, which the copy opens again.
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
        self._hashers: dict[str, Hasher] = {}  # the last two, by fingerprint: threads may be a state apart
        self._anchors: tuple[str, NDArray[Any]] | None = None  # with the SHA-256 of their file

    def __reduce__(self) -> tuple[Any, ...]:
        """The class and the store, which is pickled as its place and state."""
        return type(self), (self._store,)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, auto_refresh: float | None = None) -> Self:
        """The index at `path`, at its newest committed state.

        Parameters
        ----------
        path : str or path
            The folder.
        auto_refresh : float, optional
            Before a search, `refresh` if that was last done so many seconds ago or more; 0 always does. One
            thread then refreshes, the others answer from the state before.

        Raises
        ------
        StoreError
            There is none, it is damaged, or it was made by a newer version.
        InputError
            auto_refresh is no number of at least 0.
        """
        return cls(Store.open(path, auto_refresh))

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
    def store(self) -> Store:
        """The folder as it is on the disk, for code that carries it elsewhere."""
        return self._store

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
        return self._hasher_of(self._store.view)

    def _hasher_of(self, view: View) -> Hasher:
        """The hash function of a state, read once a model."""
        fingerprint = view.snapshot.fingerprint
        if fingerprint is None:
            raise NotFittedError(
                f"{self.path} has learned nothing yet; 'woh-index update' with a tagged chunk first"
            )
        hasher = self._hashers.get(fingerprint)
        if hasher is None:
            view.check_identity()  # another index's model of the same shape would answer, and wrongly
            model = view.learned()
            with model.damage():
                hasher = Hasher.from_arrays(model, None if "A" in model else self._anchors_of(view))
                if hasher.bits != self.config.bits:
                    raise InputError(
                        f"it gives codes of {hasher.bits} bits, the index has {self.config.bits}"
                    )
            self._hashers = {**dict(list(self._hashers.items())[-1:]), fingerprint: hasher}
        return hasher

    def _anchors_of(self, view: View) -> NDArray[Any] | None:
        """The anchors of a state, read and compared with their SHA-256 once: they stay."""
        held, known = self._anchors, view.snapshot.anchors
        if known is None or held is None or held[0] != known:
            view.check_anchors()
            rows = view.anchor_rows()
            if known is None or rows is None:
                return rows
            held = self._anchors = known, np.array(rows)
        return held[1]

    def _follow(self) -> View:
        """The state to answer from, its hash function read."""
        return self._store.follow(lambda view: self._hasher_of(view) if view.model is not None else None)

    def items(self, ids: ArrayLike) -> list[Item]:
        """Key, tags and round of each id, in the order asked; a StoreError names an id that is not there."""
        return self._store.view.items(ids)

    def id_of(self, key: str) -> int:
        """The id of the item whose key is `key`; a StoreError if there is none."""
        (key,) = validate.texts([key], "key")
        found = self._store.view.id_of_key(key)
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
            "derived": [
                {**asdict(made), "behind": self._store.snapshot.rows - made.rows}
                for made in self._store.snapshot.derived
            ],
            "sizes": self._store.sizes(),
            "history": [asdict(round_) for round_ in self.rounds()],
        }

    def health(self, most: int = 10) -> dict[str, Any]:
        """How well the codes do, and where tags and features disagree.

        Parameters
        ----------
        most : int
            Items to name.

        Returns
        -------
        dict
            ``rounds``: for each, its number, kind and items, and of the codes it added `codes.health` and how
            much of them its tags cover (`tags.Coverage`). ``drift``: for each earlier model that is kept
            (`keep_models`), the round that wrote it, ``turned``, the share of the anchors' bits that are
            others with today's hash function, and ``bits``, the same bit by bit. Stored codes do not move.
            ``tag_outliers``: the items with the most bits that their features alone would have set otherwise,
            worst first, with id, key, tags, round and ``differ``: what was tagged wrongly stands here. Of
            each round the 20 worst are remembered.
        """
        view, drift = self._store.view, []
        if view.model is not None:
            now = self._hasher_of(view)
            for number, model in self._store.earlier_models():
                with model.damage():
                    before = Hasher.from_arrays(model, None if "A" in model else view.anchor_rows())
                    bits = now.drift(before)
                drift.append({"round": number, "turned": float(bits.mean()), "bits": bits.tolist()})
        tag_outliers = self._store.tag_outliers(validate.whole_number(most, "most", 0))
        items = view.find([id_ for id_, _, _ in tag_outliers])
        return {
            "rounds": [
                {"round": done.round, "kind": done.kind, "n": done.n, **(done.health or {})}
                for done in self.rounds()
            ],
            "drift": drift,
            "tag_outliers": [
                {"id": id_, "key": item.key, "tags": item.tags, "round": number, "differ": bits}
                for id_, number, bits in tag_outliers
                if (item := items.get(id_)) is not None
            ],
        }

    def reconstruct(self, id: int, *, signs: bool = False) -> NDArray[Any]:  # noqa: A002 - Faiss has no better
        """The stored code of one item: (bits // 8,) uint8, or its (bits,) signs, -1 or +1, as int8.

        Raises
        ------
        InputError
            No item has this id, or it was removed.
        """
        if not self._store.view.find([id]):
            raise InputError(f"id {id} is not in {self.path}; 'woh-index query' shows the ids there are")
        packed = codes.unpad(self._store.view.codes([id]), self.config.bits)
        code: NDArray[Any] = codes.unpack(packed)[0] if signs else packed[0]
        return code
