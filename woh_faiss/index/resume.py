"""Chunks that are in the index already are skipped, the others learned or added one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from woh_faiss.errors import InputError
from woh_faiss.inputs.chunk import Chunk
from woh_faiss.store import Round, Store

from .item_ids import OnDuplicate, check_policy
from .writer import IndexWriter

if TYPE_CHECKING:
    from woh_faiss.inputs import Inputs
    from woh_faiss.tags.word_vectors import WordVectors


def extended(
    store: Store,
    grower: IndexWriter,
    inputs: Inputs,
    *,
    learn: bool,
    word_vectors: WordVectors | None,
    on_duplicate: OnDuplicate,
    skip_known: bool,
    note: Callable[[str], object] | None,
) -> Iterator[Round]:
    """See `WOHIndex.extend`."""
    check_policy(on_duplicate)
    store.refresh()
    _check_widths(grower.width(), inputs)
    total = len(inputs)
    if inputs.whole and total > 1:
        known = Known(store, on_duplicate, skip_known)
        new = ((p.where, p.chunk) for p in inputs.pieces() if known.take(p.chunk.digest(), p.chunk) is None)
        grower.check(new, learn, on_duplicate)
    known = Known(store, on_duplicate, skip_known)
    for piece in inputs.pieces():
        chunk_hash = piece.chunk.digest()
        there = known.take(chunk_hash, piece.chunk)
        if there is not None:
            if note is not None:
                how = "learned" if there.kind == "trained" else "added"
                note(
                    f"chunk {piece.number} of {total}: already {how} (round {there.round}), skipped: "
                    f"{piece.where}"
                )
            continue
        try:
            if learn:
                yield grower.update(piece.chunk, word_vectors, 10.0, on_duplicate, chunk_hash)
            else:
                yield grower.add(piece.chunk, 10.0, on_duplicate, chunk_hash)
        except InputError as error:
            if total == 1:
                raise
            raise InputError(f"{piece.where}: {error}") from error


class Known:
    """The chunks that an index has, each as often as it has it; none without `skip`.

    With another policy than "error" no chunk is known whose items have names: they are looked at one by one.
    """

    def __init__(self, store: Store, on_duplicate: OnDuplicate, skip: bool) -> None:
        self._by_name = on_duplicate != "error"
        self._rounds: dict[str, list[Round]] = {}
        for done in store.rounds() if skip else []:
            for chunk_hash in done.chunk_hash.split():  # `build` puts several chunks into round 1
                self._rounds.setdefault(chunk_hash, []).append(done)

    def take(self, chunk_hash: str, chunk: Chunk) -> Round | None:
        """The round that has the chunk, which from then on is there once less; None to take it in."""
        if self._by_name and (chunk.ids is not None or chunk.keys is not None):
            return None
        rounds = self._rounds.get(chunk_hash)
        return rounds.pop(0) if rounds else None


def _check_widths(d: int | None, inputs: Inputs) -> None:
    for source in inputs.sources:
        if d is not None and source.d is not None and source.d != d:
            raise InputError(
                f"{source.where}: features have {source.d} columns, the model was fitted with {d}"
            )
