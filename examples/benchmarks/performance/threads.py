"""Threads that nobody has set against the best number of them: idle, and beside a busy process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import setting
from measuring import figure

COMMAND = [sys.executable, "-m", "woh_faiss_cli"]
BUSY = [sys.executable, "-S", "-c", "while True: pass"]


def seconds(command: list[str], count: int) -> float:
    """Elapsed time of a command with so many threads; 0 for as many as it takes by itself."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    if count:
        environment |= {f"{name}_NUM_THREADS": str(count) for name in ("OMP", "OPENBLAS", "MKL")}
    started = time.perf_counter()
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


@contextmanager
def beside(busy: bool) -> Iterator[None]:
    """With a process that uses one processor, or without."""
    process = subprocess.Popen(BUSY) if busy else None
    try:
        yield
    finally:
        if process is not None:
            process.kill()
            process.wait()


def records(quick: bool, folder: Path) -> Iterator[dict[str, Any]]:
    chunks = sorted(setting.DATA.glob("chunk-*.npz"))
    made, index = folder / "threads-made", folder / "threads"
    subprocess.run([*COMMAND, "build", str(chunks[0]), "--index", str(made)], check=True, capture_output=True)
    commands = {
        "build": ["build", str(chunks[0]), "--index", str(index)],
        "update": ["update", str(chunks[1]), "--index", str(index)],
        "query": ["query", str(setting.DATA / "queries.npz"), "--index", str(made)],
        "evaluate": ["evaluate", str(chunks[0]), "--bits", "64", "--chunks", "2"],
    }
    counts = [0, *range(1, min(os.cpu_count() or 1, 4) + 1)]
    for busy in (False, True):
        for name, command in commands.items():
            found = []
            with beside(busy):
                for _ in range(1 if quick else 3):
                    taken = []
                    for count in counts:
                        shutil.rmtree(index, ignore_errors=True)
                        if name == "update":
                            shutil.copytree(made, index)
                        taken.append(seconds([*COMMAND, *command], count))
                    found.append(taken)
            yield figure(
                f"{name}, threads as they come / best number" + (", beside a busy process" if busy else ""),
                [own / min(others) for own, *others in found],
                bar=1.2,
                clock="wall",
                note=f"{len(counts) - 1} processors; {min(own for own, *_ in found):.2f} s",
            )
