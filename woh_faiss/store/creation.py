"""A new index folder: made by one process alone, and there is no index before the catalogue has its name."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from woh_faiss.errors import InputError, StoreError

from . import codefile, database, files, schema, table_checksums
from .records import State


def create(folder: Path, config: dict[str, Any], d: int) -> None:
    """An empty index in `folder`; see `Store.create`."""
    try:
        text = json.dumps(config)
    except (TypeError, ValueError) as error:
        raise InputError(f"config cannot be stored as JSON: {error}") from error
    with files.failures(folder, "create"), database.failures(folder, 0):
        if folder.exists() and not folder.is_dir():
            raise StoreError(f"{folder} is a file; choose another path for the index folder")
        with files.step("make folder"):
            folder.mkdir(parents=True, exist_ok=True)
        with _creating(folder):
            codefile.create(folder / schema.CODES, d)
            files.replace(folder / schema.IDS, lambda file: None)
            # The catalogue gets its name last: until then there is no index here.
            unnamed = folder / (schema.CATALOG + files.TEMPORARY)
            with files.step(f"write {schema.CATALOG}"):
                _catalogue(unnamed, {"config": text, "d": str(d), "state": State().text()})
            files.sync_folder(folder)
            with files.step(f"rename {schema.CATALOG}"):
                unnamed.replace(folder / schema.CATALOG)
            files.sync_folder(folder)
            files.sync_folder(folder.parent)


def _catalogue(path: Path, meta: dict[str, str]) -> None:
    """A catalogue without rounds at `path`, closed: one file, with its log folded in."""
    with closing(database.connect(path, "mode=rwc", 0)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN")
        for statement in schema.SCHEMA:
            connection.execute(statement)
        named = {**meta, schema.SPENT_KEY: os.urandom(16).hex()}
        connection.executemany("INSERT INTO meta VALUES (?, ?)", named.items())
        found = table_checksums.TableChecksums(connection)
        found.renew(*table_checksums.SELECTS)
        found.store()
        connection.execute("COMMIT")


@contextmanager
def _creating(folder: Path) -> Iterator[None]:
    """Alone in an empty folder; two creations at once, or one over anything of value, are refused."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if (folder / schema.CATALOG).exists():  # a reader or a writer may have its turn
                raise _taken(folder) from None
            raise StoreError(
                f"another process is making an index at {folder}; wait for it, or choose another path"
            ) from None
        if (folder / schema.CATALOG).exists():
            raise _taken(folder)
        for path in folder.iterdir():
            # A creation that died leaves only these, without a code or an id in them.
            unnamed = path.name.removesuffix(files.TEMPORARY)
            limit = {schema.CODES: codefile.START, schema.IDS: 0}.get(unnamed, -1)
            unborn = path.name.startswith(schema.CATALOG + files.TEMPORARY)
            if not unborn and not (path.is_file() and path.stat().st_size <= limit):
                raise StoreError(f"{folder} is not empty ({path.name}); choose another path for the index")
            if unborn:
                path.unlink()
        yield
    finally:
        os.close(handle)


def _taken(folder: Path) -> StoreError:
    return StoreError(f"{folder} holds an index already; add to it, or choose another path")
