"""What an index must answer: states kept by the attacker, and brute force over them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

D, BITS = 12, 32
#: Queries that every state is asked; and of readers how many, and for how many neighbours.
QUERIES = np.random.default_rng(99).standard_normal((8, D)).astype(np.float32)
K, ASKED = 5, 3
CONFIG = {"bits": BITS, "instance_bits": 64, "anchors": 20, "vector_size": 5}
#: Bytes of a code of both halves.
CODE_SIZE = (BITS + 64) // 8
WORDS = ["sea", "beach", "hill", "snow", "city", "night", "boat"]


def features(seed: int, n: int) -> tuple[NDArray[np.float32], list[list[str]]]:
    """Features and tags of n items; the same for the same seed."""
    rng = np.random.default_rng(seed)
    topic = rng.integers(len(WORDS), size=n)
    X = (np.eye(len(WORDS), D)[topic] * 3 + rng.normal(size=(n, D))).astype(np.float32)
    return X, [[WORDS[t], WORDS[(t + 1) % len(WORDS)]] for t in topic]


def metadata(seed: int, n: int) -> dict[str, list[Any]] | None:
    """Metadata of n items; each third round has none, each third item neither."""
    if not seed % 3:
        return None
    sizes = [seed % 100 + i if i % 3 else None for i in range(n)]
    return {"size": sizes, "word": [None if it is None else WORDS[it % len(WORDS)] for it in sizes]}


@dataclass
class State:
    """A committed state: newest round, each item's code, text and metadata, the codes of `QUERIES`."""

    round: int
    items: dict[int, tuple[bytes, str | None, tuple[str, ...], tuple[tuple[str, Any], ...]]]
    queries: bytes
    nearest: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        codes = self.codes([*self.items])
        self.nearest = [np.sort(_bits(codes, query))[:K].tolist() for query in self._asked()]

    def _asked(self) -> NDArray[np.uint8]:
        """Codes of the queries that readers are asked."""
        return np.frombuffer(self.queries, np.uint8).reshape(-1, CODE_SIZE)[:ASKED]

    def codes(self, ids: list[int]) -> NDArray[np.uint8]:
        """Codes of these ids, a row each."""
        joined = b"".join(self.items[i][0] for i in ids)
        return (
            np.frombuffer(joined, np.uint8).reshape(len(ids), -1)
            if ids
            else np.empty((0, CODE_SIZE), np.uint8)
        )

    def answers(self, ntotal: int, D: list[list[int]], I: list[list[int]]) -> bool:
        """Whether this state answers so: every distance and id by brute force, ties in any order."""
        if ntotal != len(self.items) or not self.queries:
            return ntotal == len(self.items)
        for query, best, distances, ids in zip(self._asked(), self.nearest, D, I, strict=True):
            found = [i for i in ids if i >= 0]
            if distances[: len(found)] != best or len(found) != len(best) or len({*found}) != len(found):
                return False
            if not {*found} <= {*self.items} or _bits(self.codes(found), query).tolist() != best:
                return False
        return True

    def same(self, other: State) -> bool:
        """Whether both hold the same items and hash queries alike; rounds of no items may be more."""
        return self.items == other.items and self.queries == other.queries

    def differs(self, other: State) -> str:
        """How another state differs, in words."""
        mine, others = {*self.items}, {*other.items}
        hashing = "same" if self.queries == other.queries else "another"
        changed = [i for i in mine & others if self.items[i] != other.items[i]]
        return (
            f"round {self.round} and {other.round}; {len(mine - others)} items gone, "
            f"{len(others - mine)} new, {len(changed)} changed; hash function: {hashing}"
        )


def _bits(codes: NDArray[np.uint8], query: NDArray[np.uint8]) -> NDArray[np.int64]:
    return np.unpackbits(codes ^ query, axis=1).sum(axis=1, dtype=np.int64)


def asked(index: Any) -> tuple[int, list[list[int]], list[list[int]]]:
    """What a reader answers to `QUERIES`."""
    total = index.ntotal
    distances, ids = index.search(QUERIES[:ASKED], K, by="hamming")
    return total, distances.tolist(), ids.tolist()


def look(folder: Path, known: dict[int, bytes] | None = None) -> State:
    """All of an index that its public calls tell; ValueError if its own answers do not fit together.

    An item whose distances are those of its `known` code has that code; of others it is asked for.
    """
    from woh_faiss import WOHIndex

    with WOHIndex.open(folder) as index:
        rounds = index.rounds()
        number = rounds[-1].round if rounds else 0
        if not index.is_trained:
            return State(number, {}, b"")
        total = index.ntotal
        queries = np.ascontiguousarray(index.encode(QUERIES))
        distances, found = index.search(QUERIES, max(1, total), by="hamming")
        if not total:
            return State(number, {}, queries.tobytes())
        order = np.argsort(found, axis=1)
        found = np.take_along_axis(found, order, axis=1)
        distances = np.take_along_axis(distances, order, axis=1).T
        ids = found[0].tolist()
        if found.shape[1] != total or (found != found[0]).any() or len({*ids}) != total or ids[0] < 0:
            raise ValueError(f"{total} items are counted, {len({*ids} - {-1})} are found")
        codes = {}
        for i, seen in zip(ids, distances, strict=True):
            code = (known or {}).get(i)
            if code is None or (_bits(queries, np.frombuffer(code, np.uint8)) != seen).any():
                code = np.asarray(index.reconstruct(i)).tobytes()
                if (_bits(queries, np.frombuffer(code, np.uint8)) != seen).any():
                    raise ValueError(f"item {i}: its distances are not those of its code")
            codes[i] = code
        given = {
            it.id: {name: v for name, v in it.metadata.items() if v is not None} for it in index.items(ids)
        }
        texts = {
            it.id: (it.key, tuple(it.tags or ()), tuple(given[it.id].items())) for it in index.items(ids)
        }
        large = {i for i, held in given.items() if held.get("size", 0) >= 50}
        if large and {*index.ids("size >= 50").tolist()} != large:
            raise ValueError("a filter lets through other items than those that have such metadata")
        state = State(number, {i: (codes[i], *texts[i]) for i in ids}, queries.tobytes())
        answer = asked(index)
    if not state.answers(*answer):
        raise ValueError("its answers are not those of a scan of its own codes")
    return state
