"""Other Faiss indexes made of an index: in memory, as a file for others, or beside the codes for searches."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from woh_faiss.store import AnnIndex

from .reader import WOHIndex

if TYPE_CHECKING:
    from woh_faiss.store.export import Exported


class IndexDeriving(WOHIndex):
    """What is made of an index folder's codes; `WOHIndex` adds what makes it grow.

    Kinds and their parameters, with n items of r bits:

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

    def to_faiss(self, kind: str = "idmap2", **parameters: int) -> Any:
        """An ordinary Faiss index of the items that can be found, in memory; removed ones are not in it.

        It takes codes of `info()["stored_bits"]` bits: those of `encode`, with zero bytes behind them where
        `config.bits` is less.

        Parameters
        ----------
        kind : "flat", "idmap2", "ivf", "hnsw" or "multihash"
            See the class. All but "flat" answer with the items' ids.
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

        return export.in_memory(self._store.view, kind, parameters, self.config.bits)

    def export(
        self,
        path: str | os.PathLike[str],
        kind: str = "idmap2",
        *,
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
        kind, **parameters
            As `to_faiss`.
        force : bool
            Whether a file that is there is replaced.

        Raises
        ------
        InputError
            As `to_faiss`, or the path cannot be used.
        StoreError
            The disk refused, or an exact kind did not answer as the index does; nothing is left of it.
        """
        from woh_faiss.store import export

        place = Path(os.fsdecode(path)).absolute()
        return export.export(self._store.view, place, kind, parameters, self.config.bits, force)

    def build_ann(self, kind: str, *, timeout: float = 10.0, **parameters: int) -> AnnIndex:
        """Make an index for `search(ann=kind)` of the newest state, in place of one of that kind before.

        It is kept in the folder, and is not the truth: `compact` and `rollback` drop it, a damaged one is
        refused, and the codes are all that is needed to make it again. Items that come later are scanned
        beside it; derive again once they are many (`info()["derived"]` has ``behind``). Writers wait only
        while its file is written, readers not at all.

        Parameters
        ----------
        kind : "ivf", "hnsw" or "multihash"
            See the class.
        timeout : float
            Seconds to wait for a writer.
        **parameters : int

        Returns
        -------
        Derived
            Its parameters, and its recall: the share of the 10 nearest found, of 256 stored codes with a
            sixteenth of their bits flipped; where distances are equal either counts.

        Raises
        ------
        InputError
            As `to_faiss`.
        LockedError
            Another writer holds the index.
        StoreError
            The folder cannot be written, or was compacted or rolled back meanwhile.
        """
        from woh_faiss.store.ann import build_ann

        return build_ann(self._store, kind, parameters, self.config.bits, timeout)

    def drop_ann(self, kind: str | None = None, *, timeout: float = 10.0) -> list[str]:
        """Remove the approximate index of a kind, or all of them; returns the kinds that went.

        Raises
        ------
        InputError
            The kind is unknown.
        LockedError, StoreError
            As `derive`, or there is none of that kind.
        """
        from woh_faiss.store.ann import drop_ann

        return drop_ann(self._store, kind, timeout)
