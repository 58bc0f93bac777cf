"""Searches by score of a state through an approximate index, and the rows that came since beside it."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from woh_faiss import codes as binary
from woh_faiss import validate
from woh_faiss.errors import InputError, StoreError

from . import codefile, files, fork_safety, ivf
from .ivf import Ivf
from .packed_codes import PackedCopies, Single
from .records import AnnIndex
from .scan import Rows, Scan
from .score_scan import FEW, Asked, Packed, ScoreScan
from .view import View

#: What an approximate index may be.
KINDS = ("ivf",)
#: Candidates that lists give, of k.
_TIMES, _SPARE = 3, 162


@dataclass(frozen=True)
class AnnScan(ScoreScan):
    """A `ScoreScan` whose candidates come from lists, without a proof that none is missing.

    All rows are scored for a query whose lists have fewer than k that may answer, and where few rows may.

    Attributes
    ----------
    ann : AnnIndex
    lists : Ivf
        Of the first `ann.rows` rows.
    newer : PackedCopies
        Of the rows that came since, which are searched exactly.
    """

    ann: AnnIndex
    lists: Ivf
    newer: PackedCopies

    def _packed(self, by_kind: bool, by_same: bool, n: int) -> Packed | None:
        return None

    def _best(
        self, packed: Packed | None, asked: Asked, k: int, listed: Any, later: int = 0
    ) -> tuple[Single, Rows, Any]:
        kind, same = asked
        if self.scan.ntotal <= FEW * self.scan.rows:
            return super()._best(None, asked, k, None)
        K = min(self.ann.rows, (_TIMES * max(k, later) + _SPARE) * self.scan.rows // self.scan.ntotal)
        candidates = []
        if kind is not None:
            candidates.append(self.lists.by_kind(kind.H, None if same is None else same.H, K))
        if same is not None:
            if listed is None:
                listed = self.lists.by_instance(same.H, K)
            candidates.append(listed)
        if self._newer.scan.ntotal:
            _, rows = self._newer.search(kind and kind.H, same and same.H, min(k, self._newer.scan.ntotal))
            candidates.append(rows + self.ann.rows)
        S, rows = self._of_lists(asked, candidates, k)
        short = np.flatnonzero(S[:, -1] == -np.inf)
        if len(short):
            S[short], rows[short], _ = super()._best(None, asked.of(short), k, None)
        return S, rows, listed

    @cached_property
    def _newer(self) -> ScoreScan:
        """The exact search of the rows that are newer."""
        allowed, codes = self.scan.allowed, self.newer.codes
        mapped = codefile.MappedCodes(None, None, codes, None)
        return ScoreScan(
            self.newer, Scan(mapped, None if allowed is None else allowed[self.ann.rows :]), self.r, self.s
        )


def ann_scan(view: View, ann: AnnIndex, lists: Ivf, newer: PackedCopies | None = None) -> AnnScan:
    """A search of `view`; `newer` has the packed copies of an earlier state of the same rows."""
    codes, check = view.mapped.codes[ann.rows :], view.checks.everything
    newer = PackedCopies(codes, check) if newer is None else newer.extended(codes, check)
    return AnnScan(view.packed, view.everything, lists.r, lists.s, ann, lists, newer)


class AnnCache:
    """The approximate indexes that an opened `Store` has read, by kind; threads share them."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[View, AnnScan]] = {}
        self._reading = threading.RLock()

    def clear(self) -> None:
        """Close them."""
        self._held = {}

    def scan(self, view: View, kind: str, r: int, s: int) -> AnnScan:
        """A search of `view`, whose codes have r learned and s instance bits, through an index of a kind.

        The index is read when first asked for.

        Raises
        ------
        InputError
            The kind is unknown.
        StoreError
            There is none, its file is gone or damaged; other searches are not touched.
        """
        check_kind(kind, "ann", ", or None")
        held = self._held.get(kind)
        if held is None or held[0] is not view:
            ann = next((it for it in view.snapshot.ann if it.kind == kind), None)
            if ann is None:
                raise StoreError(
                    f"{view.folder} has no approximate index {kind}; 'woh-index build-ann {kind}' makes one"
                )
            with fork_safety.gate, self._reading:  # a fork waits, else the child might wait for this forever
                held = view, _taken(view, ann, r, s, self._held.get(kind))
                self._held = {**self._held, kind: held}
        return held[1]


def _taken(view: View, ann: AnnIndex, r: int, s: int, held: tuple[View, AnnScan] | None) -> AnnScan:
    """A search of `view` with what is held, if that is the index wanted, or else read."""
    if held is not None and held[1].ann.name == ann.name:
        return _later(view, *held)
    try:
        clusters = load(view.folder, ann, 8 * view.mapped.codes.shape[1])
    except StoreError as error:
        # A writer has built another meanwhile; one that is older lacks rows, which are scanned.
        if not isinstance(error.__cause__, FileNotFoundError) or held is None:
            raise
        other = held[0].snapshot.generation != view.snapshot.generation
        if other or held[1].ann.rows > view.snapshot.rows:
            raise
        return _later(view, *held)
    if ivf.widths(clusters) != (r, s):
        raise StoreError(
            f"{view.folder / ann.name} is of other learned and instance bits than {r} and {s}; 'woh-index "
            f"build-ann {ann.kind}' makes it again"
        )
    view.checks.everything()
    return ann_scan(view, ann, Ivf.of(clusters, view.mapped.codes[: ann.rows], ann.parameters["nprobe"]))


def _later(view: View, before: View, held: AnnScan) -> AnnScan:
    """What is held, for another state of the same rows."""
    newer = held.newer if before.snapshot.rows <= view.snapshot.rows else None
    return ann_scan(view, held.ann, held.lists, newer)


def load(folder: Path, ann: AnnIndex, d: int) -> ivf.Halves:
    """The clusters in the file of an approximate index; StoreError unless it is what was written."""
    path, again = folder / ann.name, f"'woh-index build-ann {ann.kind}' makes it again"
    try:
        with files.failures(folder, "open"), files.open_regular(path) as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != ann.sha256:
                raise StoreError(f"{path} is not what was written (another SHA-256); {again}")
            file.seek(0)
            try:
                clusters = ivf.read(file, "it")
            except InputError as error:
                raise StoreError(f"{path} cannot be read ({error}); {again}") from error
    except StoreError as error:
        if isinstance(missing := error.__cause__, FileNotFoundError):
            raise StoreError(f"{path} is missing; open the index again, or {again}") from missing
        raise
    valid = ivf.valid(clusters, ann.rows, ann.parameters)
    if not valid or binary.stored_bits(sum(ivf.widths(clusters))) != d:
        raise StoreError(f"{path} does not hold each of {ann.rows} codes of {d} bits once; {again}")
    return clusters


def check_kind(kind: str, name: str = "kind", also: str = "") -> None:
    """InputError unless an approximate index may be of this kind; `name` is what the parameter is called."""
    if not isinstance(kind, str) or kind not in KINDS:
        raise InputError(f"{name} is {validate.short(kind)}, expected {', '.join(KINDS)}{also}")
