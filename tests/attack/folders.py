"""An index folder from a stranger: members that are no plain files, and a catalogue that is a program."""

from __future__ import annotations

import os
import random
import shutil
import socket
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from flips import template, written_inputs
from harness import Attack, Failure, command, contents, copied, forked, removed
from life import Shim

#: Names that members of a folder have, in any version; and names that a writer will make.
NAMES = [
    *("catalog.db", "catalog.db-wal", "catalog.db-shm", "catalog.db-journal", "catalog.db-writer"),
    *("codes.faiss", "ids.i64", "anchors.npy", "anchors.npy.tmp", "model-1.npz", "model-6.npz"),
    *("model-7.npz", "model-7.npz.tmp", "model-9.npz", "codes.faiss.2", "ids.i64.2", "lock", "writer"),
]
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"

COUNTED = f"SELECT count(*) FROM ({ENDLESS});"  # noqa: S608 - hostile on purpose


def run(attack: Attack, shim: Shim | None) -> None:
    """Random plants and random hostile catalogues, each tried by three commands, until the time is up."""
    sound = template(attack.folder / "sound.woh")
    inputs = written_inputs(attack.folder)
    bait = attack.folder / "bait"
    for number, rng in attack.rounds():
        removed(bait)
        bait.mkdir()
        for name in ("file", "empty", "catalog.db"):
            (bait / name).write_bytes(b"" if name == "empty" else b"another's " * 50)
        shutil.copytree(sound, bait / "another.woh")
        folder = copied(sound, attack.folder / "index.woh")
        kind, story = plant(folder, bait, rng)
        tried = commands(inputs, attack.folder / "out", rng)
        before = contents(bait)
        try:
            codes = [command(*argv, "--index", str(folder)).code for argv in tried]
            attack.counts[f"{kind}: {'refused' if any(codes) else 'done'}"] += 1
            if (after := contents(bait)) != before:
                changed = {n for n in {*before, *after} if before.get(n) != after.get(n)}
                raise Failure("something outside the folder was changed", ", ".join(sorted(changed)))
        except Failure as failure:
            failure.kind = f"{story}: {failure.kind}"
            for path in folder.rglob("*"):  # a FIFO or a device in a kept folder is a trap
                if not (path.is_symlink() or path.is_file() or path.is_dir()):
                    path.unlink()
            attack.fail(failure, number, folder, f"{story}; {'; '.join(' '.join(argv) for argv in tried)}")
    removed(attack.folder)


def commands(inputs: dict[str, str], out: Path, rng: random.Random) -> list[list[str]]:
    """Arguments of a command that reads, of one that writes, and of `verify`, in any order."""
    out.unlink(missing_ok=True)
    reads = [
        ["info", "--json"],
        ["query", inputs["queries"], "-k", "3", "--json"],
        ["query", "--id", "7", "--json"],
        ["export", str(out)],
    ]
    writes = [
        ["add", inputs["more"]],
        ["update", inputs["more"]],
        ["remove", "7"],
        ["remove", "9999999", "--ignore-missing"],
        ["rollback", "1"],
        ["compact"],
    ]
    chosen = [rng.choice(reads), rng.choice(writes), ["verify"]]
    rng.shuffle(chosen)
    return chosen


def plant(folder: Path, bait: Path, rng: random.Random) -> tuple[str, str]:
    """Put something into an index folder; (kind, what exactly)."""
    if rng.random() < 0.35:
        name = rng.choice(sorted(HOSTILE))
        ended = forked(lambda: HOSTILE[name](folder, bait))
        return "hostile SQLite", name if ended.how == "done" else f"{name}, in part"
    name = rng.choice(NAMES)
    kind = rng.choice(sorted(PLANTS))
    path = folder / name
    with suppress(FileNotFoundError):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    PLANTS[kind](path, bait)
    return kind, f"{kind} at {name}"


def _socket(path: Path, bait: Path) -> None:
    del bait
    here = os.open(".", os.O_RDONLY)
    os.chdir(path.parent)  # names of sockets are short
    try:
        with closing(socket.socket(socket.AF_UNIX)) as made:
            made.bind(path.name)
    finally:
        os.fchdir(here)
        os.close(here)


def _device(path: Path, bait: Path) -> None:
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    except PermissionError:
        path.symlink_to("/dev/zero")


