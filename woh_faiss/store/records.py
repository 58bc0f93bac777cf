"""The catalogue's rows as values."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from woh_faiss.metadata import Metadata

#: (column, tag, count, vector)
TagRow = tuple[int | None, str, int, bytes | None]

#: Generations before the one in place of which the catalogue says how they ended.
_LEFT = 16


@dataclass(frozen=True, slots=True)
class AnnIndex:
    """An approximate index of the codes of the generation that is in place.

    Attributes
    ----------
    kind : str
        "ivf".
    name : str
        Of its file.
    sha256 : str
        Of the file's bytes, in hex.
    round, rows : int
        The newest round when it was made, and the rows there were: it holds all of them.
    parameters : dict of int
        What it was made with, by name.
    recall : float
        Share of the 10 best answers by score that it found when it was made: see `ann.build_ann`.
    """

    kind: str
    name: str
    sha256: str
    round: int
    rows: int
    parameters: dict[str, int] = field(hash=False)
    recall: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One committed state.

    Attributes
    ----------
    round : int
        The newest round, 0 for none.
    rows : int
        Rows in the codes file, those of removed items among them.
    ntotal : int
        Items that can be found.
    model : str or None
        Name of the newest model file.
    model_digest : str or None
        Its `Model.digest`.
    next_id : int
        The largest id ever used, plus 1.
    generation : int
        How often codes and ids were rewritten, by `compact`, `rollback` or a round with `recoded`.
    anchors : str or None
        SHA-256 of the anchors' file, if they have one.
    ann : tuple of AnnIndex
    identity : str
        32 hex digits that tell this index, and copies of it, from every other.
    line : str
        16 hex digits that tell this generation from that of a copy that went another way.
    time, checksum : float, str
        Of the newest round; 0 and "" for none.
    recoded : int
        The newest round that gave the rows before it other codes, 0 for none.
    """

    round: int
    rows: int
    ntotal: int
    model: str | None
    model_digest: str | None
    next_id: int
    generation: int = 0
    anchors: str | None = None
    ann: tuple[AnnIndex, ...] = ()
    identity: str = ""
    line: str = ""
    time: float = 0.0
    checksum: str = ""
    recoded: int = 0


@dataclass(frozen=True, slots=True)
class Round:
    """One committed change of the items.

    Attributes
    ----------
    round : int
        From 1.
    time : float
        Seconds since 1970, UTC.
    kind : str
        "trained", "encoded", or "removed" where nothing was added.
    n, removed, ntotal : int
        Items added, items removed or replaced, items that could be found afterwards.
    trained : int
        Items the model learned from.
    first_row, end_row : int
        Where its rows are in the files; `compact` moves them.
    checksum : str
        SHA-256 of these rows' code bytes followed by their id bytes, in hex; a later round with `recoded`
        gives them others.
    model, model_digest : str or None
        Model file in force after the round and its `Model.digest`.
    chunk_hash : str
        The caller's own hash of the chunk.
    seconds : float
        What the round took.
    health : dict or None
        Figures of the codes, as the caller gave them.
    """

    round: int
    time: float
    kind: str
    n: int
    removed: int
    ntotal: int
    trained: int
    first_row: int
    end_row: int
    checksum: str
    model: str | None
    model_digest: str | None
    chunk_hash: str
    seconds: float
    health: dict[str, Any] | None


