"""WOHIndex: a folder that learns codes from chunks, appends them to Faiss, and answers feature queries."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from woh_faiss import codes
from woh_faiss.errors import InputError, StoreError
from woh_faiss.inputs.chunk import Chunk, concatenate, gathered
from woh_faiss.learner.config import WOHConfig, merged
from woh_faiss.store import Round, Store, publish

from .code_files import read_codes, valid_codes
from .maintenance import IndexLife

if TYPE_CHECKING:
    from woh_faiss.inputs import Inputs
    from woh_faiss.tags.word_vectors import WordVectors

    from .item_ids import OnDuplicate

#: Items that `build` gathers for round 1: a first chunk of 121 in place of 1,945 cost .057 MAP at 16 bits.
FIRST_ROUND = 2000


class WOHIndex(IndexLife):
    """Learned binary codes in a folder, searched as Faiss searches.

    Think of a Faiss index that takes features and tags, learns from them what to keep, and keeps 8 to 16
    bytes an item. `update` learns a chunk and appends it, `add` only encodes and appends, `search` answers
    with distances and the ids of your own. Made by `create`, `build` or `open`, not by the constructor.

    Any number of processes may read while one writes; a reader keeps to its snapshot until `refresh`.
    """

    @classmethod
    def create(cls, path: str | os.PathLike[str], config: WOHConfig | None = None, **hyper: Any) -> WOHIndex:
        """A new index without items at `path`.

        Parameters
        ----------
        path : path
            Where nothing is yet.
        config : WOHConfig, optional
            Hyper-parameters.
        **hyper
            Fields of `WOHConfig` by name, which win over those of `config`; `config.merged` has the rule.

        Raises
        ------
        ConfigError
            A hyper-parameter is unknown or out of range.
        StoreError
            Something is at `path` already, or it cannot be written.
        """
        config = merged(config, hyper)
        return cls(Store.create(path, config=config.to_dict(), d=codes.stored_bits(config.bits)))

    @classmethod
    def build(
        cls,
        path: str | os.PathLike[str],
        chunks: Iterable[Chunk],
        config: WOHConfig | None = None,
        *,
        word_vectors: WordVectors | None = None,
        **hyper: Any,
    ) -> WOHIndex:
        """A new index at `path` that has learned `chunks`: all of them, or on any error no index at all.

        Each chunk is a round, but a semantic start takes its means and scales from round 1: the first chunks
        are put together until they have `FIRST_ROUND` items.

        Parameters
        ----------
        path, config, **hyper
            As `create`.
        chunks : iterable of Chunk
            Each is read once.
        word_vectors : WordVectors, optional
            Where vectors of tags come from.

        Raises
        ------
        InputError, ConfigError, StoreError
            As `create` and `update`.
        """
        final = Path(path)
        _nameable(final)  # before hours of learning
        if os.path.lexists(final):
            raise StoreError(
                f"{final} exists already; 'woh-index update' extends it, or choose another --index"
            )
        try:
            final.parent.mkdir(parents=True, exist_ok=True)
            hidden = tempfile.TemporaryDirectory(
                prefix=".woh-index-", suffix=".building", dir=final.parent, ignore_cleanup_errors=True
            )
        except OSError as error:
            why = "Not a directory" if isinstance(error, FileExistsError) else error.strerror
            raise StoreError(f"cannot create {final}: {why}; choose another --index") from error
        with hidden as folder:  # whose name nobody can guess, and into which nobody else can look
            unfinished = Path(folder, "index")
            with cls.create(unfinished, config, **hyper) as index:
                least = FIRST_ROUND if index.config.start == "semantic" else 1
                for parts in gathered(chunks, least):
                    index._learn_parts(parts, word_vectors)
            publish(unfinished, final)
        return cls.open(final)

    def update(
        self,
        features: Chunk | ArrayLike,
        tags: Any = None,
        *,
        ids: ArrayLike | None = None,
        keys: Sequence[str] | None = None,
        word_vectors: WordVectors | None = None,
        on_duplicate: OnDuplicate = "error",
        timeout: float = 10.0,
    ) -> Round:
        """Learn one chunk and append its codes: one round, committed whole or not at all.

        Parameters
        ----------
        features : Chunk or (n, d) array_like
            The chunk, or its features with `tags`, `ids` and `keys` as `Chunk.of` takes them.
        word_vectors : WordVectors, optional
            Vectors for tags that are new; without it they take the mean vector of the tags they occur with.
        on_duplicate : "error", "skip" or "replace"
            What to do with items whose id or key is in the index: refuse the chunk, leave them out, or put
            the new code and tags in the old one's place, under the same id. What was learned from the old
            item stays learned. A chunk of which nothing is left is a round of no items.
        timeout : float
            Seconds to wait for another writer.

        Raises
        ------
        InputError
            The chunk cannot be used, an id or key is in the index already, an id was removed, an id is known
            under another key (or a key under another id), or nothing can be learned.
        LockedError
            Another writer holds the index.
        StoreError
            The index is damaged or cannot be written.
        """
        return self._grow.update(_as_chunk(features, tags, ids, keys), word_vectors, timeout, on_duplicate)

    def add(
        self,
        features: Chunk | ArrayLike,
        tags: Any = None,
        *,
        ids: ArrayLike | None = None,
        keys: Sequence[str] | None = None,
        on_duplicate: OnDuplicate = "error",
        timeout: float = 10.0,
    ) -> Round:
        """Encode one chunk with the newest hash function and append its codes; nothing is learned.

        Tags, if there are any, are kept to be shown, not counted. Parameters and errors as `update`,
        and NotFittedError where no round was learned yet.
        """
        return self._grow.add(_as_chunk(features, tags, ids, keys), timeout, on_duplicate)

    def add_codes(
        self,
        packed: str | os.PathLike[str] | ArrayLike,
        tags: Any = None,
        *,
        model: str | None = None,
        ids: ArrayLike | None = None,
        keys: Sequence[str] | None = None,
        on_duplicate: OnDuplicate = "error",
        timeout: float = 10.0,
    ) -> Round:
        """Append codes that were made elsewhere with this index's newest hash function; nothing is learned.

        Parameters
        ----------
        packed : path, or (n, bits // 8) uint8
            A file of `write_codes`, which brings its own tags, ids and keys; or codes of `Hasher.encode`.
        model : str
            `fingerprint` of the hash function that made them, `WOHIndex.hasher`; a file brings its own.

        Raises
        ------
        InputError
            As `add`; the codes have another width, or another hash function made them.
        NotFittedError, LockedError, StoreError
            As `add`.
        """
        if isinstance(packed, str | os.PathLike):
            if any(given is not None for given in (tags, model, ids, keys)):
                raise InputError(
                    "a file of codes brings its own tags, ids, keys and model; give none beside it"
                )
            chunk, model = read_codes(packed)
        else:
            chunk = valid_codes(packed, tags, ids=ids, keys=keys)
        if model is None:
            raise InputError(
                "codes without a model; give the fingerprint of the hash function that made them"
            )
        return self._grow.add_codes(chunk, model, timeout, on_duplicate)

    def add_with_ids(self, x: ArrayLike, ids: ArrayLike) -> None:
        """`add` under Faiss's name: features (n, d) encoded and appended as these ids; nothing is learned."""
        self.add(x, ids=ids)

    def extend(
        self,
        inputs: Inputs | Sequence[str | os.PathLike[str]],
        *,
        learn: bool = True,
        word_vectors: WordVectors | None = None,
        on_duplicate: OnDuplicate = "error",
        again: bool = False,
        note: Callable[[str], object] | None = None,
    ) -> Iterator[Round]:
        """`update` (or, without `learn`, `add`) each chunk in turn, yielding its round once committed.

        A chunk that is in the index already is skipped, so that what was interrupted goes on where it was:
        one whose SHA-256 a round has, as often as rounds have it. With another `on_duplicate` than "error"
        items that have ids or keys are looked at one by one instead. Where all inputs are chunk files, each
        is read and checked before the first is committed, so that a bad third one leaves the index as it
        was; others are checked chunk by chunk.

        Parameters
        ----------
        inputs : Inputs, or paths
            What `inputs.open_inputs` gives; paths are opened so, with columns guessed.
        again : bool
            Skip no chunk.
        note : callable, optional
            Is given a line about each chunk that is skipped.

        Raises
        ------
        InputError, LockedError, StoreError
            As `update`, `add` and `open_inputs`.
        """
        from woh_faiss.inputs import Inputs, open_inputs

        from .resume import extended

        opened = inputs if isinstance(inputs, Inputs) else open_inputs(inputs, learn=learn)
        return extended(
            self._store,
            self._grow,
            opened,
            learn=learn,
            word_vectors=word_vectors,
            on_duplicate=on_duplicate,
            again=again,
            note=note,
        )

    def _learn_parts(self, parts: list[Chunk], word_vectors: WordVectors | None) -> None:
        """Learn chunks together, as a round that says of each that it is in it."""
        chunk_hash = " ".join(part.digest() for part in parts)
        self._grow.update(concatenate(parts, own_names=True), word_vectors, 10.0, "error", chunk_hash)


def _nameable(path: Path) -> None:
    """StoreError for a path that no file can have."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise StoreError(f"cannot create {path}: {error.strerror}; choose another --index") from error


def _as_chunk(
    features: Chunk | ArrayLike, tags: Any, ids: ArrayLike | None, keys: Sequence[str] | None
) -> Chunk:
    if isinstance(features, Chunk):
        if tags is not None or ids is not None or keys is not None:
            raise InputError(
                "a Chunk brings its own tags, ids and keys; give them to Chunk.of, not beside it"
            )
        return features
    return Chunk.of(features, tags, ids=ids, keys=keys)
