"""Every call of writing files whole, inside COMMIT, or inside settling, x every kind of reader x next writer.

Run under the shim (`faults.preloaded`). argv: a folder, "commit", "writing" or "settling", operations with
commas between them, and "all" or how many combinations of each. Prints for each operation a JSON line for
each combination that is not as promised, then one of counts.
By hand: `python tests/helpers/faults.py FOLDER commit add all`.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import random
import shutil
import signal
import sqlite3
import sys
from collections import Counter
from contextlib import suppress
from itertools import product
from pathlib import Path

import faults
import numpy as np
from made_items import SMALL, tagged

from woh_faiss import WOHIndex, codes
from woh_faiss.errors import InputError, StoreError
from woh_faiss.store import NewRound, catalog, codefile, database, files, schema

#: Seconds that a process waits for a lock: where taking it fails each time, it waits for all of them.
PATIENCE = 0.2
database._READER_PATIENCE = PATIENCE
X = np.random.default_rng(5).normal(size=(12, 7)).astype(np.float32)
FAULTS = {
    "kill": (faults.KILL, 0),
    "EIO": (faults.FAIL, errno.EIO),
    "ENOSPC from then on": (faults.FAIL_FROM_THEN_ON, errno.ENOSPC),
    "delay": (faults.DELAY, 3000),
}
#: What all combinations are made of; a sample has errors that stay, too.
EACH = ("kill", "EIO", "delay")
CANNOT_FAIL = ("mutex", "close", "munmap", "mmap", "mmap64")
rng = random.Random(1)  # noqa: S311
READERS = ("none", "idle", "in a transaction", "just closing", "verify")


def can_meet(call, fault):
    """Whether a call can have this fault; SQLite's memory barrier is where a process may die."""
    if call == "mutex":
        return fault == "kill"
    return fault in ("kill", "delay") or call not in CANNOT_FAIL


def add(index):
    more = {"size": range(5), "new": ["a", None, "b", "", "c"]}
    metadata = {name: list(values) for name, values in more.items()}
    names = {"ids": range(7000, 7005), "keys": [f"x{i}" for i in range(5)]}
    index.add(X[:5], **names, metadata=metadata, timeout=PATIENCE)


def refused(index):
    with suppress(InputError):
        index.add(X[:1], ids=[0])
    assert index.ntotal


def put(index, X_, ids, **more):
    """Items whose codes come from elsewhere, as a round of the store."""
    what = {
        "codes": codes.pad(index.encode(X_)),
        "ids": ids,
        "keys": [None] * len(X_),
        "tags": [[]] * len(X_),
    }
    with index.store.writing(timeout=PATIENCE) as writing:
        writing.commit(NewRound("encoded", **what, **more))


def recode(index):
    """Codes for all rows there are, and items besides."""
    width = index.store.d // 8
    made = np.arange(index.store.snapshot.rows * width, dtype=np.uint8).reshape(-1, width)
    put(index, X[:5], np.arange(9000, 9005), recoded=made)


def rolled_back(index):
    """Refused where all rows have other codes by then."""
    with suppress(InputError):
        index.rollback(2, timeout=PATIENCE)


VICTIMS = {
    "add": add,
    "update": lambda index: index.update(*tagged(7, n=12), timeout=PATIENCE),
    "remove": lambda index: index.remove([3, 44], timeout=PATIENCE),
    "compact": lambda index: index.compact(timeout=PATIENCE),
    "rollback": lambda index: index.rollback(2, timeout=PATIENCE),
    "recode": recode,
}
WRITERS = {
    "add": lambda index: index.add(X[5:9], ids=range(8000, 8004), timeout=PATIENCE),
    "update": lambda index: index.update(*tagged(8, n=12), timeout=PATIENCE),
    "remove": lambda index: index.remove([5, 50], timeout=PATIENCE),
    "no-op": lambda index: index.remove([999999], ignore_missing=True, timeout=PATIENCE),
    "refused": refused,
    "compact": lambda index: index.compact(timeout=PATIENCE),
    "rollback": rolled_back,
    "none": None,
}


def start(path):
    with WOHIndex.create(path, **SMALL, keep_models=9) as index:
        for seed in range(2):
            X_, tags = tagged(seed)
            # One tag each: of tags that are never together no vectors are learned, and gensim, whose import
            # takes as long as ten combinations, is not needed.
            names = [f"{seed}/{i}" for i in range(40)]
            metadata = {"size": np.arange(40), "price": np.arange(40) / 8}
            index.update(X_, [given[:1] for given in tags], keys=names, metadata=metadata)
        index.remove([1, 41])
        put(index, X[9:], np.array([5000, 6000, 6001]), early=X[9:])


def tables(connection):
    """Rows of all tables, without what the clock says."""
    found = {}
    names = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    for (name,) in names:
        rows = connection.execute(f"SELECT * FROM {name}").fetchall()  # noqa: S608
        if name == "rounds":  # time, seconds, and the checksum of all
            rows = [tuple(cell for at, cell in enumerate(row[:-1]) if at not in (1, 13)) for row in rows]
        if name == "meta":  # sums of times, and what is drawn at random
            rows = [row for row in rows if row[0] in ("config", "d")]
        found[name] = rows
    return found