@dataclass(frozen=True, slots=True, eq=False)
class NewRound:
    """A change of the items that is to be committed; `WriteTransaction.commit` checks it.

    Attributes
    ----------
    kind : "trained", "encoded" or "removed"
        Whether the round changed the model, or only took items away.
    codes : (n, d // 8) uint8
        Packed codes, padded to the store's d.
    ids : (n,) int64
        Not negative, no two equal; never used before, or among `remove`.
    keys, tags : n entries each
        A key of its own or None; a list of tags.
    trained, seconds : int, float
        Items learned from; what the round took so far.
    model : arrays by name, optional
        None: the previous model stays in force.
    anchors : array, optional
        Only in the first round that has them.
    tag_rows : (column, tag, count, vector) each
        New or changed rows of the tag table; each replaces the tag's row. A tag's column and vector come
        together and never change.
    chunk_hash, health : str, dict
        Kept in the round's row.
    remove : ids
        Live items that are not found any more; an id among `ids` too is replaced.
    numbered : bool
        Whether the new ids are the next free ones, all of them, and none was chosen by a user.
    trust : sequence of float or None, optional
        What the tags of each new item count, as far as features foretell them; None for 1.
    early : (n, d) float32, optional
        Features of the new items, to be kept until a round with `recoded`; finite, as wide as those kept.
    recoded : (rows, d // 8) uint8, optional
        Codes for all rows that are there, those of removed items too, in place of theirs. Then no features
        are kept any more, there are no approximate indexes, and no rollback goes beyond this round.
    metadata : MetadataColumn by name, optional
        Of the new items, n cells a column.
    """

    kind: Literal["trained", "encoded", "removed"]
    codes: NDArray[np.uint8]
    ids: ArrayLike = ()
    keys: Sequence[str | None] = ()
    tags: Sequence[Sequence[str]] = ()
    trained: int = 0
    seconds: float = 0.0
    model: Mapping[str, NDArray[Any]] | None = None
    anchors: NDArray[Any] | None = None
    tag_rows: Iterable[TagRow] = ()
    chunk_hash: str = ""
    health: dict[str, Any] | None = None
    remove: Sequence[int] = ()
    numbered: bool = False
    trust: Sequence[float | None] | None = None
    early: NDArray[np.float32] | None = None
    recoded: NDArray[np.uint8] | None = None
    metadata: Metadata | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """One live item: the user's id and key, its row in the codes file, its tags, the round that added it, how
    far its tags are trusted, 0 to 1, and a value or None for each column of metadata that the index has."""

    id: int
    row: int
    key: str | None
    tags: list[str]
    round: int
    trust: float = 1.0
    metadata: dict[str, Any] = field(default_factory=dict, hash=False)


@dataclass(slots=True)
class State:
    """What the files beside the catalogue are: the JSON of `meta`'s row "state".

    Attributes
    ----------
    models : list of str
        Model files kept, oldest first.
    anchors : str or None
        SHA-256 of `anchors.npy`.
    anchors_round : int
        The round that wrote them.
    generation : int
        Of codes and ids.
    next_id : int
        The largest id ever used, plus 1.
    auto_end : int
        Every id below it was used: up to here only the store gave ids.
    restorable : int
        The earliest round that tags and codes can be put back to.
    recoded : int
        See `Snapshot`.
    ann : list of AnnIndex
        At most one a kind, of the generation that is in place.
    ann_builds : int
        How many were ever made.
    newest : int
        The newest round, 0 for none: a damaged catalogue may have lost its record.
    identity, line : str
        See `Snapshot`.
    left : list of [str, int, float, int]
        Of the latest generations before this one: `line`, the newest round when it ended, its time, and the
        last round that was kept.
    """

    models: list[str] = field(default_factory=list)
    anchors: str | None = None
    anchors_round: int = 0
    generation: int = 0
    next_id: int = 0
    auto_end: int = 0
    restorable: int = 0
    recoded: int = 0
    ann: list[AnnIndex] = field(default_factory=list)
    ann_builds: int = 0
    newest: int = 0
    identity: str = field(default_factory=lambda: secrets.token_hex(16))
    line: str = field(default_factory=lambda: secrets.token_hex(8))
    left: list[list[Any]] = field(default_factory=list)

    def leave(self, last: Snapshot, kept: int) -> None:
        """Begin another generation after `last`, with rounds up to `kept`; its rows are new."""
        self.left = [*self.left, [self.line, last.round, last.time, kept]][-_LEFT:]
        self.generation, self.line, self.ann = self.generation + 1, secrets.token_hex(8), []

    def text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))
