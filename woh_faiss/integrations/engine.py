"""The interface of every database that holds codes, the rows it gets, and its URL."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Protocol
from urllib.parse import quote, unquote

import numpy as np
from numpy.typing import NDArray

from woh_faiss.errors import EngineError, InputError

from .candidates import Asked, Bytes, Found, Ids

#: What a table's state begins with, so that nobody's own comment is taken for one.
_MARK = "woh-faiss push "
#: Raised with every change of the tables that an older package could not push to, or search.
FORMAT = 3
#: The URLs there are, for messages.
EXAMPLES = {
    "postgresql": "postgresql://user@host:5432/db?table=items",
    "milvus": "milvus://host:19530/collection",
    "milvus+https": "milvus+https://host:443/collection",
    "milvus+file": "milvus+file:///path/codes.db/collection",
}


@dataclass(frozen=True, slots=True)
class RoundStamp:
    """A round of an index: its number, `CodeSource.stamps`' number for it, and the items there were after it.

    All three being equal, two states of an index, or of copies of it, have the same items.
    """

    round: int = 0
    stamp: int = 0
    ntotal: int = 0


@dataclass(frozen=True, slots=True)
class PushState:
    """How far a table got; the engine holds it.

    Attributes
    ----------
    identity : str
        Of the index that it belongs to: `store.Snapshot.identity`.
    learned, instance : int
        Bits of each half of a code.
    tags : bool
        Whether there are columns of tags and of metadata.
    approximate : bool
        Whether searches go through an index that may miss neighbours.
    at, goal : RoundStamp
        The round up to which changes are in, and the one whose items it will have: another while a push is
        not through, which has left out what is not there in the end.
    busy : str
        Names a push that has begun and not ended, where an engine has no transactions; else empty.
    format : int
        The layout of the table. Of an earlier one nothing else is known but the identity.
    """

    identity: str
    learned: int
    instance: int
    tags: bool
    approximate: bool
    at: RoundStamp = RoundStamp()
    goal: RoundStamp = RoundStamp()
    busy: str = ""
    format: int = FORMAT

    def text(self) -> str:
        """As text, to be held by the engine."""
        return _MARK + json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str | None, shown: str) -> PushState | None:
        """The inverse of `text`; None for what is not ours. EngineError if a newer package wrote it."""
        if text is None or not text.startswith(_MARK):
            return None
        try:
            found: dict[str, Any] = json.loads(text.removeprefix(_MARK))
            if found["format"] > FORMAT:
                raise EngineError(f"{shown} was pushed to by a newer woh-faiss: upgrade woh-faiss")
            if found["format"] < FORMAT:
                return cls(found["identity"], 0, 0, False, False, format=found["format"])
            found |= {"at": RoundStamp(**found["at"]), "goal": RoundStamp(**found["goal"])}
            return cls(**{field.name: found[field.name] for field in fields(cls)})
        except (ValueError, TypeError, KeyError, RecursionError):
            return None

    @property
    def ended(self) -> bool:
        """Whether the last push is through."""
        return self.at == self.goal and not self.busy


@dataclass(frozen=True, slots=True)
class CodeRows:
    """Items as an engine stores them, n of them.

    Attributes
    ----------
    ids, seq, rounds, stamps : (n,) arrays of int64
        `seq` ascends in the order in which the flat scan lists items at equal distances. `stamps` tell
        rounds apart that have the same number, one of which was rolled back.
    learned, instance : (n, bits // 8) arrays of uint8
        The halves of the codes, one of which may have no bits; bit j is bit ``j % 8``, least significant
        first, of byte ``j // 8``.
    keys : list of str or None
    tags : list of list of str, or None where the table has none
    metadata : list of dict
        Values by name of their column; a table has them where it has tags.
    """

    ids: Ids
    seq: Ids
    rounds: Ids
    stamps: Ids
    learned: Bytes
    instance: Bytes
    keys: Sequence[str | None]
    tags: Sequence[Sequence[str]] | None
    metadata: Sequence[Mapping[str, Any]] = ()


class Engine(Protocol):
    """One table of one database. Every method raises EngineError where the database refuses.

    Changes come in steps: `begin`, any number of `delete` and `put`, `commit`. After a step that was cut
    short the table's state is the one before, or `busy`.
    """

    shown: str

    def state(self) -> PushState | None:
        """How far the table got; None where there is no table, or not one of ours."""

    def exists(self) -> bool:
        """Whether there is a table of this name, ours or not."""

    def create(self, state: PushState) -> None:
        """A new table in the place of whatever is there."""

    def begin(self, state: PushState) -> None:
        """The right to change the table, which has this state; EngineError if another push changed it."""

    def delete(self, ids: Ids) -> None:
        """Take out rows, some of which may not be there."""

    def put(self, rows: CodeRows, replaced: Ids) -> None:
        """Put rows in; those whose ids are `replaced` are there, in another version."""

    def commit(self, state: PushState) -> None:
        """The changes since `begin` are done."""

    def finish(self, state: PushState) -> None:
        """Make what searches of this table need, once its rows are there."""

    def stored(self) -> Iterator[tuple[Ids, Ids, Ids]]:
        """Ids, stamps and seq of all rows, a block at a time, in any order."""

    def reading(self) -> AbstractContextManager[None]:
        """Searches inside find one state of the table, where the database can keep it."""

    def nearest(self, codes: Bytes, k: int, state: PushState) -> list[Found]:
        """Of each code (n, bytes) the k nearest rows, by bits that differ, then seq.

        Of a table that is approximate, some of them.
        """

    def best(self, asked: Asked, k: int, state: PushState) -> list[tuple[Found, float]]:
        """Of each query rows that the k best by score may be among, and what no other row's score exceeds.

        It is -inf where no other row counts: there is none, or the table is approximate.
        """

    def reaching(
        self, asked: Asked, least: NDArray[np.float64], k: int, state: PushState
    ) -> Iterator[tuple[int, Found]]:
        """Of each query all rows whose score may be at least `least` (n,), and maybe others.

        Of rows whose codes are equal in the halves that count, the k first by seq are enough. The rows of a
        query come in any number of parts.
        """

    def close(self) -> None:
        """Close the connection; uncommitted changes are undone."""


@dataclass(frozen=True, slots=True)
class Address:
    """A URL in parts: ``scheme://place?options``; `shown` is what of it may be printed."""

    scheme: str
    place: str = field(repr=False)
    options: tuple[tuple[str, str], ...] = field(repr=False)
    shown: str

    @classmethod
    def parse(cls, url: str) -> Address:
        """InputError unless `url` is one of a database that is known; no message has its password."""
        scheme, apart, rest = url.partition("://")
        scheme = {"postgres": "postgresql"}.get(scheme, scheme)
        if not apart or scheme not in EXAMPLES:
            what = f"{scheme}://…" if apart and scheme.isidentifier() else "the URL"
            raise InputError(f"{what} names no database that is known; give {' or '.join(EXAMPLES.values())}")
        place, _, query = rest.partition("?")
        host = place.rpartition("@")[2]
        # With an "@" further on, a "?" may be part of a password; so may be what is quoted, or a setting.
        secret = "@" not in place and "@" in query
        secret |= scheme != "milvus+file" and any(mark in unquote(unquote(host)) for mark in "@=")
        shown = f"{scheme}://…" if secret else f"{scheme}://{host}"
        options = (part.partition("=") for part in query.split("&") if part)
        return cls(scheme, place, tuple((name, value) for name, _, value in options), shown)

    def refused(self) -> InputError:
        """What to raise for a URL of which something is missing."""
        return InputError(f"{self.shown} is not a whole URL; give {EXAMPLES[self.scheme]}")


def hidden(text: str, secrets: Iterable[str]) -> str:
    """The text with "***" in the place of each secret, as it is or as a URL quotes it."""
    for secret in secrets:
        for form in (secret, quote(secret, safe="")):
            text = text.replace(form, "***")
    return text