def state(path):
    """What anybody sees: a reader's tables, and codes and ids as far as they count rows."""

    def look(connection):
        with database.moment(connection):
            return catalog.snapshot(connection), tables(connection)

    seen, found = database.read(path, look)
    d = int(dict(found["meta"])["d"])
    codes = files.newest(path, schema.CODES, seen.generation).read_bytes()[33 : codefile.end(d, seen.rows)]
    ids = files.newest(path, schema.IDS, seen.generation).read_bytes()[: 8 * seen.rows]
    assert len(ids) == 8 * seen.rows
    return repr([seen.round, seen.rows, seen.ntotal, found]), codes, ids


def whole(path):
    """Everything that a later update starts from: bytes of the files, rows of the tables."""
    return {p.name: p.read_bytes() for p in path.iterdir() if not p.name.startswith("catalog.db")}, state(
        path
    )


def end(path):
    """As `whole`, after one more update."""
    with WOHIndex.open(path) as index:
        index.update(*tagged(9, n=10))
    return whole(path)


class Child:
    """A forked process that does `work` and tells when it is ready; `finish` lets it end, `kill` ends it."""

    def __init__(self, work):
        ready_out, ready_in = os.pipe()
        self._go_out, self._go_in = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(ready_out), os.close(self._go_in)
            try:
                for _ in work():  # to its first yield it gets ready, behind it is what it does when told
                    os.write(ready_in, b"r")
                    os.read(self._go_out, 1)
            except BaseException as error:
                os.write(2, f"{error!r}\n".encode())
                os._exit(1)
            os._exit(0)
        os.close(ready_in), os.close(self._go_out)
        assert os.read(ready_out, 1) == b"r", "a reader died"
        os.close(ready_out)

    def finish(self):
        os.write(self._go_in, b"g")
        return self.wait()

    def kill(self):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def wait(self):
        os.close(self._go_in)
        pid, self.pid = self.pid, 0
        return os.waitpid(pid, 0)[1]


def reader(kind, path):
    """The generator that a reader of this kind runs."""

    def connected(*statements):
        connection = sqlite3.connect(f"{path.as_uri()}/catalog.db?mode=ro", uri=True, isolation_level=None)
        for statement in statements:
            connection.execute(statement).fetchall()
        return connection

    def hold(*statements):
        connection = connected(*statements)
        yield
        connection.close()

    def verifying():
        WOHIndex.verify(path)
        yield
        while True:  # until it is killed
            WOHIndex.verify(path)

    look = "SELECT count(*) FROM items"
    return {
        "none": None,
        "idle": lambda: hold(look),
        "in a transaction": lambda: hold("BEGIN", look),
        "just closing": lambda: hold(look),
        "verify": verifying,
    }[kind]


def injured(path, act, armed, fault, call):
    """A child that meets the fault; how it ended."""
    mode, value = FAULTS[fault]
    child = os.fork()
    if child == 0:
        try:
            with armed(faults.Shim(), mode, call, value), WOHIndex.open(path) as index:
                act(index)
        except StoreError:
            os._exit(3)
        except BaseException as error:
            os.write(2, f"{fault} at {call}: {error!r}\n".encode())
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    return (
        "killed"
        if os.WIFSIGNALED(status)
        else {0: "done", 3: "refused"}.get(os.WEXITSTATUS(status), "RAISED")
    )


