"""WOHIndex: a folder that learns codes from chunks, appends them to Faiss, and answers feature queries.

All that an index can do is in this file. How it does it is in the modules beside it, in `store` and in
`learner`.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from woh_faiss import codes, score, validate
from woh_faiss.encoders.encoder import EncoderRecord
from woh_faiss.errors import ConfigError, InputError, MissingItemError, StoreError, short
from woh_faiss.inputs.chunk import Chunk
from woh_faiss.learner.config import WOHConfig, merged
from woh_faiss.learner.hasher import Hasher
from woh_faiss.learner.instance import INSTANCE_BITS
from woh_faiss.learner.kernel import unit_rows
from woh_faiss.store import (
    NO_ID,
    AnnIndex,
    Item,
    Round,
    Store,
    View,
    publish,
)
from woh_faiss.store.schema import CATALOG
from woh_faiss.store.view import Where
from woh_faiss.tags.tag_text import normalise

from . import index_state
from .code_files import read_codes, valid_codes
from .model_reader import ModelReader
from .neighbours import (
    By,
    Ids,
    Neighbour,
    halves_of_codes,
    no_answers,
    valid_by,
    without_own,
)

if TYPE_CHECKING:
    from woh_faiss.inputs import Inputs
    from woh_faiss.store.export import Exported
    from woh_faiss.tags.word_vectors import WordVectors

    from .item_ids import OnDuplicate
    from .refine import Refine
    from .writer import IndexWriter

#: Items that `build` gathers for round 1: a first chunk of 121 in place of 1,945 cost .057 MAP at 16 bits.
FIRST_ROUND = 2000
#: Where a store's configuration has the number of instance bits, beside the fields of WOHConfig.
_INSTANCE_BITS = "instance_bits"
#: Where it has the record of the encoder of its features, if one is known.
_ENCODER = "encoder"


class Compacted(NamedTuple):
    """What `WOHIndex.compact` did: items erased, and whether no trace of them is left in the catalogue.

    Where another process had the catalogue open, a trace may be; compact again.
    """

    items: int
    clean: bool


class WOHIndex:
    """Learned binary codes in a folder, searched as Faiss searches.

    Think of a Faiss index that takes features and tags, learns from them what to keep, and keeps 8 to 16
    bytes an item. `update` learns a chunk and appends it, `add` only encodes and appends, `search` answers
    with scores and the ids of your own. Made by `create`, `build` or `open`, not by the constructor.

    A code is `config.bits` learned bits, which say what kind of item it is, then `instance_bits` bits, which
    say which one. Either may be 0.

    Any number of processes may read while one writes; a reader keeps to its snapshot until `refresh`.

    It tells of one committed state, whatever a writer does meanwhile, until `refresh`. Pickled and copied it
    is its place and that state, which the copy opens again.

    `encoder` is the record of what made its features, where the inputs of `build` said it, else None. An
    index holds no encoder and runs none: it takes features.

    Kinds of Faiss index that `to_faiss` and `export` make of it, with n items of r bits:

    ============  ===========================================================  ====================
    kind          Faiss                                                        parameters (default)
    ============  ===========================================================  ====================
    "flat"        IndexBinaryFlat: exact; answers with positions, not ids
    "idmap2"      IndexBinaryIDMap2 of that: exact
    "ivf"         IndexBinaryIVF: looks into `nprobe` of `nlist` clusters      nlist (√n), nprobe
                                                                               (nlist / 32)
    "hnsw"        IndexBinaryHNSW: walks a graph                               M (16),
                                                                               ef_construction (40),
                                                                               ef_search (128)
    "multihash"   IndexBinaryMultiHash: `nhash` parts of `b` bits, each found  nhash (r / log₂ n), b
                  with up to `nflip` bits flipped                              (r / nhash), nflip (2)
    ============  ===========================================================  ====================
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        stored = dict(store.config)
        try:
            self.instance_bits = _valid_instance_bits(stored.pop(_INSTANCE_BITS, 0))
            encoder = stored.pop(_ENCODER, None)
            self.encoder = None if encoder is None else EncoderRecord.from_dict(encoder)
            self.config = WOHConfig.from_dict(stored)
        except (ConfigError, InputError, TypeError) as error:
            raise StoreError(
                f"{store.path} has a config that is damaged or newer than this: {error}"
            ) from error
        if store.d != codes.stored_bits(8 * self.code_size):
            raise StoreError(
                f"{store.path} is damaged: codes of {8 * self.code_size} bits are stored in {store.d}, "
                f"expected {codes.stored_bits(8 * self.code_size)}; restore it from a backup"
            )
        self._model = ModelReader(store, self.config, self.instance_bits)
        self._index_writer: IndexWriter | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """The class and the store, which is pickled as its place and state."""
        return type(self), (self._store,)

    # ---- made and opened -----------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        config: WOHConfig | None = None,
        *,
        instance_bits: int = INSTANCE_BITS,
        encoder: EncoderRecord | None = None,
        **hyper: Any,
    ) -> WOHIndex:
        """A new index without items at `path`.

        Parameters
        ----------
        path : path
            Of the new folder; nothing may exist there.
        config : WOHConfig, optional
            Hyper-parameters.
        instance_bits : int
            Bits of a code behind the learned ones, a multiple of 8; 0 for none.
        encoder : EncoderRecord, optional
            What makes its features, to be kept: inputs of another encoder are then refused.
        **hyper
            Fields of `WOHConfig` by name, which win over those of `config`; `config.merged` has the rule.
            ``bits=0`` is for data without tags: codes are instance bits alone, and nothing is learned.

        Raises
        ------
        ConfigError
            A hyper-parameter is unknown or out of range, or codes would have no bits.
        StoreError
            `path` exists already, or it cannot be written.
        """
        config = merged(config, hyper)
        instance_bits = _valid_instance_bits(instance_bits)
        if not config.bits + instance_bits:
            raise ConfigError("bits and instance_bits are both 0, expected at least 8 of one of them")
        stored = {**config.to_dict(), _INSTANCE_BITS: instance_bits}
        if encoder is not None:
            stored[_ENCODER] = encoder.to_dict()
        return cls(Store.create(path, config=stored, d=codes.stored_bits(config.bits + instance_bits)))

    @classmethod
    def build(
        cls,
        path: str | os.PathLike[str],
        chunks: Iterable[Chunk],
        config: WOHConfig | None = None,
        *,
        word_vectors: WordVectors | None = None,
        instance_bits: int = INSTANCE_BITS,
        first_sample: int = FIRST_ROUND,
        max_chunks: int | None = None,
        progress: Callable[[Iterable[Chunk], int], Iterable[Chunk]] | None = None,
        on_duplicate: OnDuplicate = "error",
        encoder: EncoderRecord | None = None,
        **hyper: Any,
    ) -> WOHIndex:
        """A new index at `path` that has learned `chunks`: all of them, or on any error no index at all.

        Each chunk is a round. Round 1 decides what later ones can learn. So of `Inputs`, whose end is known,
        it is a random sample, and the rest follows in its order. Other chunks come as they are, but for the
        first ones, which are joined until they have `FIRST_ROUND` items. Of `Inputs` the index also keeps
        which encoder made their features, where they say it.

        Parameters
        ----------
        path, config, instance_bits, encoder, **hyper
            As `create`; `Inputs` bring their own encoder.
        chunks : iterable of Chunk, or Inputs
            Each is read once; those of `Inputs` once more for the sample.
        word_vectors : WordVectors, optional
            Vectors of the tags' words.
        first_sample : int
            Items of the sample, 0 for none; inputs that have no more items have none. Items without ids get
            their place among all items as id.
        max_chunks : int, optional
            Learn so many chunks only; `extend` with the same inputs continues.
        progress : callable, optional
            Given the chunks and their number, it gives them back, and may show how far they are.
        on_duplicate : "error", "skip" or "replace"
            Of items with one id or key: refuse them, or keep the first ("skip") or the last ("replace").
            `Inputs` are read once more for it.

        Raises
        ------
        InputError, ConfigError, StoreError
            As `create` and `update`.
        """
        first_sample = validate.whole_number(first_sample, "first_sample", 0)
        final = Path(path)
        check_free(final)  # before hours of learning
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
            made_by = _known_encoder(chunks, encoder)
            with cls.create(
                unfinished, config, instance_bits=instance_bits, encoder=made_by, **hyper
            ) as index:
                early = index.config.start == "semantic" or index.instance_bits
                index._writer.build(
                    chunks,
                    word_vectors,
                    FIRST_ROUND if early else 1,
                    first_sample,
                    max_chunks,
                    progress,
                    on_duplicate,
                )
                if made_by is not None and made_by.dimension != index.hasher.d:
                    raise _other_width(made_by, index.hasher.d)
            publish(unfinished, final)
        return cls.open(final)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, auto_refresh: float | None = None) -> Self:
        """The index at `path`, at its newest committed state.

        Parameters
        ----------
        path : str or path
            The folder.
        auto_refresh : float, optional
            Before a search, `refresh` if the last refresh is this many seconds old or more; 0 always does.
            One thread then refreshes, the others answer from the state before.

        Raises
        ------
        StoreError
            There is no index, it is damaged, or a newer version made it.
        InputError
            auto_refresh is not a number of at least 0.
        """
        return cls(Store.open(path, auto_refresh))

    def close(self) -> None:
        """Close files and database; the index cannot answer afterwards."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def refresh(self) -> bool:
        """Move to the newest committed state; True if anything changed."""
        return self._store.refresh()

    def pinned(self) -> Self:
        """The state it tells of as an index that stays there, whatever `refresh` does to this one.

        Several calls that must tell of one state (a search, then `describe`) are made of it while other
        threads refresh the original. It costs microseconds: what is mapped, copied and read is shared.
        """
        found = object.__new__(type(self))
        vars(found).update(vars(self))
        found._store, found._index_writer = self._store.pinned(), None
        found._model = self._model.of_store(found._store)
        return found

    # ---- growth --------------------------------------------------------------------------------------

    def update(
        self,
        features: Chunk | ArrayLike,
        tags: Any = None,
        *,
        ids: ArrayLike | None = None,
        keys: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        word_vectors: WordVectors | None = None,
        on_duplicate: OnDuplicate = "error",
        timeout: float = 10.0,
    ) -> Round:
        """Learn one chunk and append its codes: one round, committed whole or not at all.

        Parameters
        ----------
        features : Chunk or (n, d) array_like of a real dtype
            The chunk, or its features.
        tags, ids, keys, metadata : optional
            With features, as `Chunk.of` takes them; a Chunk brings its own.
        word_vectors : WordVectors, optional
            Vectors for tags that are new; without it they take the mean vector of the tags they occur with.
        on_duplicate : "error", "skip" or "replace"
            What to do with items whose id or key is in the index: refuse the chunk, leave them out, or
            replace the old code and tags under the same id. What was learned from the old item stays
            learned. A chunk of which nothing is left is a round of no items.
        timeout : float
            Seconds to wait for another writer.

        Raises
        ------
        InputError
            The chunk cannot be used, an id or key is in the index already, an id was removed, an id is known
            under another key (or a key under another id), a column of metadata has another type in the index,
            or nothing can be learned.
        LockedError
            Another writer holds the index.
        StoreError
            The index is damaged or cannot be written.
        """
        return self._writer.update(
            _as_chunk(features, tags, ids, keys, metadata, on_duplicate),
            word_vectors,
            timeout,
            on_duplicate,
        )

    def add(
        self,
        features: Chunk | ArrayLike,
        tags: Any = None,
        *,
        ids: ArrayLike | None = None,
        keys: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        on_duplicate: OnDuplicate = "error",
        timeout: float = 10.0,
    ) -> Round:
        """Encode one chunk with the newest hash function and append its codes; nothing is learned.

        Parameters
        ----------
        features : Chunk or (n, d) array_like of a real dtype
            As `update`.
        tags : optional
            As `Chunk.of` takes them. They are stored and shown, not counted.
        ids, keys, metadata, on_duplicate, timeout
            As `update`.

        Raises
        ------
        NotFittedError
            No round was learned yet.
        InputError, LockedError, StoreError
            As `update`.
        """
        chunk = _as_chunk(features, tags, ids, keys, metadata, on_duplicate)
        return self._writer.add(chunk, timeout, on_duplicate)

    def add_codes(
        self,
        packed: str | os.PathLike[str] | ArrayLike,
        tags: Any = None,
        *,
        model: str | None = None,
        ids: ArrayLike | None = None,
        keys: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        on_duplicate: OnDuplicate = "error",
        timeout: float = 10.0,
    ) -> Round:
        """Append codes that were made elsewhere with this index's newest hash function; nothing is learned.

        Parameters
        ----------
        packed : path, or (n, code_size) uint8
            A file of `write_codes`, which brings its own tags, ids and keys; or codes of `Hasher.encode`.
        tags, ids, keys, metadata : optional
            Of codes, as `Chunk.of` takes them.
        model : str
            `fingerprint` of the hash function that made them, `WOHIndex.hasher`; a file brings its own.
        on_duplicate, timeout
            As `update`.

        Raises
        ------
        InputError
            As `add`; the codes have another width, or another hash function made them, or the instance
            bits are not final yet.
        NotFittedError, LockedError, StoreError
            As `add`.
        """
        if isinstance(packed, str | os.PathLike):
            if any(given is not None for given in (tags, model, ids, keys, metadata)):
                raise InputError(
                    "a file of codes brings its own tags, ids, keys, metadata and model; give none beside it"
                )
            chunk, model = read_codes(packed)
        else:
            chunk = valid_codes(packed, tags, ids=ids, keys=keys, metadata=metadata)
        if model is None:
            raise InputError(
                "codes without a model; give the fingerprint of the hash function that made them"
            )
        return self._writer.add_codes(chunk, model, timeout, on_duplicate)

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
        skip_known: bool = True,
        note: Callable[[str], object] | None = None,
        timeout: float = 10.0,
    ) -> Iterator[Round]:
        """`update` (or, without `learn`, `add`) each chunk in turn, yielding its round once committed.

        A chunk that is in the index already is skipped: one whose SHA-256 a round has, as often as rounds
        have it. So the same call continues after an interrupt. With another `on_duplicate` than "error",
        items that have ids or keys are compared one by one instead. If all inputs are chunk files, each is
        read and checked before the first is committed: an invalid third one leaves the index unchanged.
        Other inputs are checked chunk by chunk.

        Parameters
        ----------
        inputs : Inputs, or paths
            What `inputs.open_inputs` gives; paths are opened that way, with guessed columns.
        learn : bool
            Whether chunks are learned, or only encoded.
        word_vectors, on_duplicate
            As `update`.
        skip_known : bool
            Whether chunks that are in the index are skipped.
        note : callable, optional
            Called with a line about each skipped chunk.
        timeout : float
            Seconds to wait for another writer, for each chunk.

        Raises
        ------
        InputError, LockedError, StoreError
            As `update`, `add` and `open_inputs`.
        """
        from woh_faiss.inputs import Inputs, open_inputs

        opened = (
            inputs
            if isinstance(inputs, Inputs)
            else open_inputs(inputs, learn=learn, on_duplicate=on_duplicate)
        )
        self.check_encoder(opened.encoder, "the inputs")
        return self._writer.extend(
            opened,
            learn=learn,
            word_vectors=word_vectors,
            on_duplicate=on_duplicate,
            skip_known=skip_known,
            note=note,
            timeout=timeout,
        )

    def check_encoder(self, encoder: EncoderRecord | None, what: str) -> None:
        """InputError where features of `what` are of another encoder than the index's; None is not known."""
        if self.encoder is not None:
            self.encoder.check(encoder, str(self._store.path), what)

    # ---- searches ------------------------------------------------------------------------------------

    def encode(self, X: ArrayLike) -> NDArray[np.uint8]:
        """Packed codes of features with the newest hash function: (n, d) → (n, code_size) uint8."""
        return self._model.hasher(self._follow()).encode(X)

    def search(
        self,
        xq: ArrayLike,
        k: int,
        *,
        by: By = "both",
        expand: int = score.EXPAND,
        allow: Ids | None = None,
        deny: Ids | None = None,
        where: str | None = None,
        params: Any = None,
        ann: str | None = None,
        refine: Refine | str | os.PathLike[str] | ArrayLike | None = None,
        refine_k: int | None = None,
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The k nearest items of each query, as Faiss answers; docs/score.md says what near means.

        Parameters
        ----------
        xq : (nq, d) array_like of a real dtype
            Query features.
        k : int
            Neighbours a query; may be more than there are items.
        by : "both", "kind", "instance" or "hamming"
            What they are ordered by: how much an item is of the query's kind plus how much it is the very
            item (`score`), one of these alone, or the bits in which the codes differ, both halves together.
        expand : int
            By "both" and "kind", ask again with what the first `expand` answers have in common, since stored
            codes know tags and a query does not. Answers then depend on what else is indexed; 0 asks once.
        allow, deny : array_like of ids or faiss.IDSelector, optional
            Only items in `allow`, and none in `deny`, are answers; ids that no item has are ignored. Each
            call reads the ids of the index once; a selector is evaluated for each, about a second a million.
        where : str, optional
            Only items that this filter of metadata, tags, id and key lets through are answers, such as
            ``price < 20 and 'beach' in tags``: see docs/filters.md. What the newest few filters let
            through is remembered.
        params : faiss.SearchParameters, optional
            Its selector, in place of `allow`.
        ann : "ivf", optional
            Look at a part of the codes only, in the index of this kind that `build_ann` made: faster among
            millions of items, but some of the best may be missed. Not by "hamming". Items that came since are
            never missed, and nothing is beside allow, deny or where: all codes that these leave are searched,
            which is faster there.
        refine : Refine, path or (n, d) array_like, optional
            Original features of the items, by which the best answers are ordered: by cosine to the query, as
            Faiss's IndexRefine does. Row i of an array or .npy is the item with id i; `Refine` has the rest.
            One `Refine` serves many searches: it is opened once, and tells which answers had no features.
        refine_k : int, optional
            How many answers are ordered, at least k. Without it 100, or 10 k if that is more.

        Returns
        -------
        D : (nq, k) float32
            Scores, descending; -inf where there is no neighbour. By "hamming" int32 distances in bits,
            ascending, and 2147483647. With `refine` cosines, float32.
        I : (nq, k) int64
            Ids; -1 where there is no neighbour. Of equal ones the earlier item comes first.

        Raises
        ------
        InputError
            The features cannot be used or have another width, k is not a whole number of at least 1, `by` is
            unknown or the index has no such bits, `expand` is not a whole number of at least 0, allow or
            deny are no integers, `where` is no such filter, params ask for more than a selector, or `ann` is
            unknown, or by "hamming"; or the features to refine by are not those
            of this index.
        StoreError
            There is no approximate index of that kind, or its file is damaged.
        """
        k, allow, by = (
            validate.positive_int(k),
            validate.selector(params, allow),
            valid_by(by, self.config.bits, self.instance_bits),
        )
        expand = validate.whole_number(expand, "expand", 0)
        if refine is not None:
            how: dict[str, Any] = {"by": by, "expand": expand, "allow": allow, "deny": deny}
            return self._refined(refine, xq, k, refine_k, how | {"where": where, "ann": ann})
        if refine_k is not None:
            raise InputError("refine_k says how many answers are refined; give the features as refine, too")
        if ann is not None and by == "hamming":
            raise InputError("ann answers by score, not by 'hamming', which scans all codes; drop one")
        view = self._follow()
        among = {"allow": allow, "deny": deny, "where": _filter(where)}
        if view.model is None:  # no items either: nothing can be encoded before the first round
            view.among(**among)
            return no_answers(len(validate.features(xq)), k, by)
        hasher = self._model.hasher(view)
        if by == "hamming":
            return view.search(codes.pad(hasher.encode(xq)), k, bits=8 * self.code_size, **among)
        scan = None if ann is None else self._store.ann_scan(view, ann, self.config.bits, self.instance_bits)
        if scan is None or any(given is not None for given in among.values()):
            return self._scored(view, *hasher.halves(xq), k, by, expand, **among)
        S, rows = scan.search(*hasher.halves(xq), k, by, expand)
        return S, view.ids_at(rows)

    def range_search(
        self,
        xq: ArrayLike,
        radius: int,
        *,
        allow: Ids | None = None,
        deny: Ids | None = None,
        where: str | None = None,
        params: Any = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
        """All items nearer than a radius to each query, as Faiss answers.

        Parameters
        ----------
        xq : (nq, d) array_like of a real dtype
            Query features.
        radius : int
            In bits; items at exactly this distance are not among the answers (Faiss's rule for binary codes).
        allow, deny, where, params
            As `search`.

        Returns
        -------
        lims : (nq + 1,) int64
            The answers of query i are ``D[lims[i]:lims[i + 1]]`` and ``I[lims[i]:lims[i + 1]]``.
        D, I : (lims[-1],) int32 and int64
            Distances, ascending for each query, and ids; of equal distances the earlier item comes first.

        Raises
        ------
        InputError
            As `search`, or the radius is not a whole number of at least 0.
        """
        radius, allow = validate.whole_number(radius, "radius", 0), validate.selector(params, allow)
        view = self._follow()
        among = {"allow": allow, "deny": deny, "where": _filter(where)}
        if view.model is None:
            view.among(**among)
            lims = np.zeros(len(validate.features(xq)) + 1, np.int64)
            return lims, np.empty(0, np.int32), np.empty(0, np.int64)
        return view.range_search(codes.pad(self._model.hasher(view).encode(xq)), radius, **among)

    def search_ids(
        self,
        ids: ArrayLike,
        k: int,
        *,
        by: By = "both",
        allow: Ids | None = None,
        deny: Ids | None = None,
        where: str | None = None,
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The k nearest other items of each indexed item, by its stored code.

        Parameters
        ----------
        ids : (nq,) array_like of integers
            Ids of indexed items.
        k : int
            Neighbours an item.
        by, allow, deny, where
            As `search`; a stored bit counts as -1 or 1. There is no expansion: the code knows its tags.

        Returns
        -------
        D, I : (nq, k) float32 (by "hamming" int32) and (nq, k) int64
            As `search`.

        Raises
        ------
        InputError
            As `search`.
        StoreError
            An id is not in the index.
        """
        k, by, view = (
            validate.positive_int(k),
            valid_by(by, self.config.bits, self.instance_bits),
            self._follow(),
        )
        ids = np.atleast_1d(np.asarray(ids))
        stored = view.codes(ids)  # which checks the ids
        among = {"allow": allow, "deny": deny, "where": _filter(where)}
        if by == "hamming":
            return without_own(*view.search(stored, k + 1, bits=8 * self.code_size, **among), ids)
        h, a = halves_of_codes(stored, self.config.bits, self.instance_bits)
        return without_own(*self._scored(view, h, a, k + 1, by, 0, **among), ids)

    def range_search_ids(
        self,
        ids: ArrayLike,
        radius: int,
        *,
        allow: Ids | None = None,
        deny: Ids | None = None,
        where: str | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
        """The other items nearer than a radius to each indexed item, by its stored code.

        Parameters
        ----------
        ids : (nq,) array_like of integers
            Ids of indexed items.
        radius : int
            In bits; items at exactly this distance are not answers.
        allow, deny, where
            As `search`.

        Returns
        -------
        lims, D, I
            As `range_search`.

        Raises
        ------
        InputError
            As `range_search`.
        StoreError
            An id is not in the index.
        """
        view = self._follow()
        ids = np.atleast_1d(np.asarray(ids))
        lims, D, I = view.range_search(view.codes(ids), radius, allow, deny, _filter(where))
        query = np.repeat(np.arange(len(ids)), np.diff(lims))
        other = ids.astype(np.int64)[query] != I
        lims = np.searchsorted(query[other], np.arange(len(ids) + 1)).astype(np.int64)
        return lims, D[other], I[other]

    def search_tags(
        self,
        tags: Sequence[str] | Sequence[Sequence[str]],
        k: int,
        *,
        xq: ArrayLike | None = None,
        word_vectors: WordVectors | None = None,
        allow: Ids | None = None,
        deny: Ids | None = None,
        where: str | None = None,
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The k items that tags ask for, by score: text in, pictures out.

        Tags ask for a kind. Without features the score is that of the learned bits alone.

        Parameters
        ----------
        tags : list of str, or a list of such lists
            One query, or nq of them.
        k : int
            Neighbours a query.
        xq : (nq, d) array_like, optional
            Features that belong to the tags. They and the tags then ask for the kind in equal parts, and the
            features for the very item, as in `search`.
        word_vectors : WordVectors, optional
            Answers tags that the index does not know.
        allow, deny, where
            As `search`.

        Returns
        -------
        S, I : (nq, k) float32 and (nq, k) int64
            As `search`.

        Raises
        ------
        InputError
            Nothing is known of any tag of a query, xq does not fit, or the index has no learned bits.
        NotFittedError
            Nothing was learned yet.
        """
        k, view = validate.positive_int(k), self._follow()
        if isinstance(tags, str) or not isinstance(tags, Iterable):
            raise InputError(
                f"tags is {validate.short(tags)}, expected a list of tags, or a list of such lists"
            )
        lists: Any = [tags] if all(isinstance(tag, str) for tag in tags) else tags
        H, a = self._model.tag_queries(view).bits(lists, word_vectors), None
        if xq is not None:
            of_features, a = self._model.hasher(view).halves(xq)
            assert of_features is not None  # noqa: S101 - for mypy: there are learned bits
            if len(of_features) != len(H):
                raise InputError(f"there are {len(H)} tag lists for {len(of_features)} rows of features")
            H = unit_rows(H) + unit_rows(of_features)
        by = "kind" if a is None else "both"
        among = {"allow": allow, "deny": deny, "where": _filter(where)}
        return self._scored(view, score.normalised(H), a, k, by, 0, **among)

    def unknown_tags(self, tags: Sequence[str], word_vectors: WordVectors | None = None) -> list[str]:
        """Tags that `search_tags` leaves out: neither the index nor `word_vectors` knows them."""
        return self._model.tag_queries(self._follow()).strange(tags, word_vectors)

    def vectors_differ(self, word_vectors: WordVectors) -> bool:
        """Whether the index's tags have other vectors than there: `search_tags` would mix two spaces."""
        return self._model.tag_queries(self._follow()).vocabulary.differs(word_vectors)

    def describe(self, D: Iterable[NDArray[Any]], I: Iterable[NDArray[np.int64]]) -> list[list[Neighbour]]:
        """What a search found, with keys and tags: a list a query, without empty or erased places.

        Rows may differ in length: for `range_search` give ``np.split(D, lims[1:-1])`` and the same of I.
        """
        distances, ids = [row.tolist() for row in D], [row.tolist() for row in I]
        found = sorted({i for row in ids for i in row} - {NO_ID})
        view = self._store.view
        items = view.find(found)
        view.check_missing([i for i in found if i not in items])  # `compact` may have erased some meanwhile
        return [
            [_neighbour(items[i], d) for d, i in zip(*row, strict=True) if i in items]
            for row in zip(distances, ids, strict=True)
        ]

    def explain(self, ids: ArrayLike, most: int = 5) -> list[list[tuple[str, float]]]:
        """The tags that each indexed item's code predicts, best first: `TagQueries.predicted`."""
        view = self._store.view
        most = validate.whole_number(most, "most", 1)
        packed = codes.unpad(view.codes(np.atleast_1d(np.asarray(ids))), self.config.bits)
        return self._model.tag_queries(view).predicted(packed, most)

    def explain_score(
        self, D: ArrayLike, I: ArrayLike, *, xq: ArrayLike | None = None, ids: ArrayLike | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """What the scores of a search are made of.

        Parameters
        ----------
        D, I : (nq, k) float32 and int64
            What `search` (of features `xq`) or `search_ids` (of `ids`) has answered, by "both".
        xq, ids : (nq, d) array_like, (nq,) array_like of integers
            What was asked with: one of them.

        Returns
        -------
        kind, instance : (nq, k) float32
            The two terms of each score; 0 for a half without bits, and where there is no neighbour.
        """
        view, S, found = self._follow(), np.asarray(D, np.float32), np.asarray(I, np.int64)
        if view.model is None:
            return np.zeros_like(S), np.zeros_like(S)
        if xq is not None:
            _, a = self._model.hasher(view).halves(xq)
        else:
            stored = view.codes(np.atleast_1d(np.asarray(ids)))
            _, a = halves_of_codes(stored, self.config.bits, self.instance_bits)
        there = found != NO_ID
        S = np.where(there, S, np.float32(0))
        if a is None or not self.config.bits:
            return (S, np.zeros_like(S)) if a is None else (np.zeros_like(S), S)
        stored = np.zeros((*found.shape, self.instance_bits // 8), np.uint8)
        stored[there] = view.codes(found[there])[:, self.config.bits // 8 : self.code_size]
        instance = np.where(there, score.instance_term(score.sums(score.tables(a), stored)), np.float32(0))
        return S - instance, instance

    def explain_features(self, X: ArrayLike, most: int = 5) -> list[list[tuple[str, float]]]:
        """The tags that the codes of features (n, d) predict, as `explain`."""
        view = self._store.view
        packed = codes.unpad(self._model.hasher(view).encode(X), self.config.bits)
        return self._model.tag_queries(view).predicted(packed, most)

    # ---- contents ------------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        """The folder on the disk, for code that copies it elsewhere."""
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
        """Width of the features it takes (not of the codes: that is `code_size`)."""
        return self.hasher.d

    @property
    def code_size(self) -> int:
        """Bytes of a code, learned and instance bits together, without padding."""
        return (self.config.bits + self.instance_bits) // 8

    @property
    def hasher(self) -> Hasher:
        """The hash function of the newest round.

        Raises
        ------
        NotFittedError
            Nothing was learned yet.
        """
        return self._model.hasher(self._store.view)

    def items(
        self,
        ids: ArrayLike | None = None,
        *,
        keys: Sequence[str] | None = None,
        where: str | None = None,
        limit: int | None = None,
    ) -> list[Item]:
        """Items with key, tags, round, trust and metadata.

        Parameters
        ----------
        ids : array_like of integers, optional
            Of the items, which come in this order.
        keys : sequence of str, optional
            Their keys instead.
        where : str, optional
            Only items that this filter lets through, as `search`; in the order they were appended where no
            ids and keys are given. With none of the three all items.
        limit : int, optional
            The first so many.

        Raises
        ------
        StoreError
            An id or key is not in the index.
        InputError
            Both ids and keys are given, or the filter or limit is none.
        """
        view = self._store.view
        if limit is not None:
            limit = validate.whole_number(limit, "limit", 0)
        if keys is not None:
            if ids is not None:
                raise InputError("ids and keys are both given; give one of them")
            wanted = validate.texts(keys, "keys")
            known = view.ids_of_keys(wanted)
            ids = [known[key] if key in known else self.id_of(key) for key in wanted]
        if ids is None:
            return view.items(self.ids(where)[:limit])
        found = view.items(ids)
        if where is not None:
            among = set(self.ids(where).tolist())
            found = [item for item in found if item.id in among]
        return found[:limit]

    def ids(self, where: str | None = None) -> NDArray[np.int64]:
        """The ids of all items, (ntotal,), or of those a filter lets through, in the order of appending.

        Parameters
        ----------
        where : str, optional
            As `search`.
        """
        view, wanted = self._store.view, _filter(where)
        return view.live_ids() if wanted is None else view.ids_where(wanted)

    def __len__(self) -> int:
        """Items that can be found, `ntotal`."""
        return self.ntotal

    def __bool__(self) -> bool:
        """True: an index without items is an index, too."""
        return True

    def __contains__(self, name: object) -> bool:
        """Whether an item has this key (a text) or id (a number)."""
        view = self._store.view
        if isinstance(name, str):
            return view.id_of_key(name) is not None
        if isinstance(name, int | np.integer) and not isinstance(name, bool):
            return bool(0 <= name < 2**63 and view.find([int(name)]))
        return False

    def id_of(self, key: str) -> int:
        """The id of the item whose key is `key`; a StoreError if there is none."""
        (key,) = validate.texts([key], "key")
        found = self._store.view.id_of_key(key)
        if found is None:
            near = " or ".join(map(repr, self._store.view.near_keys(key)))
            raise MissingItemError(
                f"no item of {self.path} has the key {key!r}; "
                f"{f'did you mean {near}? ' if near else ''}'woh-index items' lists the keys there are"
            )
        return found

    @property
    def metadata_types(self) -> dict[str, str]:
        """The columns of metadata by name: integer, real, text, boolean, date or datetime."""
        return self._store.metadata_types()

    def rounds(self) -> list[Round]:
        """One record a committed round, oldest first."""
        return self._store.rounds()

    def tags(self) -> list[tuple[str, int, bool]]:
        """Every tag seen: (tag, times seen, whether it is learned from), the most frequent first."""
        return index_state.tags(self._store)

    def info(self, n_tags: int = 10) -> dict[str, Any]:
        """What `woh-index info --json` prints: counts, sizes in bytes, model, and a record a round."""
        found = index_state.info(self._store, self.config, self.instance_bits, self._hasher_or_none(), n_tags)
        return {**found, "encoder": None if self.encoder is None else self.encoder.to_dict()}

    def health(self, most: int = 10) -> dict[str, Any]:
        """Quality of the codes, and items whose tags are trusted least.

        Parameters
        ----------
        most : int
            Items to name.

        Returns
        -------
        dict
            ``rounds``: for each, its number, kind and items, `codes.health` of the codes it added, and how
            much of them its tags cover (`vocabulary.Coverage`); of those that learned, what `WOH.trust_`,
            `novelty_`, `adapted_` and `covered_` say. ``drift``: for each earlier model that
            is kept (`keep_models`), the round that wrote it, ``turned``, the share of the anchors' bits that
            differ with the newest hash function, and ``bits``, the same a bit. Stored codes do not change.
            ``warnings``: what a person should know of the newest round that learned, and do, a line each.
            ``doubted``: the items whose tags are trusted least (`WOH.trust_`), the least first, with id, key,
            tags, round and ``trust``: wrong tags show up here.
        """
        return index_state.health(self._store, self._hasher_or_none(), validate.whole_number(most, "most", 0))

    def reconstruct(self, id: int, *, signs: bool = False) -> NDArray[Any]:  # noqa: A002 - Faiss has no better
        """The stored code of one item: (code_size,) uint8, or its signs, -1 or +1, as int8.

        Raises
        ------
        InputError
            No item has this id, or it was removed.
        """
        if not self._store.view.find([id]):
            raise InputError(f"id {id} is not in {self.path}; 'woh-index query' shows the ids there are")
        packed = codes.unpad(self._store.view.codes([id]), 8 * self.code_size)
        code: NDArray[Any] = codes.unpack(packed)[0] if signs else packed[0]
        return code

    # ---- other Faiss indexes -------------------------------------------------------------------------

    def to_faiss(self, kind: str = "idmap2", *, where: str | None = None, **parameters: int) -> Any:
        """An ordinary Faiss index of the items that can be found, in memory; removed ones are not in it.

        It takes codes of `info()["stored_bits"]` bits: those of `encode`, with zero bytes behind them where
        `code_size` is less. It answers by Hamming distance over all bits.

        Parameters
        ----------
        kind : "flat", "idmap2", "ivf", "hnsw" or "multihash"
            See `WOHIndex`. All but "flat" answer with the items' ids.
        where : str, optional
            Only the items that this filter lets through, as `search`.
        **parameters : int

        Returns
        -------
        faiss.IndexBinary

        Raises
        ------
        InputError
            A kind or parameter is unknown or out of range, or there are no items for a kind that learns.
        """
        from woh_faiss.store import export

        scan = self._store.view.among(where=_filter(where))
        return export.in_memory(self._store.view, scan, kind, parameters, 8 * self.code_size)

    def export(
        self,
        path: str | os.PathLike[str],
        kind: str = "idmap2",
        *,
        where: str | None = None,
        force: bool = False,
        **parameters: int,
    ) -> Exported:
        """Write `to_faiss` to a file that a program with only Faiss reads (`faiss.read_index_binary`).

        It is written beside `path`, read back, and compared with the flat scan on stored codes with flipped
        bits, before it gets its name: another program never sees half of it.

        Parameters
        ----------
        path : str or path
            Not in the index folder.
        kind, where, **parameters
            As `to_faiss`.
        force : bool
            Whether an existing file is replaced.

        Raises
        ------
        InputError
            As `to_faiss`, or the path cannot be used.
        StoreError
            The file cannot be written, or an exact kind did not answer as the index does; no file is left.
        """
        from woh_faiss.store import export

        place = Path(os.fsdecode(path)).absolute()
        scan = self._store.view.among(where=_filter(where))
        return export.export(self._store.view, scan, place, kind, parameters, 8 * self.code_size, force)

    def build_ann(self, kind: str, *, timeout: float = 10.0, **parameters: int) -> AnnIndex:
        """Make an index for `search(ann=kind)` of the newest state; it replaces one of the same kind.

        It is kept in the folder, and can be made again from the codes: `compact` and `rollback` drop it, a
        damaged one is refused. Later items are scanned beside it; build it again when there are many
        (`info()["ann"]` has ``behind``). Writers wait only while its file is written, readers never.

        Parameters
        ----------
        kind : "ivf"
            Inverted lists of packed codes, `nlist` (√n) by learned bits and as many by instance bits, of
            which a search scans the nearest `nprobe` (nlist / 32, at least 16).
        timeout : float
            Seconds to wait for a writer.
        **parameters : int

        Returns
        -------
        AnnIndex
            Its parameters, and its recall: the share of the 10 best answers of the default search that it
            finds, for 256 made-up queries around stored codes; where scores are equal either counts.

        Raises
        ------
        InputError
            A kind or parameter is unknown or out of range, there are no items, or codes of more than 1,024
            learned or instance bits.
        LockedError
            Another writer holds the index.
        StoreError
            The folder cannot be written, or the codes were rewritten meanwhile (`compact`, `rollback`).
        """
        from woh_faiss.store.ann import build_ann

        return build_ann(self._store, kind, parameters, self.config.bits, self.instance_bits, timeout)

    def drop_ann(self, kind: str | None = None, *, timeout: float = 10.0) -> list[str]:
        """Remove the approximate index of a kind, or all of them; returns the kinds that went.

        Raises
        ------
        InputError
            The kind is unknown.
        LockedError, StoreError
            As `build_ann`, or there is none of that kind.
        """
        from woh_faiss.store.ann import drop_ann

        return drop_ann(self._store, kind, timeout)

    # ---- maintenance ---------------------------------------------------------------------------------

    def remove(
        self,
        ids: ArrayLike | None = None,
        *,
        keys: Sequence[str] | None = None,
        where: str | None = None,
        ignore_missing: bool = False,
        timeout: float = 10.0,
    ) -> int:
        """Take the items with these ids or keys out of every answer, in one commit; returns how many.

        Their codes stay in the file, marked, until `compact`; readers see them until they `refresh`. A
        removed id is never used again; a key is free at once, for a new item with a new id. What was learned
        from them stays learned.

        Parameters
        ----------
        ids : array_like of integers, optional
            Ids of the items.
        keys : sequence of str, optional
            Keys of the items; `ids` and `keys` may be given together.
        where : str, optional
            In place of both: the items that this filter lets through when the lock is held, as `search`.
        ignore_missing : bool
            Whether ids and keys that no item has are ignored.
        timeout : float
            Seconds to wait for another writer.

        Raises
        ------
        InputError
            Something is not in the index, and `ignore_missing` is false; or `where` is no filter, or beside
            ids or keys. Nothing was removed.
        LockedError, StoreError
            As `update`.
        """
        if where is not None and (ids is not None or keys is not None):
            raise InputError("where is given beside ids or keys; remove by one of them")
        return self._writer.remove(ids, keys, ignore_missing, timeout, _filter(where))

    def remove_ids(self, ids: Ids, *, timeout: float = 10.0) -> int:
        """`remove` under Faiss's name: an array_like of ids or a faiss.IDSelector; returns how many went.

        Ids that no item has are ignored. A selector is evaluated for each item of the newest state. A removed
        id is never used again; Faiss would accept it. Errors as `remove`.
        """
        self.refresh()
        found = self._store.view.named(ids)
        return self.remove(found, ignore_missing=True, timeout=timeout) if len(found) else 0

    def compact(self, *, timeout: float = 10.0) -> Compacted:
        """Rewrite the files without removed items, and leave no trace of them: code, id, key and tags.

        Readers keep what they have mapped. Tags that only removed items carry are erased too, unless
        something was learned from them: that stays, and so do the counts of tags. A digest of each erased id
        of your own is kept, so that the id is refused if it comes again. The time is that of copying the
        index. Call it again if it was killed or `clean` is false.

        Raises
        ------
        LockedError
            As `update`.
        StoreError
            As `update`, or codes, ids or catalogue are not what was written: new checksums would hide that.
        """
        from woh_faiss.learner.state import forgetting

        return Compacted(*self._store.compact(timeout, forgetting, normalise))

    def rollback(self, round: int, *, timeout: float = 10.0) -> int:  # noqa: A002 - what it is called everywhere
        """Go back permanently to the state after a round; 0 is the empty index.

        Returns the number of rounds undone. All that the state needs is verified before anything changes.

        Items that were removed or replaced since are back, unless `compact` has erased them. Later updates
        learn what they would have learned then. The index gives no id a second time. Ids of your own that
        came with later rounds may come again, unless `compact` has erased them.

        Raises
        ------
        InputError
            There is no such round, or its model is not among the `keep_models` newest any more.
        LockedError
            As `update`.
        StoreError
            As `update`, or something that the state needs is damaged.
        """
        return self._store.rollback(validate.whole_number(round, "round", 0), timeout)

    @staticmethod
    def restore(path: str | os.PathLike[str], round: int, *, timeout: float = 10.0) -> int:  # noqa: A002
        """`rollback` of the index at `path`; it works where `open` fails because a model is missing.

        Parameters
        ----------
        path : path
            The folder.
        round : int
            As `rollback`; 0 is the empty index.
        timeout : float
            Seconds to wait for another writer.

        Raises
        ------
        InputError, LockedError, StoreError
            As `rollback`.
        """
        return Store.restore(path, validate.whole_number(round, "round", 0), timeout)

    def backup(self, path: str | os.PathLike[str]) -> int:
        """Copy the newest committed state to a new folder, while a writer continues; returns its round.

        The copy is an independent index. It is on the disk when this returns. `cp -r` of a folder that is
        being written may mix states.

        Parameters
        ----------
        path : path
            Of the copy; its parent must exist, and nothing may have its name.

        Raises
        ------
        InputError
            Something is at `path`, it is in the index folder, or its parent is missing.
        StoreError
            A file of the index is missing or damaged, or the copy cannot be written; nothing is left of it.
        """
        return self._store.backup(path).round

    @staticmethod
    def verify(path: str | os.PathLike[str]) -> list[str]:
        """All faults of the index at `path`, a line each: which file, what, what to do; none if it is sound.

        A line of type `store.verify.Note` is not a fault: a writer died, and the next one repairs it.
        Every byte is read: codes, ids, models, anchors, catalogue. Opening and searching check lengths and
        layouts only. It works where `open` fails.
        """
        return Store.verify(path)

    def _hasher_or_none(self) -> Hasher | None:
        return self.hasher if self.is_trained else None

    def _follow(self) -> View:
        """The state to answer from, its hash function read."""
        return self._store.follow(lambda view: self._model.hasher(view) if view.model is not None else None)

    def _refined(
        self,
        refine: Refine | str | os.PathLike[str] | ArrayLike,
        xq: ArrayLike,
        k: int,
        refine_k: int | None,
        how: dict[str, Any],
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """See `search`."""
        from .refine import Refine, answers_to_order

        more = min(answers_to_order(k, refine_k), max(self._follow().snapshot.ntotal, 1))
        features = refine if isinstance(refine, Refine) else Refine(refine)
        self.check_encoder(features.encoder, features.where)
        _, I = self.search(xq, more, **how)
        view = self._store.view
        if view.model is None:
            return no_answers(len(I), k, "both")
        return features.order(view, self._model.hasher(view), np.asarray(xq), I, k)

    def _scored(
        self,
        view: View,
        h: NDArray[np.float32] | None,
        a: NDArray[np.float32] | None,
        k: int,
        by: Any,
        expand: int,
        **among: Any,
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Scores and ids of the k best items of a state; h and a are `Hasher.halves` of queries."""
        bits = self.config.bits, self.instance_bits
        return view.score_search(*bits, h, a, k, by=by, expand=expand, **among)

    @property
    def _writer(self) -> IndexWriter:
        """The writing half, made when first needed: it imports scipy, which a reader never needs."""
        if self._index_writer is None:
            from .writer import IndexWriter

            self._index_writer = IndexWriter(
                self._store, self.config, self.instance_bits, lambda: self.hasher
            )
        return self._index_writer


def _known_encoder(chunks: Iterable[Chunk], given: EncoderRecord | None) -> EncoderRecord | None:
    """What made the features of chunks, as they say or was said; InputError where the two disagree."""
    told: EncoderRecord | None = getattr(chunks, "encoder", None)
    if told is None or given is None:
        widths = {source.d for source in getattr(chunks, "sources", []) if source.d is not None}
        if given is not None and (others := widths - {given.dimension}):
            raise _other_width(given, others.pop())
        return told or given
    given.check(told, "the encoder that was given", "the inputs")
    return told


def _other_width(encoder: EncoderRecord, d: int) -> InputError:
    return InputError(
        f"the encoder {encoder.name} gives {encoder.dimension} numbers, the inputs have {d}; give the "
        "one that made "
        "them"
    )


def _valid_instance_bits(bits: Any) -> int:
    """ConfigError unless a code may have this many instance bits."""
    if isinstance(bits, bool) or not isinstance(bits, int | np.integer) or not 0 <= bits <= 4096 or bits % 8:
        raise ConfigError(f"instance_bits is {short(bits)}, expected a multiple of 8 from 0 to 4096")
    return int(bits)


def check_free(path: Path) -> None:
    """StoreError for a path that no file can have, or under which anything is but an empty folder."""
    try:
        mode = os.lstat(path).st_mode
        names = {entry.name for entry in path.iterdir()} if stat.S_ISDIR(mode) else None
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise StoreError(f"cannot create {path}: {error.strerror}; choose another --index") from error
    if names is None or names:
        held = names is None or CATALOG in names
        how = "'woh-index update' extends it, or" if held else "it holds something else, so"
        raise StoreError(f"{path} exists already; {how} choose another --index")
    if os.path.ismount(path):
        raise StoreError(f"{path} is a mount point; choose a folder in it, such as {path / 'index.woh'}")


def _filter(where: str | None) -> Where | None:
    """The filter of a search, which compares tags in their normal form."""
    return None if where is None else Where(where, normalise)


def _as_chunk(
    features: Chunk | ArrayLike,
    tags: Any,
    ids: ArrayLike | None,
    keys: Sequence[str] | None,
    metadata: Mapping[str, Any] | None,
    on_duplicate: OnDuplicate,
) -> Chunk:
    if isinstance(features, Chunk):
        if any(given is not None for given in (tags, ids, keys, metadata)):
            raise InputError(
                "a Chunk brings its own tags, ids, keys and metadata; give them to Chunk.of, not beside it"
            )
        return features
    return Chunk.of(features, tags, ids=ids, keys=keys, metadata=metadata, on_duplicate=on_duplicate)


def _neighbour(item: Item, distance: float) -> Neighbour:
    return Neighbour(item.id, item.key, distance, item.tags, item.trust, item.metadata)
