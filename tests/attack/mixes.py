"""Files of two moments of an index, or of two indexes, put together in one folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from flips import log_kept, write, written_inputs
from harness import Attack, Failure, command, contents, copied, forked, removed
from life import LEFT, Shim
from model import CONFIG, State, features, look

#: What SQLite may change beside a reader.
SHARED = ("catalog.db-shm", "catalog.db-wal")
WRITES = ["add", "remove", "compact", "rollback"]


def run(attack: Attack, shim: Shim | None) -> None:
    """Random mixtures of two out of six folders until the time is up."""
    moments = made(attack.folder / "moments")
    states = {name: seen(copied(folder, attack.folder / "look.woh")) for name, folder in moments.items()}
    inputs = written_inputs(attack.folder)
    for number, rng in attack.rounds():
        base, other = rng.sample(sorted(moments), 2)
        folder = copied(moments[base], attack.folder / "index.woh")
        names = sorted({path.name for name in (base, other) for path in moments[name].iterdir()})
        # One or two files are what people mix up; any set is what a copy in the middle of a write gives.
        chosen = rng.sample(names, rng.choice([1, 1, 2, rng.randrange(1, len(names))]))
        for name in chosen:
            source = moments[other] / name
            (folder / name).unlink(missing_ok=True)
            if source.exists():
                shutil.copyfile(source, folder / name)
        story = f"{', '.join(sorted(chosen))} of '{other}' in '{base}'"
        try:
            attack.counts[tried(folder, states, inputs, rng.choice(WRITES))] += 1
        except Failure as failure:
            attack.fail(failure, number, folder, story)
    removed(attack.folder)


def made(folder: Path) -> dict[str, Path]:
    """Folders of moments of one index, and of another index."""
    index, other = folder / "index.woh", folder / "other.woh"

    def keep(name: str) -> None:
        copied(index, folder / name)

    def make() -> None:
        from woh_faiss import WOHIndex

        folder.mkdir()
        with WOHIndex.create(other, **CONFIG) as it:
            it.update(*features(11, 40))
            it.update(*features(12, 10))
        with WOHIndex.create(index, **CONFIG) as it:
            it.update(*features(1, 40))
        keep("early")
        with WOHIndex.open(index) as it:
            it.update(*features(2, 10))
        keep("later")
        with log_kept(index), WOHIndex.open(index) as it:
            it.add(features(3, 10)[0])
            keep("with a log")
            it.remove([3, 4])
        keep("removed")
        with WOHIndex.open(index) as it:
            it.compact()
        keep("compacted")
        copied(folder / "later", index)
        with WOHIndex.open(index) as it:
            it.rollback(1)
            it.update(*features(5, 10))
        keep("another way")

    ended = forked(make)
    if ended.how != "done":
        raise SystemExit(f"no index can be made with this checkout: {ended.value}")
    removed(index)
    return {path.name: path for path in folder.iterdir()}


def seen(folder: Path) -> State | str:
    """The state that a folder answers from, or the line it is refused with; Failure for anything else."""
    ended = forked(lambda: look(folder))
    if ended.how == "done":
        found: State = ended.value
        return found
    if ended.how != "raised":
        raise Failure(ended.how, f"look: {ended.value}")
    if ended.value[0] == "ValueError":
        return f"WRONG {ended.value[2]}"
    if not ended.value[1]:
        raise Failure("traceback", f"look: {ended.value[3][-400:]}")
    return str(ended.value[2])


def tried(folder: Path, states: dict[str, Any], inputs: dict[str, str], what: str) -> str:
    """What became of a mixture: refused, or right as one of the moments."""
    where = ("--index", str(folder))
    before = contents(folder)
    found = seen(folder)
    told = command("verify", *where)
    command("query", "--id", "7", "--json", *where)
    command("info", "--json", *where)
    after = contents(folder)
    right = isinstance(found, State) and any(
        isinstance(state, State) and found.same(state) for state in states.values()
    )
    # Where all is right, SQLite may write what its log says into the catalogue; not another one's.
    may = (*SHARED, "catalog.db") if right else SHARED
    changed = [name for name in before if name not in may and before[name] != after.get(name)]
    if changed:
        raise Failure(f"a command that only reads changed {', '.join(changed)}", str(found)[-200:])
    if isinstance(found, str) and not found.startswith("WRONG"):
        check_refused(folder, inputs, what)
        return "refused"
    if not right or not isinstance(found, State):
        wrong = found if isinstance(found, str) else "answers as none of the moments"
        raise Failure("WRONG until verify" if told.code else "WRONG and not found by verify", wrong)
    told_faults = [line for line in told.out.splitlines() if LEFT not in line]
    rows = kept_rows(folder)
    write(folder, inputs, what, refused_before=False)
    now = seen(folder)
    if isinstance(now, str):
        raise Failure(f"{what}, then all is refused", now[-300:])
    gone = {7} if what == "remove" else set()
    lost = [i for i in {*found.items} - gone if now.items.get(i) != found.items[i]]
    if lost and what != "rollback":
        raise Failure(f"{what} lost what was right", f"items {lost[:5]}")
    if told_faults and what in ("add", "remove") and (cut := shorter(folder, rows)):
        raise Failure(f"{what} cut what verify says has lost rounds", f"{', '.join(cut)}: {told_faults[0]}")
    return "right, and verify tells" if told_faults else "right"


def kept_rows(folder: Path) -> dict[str, bytes]:
    """Contents of the files that hold what was learned or given: it may be all there is."""
    return {
        name: data
        for name, data in contents(folder).items()
        if name.startswith(("codes.faiss", "ids.i64", "model-", "anchors")) and isinstance(data, bytes)
    }


def shorter(folder: Path, before: dict[str, bytes]) -> list[str]:
    """The files of `kept_rows` that are gone or were cut, or whose rows were changed."""
    after = kept_rows(folder)
    header = 33  # of the codes file, which counts them
    return [
        name for name, data in before.items() if not after.get(name, b"")[header:].startswith(data[header:])
    ]


def check_refused(folder: Path, inputs: dict[str, str], what: str) -> None:
    """What readers refuse no writer makes worse."""
    before = kept_rows(folder)
    write(folder, inputs, what, refused_before=True)
    if (cut := shorter(folder, before)) and not isinstance(seen(folder), State):
        raise Failure(f"{what} cut or deleted files of an index that is refused", ", ".join(cut))
