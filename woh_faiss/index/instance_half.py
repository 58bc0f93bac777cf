"""The instance half of a round: its items' bits, and the function that gives them, final or not yet.

While the index has fewer than `instance.ENOUGH` items the function is that of round 1, and the store keeps
their features. The round with which there are enough learns it anew, from all items, for good; the codes of
the items before are written again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woh_faiss import codes
from woh_faiss.errors import InputError
from woh_faiss.learner.blocks import Features, Rows
from woh_faiss.learner.instance import ENOUGH, InstanceMap, packed_signs, sample, unit_single
from woh_faiss.learner.threads import one_blas_thread
from woh_faiss.store.write_transaction import WriteTransaction

Packed = NDArray[np.uint8]
Single = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class InstanceHalf:
    """What a round needs of the instance bits.

    Attributes
    ----------
    function : InstanceMap
        What gives the round's bits.
    packed : (n, s // 8) uint8
        The bits of its items.
    is_new : bool
        Whether the function is another than before, so that the model must be written.
    early : (n, d) float32, or None
        The items' features, of length 1, which the store keeps while the function is not final.
    recoded : (rows, bytes) uint8, or None
        Codes of all earlier rows, where the function became final with this round.
    """

    function: InstanceMap
    packed: Packed
    is_new: bool
    early: Single | None = None
    recoded: Packed | None = None


@one_blas_thread()
def instance_half(
    features: Features,
    writing: WriteTransaction,
    stored: Packed,
    known: InstanceMap | None,
    s: int,
    r: int,
    seed: int,
) -> InstanceHalf:
    """The instance half of a round.

    Parameters
    ----------
    features : Features
        Of the round's n items.
    writing : WriteTransaction
        Which has the features of earlier items.
    stored : (rows, bytes) uint8
        The codes there are.
    known : InstanceMap or None
        The function so far; None before the first round.
    s, r : int
        Instance bits, and learned bits before them.
    seed : int
        Decides every random draw.
    """
    n, before = features.shape[0], len(stored)
    rows = features.rows()
    if known is not None and known.final:
        return InstanceHalf(known, _packed(rows, known), False)
    if before + n < ENOUGH:
        early = np.concatenate(rows.map(unit_single).gathered())
        function = known or InstanceMap.fit(early, s, seed, n)
        return InstanceHalf(function, function.packed(early), known is None, early)
    wanted = sample(before + n, seed)
    seen = unit_single(features.take(wanted[wanted >= before] - before))
    if before:
        places, U = _early(writing, before)
        seen = np.concatenate([U[wanted[wanted < before]], seen])
    function = InstanceMap.fit(seen, s, seed, before + n)
    recoded = None
    if before:
        recoded = stored.copy()
        recoded[places, r // 8 : (r + s) // 8] = function.packed(U)
    return InstanceHalf(function, _packed(rows, function), True, recoded=recoded)


def _packed(rows: Rows[NDArray[Any]], function: InstanceMap) -> Packed:
    return np.concatenate(rows.map(packed_signs, function).gathered())


def _early(writing: WriteTransaction, rows: int) -> tuple[NDArray[np.int64], Single]:
    """Rows and features of the items so far, which are few."""
    places, U = writing.early_features()
    if len(places) != rows:
        raise InputError(
            f"{writing.folder} has the features of {len(places)} of its {rows} items; build it again"
        )
    return places, U


def kept(half: InstanceHalf | None) -> dict[str, Any]:
    """What the store keeps of it beside the codes of the round: fields of `NewRound`."""
    return {} if half is None else {"early": half.early, "recoded": half.recoded}


def code(learned: Packed | None, half: InstanceHalf | None) -> Packed:
    """Codes as they are stored, of both halves or of one."""
    parts = [part for part in (learned, None if half is None else half.packed) if part is not None]
    return codes.pad(np.hstack(parts))
