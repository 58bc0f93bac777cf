"""The life of one index under attack: a writer struck down beside readers, and what must hold after that."""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from harness import Attack, Ended, Failure, copied, forked, readable, removed, spawn, wait
from model import CONFIG, State, asked, features, look, metadata

#: What a writer does, as often as it stands here.
OPERATIONS = ["add", "add", "add", "update", "remove", "replace", "compact", "rollback"]
NEXT = ["no-op remove", "no-op remove", "refused add", "refused add", "add", "update", "compact", "none"]
READERS = ["verify", "verify", "search", "search", "open, idle", "SQLite, idle", "SQLite, in a transaction"]
#: An index of so many items has lived long enough.
OLD_AGE = 700
#: What `verify` says of what a writer that died left, which changes no answer.
LEFT = "the next write"
#: What an error says that changed nothing.
AS_BEFORE = "the index is as before"
#: Modes of shim.c.
COUNT, ONCE, ALWAYS, SHORT, DIE_BEFORE, DIE_AFTER = range(6)  # COUNT does not wait for the disk, either


class Operation(NamedTuple):
    """What a writer is to do, with the ids it is about."""

    name: str
    seed: int = 0
    ids: tuple[int, ...] = ()

    def on(self, ids: set[int]) -> set[int] | None:
        """Ids there are after it; None where that depends on the past."""
        if self.name in ("add", "update"):
            return ids | {*self.ids}
        if self.name == "rollback":
            return None
        return ids - {*self.ids} if self.name == "remove" else ids


def perform(folder: Path, what: Operation) -> list[bytes] | None:
    """Do it; of `add` and "replace" the codes that were to be stored."""
    from woh_faiss import WOHIndex

    with WOHIndex.open(folder) as index:
        X, tags = features(what.seed, len(what.ids))
        ids = list(what.ids)
        if what.name in ("add", "replace", "refused add"):
            codes = [code.tobytes() for code in index.encode(X)]
            policy = "replace" if what.name == "replace" else "error"
            index.add(X, tags, ids=ids, metadata=metadata(what.seed, len(ids)), on_duplicate=policy)
            return codes
        if what.name == "update":
            index.update(X, tags, ids=ids, metadata=metadata(what.seed, len(ids)))
        elif what.name == "remove":
            index.remove(ids)
        elif what.name == "no-op remove":
            index.remove([2**40], ignore_missing=True)
        elif what.name == "compact":
            index.compact()
        elif what.name == "rollback":
            index.rollback(index.rounds()[-2:][0].round)  # refused where there is one only
    return None


class Calls(NamedTuple):
    """System calls of an operation on its folder: how many, first and last on SQLite's log."""

    all: int = 40
    log_first: int = -1
    log_last: int = -1

    def at(self, share: float, commit: bool) -> int:
        """The call at a share of all, or of those from the first to the last on the log and two more."""
        first, end = (self.log_first, self.log_last + 3) if commit and self.log_first >= 0 else (0, self.all)
        return first + int(share * (end - first))


