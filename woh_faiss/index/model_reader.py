"""What is read of a committed state's model: its hash function and its tag side, each once a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from woh_faiss.errors import InputError, NotFittedError
from woh_faiss.learner.config import WOHConfig
from woh_faiss.learner.hasher import Hasher
from woh_faiss.store import Snapshot, Store, View

if TYPE_CHECKING:
    from .tag_queries import TagQueries


class ModelReader:
    """The models of an opened store, read when first asked for; threads share them.

    Parameters
    ----------
    store : Store
        The index folder.
    config : WOHConfig
        The configuration it was made with.
    instance_bits : int
        Of a code, behind the learned ones.
    """

    def __init__(self, store: Store, config: WOHConfig, instance_bits: int) -> None:
        self._store, self._config, self._s = store, config, instance_bits
        self._hashers: dict[
            str, Hasher
        ] = {}  # the last two, by digest of the model: threads may be a state apart
        self._anchors: tuple[str, NDArray[Any]] | None = None  # with the SHA-256 of their file
        self._tag_queries: tuple[Snapshot, TagQueries] | None = None  # with the state it was read in

    def of_store(self, store: Store) -> ModelReader:
        """A reader for another Store of the same folder, which knows what this one has read."""
        found = ModelReader(store, self._config, self._s)
        found._hashers, found._anchors, found._tag_queries = self._hashers, self._anchors, self._tag_queries
        return found

    def hasher(self, view: View) -> Hasher:
        """The hash function of a state, read once a model."""
        digest = view.snapshot.model_digest
        if digest is None:
            raise NotFittedError(
                f"{self._store.path} has learned nothing yet; 'woh-index update' with a tagged chunk first"
            )
        hasher = self._hashers.get(digest)
        if hasher is None:
            view.check_identity()  # another index's model of the same shape would answer, and wrongly
            model = view.learned()
            with model.damage():
                hasher = Hasher.from_arrays(model, None if "A" in model else self._anchors_of(view))
                if (hasher.bits, hasher.instance_bits) != (self._config.bits, self._s):
                    raise InputError(
                        f"it gives codes of {hasher.bits} + {hasher.instance_bits} bits, the index has "
                        f"{self._config.bits} + {self._s}"
                    )
            self._hashers = {**dict(list(self._hashers.items())[-1:]), digest: hasher}
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

    def tag_queries(self, view: View) -> TagQueries:
        """The tag side of a state's model, read once a state; a search by features never needs it."""
        from woh_faiss.tags.vocabulary import Vocabulary

        from .tag_queries import TagQueries

        self.hasher(view)  # says so where nothing was learned
        if not self._config.bits:
            raise InputError(
                f"{self._store.path} has no learned bits, which tags are asked by; ask by features"
            )
        held = self._tag_queries
        if held is None or held[0] != view.snapshot:
            model = view.learned()
            with model.damage():
                c = model["W"].shape[1]  # the catalogue may know of tags that a newer round admitted
                rows = [row for row in self._store.tag_rows() if row[0] is not None and row[0] < c]
                vocabulary = Vocabulary.from_rows(rows, self._config.min_count)
                held = view.snapshot, TagQueries.of(self._config, model, vocabulary)
            self._tag_queries = held
        return held[1]
