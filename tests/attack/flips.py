"""Damaged bytes: flipped bits, truncation and zeroed pages in every file of an index."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from harness import Attack, Failure, Ran, command, copied, forked, removed
from life import Shim
from model import CONFIG, QUERIES, features

#: Text in the catalogue that no checksum of SQLite covers; `verify` must find a change of it.
STORED = ("codes.faiss", "ids.i64")
WRITES = ["add", "remove", "compact", "rollback", "update"]


def run(attack: Attack, shim: Shim | None) -> None:
    """Random damage until the time is up."""
    sound = template(attack.folder / "sound.woh")
    inputs = written_inputs(attack.folder)
    right = answers(sound, inputs)
    if isinstance(right, Ran):
        raise SystemExit(f"flips: a sound index is refused: {right.err}")
    earlier = [answers(attack.folder / f"earlier-{number}.woh", inputs) for number in range(3)]
    names = sorted(path.name for path in sound.iterdir() if path.is_file() and path.stat().st_size)
    names += ["catalog.db", "catalog.db-wal"]  # most of what there is to damage
    for number, rng in attack.rounds():
        folder = copied(sound, attack.folder / "index.woh")
        name = rng.choice(names)
        done = damage(folder / name, rng)
        try:
            attack.counts[f"{kind_of(name)}: {tried(folder, name, right, earlier, inputs, rng)}"] += 1
        except Failure as failure:
            failure.kind = f"{kind_of(name)}: {failure.kind}"
            attack.fail(failure, number, folder, f"{name}: {done}")
    removed(attack.folder)


def template(folder: Path) -> Path:
    """An index with rounds of every kind, and a log that is not empty: copied beside a reader."""
    held = folder.with_name("held.woh")

    def make() -> None:
        from woh_faiss import WOHIndex

        with WOHIndex.create(held, **CONFIG) as index:
            X, tags = features(1, 40)
            index.update(X, tags, keys=[f"photo-{i}" for i in range(40)])
            index.add(features(2, 5)[0], ids=[100, 110, 120, 130, 140])
            index.remove([11, 100])
            index.compact()
            with log_kept(held):
                X, tags = features(3, 20)
                copied(held, folder.with_name("earlier-0.woh"))
                index.update(X, tags, ids=list(range(200, 220)))
                copied(held, folder.with_name("earlier-1.woh"))
                index.add(*features(4, 2), ids=[5, 110], on_duplicate="replace")
                copied(held, folder.with_name("earlier-2.woh"))
                index.remove([4])
                copied(held, folder)

    ended = forked(make)
    if ended.how != "done":
        raise SystemExit(f"no index can be made with this checkout: {ended.value}")
    return folder


@contextmanager
def log_kept(folder: Path) -> Iterator[None]:
    """SQLite's log is not written into the catalogue as long as somebody else has it open."""
    with closing(sqlite3.connect(folder / "catalog.db")) as connection:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        yield


def written_inputs(folder: Path) -> dict[str, str]:
    """Files that commands are given."""
    import numpy as np

    paths = {name: str(folder / f"{name}.npz") for name in ("queries", "more")}
    np.savez(paths["queries"], features=QUERIES)
    X, tags = features(7, 12)
    np.savez(
        paths["more"], features=X, tags=np.array([";".join(row) for row in tags]), ids=np.arange(900, 912)
    )
    return paths


def damage(path: Path, rng: random.Random) -> str:
    """Damage a file; what was done."""
    data = bytearray(path.read_bytes())
    kind = rng.choice(["flip", "flip", "flip", "flips", "cut", "zeroed page", "grown"])
    at = rng.randrange(len(data))
    if kind in ("flip", "flips"):
        for place in [
            at,
            *(rng.randrange(len(data)) for _ in range(rng.choice([3, 30]) * (kind == "flips"))),
        ]:
            data[place] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del data[at:]
    elif kind == "zeroed page":
        start = at // 4096 * 4096
        data[start : start + 4096] = bytes(len(data[start : start + 4096]))
    else:
        data += rng.randbytes(rng.choice([1, 8, 4096]))
    path.write_bytes(data)
    return f"{kind} at {at}"


def answers(folder: Path, inputs: dict[str, str]) -> tuple[Any, Any] | Ran:
    """(ids and distances, texts) of queries by features, or the command that refused."""
    ran = command(
        "query", inputs["queries"], "-k", "100", "--by", "hamming", "--json", "--index", str(folder)
    )
    if ran.code:
        return ran
    lines = [json.loads(line) for line in ran.out.splitlines()]
    near = [(line["query"], line["id"], line["distance"]) for line in lines]
    return sorted(near), sorted((line["id"], line.get("key"), str(line.get("tags"))) for line in lines)


def tried(
    folder: Path, name: str, right: Any, earlier: list[Any], inputs: dict[str, str], rng: random.Random
) -> str:
    """What became of a damaged index: how it was told, if at all."""
    where = ("--index", str(folder))
    found = answers(folder, inputs)
    told = command("verify", *where).code != 0
    command("info", "--json", *where)
    command("query", "--id", "7", "--json", *where)
    wrong_near = not isinstance(found, Ran) and found[0] != right[0]
    wrong_text = not isinstance(found, Ran) and found[1] != right[1]
    if (
        name == "catalog.db-wal" and found in earlier
    ):  # SQLite ends its log at the first frame that is damaged
        return "back at an earlier round, found by verify" if told else "back at an earlier round"
    if (wrong_near or wrong_text) and not told:
        raise Failure("WRONG and not found by verify", _difference(found, right))
    if wrong_near and not name.startswith(STORED):
        raise Failure("WRONG until verify", _difference(found, right))
    write(folder, inputs, rng.choice(WRITES), refused_before=isinstance(found, Ran))
    if isinstance(found, Ran):
        return "refused"
    if wrong_near:
        return "stored code or id, found by verify"
    if wrong_text:
        return "stored text, found by verify"
    return "found by verify" if told else "harmless"


def write(folder: Path, inputs: dict[str, str], what: str, refused_before: bool) -> None:
    """A write command either refuses, or leaves an index that answers if it did before."""
    given = {
        "add": [inputs["more"]],
        "update": [inputs["more"]],
        "remove": ["7"],
        "compact": [],
        "rollback": ["1"],
    }[what]
    ran = command(what, *given, "--index", str(folder))
    if ran.code == 0 and not refused_before:
        after = answers(folder, inputs)
        if isinstance(after, Ran):
            raise Failure(f"{what} was done, then all is refused", after.err.strip()[-300:])


def kind_of(name: str) -> str:
    """Files of one kind count together."""
    return "model" if name.startswith("model-") else name


def _difference(found: Any, right: Any) -> str:
    for mine, theirs in zip(right, found, strict=True):
        if mine != theirs:
            gone, new = ([it for it in a if it not in b][:3] for a, b in ((mine, theirs), (theirs, mine)))
            return f"right {gone}, found {new}"
    return "the order"
