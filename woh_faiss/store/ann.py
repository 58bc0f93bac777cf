"""Approximate indexes: faster searches that may miss neighbours, made from the codes and kept beside them.

They are never the truth. An ANN file is immutable and has a name of its own; the COMMIT that names it in the
catalogue makes it the index's, and takes away the one before. It holds the first rows of one generation,
removed ones too, under their row numbers. What was appended since is scanned; what was removed is dropped
from its answers (`ann_search.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from woh_faiss.errors import StoreError

from . import faiss_indexes, files, schema
from .ann_search import AnnSearcher, check_kind
from .records import AnnIndex

if TYPE_CHECKING:
    from .store import Store
    from .write_transaction import WriteTransaction

#: Queries that recall is measured with, and neighbours of each.
_QUERIES, _K = 256, 10


def build_ann(store: Store, kind: str, given: Mapping[str, Any], bits: int, timeout: float) -> AnnIndex:
    """Make an approximate index of the newest state, measure it, and put it in place of the one before.

    It is built without the writer lock, which is then taken for as long as the file takes to write.
    """
    check_kind(kind)
    store.refresh()
    view = store.view
    seen, codes = view.snapshot, view.mapped.codes
    parameters = faiss_indexes.complete(kind, given, seen.ntotal and seen.rows, bits)
    view.check_rows()
    index = faiss_indexes.built(kind, codes, parameters)
    made = AnnIndex(
        kind, "", "", seen.round, seen.rows, parameters, 0.0, faiss_indexes.radius(kind, parameters)
    )
    made = replace(made, recall=_recall(AnnSearcher(view, made, index), bits))
    with store.writing(timeout) as writing:
        if writing.snapshot.generation != seen.generation:
            raise StoreError(
                f"the codes of {store.path} were rewritten while {kind} was built; build it again"
            )
        return _put(writing, made, index)


def _recall(searcher: AnnSearcher, bits: int) -> float:
    scan = searcher.view.everything
    queries = faiss_indexes.probes(scan.codes, bits, _QUERIES)
    k = min(_K, scan.ntotal)
    return faiss_indexes.recall(searcher.nearest(queries, k)[0], scan.nearest(queries, k)[0])


def _put(writing: WriteTransaction, made: AnnIndex, index: Any) -> AnnIndex:
    with writing.committing() as (_, state):
        state.ann_builds += 1
        name = schema.ann_name(made.kind, state.ann_builds)
        sha256 = writing.write_file(name, lambda file: faiss_indexes.write(file, index))
        files.sync_folder(writing.folder)
        made = replace(made, name=name, sha256=sha256)
        state.ann = [*(it for it in state.ann if it.kind != made.kind), made]
    return made


def drop_ann(store: Store, kind: str | None, timeout: float) -> list[str]:
    """Remove the approximate index of a kind, or all; the kinds that went."""
    if kind is not None:
        check_kind(kind)
    with store.writing(timeout) as writing:
        gone = [it.kind for it in writing.state.ann if kind in (None, it.kind)]
        if kind is not None and not gone:
            raise StoreError(
                f"{store.path} has no approximate index {kind}; 'woh-index info' shows those there are"
            )
        if gone:
            with writing.committing() as (_, state):
                state.ann = [it for it in state.ann if it.kind not in gone]
    return gone
