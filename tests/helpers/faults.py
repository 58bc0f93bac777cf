"""Faults at system calls: compile `faults.c`, run Python under it, arm it from inside."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

COUNT, KILL, FAIL, FAIL_FROM_THEN_ON, DELAY = range(5)
HERE = Path(__file__).resolve().parent
COMPILER = shutil.which("cc") or shutil.which("gcc")


def preloaded(script: Path, folder: Path, *arguments: object) -> subprocess.Popen:
    """A Python process that runs `script` under the shim, built in `folder`; its stdout is a pipe of text."""
    library = folder / "faults.so"
    if not library.exists():
        source = HERE / "faults.c"
        subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    env = {
        **os.environ,
        "LD_PRELOAD": str(library),
        "PYTHONPATH": f"{HERE.parent}{os.pathsep}{HERE}",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    command = [sys.executable, str(script), *map(str, arguments)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)


class Shim:
    """The shim in this process."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self._library.faults_names.restype = ctypes.c_char_p
        self._library.faults_disarm.restype = ctypes.c_long

    def arm(self, mode: int, target: int, value: int = 0) -> None:
        """The call number `target` of this thread from now on is killed, failed (errno) or delayed (µs)."""
        self._library.faults_arm(mode, ctypes.c_long(target), value)

    def disarm(self) -> int:
        """Calls since `arm`."""
        return self._library.faults_disarm()

    def names(self) -> list[str]:
        """What was called since `arm(COUNT, -1)`."""
        return self._library.faults_names().decode().split()


@contextmanager
def armed_commit(shim: Shim, mode: int, target: int, value: int = 0):
    """The shim is armed from the beginning of a COMMIT until the writers' lock is free again."""
    from woh_faiss.store.writer_lock import WriterLock

    begin, free = WriterLock.committing, WriterLock.free

    def committing(lock):
        shim.arm(mode, target, value)
        return begin(lock)

    def freed(lock):
        free(lock)
        shim.disarm()

    WriterLock.committing, WriterLock.free = committing, freed
    try:
        yield
    finally:
        WriterLock.committing, WriterLock.free = begin, free


@contextmanager
def armed_writing(shim: Shim, mode: int, target: int, value: int = 0):
    """The shim is armed from the first byte of a new generation's files until the COMMIT begins."""
    from woh_faiss.store import generations
    from woh_faiss.store.writer_lock import WriterLock

    write, begin = generations.write, WriterLock.committing

    def written(*given):
        shim.arm(mode, target, value)
        return write(*given)

    def committing(lock):
        shim.disarm()
        return begin(lock)

    generations.write, WriterLock.committing = written, committing
    try:
        yield
    finally:
        generations.write, WriterLock.committing = write, begin


@contextmanager
def armed_settling(shim: Shim, mode: int, target: int, value: int = 0):
    """The shim is armed from a writer's first try for the lock until what it found is settled."""
    from woh_faiss.store import database, write_transaction

    take, settle = database.writer_lock.take, write_transaction.settle

    def taken(*given):
        shim.arm(mode, target, value)
        return take(*given)

    def settled(*given):
        settle(*given)
        shim.disarm()

    database.writer_lock.take, write_transaction.settle = taken, settled
    try:
        yield
    finally:
        shim.disarm()
        database.writer_lock.take, write_transaction.settle = take, settle


if __name__ == "__main__":
    at = Path(sys.argv[1])
    at.mkdir(parents=True, exist_ok=True)
    with preloaded(
        Path(__file__).with_name("commit_faults.py"), at, at / "product", *sys.argv[2:]
    ) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
