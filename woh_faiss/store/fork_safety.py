"""A gate at which a fork waits until no thread of the parent is inside code that the child will use.

SQLite's global locks, and ours, would be held forever in a child whose parent's other threads held them.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from typing import Any


class _ForkLock:
    """Any number of threads go in and out; a fork goes ahead when nobody else is inside."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._inside, self._forking = 0, False
        self._mine = threading.local()

    def __enter__(self) -> None:
        depth = getattr(self._mine, "depth", 0)
        with self._condition:
            while self._forking and not depth:  # who is inside must be able to go on, to come out
                self._condition.wait()
            self._inside += 1
        self._mine.depth = depth + 1

    def __exit__(self, *exc: object) -> None:
        self._mine.depth -= 1
        with self._condition:
            self._inside -= 1
            self._condition.notify_all()

    def before_fork(self) -> None:
        self._condition.acquire()
        self._forking = True
        while self._inside > getattr(self._mine, "depth", 0):
            self._condition.wait()

    def after_fork(self) -> None:
        self._forking = False
        self._condition.notify_all()
        self._condition.release()


#: Held for moments, never while something is waited for.
gate = _ForkLock()
os.register_at_fork(before=gate.before_fork, after_in_parent=gate.after_fork, after_in_child=gate.after_fork)


#: Rows fetched at once: many enough that passing the gate costs little.
_BATCH = 256


class _Cursor(sqlite3.Cursor):
    """Its calls are inside the gate, one by one; its rows, as they are iterated over, a batch at a time."""

    def __iter__(self) -> Any:
        while rows := self.fetchmany(_BATCH):
            yield from rows

    def fetchmany(self, size: int | None = 1) -> list[Any]:
        """The next rows, at most `size`."""
        with gate:
            return super().fetchmany(size)

    def fetchone(self) -> Any:
        """The next row or None."""
        with gate:
            return super().fetchone()

    def fetchall(self) -> list[Any]:
        """The rows that are left."""
        with gate:
            return super().fetchall()


class Connection(sqlite3.Connection):
    """For a writer, who may take long between two statements: each is inside the gate, not all together."""

    def cursor(self, factory: Any = _Cursor) -> Any:
        """A cursor of our kind."""
        return super().cursor(factory)

    def execute(self, *args: Any) -> Any:
        """One statement."""
        with gate:
            return self.cursor().execute(*args)

    def executemany(self, *args: Any) -> Any:
        """One statement for each set of parameters."""
        with gate:
            return self.cursor().executemany(*args)

    def close(self) -> None:
        """As the base class."""
        with gate:
            super().close()