def _huge(path: Path, bait: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def _unreadable(path: Path, bait: Path) -> None:
    path.write_bytes(b"x" * 100)
    path.chmod(0)


PLANTS: dict[str, Callable[[Path, Path], object]] = {
    "link to a file": lambda path, bait: path.symlink_to(bait / "file"),
    "link to an empty file": lambda path, bait: path.symlink_to(bait / "empty"),
    "link to nothing": lambda path, bait: path.symlink_to(bait / "nothing"),
    "link to another index": lambda path, bait: path.symlink_to(bait / "another.woh" / path.name),
    "FIFO": lambda path, bait: os.mkfifo(path),
    "socket": _socket,
    "directory": lambda path, bait: path.mkdir(),
    "full directory": lambda path, bait: shutil.copytree(bait / "another.woh", path),
    "device": _device,
    "huge sparse file": _huge,
    "unreadable file": _unreadable,
    "empty file": lambda path, bait: path.write_bytes(b""),
}


def _sql(folder: Path, *statements: str) -> None:
    with closing(sqlite3.connect(folder / "catalog.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        for statement in statements:
            connection.execute(statement)


def _tables(folder: Path) -> list[str]:
    with closing(sqlite3.connect(folder / "catalog.db")) as connection:
        return [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]


def _endless_view(folder: Path, bait: Path) -> None:
    for table in _tables(folder):
        with closing(sqlite3.connect(folder / "catalog.db")) as connection:
            names = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
        columns = ", ".join(f'i AS "{name}"' for name in names)
        if table in ("items", "tags", "rounds"):
            _sql(
                folder,
                f'DROP TABLE "{table}"',
                f'CREATE VIEW "{table}" AS SELECT {columns} FROM ({ENDLESS})',  # noqa: S608 - hostile on purpose
            )


def _endless_triggers(folder: Path, bait: Path) -> None:
    for number, table in enumerate(_tables(folder)):
        for event in ("INSERT", "UPDATE", "DELETE"):
            _sql(
                folder,
                f'CREATE TRIGGER "t{number}{event}" AFTER {event} ON "{table}" BEGIN {COUNTED} END',
            )


def _deleting_trigger(folder: Path, bait: Path) -> None:
    _sql(folder, "CREATE TRIGGER gone AFTER INSERT ON rounds BEGIN DELETE FROM items; END")


def _virtual_table(folder: Path, bait: Path) -> None:
    _sql(folder, "DROP TABLE tags", "CREATE VIRTUAL TABLE tags USING fts5(tag, column, count)")


def _generated(folder: Path, bait: Path) -> None:
    _sql(folder, "ALTER TABLE items ADD COLUMN big AS (hex(zeroblob(100000000)))")


def _hot_journal(folder: Path, bait: Path) -> None:
    """A rollback journal of one page that names a super-journal: whoever rolls it back deletes that file."""
    _sql(folder, "PRAGMA journal_mode = DELETE")
    name = os.fsencode(bait / "file")
    magic = bytes.fromhex("d9d505f920a163d7")
    page = (folder / "catalog.db").stat().st_size // 4096
    header = magic + (0).to_bytes(4) + bytes(4) + page.to_bytes(4) + (512).to_bytes(4) + (4096).to_bytes(4)
    tail = (0x40000000 // 4096 + 1).to_bytes(4) + name + len(name).to_bytes(4) + sum(name).to_bytes(4) + magic
    (folder / "catalog.db-journal").write_bytes(header.ljust(512, b"\0") + tail)


def _another_schema(folder: Path, bait: Path) -> None:
    _sql(folder, "UPDATE sqlite_master SET sql = replace(sql, 'TEXT', 'TEXD')")


def _recursive_schema(folder: Path, bait: Path) -> None:
    _sql(folder, "DROP TABLE tags", "CREATE VIEW tags AS SELECT * FROM tags")


def _text_for_numbers(folder: Path, bait: Path) -> None:
    _sql(folder, 'UPDATE rounds SET n = "many"', 'UPDATE meta SET value = "{" WHERE name = "state"')


def _deep_json(folder: Path, bait: Path) -> None:
    with closing(sqlite3.connect(folder / "catalog.db", isolation_level=None)) as connection:
        connection.execute("UPDATE items SET tags = ?", ("[" * 200_000 + "]" * 200_000,))
        connection.execute("UPDATE meta SET value = ? WHERE name = 'config'", ("[" * 200_000,))


def _huge_numbers(folder: Path, bait: Path) -> None:
    _sql(folder, "UPDATE rounds SET end_row = 9223372036854775807, first_row = -9223372036854775808")


def _escaping_names(folder: Path, bait: Path) -> None:
    with closing(sqlite3.connect(folder / "catalog.db", isolation_level=None)) as connection:
        connection.execute("UPDATE rounds SET model = ?", (f"../{bait.name}/file",))
        connection.execute(
            "UPDATE meta SET value = replace(value, 'model-', ?) WHERE name = 'state'",
            (f"../{bait.name}/model-",),
        )


HOSTILE: dict[str, Callable[[Path, Path], None]] = {
    "endless views": _endless_view,
    "endless triggers": _endless_triggers,
    "a trigger that deletes": _deleting_trigger,
    "a virtual table": _virtual_table,
    "a generated column": _generated,
    "a hot journal with a super-journal": _hot_journal,
    "another schema": _another_schema,
    "a view of itself": _recursive_schema,
    "text for numbers": _text_for_numbers,
    "deep JSON": _deep_json,
    "huge numbers": _huge_numbers,
    "model names outside": _escaping_names,
}