class Product:
    """The combinations for one victim.

    All victims begin with `template`; `ends` is of uninterrupted lives, of which they share some.
    """

    def __init__(self, folder: Path, where: str, victim: str, template: Path, ends: dict) -> None:
        self.folder, self.where, self.victim = folder, where, VICTIMS[victim]
        self.template, self._ends = template, ends
        self.old = state(self.template)
        self.new = state(self._copy("new", self.victim))
        self._armed = faults.armed_writing if where == "writing" else faults.armed_commit
        self.prepared = None  # the call at which a COMMIT is left in doubt
        if where == "settling":  # what is settled is a COMMIT in doubt: killed once its log is on the disk
            calls = self._calls(faults.armed_commit, self.victim)
            self.prepared = max(
                i for i, name in enumerate(calls[: calls.index("stat64")]) if name == "fdatasync"
            )

    def _copy(self, name, *acts):
        path = self.folder / name
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self.template, path)
        for act in acts:
            if act is not None:
                with WOHIndex.open(path) as index:
                    act(index)
        return path

    def _calls(self, armed, act):
        """The calls that are made where no fault is, in a child."""
        path, note = self._copy("count"), self.folder / "calls"
        if self.prepared is not None:
            injured(path, self.victim, faults.armed_commit, "kill", self.prepared)
        child = os.fork()
        if child == 0:
            shim = faults.Shim()
            with armed(shim, faults.COUNT, -1), WOHIndex.open(path) as index:
                act(index)
                note.write_text(" ".join(shim.names()))
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        return note.read_text().split()

    def calls(self, writer):
        if self.where != "settling":
            return self._calls(self._armed, self.victim)
        return self._calls(faults.armed_settling, WRITERS[writer])

    def ended(self, seen, writer):
        """Of an uninterrupted life: what is seen after the writer, and the end after one more update."""
        key = self.victim if seen == self.new else None, writer
        if key not in self._ends:
            path = self._copy("life", key[0], WRITERS[writer])
            self._ends[key] = state(path), whole(path), end(path)
        return self._ends[key]

    def run(self, call, fault, kind, writer):
        """What is not as promised, or nothing; and how the victim ended."""
        path = self._copy("case")
        held = Child(reader(kind, path)) if kind != "none" else None
        next_writer = WRITERS[writer]
        try:
            if self.where != "settling":
                how = injured(path, self.victim, self._armed, fault, call)
            else:
                injured(path, self.victim, faults.armed_commit, "kill", self.prepared)
                if fault != "delay":  # the first to look decides; half of the time a reader is
                    rng.random() < 0.5 and state(path)
                how = injured(path, next_writer or (lambda index: None), faults.armed_settling, fault, call)
            if how == "RAISED":
                return "raised something else than StoreError", how
            first = state(path)
            if self.where != "settling" and first not in (self.old, self.new):
                return "neither old nor new", how
            if kind == "just closing":
                held.finish()
                held = None
            if state(path) != first:
                return "changed by itself", how
            if self.where == "settling":
                return self._settled(path, first, writer, how, held)
            if next_writer is not None:
                with WOHIndex.open(path) as index:
                    next_writer(index)
            if held is not None:
                held.kill() if kind == "verify" else held.finish()
                held = None
            after, held_files, last = self.ended(first, writer)
            if state(path) != after:
                return "not what the next writer should have left", how
            faulty = [line for line in WOHIndex.verify(path) if next_writer or "writer that died" not in line]
            if faulty:
                return f"verify: {faulty[0]}", how
            # An update is a function of what is there: to run it each time would show no more.
            if next_writer is None:
                with WOHIndex.open(path) as index:
                    WRITERS["no-op"](index)
            if whole(path) != held_files:
                return "other files than an uninterrupted life's", how
            if rng.random() < 0.05 and end(path) != last:
                return "another end than an uninterrupted life's", how
            return None, how
        except Exception as error:
            return f"refused: {error!r}"[:300], "?"
        finally:
            if held is not None:
                held.kill()

    def _settled(self, path, first, writer, how, held):
        """After a fault in settling: of both lives, one as it is without any fault."""
        lives = [self.old, self.new, self.ended(self.old, writer)[0], self.ended(self.new, writer)[0]]
        if first not in lives:
            return "a state that no life has", how
        if held is not None:
            held.kill()
        if state(path) != first:
            return "changed by itself", how
        with WOHIndex.open(path) as index:
            index.remove([999999], ignore_missing=True)
        if state(path) != first:
            return "changed by a writer that did nothing", how
        if faulty := WOHIndex.verify(path):
            return f"verify: {faulty[0]}", how
        ends = [self.ended(seen, kind)[2] for seen in (self.old, self.new) for kind in ("none", writer)]
        return (None if end(path) in ends else "another end than an uninterrupted life's"), how


def main(folder, where, victims, amount):
    folder, lives = Path(folder), {}
    folder.mkdir(parents=True, exist_ok=True)
    start(folder / "template")
    gc.freeze()  # a forked child copies less
    for victim in victims.split(","):
        one(Product(folder, where, victim, folder / "template", lives), where, victim, amount)


def one(run, where, victim, amount):
    """The combinations of one victim, or a sample of them."""
    ends, wrongs, calls = Counter(), [], {}
    cases = []
    for writer in WRITERS:
        if where == "settling" and WRITERS[writer] is None:
            continue
        names = run.calls(writer) if where == "settling" or not calls else calls["add"]
        calls[writer] = names
        cases += [
            (call, fault, kind, writer)
            for call, fault, kind in product(range(len(names)), FAULTS, READERS)
            if can_meet(names[call], fault) and (amount != "all" or fault in EACH)
        ]
    total = len(cases)
    if amount != "all":
        cases = rng.sample(cases, min(total, int(amount)))
    for case in cases:
        wrong, how = run.run(*case)
        ends[f"{case[1]}: {how}"] += 1
        if wrong:
            found = dict(zip(("call", "fault", "reader", "next"), case, strict=True), how=how, wrong=wrong)
            wrongs.append(found)
            print(json.dumps(found), flush=True)
            kept = run.folder / f"wrong-{victim}-{len(wrongs)}"
            shutil.copytree(run.folder / "case", kept, dirs_exist_ok=True)
    summary = {
        "where": where,
        "victim": victim,
        "calls": {writer: len(names) for writer, names in calls.items()},
        "combinations": total,
        "run": len(cases),
        "not as promised": len(wrongs),
        "ends": dict(sorted(ends.items())),
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main(*sys.argv[1:])