class Shim:
    """shim.c, compiled and loaded into this process before libc; it acts once it is armed, in a child."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        for name in ("attack_seen", "attack_log_first", "attack_log_last"):
            getattr(self._library, name).restype = ctypes.c_long

    def arm(self, folder: Path, call: int, mode: int, error: int = 0) -> None:
        self._library.attack_arm(os.fsencode(folder) + b"/", ctypes.c_long(call), mode, error)

    def seen(self) -> Calls:
        library = self._library
        return Calls(library.attack_seen(), library.attack_log_first(), library.attack_log_last())


class Reader:
    """A process that reads until it is told to end, or killed."""

    def __init__(self, kind: str, folder: Path, log: Path) -> None:
        self.kind, self.log = kind, log
        log.unlink(missing_ok=True)
        ready, said = os.pipe()
        told, self._tell = os.pipe()

        def work() -> None:
            with log.open("w") as out:
                read(kind, folder, out, said, told)

        self._pid, self._answer = spawn(work, seconds=120)
        os.close(said), os.close(told)
        readable(ready, 10)
        os.close(ready)

    def end(self, kill: bool) -> list[Any]:
        """What it noted, once it has ended."""
        if kill:
            os.kill(self._pid, signal.SIGKILL)
        else:
            os.write(self._tell, b"x")
        os.close(self._tell)
        ended = wait(self._pid, self._answer)
        if ended.how == "raised":
            raise Failure(f"reader ({self.kind}) refused", ended.value[3][-400:])
        if ended.how == "hang" or (ended.how == "crash" and not kill):
            raise Failure(f"reader ({self.kind}) {ended.how}", str(ended.value))
        lines = self.log.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]  # the last one may be cut


def read(kind: str, folder: Path, out: Any, said: int, told: int) -> None:
    """The work of a `Reader`: notes faults and answers, each once in a row, until it is told to end."""
    from woh_faiss import WOHIndex

    before = None

    def note(found: Any) -> None:
        nonlocal before
        if found and found != before:
            out.write(json.dumps(found) + "\n")
            out.flush()
            before = found

    if kind.startswith("SQLite"):
        connection = sqlite3.connect(folder / "catalog.db", isolation_level=None)
        if kind.endswith("transaction"):
            connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        os.write(said, b".")
        readable(told, 110)
        return
    if kind == "open, idle":
        with WOHIndex.open(folder):
            os.write(said, b".")
            readable(told, 110)
        return
    first = True
    while first or not readable(told, 0.001):
        if kind == "verify":
            note(WOHIndex.verify(folder))
        else:
            with WOHIndex.open(folder) as index:
                for _ in range(4):
                    note(asked(index))
                    index.refresh()
        if first:
            os.write(said, b".")
        first = False


class Strike(NamedTuple):
    """How a writer is struck, and at which share of its time, its system calls, or those of its commit."""

    kind: str
    at: float
    commit: bool = False
    error: int = 0


class Life:
    """An index, the states it may be in, and what was done to it."""

    def __init__(self, attack: Attack, shim: Shim | None) -> None:
        self._attack, self._shim = attack, shim
        self.folder = attack.folder / "index.woh"
        self._copy = attack.folder / "copy.woh"
        self.begin()

    def begin(self) -> None:
        """A new index of one round."""
        removed(self.folder)
        self._next_id, self._age = 100, 0
        self.story: list[str] = []
        self._readers: list[Reader] = []
        self._codes: dict[int, bytes] = {}

        def make() -> None:
            from woh_faiss import WOHIndex

            with WOHIndex.create(self.folder, **CONFIG) as index:
                index.update(*features(1, 40), ids=list(range(40)))

        ended = forked(make)
        if ended.how != "done":
            raise SystemExit(f"no index can be made with this checkout: {ended.value}")
        self.state = self._look()

    def episode(self, rng: random.Random, strike: Strike) -> None:
        """One strike at a random writer beside random readers, and the looks after it."""
        if len(self.state.items) > OLD_AGE or self._age > 80:
            self.begin()
        self._age += 1
        try:
            self._episode(rng, strike)
        finally:
            for reader in self._readers:
                with suppress(Failure):  # the one that ended the episode is told
                    reader.end(kill=True)
            self._readers = []

    def _episode(self, rng: random.Random, strike: Strike) -> None:
        old = self.state
        what = self._operation(rng, OPERATIONS)
        new, calls, seconds = self._rehearse(what, old, timed=strike.kind == "time")
        states = [old] if new is None else [old, new]
        self._readers = [
            Reader(kind, self.folder, self._attack.folder / f"reader-{i}.log")
            for i, kind in enumerate(rng.choices(READERS, k=rng.choice([0, 1, 1, 2])))
        ]
        kinds = " + ".join(reader.kind for reader in self._readers) or "nobody"
        ended = self._strike(what, strike, calls, seconds)
        how = f"{ended.value[0]} {ended.value[2]}" if ended.how == "raised" else ended.how
        self._tell(f"{what.name} of {len(what.ids)} struck by {strike}, {calls}, beside {kinds}: {how}")
        if ended.how == "hang":
            raise Failure("hang", f"{what.name}, {strike}")
        if ended.how == "raised" and not ended.value[1]:
            raise Failure("raw exception", ended.value[3][-500:])

        self.state = now = self._one_of(states, "after the strike")
        which = "new" if new is not None and now is not old else "old"
        if new is not None and old.same(new):
            which = "same"
        if ended.how == "done" and which == "old" and new is not None:
            raise Failure("acknowledged and lost", f"{what.name}; {old.differs(new)}")
        if ended.how == "raised" and which == "new" and new is not None:
            self._attack.counts["refused, yet committed"] += 1
            if AS_BEFORE in ended.value[2]:
                raise Failure("an error says that the index is as before, and it is not", ended.value[2])
        outcome = {"done": "finished", "crash": "killed", "raised": "refused"}[ended.how]
        self._attack.counts[f"{outcome}: {which}"] += 1
        notes: list[tuple[Reader, Any]] = []
        for _ in range(rng.choice([0, 1, 2])):  # nobody but readers in between
            if self._readers and rng.random() < 0.3:
                self._end(self._readers.pop(), rng, notes)
            self._still(states, "beside readers")
        if rng.random() < 0.3:
            self._end_all(rng, notes)
            self._still(states, "once the readers had gone")
        states, writer = self._next_writer(rng, states)
        self._still(states, "after the next writer")
        self._end_all(rng, notes)
        self._still(states, "once all had gone")
        self._check_notes(notes, states, gone=new if which == "old" else None)
        self._verify(after=writer)
        self._still(states, "after verify")

    # ---- the parts of an episode ---------------------------------------------------------------------

    def _operation(self, rng: random.Random, among: list[str]) -> Operation:
        name = rng.choice(among)
        seed = rng.randrange(10**6)
        there = [*self.state.items]
        if len(there) < {"remove": 30, "replace": 1}.get(name, 0):
            name = "add"
        if name in ("add", "update"):
            n = rng.choice([1, 3, 30]) if name == "add" else rng.choice([5, 30])
            self._next_id += n
            return Operation(name, seed, tuple(range(self._next_id - n, self._next_id)))
        if name in ("remove", "replace", "refused add"):
            k = min(len(there), rng.choice([1, 3, 15]))
            return Operation(name, seed, tuple(rng.sample(there, k)))
        return Operation(name, seed)

    def _rehearse(self, what: Operation, old: State, timed: bool) -> tuple[State | None, Calls, float]:
        """(state after it, system calls, seconds) of an operation on a copy; no state where it is refused."""
        copied(self.folder, self._copy)

        def work() -> tuple[list[bytes] | None, Calls]:
            if self._shim and not timed:
                self._shim.arm(self._copy, -1, COUNT)
            codes = perform(self._copy, what)
            return codes, self._shim.seen() if self._shim else Calls()

        began = time.monotonic()
        ended = forked(work)
        seconds = time.monotonic() - began
        if ended.how == "raised" and ended.value[1]:
            return None, Calls(), seconds
        if ended.how != "done":
            raise Failure("a writer on a copy", str(ended.value)[-500:])
        codes, calls = ended.value
        new = self._look(self._copy)
        expected = what.on({*old.items})
        if expected is not None and expected != {*new.items}:
            raise Failure("other ids than were given", f"{what.name}; {old.differs(new)}")
        kept = {*old.items} & {*new.items} - {*what.ids}
        if expected is not None and any(old.items[i] != new.items[i] for i in kept):
            raise Failure("other items changed", f"{what.name}; {old.differs(new)}")
        if codes and [new.items[i][0] for i in what.ids] != codes:
            raise Failure("other codes than encode gives", what.name)
        return new, calls, seconds

    def _strike(self, what: Operation, strike: Strike, calls: Calls, seconds: float) -> Ended:
        armed = {
            "die before": DIE_BEFORE,
            "die after": DIE_AFTER,
            "once": ONCE,
            "always": ALWAYS,
            "short": SHORT,
        }
        mode = armed.get(strike.kind)

        def work() -> None:
            if mode is not None and self._shim is not None:
                self._shim.arm(self.folder, calls.at(strike.at, strike.commit), mode, strike.error)
            perform(self.folder, what)

        log = self.folder / "catalog.db-wal"
        size = log.stat().st_size if log.exists() else -1
        child, answer = spawn(work)
        if mode is None:
            end = time.monotonic() + seconds * 1.5
            if strike.kind == "log grows":
                while time.monotonic() < end:
                    if (log.stat().st_size if log.exists() else -1) > size:
                        break
                time.sleep(strike.at * 0.004)
            else:
                time.sleep(strike.at * seconds)
            if not readable(answer, 0):
                os.kill(child, signal.SIGKILL)
        return wait(child, answer)

    def _next_writer(self, rng: random.Random, states: list[State]) -> tuple[list[State], str]:
        """A writer that nobody strikes; the states that readers may have seen by now, and what it did."""
        what = self._operation(rng, NEXT)
        if what.name == "none" or (what.name == "refused add" and not what.ids):
            return states, "none"
        ended = forked(lambda: perform(self.folder, what))
        self._tell(f"next writer: {what.name} of {len(what.ids)}: {ended.how}")
        refused = ended.how == "raised" and ended.value[1]
        if ended.how != "done" and not (refused and what.name == "refused add"):
            text = ended.value[2] if ended.how == "raised" else str(ended.value)
            raise Failure("lost" if refused else "next writer", f"{what.name}: {text[-300:]}")
        if ended.how == "done" and what.name == "refused add":
            raise Failure("an id in use was taken", str(what.ids))
        before, now = self.state, self._look()
        if (expected := what.on({*before.items})) != {*now.items}:
            raise Failure("a round came or went by itself", f"{what.name}; {before.differs(now)}")
        touched = {*what.ids} if what.name in ("add", "update") else set()
        if any(before.items[i] != now.items[i] for i in (expected or set()) - touched):
            raise Failure("other items changed", f"{what.name}; {before.differs(now)}")
        self.state = now
        return [*states, now], what.name

    def _verify(self, after: str) -> None:
        """Sound, but that nobody may have committed since a writer died, and cleared up what it left."""
        from woh_faiss import WOHIndex

        ended = forked(lambda: WOHIndex.verify(self.folder))
        faults = ended.value if ended.how == "done" else [str(ended.value)]
        if all(LEFT in fault for fault in faults) and after not in ("add", "update"):
            if faults:
                self._attack.counts["left by a writer that died"] += 1
        elif faults:
            raise Failure("verify tells faults", f"after {after}: {str(faults)[:400]}")

    def _check_notes(self, notes: list[tuple[Reader, Any]], states: list[State], gone: State | None) -> None:
        for reader, noted in notes:
            for found in noted:
                if reader.kind == "verify" and all(LEFT in fault for fault in found):
                    continue
                if reader.kind == "verify":
                    raise Failure("verify tells faults beside a writer", str(found)[:400])
                self._attack.counts["answers checked"] += 1
                if not any(state.answers(*found) for state in states):
                    if gone is not None and gone.answers(*found):
                        raise Failure("seen, then gone", "a reader answered from a round that was not kept")
                    raise Failure("a reader answers wrongly", str(found)[:300])

    def _end(self, reader: Reader, rng: random.Random, notes: list[tuple[Reader, Any]]) -> None:
        notes.append((reader, reader.end(kill=rng.random() < 0.5)))

    def _end_all(self, rng: random.Random, notes: list[tuple[Reader, Any]]) -> None:
        while self._readers:
            self._end(self._readers.pop(), rng, notes)

    def _look(self, folder: Path | None = None) -> State:
        ended = forked(lambda: look(folder or self.folder, self._codes))
        if ended.how == "done":
            found: State = ended.value
            self._codes.update({i: item[0] for i, item in found.items.items()})
            return found
        text = ended.value[2] if ended.how == "raised" else str(ended.value)
        if ended.how == "raised" and ended.value[0] == "ValueError":
            raise Failure("answers wrongly", text[-300:])
        raise Failure("lost" if ended.how == "raised" else ended.how, text[-300:])

    def _one_of(self, states: list[State], when: str) -> State:
        found = self._look()
        for state in states:
            if state.same(found):
                return state
        raise Failure("neither old nor new", f"{when}; {states[0].differs(found)}")

    def _still(self, states: list[State], when: str) -> None:
        found = self._look()
        self._attack.counts["looks"] += 1
        if not found.same(self.state):
            raise Failure("a round came or went by itself", f"{when}; {self.state.differs(found)}")

    def _tell(self, line: str) -> None:
        self.story.append(f"{time.time():.3f} {line}")


def live(attack: Attack, shim: Shim | None, strikes: Callable[[random.Random], Strike]) -> None:
    """Episode after episode until the time is up."""
    life = Life(attack, shim)
    for number, rng in attack.rounds():
        try:
            life.episode(rng, strikes(rng))
        except Failure as failure:
            attack.fail(failure, number, life.folder, "\n".join(life.story[-40:]))
            life.begin()
    removed(attack.folder)
