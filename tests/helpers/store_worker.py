"""Processes that die, hold the lock, fork or lack permissions, for test_store_*.py; also their shared data.

Run as ``python store_worker.py MODE ARGUMENT...``; answers are JSON lines on stdout. `ask` has a process that
waits for more than one.
"""

from __future__ import annotations

import atexit
import gc
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from crash_injection import deadly

from woh_faiss import codes as binary
from woh_faiss import score
from woh_faiss.errors import LockedError, StoreError
from woh_faiss.store import NewRound, Store, files
from woh_faiss.store.ann import build_ann, drop_ann

D = 32
CONFIG = {"bits": 12, "seed": 3}


def chunk(
    number: int, *, d: int = D, n: int = 5, kind: str = "trained", anchors: bool = False
) -> dict[str, Any]:
    """Arguments of `commit` for round `number`; codes of few values, so that ties abound."""
    rng = np.random.default_rng(number)
    return {
        "kind": kind,
        "codes": rng.integers(0, 4, size=(n, d // 8), dtype=np.uint8),
        "ids": np.arange(n, dtype=np.int64)[::-1] * 3 + 1000 * number,
        "keys": [None if i % 2 else f"photo-{number}-{i}" for i in range(n)],
        "tags": [[f"tag{number}", "ä"][: i % 3] for i in range(n)],
        "trained": n if kind == "trained" else 0,
        "seconds": 0.25,
        "model": {"P": rng.normal(size=(3, 2)), "round": np.int64(number)[None]}
        if kind == "trained"
        else None,
        "anchors": np.arange(6.0).reshape(3, 2) if anchors else None,
        "tag_rows": [(0, "ä", number, b"v"), (None, f"tag{number}", 1, None)] if kind == "trained" else [],
        "chunk_hash": f"hash{number}",
        "health": {"balance": 0.5},
    }


def commit(store: Store, **arguments: Any) -> None:
    with store.writing() as writing:
        writing.commit(NewRound(**arguments))


def dump(store: Store) -> dict[str, Any]:
    """All that a store answers, comparable."""
    ids = [
        int(i) for i in store.view.search(np.zeros((1, store.d // 8), np.uint8), max(1, store.ntotal))[1][0]
    ]
    found = [store.view.search(np.full((1, store.d // 8), v, np.uint8), 20) for v in (0, 1, 2)]
    trained = store.snapshot.model is not None
    return {
        # Of which index it is, and when: drawn and measured anew in each life.
        "snapshot": repr(replace(store.snapshot, identity="", line="", time=0.0)),
        "search": [[distances.tolist(), names.tolist()] for distances, names in found],
        "items": [repr(item) for item in store.view.items(sorted(i for i in ids if i >= 0))],
        "rounds": [{**{n: getattr(r, n) for n in r.__slots__}, "time": 0} for r in store.rounds()],
        "tags": repr(store.tag_rows()),
        "model": {name: array.tolist() for name, array in store.view.learned().items()} if trained else None,
        "early": [array.tolist() for array in store.early_features()],
    }


def faiss_bytes(codes: list[np.ndarray], d: int) -> bytes:
    """What Faiss writes for these codes."""
    index = faiss.IndexBinaryFlat(d)
    index.add(np.concatenate([np.empty((0, d // 8), np.uint8), *codes]))
    return bytes(faiss.serialize_index_binary(index))


def answer(value: Any) -> None:
    """One JSON line for the process that asked."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def forked(work: Callable[[], Any]) -> tuple[int, str]:
    """(wait status, answer as text) of `work` in a process of its own."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reader)
            os.write(writer, json.dumps(work()).encode())
            code = 0
        except BaseException:  # the child must not go on as its parent
            os.write(writer, traceback.format_exc().encode())
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    return os.waitpid(child, 0)[1], text


# ---- death at every step ---------------------------------------------------------------------------


def build(path: Path, rounds: int) -> None:
    with Store.create(path, config=CONFIG, d=D) as store:
        for number in range(1, rounds + 1):
            commit(store, **chunk(number, anchors=number == 1))


def run(path: Path, **arguments: Any) -> None:
    with Store.open(path) as store:
        commit(store, **arguments)


def die_at(number: int | str) -> list[str]:
    """From now on the process dies at the `number`-th step, or at the first of that name; returns the log."""
    log: list[str] = []

    def on_step(name: str) -> None:
        if number in (len(log), name):
            os.kill(os.getpid(), signal.SIGKILL)
        log.append(name)

    files.on_step = on_step
    return log


def interrupted(path: Path, step: str) -> None:
    """An index whose third round died at `step`."""
    build(path, 2)

    def work() -> None:
        die_at(step)
        run(path, **chunk(3))

    status, text = forked(work)
    if not os.WIFSIGNALED(status):
        raise SystemExit(f"did not die at {step}: {text}")


#: name: (what is there before, what is done, rounds committed before, round that is being done)
SCENARIOS: dict[str, tuple[Callable[[Path], None], Callable[[Path], None], int]] = {
    "create": (lambda path: None, lambda path: Store.create(path, config=CONFIG, d=D).close(), 0),
    "first": (lambda path: build(path, 0), lambda path: run(path, **chunk(1, anchors=True)), 0),
    "trained": (lambda path: build(path, 3), lambda path: run(path, **chunk(4)), 3),
    "encoded": (lambda path: build(path, 2), lambda path: run(path, **chunk(3, kind="encoded")), 2),
    "after a death before COMMIT": (
        lambda path: interrupted(path, "before COMMIT"),
        lambda path: run(path, **chunk(3, n=2)),
        2,
    ),
    "after a death before the patch": (
        lambda path: interrupted(path, "before patch codes.faiss"),
        lambda path: run(path, **chunk(4, kind="encoded")),
        3,
    ),
}


def state(path: Path) -> Any:
    try:
        with Store.open(path) as store:
            return dump(store)
    except StoreError as error:
        if not str(error).startswith("no index at "):
            raise
        return None


def recovered(path: Path, rounds: int, last: list[np.ndarray]) -> list[str]:
    """The next commits after a death leave the files as if nobody had died; returns their names."""
    if not (path / "catalog.db").exists():
        Store.create(path, config=CONFIG, d=D).close()
    with Store.open(path) as store:
        for _ in range(2):  # the second one finds the tidy index of the first
            number = store.snapshot.round + 1
            commit(store, **chunk(number, n=3, kind="encoded"))
            last = [*last, chunk(number, n=3)["codes"]]
        if (path / "codes.faiss").read_bytes() != faiss_bytes(last, D):
            raise AssertionError("codes.faiss is not what Faiss writes")
        if (path / "ids.i64").stat().st_size != 8 * store.ntotal:
            raise AssertionError("ids.i64 has another length")
        return sorted(name for name in store.sizes() if not name.startswith("catalog.db"))


def deaths(name: str, folder: str) -> None:
    """For every step of a scenario that `deadly` has: die there, look from a new process, commit again."""
    before, act, done = SCENARIOS[name]
    base = Path(folder) / "base.woh"
    before(base)

    def copy(to: str) -> Path:
        path = Path(folder) / to
        if base.exists():
            shutil.copytree(base, path)
        return path

    def tried(path: Path, number: int) -> list[str]:
        log = die_at(number)
        act(path)
        return log

    old = forked(lambda: state(copy("old.woh")))[1]
    path = copy("new.woh")
    steps = json.loads(forked(lambda: tried(path, -1))[1])
    new = forked(lambda: state(path))[1]
    base_codes = [chunk(number)["codes"] for number in range(1, done + 1)]
    with Store.open(path) as store:
        size = store.ntotal - sum(map(len, base_codes))
    answer(steps)
    for number in deadly(steps):
        step, path = steps[number], copy(f"{number}.woh")
        status, text = forked(lambda path=path, number=number: tried(path, number))
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        seen = forked(lambda path=path: state(path))[1]
        committed = [*base_codes, chunk(done + 1, n=size)["codes"]] if seen == new else base_codes
        status, text = forked(lambda path=path, codes=committed: recovered(path, done, codes))
        which = "old" if seen == old else "new" if seen == new else f"neither: {seen}"
        answer({"step": step, "killed": killed, "state": which, "status": status, "files": text})
        shutil.rmtree(path)


def deriving(name: str, folder: str) -> None:
    """For every such step of making or dropping an approximate index: die there, look, then write on."""
    base = Path(folder) / "base.woh"
    build(base, 3)
    with Store.open(base) as store:
        build_ann(store, "ivf", {"nlist": 2, "nprobe": 2}, D, 0, 10.0)
    acts: dict[str, Callable[[Store], Any]] = {
        "again": lambda store: build_ann(store, "ivf", {"nlist": 3, "nprobe": 3}, D, 0, 10.0),
        "drop": lambda store: drop_ann(store, "ivf", 10.0),
        "compact": lambda store: store.compact(),
    }

    def tried(path: Path, number: int) -> list[str]:
        with Store.open(path) as store:
            if name == "compact":
                with store.writing() as writing:
                    writing.remove([1000])
            log = die_at(number)
            acts[name](store)
        return log

    def copy(to: str) -> Path:
        return Path(shutil.copytree(base, Path(folder) / to))

    steps = json.loads(forked(lambda: tried(copy("whole.woh"), -1))[1])
    answer(steps)
    # Until it is committed, compact has nothing to do with approximate indexes.
    first = steps.index("before COMMIT") if name == "compact" else 0
    for number in deadly(steps):
        if number < first:
            continue
        path = copy(f"{number}.woh")
        status, _ = forked(lambda path=path, number=number: tried(path, number))
        seen = json.loads(forked(lambda path=path: by_ann(path))[1])
        text = forked(lambda path=path: run(path, **chunk(9, n=4, kind="encoded")))[1]
        after = json.loads(forked(lambda path=path: by_ann(path))[1])
        names = sorted(file.name for file in path.glob("ann-*"))
        answer([number, os.WIFSIGNALED(status), seen, text, after, names, Store.verify(path)])
        shutil.rmtree(path)


def early(number: int, n: int = 5) -> dict[str, Any]:
    """What a round of `chunk` has besides if its features are kept."""
    return {"early": np.random.default_rng(number).normal(size=(n, 6)).astype(np.float32)}


def recoded(number: int, rows: int) -> dict[str, Any]:
    """What a round of `chunk` has besides if it brings codes for the rows before."""
    codes = np.random.default_rng([7, number]).integers(0, 4, size=(rows, D // 8), dtype=np.uint8)
    return {"recoded": codes}


def build_early(path: Path) -> None:
    """Two rounds with features, one without, items removed and replaced, an approximate index; 15 rows."""
    with Store.create(path, config=CONFIG, d=D) as store:
        commit(store, **chunk(1, anchors=True), **early(1))
        commit(store, **chunk(2), **early(2))
        commit(store, **{**chunk(3, n=3, kind="encoded"), "remove": [1000, 2003]})
        ids = np.array([1003, 9000])
        commit(store, **{**chunk(4, n=2, kind="encoded"), **early(4, 2), "ids": ids, "remove": [1003]})
        build_ann(store, "ivf", {"nlist": 2, "nprobe": 2}, D, 0, 10.0)


def recoding(folder: str) -> None:
    """For every such step of a round with other codes: die there beside a reader, look, then write on."""
    base = Path(folder) / "base.woh"
    build_early(base)

    def tried(path: Path, number: int) -> list[str]:
        log = die_at(number)
        run(path, **chunk(5), **recoded(5, 15))
        return log

    def copy(to: str) -> Path:
        return Path(shutil.copytree(base, Path(folder) / to))

    def found(store: Store) -> list[Any]:
        queries = np.array([[value] * (D // 8) for value in range(4)], np.uint8)
        return [
            *(array.tolist() for array in store.view.search(queries, 30)),
            store.view.mapped.codes.tolist(),
        ]

    def after(path: Path) -> tuple[Any, list[str], str]:
        """What is there once another round is written, whoever died: all that it is, and the files."""
        run(path, **chunk(6, kind="encoded"))
        hashes = {
            p.name: hashlib.sha256(p.read_bytes()).hexdigest()
            for p in path.iterdir()
            if not p.name.startswith(("catalog.db", "ann-"))
        }
        return state(path), Store.verify(path), json.dumps(hashes, sort_keys=True)

    old = forked(lambda: state(copy("old.woh")))[1]
    old_after = forked(lambda: after(copy("old-after.woh")))[1]
    path = copy("new.woh")
    steps = json.loads(forked(lambda: tried(path, -1))[1])
    new = forked(lambda: state(path))[1]
    new_after = forked(lambda: after(path))[1]
    answer(steps)
    for number in deadly(steps):
        step, path = steps[number], copy(f"{number}.woh")
        with Store.open(path) as reader:
            answers = found(reader)
            status, _ = forked(lambda path=path, number=number: tried(path, number))
            kept = found(reader) == answers
            seen = forked(lambda path=path: state(path))[1]
            moved = reader.refresh()
            follows = json.loads(json.dumps(dump(reader))) == json.loads(seen)
            now = found(reader)
            last = forked(lambda path=path: after(path))[1]
            kept = kept and found(reader) == now
        which = "old" if seen == old else "new" if seen == new else f"neither: {seen}"
        expected = {"old": old_after, "new": new_after}.get(which)
        names = sorted(p.name for p in path.iterdir() if not p.name.startswith("catalog.db"))
        answer(
            {
                "step": step,
                "killed": os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL,
                "state": which,
                "reader": [kept, moved, follows],
                "after": last == expected,
                "files": names,
            }
        )
        shutil.rmtree(path)


def by_ann(path: Path) -> list[list[Any]]:
    """Name of each approximate index, and whether it (which looks everywhere) answers as the scan does."""
    h = numbers(np.array([[value] * (D // 8) for value in range(4)], np.uint8))
    with Store.open(path) as store:
        expected = store.view.score_scan(D, 0).search(h, None, 30)
        found = []
        for made in store.snapshot.ann:
            got = store.ann_scan(store.view, made.kind, D, 0).search(h, None, 30)
            found.append([made.name, all(map(np.array_equal, got, expected))])
        return found


def numbers(codes: Any) -> Any:
    """Queries by score: each bit of codes as -1 or 1."""
    return score.normalised(binary.unpack(codes))


# ---- other processes -------------------------------------------------------------------------------


def hold(path: str) -> None:
    """Take the lock, say so, wait for a line, commit round 1, say so."""
    with Store.open(path) as store, store.writing() as writing:
        answer("held")
        sys.stdin.readline()
        writing.commit(NewRound(**chunk(1)))
    answer("committed")


def try_write(path: str) -> None:
    """The message of a writer that does not wait."""
    try:
        with Store.open(path) as store, store.writing(timeout=0.05):
            answer("got the lock")
    except LockedError as error:
        answer(str(error))


def fork_after_search(path: str) -> None:
    """Search on several threads, then in a forked child, which an alarm would end if it hung."""
    with Store.open(path) as store:
        faiss.omp_set_num_threads(2)
        queries = np.zeros((5000, store.d // 8), np.uint8)  # enough work for the store to use threads
        expected = store.view.search(queries, 3)[1].tolist()

        def child() -> bool:
            signal.alarm(600)
            return (
                store.view.search(queries, 3)[1].tolist() == expected and len(store.view.items([1000])) == 1
            )

        answer(forked(child)[1])


def fork_by_ann(path: str) -> None:
    """As `fork_after_search`, by an approximate index that the parent has read, then reads again."""
    with Store.open(path) as store:
        faiss.omp_set_num_threads(2)
        h = numbers(np.zeros((5000, store.d // 8), np.uint8))

        def found() -> Any:
            return store.ann_scan(store.view, "ivf", D, 0).search(h, None, 3)[1].tolist()

        expected = found()

        def child() -> bool:
            signal.alarm(600)
            again = found() == expected
            store._anns.clear()
            return again and found() == expected

        answer(forked(child)[1])


def unprivileged(path: str) -> None:
    """Snapshot, ids found, and the message of a refused update, as a user who may only read."""
    import woh_faiss.store.write_transaction  # noqa: F401 - what it needs, while it still may

    update = chunk(9)
    if os.geteuid() == 0:
        os.setuid(65534)
    try:
        with Store.open(path) as store:
            items = store.view.items(store.view.search(np.zeros((1, store.d // 8), np.uint8), 3)[1])
            found = f"{store.snapshot} {[item.id for item in items]}"
            try:
                commit(store, **update)
                refused = "wrote"
            except StoreError as error:
                refused = str(error)
    except StoreError as error:
        found, refused = str(error), ""
    answer([found, refused])


MODES: dict[str, Callable[..., None]] = {
    "deaths": deaths,
    "hold": hold,
    "try_write": try_write,
    "fork_after_search": fork_after_search,
    "deriving": deriving,
    "recoding": recoding,
    "fork_by_ann": fork_by_ann,
    "unprivileged": unprivileged,
}


def serve() -> None:
    """Each line of stdin, a mode and its arguments, in a fork, which need not import everything."""
    for line in sys.stdin:
        mode, *arguments = json.loads(line)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.alarm(600)
                MODES[mode](*arguments)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        answer({"ended": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])})


@cache
def _server() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, __file__, "serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    atexit.register(process.communicate)
    return process


def ask(*arguments: object) -> list[Any]:
    """The answers of a mode, from a process that is no child of this one."""
    process = _server()
    assert process.stdin
    assert process.stdout
    print(json.dumps(list(map(str, arguments))), file=process.stdin, flush=True)
    answers: list[Any] = []
    for line in process.stdout:
        answers.append(json.loads(line))
        if isinstance(answers[-1], dict) and "ended" in answers[-1]:
            assert answers.pop() == {"ended": 0}, answers
            return answers
    raise AssertionError(answers)


if __name__ == "__main__":
    gc.freeze()  # a forked child copies less
    {**MODES, "serve": serve}[sys.argv[1]](*sys.argv[2:])
