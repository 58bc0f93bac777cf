"""Approximate indexes: faster searches that may miss some of the best, made from the codes, kept beside them.

They are never the truth. An ANN file is immutable and has a name of its own; the COMMIT that names it in the
catalogue makes it the index's, and takes away the one before. It holds the first rows of one generation,
removed ones too, by their row numbers. What was appended since is scanned; what was removed is dropped from
its answers (`ann_search.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from woh_faiss import codes as binary
from woh_faiss import score
from woh_faiss.errors import StoreError

from . import files, ivf, schema
from .ann_search import ann_scan, check_kind
from .records import AnnIndex
from .view import View

if TYPE_CHECKING:
    from .store import Store
    from .write_transaction import WriteTransaction

#: Queries that recall is measured with, and answers of each.
_QUERIES, _K = 256, 10
#: Their noise, beside codes of mean size 1: on three sets they are found as held-out features are, ± .02.
_NOISE = 0.7
_SEED = 0


def build_ann(store: Store, kind: str, given: Mapping[str, Any], r: int, s: int, timeout: float) -> AnnIndex:
    """Make an approximate index of the newest state, measure it, and put it in place of the one before.

    It is built without the writer lock, which is then taken for as long as the file takes to write. Recall is
    measured with stored codes, some of whose bits are uncertain or flipped, in place of features.
    """
    check_kind(kind)
    store.refresh()
    view = store.view
    seen, codes = view.snapshot, view.mapped.codes
    parameters = ivf.complete(given, seen.ntotal and seen.rows, r, s)
    view.check_rows()
    clusters = ivf.halves(codes, r, s, parameters["nlist"])
    made = AnnIndex(kind, "", "", seen.round, seen.rows, parameters, 0.0)
    lists = ivf.Ivf.of(clusters, codes, parameters["nprobe"])
    made = replace(made, recall=_recall(view, made, lists))
    with store.writing(timeout) as writing:
        if writing.snapshot.generation != seen.generation:
            raise StoreError(
                f"the codes of {store.path} were rewritten while {kind} was built; build it again"
            )
        return _put(writing, made, clusters)


def _recall(view: View, made: AnnIndex, lists: ivf.Ivf) -> float:
    """Share of answers that score no less than the last true one: which of equals is no matter."""
    h, a = numbers(view.everything.codes, lists.r, lists.s, _QUERIES)
    k = min(_K, view.snapshot.ntotal)
    found, truth = (
        scan.search(h, a, k, expand=score.EXPAND)[0]
        for scan in (ann_scan(view, made, lists), view.score_scan(lists.r, lists.s))
    )
    return float((found >= truth[:, -1:]).mean())


def numbers(
    codes: NDArray[np.uint8], r: int, s: int, n: int
) -> tuple[NDArray[np.float32] | None, NDArray[np.float32] | None]:
    """Made-up queries around up to `n` of the codes: their h and a, `score.normalised`."""
    rng = np.random.default_rng(_SEED)
    drawn = codes[np.sort(rng.choice(len(codes), min(n, len(codes)), replace=False))]
    H = binary.unpack(drawn[:, : (r + s) // 8]) * rng.exponential(size=(len(drawn), r + s))
    H += rng.normal(scale=_NOISE, size=H.shape)
    h, a = (score.normalised(half) if half.shape[1] else None for half in (H[:, :r], H[:, r:]))
    return h, a


def _put(writing: WriteTransaction, made: AnnIndex, clusters: ivf.Halves) -> AnnIndex:
    with writing.committing() as (_, state):
        state.ann_builds += 1
        name = schema.ann_name(made.kind, state.ann_builds)
        sha256 = writing.write_file(name, lambda file: ivf.write(file, clusters))
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
